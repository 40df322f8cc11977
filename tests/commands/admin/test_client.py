"""CLIENT LIST, KILL, UNBLOCK and PAUSE, which concern other connections."""

from __future__ import annotations

import pytest

from commands.session import Session, TransportStats
from tests.commands.fakeserver import NOW, FakeServer, FakeTransport

FIELDS = (  # noqa: SIM905  # to be read, and compared with what Redis prints
    "id addr laddr fd name age idle flags db sub psub ssub multi watch qbuf qbuf-free argv-mem multi-mem rbs rbp obl "
    "oll omem omem-shared omem-unshared tot-mem events cmd user redir resp lib-name lib-ver io-thread tot-net-in "
    "tot-net-out tot-cmds read-events avg-pipeline-len-sum avg-pipeline-len-cnt"
).split()


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


def lines(raw: bytes) -> list[dict[str, str]]:
    head, _, body = raw.partition(b"\r\n")
    assert head == b"$%d" % (len(body) - 2)
    return [dict(word.split("=", 1) for word in line.split(" ")) for line in body[:-2].decode().splitlines()]


class Busy(FakeTransport):
    def stats(self) -> TransportStats:
        return TransportStats(
            fd=9, query_buffered=5, output_queued=3, output_buffered=70, output_pieces=1, writing=True, paused=True
        )


def test_a_line_has_the_fields_of_redis_in_their_order(server: FakeServer) -> None:
    me = server.connect()
    me.transport = Busy(server, me)
    me.created = NOW - 5_999
    me.last_active = NOW - 1_000
    me.name, me.last_command, me.total_commands = b"w", "client|info", 12
    me.total_reads, me.total_batches = 5, 4
    [line] = lines(server.run(me, "CLIENT", "INFO"))
    assert list(line) == FIELDS
    expected = {
        "id": str(me.id),
        "addr": me.addr,
        "fd": "9",
        "name": "w",
        "age": "5",
        "idle": "1",
        "flags": "b",
        "multi": "-1",
        "qbuf": "5",
        "argv-mem": "10",
        "obl": "3",
        "oll": "1",
        "omem": "70",
        "tot-mem": str(4096 + 5 + 10 + 3 + 70),
        "events": "rw",
        "cmd": "client|info",
        "resp": "2",
        "user": "default",
        "tot-cmds": "12",
        "redir": "-1",
        "omem-shared": "0",
        "omem-unshared": "70",
        "io-thread": "0",
        "read-events": "5",
        "avg-pipeline-len-sum": "12",
        "avg-pipeline-len-cnt": "4",
    }
    assert {name: line[name] for name in expected} == expected


def test_flags(server: FakeServer) -> None:
    me = server.connect()
    seen = []
    for words in (["MULTI"], ["CLIENT", "NO-TOUCH", "ON"], ["CLIENT", "NO-EVICT", "ON"], ["PSUBSCRIBE", "a"], ["QUIT"]):
        server.run(me, *words)
        seen.append(lines(server.run(me, "CLIENT", "INFO"))[0]["flags"])
    assert seen == ["x", "xT", "xeT", "PxeT", "PxceT"]
    me.blocked = me.dirty_cas = me.unix = me.monitoring = True
    assert lines(server.run(me, "CLIENT", "INFO"))[0]["flags"] == "OPxbdcUeT"


def test_list_by_type_and_id(server: FakeServer) -> None:
    a, b, c = (server.connect(port) for port in (1, 2, 3))
    server.run(b, "SUBSCRIBE", "x")

    def ids(*words: str) -> list[str]:
        return [line["id"] for line in lines(server.run(a, "CLIENT", "LIST", *words))]

    assert ids() == ["1", "2", "3"]
    assert ids("TYPE", "pubsub") == ["2"]
    assert ids("type", "NORMAL") == ["1", "3"]
    assert ids("TYPE", "replica") == ids("TYPE", "slave") == ids("TYPE", "master") == []
    assert ids("ID", str(c.id), str(a.id), "999") == ["3", "1"]
    assert server.run(a, "CLIENT", "LIST", "TYPE", "odd") == b"-ERR Unknown client type 'odd'\r\n"
    assert server.run(a, "CLIENT", "LIST", "ID", "x") == b"-ERR Invalid client ID\r\n"
    assert server.run(a, "CLIENT", "LIST", "ID") == b"-ERR syntax error\r\n"
    a.proto = 3
    assert server.run(a, "CLIENT", "LIST").startswith(b"=")


def test_kill_old_form(server: FakeServer) -> None:
    me, other = server.connect(1), server.connect(2)
    assert server.run(me, "CLIENT", "KILL", "127.0.0.1:99") == b"-ERR No such client\r\n"
    assert server.run(me, "CLIENT", "KILL", other.addr) == b"+OK\r\n"
    assert (server.killed, me.close_after_reply) == ([other.id], False)
    assert server.run(me, "CLIENT", "KILL", me.addr) == b"+OK\r\n"
    assert me.close_after_reply


