"""MAXCOUNT and MAXSIZE of XREAD and XREADGROUP: Redis 8.10. Random programs of them are in ``test_xoracle``.

The expected sizes are computed here from the encoded reply, as its bytes are on the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commands.streams import measured
from respserver.execution import slices
from respserver.testing import RunningServer, nothing_waits
from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tests.wire.turns import Steps
from tests.wire.xprograms.oracle import size_of

Connect = Callable[..., Raw]
GROUP = ("GROUP", "g", "ann")


def fill(c: Raw, *keys: str, count: int = 5, value: str = "v") -> None:
    for key in keys:
        c.pipeline(*(("XADD", key, f"{number}-0", "f", value) for number in range(1, count + 1)))
        c("XGROUP", "CREATE", key, "g", 0)


def ids(reply: Any) -> dict[bytes, list[bytes]]:
    """The IDs of each key."""
    pairs = reply.items() if isinstance(reply, dict) else reply
    return {key: [entry[0] for entry in entries] for key, entries in pairs}


def numbers(*of: int) -> list[bytes]:
    return [b"%d-0" % number for number in of]


ENTRY = len(b"*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n")
HEAD = len(b"$1\r\na\r\n")  # of a key; RESP2 also has the header of the pair
PAIR = len(b"*2\r\n")
TAIL = len(b"*5\r\n")  # of its array


def test_maxcount_is_shared_by_all_keys(c: Raw) -> None:
    fill(c, "a", "b", "c")
    assert ids(c("XREAD", "MAXCOUNT", 7, "STREAMS", "a", "b", "c", 0, 0, 0)) == {
        b"a": numbers(1, 2, 3, 4, 5), b"b": numbers(1, 2),
    }  # fmt: skip
    assert ids(c("XREAD", "COUNT", 2, "MAXCOUNT", 3, "STREAMS", "a", "b", "c", 0, 0, 0)) == {
        b"a": numbers(1, 2), b"b": numbers(1),
    }  # fmt: skip
    assert ids(c("XREAD", "COUNT", 0, "MAXCOUNT", 5, "STREAMS", "a", "b", 0, 0)) == {b"a": numbers(1, 2, 3, 4, 5)}
    assert ids(c("XREAD", "COUNT", -1, "MAXCOUNT", 1, "STREAMS", "a", "b", 0, 0)) == {b"a": numbers(1)}
    assert c("XREAD", "MAXCOUNT", 1, "STREAMS", "a", "none", 9, 0) is None


@pytest.mark.parametrize("proto", [2, 3])
def test_maxsize_is_that_of_the_reply(connect: Connect, proto: int) -> None:
    """A reply that has reached the limit gets no more entries; one byte less, and it gets another."""
    c = connect(proto)
    fill(c, "a", "b")
    head = HEAD + (PAIR if proto == 2 else 0)

    def read(maxsize: int) -> dict[bytes, list[bytes]]:
        return ids(c("XREAD", "MAXSIZE", maxsize, "STREAMS", "a", "b", 0, 0))

    assert read(1) == read(head) == read(head + ENTRY) == {b"a": numbers(1)}
    assert read(head + ENTRY + 1) == read(head + 2 * ENTRY) == {b"a": numbers(1, 2)}
    whole = head + 5 * ENTRY + TAIL  # the second key follows
    assert read(whole) == {b"a": numbers(1, 2, 3, 4, 5)}
    assert read(whole + 1) == read(whole + head) == {b"a": numbers(1, 2, 3, 4, 5), b"b": []}
    assert read(whole + head + 1) == {b"a": numbers(1, 2, 3, 4, 5), b"b": numbers(1)}
    assert read(1 << 62)[b"b"] == numbers(1, 2, 3, 4, 5)


def test_both_limits(c: Raw) -> None:
    fill(c, "a", "b")
    read = ("XREAD", "MAXSIZE", PAIR + HEAD + 2 * ENTRY, "MAXCOUNT")
    assert ids(c(*read, 3, "STREAMS", "a", "b", 0, 0)) == {b"a": numbers(1, 2)}
    assert ids(c(*read, 1, "STREAMS", "a", "b", 0, 0)) == {b"a": numbers(1)}


def test_deleted_entries_do_not_count(c: Raw) -> None:
    fill(c, "a", count=8)
    c("XDEL", "a", "2-0", "3-0", "5-0")
    assert ids(c("XREAD", "MAXSIZE", PAIR + HEAD + 2 * ENTRY + 1, "STREAMS", "a", 0)) == {b"a": numbers(1, 4, 6)}
    assert ids(c("XREAD", "MAXCOUNT", 2, "STREAMS", "a", 0)) == {b"a": numbers(1, 4)}


def test_a_group_does_not_read_what_the_reply_lacks(c: Raw) -> None:
    fill(c, "a", "b")
    reply = c("XREADGROUP", *GROUP, "MAXSIZE", PAIR + HEAD + ENTRY + 1, "STREAMS", "a", "b", ">", ">")
    assert ids(reply) == {b"a": numbers(1, 2)}
    assert c("XPENDING", "a", "g")[0] == 2
    assert c("XINFO", "CONSUMERS", "b", "g") == []  # not even the consumer was created
    assert ids(c("XREADGROUP", *GROUP, "MAXCOUNT", 4, "STREAMS", "a", "b", ">", ">")) == {
        b"a": numbers(3, 4, 5), b"b": numbers(1),
    }  # fmt: skip
    assert (c("XPENDING", "a", "g")[0], c("XPENDING", "b", "g")[0]) == (5, 1)
    assert ids(c("XREADGROUP", *GROUP, "MAXCOUNT", 6, "STREAMS", "a", "b", 0, 0)) == {
        b"a": numbers(1, 2, 3, 4, 5), b"b": numbers(1),
    }  # fmt: skip
    assert ids(c("XREADGROUP", *GROUP, "MAXCOUNT", 2, "STREAMS", "b", "a", 5, 3)) == {b"b": [], b"a": numbers(4, 5)}


def test_a_key_whose_head_reaches_the_limit_delivers_nothing(c: Raw) -> None:
    fill(c, "a", "b", count=1)
    limit = PAIR + HEAD + ENTRY + TAIL + 1
    read = ("XREADGROUP", *GROUP, "MAXSIZE", limit)
    assert c(*read, "STREAMS", "a", "b", ">", ">")[1] == [b"b", []]
    assert c("XPENDING", "b", "g")[0] == 0
    assert len(c("XINFO", "CONSUMERS", "b", "g")) == 1
    claimed = ("XREADGROUP", "GROUP", "g", "bob", "MAXSIZE", limit + len(b":0\r\n:1\r\n"), "CLAIM", 0)
    assert [[key, len(found)] for key, found in c(*claimed, "STREAMS", "a", "b", ">", ">")] == [[b"a", 1], [b"b", 0]]
    assert c("XREADGROUP", *GROUP, "MAXSIZE", 1, "STREAMS", "a", "b", ">", ">") == [
        [b"b", [[b"1-0", [b"f", b"v"]]]]
    ]  # fmt: skip


def test_claimed_messages_come_first(hand: RunningServer, c: Raw) -> None:
    fill(c, "a")
    c("XREADGROUP", "GROUP", "g", "bob", "COUNT", 2, "STREAMS", "a", ">")
    hand.advance(100)
    element = ENTRY + len(b":100\r\n:1\r\n")
    read = ("XREADGROUP", *GROUP, "CLAIM", 50)
    size = PAIR + HEAD + 2 * element
    assert c(*read, "MAXSIZE", size, "STREAMS", "a", ">") == [
        [b"a", [[b"1-0", [b"f", b"v"], 100, 1], [b"2-0", [b"f", b"v"], 100, 1]]]
    ]  # fmt: skip
    hand.advance(100)
    assert ids(c(*read, "MAXSIZE", size + 1, "STREAMS", "a", ">")) == {b"a": numbers(1, 2, 3)}
    hand.advance(100)
    assert ids(c(*read, "MAXCOUNT", 2, "STREAMS", "a", ">")) == {b"a": numbers(1, 2)}
    assert ids(c(*read, "MAXCOUNT", 2, "STREAMS", "a", ">")) == {b"a": numbers(3, 4)}


def test_a_reader_that_waited_is_limited(hand: RunningServer, connect: Connect, c: Raw) -> None:
    fill(c, "a", "b", count=1)
    c("XREADGROUP", *GROUP, "STREAMS", "a", "b", ">", ">")
    plain, grouped, sized = connect(), connect(), connect()
    plain.send("XREAD", "MAXCOUNT", 2, "BLOCK", 0, "STREAMS", "a", "b", "$", "$")
    grouped.send("XREADGROUP", *GROUP, "BLOCK", 0, "MAXCOUNT", 1, "STREAMS", "a", "b", ">", ">")
    sized.send("XREAD", "BLOCK", 0, "MAXSIZE", 1, "STREAMS", "a", "b", "$", "$")
    eventually(lambda: hand.server.blocking.count == 3)
    adds = [("XADD", key, f"{number}-0", "f", "v") for key in "ab" for number in (2, 3)]
    c.pipeline(("MULTI",), *adds, ("EXEC",))
    assert ids(plain.read()) == {b"a": numbers(2, 3)}
    assert ids(grouped.read()) == ids(sized.read()) == {b"a": numbers(2)}
    assert nothing_waits(hand.server)
    assert (c("XPENDING", "a", "g")[0], c("XPENDING", "b", "g")[0]) == (2, 1)


def test_each_command_of_a_transaction_has_its_own_limit(c: Raw) -> None:
    fill(c, "a")
    read = ("XREAD", "MAXSIZE", PAIR + HEAD + ENTRY + 1, "STREAMS", "a", 0)
    assert [ids(reply) for reply in c.pipeline(("MULTI",), read, read, ("EXEC",))[-1]] == [{b"a": numbers(1, 2)}] * 2


@pytest.mark.parametrize("command", [("XREAD",), ("XREADGROUP", *GROUP)])
def test_bad_limits(c: Raw, command: tuple[str, ...]) -> None:
    fill(c, "a")
    keys = ("STREAMS", "a", ">" if len(command) > 1 else 0)
    for word in ("MAXCOUNT", "MAXSIZE"):
        for value in (0, -1):
            assert c(*command, word, value, *keys) == f"ERR {word} must be a positive integer"
        for text in ("", "x", "1.5", str(1 << 63)):
            assert c(*command, word, text, *keys) == "ERR value is not an integer or out of range"
        assert c(*command, word, *keys) == "ERR value is not an integer or out of range"
        assert c(*command, *keys[:2], word, 1) != c(*command, word, 1, *keys)
    below = "ERR MAXCOUNT must be greater than or equal to COUNT"
    assert c(*command, "COUNT", 3, "MAXCOUNT", 2, *keys) == below
    assert c(*command, "MAXCOUNT", 2, "COUNT", 3, *keys) == below
    assert len(c(*command, "MAXCOUNT", 3, "COUNT", 3, *keys)[0][1]) == 3
    assert c("XREADGROUP", "MAXCOUNT", 2, "COUNT", 3, *keys) == "ERR Missing GROUP option for XREADGROUP"
    assert len(c("XREAD", "MAXCOUNT", 1, "MAXCOUNT", 2, "STREAMS", "a", 0)[0][1]) == 2  # the last one counts


def test_the_keys_of_a_call_are_found(c: Raw) -> None:
    words = ("MAXCOUNT", 2, "MAXSIZE", 9, "STREAMS", "a", "b", 0, 0)
    assert c("COMMAND", "GETKEYS", "XREAD", *words) == [b"a", b"b"]
    assert c("COMMAND", "GETKEYS", "XREADGROUP", *GROUP, *words) == [b"a", b"b"]


# -- long replies ------------------------------------------------------------------------------------------------
def fits(entries: list[Any], limit: int) -> None:
    """The last one, and only that, ends at or after the limit."""
    size = sum(map(size_of, entries))
    assert size - size_of(entries[-1]) < limit <= size


LONG = 1000  # bytes of a value
MANY = 6000  # entries: about 6 MB


def many(c: Raw, key: str = "a") -> int:
    """Add entries; return the size of the first one in a reply."""
    c("TMAPPEND", key, "FIELDS", 1, "f", "VALUES", *("v" * LONG for _ in range(MANY)))
    return size_of(c("XRANGE", key, "-", "+", "COUNT", 1)[0])


@pytest.mark.interpreted
@pytest.mark.parametrize("proto", [2, 3])
def test_a_large_maxsize_is_measured_in_slices(
    connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, proto: int
) -> None:
    """Other clients run between them, and what they change does not change the reply."""
    monkeypatch.setattr(slices, "TURN_NS", 1)
    c, other = connect(proto), connect()
    many(other)
    many(other, "b")
    before = other("XRANGE", "a", "-", "+"), other("XRANGE", "b", "-", "+")
    cut = 3 * 1_040_000

    def change(turn: int) -> None:
        if turn == 2:
            other.send("DEL", "a")

    steps = Steps(hand, monkeypatch, change)
    reply = c("XREAD", "MAXSIZE", cut, "STREAMS", "a", "b", 0, 0)
    assert steps.turns >= 3
    ((key, entries),) = reply.items() if proto == 3 else reply
    assert key == b"a"
    assert entries == before[0][: len(entries)]
    fits(entries, cut - HEAD - (PAIR if proto == 2 else 0))
    assert other.read() == 1
    both = c("XREAD", "MAXSIZE", 1 << 40, "MAXCOUNT", MANY - 1, "STREAMS", "none", "b", 0, 0)
    assert ids(both) == {b"b": [entry[0] for entry in before[1][:-1]]}


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("change", "left"),
    [
        (("DEL", "b"), None), (("XTRIM", "b", "MAXLEN", 0), None), (("XTRIM", "b", "MAXLEN", 10), 10),
        (("XADD", "b", "*", "f", "new"), 20),
    ],
)  # fmt: skip
def test_a_key_that_changes_before_it_is_reached(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, change: tuple[str | int, ...],
    left: int | None,
) -> None:  # fmt: skip
    """Entries that are gone are not in the reply, nor are those that were added."""
    monkeypatch.setattr(slices, "TURN_NS", 1)
    other = connect()
    many(c)
    c("TMAPPEND", "b", "FIELDS", 1, "f", "VALUES", *range(20))
    old = ids({b"b": c("XRANGE", "b", "-", "+")})[b"b"]
    Steps(hand, monkeypatch, lambda turn: other.send(*change) if turn == 1 else None)
    reply = ids(c("XREAD", "MAXSIZE", 1 << 40, "STREAMS", "a", "b", 0, 0))
    assert len(reply[b"a"]) == MANY
    assert reply.get(b"b") == (None if left is None else old[20 - left :])
    assert hand.call(lambda: hand.server.data.disk.store.view.pins) == 0


@pytest.mark.interpreted
def test_large_reads_agree_with_small_steps(c: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same calls, measured at once and in slices, over deleted entries and several nodes."""
    for key in "ab":
        fill(c, key, count=1500)
        c("XDEL", key, *(f"{number}-0" for number in range(1, 1400, 3)))
    calls = [
        ("XREAD", *words, "MAXSIZE", maxsize, "STREAMS", "a", "none", "b", 0, 0, 700)
        for maxsize in (1, 15, 16, 60, 5_000, 40_000, 40_027, 50_000, 60_000, 90_000)
        for words in ((), ("COUNT", 600), ("MAXCOUNT", 900))
    ]
    at_once = [c(*words) for words in calls]
    monkeypatch.setattr(measured, "MEASURED_AT_ONCE", 0)
    assert [c(*words) for words in calls] == at_once
    assert len({len(str(reply)) for reply in at_once}) > 8


