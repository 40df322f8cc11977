"""AUTH and HELLO AUTH after failures: answered when the address's wait is over, right or wrong. The test moves the
clock."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from commands.users.throttle import FREE, LONGEST_LOCAL_MS
from respserver.testing import HandClock, RunningServer, start_in_thread
from tests.wire.rawclient import Raw, pack

Connect = Callable[..., Raw]
WRONG = "WRONGPASS invalid username-password pair or user is disabled."


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[RunningServer]:
    with start_in_thread(
        clock=HandClock(), requirepass="secret", unixsocket=str(tmp_path / "sock"), enable_debug_command="yes"
    ) as server:
        yield server


@pytest.fixture
def connect(locked: RunningServer) -> Iterator[Connect]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Raw(locked.port))


def waiting(server: RunningServer) -> int:
    return server.call(lambda: server.server.blocking.count)


def wait_for(server: RunningServer, count: int) -> None:
    while waiting(server) != count:
        pass


def fail(connect: Connect, count: int = FREE) -> None:
    raw = connect()
    assert [raw("AUTH", "wrong") for _ in range(count)] == [WRONG] * count


def test_right_passwords_never_wait(connect: Connect) -> None:
    for _ in range(50):
        raw = connect()
        assert raw("AUTH", "secret") == b"OK"
        assert raw("AUTH", "default", "secret") == b"OK"


def test_a_client_that_has_shut_down_its_side_gets_its_replies(connect: Connect, locked: RunningServer) -> None:
    """Nothing is read while it waits, so that it has shut down is not known; it is not looked for either."""
    fail(connect)
    raw = connect()
    raw.sock.sendall(pack("AUTH", "secret") + pack("PING"))
    raw.sock.shutdown(socket.SHUT_WR)
    wait_for(locked, 1)
    for _ in range(3):
        locked.call(locked.server.on_time)
    locked.advance(100)
    assert [raw.read(), raw.read()] == [b"OK", b"PONG"]


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        (("AUTH", "secret"), b"OK"),
        (("AUTH", "wrong"), WRONG),
        (("AUTH", "default", "secret"), b"OK"),
        (("AUTH", "nobody", "secret"), WRONG),
        (("HELLO", 2, "AUTH", "default", "wrong"), WRONG),
        (("HELLO", 3, "AUTH", "default", "secret", "SETNAME", "x"), {}),
    ],
)
def test_right_or_wrong_waits_alike(connect: Connect, locked: RunningServer, words: Any, reply: Any) -> None:
    fail(connect)
    raw = connect()
    raw.send(*words)
    wait_for(locked, 1)
    locked.advance(99)
    assert waiting(locked) == 1
    assert raw.nothing_yet()
    locked.advance(1)
    answer = raw.read()
    if isinstance(reply, dict):
        assert answer[b"proto"] == 3
        assert raw("CLIENT", "GETNAME") == b"x"
    else:
        assert answer == reply


def test_how_many_answers_there_are_within_a_time(connect: Connect, locked: RunningServer) -> None:
    raw = connect()
    raw.sock.sendall(pack("AUTH", "wrong") * 100)
    assert [raw.read() for _ in range(FREE)] == [WRONG] * FREE
    wait_for(locked, 1)
    locked.advance(8 * LONGEST_LOCAL_MS)
    answers = locked.call(lambda: locked.server.users.denials.counts["auth"])
    assert FREE + 5 <= answers <= FREE + 2 + 8
    assert raw.read() == WRONG


def test_others_go_on(connect: Connect, locked: RunningServer, tmp_path: Path) -> None:
    inside = connect()
    assert inside("AUTH", "secret") == b"OK"
    fail(connect)
    held = connect()
    held.send("AUTH", "secret")
    wait_for(locked, 1)
    assert inside("SET", "k", "v") == b"OK"  # who is in stays in
    with socket.socket(socket.AF_UNIX) as other:  # another address
        other.settimeout(10)
        other.connect(str(tmp_path / "sock"))
        other.sendall(pack("AUTH", "secret"))
        assert other.recv(100) == b"+OK\r\n"
    assert held.nothing_yet()


def test_what_was_sent_behind_a_held_login(connect: Connect, locked: RunningServer) -> None:
    """It runs afterwards, also if it is more than a stranger may send; and it is not decoded before."""
    fail(connect)
    raw = connect()
    value = b"x" * 20_000
    raw.sock.sendall(pack("AUTH", "secret") + pack("SET", "k", value) + pack("MGET", *["k"] * 20) + pack("PING"))
    wait_for(locked, 1)
    assert raw.nothing_yet()
    locked.advance(100)
    assert [raw.read() for _ in range(4)] == [b"OK", b"OK", [value] * 20, b"PONG"]


def test_a_held_client_piles_up_nothing(connect: Connect, locked: RunningServer) -> None:
    fail(connect)
    raw = connect()
    raw.sock.settimeout(0.2)
    raw.sock.sendall(pack("AUTH", "secret"))
    wait_for(locked, 1)
    chunk = pack("PING", b"x" * 10_000) * 100
    with pytest.raises(TimeoutError):
        raw.sock.sendall(chunk * 256)

    def kept() -> int:
        conn = max(locked.server.clients.connections(), key=lambda conn: conn.session.id)
        assert not conn.socket.reading
        assert not conn.input.backlog
        return conn.stats().query_buffered

    assert locked.call(kept) <= 1 << 19  # what one read brings


def test_a_held_client_that_goes_away(connect: Connect, locked: RunningServer) -> None:
    fail(connect)
    raw = connect()
    raw.send("AUTH", "wrong")
    wait_for(locked, 1)
    raw.close()
    locked.advance(LONGEST_LOCAL_MS)
    wait_for(locked, 0)
    inside = connect()
    inside.send("AUTH", "secret")
    wait_for(locked, 1)
    locked.advance(LONGEST_LOCAL_MS)
    assert inside.read() == b"OK"


def test_client_unblock_does_not_help(connect: Connect, locked: RunningServer) -> None:
    inside = connect()
    assert inside("AUTH", "secret") == b"OK"
    fail(connect)
    held = connect()
    held.send("AUTH", "secret")
    wait_for(locked, 1)
    number = inside("CLIENT", "ID") + 2
    assert inside("CLIENT", "UNBLOCK", number) == 0
    assert inside("CLIENT", "UNBLOCK", number, "ERROR") == 0
    assert inside("CLIENT", "KILL", "ID", number) == 1
    assert waiting(locked) == 0


def test_transactions_do_not_help(connect: Connect, locked: RunningServer) -> None:
    inside = connect()
    assert inside("AUTH", "secret") == b"OK"
    inside.pipeline(("MULTI",), *[("AUTH", "wrong")] * (FREE + 5), ("AUTH", "secret"))
    assert [str(reply).split()[0] for reply in inside("EXEC")] == ["WRONGPASS"] * FREE + ["ERR"] * 6


def test_a_user_that_changes_while_its_login_waits(connect: Connect, locked: RunningServer) -> None:
    """The password is looked at when the wait is over."""
    inside = connect()
    assert inside("AUTH", "secret") == b"OK"
    inside("ACL", "SETUSER", "al", "on", ">one")
    fail(connect)
    held = connect()
    held.send("AUTH", "al", "one")
    wait_for(locked, 1)
    inside("ACL", "DELUSER", "al")
    locked.advance(100)
    assert held.read() == WRONG
    assert "errorstat_WRONGPASS" in inside("INFO", "errorstats").decode()
