"""The files of a running server are not where they were: they were removed, renamed or replaced, or their file system
was unmounted. The server says so, takes no writes that a restart would not find, and goes on when they are back."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from respserver.testing import RunningServer, start_in_thread
from tests.waiting import eventually
from tests.wire.faults import Fault
from tests.wire.rawclient import Raw


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def server(where: Path) -> Iterator[RunningServer]:
    with start_in_thread(where, enable_debug_command="yes", save="") as running:
        yield running


@pytest.fixture
def c(server: RunningServer) -> Iterator[Raw]:
    with Raw(server.port) as client:
        assert client("XADD", "s", "1-1", "f", "v") == b"1-1"
        assert client("WAITAOF", 1, 0, 0) == [1, 0]
        yield client


def replaced(path: Path) -> None:
    """Another file in its place, with the same bytes."""
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.rename(path)


def another_directory(path: Path) -> None:
    path.rename(path.with_name("away"))
    shutil.copytree(path.with_name("away"), path)


GONE = {
    "tail": lambda where: (where / "tail").unlink(),
    "journal": lambda where: (where / "journal" / "data.mdb").unlink(),
    "store": lambda where: (where / "store" / "data.mdb").unlink(),
    "the format": lambda where: (where / "tidelog.format").unlink(),
    "the history": lambda where: (where / "replication").unlink(),
    "the lock": lambda where: (where / "lock").unlink(),
    "the directory": lambda where: shutil.rmtree(where),
    "the directory, renamed": lambda where: where.rename(where.with_name("away")),
    "a part, renamed": lambda where: (where / "store").rename(where / "old"),
    "another tail": lambda where: replaced(where / "tail"),
    "another journal": lambda where: replaced(where / "journal" / "data.mdb"),
    "another store": lambda where: replaced(where / "store" / "data.mdb"),
    "another lock": lambda where: replaced(where / "lock"),
    "another directory": another_directory,
}


@pytest.mark.parametrize("how", GONE)
def test_nothing_is_promised_that_a_restart_would_not_find(c: Raw, where: Path, how: str) -> None:
    GONE[how](where)
    time.sleep(0.005)  # longer than a look at the files is believed
    assert c("WAITAOF", 1, 0, 1) == [0, 0]
    eventually(lambda: str(c("XADD", "s", "*", "f", "v")).startswith("MISCONF"))
    refusal = c("XADD", "s", "*", "f", "v")
    assert str(where) in refusal
    assert "put it back" in refusal
    for command in ("SAVE", "BGSAVE", "BGREWRITEAOF", "DEBUG RELOAD", "DEBUG LOADAOF", "SHUTDOWN"):
        answer = c(*command.split())
        assert answer.startswith(("ERR", "MISCONF")), command
        assert str(where) in answer, command
        assert "internal error" not in answer, command
    assert c("XLEN", "s") == 1, "reads go on"
    info = c("INFO")
    assert b"aof_last_write_status:err" in info
    assert c("MEMORY", "STATS")
    with Raw(c.sock.getpeername()[1]) as other:
        other.send("SHUTDOWN", "FORCE")
        with pytest.raises((EOFError, ConnectionError)):
            other.read()


def test_they_are_missed_without_a_command_and_at_a_checkpoint(c: Raw, server: RunningServer, where: Path) -> None:
    shutil.rmtree(where)
    eventually(lambda: server.call(lambda: server.server.gates.unwritable))
    assert c("SET", "k", "v").startswith("MISCONF Errors writing to disk: ")
    assert c("GET", "k") is None


@pytest.mark.parametrize("what", ["", "tail", "journal", "store", "tidelog.format", "lock"])
def test_writes_go_on_when_they_are_back(c: Raw, where: Path, what: str) -> None:
    path, away = where / what, where.with_name("away")
    path.rename(away)
    eventually(lambda: str(c("SET", "k", "v")).startswith("MISCONF"))
    away.rename(path)
    eventually(lambda: c("SET", "k", "v") == b"OK")
    assert c("WAITAOF", 1, 0, 0) == [1, 0]
    assert c("SAVE") == b"OK"
    c("DEL", "k")
    before = c("DEBUG", "DIGEST")
    assert c("DEBUG", "RELOAD") == b"OK"
    assert c("DEBUG", "DIGEST") == before


def test_nothing_is_touched_at_their_paths_meanwhile(c: Raw, where: Path) -> None:
    """There may be another server's files."""
    where.rename(where.with_name("away"))
    eventually(lambda: str(c("SET", "k", "v")).startswith("MISCONF"))
    shutil.copytree(where.with_name("away"), where)
    before = {path: path.stat().st_mtime_ns for path in where.rglob("*")}
    c("SAVE")
    c("DEBUG", "RELOAD")
    c("REPLICAOF", "NO", "ONE")
    assert c("WAITAOF", 1, 0, 60) == [0, 0]
    assert {path: path.stat().st_mtime_ns for path in where.rglob("*")} == before


def test_what_was_taken_before_they_are_missed_is_there_when_they_are_back(where: Path) -> None:
    with start_in_thread(where, save="") as running, Raw(running.port) as c:
        where.rename(where.with_name("away"))
        taken = 0
        while taken < 20 and isinstance(c("XADD", "s", "*", "f", "v"), bytes):
            taken += 1
        where.with_name("away").rename(where)
    with start_in_thread(where) as running, Raw(running.port) as c:
        assert c("XLEN", "s") == taken


