"""TDELAY: entries that join their stream when they are due. Numbers are docs/semantics.md's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from respserver.testing import RunningServer
from tests.waiting import eventually
from tests.wire.rawclient import Raw

HOUR = 3_600_000


def now(hand: RunningServer) -> int:
    return hand.call(hand.server.clock.now)


def entries(c: Raw, key: str = "s") -> list[list[bytes]]:
    """Fields and values of the stream's entries."""
    return [entry[1:] for entry in c("TRANGE", key, "-", "+")]


def listed(c: Raw, *options: Any, key: str = "s") -> list[list[Any]]:
    cursor, found = c("TDELAY", key, "LIST", *options)
    assert cursor == b"0"
    return found  # type: ignore[no-any-return]


def test_an_entry_joins_when_it_is_due_and_not_earlier(hand: RunningServer, c: Raw) -> None:
    token = c("TDELAY", "s", "IN", 1000, "city", "Oslo", "n", 7)
    assert token.replace(b".", b"").isdigit()
    hand.advance(999)
    assert (c("TLEN", "s"), c("XRANGE", "s", "-", "+"), c("TDELAY", "s", "COUNT")) == (0, [], 1)
    hand.advance(1)
    assert c("TRANGE", "s", "-", "+") == [[b"%d.0" % now(hand), b"city", b"Oslo", b"n", b"7"]]
    assert (c("TDELAY", "s", "COUNT"), listed(c)) == (0, [])


def test_at_a_time_and_at_once(hand: RunningServer, c: Raw) -> None:
    c("TDELAY", "s", "at", now(hand) + 500, "f", "later")
    c("TDELAY", "s", "AT", 5, "f", "past")
    c("TDELAY", "s", "in", 0, "f", "at once")
    hand.advance(1)
    assert {e[1] for e in entries(c)} == {b"past", b"at once"}
    hand.advance(499)
    assert entries(c)[2:] == [[b"f", b"later"]]


def test_entries_join_in_due_order_and_ids_ascend(hand: RunningServer, c: Raw) -> None:
    start = now(hand)
    for number, ms in enumerate((30, 10, 20, 10, 0)):
        if number % 2:
            c("TDELAY", "s", "IN", ms, "n", number)
        else:
            c("TDELAY", "s", "AT", start + ms, "n", number)
    c("TAPPEND", "s", "n", "first")
    hand.advance(100)
    found = c("TRANGE", "s", "-", "+")
    assert [entry[2] for entry in found] == [b"first", b"4", b"1", b"3", b"2", b"0"]
    assert [entry[0] for entry in found[1:]] == [b"%d.%d" % (start + 100, seq) for seq in range(5)]


def test_thousands_are_delivered_exactly_once(hand: RunningServer, c: Raw) -> None:
    for number in range(3000):
        c.send("TDELAY", f"s{number % 7}", "IN", number % 90, "n", number)
    for _ in range(3000):
        c.read()
    hand.advance(100)
    found = sorted(int(e[1]) for key in range(7) for e in entries(c, f"s{key}"))
    assert found == list(range(3000))
    assert b"delayed_entries:0\r\ndelayed_delivered:3000\r\n" in c("INFO", "streams")


@pytest.mark.parametrize("when", ["IN", "AT"])
def test_a_token_creates_one_entry(hand: RunningServer, c: Raw, when: str) -> None:
    def send() -> Any:
        return c("TDELAY", "s", when, 100 if when == "IN" else now(hand) + 100, "ID", "mail-7", "f", "v")

    assert [send(), send()] == [b"mail-7"] * 2
    assert c("TDELAY", "s", "COUNT") == 1
    hand.advance(200)
    assert (send(), c("TDELAY", "s", "COUNT"), len(entries(c))) == (b"mail-7", 0, 1)
    c("DEBUG", "RELOAD")
    assert (send(), c("TDELAY", "s", "COUNT")) == (b"mail-7", 0)
    hand.advance(100_001)  # stream-idmp-duration: it is forgotten
    assert (send(), c("TDELAY", "s", "COUNT")) == (b"mail-7", 1)


