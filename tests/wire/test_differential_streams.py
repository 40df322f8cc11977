"""X commands on ours and on a real redis-server: the same replies, byte for byte.

IDs are given wherever a reply or an entry would show the clock. Nodes have four entries on both, so that ``~`` trims
the same.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.wire.alike import Pair

Same = Callable[[str], None]


SETTINGS = {"stream_node_max_entries": "4"}


@pytest.fixture
def both(pair: Pair) -> Pair:
    """Each holds a string at ``string``, and streams at ``x`` and ``y``."""
    for connection in pair:
        connection.ask("CONFIG", "SET", "stream-node-max-entries", 4)
        connection.ask("SET", "string", "v")
        for number in (1, 2, 3):
            connection.ask("XADD", "x", f"{number}-{number}", "f", number)
        connection.ask("XADD", "y", "5-0", "a", "1", "b", "2")
    return pair


@pytest.fixture
def same(both: Pair) -> Same:
    """Runs a script, commands separated by lines or semicolons, on both; the replies must be the same bytes."""

    def same(script: str) -> None:
        for line in script.replace(";", "\n").strip().splitlines():
            words = ["" if word == "''" else word for word in line.split()]
            if words:
                assert both[0].ask(*words) == both[1].ask(*words), line

    return same


def test_xadd(same: Same) -> None:
    same("""
        XADD s 1-1 f v ; XADD s 1-1 f v ; XADD s 1-0 f v ; XADD s 0-5 f v ; XADD s 1-* f v ; XADD s 1 f v
        XADD s 2 f v ; XADD s 3-* a b c d e f ; XADD s 3-* a b ; XADD s 2-* a b ; XADD s 007-01 a b ; XADD new 0-0 f v
        XADD new 0 f v ; EXISTS new ; XADD new 0-* f v ; XADD new 0-* f v ; XRANGE new - + ; XADD s - f v
        XADD s + f v ; XADD s $ f v ; XADD s '' f v ; XADD s 1-1-1 f v ; XADD s x f v ; XADD s 8- f v
        XADD s 8-** f v ; XADD s -* f v ; XADD s *-* f v ; XADD s 18446744073709551616 f v ; XADD s 1-x f v
        XADD s 9-18446744073709551615 f v ; XADD s 18446744073709551615-* f v
        XADD s 18446744073709551615-18446744073709551615 f v ; XADD s * f v ; XADD s 1-1 f v ; XADD ; XADD s
        XADD s * ; XADD s * f ; XADD s * f v w ; XADD s 1-1 f v w ; XADD string * f v ; XADD string 1-1 f v
        XADD string 0-0 f v ; XADD string NOMKSTREAM * f v ; XADD none NOMKSTREAM * f v ; EXISTS none
        XADD x nomkstream 9-9 f v ; XADD none NOMKSTREAM 0-0 f v ; XADD x NOMKSTREAM NOMKSTREAM 10-9 f v
        XRANGE x - + ; TYPE x ; OBJECT ENCODING x ; XLEN x ; XLEN none ; XADD x 20-1 '' '' ; XRANGE x 20 20
        XLEN string ; XLEN ; XLEN a b
    """)


def test_xadd_that_trims(same: Same) -> None:
    same("""
        XADD x MAXLEN 2 10-1 f v ; XRANGE x - + ; XADD x MAXLEN = 1 10-2 f v ; XRANGE x - + ; XADD x MAXLEN 0 10-3 f v
        XLEN x ; EXISTS x ; XADD x 10-3 f v ; XADD x 10-4 f v ; XADD x MINID 10-5 10-5 f v ; XRANGE x - +
        XADD x MINID 20 10-6 f v ; XRANGE x - + ; XADD new MAXLEN 0 1-1 f v ; XLEN new ; XADD new 1-1 f v
        XADD x LIMIT 5 * f v ; XADD x LIMIT 0 * f v ; XADD x MAXLEN 5 LIMIT 5 * f v ; XADD x MAXLEN 5 MINID 5 * f v
        XADD x MAXLEN 5 MAXLEN 5 * f v ; XADD x MAXLEN ~ 5 ; XADD x MAXLEN 5 f v ; XADD x MAXLEN x * f v
        XADD x MAXLEN -1 * f v ; XADD x MINID x * f v ; XADD x MINID - * f v ; XADD x MAXLEN ~ 5 LIMIT -1 * f v
        XADD x MAXLEN ~ 5 LIMIT x * f v ; XADD x LIMIT 2 maxlen ~ 0 NOMKSTREAM 30-1 f v ; XLEN x
        XADD string MAXLEN 0 * f v ; XADD none MAXLEN 5 NOMKSTREAM * f v
    """)


def test_xtrim(same: Same) -> None:
    same("""
        XTRIM x MAXLEN 5 ; XTRIM x MAXLEN 3 ; XTRIM x MAXLEN = 2 ; XRANGE x - + ; XTRIM x MINID 3 ; XRANGE x - +
        XTRIM x MINID = 3-3 ; XTRIM x MINID 3-4 ; XLEN x ; EXISTS x ; XADD x 3-3 f v ; XADD x 3-4 f v
        XTRIM none MAXLEN 0 ; XTRIM string MAXLEN 0 ; XTRIM x ; XTRIM x MAXLEN ; XTRIM x MAXLEN x ; XTRIM x MAXLEN -1
        XTRIM x MINID + ; XTRIM x FOO 5 ; XTRIM x MAXLEN 5 MINID 5 ; XTRIM x MAXLEN 5 FOO ; XTRIM x LIMIT 5
        XTRIM x LIMIT 0 ; XTRIM x NOMKSTREAM 1 ; XTRIM x MAXLEN ~ ; XTRIM x MAXLEN ~ = ; XTRIM x MAXLEN ~ 5 LIMIT
        XTRIM x MAXLEN 5 LIMIT 5 ; XTRIM x LIMIT 0 MAXLEN = 5 ; XTRIM x MAXLEN ~ 0 LIMIT -3
        XTRIM x MAXLEN ~ 0 LIMIT x ; XTRIM x MINID 5 5 ; XTRIM string MAXLEN x ; XTRIM x MAXLEN 9223372036854775807
        XTRIM x MAXLEN 9223372036854775808
    """)


def test_trimming_whole_nodes(same: Same) -> None:
    same(" ; ".join(f"XADD s {number} f v" for number in range(1, 43)))
    same("""
        XTRIM s MAXLEN ~ 41 ; XLEN s ; XTRIM s MAXLEN ~ 38 ; XLEN s ; XTRIM s MAXLEN ~ 30 ; XLEN s
        XTRIM s MAXLEN ~ 0 LIMIT 3 ; XTRIM s MAXLEN ~ 0 LIMIT 9 ; XRANGE s - + COUNT 1 ; XTRIM s MINID ~ 25
        XRANGE s - + COUNT 1 ; XTRIM s MINID ~ 30 ; XRANGE s - + COUNT 1 ; XTRIM s MAXLEN 13
        XTRIM s MAXLEN ~ 12 LIMIT 3 ; XTRIM s MAXLEN ~ 9 ; XRANGE s - + ; XTRIM s MINID ~ 100 ; XLEN s ; XADD s 50 f v
        XADD s MAXLEN ~ 0 51 f v ; XLEN s
    """)


def test_xrange(same: Same) -> None:
    same("""
        XRANGE x - + ; XRANGE x 2 2 ; XRANGE x 2-1 2-2 ; XRANGE x (2-2 + ; XRANGE x - (2-2 ; XRANGE x (2 +
        XRANGE x - (2 ; XRANGE x 2-3 + ; XRANGE x + - ; XRANGE x 3 2 ; XRANGE x - - ; XRANGE x + + ; XRANGE none - +
        XRANGE string - + ; XRANGE x - + COUNT 2 ; XRANGE x - + COUNT 0 ; XRANGE x - + COUNT -1
        XRANGE none - + COUNT 0 ; XRANGE x - + COUNT ; XRANGE x - + COUNT x ; XRANGE x - + COUNT 1 COUNT 2
        XRANGE x - + FOO 2 ; XRANGE x - + count 1 ; XRANGE x - + COUNT 1 FOO ; XRANGE x ( + ; XRANGE x (- +
        XRANGE x - (+ ; XRANGE x x + ; XRANGE x - x ; XRANGE x '' + ; XRANGE x - 5-
        XRANGE x (18446744073709551615-18446744073709551615 + ; XRANGE x - (0-0 ; XRANGE x - (0 ; XRANGE x (0 +
        XRANGE x ; XRANGE x - ; XRANGE string x + ; XRANGE string - + COUNT 0 ; XRANGE x 3 2 COUNT 0 ; XREVRANGE x + -
        XREVRANGE x + - COUNT 2 ; XREVRANGE x 2 2 ; XREVRANGE x (3-3 (1-1 ; XREVRANGE x - + ; XREVRANGE x + - COUNT 0
        XREVRANGE x (0-0 - ; XREVRANGE x + (18446744073709551615-18446744073709551615 ; XREVRANGE x (0-0 x
        XREVRANGE none + - ; XREVRANGE string + - ; XREVRANGE x + - COUNT 9 ; XREVRANGE y + -
    """)


def test_xread(same: Same) -> None:
    same("""
        XREAD STREAMS x 0 ; XREAD STREAMS x 1 ; XREAD STREAMS x 2-2 ; XREAD STREAMS x 3-3 ; XREAD STREAMS x $
        XREAD COUNT 1 STREAMS x y 0 0 ; XREAD COUNT 2 STREAMS x none y 0 0 0 ; XREAD STREAMS none 0
        XREAD STREAMS x y 3-3 0 ; XREAD COUNT 0 STREAMS x 0 ; XREAD COUNT -1 STREAMS x 0
        XREAD count 1 COUNT 2 streams x 0 ; XREAD STREAMS x x 1 2 ; XREAD STREAMS x string 0 0
        XREAD STREAMS string x x 0 ; XREAD STREAMS x string x 0 ; XREAD STREAMS x > ; XREAD STREAMS x -
        XREAD STREAMS x (1 ; XREAD STREAMS x x ; XREAD STREAMS x 1-1-1 ; XREAD STREAMS ; XREAD STREAMS x
        XREAD COUNT 1 STREAMS ; XREAD COUNT x STREAMS x 0 ; XREAD FOO 1 STREAMS x 0 ; XREAD FOO 1 2
        XREAD COUNT 1 COUNT ; XREAD GROUP g c STREAMS x 0 ; XREAD NOACK STREAMS x 0 ; XREAD BLOCK x STREAMS x 0
        XREAD BLOCK -1 STREAMS x 0 ; XREAD BLOCK 10 STREAMS x 0 ; XREAD BLOCK 0 STREAMS x 0
        XREAD BLOCK 1 STREAMS x $ ; XREAD BLOCK 1 COUNT 1 STREAMS none y 0 $ ; XREAD BLOCK 1 STREAMS string $
        XREAD STREAMS STREAMS 0 ; XREAD STREAMS x 18446744073709551615-18446744073709551615 ; XTRIM y MAXLEN 0
        XREAD STREAMS y 0 ; XREAD STREAMS y x 0 2
    """)


def test_xread_in_a_transaction_does_not_wait(both: Pair) -> None:
    script: list[tuple[bytes | str | int, ...]] = [
        ("MULTI",), ("XREAD", "BLOCK", 0, "STREAMS", "x", "$"), ("XREAD", "BLOCK", 0, "STREAMS", "x", 2), ("EXEC",)
    ]  # fmt: skip
    assert both[0].script(script) == both[1].script(script)


def test_xsetid(same: Same) -> None:
    same("""
        XSETID x 2 ; XSETID x 3-2 ; XSETID x 3-3 ; XSETID x 9-9 ; XADD x 9-9 f v ; XADD x 9-* f v ; XSETID none 1
        XSETID string 1 ; XSETID x - ; XSETID x x ; XSETID x 20 FOO ; XSETID x 20 ENTRIESADDED
        XSETID x 20 ENTRIESADDED x ; XSETID x 20 ENTRIESADDED -1 ; XSETID x 20 ENTRIESADDED 1
        XSETID x 20 MAXDELETEDID 21 ; XSETID x 20 MAXDELETEDID x ; XSETID x 20 ENTRIESADDED 100 MAXDELETEDID 15
        XSETID x ; XSETID x 21 entriesadded 200 ; XADD x 22-1 f v ; XTRIM x MAXLEN 0 ; XSETID x 16 ; XADD x 16-1 f v
        XSETID none 20 FOO ; XREAD STREAMS x 0 ; XRANGE x - +
    """)


KEYS = st.sampled_from(["a", "b"])
IDS = st.builds("{}-{}".format, st.integers(0, 5), st.integers(0, 3))
ANY_ID = st.one_of(IDS, st.integers(0, 6).map(str))
NUMBERS = st.integers(0, 12).map(str)
LIMITS: st.SearchStrategy[list[str]] = st.one_of(st.just([]), NUMBERS.map(lambda n: ["LIMIT", n]))
TRIMS = st.one_of(
    st.builds(lambda n: ["MAXLEN", n], NUMBERS), st.builds(lambda n: ["MINID", "=", n], ANY_ID),
    st.builds(lambda n, limit: ["MAXLEN", "~", n, *limit], NUMBERS, LIMITS),
    st.builds(lambda n, limit: ["MINID", "~", n, *limit], ANY_ID, LIMITS),
)  # fmt: skip
STARTS = st.one_of(ANY_ID, ANY_ID.map("({}".format), st.sampled_from("-+"))
COUNTS: st.SearchStrategy[list[str]] = st.one_of(st.just([]), st.integers(-1, 4).map(lambda n: ["COUNT", str(n)]))
COMMANDS = st.one_of(
    st.builds(lambda k, i: ["XADD", k, i, "f", "v"], KEYS, st.one_of(ANY_ID, st.integers(0, 6).map("{}-*".format))),
    st.builds(lambda k, i: ["XADD", k, i, "f", "v"], KEYS, st.integers(0, 6).map("{}-*".format)),
    st.builds(lambda k, t, i: ["XADD", k, *t, i, "f", "v"], KEYS, TRIMS, st.integers(0, 6).map("{}-*".format)),
    st.builds(lambda k, t: ["XTRIM", k, *t], KEYS, TRIMS),
    st.builds(lambda k, a, b, n: ["XRANGE", k, a, b, *n], KEYS, STARTS, STARTS, COUNTS),
    st.builds(lambda k, a, b, n: ["XREVRANGE", k, a, b, *n], KEYS, STARTS, STARTS, COUNTS),
    st.builds(lambda n, i, j: ["XREAD", *n, "STREAMS", "a", "b", i, j], COUNTS, ANY_ID, ANY_ID),
    st.builds(lambda k: ["XLEN", k], KEYS), st.builds(lambda k: ["DEL", k], KEYS),
    st.builds(lambda k, i: ["XSETID", k, i], KEYS, ANY_ID),
)  # fmt: skip


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=st.lists(COMMANDS, min_size=5, max_size=40))
def test_random_programs(both: Pair, program: list[list[str]]) -> None:
    ours, theirs = both
    for connection in both:
        connection.ask("DEL", "a", "b")
    for words in [*program, ["XRANGE", "a", "-", "+"], ["XRANGE", "b", "-", "+"]]:
        assert ours.ask(*words) == theirs.ask(*words), words