COMMANDS: list[tuple[Any, ...]] = [
    ("INFO",), ("INFO", "everything"), ("INFO", "persistence"), ("MEMORY", "STATS"), ("MEMORY", "DOCTOR"),
    ("MEMORY", "USAGE", "s"), ("MEMORY", "MALLOC-STATS"), ("MEMORY", "PURGE"), ("LASTSAVE",), ("SAVE",), ("BGSAVE",),
    ("BGREWRITEAOF",), ("CONFIG", "REWRITE"), ("CONFIG", "GET", "*"), ("ACL", "SAVE"), ("ACL", "LOAD"),
    ("CONFIG", "SET", "tls-cert-file", "x.pem"), ("CONFIG", "SET", "aclfile", "x"), ("CONFIG", "RESETSTAT"),
    ("CONFIG", "SET", "save", "1 1"), ("CONFIG", "SET", "appendfsync", "everysec"), ("CONFIG", "SET", "logfile", "x"),
    ("CONFIG", "SET", "port", "0"), ("CONFIG", "SET", "pidfile", "x"), ("CONFIG", "SET", "dir", "x"),
    ("WAITAOF", 1, 0, 1), ("COMMAND", "DOCS", "get"), ("LATENCY", "DOCTOR"), ("DEBUG", "OBJECT", "s"), ("ROLE",),
    ("REPLICAOF", "NO", "ONE"), ("DEBUG", "RELOAD"), ("DEBUG", "LOADAOF"), ("SHUTDOWN", "SAVE"), ("PING",),
]  # fmt: skip


@pytest.mark.interpreted
@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone"), PermissionError(13, "no"), OSError(5, "I/O error")])
def test_whatever_call_of_the_file_system_fails_no_command_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """Or it names the error. "internal error" would be a bug, as would be the end of the server."""

    def fails(*_: Any, **__: Any) -> Any:
        raise error

    conf, acl = tmp_path / "server.conf", tmp_path / "users.acl"
    acl.touch()
    conf.write_text("maxmemory 0\n")
    with (
        start_in_thread(tmp_path / "data", enable_debug_command="yes", aclfile=str(acl)) as running,
        Raw(running.port) as c,
    ):
        c("XADD", "s", "*", "f", "v")
        running.server.config.file = str(conf)
        with monkeypatch.context() as patched:
            for name in ("stat", "open", "listdir", "statvfs", "scandir", "getcwd", "mkdir", "rename", "replace"):
                patched.setattr(os, name, fails)
            patched.setattr(Path, "stat", fails)
            patched.setattr("builtins.open", fails)
            answers = {command: c(*command) for command in COMMANDS}
        wrong = {command: answer for command, answer in answers.items() if "internal error" in str(answer)}
        assert not wrong
        assert isinstance(answers["INFO",], bytes)
        assert answers["WAITAOF", 1, 0, 1] == [0, 0]
        assert str(answers["SAVE",]).startswith("ERR the checkpoint failed: ")
        eventually(lambda: c("SET", "k", "v") == b"OK")


def test_a_replica_can_still_copy_the_data(c: Raw, server: RunningServer, where: Path, tmp_path: Path) -> None:
    """The remedy that the refusal names."""
    c("SAVE")
    c("XADD", "s", "2-1", "f", "v")
    shutil.rmtree(where)
    eventually(lambda: str(c("SET", "k", "v")).startswith("MISCONF"))
    leader = ["127.0.0.1", str(server.port)]
    with start_in_thread(tmp_path / "copy", replicaof=leader) as replica, Raw(replica.port) as other:
        eventually(lambda: other("XLEN", "s") == 2)


def test_a_replica_does_not_say_that_it_has_written_what_nobody_will_find(
    c: Raw, server: RunningServer, tmp_path: Path
) -> None:
    copy, away = tmp_path / "copy", tmp_path / "moved"
    with start_in_thread(copy, replicaof=["127.0.0.1", str(server.port)]):
        eventually(lambda: c("WAITAOF", 1, 1, 100) == [1, 1])
        copy.rename(away)
        time.sleep(0.005)
        c("SET", "k", "v")
        assert c("WAITAOF", 1, 1, 300) == [1, 0]
        away.rename(copy)
        eventually(lambda: c("WAITAOF", 1, 1, 100) == [1, 1])


def test_a_full_copy_does_not_begin_in_another_directory(c: Raw, where: Path, tmp_path: Path) -> None:
    where.rename(where.with_name("away"))
    where.mkdir()
    with start_in_thread(tmp_path / "leader") as leader:
        assert c("REPLICAOF", "127.0.0.1", str(leader.port)) == b"OK"
        time.sleep(0.3)
        assert b"master_link_status:down" in c("INFO", "replication")
    assert not list(where.iterdir())


@pytest.mark.interpreted
def test_info_does_not_need_the_journal(c: Raw, server: RunningServer) -> None:
    broken = Fault(server, lambda: server.server.data.disk.journal, "first")
    c("CONFIG", "SET", "repl-backlog-ttl", 0)
    before = c("INFO", "persistence")
    broken.breaks()
    after = c("INFO", "persistence")
    assert b"journal_first_offset:" in after
    assert after.split(b"journal_first_offset:")[1].split()[0] == before.split(b"journal_first_offset:")[1].split()[0]
    for command in (("INFO",), ("INFO", "everything"), ("MEMORY", "STATS"), ("ROLE",)):
        assert not isinstance(c(*command), str), command
    broken.heals()
