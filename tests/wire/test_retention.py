"""TCFG RETAIN: the leader evicts what a stream's policy does not retain. Numbers are docs/semantics.md's."""

from __future__ import annotations

import random
from typing import Any

import pytest

from respserver.testing import RunningServer
from tests.waiting import eventually
from tests.wire.rawclient import Raw

NODE = 512  # entries of a full node


def fill(c: Raw, count: int, key: str = "s", value: str = "v") -> None:
    c("TMAPPEND", key, "FIELDS", 1, "f", "VALUES", *[value] * count)


def log_offset(c: Raw) -> int:
    return int(c("INFO", "persistence").split(b"log_offset:")[1].split(b"\r")[0])


def policy(c: Raw, key: str = "s") -> Any:
    name, value = c("TCFG", key)[:2]
    assert name == b"retain"
    return value


def test_count_is_exact_or_in_whole_nodes(hand: RunningServer, c: Raw) -> None:
    fill(c, 3 * NODE)
    assert c("TCFG", "s", "RETAIN", "COUNT", 600, "DRY") == NODE
    assert c("TLEN", "s") == 3 * NODE
    assert c("TCFG", "s", "RETAIN", "COUNT", 600) == NODE
    hand.advance(100)
    assert c("TLEN", "s") == 2 * NODE
    assert c("TCFG", "s", "RETAIN", "COUNT", 600, "EXACT") == 2 * NODE - 600
    hand.advance(100)
    assert c("TLEN", "s") == 600
    for number in range(7):
        c("TAPPEND", "s", "f", number)
    c("XADD", "s", "*", "f", "v")
    hand.advance(100)
    assert c("TLEN", "s") == 600


def test_a_stream_that_always_exceeds_its_limit_is_checked_once_a_second(hand: RunningServer, c: Raw) -> None:
    c("TCFG", "s", "RETAIN", "COUNT", 10, "EXACT")
    fill(c, 12)
    hand.advance(1000)
    assert c("TLEN", "s") == 10
    fill(c, 2)
    hand.advance(100)  # nothing was checked in the last second
    assert c("TLEN", "s") == 10
    fill(c, 2)
    hand.advance(400)
    fill(c, 2)
    hand.advance(400)
    assert c("TLEN", "s") == 14
    hand.advance(200)
    assert c("TLEN", "s") == 10
    fill(c, 2)
    hand.advance(100)
    assert c("TLEN", "s") == 12
    fill(c, NODE)  # too many more
    hand.advance(100)
    assert c("TLEN", "s") == 10


def test_the_policy_is_shown_and_removed(hand: RunningServer, c: Raw) -> None:
    words = b"COUNT 5 AGE 60000 BYTES 70 GROUPS LIMIT 9 EXACT"
    assert c("TCFG", "s", "RETAIN", *words.split()) == 0
    assert policy(c) == words
    assert words in c("TINFO", "s")
    info = c("XINFO", "STREAM", "s")
    assert info[info.index(b"retain") + 1] == words
    c("RENAME", "s", "t")
    assert policy(c, "t") == words
    assert c("TCFG", "t", "RETAIN", "none") == 0
    assert policy(c, "t") is None
    assert b"retain" not in c("XINFO", "STREAM", "t")
    fill(c, 20, "t")
    hand.advance(1000)
    assert c("TLEN", "t") == 20


def test_a_renamed_stream_keeps_its_policy_and_a_new_one_has_none(hand: RunningServer, c: Raw) -> None:
    c("TCFG", "s", "RETAIN", "COUNT", 2, "EXACT")
    c("RENAME", "s", "t")
    fill(c, 5, "t")
    fill(c, 5, "s")
    hand.advance(100)
    assert [c("TLEN", key) for key in "st"] == [5, 2]
    c("DEL", "t")
    fill(c, 5, "t")
    hand.advance(100)
    assert c("TLEN", "t") == 5


@pytest.mark.parametrize("how", ["EXACT", "~"])
def test_entries_leave_when_they_are_too_old(hand: RunningServer, c: Raw, how: str) -> None:
    c("TCFG", "s", "RETAIN", "AGE", 1000, how)
    fill(c, 3)
    hand.advance(500)
    fill(c, 2)
    hand.advance(499)
    assert c("TLEN", "s") == 5
    hand.advance(150)  # checked a second after the first check
    assert c("TLEN", "s") == (2 if how == "EXACT" else 5)
    hand.advance(1000)
    assert c("TLEN", "s") == 0


