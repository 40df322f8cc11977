"""XREADGROUP: what a redis-server 7.0 can't be asked. Waiting, CLAIM, and texts of later versions.

``test_differential_groups`` has the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commands.redis_streams.deliveries import GONE_AT_ONCE
from respserver.testing import RunningServer
from tests.wire.rawclient import Raw
from tests.wire.test_tread import blocked

Connect = Callable[..., Raw]
GONE = "NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option"
FIELDS = [b"f", b"v"]


@pytest.fixture
def c(connect: Connect) -> Raw:
    """One connection; there is an empty stream with a group."""
    c = connect()
    c("XGROUP", "CREATE", "s", "g", 0, "MKSTREAM")
    return c


def add(c: Raw, *numbers: int, key: str = "s") -> None:
    c.pipeline(*[("XADD", key, f"{number}-0", "f", "v") for number in numbers])


def got(reply: Any) -> Any:
    """The numbers of the entries in a reply for one key, with idle time and deliveries if it has these."""
    if not isinstance(reply, list):
        return reply
    ((_, entries),) = reply
    return [(int(row[0][:-2]), *row[2:]) if len(row) > 2 else int(row[0][:-2]) for row in entries]


def read(c: Raw, *options: Any, consumer: str = "c") -> Any:
    return got(c("XREADGROUP", "GROUP", "g", consumer, *options, "STREAMS", "s", ">"))


def wait(reader: Raw, *options: Any, consumer: str = "c", keys: tuple[str, ...] = ("s",)) -> None:
    reader.send("XREADGROUP", "GROUP", "g", consumer, "BLOCK", 0, *options, "STREAMS", *keys, *">" * len(keys))


def pending(c: Raw) -> list[Any]:
    return [[int(row[0][:-2]), *row[1:]] for row in c("XPENDING", "s", "g", "-", "+", 99)]


def test_texts(c: Raw) -> None:
    unbalanced = "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be specified."
    assert c("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "s") == unbalanced
    assert c("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">", "t") == unbalanced
    for word in "$+":
        reply = c("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", word)
        assert reply.startswith(f"ERR The {word} ID is meaningless in the context of XREADGROUP: you want to read")
        assert reply.endswith(f"The {word} ID would just return an empty result set.")
    assert c("XREADGROUP", "GROUP", "no", "c", "STREAMS", "s", ">") == GONE.replace("'g'", "'no'")
    not_integer = "ERR min-idle-time is not an integer or out of range"
    for word in ("x", "5.5", "+10", "-0", "COUNT", ""):
        assert read(c, "CLAIM", word) == not_integer
    assert read(c, "CLAIM", -10) == "ERR min-idle-time must be a positive integer"
    assert c("XREADGROUP", "GROUP", "g", "CLAIM", 50, "c", "STREAMS", "s", ">") == "ERR syntax error"
    assert c("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">", "CLAIM", 50).startswith("ERR Invalid stream ID")
    assert c("XINFO", "CONSUMERS", "s", "g") == []


def test_a_consumer_is_made_where_there_is_nothing(c: Raw, hand: RunningServer) -> None:
    assert read(c) is None
    hand.advance(100)
    assert c("XINFO", "CONSUMERS", "s", "g") == [
        [b"name", b"c", b"pending", 0, b"idle", 100, b"inactive", -1]
    ]
    add(c, 1, 2)
    assert read(c, "COUNT", 1) == [1]
    hand.advance(50)
    assert read(c, "NOACK") == [2]  # which is no activity, as in Redis; nor is history
    assert got(c("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", 0)) == [1]
    assert c("XINFO", "CONSUMERS", "s", "g") == [[b"name", b"c", b"pending", 1, b"idle", 0, b"inactive", 50]]
    assert pending(c) == [[1, b"c", 0, 2]]


@pytest.mark.parametrize("proto", [2, 3])
def test_blocked_consumers_are_served_in_turn(connect: Connect, hand: RunningServer, c: Raw, proto: int) -> None:
    readers = [connect(proto) for _ in range(3)]
    for number, reader in enumerate(readers):
        wait(reader, consumer=f"c{number}")
        blocked(hand, number + 1)
    add(c, 1, 2)
    expected: Any = {b"s": [[b"1-0", FIELDS]]} if proto == 3 else [[b"s", [[b"1-0", FIELDS]]]]
    assert readers[0].read() == expected
    assert got(c("XREADGROUP", "GROUP", "g", "c1", "STREAMS", "s", 0)) == [2]
    wait(readers[0], consumer="c0")
    blocked(hand, 2)
    add(c, 3, 4)
    readers[1].read()
    assert pending(c) == [[1, b"c0", 0, 1], [2, b"c1", 0, 2], [3, b"c2", 0, 1], [4, b"c0", 0, 1]]


def test_t_readers_and_consumers_stand_in_one_line(connect: Connect, hand: RunningServer, c: Raw) -> None:
    a, b, d = connect(), connect(), connect()
    wait(a, consumer="a")
    blocked(hand, 1)
    b.send("TREAD", "s", "", 9, "BLOCK", 0, "GROUP", "g", 0, "RETRY", 100, 0)
    blocked(hand, 2)
    wait(d, consumer="d")
    blocked(hand, 3)
    add(c, 1, 2, 3)
    assert got(a.read()) == [1]
    assert b.read() == [[b"2.0", *FIELDS]]
    assert got(d.read()) == [3]
    b.send("TREAD", "s", "", 9, "BLOCK", 0, "GROUP", "g", 0, "RETRY", 100, 0)
    wait(d, consumer="d")
    blocked(hand, 2)
    hand.advance(100)  # what TREAD delivered falls due: for those who TREAD
    assert b.read() == [[b"2.0", *FIELDS]]
    assert pending(c)[1] == [2, b"", 0, 2]
    assert hand.call(lambda: hand.server.blocking.count) == 1


def test_many_keys(connect: Connect, hand: RunningServer, c: Raw) -> None:
    c("XGROUP", "CREATE", "t", "g", 0, "MKSTREAM")
    reader = connect()
    wait(reader, keys=("t", "s", "t"))
    blocked(hand, 1)
    c("MULTI")
    c("XADD", "s", "1-0", "f", "v")
    c("XADD", "t", "2-0", "f", "v")
    c("EXEC")
    assert reader.read() == [[b"t", [[b"2-0", FIELDS]]], [b"s", [[b"1-0", FIELDS]]]]
    wait(reader, keys=("s", "t"))
    blocked(hand, 1)
    c("XADD", "t", "3-0", "f", "v")
    assert reader.read() == [[b"t", [[b"3-0", FIELDS]]]]
    wait(reader, keys=("s", "t"))
    blocked(hand, 1)
    c("DEL", "t")
    assert reader.read() == GONE.replace("'s'", "'t'")


@pytest.mark.parametrize(
    "how", [("XGROUP", "DESTROY", "s", "g"), ("TGROUP", "DESTROY", "s", "g"), ("DEL", "s"), ("FLUSHALL",)]
)
def test_its_group_ends(connect: Connect, hand: RunningServer, c: Raw, how: tuple[str, ...]) -> None:
    reader = connect()
    wait(reader)
    blocked(hand, 1)
    c(*how)
    assert reader.read() == GONE


def test_its_key_becomes_another(connect: Connect, hand: RunningServer, c: Raw) -> None:
    reader = connect()
    wait(reader)
    blocked(hand, 1)
    c("SET", "s", "v")
    assert reader.read().startswith("WRONGTYPE ")
    c("XGROUP", "CREATE", "new", "g", 0, "MKSTREAM")
    c.pipeline(("DEL", "s"), ("XGROUP", "CREATE", "s", "g", 0, "MKSTREAM"))
    wait(reader)
    blocked(hand, 1)
    add(c, 1, key="new")
    c("RENAME", "new", "s")  # a group of that name is there: it is read
    assert got(reader.read()) == [1]
    wait(reader)
    blocked(hand, 1)
    add(c, 1, key="new")
    c("RENAME", "new", "s")
    assert reader.read() == GONE


def test_a_group_made_anew_while_it_waits(connect: Connect, hand: RunningServer, c: Raw) -> None:
    reader = connect()
    wait(reader)
    blocked(hand, 1)
    c("MULTI")
    c("XGROUP", "DESTROY", "s", "g")
    c("XGROUP", "CREATE", "s", "g", "$")
    c("EXEC")
    blocked(hand, 1)
    add(c, 1)
    assert got(reader.read()) == [1]


def test_multi_and_timeouts(connect: Connect, hand: RunningServer, c: Raw) -> None:
    c("MULTI")
    c("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">")
    assert c("EXEC") == [None]
    reader = connect()
    reader.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 300, "STREAMS", "s", ">")
    blocked(hand, 1)
    hand.advance(300)
    assert reader.read() is None
    assert got(c("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", 0)) == []  # history never waits


# -- CLAIM -------------------------------------------------------------------------------------------------------------
def test_claim(c: Raw, hand: RunningServer) -> None:
    add(c, 1, 2, 3)
    assert read(c, "COUNT", 2) == [1, 2]
    hand.advance(50)
    assert read(c, "CLAIM", 51, "COUNT", 0, consumer="d") == [(3, 0, 0)]
    assert read(c, "CLAIM", 51, consumer="d") is None
    hand.advance(50)
    add(c, 4)
    assert read(c, "CLAIM", 100, "COUNT", 1, consumer="d") == [(1, 100, 1)]
    assert read(c, "CLAIM", 50, "COUNT", 3, consumer="d") == [(2, 100, 1), (3, 50, 1), (4, 0, 0)]
    assert pending(c) == [[1, b"d", 0, 2], [2, b"d", 0, 2], [3, b"d", 0, 2], [4, b"d", 0, 1]]
    assert read(c, "CLAIM", 9223372036854775807) is None
    assert got(c("XREADGROUP", "GROUP", "g", "d", "CLAIM", 0, "STREAMS", "s", 2)) == [3, 4]  # nothing is claimed


def test_claim_is_oldest_first(c: Raw, hand: RunningServer) -> None:
    add(c, *range(1, 7))
    read(c)
    hand.advance(1000)
    for number, idle in ((1, 300), (5, 900), (3, 600), (2, 0), (4, 300), (6, 100)):
        c("XCLAIM", "s", "g", "c", 0, f"{number}-0", "IDLE", idle, "JUSTID")
    assert read(c, "CLAIM", 300, "COUNT", 3) == [(5, 900, 1), (3, 600, 1), (1, 300, 1)]
    assert read(c, "CLAIM", 100) == [(4, 300, 1), (6, 100, 1)]


def test_claim_with_noack_claims_and_keeps(c: Raw) -> None:
    add(c, 1, 2)
    read(c, "COUNT", 1)
    assert read(c, "NOACK", "CLAIM", 0) == [(1, 0, 1), (2, 0, 0)]
    assert pending(c) == [[1, b"c", 0, 2]]


def test_claim_after_setid(c: Raw) -> None:
    add(c, 1, 2)
    read(c)
    read(c, "CLAIM", 0, consumer="d")
    c("XGROUP", "SETID", "s", "g", 0)
    assert read(c, "CLAIM", 0) == [(1, 0, 2), (2, 0, 2), (1, 0, 0), (2, 0, 0)]
    assert pending(c) == [[1, b"c", 0, 1], [2, b"c", 0, 1]]


def test_claim_with_noack_after_setid(c: Raw) -> None:
    """What is claimed changes hands, though it comes once more as new."""
    add(c, 1)
    read(c)
    c("XGROUP", "SETID", "s", "g", 0)
    assert read(c, "NOACK", "CLAIM", 0, consumer="d") == [(1, 0, 1), (1, 0, 0)]
    assert pending(c) == [[1, b"d", 0, 2]]


def test_claim_leaves_what_is_gone_pending(connect: Connect, hand: RunningServer, c: Raw) -> None:
    """As it was: only XAUTOCLAIM and XCLAIM clear it away."""
    add(c, 1, 2, 3)
    read(c)
    hand.advance(50)
    c("XTRIM", "s", "MAXLEN", 1)
    assert read(c, "CLAIM", 0, "COUNT", 1, consumer="d") == [(3, 50, 1)]
    gone = [[1, b"c", 50, 1], [2, b"c", 50, 1]]
    assert pending(c) == [*gone, [3, b"d", 0, 2]]
    c("XDEL", "s", "3-0")
    reader = connect()
    wait(reader, "CLAIM", 100)
    blocked(hand, 1)
    hand.advance(200)
    assert [row[0] for row in pending(c)] == [1, 2, 3]
    assert hand.call(lambda: hand.server.blocking.count) == 1
    add(c, 4)
    assert got(reader.read()) == [(4, 0, 0)]
    hand.advance(10)
    assert read(c, "CLAIM", 5) == [(4, 10, 1)]
    assert c("XAUTOCLAIM", "s", "g", "c", 0, 0)[2] == [b"1-0", b"2-0", b"3-0"]
    assert [row[0] for row in pending(c)] == [4]


def test_claim_comes_to_messages_behind_many_that_are_gone(hand: RunningServer, c: Raw) -> None:
    """A read looks at so many of them, and the next one goes on behind them."""
    many = GONE_AT_ONCE + 1000
    add(c, *range(1, many + 1))
    c("XREADGROUP", "GROUP", "g", "c", "COUNT", many, "STREAMS", "s", ">")
    c("XTRIM", "s", "MAXLEN", 0)
    hand.advance(1)
    add(c, many + 1)
    assert read(c) == [many + 1]
    hand.advance(10)
    assert read(c, "CLAIM", 5, "COUNT", 10) is None
    assert read(c, "CLAIM", 5, "COUNT", 10) == [(many + 1, 10, 1)]
    hand.advance(10)
    for _ in range(2):
        assert read(c, "CLAIM", 0, "COUNT", 10) == [(many + 1, 10, 2)]
        assert c("XCLAIM", "s", "g", "d", 0, f"{many + 1}-0", "IDLE", 10, "RETRYCOUNT", 2, "JUSTID")
    assert c("XCLAIM", "s", "g", "d", 0, f"{many + 1}-0", "IDLE", 50, "RETRYCOUNT", 2, "JUSTID")
    assert read(c, "CLAIM", 50) == [(many + 1, 50, 2)]  # which comes before all those that were passed
    assert c("XPENDING", "s", "g")[0] == many + 1


def test_claim_of_an_entry_that_is_there_again(hand: RunningServer, c: Raw) -> None:
    add(c, 1, 2)
    read(c)
    c("XTRIM", "s", "MAXLEN", 0)
    hand.advance(10)
    assert read(c, "CLAIM", 5) is None
    c("XSETID", "s", "0-1")
    add(c, 2)
    assert read(c, "CLAIM", 5) == [(2, 10, 1)]
    assert [row[0] for row in pending(c)] == [1, 2]


def test_a_blocked_consumer_claims_when_the_time_has_come(connect: Connect, hand: RunningServer, c: Raw) -> None:
    add(c, 1)
    read(c)
    readers = [connect() for _ in range(3)]
    for number, claim in enumerate(("CLAIM 500", "", "CLAIM 200")):
        wait(readers[number], *claim.split(), consumer=f"c{number}")
        blocked(hand, number + 1)
    hand.advance(100)
    assert hand.call(lambda: hand.server.blocking.count) == 3
    hand.advance(100)
    assert got(readers[2].read()) == [(1, 200, 1)]
    hand.advance(400)
    assert hand.call(lambda: hand.server.blocking.count) == 2
    hand.advance(100)
    assert got(readers[0].read()) == [(1, 500, 2)]
    hand.advance(10_000)
    assert hand.call(lambda: hand.server.blocking.count) == 1
    assert pending(c) == [[1, b"c0", 10_000, 3]]


def test_two_blocked_consumers_claim_from_each_other(connect: Connect, hand: RunningServer, c: Raw) -> None:
    a, b = connect(), connect()
    wait(a, "CLAIM", 100, consumer="a")
    blocked(hand, 1)
    wait(b, "CLAIM", 100, consumer="b")
    blocked(hand, 2)
    add(c, 1)
    assert got(a.read()) == [(1, 0, 0)]
    hand.advance(100)
    assert got(b.read()) == [(1, 100, 1)]


def test_claims_that_make_messages_older_wake(connect: Connect, hand: RunningServer, c: Raw) -> None:
    add(c, 1, 2)
    read(c)
    reader = connect()
    wait(reader, "CLAIM", 500, consumer="d")
    blocked(hand, 1)
    c("XCLAIM", "s", "g", "c", 0, "2-0", "IDLE", 500, "JUSTID")
    assert got(reader.read()) == [(2, 500, 1)]
    wait(reader, "CLAIM", 500, consumer="d")
    blocked(hand, 1)
    assert c("XNACK", "s", "g", "FAIL", "IDS", 1, "1-0") == 1
    assert got(reader.read()) == [(1, -1, 1)]


def test_a_reader_of_another_role_is_told(connect: Connect, hand: RunningServer, c: Raw) -> None:
    reader = connect()
    wait(reader, "CLAIM", 500)
    blocked(hand, 1)
    assert c("CLIENT", "UNBLOCK", reader_id(hand), "ERROR") == 1
    assert reader.read() == "UNBLOCKED client unblocked via CLIENT UNBLOCK"


def reader_id(hand: RunningServer) -> int:
    return hand.call(lambda: next(s.id for s in hand.server.clients.all() if s.blocked))


# -- sizes and restarts ------------------------------------------------------------------------------------------------
def test_a_long_read_is_streamed(c: Raw) -> None:
    pad = "x" * 1000
    c.pipeline(*[("XADD", "s", f"{number}-0", "f", pad) for number in range(1, 2001)])
    assert read(c, "COUNT", 900) == list(range(1, 901))
    assert read(c) == list(range(901, 2001))
    assert c("XPENDING", "s", "g")[0] == 2000
    assert read(c, "CLAIM", 0, consumer="d") == [(number, 0, 1) for number in range(1, 2001)]
    assert c("XACK", "s", "g", *[f"{number}-0" for number in range(1, 2001)]) == 2000


def test_restarts_keep_consumers_and_what_they_have(c: Raw, hand: RunningServer) -> None:
    add(c, *range(1, 8))
    read(c, "COUNT", 3, consumer="a")
    hand.advance(10)
    read(c, "COUNT", 2, consumer="b")
    read(c, "COUNT", 1, "NOACK", consumer="n")
    hand.advance(10)
    c("XCLAIM", "s", "g", "d", 0, "1-0", "4-0", "RETRYCOUNT", 7)
    c("XNACK", "s", "g", "FATAL", "IDS", 1, "2-0")
    c("XACK", "s", "g", "3-0")
    got(c("XREADGROUP", "GROUP", "g", "b", "STREAMS", "s", 0))
    c("XGROUP", "CREATECONSUMER", "s", "g", "idle")
    c("XGROUP", "DELCONSUMER", "s", "g", "n")
    c("XGROUP", "CREATE", "lone", "", 5, "MKSTREAM")
    c("XGROUP", "DESTROY", "lone", "")
    facts = [
        ("XINFO", "STREAM", "s"), ("XINFO", "GROUPS", "s"), ("XPENDING", "s", "g", "-", "+", 99),
        ("XPENDING", "s", "g"),
        ("XINFO", "STREAM", "lone", "FULL"),
    ]  # fmt: skip
    names = [row[1] for row in c("XINFO", "CONSUMERS", "s", "g")]
    assert names == [b"a", b"b", b"d", b"idle"]
    before = c.pipeline(*facts)
    for how in ("LOADAOF", "RELOAD", "LOADAOF"):
        digest = c("DEBUG", "DIGEST")
        assert c("DEBUG", how) == b"OK"
        assert c("DEBUG", "DIGEST") == digest
        assert c.pipeline(*facts) == before
        assert [row[1] for row in c("XINFO", "CONSUMERS", "s", "g")] == names
    assert read(c) == [7]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_lower_last_id_brings_no_entries_before_the_offset(c: Raw, restarted: bool) -> None:
    add(c, *range(1, 11))
    assert len(got(c("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"))) == 10
    c("XTRIM", "s", "MAXLEN", 0)
    assert c("XSETID", "s", "5-0") == b"OK"
    add(c, 6, 7)
    if restarted:
        c("DEBUG", "RELOAD")
    assert c("TREAD", "s", 0, 100, "GROUP", "g", 0) == []
    add(c, 11)
    assert got(c("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")) == [11]


def test_a_wait_that_fails_is_counted(connect: Connect, hand: RunningServer, c: Raw) -> None:
    def failed(name: str) -> str:
        line = next(line for line in c("INFO", "commandstats").decode().split("\r\n") if f"_{name}:" in line)
        return str(line.rpartition(",")[2])

    ended, unblocked, timed_out = connect(), connect(), connect()
    number = unblocked("CLIENT", "ID")
    c("CONFIG", "RESETSTAT")
    for reader, block in ((ended, 0), (unblocked, 0), (timed_out, 10)):
        wait(reader, "BLOCK", block)
    blocked(hand, 3)
    hand.advance(10)
    assert timed_out.read() is None
    assert c("CLIENT", "UNBLOCK", number, "ERROR") == 1
    assert failed("xreadgroup") == "failed_calls=1"
    c("XGROUP", "DESTROY", "s", "g")
    assert str(ended.read()).startswith("NOGROUP")
    assert failed("xreadgroup") == "failed_calls=2"
    errors = c("INFO", "errorstats").decode()
    assert "errorstat_NOGROUP:count=1\r\n" in errors
    assert "errorstat_UNBLOCKED:count=1\r\n" in errors
