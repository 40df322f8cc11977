"""Keyspace events [59]: the same script on ours and on a real redis-server must tell a subscriber the same; and what
only tidelog has."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from respserver.testing import HandClock, RunningServer, start_in_thread
from tests.wire.rawclient import Raw

MARK = b"that was all"
EVERYTHING = "KEg$txenm"


class Listener:
    """What a subscriber to all channels of keyspace events hears of a script."""

    def __init__(self, port: int, classes: str = EVERYTHING) -> None:
        self.client = Raw(port)
        assert self.client("CONFIG", "SET", "notify-keyspace-events", classes) == b"OK"
        self._marker = Raw(port)  # the client may be in a transaction
        self._heard = Raw(port)
        self._heard("PSUBSCRIBE", "__key*")
        self._heard("SUBSCRIBE", MARK)

    def close(self) -> None:
        self.client.close()
        self._marker.close()
        self._heard.close()

    def heard(self) -> list[bytes]:
        """``channel message`` of everything since the last call."""
        self._marker("PUBLISH", MARK, "")
        found = []
        while (message := self._heard.read())[-2] != MARK:
            found.append(message[2] + b" " + message[3])
        return found

    def events(self) -> list[bytes]:
        """``event key`` of everything since the last call, from the channels of events."""
        start = b"__keyevent@0__:"
        return [line.removeprefix(start) for line in self.heard() if line.startswith(start)]

    def script(self, lines: str) -> list[tuple[str, list[bytes]]]:
        """Each line, and what was heard of it."""
        found = []
        for line in filter(None, map(str.strip, lines.splitlines())):
            self.client(*shlex.split(line))
            found.append((line, self.heard()))
        return found


@pytest.fixture
def ours(emptied: RunningServer) -> Iterator[Listener]:
    listener = Listener(emptied.port)
    yield listener
    listener.close()


Same = Callable[[str], None]


@pytest.fixture
def same(ours: Listener, redis_server: Any) -> Iterator[Same]:
    theirs = Listener(redis_server.port)

    def same(lines: str) -> None:
        for (line, mine), (_, others) in zip(ours.script(lines), theirs.script(lines), strict=True):
            assert mine == others, line

    yield same
    theirs.close()


def test_strings(same: Same) -> None:
    same("""
        SET a 1
        SET a 2
        SET a 2 EX 100
        SET a 3 KEEPTTL
        SET a 4 NX
        SET b 4 XX
        SET b 4 NX GET
        SETNX a 1
        SETNX c 1
        SETEX d 100 v
        PSETEX d 100000 v
        GETSET a 5
        GETSET e 5
        GETDEL e
        GETDEL e
        GETEX a EX 100
        GETEX a PERSIST
        GETEX a PERSIST
        GETEX a PXAT 1
        GETEX a
        APPEND f x
        APPEND f y
        APPEND f ""
        SETRANGE f 1 zz
        SETRANGE f 1 ""
        SETRANGE g 2 zz
        SETRANGE h 0 ""
        INCR n
        INCRBY n 4
        DECR n
        DECRBY n 2
        INCRBYFLOAT n 1.5
        INCRBYFLOAT m 1.5
        INCR f
        MSET x 1 y 2 x 3
        MSETNX x 1 z 2
        MSETNX v 1 w 2
    """)


def test_keys(same: Same) -> None:
    same("""
        MSET a 1 b 2 c 3 d 4
        DEL a
        DEL a b nothing b
        UNLINK c d
        UNLINK c
        SET a 1
        EXPIRE a 100
        EXPIRE a 200 NX
        PEXPIRE a 100000
        EXPIREAT a 99999999999
        PEXPIREAT a 99999999999999
        PERSIST a
        PERSIST a
        EXPIRE nothing 100
        EXPIRE a -1
        SET a 1
        RENAME a b
        RENAME b b
        RENAME nothing b
        SET a 1 EX 100
        RENAME a b
        RENAMENX b c
        SET b 1
        RENAMENX b c
        COPY b d
        COPY c d
        COPY c d REPLACE
        SET e 1 EX 100
        COPY e f
        MULTI
        SET a 1
        DEL a
        EXEC
        FLUSHALL
        SET a 1
        FLUSHDB
    """)


def test_streams(same: Same) -> None:
    same("""
        XADD s 1-1 f v
        XADD s 1-2 f v
        XADD s 1-2 f v
        XADD nothing NOMKSTREAM * f v
        XADD s MAXLEN 1 1-3 f v
        XADD s MAXLEN 10 1-4 f v
        XADD s * f v
        XTRIM s MAXLEN 10
        XTRIM s MAXLEN 1
        XTRIM nothing MAXLEN 1
        XSETID s 9999999999999-9
        XLEN s
        XRANGE s - +
        XRANGE nothing - +
        XLEN nothing
        XREAD STREAMS s 0
        EXPIRE s 100
        RENAME s t
        SET t 1
    """)


def test_misses(same: Same) -> None:
    same("""
        GET a
        MGET a b
        EXISTS a
        EXISTS a b
        TYPE a
        TTL a
        PTTL a
        EXPIRETIME a
        STRLEN a
        GETRANGE a 0 1
        TOUCH a
        GETEX a
        GETDEL a
        GETSET a 1
        DEL a
        SET a 1 GET
        SET b 1 XX GET
        OBJECT ENCODING nothing
        OBJECT IDLETIME nothing
        OBJECT FREQ nothing
        OBJECT REFCOUNT nothing
        INCR i
        RENAME nothing b
        COPY nothing b
        PERSIST nothing
        EXPIRE nothing 10
        WATCH nothing
        KEYS *
        RANDOMKEY
        MEMORY USAGE nothing
        XACK nothing g 1-1
        XPENDING nothing g
        XCLAIM nothing g c 0 1-1
        XAUTOCLAIM nothing g c 0 0
        XDEL nothing 1-1
        XREADGROUP GROUP g c STREAMS nothing >
    """)


CLASSES = ["K", "E", "KE", "A", "K$", "Eg", "KEx", "KEn", "KEm", "KEt", "lshzedKE", "AKE", ""]


@pytest.mark.parametrize("classes", CLASSES)
def test_classes(same: Same, ours: Listener, redis_server: Any, classes: str) -> None:
    with Raw(redis_server.port) as theirs:
        assert theirs("CONFIG", "SET", "notify-keyspace-events", classes) == b"OK"
        assert ours.client("CONFIG", "SET", "notify-keyspace-events", classes) == b"OK"
        asked = "CONFIG", "GET", "notify-keyspace-events"
        assert ours.client(*asked) == theirs(*asked)
        same("""
            SET a 1 EX 100
            DEL a
            GET a
            APPEND a b
        """)


def test_unknown_classes(ours: Listener, redis_server: Any) -> None:
    with Raw(redis_server.port) as theirs:
        for classes in ("q", "KEA!", "k"):
            refused = [c("CONFIG", "SET", "notify-keyspace-events", classes) for c in (ours.client, theirs)]
            assert refused[0].replace("mdnoc", "mdn") == refused[1]  # Redis 8.2 has two more
    assert ours.client("CONFIG", "GET", "notify-keyspace-events")[1] == b"g$xetnKEm"


def test_order_in_a_transaction(same: Same) -> None:
    """Events and messages of a transaction come in the order of its commands."""
    same("""
        MULTI
        SET a 1
        PUBLISH __key_x between
        DEL a
        EXEC
    """)


def test_overwritten_and_changed_types(ours: Listener) -> None:
    """Classes o and c, which Redis has had since 8.2."""
    ours.client("CONFIG", "SET", "notify-keyspace-events", "Eocg$t")
    ours.client("SET", "a", 1)
    assert ours.events() == [b"set a"]
    ours.client("SET", "a", 2)
    assert ours.events() == [b"overwritten a", b"set a"]
    ours.client("INCR", "a")
    ours.client("APPEND", "a", "x")
    assert ours.events() == [b"incrby a", b"append a"]
    ours.client("TAPPEND", "s", "f", "v")
    ours.client("SET", "s", "x")
    assert ours.events() == [b"tappend s", b"overwritten s", b"type_changed s", b"set s"]
    ours.client("TAPPEND", "t", "f", "v")
    ours.client("RENAME", "t", "a")
    assert ours.events() == [b"tappend t", b"overwritten a", b"type_changed a", b"rename_from t", b"rename_to a"]


def test_what_redis_8_has_and_7_has_not(ours: Listener) -> None:
    ours.client("MSETEX", 2, "a", 1, "b", 2, "EX", 100)
    assert ours.events() == [b"new a", b"set a", b"expire a", b"new b", b"set b", b"expire b"]
    ours.client("MSETEX", 1, "a", 1)
    assert ours.events() == [b"set a"]
    ours.client("SET", "a", 2, "IFEQ", 1)
    ours.client("SET", "a", 3, "IFEQ", 1)
    assert ours.events() == [b"set a"]
    ours.client("DELEX", "a", "IFEQ", 1)
    ours.client("DELEX", "a", "IFEQ", 2)
    ours.client("DELEX", "b")
    assert ours.events() == [b"del a", b"del b"]
    ours.client("SET", "c", 1)
    ours.client("DELIFEQ", "c", 1)
    assert ours.events() == [b"new c", b"set c", b"del c"]


def test_the_t_commands(ours: Listener) -> None:
    ours.client("TAPPEND", "s", "f", "v")
    ours.client("TAPPEV", "s", "COUNT", 1, "f", "v")
    ours.client("TAPPEV", "s", "COUNT", 1)
    assert ours.events() == [b"new s", b"tappend s", b"tappend s", b"tevict s"]
    ours.client("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", 1, 2, 3)
    assert ours.events() == [b"tmappend s"]
    ours.client.pipeline(*[("TAPPEND", "s", "f", n) for n in range(5)])
    assert ours.events() == [b"tappend s"] * 5
    ours.client("TREAD", "s", "0", 1, "GROUP", "g", 0, "RETRY", 1000, 0)
    ours.client("TREAD", "s", "0", 1, "GROUP", "g", 0)
    ours.client("TACK", "s", "g", "1-1")
    ours.client("TGROUP", "SETID", "s", "g", "0")
    ours.client("TGROUP", "DESTROY", "s", "g")
    ours.client("TGROUP", "DESTROY", "s", "g")
    assert ours.events() == [b"tgroup-create s", b"tgroup-setid s", b"tgroup-destroy s"]
    ours.client("TREAD", "lone", "0", 1, "GROUP", "g", 0)
    ours.client("TGROUP", "DESTROY", "lone", "g")
    assert ours.events() == [b"keymiss lone", b"new lone", b"tgroup-create lone", b"tgroup-destroy lone", b"del lone"]
    ours.client("TSTAGE", "t", 0, "s", "FIELDS", 1, "f", "VALUES", 1, 2)
    ours.client("TSTAGE", "t", 0, "r", "FIELDS", 1, "f", "VALUES", 1)
    assert ours.events() == []
    ours.client("TPUBLISH", "fence", 1, "t")
    ours.client("TPUBLISH", "fence", 1, "t")
    assert ours.events() == [b"new r", b"tpublish s", b"tpublish r"]
    ours.client("TREAD", "nothing", "0", 1)
    assert ours.events() == [b"keymiss nothing"]


def test_what_ends_by_time() -> None:
    with start_in_thread(clock=HandClock()) as server:
        listener = Listener(server.port)
        client = listener.client
        client.pipeline(("SET", "a", 1, "PX", 1000), ("SET", "b", 1, "PX", 10**6), ("TAPPEND", "s", "f", "v"))
        client("TREAD", "s", "0", 1, "GROUP", "g", 1000)
        client("TREAD", "s", "0", 1, "GROUP", "h", 0, "RETRY", 10, 500, "DEADLETTER", "dead")
        listener.heard()
        server.advance(2000)
        assert sorted(listener.events()) == [b"expired a", b"new dead", b"tappend dead", b"tgroup-expired s"]
        server.call(lambda: server.server.clock.move(10**6))  # type: ignore[attr-defined]
        client("GET", "b")
        assert listener.events() == [b"expired b", b"keymiss b"]
        listener.close()


def test_they_are_sent_when_the_change_is_on_disk_and_in_order_with_replies(ours: Listener) -> None:
    """In RESP3 a client that is subscribed hears of its own command after the reply."""
    with Raw(ours.client.sock.getpeername()[1], 3) as client:
        client("SUBSCRIBE", "__keyevent@0__:set")
        client.send("SET", "a", 1)
        client.send("GET", "a")
        assert [client.read(), client.read(), client.read()] == [
            b"OK", [b"message", b"__keyevent@0__:set", b"a"], b"1",
        ]  # fmt: skip


def test_the_directive_is_kept(tmp_path: Any) -> None:
    conf = tmp_path / "tidelog.conf"
    conf.write_text("port 0\nnotify-keyspace-events KEA\n")
    from respserver.config.config import Config

    config = Config.load([str(conf)])
    assert config.value("notify-keyspace-events") == "AKE"
    config.set([(b"notify-keyspace-events", b"t$gE")])
    config.rewrite()
    assert "notify-keyspace-events g$tE\n" in conf.read_text()
    config.set([(b"notify-keyspace-events", b"")])
    config.rewrite()
    assert Config.load([str(conf)]).value("notify-keyspace-events") == ""


def test_groups_of_streams(same: Same) -> None:
    same("""
        XGROUP CREATE s g $
        XGROUP CREATE s g $ MKSTREAM
        XGROUP CREATE s g $
        XADD s 1-1 f v
        XADD s 1-2 f v
        XADD s 1-3 f v
        XREADGROUP GROUP g one COUNT 1 STREAMS s >
        XREADGROUP GROUP g one COUNT 1 STREAMS s >
        XREADGROUP GROUP g two STREAMS s 0
        XREADGROUP GROUP g three NOACK STREAMS s >
        XACK s g 1-1
        XACK s g 1-1
        XCLAIM s g five 0 1-2
        XCLAIM s g one 0 1-2
        XAUTOCLAIM s g six 0 0
        XAUTOCLAIM s g one 0 0
        XGROUP CREATECONSUMER s g one
        XGROUP CREATECONSUMER s g seven
        XGROUP DELCONSUMER s g seven
        XGROUP DELCONSUMER s g seven
        XGROUP DELCONSUMER s g one
        XPENDING s g
        XINFO STREAM s
        XINFO GROUPS s
        XINFO STREAM nothing
        XGROUP SETID s g 0
        XGROUP SETID s nothing 0
        XDEL s 1-1
        XDEL s 1-1 9-9
        XDEL nothing 1-1
        XGROUP DESTROY s g
        XGROUP DESTROY s g
        DEL s
    """)
