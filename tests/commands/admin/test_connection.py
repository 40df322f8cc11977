"""HELLO, AUTH, PING, ECHO, QUIT, RESET, SELECT, and the CLIENT commands for the connection itself."""

from __future__ import annotations

import pytest

from resp.errors import AUTH_WITHOUT_NEED, BAD_CREDENTIALS, HELLO_NEEDS_AUTH
from tests.commands.fakeserver import FakeServer


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def locked() -> FakeServer:
    server = FakeServer()
    server.config.requirepass = "open sesame"
    server.users.configure()
    return server


def hello_reply(proto: int, client_id: int) -> bytes:
    head = b"%7" if proto == 3 else b"*14"
    return (
        head + b"\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n8.4.0\r\n$5\r\nproto\r\n:%d\r\n"
        b"$2\r\nid\r\n:%d\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"
        b"$7\r\nmodules\r\n*0\r\n" % (proto, client_id)
    )


def test_hello_switches_protocol_both_ways(server: FakeServer) -> None:
    me = server.connect()
    assert server.run(me, "HELLO") == hello_reply(2, me.id)
    assert server.run(me, "HELLO", "3") == hello_reply(3, me.id)
    assert server.run(me, "hello") == hello_reply(3, me.id)
    assert me.proto == 3
    assert server.run(me, "HELLO", "2", "setname", "worker-1") == hello_reply(2, me.id)
    assert (me.proto, me.name) == (2, b"worker-1")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["4"], b"-NOPROTO unsupported protocol version\r\n"),
        (["1"], b"-NOPROTO unsupported protocol version\r\n"),
        (["three"], b"-ERR Protocol version is not an integer or out of range\r\n"),
        (["3", "AUTH", "default"], b"-ERR Syntax error in HELLO option 'AUTH'\r\n"),
        (["3", "SETNAME"], b"-ERR Syntax error in HELLO option 'SETNAME'\r\n"),
        (["3", "NOISE"], b"-ERR Syntax error in HELLO option 'NOISE'\r\n"),
        (
            ["3", "SETNAME", "two words"],
            b"-ERR Client names cannot contain spaces, newlines or special characters.\r\n",
        ),
    ],
)
def test_a_refused_hello_changes_nothing(server: FakeServer, words: list[str], text: bytes) -> None:
    me = server.connect()
    assert server.run(me, "HELLO", *words) == text
    assert (me.proto, me.name) == (2, b"")


def test_hello_before_login(locked: FakeServer) -> None:
    me = locked.connect()
    me.authenticated = False
    me.refresh()
    assert locked.run(me, "HELLO", "3") == b"-" + HELLO_NEEDS_AUTH.encode() + b"\r\n"
    assert me.proto == 2
    assert locked.run(me, "HELLO", "3", "AUTH", "default", "wrong") == b"-" + BAD_CREDENTIALS.encode() + b"\r\n"
    assert not me.authenticated
    assert locked.run(me, "HELLO", "3", "AUTH", "default", "open sesame", "SETNAME", "x") == hello_reply(3, me.id)
    assert me.authenticated
    assert me.plain


def test_auth(server: FakeServer, locked: FakeServer) -> None:
    me = server.connect()
    assert server.run(me, "AUTH", "pw") == b"-" + AUTH_WITHOUT_NEED.encode() + b"\r\n"
    assert server.run(me, "AUTH", "default", "anything") == b"+OK\r\n"
    assert server.run(me, "AUTH", "nobody", "pw").startswith(b"-WRONGPASS ")
    assert server.run(me, "AUTH", "a", "b", "c") == b"-ERR syntax error\r\n"
    me = locked.connect()
    me.authenticated = False
    assert locked.run(me, "AUTH", "pw").startswith(b"-WRONGPASS ")
    assert not me.authenticated
    assert locked.run(me, "AUTH", "open sesame") == b"+OK\r\n"
    assert me.authenticated
    assert locked.run(me, "AUTH", "default", "open sesame") == b"+OK\r\n"


def test_a_failed_login_does_not_end_an_earlier_one(locked: FakeServer) -> None:
    me = locked.connect()
    assert locked.run(me, "AUTH", "default", "wrong").startswith(b"-WRONGPASS ")
    assert me.authenticated


def test_ping_in_each_mode(server: FakeServer) -> None:
    me = server.connect()
    assert server.run(me, "PING") == b"+PONG\r\n"
    assert server.run(me, "PING", "hi") == b"$2\r\nhi\r\n"
    assert server.run(me, "PING", "a", "b") == b"-ERR wrong number of arguments for 'ping' command\r\n"
    server.run(me, "SUBSCRIBE", "news")
    assert server.run(me, "PING") == b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"
    assert server.run(me, "PING", "hi") == b"*2\r\n$4\r\npong\r\n$2\r\nhi\r\n"
    me.proto = 3
    assert server.run(me, "PING") == b"+PONG\r\n"


