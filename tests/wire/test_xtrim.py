"""XTRIM and what groups still need: KEEPREF, DELREF, ACKED. ``test_differential_streams`` has the rest."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from tests.wire.rawclient import Raw

Connect = Callable[..., Raw]


def fill(c: Raw, count: int, nodes: int = 4) -> None:
    """A stream of ``count`` entries, 1-0, 2-0 ..., in nodes of so many entries."""
    c("CONFIG", "SET", "stream-node-max-entries", nodes)
    c.pipeline(*[("XADD", "s", f"{number}-0", "f", number) for number in range(1, count + 1)])


def read(c: Raw, group: str, upto: int, *acked: int) -> None:
    """A group that has read the entries up to a number, of which these are acknowledged."""
    if upto:
        c("TREAD", "s", 0, upto, "GROUP", group, 0, "RETRY", 10_000, 0)
    else:
        c("TREAD", "s", 0, 0, "GROUP", group, 0)
    for number in acked:
        assert c("TACK", "s", group, f"{number}-0") == 1


def left(c: Raw) -> list[int]:
    found = [int(entry[0].split(b"-")[0]) for entry in c("XRANGE", "s", "-", "+")]
    assert c("XLEN", "s") == len(found)
    return found


def pending(c: Raw, group: str) -> list[int]:
    return [int(row[0].split(b".")[0]) for row in c("TPENDING", "s", group, "-", "+", 100)]


def test_keepref_keeps_what_is_pending(c: Raw) -> None:
    fill(c, 5)
    read(c, "g", 3)
    assert c("XTRIM", "s", "MAXLEN", 1, "KEEPREF") == 4
    assert (left(c), pending(c, "g")) == ([5], [1, 2, 3])


def test_delref_takes_it_out_of_all_groups(c: Raw) -> None:
    fill(c, 8)
    read(c, "g", 6, 2)
    read(c, "h", 3)
    read(c, "i", 0)
    assert c("XTRIM", "s", "DELREF", "MAXLEN", 4) == 4
    assert (left(c), pending(c, "g"), pending(c, "h"), pending(c, "i")) == ([5, 6, 7, 8], [5, 6], [], [])
    assert c("XADD", "s", "MINID", "~", 9, "DELREF", "9-0", "f", "v") == b"9-0"
    assert (left(c), pending(c, "g")) == ([9], [])
    assert c("DEBUG", "RELOAD") == b"OK"
    assert (left(c), pending(c, "g")) == ([9], [])


DELETIONS = {
    "XDEL": lambda numbers: ("XDEL", "s", *numbers),
    "XDELEX": lambda numbers: ("XDELEX", "s", "IDS", len(numbers), *numbers),
    "XDELEX KEEPREF": lambda numbers: ("XDELEX", "s", "KEEPREF", "IDS", len(numbers), *numbers),
    "XACKDEL of another group": lambda numbers: ("XACKDEL", "s", "h", "IDS", len(numbers), *numbers),
}
TRIMS: dict[str, tuple[str | int, ...]] = {
    "XTRIM MAXLEN": ("XTRIM", "s", "MAXLEN", 2, "DELREF"),
    "XTRIM MINID": ("XTRIM", "s", "MINID", 11, "DELREF"),
    "XTRIM MAXLEN ~": ("XTRIM", "s", "MAXLEN", "~", 2, "DELREF"),
    "XTRIM MINID ~": ("XTRIM", "s", "MINID", "~", 11, "DELREF"),
    "XADD MAXLEN": ("XADD", "s", "MAXLEN", 3, "DELREF", "13-0", "f", "v"),
    "XADD MINID": ("XADD", "s", "DELREF", "MINID", 11, "13-0", "f", "v"),
}


GONE = ((1, 2), (4, 6), (1, 2, 3, 4, 5), (7, 10), tuple(range(1, 10)))


@pytest.mark.parametrize("trim", TRIMS)
def test_delref_takes_what_was_deleted_before(c: Raw, trim: str) -> None:
    """The IDs of entries that are gone already leave the pending lists as well: at the front, in the middle, whole
    nodes of them, the last ones to be trimmed."""
    for deletion, gone in itertools.product(DELETIONS, GONE):
        c("FLUSHALL")
        fill(c, 12, nodes=2)
        read(c, "g", 12)
        read(c, "h", 12)
        c(*DELETIONS[deletion](gone))
        assert pending(c, "g") == list(range(1, 13))
        c(*TRIMS[trim])
        assert [entry for entry in left(c) if entry < 13] == [11, 12], (deletion, gone)
        for _ in range(2):
            assert pending(c, "g") == [11, 12] == pending(c, "h"), (deletion, gone)
            assert c("DEBUG", "RELOAD") == b"OK"


def test_delref_takes_what_was_trimmed_before(c: Raw) -> None:
    fill(c, 4)
    read(c, "g", 4)
    assert c("XTRIM", "s", "MAXLEN", 2) == 2
    assert c("XTRIM", "s", "MAXLEN", 1, "DELREF") == 1
    assert (left(c), pending(c, "g")) == ([4], [4])


def test_delref_of_all(c: Raw) -> None:
    fill(c, 6)
    read(c, "g", 6)
    assert c("XDEL", "s", 2, 5, 6) == 3
    assert c("XTRIM", "s", "MAXLEN", 0, "DELREF") == 3
    assert (left(c), pending(c, "g")) == ([], [])


def test_delref_where_nothing_is_trimmed(c: Raw) -> None:
    """A MINID says from where on IDs may be pending; a MAXLEN that is not reached says nothing."""
    fill(c, 6)
    read(c, "g", 6)
    assert c("XDEL", "s", 1, 2, 4) == 3
    assert c("XTRIM", "s", "MAXLEN", 3, "DELREF") == 0
    assert pending(c, "g") == [1, 2, 3, 4, 5, 6]
    assert c("XTRIM", "s", "MINID", 2, "DELREF") == 0
    assert pending(c, "g") == [2, 3, 4, 5, 6]
    assert c("XTRIM", "s", "MINID", 4, "DELREF") == 1
    assert pending(c, "g") == [4, 5, 6]


def test_acked_keeps_what_some_group_has_not_read(c: Raw) -> None:
    fill(c, 5)
    read(c, "g", 0)
    assert c("XADD", "s", "MAXLEN", "=", 1, "ACKED", "6-0", "f", "v") == b"6-0"
    assert left(c) == [1, 2, 3, 4, 5, 6]
    read(c, "g", 1, 1)
    assert c("XADD", "s", "MAXLEN", "=", 1, "ACKED", "7-0", "f", "v") == b"7-0"
    assert left(c) == [2, 3, 4, 5, 6, 7]
    c("TREAD", "s", 0, 100, "GROUP", "g", 0, "RETRY", 10_000, 0)
    assert c("TACK", "s", "g", *[f"{number}-0" for number in range(2, 8)]) == 6
    read(c, "h", 0)
    assert c("XTRIM", "s", "MAXLEN", 1, "ACKED") == 0
    c("TGROUP", "DESTROY", "s", "h")
    c("XADD", "s", "MAXLEN", 1, "ACKED", "8-0", "f", "v")
    assert left(c) == [8]


def test_acked_trims_in_the_middle(c: Raw) -> None:
    fill(c, 9)
    read(c, "g", 9, 2, 3, 5, 6, 8)
    assert c("XTRIM", "s", "MAXLEN", 6, "ACKED") == 3
    assert left(c) == [1, 4, 6, 7, 8, 9]
    assert c("XTRIM", "s", "MINID", 8, "ACKED") == 1
    assert left(c) == [1, 4, 7, 8, 9]
    assert c("TACK", "s", "g", "1-0") == 1
    assert c("XTRIM", "s", "MAXLEN", 0, "ACKED") == 2
    assert left(c) == [4, 7, 9] == pending(c, "g")
    before = c("XRANGE", "s", "-", "+")
    assert c("DEBUG", "RELOAD") == b"OK"
    assert c("XRANGE", "s", "-", "+") == before
    assert c("XTRIM", "s", "MAXLEN", 0, "DELREF") == 3
    assert (left(c), pending(c, "g")) == ([], [])


def test_acked_of_two_groups(c: Raw) -> None:
    fill(c, 6)
    read(c, "g", 6, 1, 2, 3, 4)
    read(c, "h", 5, 1, 2, 4)
    assert c("XTRIM", "s", "MAXLEN", 0, "ACKED") == 3
    assert left(c) == [3, 5, 6]


def test_acked_by_whole_nodes(c: Raw) -> None:
    """Only entries of nodes that would go as a whole are trimmed: all that can be, also behind one that stays."""
    fill(c, 5, nodes=2)
    read(c, "g", 5, 1, 2, 4)
    assert c("XTRIM", "s", "MINID", "~", "6-0", "ACKED") == 3
    assert left(c) == [3, 5]
    c("FLUSHALL")
    fill(c, 9, nodes=2)
    read(c, "g", 9, *range(1, 10))
    assert c("XTRIM", "s", "MINID", "~", "6-0", "ACKED") == 4
    assert left(c) == [5, 6, 7, 8, 9]
    assert c("XTRIM", "s", "MAXLEN", "~", 2, "ACKED", "LIMIT", 1) == 0
    assert c("XTRIM", "s", "MAXLEN", "~", 2, "ACKED", "LIMIT", 3) == 2
    assert left(c) == [7, 8, 9]


def test_without_groups_they_are_the_same(c: Raw) -> None:
    fill(c, 6)
    for word, gone, expected in (("KEEPREF", 3, [4, 5, 6]), ("DELREF", 1, [5, 6]), ("ACKED", 1, [6])):
        assert c("XTRIM", "s", "MAXLEN", len(expected), word) == gone
        assert left(c) == expected


@pytest.mark.parametrize("words", [("KEEPREF", "ACKED"), ("ACKED", "ACKED"), ("FOO",)])
def test_one_of_them(c: Raw, words: tuple[str, ...]) -> None:
    assert c("XTRIM", "s", "MAXLEN", 1, *words) == "ERR syntax error"
    assert c("XTRIM", "s", words[0]) == "ERR wrong number of arguments for 'xtrim' command"
    assert c("XTRIM", "s", "ACKED", "LIMIT", 0) == (
        "ERR syntax error, XTRIM must be called with a trimming strategy"
    )


def test_a_key_that_was_trimmed_to_nothing_stays(c: Raw) -> None:
    fill(c, 3)
    assert c("XTRIM", "s", "MAXLEN", 0) == 3
    assert (c("EXISTS", "s"), c("TYPE", "s"), left(c)) == (1, b"stream", [])
    assert c("TINFO", "s")[1] == 0
    assert c("XADD", "s", "3-0", "f", "v").startswith("ERR The ID")
    assert c("XADD", "s", "3-*", "f", "v") == b"3-1"


@pytest.mark.parametrize("seed", range(6))
def test_acked_against_a_plain_list(c: Raw, seed: int) -> None:
    chance = random.Random(seed)
    fill(c, 60, nodes=5)
    read(c, "g", 55)
    read(c, "h", 50)
    kept = {"g": set(range(1, 56)), "h": set(range(1, 51))}
    entries = list(range(1, 61))
    for _ in range(25):
        group = chance.choice("gh")
        for number in chance.sample(sorted(kept[group]), min(len(kept[group]), chance.randrange(8))):
            c("TACK", "s", group, f"{number}-0")
            kept[group].discard(number)
        free = [n for n in entries if n <= 50 and n not in kept["g"] and n not in kept["h"]]
        if chance.random() < 0.5:
            most = chance.randrange(61)
            gone = free[: max(0, len(entries) - most)]
            assert c("XTRIM", "s", "MAXLEN", most, "ACKED") == len(gone)
        else:
            lowest = chance.randrange(62)
            gone = [n for n in free if n < lowest]
            assert c("XTRIM", "s", "MINID", lowest, "ACKED") == len(gone)
        entries = [n for n in entries if n not in gone]
        assert left(c) == entries