def test_whole_nodes_leave_when_the_next_node_is_old(hand: RunningServer, c: Raw) -> None:
    c("TCFG", "s", "RETAIN", "AGE", 1000)
    fill(c, NODE)
    hand.advance(100)
    fill(c, NODE + 1)
    hand.advance(1000)
    assert c("TLEN", "s") == 0
    hand.advance(10)
    fill(c, NODE + 1)
    hand.advance(200)
    fill(c, 1)
    hand.advance(801)
    assert c("TLEN", "s") in {NODE + 2, 2}
    hand.advance(250)
    assert c("TLEN", "s") == 0


def test_bytes_limit_the_size(hand: RunningServer, c: Raw) -> None:
    fill(c, 10, value="x" * 100)
    one = len(b"*3\r\n$15\r\n1700000000000.0\r\n$1\r\nf\r\n$100\r\n\r\n") + 100
    assert c("TCFG", "s", "RETAIN", "BYTES", 3 * one + one // 2, "EXACT", "DRY") == 7
    assert c("TAPPEV", "s", "BYTES", 4 * one) == 6
    assert c("TAPPEV", "s", "BYTES", 4 * one + 1, "f", "x" * 100) != 0
    assert c("TLEN", "s") == 4
    assert c("TAPPEV", "s", "BYTES", 2 * one - 1) == 3
    assert c("TAPPEV", "s", "BYTES", 0) == 1
    assert c("TAPPEV", "s", "BYTES", -1) == "ERR value is out of range, must be positive"
    fill(c, 4 * NODE)  # sealed nodes have their size in the store, once they are compressed
    assert c("TAPPEV", "s", "BYTES", 1 << 20) == 0
    hand.advance(100)
    eventually(lambda: not hand.call(lambda: hand.server.data.ks.pool.drafts))
    size = c("TINFO", "s")
    stored = size[size.index(b"disk-bytes") + 1]
    assert c("TAPPEV", "s", "BYTES", stored) <= 1
    evicted = c("TAPPEV", "s", "BYTES", stored // 2)
    assert abs(evicted - 2 * NODE) <= 4


def test_an_equal_policy_is_not_logged_again(c: Raw) -> None:
    c("TCFG", "s", "RETAIN", "COUNT", 5)
    before = log_offset(c)
    assert c("TCFG", "s", "RETAIN", "COUNT", 5, "~") == 0
    assert log_offset(c) == before
    c("TCFG", "s", "RETAIN", "COUNT", 5, "EXACT")
    assert log_offset(c) > before


def test_groups_hold_what_they_need(hand: RunningServer, c: Raw) -> None:
    fill(c, 10)
    words = ("RETAIN", "COUNT", 2, "GROUPS", "EXACT")
    assert c("TCFG", "s", *words) == 0  # no group yet
    hand.advance(1000)
    assert c("TLEN", "s") == 10
    c("TREAD", "s", 0, 6, "GROUP", "g", 0, "RETRY", 60_000, 0)
    assert c("TCFG", "s", *words, "DRY") == 0  # all six are pending
    pending = c("TPENDING", "s", "g", "-", "+", 10)
    c("TACK", "s", "g", *[row[0] for row in pending[:4]])
    assert c("TCFG", "s", *words, "DRY") == 4
    hand.advance(1000)  # an acknowledgement causes no check
    assert c("TLEN", "s") == 6
    assert c("TCFG", "s", "RETAIN", "COUNT", 2, "GROUPS", "LIMIT", 5, "EXACT") == 1
    hand.advance(100)
    assert c("TLEN", "s") == 5
    c("XGROUP", "SETID", "s", "g", "$")
    c("TACK", "s", "g", *[row[0] for row in pending])
    hand.advance(1000)
    assert c("TLEN", "s") == 2


@pytest.mark.parametrize(
    ("words", "before", "checked"),
    [
        ("COUNT 10 EXACT", 9, [False, True]),
        ("COUNT 600", 0, [True, False]),  # the first append: the policy has not been checked with an entry
        ("COUNT 600", NODE + 598, [False, True]),
        ("AGE 60000 EXACT", 0, [True, False, False]),  # an empty stream has no timer
        ("BYTES 100000", 1, [True, True]),  # the size of an entry is known when it is there
        ("COUNT 5 GROUPS EXACT", 5, [True, False, False]),  # held up, and checked each second
        ("COUNT 5 GROUPS LIMIT 8 EXACT", 6, [False, False, True]),
    ],
)
def test_appends_cause_a_check_only_if_they_can_exceed_a_limit(
    hand: RunningServer, c: Raw, words: str, before: int, checked: list[bool]
) -> None:
    c("TCFG", "s", "RETAIN", *words.split())
    if before:
        fill(c, before)
    hand.advance(100)
    found = []
    for _ in checked:
        fill(c, 1)
        found.append(hand.call(lambda: b"s" in {**hand.server.data.ks.unchecked, **hand.server.data.ks.check_later}))
        hand.advance(100)
    assert found == checked


def test_large_entries_do_not_remain_for_a_second(hand: RunningServer, c: Raw) -> None:
    """They could take far more memory than the policy retains: 500 MB if an entry has 1 MB."""
    c("TCFG", "s", "RETAIN", "COUNT", 5, "EXACT")
    for _ in range(3):
        for _ in range(9):
            c("TAPPEND", "s", "f", "v" * 70_000)
        hand.advance(100)
        assert c("TLEN", "s") == 5


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "words",
    [
        "COUNT 30 EXACT", "COUNT 30", "AGE 700 EXACT", "BYTES 4000 EXACT", "COUNT 40 AGE 900 BYTES 6000 EXACT",
        "COUNT 20 GROUPS EXACT", "COUNT 20 GROUPS LIMIT 60", "AGE 700 GROUPS EXACT",
    ],
)
def test_no_excess_remains(hand: RunningServer, c: Raw, words: str, seed: int) -> None:
    """Whatever happens to a stream, what its policy does not retain leaves with the next check.

    Except with an AGE in whole nodes, whose timer waits until the node after the oldest one begins to be too old.
    """
    chance = random.Random(seed)
    c("CONFIG", "SET", "stream-node-max-entries", 8)
    c("TCFG", "s", "RETAIN", *words.split())
    for _ in range(60):
        for _ in range(chance.randrange(3)):
            match chance.randrange(8):
                case 0:
                    rows = c("XRANGE", "s", "-", "+", "COUNT", 40)
                    c("XDEL", "s", "1", *[row[0] for row in rows if chance.random() < 0.3])
                case 1:
                    c("TAPPEV", "s", "COUNT", chance.randrange(40))
                case 2 if "GROUPS" in words:
                    rows = c("TREAD", "s", 0, chance.randrange(60), "GROUP", "g", 0, "RETRY", 60_000, 0)
                    c("TACK", "s", "g", "1.1", *[row[0] for row in rows if row and chance.random() < 0.8])
                case 3 if "GROUPS" in words:
                    c("XGROUP", "SETID", "s", "g", "$")
                case _:
                    fill(c, chance.randrange(1, 25), value="x" * chance.randrange(100))
        hand.advance(1100 if "GROUPS" in words or "EXACT" in words else chance.choice((100, 250)))
        assert c("TCFG", "s", "RETAIN", *words.split(), "DRY") == 0


def test_invalid_policies_are_refused_with_a_valid_one(c: Raw) -> None:
    fill(c, 3)
    for words, text in [
        ("RETAIN", "ERR RETAIN needs a limit: COUNT, AGE or BYTES, as in RETAIN COUNT 1000, or NONE"),
        ("RETAIN GROUPS", "ERR RETAIN needs a limit: COUNT, AGE or BYTES, as in RETAIN COUNT 1000, or NONE"),
        ("RETAIN COUNT 5 LIMIT 9", "ERR RETAIN: LIMIT belongs to GROUPS, as in RETAIN COUNT 1000 GROUPS LIMIT 5000"),
        (
            "RETAIN COUNT 5 GROUPS LIMIT 4",
            "ERR RETAIN: LIMIT must not be below COUNT, as in RETAIN COUNT 1000 GROUPS LIMIT 5000",
        ),
        ("RETAIN COUNT 5 EXACT ~", "ERR RETAIN: EXACT and ~ exclude each other; ~ is the default"),
        ("RETAIN COUNT 5 COUNT 6", "ERR RETAIN: COUNT is given twice"),
        ("RETAIN COUNT 0", f"ERR RETAIN: COUNT must be between 1 and {(1 << 62) - 1}; NONE removes the policy"),
        ("RETAIN COUNT five", "ERR value is not an integer or out of range"),
        ("RETAIN DRY COUNT 5", "ERR RETAIN: DRY must be the last word, as in RETAIN COUNT 1000 DRY"),
        ("RETAIN NONE DRY", "ERR RETAIN: NONE removes the policy and stands alone, as in TCFG key RETAIN NONE"),
        ("RETAIN COUNT", "ERR syntax error"),
        ("KEEP COUNT 5", "ERR syntax error"),
    ]:
        assert c("TCFG", "s", *words.split()) == text
    assert policy(c) is None
    assert c("TCFG", "missing") == "ERR no such key"
    assert c("TCFG", "missing", "RETAIN", "NONE") == "ERR no such key"
    assert c("TCFG", "missing", "RETAIN", "COUNT", 1, "DRY") == 0
    assert c("EXISTS", "missing") == 0
    c("SET", "string", "v")
    assert c("TCFG", "string", "RETAIN", "COUNT", 1).startswith("WRONGTYPE")


def test_a_long_eviction_is_in_slices(hand: RunningServer, c: Raw) -> None:
    c("CONFIG", "SET", "stream-node-max-entries", 2)
    fill(c, 10_000)
    c("TCFG", "s", "RETAIN", "COUNT", 10)
    hand.advance(100)
    assert c("TLEN", "s") == 10


def test_new_streams_get_the_default_of_their_pattern(hand: RunningServer, c: Raw) -> None:
    fill(c, 5, "log:old")
    text = "log:* RETAIN COUNT 3 EXACT *:jobs RETAIN AGE 60000 GROUPS"
    assert c("CONFIG", "SET", "stream-retention", text) == b"OK"
    assert c("CONFIG", "GET", "stream-retention")[1] == text.encode()
    for key in ("log:old", "log:new", "log:jobs", "a:jobs", "other"):
        fill(c, 5, key)
    assert policy(c, "log:old") is None
    assert policy(c, "other") is None
    assert policy(c, "log:jobs") == policy(c, "log:new") == b"COUNT 3 EXACT"
    assert policy(c, "a:jobs") == b"AGE 60000 GROUPS ~"
    c("TCFG", "log:new", "RETAIN", "NONE")
    hand.advance(100)
    assert [c("TLEN", key) for key in ("log:old", "log:new", "log:jobs")] == [10, 5, 3]
    c("TREAD", "log:read", 0, 1, "GROUP", "g", 50)
    hand.advance(1000)
    assert c("EXISTS", "log:read") == 0  # it had no entries, and its group has expired
    assert c("CONFIG", "SET", "stream-retention", "") == b"OK"
    fill(c, 5, "log:later")
    assert policy(c, "log:later") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("log:*", "a pattern of keys, RETAIN and limits are needed, as in: log:* RETAIN COUNT 1000"),
        ("RETAIN COUNT 1", "a pattern of keys, RETAIN and limits are needed, as in: log:* RETAIN COUNT 1000"),
        ("log:* RETAIN", "log:*: RETAIN needs a limit: COUNT, AGE or BYTES, as in RETAIN COUNT 1000, or NONE"),
        ("log:* RETAIN COUNT 5 DRY", "DRY belongs to TCFG"),
        ("a RETAIN COUNT 5 b:* c RETAIN AGE 1", "a: syntax error"),
    ],
)
def test_invalid_defaults_are_refused(c: Raw, text: str, why: str) -> None:
    reply = c("CONFIG", "SET", "stream-retention", text)
    assert reply.startswith("ERR CONFIG SET failed (possibly related to argument 'stream-retention') - ")
    assert reply.endswith(why)