def test_a_client_that_leaves_releases_everything(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(c)
    reader = connect()
    reader.send("XREAD", "MAXSIZE", 5_000_000, "STREAMS", "a", 0)
    reader.close()
    assert c("PING") == b"PONG"
    eventually(lambda: hand.call(lambda: hand.server.data.disk.store.view.pins) == 0)


@pytest.mark.interpreted
@pytest.mark.parametrize("claim", [(), ("CLAIM", 1000)])
def test_a_long_group_read(
    c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, claim: tuple[str | int, ...]
) -> None:
    """Its slices share the limits, and what the reply lacks is not delivered."""
    monkeypatch.setattr(slices, "TURN_NS", 1)
    size = many(c) + (len(b":0\r\n:0\r\n") if claim else 0)
    c("XGROUP", "CREATE", "a", "g", 0)
    c("XGROUP", "CREATE", "b", "g", 0, "MKSTREAM")
    steps = Steps(hand, monkeypatch, lambda _: None)
    head = PAIR + HEAD
    reply = c("XREADGROUP", *GROUP, *claim, "MAXSIZE", head + 5500 * size, "STREAMS", "b", "a", "a", ">", ">", ">")
    count = len(reply[0][1])
    assert len(reply) == 1
    fits(reply[0][1], 5500 * size)
    assert steps.turns >= 2
    assert c("XPENDING", "a", "g")[0] == count
    history = c("XREADGROUP", *GROUP, "MAXSIZE", head + 3000 * size, "STREAMS", "a", "a", 0, 0)
    fits(history[0][1], 3000 * size)
    assert len(history) == 1
    assert len(c("XREADGROUP", *GROUP, "MAXCOUNT", 5100, "STREAMS", "a", 0)[0][1]) == 5100
    assert len(c("XREADGROUP", *GROUP, "MAXCOUNT", 5100, "STREAMS", "a", ">")[0][1]) == MANY - count
