"""Files of a data directory are for the server's user alone: whatever the umask, and also where earlier versions let
others read them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from persistence import permissions
from persistence.fullcopy import READY, Incoming
from persistence.history import History
from persistence.journal import Journal
from tests.persistence.datakit import RING, append, checkpoint, commit, opened
from tests.wire.rawclient import Raw
from tidelog.testing import running_server


@pytest.fixture(params=[0, 0o22, 0o77])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    return {str(path.relative_to(directory)): stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*")}


def all_private(directory: Path) -> bool:
    found = modes(directory)
    wanted = {name: 0o700 if (directory / name).is_dir() else 0o600 for name in found}
    assert found == wanted
    return {"tail", "journal/data.mdb", "store/lock.mdb", "lock"} <= set(found)


def test_a_new_directory(tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.journal.SHRINK_ABOVE", 0)
    path = tmp_path / "data"
    with opened(path) as (log, ks, _):
        for turn in range(3):
            append(ks, b"a", 15)
            ks.set_string(b"s", b"x" * 50_000)
            log.note_replicas(turn % 2 == 0)
            checkpoint(log, ks)
        assert all_private(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    with opened(path, ring_bytes=2 * RING):  # the WAL is made again
        assert all_private(path)


def test_a_shrunk_journal(tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.journal.SHRINK_ABOVE", 0)
    journal = Journal(tmp_path / "journal")
    journal.write([(0, b"x" * 100_000, 0, 0)])
    journal.truncate(100_000)
    assert journal.shrink()
    journal.close()
    assert set(modes(tmp_path).values()) == {0o600, 0o700}


def test_a_full_copy(tmp_path: Path, umask: int) -> None:
    with opened(tmp_path / "leader") as (leader, ks, _), opened(tmp_path / "replica"):
        append(ks, b"a", 15)
        checkpoint(leader, ks)
        copy, place = leader.store.copy(), Incoming(tmp_path / "replica", RING)
        assert all_private(tmp_path / "replica")
        for piece in copy.pieces(1000):
            place.add(piece)
        place.finish(copy.offset, copy.entries, History("a" * 40))
        copy.close()
    assert (tmp_path / "replica" / READY).exists()
    assert all_private(tmp_path / "replica")
    with opened(tmp_path / "replica"):
        assert all_private(tmp_path / "replica")


def test_a_directory_of_an_earlier_version_is_tightened(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with opened(path) as (log, ks, _):
        append(ks, b"a", 15)
        commit(log, ks)
        log.note_replicas(True)
    for name, mode in modes(path).items():
        (path / name).chmod(mode | 0o055 if (path / name).is_dir() else 0o644)
    path.chmod(0o755)
    (path / "tidelog.conf").write_text("")
    (path / "tidelog.conf").chmod(0o644)
    with opened(path) as (_, ks, _):
        assert append(ks, b"a", 0).length == 15
        assert modes(path).pop("tidelog.conf") == 0o644, "it is not ours"
        (path / "tidelog.conf").unlink()
        assert all_private(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755, "it was there before"


@pytest.mark.interpreted
def test_where_modes_can_not_be_changed_a_start_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "not permitted")

    path = tmp_path / "data"
    with opened(path) as (log, ks, _):
        append(ks, b"a", 15)
        commit(log, ks)
    (path / "tail").chmod(0o644)
    monkeypatch.setattr(Path, "chmod", refuse)
    permissions.tighten(path)
    with opened(path) as (_, ks, _):
        assert append(ks, b"a", 0).length == 15


def test_a_server(tmp_path: Path, umask: int) -> None:
    """Its unix socket and its log file are as the umask says."""
    path = tmp_path / "data"
    logfile, socket = tmp_path / "log", tmp_path / "socket"
    with running_server(path, logfile="", unixsocket=str(socket)) as server, Raw(server.port) as raw:
        raw("TAPPEND", "s", "f", "v")
        raw("SAVE")
        assert all_private(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE(socket.stat().st_mode) == 0o777 & ~umask
    shutil.rmtree(path)
    command = [sys.executable, "-m", "_tidelog_server", "--port", "0", "--logfile", str(logfile), "--dir", str(path)]
    subprocess.run(command, cwd=Path(__file__).parents[2], timeout=20, capture_output=True, check=False)
    assert stat.S_IMODE(logfile.stat().st_mode) == 0o644 & ~umask
