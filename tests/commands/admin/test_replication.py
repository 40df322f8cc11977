"""The handlers of REPLICAOF, ROLE, FAILOVER, WAIT, WAITAOF, REPLCONF and PSYNC."""

from __future__ import annotations

import pytest

from commands.session import LEADER, Session
from tests.commands.fakeserver import NOW, FakeServer


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def me(server: FakeServer) -> Session:
    return server.connect()


# -- which role --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["REPLICAOF", "SLAVEOF"])
def test_replicaof_and_slaveof(server: FakeServer, me: Session, name: str) -> None:
    assert server.run(me, name, "leader.example", "7000") == b"+OK\r\n"
    assert server.run(me, name, "::1", "1", in_exec=True) == b"+OK\r\n"
    assert server.run(me, name, "no", "ONE") == b"+OK\r\n"
    assert server.run(me, name, "::1", "1", "force") == b"+OK\r\n"
    assert server.run(me, name, "NO", "ONE", "FORCE") == b"+OK\r\n"
    assert server.calls == [
        ("follow", "leader.example", 7000, False), ("follow", "::1", 1, False), ("lead", False),
        ("follow", "::1", 1, True), ("lead", True),
    ]  # fmt: skip
    server.roles.answer("follow", False)
    assert server.run(me, name, "leader.example", "7000") == b"+OK Already connected to specified master\r\n"


@pytest.mark.parametrize("port", ["x", "-1", "65536", "", "6379x"])
def test_replicaof_with_a_wrong_port(server: FakeServer, me: Session, port: str) -> None:
    assert server.run(me, "REPLICAOF", "h", port) == b"-ERR Invalid master port\r\n"
    assert server.calls == []


def test_a_replicas_connection_cannot_change_the_role(server: FakeServer, me: Session) -> None:
    me.replica = object()
    assert server.run(me, "REPLICAOF", "h", "1") == b"-ERR Command is not valid when client is a replica.\r\n"


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("FAILOVER", (None, 0, False)),
        ("FAILOVER TIMEOUT 500", (None, 500, False)),
        ("failover to h 7000", (("h", 7000), 0, False)),
        ("FAILOVER TO h 7000 FORCE TIMEOUT 1", (("h", 7000), 1, True)),
        ("FAILOVER TIMEOUT 1 FORCE TO h 7000", (("h", 7000), 1, True)),
    ],
)
def test_failover(server: FakeServer, me: Session, words: str, call: tuple[object, ...]) -> None:
    assert server.run(me, *words.split()) == b"+OK\r\n"
    assert server.calls == [("failover", *call)]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("FAILOVER NOW", "ERR syntax error"),
        ("FAILOVER TO h", "ERR syntax error"),
        ("FAILOVER TIMEOUT", "ERR syntax error"),
        ("FAILOVER ABORT TIMEOUT 1", "ERR syntax error"),
        ("FAILOVER TO h 1 TO h 1", "ERR syntax error"),
        ("FAILOVER TIMEOUT 1 TIMEOUT 1", "ERR syntax error"),
        ("FAILOVER FORCE FORCE", "ERR syntax error"),
        ("FAILOVER TO h x", "ERR value is not an integer or out of range"),
        ("FAILOVER TIMEOUT x", "ERR value is not an integer or out of range"),
        ("FAILOVER TIMEOUT 0", "ERR FAILOVER timeout must be greater than 0"),
        ("FAILOVER TIMEOUT -1", "ERR FAILOVER timeout must be greater than 0"),
        ("FAILOVER FORCE", "ERR FAILOVER with force option requires both a timeout and target HOST and IP."),
        ("FAILOVER TO h 1 FORCE", "ERR FAILOVER with force option requires both a timeout and target HOST and IP."),
        ("FAILOVER TIMEOUT 1 FORCE", "ERR FAILOVER with force option requires both a timeout and target HOST and IP."),
        ("FAILOVER ABORT", "ERR No failover in progress."),
    ],
)
def test_failover_with_wrong_arguments(server: FakeServer, me: Session, words: str, text: str) -> None:
    assert server.run(me, *words.split()) == f"-{text}\r\n".encode()
    assert server.calls == []


# -- waiting -----------------------------------------------------------------------------------------------------
def test_wait_returns_at_once_if_enough_replicas_have_it(server: FakeServer, me: Session) -> None:
    server.offsets = [(100, 90), (99, 99), (200, 0)]
    me.wrote = 100
    for wanted, count in (("0", 2), ("2", 2), ("-1", 2)):
        assert server.run(me, "WAIT", wanted, "0") == b":%d\r\n" % count
    assert server.calls == [], "nobody was asked"
    assert server.run(me, "WAIT", "3", "0", in_exec=True) == b":2\r\n"
    me.wrote = 0
    assert server.run(me, "WAIT", "3", "0") == b":3\r\n"


