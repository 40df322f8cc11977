"""XADD with IDMP and IDMPAUTO, XCFGSET: a producer that repeats itself adds nothing."""

from __future__ import annotations

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw


def test_a_repeated_id_gives_the_first_entrys(c: Raw) -> None:
    first = c("XADD", "s", "IDMP", "p", "1", "*", "amount", "100")
    assert c("XADD", "s", "IDMP", "p", "1", "*", "amount", "200") == first
    assert c("XRANGE", "s", "-", "+") == [[first, [b"amount", b"100"]]]
    assert c("XADD", "s", "IDMP", "q", "1", "*", "amount", "100") != first
    assert c("XADD", "s", "IDMP", "p", "2", "MAXLEN", 1, "*", "amount", "100") != first
    assert c("XLEN", "s") == 1
    assert c("XADD", "s", "IDMP", "p", "1", "MAXLEN", 0, "*", "amount", "1") == first  # and trims nothing
    assert c("XLEN", "s") == 1


def test_idmpauto_looks_at_the_content_in_any_order(c: Raw) -> None:
    first = c("XADD", "s", "IDMPAUTO", "p", "*", "a", "1", "b", "2")
    assert c("XADD", "s", "IDMPAUTO", "p", "*", "b", "2", "a", "1") == first
    others = [
        ("a", "2", "b", "1"), ("a", "1"), ("a", "1", "b", "2", "b", "2"), ("a", "1b", "", "2"), ("a1", "", "b", "2"),
    ]  # fmt: skip
    for pairs in others:
        assert c("XADD", "s", "IDMPAUTO", "p", "*", *pairs) != first
    assert c("XADD", "s", "IDMPAUTO", "q", "*", "a", "1", "b", "2") != first
    assert c("XLEN", "s") == 7


def test_options_come_in_any_order(c: Raw) -> None:
    assert c("XADD", "s", "NOMKSTREAM", "IDMP", "p", "1", "*", "f", "v") is None
    first = c("XADD", "s", "MAXLEN", "~", 100, "IDMP", "p", "1", "KEEPREF", "*", "f", "v")
    assert c("XADD", "s", "NOMKSTREAM", "IDMP", "p", "1", "*", "f", "v") == first
    strange = [b"IDMP", b"*", b"123-456", b"\0\xff", b"x" * 65536]
    made = {c("XADD", "s", "IDMP", "p", name, "*", "f", "v") for name in strange}
    assert len(made) == 5
    assert {c("XADD", "s", "IDMP", "p", name, "*", "f", "w") for name in strange} == made


def test_an_id_is_forgotten_after_its_time(hand: RunningServer, c: Raw) -> None:
    first = c("XADD", "s", "IDMP", "p", "1", "*", "f", "v")
    hand.advance(99_999)
    assert c("XADD", "s", "IDMP", "p", "1", "*", "f", "v") == first
    hand.advance(1)
    assert c("XADD", "s", "IDMP", "p", "1", "*", "f", "v") != first


def test_xcfgset_says_how_long_and_how_many(hand: RunningServer, c: Raw) -> None:
    first = c("XADD", "s", "IDMP", "p", "1", "*", "f", "v")
    assert c("XCFGSET", "s", "IDMP-DURATION", 100, "IDMP-MAXSIZE", 100) == b"OK"  # as it is
    assert c("XADD", "s", "IDMP", "p", "1", "*", "f", "v") == first
    assert c("XCFGSET", "s", "idmp-maxsize", 2) == b"OK"
    made = [c("XADD", "s", "IDMP", "p", name, "*", "f", "v") for name in (1, 2, 3)]
    assert made[0] != first  # another setting forgets
    assert c("XADD", "s", "IDMP", "p", 3, "*", "f", "v") == made[2]
    assert c("XADD", "s", "IDMP", "p", 1, "*", "f", "v") not in made
    assert c("XCFGSET", "s", "IDMP-DURATION", 1) == b"OK"
    newest = c("XADD", "s", "IDMP", "p", 1, "*", "f", "v")
    hand.advance(1000)
    assert c("XADD", "s", "IDMP", "p", 1, "*", "f", "v") != newest


