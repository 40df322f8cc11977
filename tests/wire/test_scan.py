"""SCAN while keys come and go."""

from __future__ import annotations

from collections import Counter

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw


def step(c: Raw, cursor: int, count: int) -> tuple[int, list[bytes]]:
    after, keys = c("SCAN", cursor, "COUNT", count)
    return int(after), keys


def test_a_key_that_vanishes_unseen_brings_none_back(c: Raw) -> None:
    for n in range(30):
        c("SET", f"k{n:02}", "v")
    cursor, seen = step(c, 0, 10)
    unseen = next(key for n in range(30) if (key := b"k%02d" % n) not in seen)
    c("DEL", unseen)
    while cursor:
        cursor, more = step(c, cursor, 10)
        seen += more
    assert sorted([*seen, unseen]) == [b"k%02d" % n for n in range(30)]


def test_keys_that_expire_bring_none_back(c: Raw, hand: RunningServer) -> None:
    for n in range(1000):
        c("SET", f"k{n}", "v", *(("PX", 1 + n) if n % 3 else ()))
    cursor, seen = step(c, 0, 10)
    while cursor:
        hand.advance(20)
        cursor, more = step(c, cursor, 10)
        seen += more
    assert max(Counter(seen).values()) == 1
    assert {b"k%d" % n for n in range(0, 1000, 3)} <= set(seen)
    assert len(seen) < 1000


def test_a_key_that_is_made_again_may_come_twice_and_a_new_one_need_not_come(c: Raw) -> None:
    for n in range(30):
        c("SET", f"k{n}", "v")
    cursor, seen = step(c, 0, 10)
    c("DEL", seen[0])
    c("SET", seen[0], "v")
    c("SET", "new", "v")
    while cursor:
        cursor, more = step(c, cursor, 10)
        seen += more
    assert {b"k%d" % n for n in range(30)} <= set(seen)
