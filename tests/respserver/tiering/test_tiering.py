"""Tiering with the real program: a directory and S3, kills, replicas, and a change of the leader."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from persistence.tiering.objectstore import HistoryStore
from persistence.tiering.ownership import claim
from respserver.config.conffile import ConfigError
from respserver.config.config import Config
from tests.persistence.tiering.kit import Entry, History
from tests.tidelog.jobs.s3kit import s3_bucket
from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tidelog.cli.program import main
from tidelog.testing import Server, running_server

NODE = 10


@contextmanager
def tiered(url: Path | str, **config: str | int) -> Iterator[Server]:
    options: dict[str, Any] = {"tier_url": str(url), "tier_after": 0, "tier_interval": 0, **config}
    with running_server(stream_node_max_entries=NODE, **options) as server:
        yield server


def following(url: Path, leader: Server) -> AbstractContextManager[Server]:
    return tiered(url, replicaof=f"{leader.host} {leader.port}")


def fields(client: Raw) -> dict[str, str]:
    """Return the fields of INFO about tiering."""
    lines = client("INFO", "persistence").decode().splitlines()
    return dict(line.split(":", 1) for line in lines if line.startswith("tier_"))


def add(client: Raw, count: int, key: str = "a") -> list[Entry]:
    """Append entries, write a checkpoint, and return all entries."""
    assert len(client.pipeline(*[("XADD", key, "*", "n", str(number)) for number in range(count)])) == count
    assert client("SAVE") == b"OK"
    return list(client("XRANGE", key, "-", "+"))


def await_copy(target: Path | HistoryStore, entries: list[Entry], key: bytes = b"a") -> None:
    """Wait until all entries but those of the last node are in the history, and compare."""
    eventually(lambda: len(History(target).entries(key)) >= len(entries) - NODE, "the entries were not copied")
    history = History(target).entries(key)
    assert history == entries[: len(history)]


def helpers(server: Server, module: bytes = b"") -> list[int]:
    """Return the process IDs of the helpers of a server, or only of those that run a module."""
    tasks = Path(f"/proc/{server.pid}/task").glob("*/children")
    pids = [int(pid) for children in tasks for pid in _content(children).split()]
    return [pid for pid in pids if module in _content(Path(f"/proc/{pid}/cmdline"))]


def _content(path: Path) -> bytes:
    """Return the content of a file of a process; empty if the process or thread has ended."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_a_directory_and_kills_of_the_helper_and_the_server(tmp_path: Path) -> None:
    with tiered(tmp_path, save="") as server:
        with Raw(server.port) as client:
            await_copy(tmp_path, add(client, 95))
            (old,) = eventually(lambda: helpers(server))
            os.kill(old, signal.SIGKILL)
            await_copy(tmp_path, add(client, 30))
            assert fields(client)["tier_errors"] != "0"
            (new,) = eventually(lambda: helpers(server))
            assert new != old
            entries = add(client, 30)
        server.kill()
        eventually(lambda: not alive(new), "the helper outlived its server")
        server.start()
        with Raw(server.port) as client:
            await_copy(tmp_path, entries)
            eventually(lambda: fields(client)["tier_last_status"] == "ok" and int(fields(client)["tier_passes"]) > 1)
            assert 0 <= int(fields(client)["tier_lag_seconds"]) < 60
            assert any("History is copied to" in line for line in server.output)
            last = helpers(server)
    assert last
    assert not any(map(alive, last))