@pytest.fixture
def crowd(server: FakeServer) -> list[Session]:
    """Four clients: 1 asks; 2 listens; 3 is old; 4 came in over another address."""
    sessions = [server.connect(port) for port in (1, 2, 3, 4)]
    server.run(sessions[1], "SUBSCRIBE", "x")
    sessions[2].created = NOW - 60_000
    sessions[3].laddr = "10.0.0.1:6379"
    return sessions


@pytest.mark.parametrize(
    ("words", "killed"),
    [
        (["ID", "3"], [3]),
        (["ID", "1"], []),
        (["ID", "1", "SKIPME", "no"], [1]),
        (["ID", "77"], []),
        (["TYPE", "pubsub"], [2]),
        (["TYPE", "NORMAL"], [3, 4]),
        (["TYPE", "slave"], []),
        (["ADDR", "127.0.0.1:4"], [4]),
        (["LADDR", "10.0.0.1:6379"], [4]),
        (["USER", "default"], [2, 3, 4]),
        (["MAXAGE", "60"], [3]),
        (["MAXAGE", "61"], []),
        (["SKIPME", "yes"], [2, 3, 4]),
        (["skipme", "NO"], [1, 2, 3, 4]),
        (["TYPE", "normal", "LADDR", "127.0.0.1:6379", "SKIPME", "no"], [1, 3]),
        (["TYPE", "pubsub", "ID", "3"], []),
        (["ID", "2", "ID", "4"], [4]),
    ],
)
def test_kill_by_filters(server: FakeServer, crowd: list[Session], words: list[str], killed: list[int]) -> None:
    assert server.run(crowd[0], "CLIENT", "KILL", *words) == b":%d\r\n" % len(killed)
    assert server.killed == [number for number in killed if number != 1]
    assert crowd[0].close_after_reply == (1 in killed)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["ID", "0"], "ERR client-id should be greater than 0"),
        (["ID", "x"], "ERR client-id should be greater than 0"),
        (["TYPE", "odd"], "ERR Unknown client type 'odd'"),
        (["USER", "bob"], "ERR No such user 'bob'"),
        (["SKIPME", "perhaps"], "ERR syntax error"),
        (["MAXAGE", "x"], "ERR maxage is not an integer or out of range"),
        (["MAXAGE", "0"], "ERR maxage should be greater than 0"),
        (["COLOUR", "red"], "ERR syntax error"),
        (["ID", "2", "TYPE"], "ERR syntax error"),
    ],
)
def test_kill_with_wrong_arguments(server: FakeServer, crowd: list[Session], words: list[str], text: str) -> None:
    assert server.run(crowd[0], "CLIENT", "KILL", *words) == f"-{text}\r\n".encode()
    assert server.killed == []


def test_unblock(server: FakeServer) -> None:
    me, other = server.connect(1), server.connect(2)
    other.blocked = True
    assert server.run(me, "CLIENT", "UNBLOCK", str(other.id)) == b":1\r\n"
    assert server.run(me, "CLIENT", "UNBLOCK", str(other.id), "error") == b":1\r\n"
    assert server.run(me, "CLIENT", "UNBLOCK", "99", "TIMEOUT") == b":0\r\n"
    assert server.calls == [("unblock", 2, False), ("unblock", 2, True)]
    assert server.run(me, "CLIENT", "UNBLOCK", "2", "x") == b"-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR\r\n"
    assert server.run(me, "CLIENT", "UNBLOCK", "x") == b"-ERR value is not an integer or out of range\r\n"
    assert len(server.calls) == 2


def test_pause(server: FakeServer) -> None:
    me = server.connect()
    assert server.run(me, "CLIENT", "PAUSE", "100") == b"+OK\r\n"
    assert server.run(me, "CLIENT", "PAUSE", "0", "write") == b"+OK\r\n"
    assert server.run(me, "CLIENT", "UNPAUSE") == b"+OK\r\n"
    assert server.calls == [("pause", 100, False), ("pause", 0, True), ("unpause",)]
    assert server.run(me, "CLIENT", "PAUSE", "-1") == b"-ERR timeout is negative\r\n"
    assert server.run(me, "CLIENT", "PAUSE", "1.5") == b"-ERR timeout is not an integer or out of range\r\n"
    assert server.run(me, "CLIENT", "PAUSE", "1", "SOME") == b"-ERR CLIENT PAUSE mode must be WRITE or ALL\r\n"
    assert len(server.calls) == 3


def test_help_names_every_subcommand(server: FakeServer) -> None:
    text = server.run(server.connect(), "CLIENT", "HELP")
    for word in (b"+KILL ", b"+LIST ", b"+UNBLOCK ", b"+SETINFO ", b"+ID\r\n", b"+HELP\r\n"):
        assert word in text