def test_tokens_are_remembered_as_long_as_the_ids_of_producers(hand: RunningServer, c: Raw) -> None:
    c("XADD", "s", "*", "f", "v")
    c("XCFGSET", "s", "IDMP-DURATION", 2)
    c("TDELAY", "s", "IN", 1, "ID", "t", "f", "v")
    hand.advance(1900)
    c("TDELAY", "s", "IN", 1, "ID", "t", "f", "v")
    assert c("TDELAY", "s", "COUNT") == 0
    hand.advance(200)
    c("TDELAY", "s", "IN", 1, "ID", "t", "f", "v")
    assert c("TDELAY", "s", "COUNT") == 1


def test_a_cancelled_entry_never_joins_and_its_token_is_free(hand: RunningServer, c: Raw) -> None:
    token = c("TDELAY", "s", "IN", 100, "f", "a")
    c("TDELAY", "s", "IN", 100, "ID", "t", "f", "b")
    assert [c("TDELAY", "s", "CANCEL", each) for each in (token, token, "t", "x")] == [1, 0, 1, 0]
    assert c("TDELAY", "nothing", "CANCEL", "t") == 0
    c("TDELAY", "s", "IN", 50, "ID", "t", "f", "again")
    hand.advance(200)
    assert entries(c) == [[b"f", b"again"]]
    assert c("TDELAY", "s", "CANCEL", "t") == 0  # too late


def test_an_entry_is_replaced_in_one_step(hand: RunningServer, c: Raw) -> None:
    c("TDELAY", "s", "IN", 100, "ID", "t", "f", "old")
    c("MULTI")
    c("TDELAY", "s", "CANCEL", "t")
    c("TDELAY", "s", "IN", 300, "ID", "t", "f", "new")
    assert c("EXEC") == [1, b"t"]
    hand.advance(200)
    assert entries(c) == []
    hand.advance(100)
    assert entries(c) == [[b"f", b"new"]]


def test_a_list_is_in_due_order_and_in_pages(hand: RunningServer, c: Raw) -> None:
    start = now(hand)
    for number in range(50):
        ms = number * 37 % 50
        when = ("IN", ms + 1000) if number % 3 else ("AT", start + ms + 1000)
        c("TDELAY", "s", *when, "ID", f"t{number}", "n", number)
    whole = listed(c)
    assert [due - start for _, due, *_ in whole] == list(range(1000, 1050))
    assert sorted(row[0] for row in whole) == sorted(b"t%d" % number for number in range(50))
    assert whole[3] == [whole[3][0], start + 1003, b"n", whole[3][0][1:]]
    found: list[Any] = []
    cursor = b"0"
    while True:
        cursor, rows = c("TDELAY", "s", "LIST", cursor, "COUNT", 7)
        found += rows
        assert len(rows) <= 7
        if cursor == b"0":
            break
        c("TDELAY", "s", "CANCEL", rows[0][0])  # cancelled entries do not disturb the pages
    assert found == whole
    assert len(listed(c, "COUNT", 1000)) == 50 - 7


def test_entries_of_one_due_time_are_listed_as_they_will_join(hand: RunningServer, c: Raw) -> None:
    due = now(hand) + 100
    for number, when in enumerate((("AT", due), ("IN", 100), ("AT", due), ("IN", 100))):
        c("TDELAY", "s", *when, "n", number)
    found, cursor = [], b"0"
    for _ in range(4):
        cursor, rows = c("TDELAY", "s", "LIST", cursor, "COUNT", 1)
        found += [row[1:] for row in rows]
    assert found == [[due, b"n", b"%d" % number] for number in range(4)]
    assert cursor == b"0"
    hand.advance(100)
    assert entries(c) == [[b"n", b"%d" % number] for number in range(4)]