def test_wait_blocks_until_enough_replicas_have_it(server: FakeServer, me: Session) -> None:
    server.offsets = [(99, 0), (50, 0)]
    me.wrote = 100
    waiting = server.wait(me, "WAIT", "1", "500")
    assert (waiting.deadline, waiting.check(), waiting.at_timeout()) == (NOW + 500, None, b":0\r\n")
    assert server.calls == [("ask",)]
    me.wrote = 1000  # of no concern to who waits already
    server.offsets = [(100, 0), (100, 0)]
    assert waiting.check() == waiting.at_timeout() == b":2\r\n"
    assert server.wait(me, "WAIT", "1", "0").deadline == 0


def test_waitaof(server: FakeServer, me: Session) -> None:
    server.offsets, server.on_disk = [(200, 99), (200, 100)], 99
    me.wrote = 100
    assert server.run(me, "WAITAOF", "0", "1", "0") == b"*2\r\n:0\r\n:1\r\n"
    assert server.run(me, "WAITAOF", "1", "1", "0", in_exec=True) == b"*2\r\n:0\r\n:1\r\n"
    here, there = server.wait(me, "WAITAOF", "1", "1", "5"), server.wait(me, "WAITAOF", "0", "2", "0")
    assert (here.deadline, there.deadline) == (NOW + 5, 0)
    assert (here.check(), there.check(), here.at_timeout()) == (None, None, b"*2\r\n:0\r\n:1\r\n")
    server.on_disk = 100
    assert (here.check(), there.check()) == (b"*2\r\n:1\r\n:1\r\n", None)
    server.offsets[0] = (200, 150)
    assert there.check() == b"*2\r\n:1\r\n:2\r\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("WAIT x 0", "ERR value is not an integer or out of range"),
        ("WAIT 1 x", "ERR timeout is not an integer or out of range"),
        ("WAIT 1 -1", "ERR timeout is negative"),
        ("WAITAOF x 0 0", "ERR value is not an integer or out of range"),
        ("WAITAOF 2 0 0", "ERR value is out of range, value must between 0 and 1"),
        ("WAITAOF -1 0 0", "ERR value is out of range, value must between 0 and 1"),
        ("WAITAOF 1 -1 0", "ERR value is out of range, must be positive"),
        ("WAITAOF 1 0 -1", "ERR timeout is negative"),
    ],
)
def test_wait_and_waitaof_with_wrong_arguments(server: FakeServer, me: Session, words: str, text: str) -> None:
    assert server.run(me, *words.split()) == f"-{text}\r\n".encode()


def test_wait_and_waitaof_fail_on_a_replica(server: FakeServer, me: Session) -> None:
    server.ks.follower = True
    assert server.run(me, "WAIT", "0", "0").startswith(b"-ERR WAIT cannot be used with replica instances")
    assert server.run(me, "WAITAOF", "0", "0", "0").startswith(b"-ERR WAITAOF cannot be used with replica instances")


# -- what replicas say -------------------------------------------------------------------------------------------
def test_replconf_and_psync(server: FakeServer, me: Session) -> None:
    assert server.run(me, "REPLCONF", "listening-port", "7000") == b"+OK\r\n"
    assert server.run(me, "REPLCONF", "ACK", "5", "FACK", "4") == b""
    assert server.run(me, "PSYNC", "?", "-1") == server.run(me, "PSYNC", "a" * 40, "1", "FAILOVER") == b""
    assert server.run(me, "SYNC").startswith(b"-ERR SYNC is not supported")
    assert server.calls == [
        ("replconf", me.id, b"listening-port", b"7000"),
        ("replconf", me.id, b"ACK", b"5", b"FACK", b"4"),
        ("psync", me.id, "?", -1, False),
        ("psync", me.id, "a" * 40, 1, True),
    ]


def test_replicas_in_client_list(server: FakeServer, me: Session) -> None:
    replica, leader = server.connect(50002), server.connect(50003)
    replica.replica, leader.replica = object(), LEADER

    def shown(kind: str) -> list[str]:
        text = server.run(me, "CLIENT", "LIST", "TYPE", kind).split(b"\r\n", 1)[1].decode()
        return [line.split("flags=")[1].split(" ")[0] for line in text.splitlines() if line]

    assert (shown("replica"), shown("slave"), shown("master"), shown("normal")) == (["S"], ["S"], ["M"], ["N"])
    assert server.run(me, "CLIENT", "KILL", "TYPE", "slave") == b":1\r\n"
    assert server.run(me, "CLIENT", "KILL", "TYPE", "master") == b":1\r\n"
    assert server.killed == [replica.id, leader.id]


def test_hello_tells_the_role(server: FakeServer, me: Session) -> None:
    assert b"$4\r\nrole\r\n$6\r\nmaster\r\n" in server.run(me, "HELLO")
    server.ks.follower = True
    assert b"$4\r\nrole\r\n$7\r\nreplica\r\n" in server.run(me, "HELLO")
