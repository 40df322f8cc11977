"""Entries deleted one by one: XDEL, XDELEX, XACKDEL; what readers, groups and restarts see of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw


def fill(c: Raw, *ids: str) -> None:
    for entry_id in ids or ("1-0", "2-0", "3-0", "4-0", "5-0"):
        c("XADD", "s", entry_id, "f", entry_id)


def ids(reply: Any) -> list[bytes]:
    return [entry[0] for entry in reply]


def at_once(c: Raw, *words: str | int) -> Any:
    """The reply of a command that must not wait."""
    c("MULTI")
    c(*words)
    return c("EXEC")[0]


def read_all(c: Raw, *groups: str) -> None:
    for group in groups:
        c("TREAD", "s", "0", 100, "GROUP", group, 0, "RETRY", 60_000, 0)


def pending(c: Raw, group: str) -> list[bytes]:
    return ids(c("TPENDING", "s", group, "-", "+", 100))


def test_the_key_is_looked_at_before_the_ids(c: Raw) -> None:
    c("SET", "str", "v")
    assert c("XDEL", "s", "x") == 0
    assert c("XDEL", "str", "x").startswith("WRONGTYPE")
    fill(c)
    assert c("XDEL", "s", "1-0", "x").startswith("ERR Invalid stream ID")
    assert c("XLEN", "s") == 5


def test_a_deleted_entry_is_not_there_any_more(c: Raw) -> None:
    fill(c)
    assert c("XDEL", "s", "2-0", "4-0", "9-9", "2-0") == 2
    assert c("XDEL", "s", "2-0") == 0
    assert c("XLEN", "s") == c("TLEN", "s") == 3
    assert ids(c("XRANGE", "s", "-", "+")) == [b"1-0", b"3-0", b"5-0"]
    assert ids(c("XREVRANGE", "s", "+", "-", "COUNT", 2)) == [b"5-0", b"3-0"]
    assert ids(c("TRANGE", "s", "2", "+", "COUNT", 1)) == [b"3.0"]
    assert ids(c("TREVRANGE", "s", "+", "-")) == [b"5.0", b"3.0", b"1.0"]
    assert ids(c("TREAD", "s", "1", 2)) == [b"3.0", b"5.0"]  # and no null
    assert c("TCOUNT", "s", "2", "4") == 1
    assert c("TSEEK", "s", "0", 2) == b"3.0"


@pytest.mark.parametrize("gone", [("1-0",), ("5-0",), ("1-0", "2-0"), ("4-0", "5-0"), ("1-0", "5-0")])
def test_the_ends_of_a_stream_can_be_deleted(c: Raw, gone: tuple[str, ...]) -> None:
    fill(c)
    assert c("XDEL", "s", *gone) == len(gone)
    left = [entry_id for entry_id in ("1-0", "2-0", "3-0", "4-0", "5-0") if entry_id not in gone]
    assert ids(c("XRANGE", "s", "-", "+")) == [entry_id.encode() for entry_id in left]
    assert ids(c("TREAD", "s", "0.1", 10)) == [entry_id.replace("-", ".").encode() for entry_id in left]
    assert c("XADD", "s", "5-*", "f", "v") == b"5-1"  # the last ID is not given out again


def test_an_emptied_stream_stays(c: Raw) -> None:
    fill(c, "1-0", "2-0")
    assert c("XDEL", "s", "1-0", "2-0") == 2
    assert c("EXISTS", "s") == 1
    assert c("XLEN", "s") == 0
    assert c("XRANGE", "s", "-", "+") == []
    assert c("XADD", "s", "2-0", "f", "v").startswith("ERR The ID specified in XADD is equal or smaller")


def test_tinfo_tells_evicted_from_deleted(c: Raw) -> None:
    fill(c)
    c("XDEL", "s", "2-0")
    c("XTRIM", "s", "MAXLEN", 2)
    info = c("TINFO", "s")
    facts = dict(zip(info[::2], info[1::2], strict=True))
    assert (facts[b"length"], facts[b"evicted"], facts[b"deleted"], facts[b"entries-added"]) == (2, 2, 1, 5)
    assert facts[b"evicted-to"] == b"3.0"


def test_a_reader_waits_although_a_deleted_entry_was_newer(connect: Callable[..., Raw]) -> None:
    reader, writer = connect(), connect()
    fill(writer, "1-0", "2-0")
    writer("XDEL", "s", "2-0")
    assert at_once(writer, "TWAIT", 0, "s", "1.0") is None
    reader.send("TREAD", "s", "1.0", 10, "BLOCK", 0)
    writer("PING")
    assert reader.nothing_yet()
    writer("XADD", "s", "3-0", "f", "v")
    assert ids(reader.read()) == [b"3.0"]


def test_a_group_skips_what_was_deleted_before_it_came(c: Raw) -> None:
    fill(c)
    assert ids(c("TREAD", "s", "0", 2, "GROUP", "g", 0)) == [b"1.0", b"2.0"]
    c("XDEL", "s", "3-0", "1-0")
    assert ids(c("TREAD", "s", "0", 1, "GROUP", "g", 0)) == [b"4.0"]
    c("XDEL", "s", "5-0")
    assert c("TREAD", "s", "0", 1, "GROUP", "g", 0) == []
    assert at_once(c, "TWAIT", 0, "GROUP", "g", "s") is None


def test_a_pending_message_that_was_deleted_becomes_a_null(hand: RunningServer, c: Raw) -> None:
    fill(c, "1-0", "2-0")
    c("TREAD", "s", "0", 10, "GROUP", "g", 0, "RETRY", 1000, 0)
    c("XDEL", "s", "1-0")
    hand.advance(1000)
    reply = c("TREAD", "s", "0", 10, "GROUP", "g", 0, "RETRY", 1000, 0)
    assert [entry and entry[0] for entry in reply] == [None, b"2.0"]
    assert pending(c, "g") == [b"2.0"]


def test_xdel_wants_ids_and_a_stream(c: Raw) -> None:
    c("SET", "string", "v")
    fill(c, "1-0")
    assert c("XDEL", "string", "1-0").startswith("WRONGTYPE")
    assert c("XDEL", "s", "1-0", "x") == "ERR Invalid stream ID specified as stream command argument"
    assert c("XLEN", "s") == 1
    assert c("XDEL", "none", "1-0") == 0
    assert c("XDEL", "s") == "ERR wrong number of arguments for 'xdel' command"


# -- XDELEX, XACKDEL -----------------------------------------------------------------------------------------------
def test_xdelex_keeps_references_unless_told(c: Raw) -> None:
    fill(c, "1-0", "2-0", "3-0")
    read_all(c, "g", "h")
    assert c("XDELEX", "s", "IDS", 3, "1-0", "7-0", "1-0") == [1, -1, -1]
    assert c("XDELEX", "s", "KEEPREF", "IDS", 1, "2-0") == [1]
    assert pending(c, "g") == pending(c, "h") == [b"1.0", b"2.0", b"3.0"]
    assert c("XDELEX", "s", "DELREF", "IDS", 3, "1-0", "2-0", "3-0") == [-1, -1, 1]
    assert pending(c, "g") == pending(c, "h") == []


def test_xdelex_deletes_what_all_groups_have_acknowledged(c: Raw) -> None:
    fill(c, "1-0", "2-0", "3-0")
    read_all(c, "g", "h")
    c("XADD", "s", "4-0", "f", "v")  # which nobody has read
    c("TACK", "s", "g", "1.0", "2.0")
    c("TACK", "s", "h", "1.0")
    assert c("XDELEX", "s", "IDS", 5, "1-0", "2-0", "3-0", "4-0", "1-0", "ACKED") == [1, 2, 2, 2, -1]
    assert c("XDELEX", "s", "IDS", 2, "5-0", "1-1", "ACKED") == [2, -1]  # no group has read up to 5-0
    assert ids(c("XRANGE", "s", "-", "+")) == [b"2-0", b"3-0", b"4-0"]
    c("TGROUP", "DESTROY", "s", "g")
    c("TGROUP", "DESTROY", "s", "h")
    assert c("XDELEX", "s", "ACKED", "IDS", 2, "4-0", "5-0") == [1, -1]


def test_xackdel_acknowledges_and_deletes(c: Raw) -> None:
    fill(c, "1-0", "2-0", "3-0")
    read_all(c, "g", "h")
    assert c("XACKDEL", "s", "g", "IDS", 3, "1-0", "9-0", "1-0") == [1, -1, -1]
    assert pending(c, "g") == [b"2.0", b"3.0"]
    assert pending(c, "h") == [b"1.0", b"2.0", b"3.0"]
    assert c("XACKDEL", "s", "g", "ACKED", "IDS", 1, "2-0") == [2]
    assert c("XLEN", "s") == 2
    assert c("XACKDEL", "s", "h", "ACKED", "IDS", 1, "2-0") == [1]
    assert c("XACKDEL", "s", "g", "DELREF", "IDS", 1, "3-0") == [1]
    assert pending(c, "g") == []
    assert pending(c, "h") == [b"1.0"]
    assert c("XLEN", "s") == 0
    assert c("XACKDEL", "s", "none", "IDS", 2, "1-0", "2-0") == [-1, -1]
    assert c("XACKDEL", "none", "g", "IDS", 1, "1-0") == [-1]


@pytest.mark.parametrize("command", [("XDELEX", "s"), ("XACKDEL", "s", "g")], ids=["XDELEX", "XACKDEL"])
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("IDS", "abc", "1-1"), "ERR Number of IDs must be a positive integer"),
        (("IDS", 0, "1-1"), "ERR Number of IDs must be a positive integer"),
        (("IDS", -5, "1-1"), "ERR Number of IDs must be a positive integer"),
        (("IDS", 3, "1-1", "2-2"), "ERR The `numids` parameter must match the number of arguments"),
        (("IDS", 1, "1-1", "2-2"), "ERR syntax error"),
        (("KEEPREF", "DELREF", "IDS", 1, "1-1"), "ERR syntax error"),
        (("ACKED", "ACKED", "IDS", 1, "1-1"), "ERR syntax error"),
        (("IDS", 1, "1-1", "IDS", 1, "1-1"), "ERR syntax error"),
        (("KEEPREF", "DELREF", "ACKED"), "ERR syntax error"),
        (("IDS", 1, "x"), "ERR Invalid stream ID specified as stream command argument"),
    ],
    ids=range(10),
)  # fmt: skip
def test_the_ids_must_be_counted(
    c: Raw, command: tuple[str, ...], words: tuple[str | int, ...], error: str
) -> None:  # fmt: skip
    fill(c, "1-1")
    c("XGROUP", "CREATE", "s", "g", 0)
    assert c(*command, *words) == error
    assert c("XLEN", "s") == 1


@pytest.mark.parametrize("words", [("XDELEX", "none"), ("XACKDEL", "none", "g"), ("XACKDEL", "s", "none")], ids=str)
def test_ids_are_read_only_where_something_can_be_deleted(c: Raw, words: tuple[str, ...]) -> None:
    """The rest of the command is read in any case, before which comes the type of the key."""
    fill(c, "1-1")
    assert c(*words, "IDS", 3, "x", "", "1-1-1") == [-1, -1, -1]
    assert c(*words, "ACKED", "IDS", 2000, *["x"] * 2000) == [-1] * 2000
    assert c(*words, "IDS", 3, "x") == "ERR The `numids` parameter must match the number of arguments"
    assert c(*words, "IDS", 1, "x", "WHAT") == "ERR syntax error"
    assert (c("XLEN", "s"), c("EXISTS", "none")) == (1, 0)
    c("SET", "str", "v")
    assert c(words[0], "str", *words[2:], "WHAT", "IDS", 1, "x").startswith("WRONGTYPE")


# -- many entries, nodes, restarts ---------------------------------------------------------------------------------
def test_nodes_without_living_entries_are_gone(c: Raw) -> None:
    c("CONFIG", "SET", "stream-node-max-entries", 10)
    fill(c, *[f"{number}-0" for number in range(1, 101)])
    assert c("XDEL", "s", *[f"{number}-0" for number in range(11, 91)]) == 80
    info = c("TINFO", "s")
    facts = dict(zip(info[::2], info[1::2], strict=True))
    assert facts[b"nodes"] <= 3
    assert len(c("XRANGE", "s", "-", "+")) == c("XLEN", "s") == 20
    assert ids(c("XRANGE", "s", "9", "+", "COUNT", 4)) == [b"9-0", b"10-0", b"91-0", b"92-0"]


def test_deleted_entries_stay_deleted_after_a_restart(hand: RunningServer, c: Raw) -> None:
    c("CONFIG", "SET", "stream-node-max-entries", 10)
    fill(c, *[f"{number}-0" for number in range(1, 101)])
    c("XDEL", "s", *[f"{number}-0" for number in range(1, 101, 3)])
    c("SAVE")
    c("XDEL", "s", *[f"{number}-0" for number in range(30, 70)])
    expected, digest = c("XRANGE", "s", "-", "+"), c("DEBUG", "DIGEST")
    for _ in range(3):  # from the log; from the store, with thinned nodes; once more
        assert c("DEBUG", "RELOAD") == b"OK"
        assert c("XRANGE", "s", "-", "+") == expected
        assert c("DEBUG", "DIGEST") == digest
        c("SAVE")
    assert c("XDEL", "s", *[f"{number}-0" for number in range(1, 101)]) == len(expected)
    c("SAVE")
    c("DEBUG", "RELOAD")
    assert c("XLEN", "s") == 0
    assert c("XADD", "s", "100-*", "f", "v") == b"100-1"


def test_a_transaction_that_watches_fails_after_a_deletion(connect: Callable[..., Raw]) -> None:
    one, other = connect(), connect()
    fill(one)
    one("WATCH", "s")
    other("XDEL", "s", "3-0")
    one("MULTI")
    one("XLEN", "s")
    assert one("EXEC") is None