def test_a_page_of_large_entries_is_bounded(hand: RunningServer, c: Raw) -> None:
    for number in range(5):
        c("TDELAY", "s", "IN", 1000 + number, "v", "x" * 600_000)
    cursor, rows = c("TDELAY", "s", "LIST")
    assert len(rows) == 2
    assert len(c("TDELAY", "s", "LIST", cursor)[1]) == 2
    hand.advance(2000)
    assert [len(entry[1]) for entry in entries(c)] == [600_000] * 5


ERRORS = {
    ("IN", -1, "f", "v"): "ERR value is out of range, must be positive",
    ("IN", "soon", "f", "v"): "ERR value is not an integer or out of range",
    ("IN", 1 << 62, "f", "v"): "ERR value is not an integer or out of range",
    ("AT", -1, "f", "v"): "ERR value is out of range, must be positive",
    ("AT", 1 << 62, "f", "v"): "ERR value is not an integer or out of range",
    ("IN", 5, "f"): "ERR wrong number of arguments for 'tdelay' command",
    ("IN", 5): "ERR wrong number of arguments for 'tdelay' command",
    ("IN", 5, "f", "v", "g"): "ERR wrong number of arguments for 'tdelay' command",
    ("IN", 5, "ID", "t"): "ERR wrong number of arguments for 'tdelay' command",
    ("IN", 5, "ID", "", "f", "v"): "ERR the token of a delayed entry has 1 to 256 bytes",
    ("IN", 5, "ID", "t" * 257, "f", "v"): "ERR the token of a delayed entry has 1 to 256 bytes",
    ("SOON", 5, "f", "v"): "ERR syntax error",
    ("CANCEL",): "ERR syntax error",
    ("CANCEL", "a", "b"): "ERR syntax error",
    ("COUNT", 5): "ERR syntax error",
    ("LIST", "0", "COUNT"): "ERR syntax error",
    ("LIST", "0", "LIMIT", 5): "ERR syntax error",
    ("LIST", "x"): "ERR invalid cursor: use 0, or the cursor that LIST has returned",
    ("LIST", f"{1 << 63}-0-0-0"): "ERR invalid cursor: use 0, or the cursor that LIST has returned",
    ("LIST", "COUNT", 0): "ERR COUNT must be 1 to 1000: continue with the cursor that LIST returns",
    ("LIST", "COUNT", 1001): "ERR COUNT must be 1 to 1000: continue with the cursor that LIST returns",
}


@pytest.mark.parametrize("words", ERRORS, ids=lambda words: " ".join(map(str, words))[:20])
def test_errors(one_server: RunningServer, words: tuple[str | int, ...]) -> None:
    with Raw(one_server.port) as c:
        assert str(c("TDELAY", "errors", *words)) == ERRORS[words]
        assert c("EXISTS", "errors") == 0


def test_a_key_with_only_delayed_entries_is_an_empty_stream(hand: RunningServer, c: Raw) -> None:
    c("TDELAY", "s", "IN", 100, "ID", "t", "f", "v")
    assert (c("EXISTS", "s"), c("TYPE", "s"), c("TLEN", "s"), c("KEYS", "*")) == (1, b"stream", 0, [b"s"])
    info = c("TINFO", "s")
    assert (info[info.index(b"delayed") + 1], info[info.index(b"length") + 1]) == (1, 0)
    assert c("TDELAY", "s", "CANCEL", "t") == 1
    c("DEBUG", "RELOAD")
    assert (c("EXISTS", "s"), c("TDELAY", "s", "COUNT")) == (1, 0)
    c("SET", "text", "v")
    for words in (("IN", 5, "f", "v"), ("COUNT",), ("LIST",), ("CANCEL", "t")):
        assert str(c("TDELAY", "text", *words)).startswith("WRONGTYPE")


def test_a_stream_that_began_with_a_group_remains_without_it(hand: RunningServer, c: Raw) -> None:
    c("TREAD", "s", "", 0, "GROUP", "g", 500)
    c("TDELAY", "s", "IN", 1000, "f", "v")
    hand.advance(700)
    assert (c("TGROUP", "LIST", "s"), c("EXISTS", "s")) == ([], 1)
    hand.advance(300)
    assert entries(c) == [[b"f", b"v"]]