def test_echo_select_quit(server: FakeServer) -> None:
    me = server.connect()
    assert server.run(me, "ECHO", b"a\r\n\0b") == b"$5\r\na\r\n\0b\r\n"
    assert server.run(me, "SELECT", "0") == b"+OK\r\n"
    assert server.run(me, "SELECT", "1") == b"-ERR DB index is out of range\r\n"
    assert server.run(me, "SELECT", "x") == b"-ERR value is not an integer or out of range\r\n"
    assert not me.close_after_reply
    assert server.run(me, "QUIT", "now") == b"+OK\r\n"
    assert me.close_after_reply


def test_reset_undoes_everything(locked: FakeServer) -> None:
    me = locked.connect(proto=3)
    for words in (
        ["CLIENT", "SETNAME", "n"], ["CLIENT", "NO-EVICT", "ON"], ["CLIENT", "NO-TOUCH", "ON"], ["WATCH", "k"],
        ["SUBSCRIBE", "c"], ["PSUBSCRIBE", "p*"], ["MONITOR"], ["MULTI"], ["CLIENT", "REPLY", "OFF"],
    ):
        assert not locked.run(me, *words).startswith(b"-")
    me.queued.append([b"PING"])
    assert locked.run(me, "RESET") == b"+RESET\r\n"
    assert (me.name, me.proto, me.no_evict, me.no_touch, me.multi, me.queued) == (b"", 2, False, False, False, [])
    assert (me.watching, me.channels, me.patterns, me.monitoring, me.reply_mode) == (set(), set(), set(), False, 0)
    assert locked.ks.watchers == {}
    assert locked.pubsub.publish(b"c", b"x") == 0
    assert not me.authenticated
    assert not me.plain


def test_setname_and_setinfo(server: FakeServer) -> None:
    me = server.connect()
    assert server.run(me, "CLIENT", "ID") == b":%d\r\n" % me.id
    assert server.run(me, "CLIENT", "GETNAME") == b"$-1\r\n"
    assert server.run(me, "CLIENT", "SETNAME", "a b").startswith(b"-ERR Client names cannot contain spaces")
    assert server.run(me, "CLIENT", "SETNAME", "job") == b"+OK\r\n"
    assert server.run(me, "CLIENT", "GETNAME") == b"$3\r\njob\r\n"
    assert server.run(me, "CLIENT", "SETNAME", "") == b"+OK\r\n"
    me.proto = 3
    assert server.run(me, "CLIENT", "GETNAME") == b"_\r\n"
    assert server.run(me, "CLIENT", "SETINFO", "LIB-NAME", "redis-py(x)") == b"+OK\r\n"
    assert server.run(me, "CLIENT", "SETINFO", "lib-ver", "8.1") == b"+OK\r\n"
    assert (me.lib_name, me.lib_ver) == (b"redis-py(x)", b"8.1")
    assert server.run(me, "CLIENT", "SETINFO", "lib-os", "x") == b"-ERR Unrecognized option 'lib-os'\r\n"
    assert (
        server.run(me, "CLIENT", "SETINFO", "lib-name", "a b")
        == b"-ERR lib-name cannot contain spaces, newlines or special characters.\r\n"
    )
    assert me.lib_name == b"redis-py(x)"


def test_reply_modes(server: FakeServer) -> None:
    me = server.connect()
    assert server.run(me, "CLIENT", "REPLY", "OFF") == b""
    assert (me.reply_mode, me.plain) == (1, False)
    assert server.run(me, "CLIENT", "REPLY", "SKIP") == b""
    assert me.reply_mode == 1
    assert server.run(me, "CLIENT", "REPLY", "ON") == b"+OK\r\n"
    assert (me.reply_mode, me.plain) == (0, True)
    assert server.run(me, "CLIENT", "REPLY", "SKIP") == b""
    assert (me.reply_mode, me.plain) == (2, False)
    assert server.run(me, "CLIENT", "REPLY", "MAYBE") == b"-ERR syntax error\r\n"


def test_tracking_is_off(server: FakeServer) -> None:
    me = server.connect(proto=3)
    assert server.run(me, "CLIENT", "TRACKING", "OFF") == b"+OK\r\n"
    assert server.run(me, "CLIENT", "GETREDIR") == b":-1\r\n"
    assert (
        server.run(me, "CLIENT", "TRACKINGINFO")
        == b"%3\r\n$5\r\nflags\r\n~1\r\n$3\r\noff\r\n$8\r\nredirect\r\n:-1\r\n$8\r\nprefixes\r\n*0\r\n"
    )
