"""The data directory: created completely or not at all, locked, refused when something is missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from persistence import directory as datadir
from persistence.log import Log
from resp.errors import CorruptError
from tests.persistence.datakit import append, checkpoint, commit, opened, options


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with opened(tmp_path / "data") as (log, ks, _):
        append(ks, b"a", 15)
        checkpoint(log, ks)
        append(ks, b"a", 15)
        commit(log, ks)
    return tmp_path / "data"


def test_the_format_file(path: Path) -> None:
    first, second, *rest = (path / "tidelog.format").read_text().splitlines()
    assert first == "tidelog data directory, format 1"
    assert second.startswith("id ")
    assert not rest
    with opened(path) as (log, _, _):
        assert log.history.id == second[3:]
    assert sorted(os.listdir(path)) == ["journal", "lock", "replication", "store", "tail", "tidelog.format"]


def test_a_directory_has_one_user(path: Path) -> None:
    with opened(path), pytest.raises(OSError, match=f"in use by another tidelog-server.*{path}"):
        Log.open(path, options())
    with opened(path):  # and is free again
        pass


@pytest.mark.parametrize("name", ["tail", "journal", "store", "journal/data.mdb", "store/data.mdb", "tidelog.format"])
def test_a_missing_part_is_refused_and_nothing_is_touched(path: Path, name: str) -> None:
    gone = path / name
    gone.rename(path.parent / "elsewhere")
    before = sorted(str(at) for at in path.rglob("*"))
    with pytest.raises(CorruptError, match=name) as refusal:
        Log.open(path, options())
    assert "backup" in str(refusal.value)
    assert sorted(str(at) for at in path.rglob("*")) == before
    (path.parent / "elsewhere").rename(gone)
    with opened(path) as (_, ks, _):
        assert append(ks, b"a", 0).length == 30


@pytest.mark.parametrize("name", ["journal/data.mdb", "store/data.mdb"])
def test_an_emptied_file_is_refused(path: Path, name: str) -> None:
    os.truncate(path / name, 0)
    with pytest.raises(CorruptError, match=name):
        Log.open(path, options())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tidelog data directory, format 2\nid " + "0" * 40 + "\n", "start the newer one"),
        ("something else\n", "not a tidelog data directory"),
        ("", "not a tidelog data directory"),
        ("tidelog data directory, format 1\n", "damaged"),
        ("tidelog data directory, format 1\nid " + "0" * 39 + "\n", "damaged"),
        ("tidelog data directory, format 1\nid " + "g" * 40 + "\n", "damaged"),
    ],
)
def test_a_foreign_format_file_is_refused(path: Path, text: str, said: str) -> None:
    (path / "tidelog.format").write_text(text)
    with pytest.raises(CorruptError, match=f"{path}.*{said}"):
        Log.open(path, options())


def test_an_older_journal_under_a_newer_store_is_refused(path: Path) -> None:
    shutil.copytree(path / "journal", path.parent / "old")
    with opened(path) as (log, ks, _):
        append(ks, b"a", 15)
        checkpoint(log, ks)
    shutil.rmtree(path / "journal")
    (path.parent / "old").rename(path / "journal")
    with pytest.raises(CorruptError, match="older copy"), opened(path):
        pass


def test_an_older_store_under_a_newer_journal_is_refused(path: Path) -> None:
    shutil.copytree(path / "store", path.parent / "old")
    with opened(path) as (log, ks, _):
        append(ks, b"a", 15)
        checkpoint(log, ks)
    shutil.rmtree(path / "store")
    (path.parent / "old").rename(path / "store")
    with pytest.raises(CorruptError, match=f"{path / 'store'}.*older copy"), opened(path):
        pass


@pytest.mark.parametrize("name", ["tail.new", "replication.new", "tidelog.format.new"])
def test_what_a_kill_left_of_a_replacement_is_removed(path: Path, name: str) -> None:
    (path / name).write_bytes(b"half of it")
    with opened(path) as (_, ks, _):
        assert append(ks, b"a", 0).length == 30
        assert not (path / name).exists()


class BrokenOffError(Exception):
    pass


@pytest.mark.parametrize("step", ["create_wal", "Store", "Journal", "complete", "rename"])
def test_a_first_start_that_breaks_off_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def broken(*args: object) -> None:
        raise BrokenOffError

    where = {"create_wal": datadir, "complete": datadir, "rename": Path}.get(step)
    if where is None:
        monkeypatch.setattr(f"persistence.log.{step}", broken)
    else:
        monkeypatch.setattr(where, step, broken)
    with pytest.raises(BrokenOffError):
        Log.open(tmp_path, options())
    monkeypatch.undo()
    with opened(tmp_path) as (log, ks, _):
        append(ks, b"a", 3)
        commit(log, ks)
    with opened(tmp_path) as (_, ks, _):
        assert append(ks, b"a", 0).length == 3


def test_a_marker_left_by_the_first_start_never_costs_data(path: Path) -> None:
    (path / "tidelog.making").touch()  # it broke off between its last two steps
    with opened(path):
        pass
    (path / "tidelog.format").unlink()
    with pytest.raises(CorruptError, match="no tidelog"):
        Log.open(path, options())