def alive(pid: int) -> bool:
    """Return whether a process runs. One that has ended can remain until its parent notices it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_size_stays_local_and_streams_have_their_own_setting(tmp_path: Path) -> None:
    """The default is a size, which no stream exceeds. Changes of it and of a stream affect the next pass."""
    with tiered(tmp_path, tier_after="1gb") as server, Raw(server.port) as client:
        assert client("TCFG", "soon", "TIER", "BYTES", 0) == b"OK"
        others = [add(client, 45, key) for key in ("a", "late")]
        await_copy(tmp_path, add(client, 45, "soon"), b"soon")
        assert client("TCFG", "late", "TIER", "AGE", 3_600_000) == b"OK"
        assert client("SAVE") == b"OK"
        assert [History(tmp_path).manifest(key) for key in (b"a", b"late")] == [None, None]
        assert client("CONFIG", "SET", "tier-after", "1b") == b"OK"
        await_copy(tmp_path, others[0])
        passes = int(fields(client)["tier_passes"])
        eventually(lambda: int(fields(client)["tier_passes"]) > passes + 1)
        assert History(tmp_path).manifest(b"late") is None
        assert client("TCFG", "late", "TIER", "DEFAULT") == b"OK"
        assert client("SAVE") == b"OK"
        await_copy(tmp_path, others[1], b"late")


def test_a_lost_object_is_written_again(tmp_path: Path) -> None:
    """``tidelog history repair`` requests it, and the next pass of the server does it, as long as the store has all."""
    with tiered(tmp_path, save="") as server, Raw(server.port) as client:
        entries = add(client, 95)
        await_copy(tmp_path, entries)
        (path,) = (tmp_path / "objects").iterdir()
        content = path.read_bytes()
        for damage in (path.unlink, lambda: path.write_bytes(content[:60] + b"#" + content[61:])):
            damage()
            result = CliRunner().invoke(main, ["history", "repair", "--url", server.url, "--read", "--yes"])
            assert result.exit_code == 0, result.output
            assert "request that the server writes an object again" in result.output
            eventually(lambda: path.exists() and path.read_bytes() == content, "the object was not written again")
            eventually(lambda: list((tmp_path / "repairs").iterdir()) == [])
        text = "was written again from the store, with 90 entries"
        eventually(lambda: len([line for line in server.output if text in line]) == 2)
        await_copy(tmp_path, entries)
        assert fields(client)["tier_errors"] == "0"


def test_s3(tmp_path: Path) -> None:
    with s3_bucket() as bucket:
        url = f"{bucket}/{tmp_path.name}"
        with tiered(url) as server, Raw(server.port) as client:
            await_copy(HistoryStore(url, 60, lambda: None), add(client, 95))


def test_the_prefix_of_another_server(tmp_path: Path) -> None:
    claim(HistoryStore(str(tmp_path), 60, lambda: None), "7" * 40)
    with tiered(tmp_path) as server, Raw(server.port) as client:
        add(client, 25)
        eventually(
            lambda: f"belongs to another server or server group (ID {'7' * 40}" in fields(client)["tier_last_error"]
        )
        assert fields(client)["tier_last_status"] == "err"
        assert not isinstance(client("XADD", "a", "*", "f", "v"), str), "writes continue"
        eventually(lambda: any("Nothing is lost, and writes continue" in line for line in server.output))


def test_two_servers_from_one_backup(tmp_path: Path) -> None:
    """They have the same entries, and would write objects with the same names. Only one of them writes."""
    target, backup = tmp_path / "target", tmp_path / "backup"
    target.mkdir()
    with running_server(stream_node_max_entries=NODE) as server:
        with Raw(server.port) as client:
            add(client, 45)
        assert CliRunner().invoke(main, ["backup", str(backup), "--url", server.url]).exit_code == 0
    for name in ("one", "two"):
        assert CliRunner().invoke(main, ["restore", str(backup), str(tmp_path / name)]).exit_code == 0
    with tiered(target, dir=str(tmp_path / "one")) as one, tiered(target, dir=str(tmp_path / "two")) as two, \
            Raw(one.port) as first, Raw(two.port) as second:  # fmt: skip

        def owners() -> list[Raw]:
            errors = [fields(each)["tier_last_error"] for each in (first, second)]
            refused = ["belongs to another server or server group" in error for error in errors]
            return [each for each, no in zip((first, second), refused, strict=True) if not no]

        eventually(lambda: len(owners()) == 1)
        (winner,) = owners()
        other = second if winner is first else first
        entries = eventually(lambda: list(winner("XRANGE", "a", "-", "+")))
        await_copy(target, entries)
        before = _files(target)
        add(other, 30)
        errors = int(fields(other)["tier_errors"])
        eventually(lambda: int(fields(other)["tier_errors"]) > errors + 1)
        assert fields(other)["tier_objects"] == "0"
        assert _files(target) == before
        await_copy(target, add(winner, 30))


def _files(target: Path) -> dict[str, int]:
    """Return the files below a directory, with their inodes. Those that check the directory come and go."""
    return {str(path): path.stat().st_ino for path in target.rglob("*") if not path.name.startswith((".", "check-"))}


def test_the_target_appears_later(tmp_path: Path) -> None:
    target = tmp_path / "later"
    with tiered(target) as server, Raw(server.port) as client:
        entries = add(client, 25)
        eventually(lambda: "is no directory" in fields(client)["tier_last_error"])
        target.mkdir()
        await_copy(target, entries)
        eventually(lambda: fields(client)["tier_last_error"] == "")


def test_a_replica_copies_nothing(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with running_server(stream_node_max_entries=NODE) as leader, following(target, leader) as replica, \
            Raw(leader.port) as client, Raw(replica.port) as reader:  # fmt: skip
        entries = add(client, 45)
        eventually(lambda: reader("XLEN", "a") == 45)
        assert reader("SAVE") == b"OK"
        assert (helpers(replica), list(target.iterdir())) == ([], [])
        assert fields(reader)["tier_lag_seconds"] == "-1"
        reader("REPLICAOF", "NO", "ONE")
        await_copy(target, entries)
        (helper,) = eventually(lambda: helpers(replica))
        reader("REPLICAOF", leader.host, leader.port)
        eventually(lambda: not alive(helper))
        eventually(lambda: fields(reader)["tier_lag_seconds"] == "-1")
        assert fields(reader)["tier_last_status"] == "ok"


def test_the_next_leader_of_a_group_continues(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    group: dict[str, str | int] = {
        "group": "tide", "coordinator": f"file://{tmp_path}/coordinator", "min_in_sync": 1, "group_lease": 2000,
    }  # fmt: skip
    with tiered(target, **group) as one, tiered(target, **group) as two:
        leader, other = eventually(lambda: leader_of(one, two))
        with Raw(leader.port) as client, Raw(other.port) as reader:
            await_copy(target, add(client, 45))
            assert helpers(other) == []
            eventually(lambda: reader("XLEN", "a") == 45)
            eventually(lambda: b"group_in_sync:2" in client("INFO", "replication"))
        leader.kill()
        eventually(lambda: leads(other))
        with Raw(other.port) as client:
            entries = eventually(lambda: _added(client))
            await_copy(target, entries)
        names = sorted(path.name for path in (target / "objects").iterdir())
        assert len({name.partition("-")[0] for name in names}) == 2, "the epochs of both leaders"


def leads(server: Server) -> bool:
    with Raw(server.port) as client:
        found = client("INFO", "replication")
    return b"role:master" in found and b"group_phase:leading" in found


def leader_of(one: Server, two: Server) -> tuple[Server, Server] | None:
    return (one, two) if leads(one) else (two, one) if leads(two) else None


def _added(client: Raw) -> list[Entry]:
    if isinstance(client("XADD", "a", "*", "n", "first"), str):
        return []  # not yet writable
    return add(client, 30)


@pytest.mark.parametrize("url", ["relative/path", "ftp://host/tide", "s3://"])
def test_an_invalid_url_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(ConfigError, match=f"tier-url {url}: "):
        Config.load(["--tier-url", url])


def test_a_new_leader_writes_a_checkpoint(tmp_path: Path) -> None:
    """No save point is set, and nobody writes after the restart."""
    with tiered(tmp_path, save="") as server:
        with Raw(server.port) as client:
            client.pipeline(*[("XADD", "a", "*", "n", str(number)) for number in range(55)])
            entries = list(client("XRANGE", "a", "-", "+"))
        server.kill()
        server.start()
        await_copy(tmp_path, entries)
