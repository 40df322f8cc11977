"""XCLAIM, XAUTOCLAIM, XNACK: with messages that TREAD delivered, long calls, and what 8.8 has.

``test_differential_groups`` has what a redis-server 7.0 has, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw

Connect = Callable[..., Raw]
HIGHEST = (1 << 63) - 1
BOTH = [b"f", b"v"]


@pytest.fixture
def c(connect: Connect) -> Raw:
    """One connection; three entries that a consumer has pending."""
    c = connect()
    for number in (1, 2, 3):
        c("XADD", "s", f"{number}-0", "f", "v")
    c("XGROUP", "CREATE", "s", "g", 0)
    c("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    return c


def pending(c: Raw) -> list[Any]:
    return [[int(row[0][:-2]), *row[1:]] for row in c("XPENDING", "s", "g", "-", "+", 99)]


# -- what TREAD delivered ----------------------------------------------------------------------------------------------
def test_t_messages_are_nobodys_until_they_are_claimed(connect: Connect, hand: RunningServer) -> None:
    c = connect()
    ids = c.pipeline(*[("XADD", "s", f"{number}-0", "f", "v") for number in (1, 2, 3, 4)])
    c("TREAD", "s", "0", 4, "GROUP", "g", 0, "RETRY", 1000, 5000, "DEADLETTER", "dead")
    hand.advance(100)
    assert c("XPENDING", "s", "g") == [4, b"1-0", b"4-0", []]
    assert pending(c) == [[number, b"", 100, 1] for number in (1, 2, 3, 4)]
    assert c("XCLAIM", "s", "g", "c", 101, "1-0") == []
    assert c("XCLAIM", "s", "g", "c", 100, "1-0") == [[b"1-0", BOTH]]
    assert c("XAUTOCLAIM", "s", "g", "d", 100, "2-0", "COUNT", 1, "JUSTID") == [b"3-0", [b"2-0"], []]
    assert c("XACK", "s", "g", "4-0") == 1
    assert c("XPENDING", "s", "g") == [3, b"1-0", b"3-0", [[b"c", b"1"], [b"d", b"1"]]]
    hand.advance(1000)
    # what consumers have never falls due
    assert c("TREAD", "s", "0", 4, "GROUP", "g", 0, "RETRY", 1000, 5000) == [[b"3.0", *BOTH]]
    hand.advance(10_000)
    assert pending(c) == [[1, b"c", 11_000, 2], [2, b"d", 11_000, 1]]  # nor do they expire
    assert c("TACK", "s", "g", *ids) == 2


def test_claims_of_what_consumers_have_are_seen_by_t_commands(c: Raw) -> None:
    assert c("TPENDING", "s", "g")[:3] == [3, b"1.0", b"3.0"]
    assert c("TNACK", "s", "g", "1-0") == 0  # RETRY leaves them alone
    assert c("TACK", "s", "g", "1-0", "1.0", "2.0") == 2


# -- XNACK -------------------------------------------------------------------------------------------------------------
def test_nack_errors(c: Raw) -> None:
    def nack(*words: Any) -> Any:
        return c("XNACK", "s", "g", *words)

    assert c("XNACK", "s", "g", "FAIL", "IDS", 1) == "ERR wrong number of arguments for 'xnack' command"
    assert c("XNACK", "none", "g", "BAD", "IDS", 1, "1-0") == "NOGROUP No such key 'none' or consumer group 'g'"
    assert c("XNACK", "s", "no", "FAIL", "IDS", 1, "1-0") == "NOGROUP No such key 's' or consumer group 'no'"
    c("SET", "string", "v")
    assert c("XNACK", "string", "g", "FAIL", "IDS", 1, "1-0").startswith("WRONGTYPE ")
    assert nack("BAD", "IDS", 1, "1-0") == "ERR mode must be SILENT, FAIL, or FATAL"
    for words in (
        ("FAIL", "BAD", "IDS", 1, "1-0"), ("FAIL", "IDS", 1, "1-0", "BAD"), ("FAIL", "FATAL", "IDS", 1, "1-0"),
        ("FAIL", "IDS", 1, "1-0", "2-0"), ("FAIL", "IDS", 1, "1-0", "RETRYCOUNT"), ("FAIL", "NOTIDS", 1, "1-0"),
        ("FAIL", "FORCE", "RETRYCOUNT", 5, "BAD", "IDS", 1, "1-0"),
    ):  # fmt: skip
        assert nack(*words).startswith("ERR Unrecognized XNACK option '"), words
    assert nack("SILENT", "FORCE", "RETRYCOUNT", 5) == "ERR syntax error, expected IDS keyword"
    for number in ("abc", 0, -1):
        assert nack("SILENT", "IDS", number, "1-0") == "ERR numids must be a positive integer"
    assert nack("SILENT", "IDS", 2, "1-0") == "ERR number of IDs doesn't match numids"
    assert nack("FAIL", "IDS", 1, "x").startswith("ERR Invalid stream ID")
    not_integer = "ERR value is not an integer or out of range"
    assert nack("FAIL", "IDS", 1, "1-0", "RETRYCOUNT", "x") == not_integer
    assert nack("FAIL", "IDS", 1, "1-0", "RETRYCOUNT", 10**20) == not_integer
    assert nack("FAIL", "IDS", 1, "1-0", "RETRYCOUNT", -1) == "ERR Invalid RETRYCOUNT value, must be >= 0"
    assert pending(c) == [[1, b"c", 0, 1], [2, b"c", 0, 1], [3, b"c", 0, 1]]


def test_nack_modes(c: Raw) -> None:
    assert c("XNACK", "s", "g", "SILENT", "IDS", 1, "1-0") == 1
    assert c("XNACK", "s", "g", "FAIL", "IDS", 2, "2-0", "9-9") == 1
    assert c("XNACK", "s", "g", "FATAL", "IDS", 1, "3-0") == 1
    assert pending(c) == [[1, b"", -1, 0], [2, b"", -1, 1], [3, b"", -1, HIGHEST]]
    assert c("XNACK", "s", "g", "SILENT", "IDS", 1, "1-0") == 1  # not below 0
    assert c("XNACK", "s", "g", "FATAL", "IDS", 1, "2-0", "RETRYCOUNT", 42) == 1
    assert c("XNACK", "s", "g", "FAIL", "RETRYCOUNT", 0, "IDS", 1, "3-0") == 1
    assert pending(c) == [[1, b"", -1, 0], [2, b"", -1, 42], [3, b"", -1, 0]]
    c("XCLAIM", "s", "g", "c", 0, "2-0", "RETRYCOUNT", 5)
    assert c("XNACK", "s", "g", "SILENT", "IDS", 2, "2-0", "2-0") == 2
    assert pending(c)[1] == [2, b"", -1, 3]
    assert c("XPENDING", "s", "g") == [3, b"1-0", b"3-0", []]
    assert c("XPENDING", "s", "g", "-", "+", 9, "c") == []
    assert c("XPENDING", "s", "g", "IDLE", 100_000, "-", "+", 9)[0] == [b"1-0", b"", -1, 0]
    assert c("XINFO", "CONSUMERS", "s", "g")[0][:4] == [b"name", b"c", b"pending", 0]
    full = dict(zip(*[iter(c("XINFO", "STREAM", "s", "FULL"))] * 2, strict=True))
    group = dict(zip(*[iter(full[b"groups"][0])] * 2, strict=True))
    assert group[b"pending"][0] == [b"1-0", b"", 0, 0]


def test_nack_force(c: Raw) -> None:
    c("XACK", "s", "g", "1-0", "2-0", "3-0")
    assert c("XNACK", "s", "g", "FAIL", "IDS", 2, "1-0", "9-9", "FORCE") == 1
    assert c("XNACK", "s", "g", "FATAL", "FORCE", "IDS", 1, "2-0") == 1
    assert c("XNACK", "s", "g", "SILENT", "FORCE", "IDS", 2, "3-0", "3-0", "RETRYCOUNT", 7) == 2
    assert pending(c) == [[1, b"", -1, 0], [2, b"", -1, HIGHEST], [3, b"", -1, 7]]


def test_what_was_given_back_is_claimed_first_in_that_order(c: Raw, hand: RunningServer) -> None:
    hand.advance(5)
    c("XNACK", "s", "g", "FAIL", "IDS", 2, "2-0", "3-0")
    c("XNACK", "s", "g", "FAIL", "IDS", 1, "2-0")
    assert c("XGROUP", "DELCONSUMER", "s", "g", "c") == 1
    claim = ("XREADGROUP", "GROUP", "g", "d", "COUNT", 1, "CLAIM", 100_000, "STREAMS", "s", ">")
    assert c(*claim) == [[b"s", [[b"3-0", BOTH, -1, 1]]]]
    assert c(*claim) == [[b"s", [[b"2-0", BOTH, -1, 1]]]]
    assert c(*claim) is None
    c("XNACK", "s", "g", "FAIL", "IDS", 2, "2-0", "3-0")
    assert c("XCLAIM", "s", "g", "d", 100_000, "2-0") == [[b"2-0", BOTH]]
    c("XTRIM", "s", "MAXLEN", 0)
    assert c("XAUTOCLAIM", "s", "g", "d", 100_000, 0) == [b"0-0", [], [b"2-0", b"3-0"]]
    assert c("XPENDING", "s", "g")[0] == 0


def test_what_was_given_back_is_counted(c: Raw) -> None:
    def counts() -> tuple[int, int]:
        full = c("XINFO", "STREAM", "s", "FULL")
        group = full[full.index(b"groups") + 1][0]
        return group[group.index(b"pel-count") + 1], group[group.index(b"nacked-count") + 1]

    assert counts() == (3, 0)
    c("XNACK", "s", "g", "FAIL", "IDS", 3, "1-0", "2-0", "3-0")
    c("XNACK", "s", "g", "FAIL", "IDS", 1, "1-0")
    assert counts() == (3, 3)
    c("XCLAIM", "s", "g", "d", 0, "1-0")
    assert counts() == (3, 2)
    c("XACK", "s", "g", "2-0")
    assert counts() == (2, 1)
    c("XGROUP", "DELCONSUMER", "s", "g", "d")
    assert counts() == (1, 1)
    c("DEBUG", "RELOAD")
    assert counts() == (1, 1)


# -- long calls --------------------------------------------------------------------------------------------------------
def test_long_calls(c: Raw, hand: RunningServer) -> None:
    last = 5003
    c.pipeline(*[("XADD", "s", f"{number}-0", "f", "v") for number in range(4, last + 1)])
    c("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    ids = [b"%d-0" % number for number in range(1, last + 1)]
    hand.advance(10)
    assert [row[0] for row in c("XPENDING", "s", "g", "-", "+", 10_000)] == ids
    assert [row[0] for row in c("XPENDING", "s", "g", "IDLE", 5, "-", "+", 10_000)] == ids
    assert [row[0] for row in c("XPENDING", "s", "g", "-", "+", 3333, "c")] == ids[:3333]
    cursor, claimed, gone = c("XAUTOCLAIM", "s", "g", "d", 5, "-", "COUNT", 4000, "JUSTID")
    assert (cursor, claimed, gone) == (b"4001-0", ids[:4000], [])
    assert c("XPENDING", "s", "g", "IDLE", 5, "-", "+", 10_000, "d") == []
    assert [row[0] for row in c("XPENDING", "s", "g", "IDLE", 5, "-", "+", 10_000)] == ids[4000:]
    assert len(c("XCLAIM", "s", "g", "e", 0, *ids)) == last
    assert c("XACK", "s", "g", *ids, *ids[:10]) == last
    assert c("XACK", "s", "g", *ids[:2000], "x").startswith("ERR Invalid stream ID")