def test_xinfo_tells_of_producers(c: Raw) -> None:
    def told(*full: str) -> list[int]:
        facts = c("XINFO", "STREAM", "s", *full)
        pairs = dict(zip(facts[::2], facts[1::2], strict=True))
        at = facts.index(b"recorded-first-entry-id") + 2
        assert facts[at : at + 12 : 2] == [
            b"idmp-duration", b"idmp-maxsize", b"pids-tracked", b"iids-tracked", b"iids-added", b"iids-duplicates",
        ]  # fmt: skip
        return [pairs[name] for name in facts[at : at + 12 : 2]]

    c("XADD", "s", "*", "f", "v")
    assert told() == told("FULL") == [100, 100, 0, 0, 0, 0]
    for producer, name in (("p", "1"), ("p", "1"), ("p", "2"), ("q", "1"), ("q", "1")):
        c("XADD", "s", "IDMP", producer, name, "*", "f", "v")
    assert told() == told("FULL") == [100, 100, 2, 3, 3, 2]
    c("XCFGSET", "s", "IDMP-DURATION", 7, "IDMP-MAXSIZE", 9)
    assert told() == told("FULL") == [7, 9, 0, 0, 3, 2]


def test_the_server_has_defaults(hand: RunningServer, c: Raw) -> None:
    assert c("CONFIG", "SET", "stream-idmp-duration", 1, "stream-idmp-maxsize", 2) == b"OK"
    made = [c("XADD", "s", "IDMP", "p", name, "*", "f", "v") for name in range(3)]
    assert c("XADD", "s", "IDMP", "p", 1, "*", "f", "v") == made[1]
    assert c("XADD", "s", "IDMP", "p", 0, "*", "f", "v") not in made
    hand.advance(1000)
    assert c("XADD", "s", "IDMP", "p", 2, "*", "f", "v") not in made
    assert c("CONFIG", "SET", "stream-idmp-duration", 0).startswith("ERR CONFIG SET failed")


def test_what_producers_added_survives_restarts(c: Raw) -> None:
    c("XADD", "s", "*", "f", "v")
    c("XCFGSET", "s", "IDMP-MAXSIZE", 3)
    made = [c("XADD", "s", "IDMP", "p", name, "*", "f", "v") for name in range(3)]
    for _ in range(3):
        digest = c("DEBUG", "DIGEST")
        assert c("DEBUG", "RELOAD") == b"OK"
        assert [c("XADD", "s", "IDMP", "p", name, "*", "f", "v") for name in range(3)] == made
        assert c("DEBUG", "DIGEST") == digest
        c("SAVE")
    c("XADD", "s", "IDMP", "p", 3, "*", "f", "v")
    assert c("XADD", "s", "IDMP", "p", 0, "*", "f", "v") not in made


def test_the_errors_of_idmp(c: Raw) -> None:
    add = "XADD", "s"
    assert c(*add, "IDMP", "p", "*", "f", "v") == "ERR Invalid stream ID specified as stream command argument"
    only = "ERR IDMP/IDMPAUTO can be used only with auto-generated IDs"
    assert c(*add, "IDMP", "p", "1", "1-1", "f", "v") == c(*add, "IDMPAUTO", "p", "1-*", "f", "v") == only
    twice = "ERR IDMP/IDMPAUTO specified multiple times"
    assert c(*add, "IDMP", "p", "1", "IDMP", "q", "1", "*", "f", "v") == twice
    assert c(*add, "IDMPAUTO", "p", "IDMP", "q", "1", "*", "f", "v") == twice
    assert c(*add, "IDMP", "", "1", "*", "f", "v") == "ERR IDMP requires a non-empty producer ID"
    assert c(*add, "IDMP", "p", "", "*", "f", "v") == "ERR IDMP requires a non-empty idempotent ID"
    assert c(*add, "IDMPAUTO", "", "*", "f", "v") == "ERR IDMPAUTO requires a non-empty producer ID"
    assert c("EXISTS", "s") == 0


def test_the_errors_of_xcfgset(c: Raw) -> None:
    assert c("XCFGSET", "s", "IDMP-DURATION", 5) == "ERR no such key"
    c("XADD", "s", "*", "f", "v")
    assert c("XCFGSET", "s") == "ERR At least one parameter must be specified"
    for words in (["IDMP-DURATION"], ["IDMP-MAXSIZE"], ["INVALID"], ["INVALID", 1]):
        assert c("XCFGSET", "s", *words) == "ERR syntax error"
    for text in ("A", "*", "3.14", "000", "120-5"):
        assert c("XCFGSET", "s", "IDMP-MAXSIZE", text) == "ERR value is not an integer or out of range"
    for seconds in (0, -100, 86_401):
        assert c("XCFGSET", "s", "IDMP-DURATION", seconds) == "ERR IDMP-DURATION must be between 1 and 86400"
    for count in (0, -50, 10_001):
        assert c("XCFGSET", "s", "IDMP-MAXSIZE", count) == "ERR IDMP-MAXSIZE must be between 1 and 10000"
    c("SET", "string", "v")
    assert c("XCFGSET", "string", "IDMP-DURATION", 5).startswith("WRONGTYPE")
