"""Real servers that the system gives no more memory (RLIMIT_AS): an error reply, or the end, but never silence."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tidelog.testing import Server, ServerError, running_server

MB = 1 << 20
OOM = "OOM the system gives the server no more memory for this command"


def limited(megabytes: int) -> list[str]:
    """The command of a server under ``ulimit -v``."""
    run = f'ulimit -v {megabytes * 1024}; exec {sys.executable} -P -m _tidelog_server "$@"'
    return ["sh", "-c", run, "tidelog-server"]


def leave(server: Server, size: int) -> None:
    """Let the process have ``size`` bytes more than it has."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    now = int(status.split("VmSize:")[1].split()[0]) * 1024
    resource.prlimit(server.pid, resource.RLIMIT_AS, (now + size, resource.RLIM_INFINITY))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running_server(tmp_path, save="", wal_size="8mb") as server:
        yield server
        server.restart()  # whatever happened: it starts again, and stops as it should


VALUE = b"x" * 50_000
WRITES: dict[str, list[tuple[bytes | str | int, ...]]] = {
    "SET": [("SET", "{}", VALUE)],
    "TAPPEND": [("TAPPEND", "{}", "f", VALUE)],
    "TSTAGE": [("TSTAGE", "{}", 0, "s", "FIELDS", 1, "f", "VALUES", VALUE)],
    "EXEC": [("MULTI",), ("SET", "{}", VALUE), ("EXEC",)],
}


def write_until_the_end(server: Server, write: str) -> list[str]:
    """Write to one name after the other until the server is gone; returns the names whose write was answered."""
    answered: list[str] = []
    number = 0
    while server.running:
        try:
            with Raw(server.port) as c:  # again, if only this client was closed
                while True:
                    number += 1
                    name = f"k{number}"
                    words = [tuple(name if word == "{}" else word for word in line) for line in WRITES[write]]
                    last = c.pipeline(*words)[-1]
                    assert not isinstance(last, str), last
                    answered.append(name)
        except (EOFError, ConnectionError):
            pass
    return answered


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITES)
def test_a_server_without_memory_ends_and_keeps_what_it_answered(server: Server, write: str) -> None:
    leave(server, 24 * MB)
    answered = write_until_the_end(server, write)
    assert server.wait() == 1
    said = [line for line in server.output if "Out of memory while" in line]
    assert len(said) == 1
    assert said[0] == server.output[-1]
    assert not any("bug" in line.lower() for line in server.output)
    server.start()
    with Raw(server.port) as c:
        for name in answered:
            if write == "TSTAGE":
                assert c("TDROP", name) == 1
            elif write == "TAPPEND":
                assert c("TLEN", name) == 1
            else:
                assert c("GET", name) == VALUE


def test_a_read_that_is_too_large_gets_an_error(server: Server) -> None:
    with Raw(server.port) as c, Raw(server.port) as other:
        assert c("SET", "large", b"x" * 15 * MB) == b"OK"
        c("SAVE")
        leave(server, 12 * MB)
        assert c("GET", "large") == OOM
        both = c.pipeline(("MULTI",), ("PING",), ("GET", "large"), ("EXEC",))[-1]
        assert list(map(str, both)) == ["b'PONG'", OOM]
        assert other("PING") == b"PONG"
        assert other("SET", "k", "v") == b"OK"
        assert "errorstat_OOM:count=2" in c("INFO", "errorstats").decode()
    eventually(lambda: any("Out of memory while running" in line for line in server.output))
    assert not any("bug" in line.lower() for line in server.output)


def test_a_request_that_finds_no_room_costs_its_client_only(server: Server) -> None:
    with Raw(server.port) as c, Raw(server.port) as greedy:
        leave(server, 24 * MB)
        sent = 0
        with pytest.raises(OSError):  # noqa: PT012 - the loop is the subject
            greedy.sock.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$209715200\r\n")
            while True:
                sent += greedy.sock.send(b"x" * MB)
        assert sent < 100 * MB
        assert c("PING") == b"PONG"
        assert c("SET", "k", "v") == b"OK"


@pytest.mark.slow
def test_maps_leave_room_for_the_heap(tmp_path: Path) -> None:
    """Under ulimit -v of 800 MB: 100 MB of values, a checkpoint, a restart."""
    with running_server(tmp_path, command=limited(800), save="", appendfsync="no") as server:
        with Raw(server.port) as c:
            for number in range(100):
                while (said := c("SET", f"k{number}", b"%d" % number * (MB // len(str(number))))) != b"OK":
                    assert "the journal is full until a checkpoint is done" in said
            while (said := c("SAVE")) != b"OK":  # one was running: the journal has little room
                assert said == "ERR Background save already in progress"
            assert c("TAPPEND", "s", "f", "v")
        server.restart()
        with Raw(server.port) as c:
            assert c("DBSIZE") == 101


def test_a_limit_that_is_too_small_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ServerError) as caught, running_server(tmp_path, command=limited(400)):
        raise AssertionError("it started")
    said = "space of this process is limited to 400 MB ('ulimit -v'), and this file needs a limit of at least 512"
    assert said in str(caught.value)


@pytest.mark.slow
def test_a_journal_with_little_room_is_cut_in_time(tmp_path: Path) -> None:
    """Its map has an eighth of the address space, less than checkpoint-size: writes go on all the same."""
    with running_server(tmp_path, command=limited(640), save="", appendfsync="no", wal_size="8mb") as server, \
            Raw(server.port) as c:  # fmt: skip
        value = b"x" * MB
        for _ in range(300):
            while (said := c("SET", "k", value)) != b"OK":
                assert said.startswith("MISCONF"), said
        assert c("GET", "k") == value


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "batch"), [(512, 30), (800, 110)])
def test_a_transaction_for_which_there_is_no_room_is_answered_or_the_end(
    tmp_path: Path, limit: int, batch: int
) -> None:
    with running_server(tmp_path, command=limited(limit), save="", appendfsync="no", wal_size="8mb") as server:
        with Raw(server.port) as c:
            assert c("SET", "k", "v") == b"OK"
            c.pipeline(("MULTI",), *[("SET", f"k{n}", b"x" * MB) for n in range(batch)])
            try:
                said = c("EXEC")
            except (EOFError, ConnectionError):
                said = "gone"
            assert said == "gone" or isinstance(said, list | str), said
        if said == "gone":
            assert server.wait() == 1
            assert any("Out of memory while" in line for line in server.output)
            server.start()
        with Raw(server.port) as c:
            assert c("GET", "k") == b"v"
            assert c("EXISTS", "k0") == c("EXISTS", f"k{batch - 1}") == isinstance(said, list)