def test_del_expiry_set_and_flush_delete_delayed_entries(hand: RunningServer, c: Raw) -> None:
    for remove in (("DEL", "s"), ("UNLINK", "s"), ("PEXPIRE", "s", 20), ("SET", "s", "v"), ("FLUSHALL",)):
        c("TDELAY", "s", "IN", 50, "f", "v")
        c(*remove)
        hand.advance(100)
        assert c("TYPE", "s") == (b"string" if remove[0] == "SET" else b"none"), remove
        assert b"delayed_entries:0\r\n" in c("INFO", "streams")
        c("DEL", "s")


def test_rename_moves_delayed_entries(hand: RunningServer, c: Raw) -> None:
    c("TDELAY", "s", "IN", 50, "ID", "t", "f", "moved")
    c("TDELAY", "other", "IN", 50, "f", "replaced")
    c("RENAME", "s", "other")
    c("TDELAY", "s", "IN", 50, "ID", "t", "f", "new")
    assert [row[2:] for row in listed(c, key="other")] == [[b"f", b"moved"]]
    assert str(c("COPY", "other", "third")).startswith("ERR COPY copies strings")
    hand.advance(50)
    assert (entries(c, "other"), entries(c)) == ([[b"f", b"moved"]], [[b"f", b"new"]])


def test_blocked_readers_and_groups_receive_delivered_entries(
    hand: RunningServer, connect: Callable[..., Raw], c: Raw
) -> None:
    c("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    plain, group, waiter = connect(), connect(), connect()
    plain.send("TREAD", "s", "", 10, "BLOCK", 0)
    group.send("XREADGROUP", "GROUP", "g", "me", "BLOCK", 0, "STREAMS", "s", ">")
    waiter.send("TWAIT", 0, "s", "0")
    eventually(lambda: b"blocked_clients:3\r\n" in c("INFO", "clients"))
    c("TDELAY", "s", "IN", 100, "f", "v")
    hand.advance(100)
    assert [entry[1:] for entry in plain.read()] == [[b"f", b"v"]]
    assert group.read()[0][1][0][1] == [b"f", b"v"]
    assert waiter.read() == [b"s"]


def test_events_watches_and_policies(hand: RunningServer, connect: Callable[..., Raw], c: Raw) -> None:
    c("CONFIG", "SET", "notify-keyspace-events", "KEA")
    c("TCFG", "s", "RETAIN", "COUNT", 3, "EXACT")
    listener = connect()
    listener("SUBSCRIBE", "__keyspace@0__:s")
    c("WATCH", "s")
    for number in range(5):
        c("TDELAY", "s", "IN", 100, "n", number)
    token = c("TDELAY", "s", "IN", 100, "n", "x")
    c("TDELAY", "s", "CANCEL", token)
    hand.advance(200)
    assert [entry[1] for entry in entries(c)] == [b"2", b"3", b"4"]
    assert [listener.read()[2] for _ in range(13)] == (
        [b"tdelay"] * 6 + [b"tdelay-cancel"] + [b"tappend"] * 5 + [b"tevict"]
    )
    c("MULTI")
    assert c("EXEC") is None


def test_a_delivery_waits_while_writes_are_refused_and_needs_no_memory(hand: RunningServer, c: Raw) -> None:
    c("TDELAY", "s", "AT", now(hand) + 100, "f", "at")
    c("TDELAY", "s", "IN", 100, "f", "in")
    c("CONFIG", "SET", "min-replicas-to-write", 1)
    assert str(c("TDELAY", "s", "IN", 100, "f", "v")).startswith("NOREPLICAS")
    hand.advance(1000)
    assert entries(c) == []
    assert c("TDELAY", "s", "COUNT") == 2  # it reads
    c("CONFIG", "SET", "min-replicas-to-write", 0)
    hand.advance(10)
    assert entries(c) == [[b"f", b"at"]]
    c("CONFIG", "SET", "maxmemory", 1)
    assert str(c("TDELAY", "s", "IN", 100, "f", "v")).startswith("OOM")
    hand.advance(100)
    assert entries(c) == [[b"f", b"at"], [b"f", b"in"]]
    assert c("TDELAY", "s", "CANCEL", "x") == 0  # it adds nothing


def test_permissions(hand: RunningServer, connect: Callable[..., Raw], c: Raw) -> None:
    c("ACL", "SETUSER", "writer", "on", "nopass", "+@all", "%W~s")
    c("ACL", "SETUSER", "reader", "on", "nopass", "+@all", "%R~s")
    writer, reader = connect(), connect()
    writer("AUTH", "writer", "")
    reader("AUTH", "reader", "")
    assert writer("TDELAY", "s", "IN", 100, "ID", "t", "f", "v") == b"t"
    assert str(writer("TDELAY", "s", "LIST")).startswith("NOPERM")
    assert str(writer("TDELAY", "other", "IN", 100, "f", "v")).startswith("NOPERM")
    assert str(reader("TDELAY", "s", "IN", 100, "f", "v")).startswith("NOPERM")
    assert writer("TDELAY", "s", "CANCEL", "t") == 1


def test_a_stream_without_ids_keeps_its_delayed_entries(hand: RunningServer, c: Raw) -> None:
    c("XADD", "s", f"{(1 << 64) - 1}-{(1 << 64) - 1}", "f", "last")
    c("TDELAY", "s", "IN", 100, "ID", "t", "f", "v")
    hand.advance(5000)
    assert (c("TLEN", "s"), c("TDELAY", "s", "COUNT")) == (1, 1)
    c("RENAME", "s", "full")
    assert c("TDELAY", "full", "CANCEL", "t") == 1


def test_a_delay_outlives_the_retention_of_its_stream(hand: RunningServer, c: Raw) -> None:
    c("TCFG", "s", "RETAIN", "AGE", 1000, "EXACT")
    c("TDELAY", "s", "IN", HOUR, "f", "v")
    c("TAPPEND", "s", "f", "old")
    hand.advance(HOUR)
    assert entries(c) == [[b"f", b"v"]]
    c("TAPPEV", "s", "COUNT", 0)
    c("TDELAY", "s", "IN", 10, "f", "w")
    c("XTRIM", "s", "MAXLEN", 0)
    hand.advance(10)
    assert entries(c) == [[b"f", b"w"]]


def test_a_reload_and_a_checkpoint_change_nothing(hand: RunningServer, c: Raw) -> None:
    for number in range(2000):
        c.send("TDELAY", "s", "IN" if number % 2 else "AT", number + (0 if number % 2 else now(hand)), "n", number)
    for _ in range(2000):
        c.read()
    for _ in range(4):
        hand.advance(400)
        before = c("DEBUG", "DIGEST"), c("TDELAY", "s", "LIST", "COUNT", 1000)
        c("SAVE")
        c("DEBUG", "RELOAD", "NOSAVE")
        assert (c("DEBUG", "DIGEST"), c("TDELAY", "s", "LIST", "COUNT", 1000)) == before
    hand.advance(400)
    assert [int(e[1]) for e in entries(c)] == list(range(2000))


def test_memory_counts_the_index_and_returns(hand: RunningServer, c: Raw) -> None:
    def used() -> int:
        hand.advance(100)
        return int(c("INFO", "memory").split(b"used_memory:")[1].split(b"\r\n")[0])

    c("TAPPEND", "s", "f", "v")
    before = used()
    for number in range(20_000):
        c.send("TDELAY", "s", "IN", HOUR + number * 7919 % 20_000, "n", number)
    for _ in range(20_000):
        c.read()
    c("SAVE")
    c("CONFIG", "SET", "node-cache-size", 0)
    assert 32 < (used() - before) / 20_000 < 64
    c("DEL", "s")
    assert used() <= before
