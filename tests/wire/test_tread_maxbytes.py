"""TREAD with MAXBYTES [102]: no entry is added once the entries have that size, and at least one is returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commands.streams import measured
from respserver.execution import slices
from respserver.testing import RunningServer, nothing_waits
from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tests.wire.turns import Steps
from tests.wire.xprograms.oracle import size_of

Connect = Callable[..., Raw]
RETRY = ("GROUP", "g", 0, "RETRY", 1000, 0)


def within(entries: list[Any], limit: int) -> list[Any]:
    """The entries that begin within the limit."""
    size = 0
    for number, entry in enumerate(entries):
        if size >= limit:
            return entries[:number]
        size += size_of(entry)
    return entries


def fill(c: Raw, count: int = 5) -> list[Any]:
    """Entries of different sizes."""
    for number in range(count):
        c("TAPPEND", "s", "f", "v" * (1 + 40 * number))
    entries: list[Any] = c("TREAD", "s", 0, count)
    return entries


def test_a_plain_read(c: Raw) -> None:
    entries = fill(c)
    sizes = list(map(size_of, entries))
    for limit in (1, sizes[0], sizes[0] + 1, sizes[0] + sizes[1], sum(sizes) - 1, sum(sizes), 1 << 62):
        assert c("TREAD", "s", 0, 9, "MAXBYTES", limit) == within(entries, limit), limit
    assert len(c("TREAD", "s", 0, 9, "MAXBYTES", sizes[0])) == 1
    assert len(c("TREAD", "s", 0, 9, "MAXBYTES", sizes[0] + 1)) == 2
    assert c("TREAD", "s", 0, 2, "maxbytes", 1 << 40) == entries[:2]
    assert c("TREAD", "s", 0, 0, "MAXBYTES", 1) == []
    assert c("TREAD", "s", entries[-1][0], 9, "MAXBYTES", 1) == []
    assert c("TREAD", "nokey", 0, 9, "MAXBYTES", 1 << 40) == []


def test_the_elements_before_the_entries_do_not_count(c: Raw) -> None:
    entries = fill(c)
    c("TAPPEV", "s", "COUNT", 3)
    reply = c("TREAD", "s", entries[0][0], 9, "MAXBYTES", 1, "WITHINFO")
    assert reply == [[entries[2][0], entries[-1][0]], None, entries[2]]


@pytest.mark.parametrize("group", [("GROUP", "g", 0), RETRY])
def test_a_group_receives_the_rest_later(c: Raw, group: tuple[str | int, ...]) -> None:
    entries = fill(c)
    limit = size_of(entries[0]) + 1
    assert c("TREAD", "s", 0, 9, *group, "MAXBYTES", limit) == entries[:2]
    assert c("TREAD", "s", 0, 9, *group, "MAXBYTES", 1) == entries[2:3]
    assert c("TREAD", "s", 0, 9, *group, "MAXBYTES", 1 << 40) == entries[3:]
    assert c("TREAD", "s", 0, 9, *group, "MAXBYTES", 1) == []


def test_redelivered_messages_and_new_entries_share_the_limit(hand: RunningServer, c: Raw) -> None:
    entries = fill(c, 6)
    c("TREAD", "s", 0, 3, *RETRY)
    c("XDEL", "s", entries[1][0])
    read = ("TREAD", "s", 0, 9, *RETRY, "MAXBYTES")
    hand.advance(1000)
    assert c(*read, size_of(entries[0])) == entries[:1]
    assert c(*read, size_of(entries[2])) == [None, entries[2]]  # the null has 5 bytes
    assert c(*read, 1) == entries[3:4]
    hand.advance(1000)
    limit = sum(size_of(entries[at]) for at in (0, 2, 3))
    assert c(*read, limit) == [entries[0], entries[2], entries[3]]
    hand.advance(1000)
    assert c(*read, limit + 1) == [entries[0], entries[2], entries[3], entries[4]]
    hand.advance(1000)
    assert c("TREAD", "s", 0, 9, *RETRY) == [entries[0], entries[2], entries[3], entries[4], entries[5]]


def test_readers_that_waited(hand: RunningServer, connect: Connect, c: Raw) -> None:
    fill(c)
    plain, sized, grouped = connect(), connect(), connect()
    c("TREAD", "s", "", 0, "GROUP", "g", 0)
    for raw, words in ((plain, ()), (sized, ("MAXBYTES", 1)), (grouped, ("GROUP", "g", 0, "MAXBYTES", 1))):
        raw.send("TREAD", "s", "", 9, "BLOCK", 0, *words)
    eventually(lambda: hand.server.blocking.count == 3)
    c.pipeline(("MULTI",), ("TAPPEND", "s", "f", 1), ("TAPPEND", "s", "f", 2), ("EXEC",))
    both = plain.read()
    assert [entry[2] for entry in both] == [b"1", b"2"]
    assert sized.read() == grouped.read() == both[:1]
    assert nothing_waits(hand.server)
    assert c("TREAD", "s", 0, 9, "GROUP", "g", 0) == both[1:]


def test_bad_limits(c: Raw) -> None:
    fill(c)
    for value in (0, -1):
        assert c("TREAD", "s", 0, 9, "MAXBYTES", value) == "ERR MAXBYTES must be a positive integer"
    for text in ("", "x", "1.5", 1 << 63):
        assert c("TREAD", "s", 0, 9, "MAXBYTES", text) == "ERR value is not an integer or out of range"
    for words in (("MAXBYTES",), ("MAXBYTES", 1, "MAXBYTES", 2), ("MAXBYTES", 1, 2)):
        assert c("TREAD", "s", 0, 9, *words) == "ERR syntax error"
    all_words = ("MAXBYTES", 5, *RETRY, "DEADLETTER", "dead")
    assert c("COMMAND", "GETKEYS", "TREAD", "s", 0, 9, *all_words) == [b"s", b"dead"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40), st.sets(st.integers(0, 39)), st.integers(1, 50),
    st.integers(1, 3000), st.booleans(),
)  # fmt: skip
def test_any_stream(
    c: Raw, sizes: list[int], deleted: set[int], count: int, limit: int, grouped: bool
) -> None:
    """Repeated reads return all entries, each within the limit; also over several nodes."""
    c("FLUSHALL")
    c("CONFIG", "SET", "stream-node-max-entries", 7)
    ids = [c("TAPPEND", "s", "f", "v" * size) for size in sizes]
    for at in deleted:
        if at < len(ids):
            c("XDEL", "s", ids[at])
    left = c("TREAD", "s", 0, 100)
    last = b"0"
    while left:
        reply = c("TREAD", "s", last, count, "MAXBYTES", limit, *(("GROUP", "g", 0) if grouped else ()))
        assert reply == within(left[:count], limit)
        left, last = left[len(reply) :], reply[-1][0]


# -- long reads --------------------------------------------------------------------------------------------------
MANY = 6000  # entries of 1000 bytes


def many(c: Raw) -> list[Any]:
    c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *("v" * 1000 for _ in range(MANY)))
    entries: list[Any] = c("TREAD", "s", 0, MANY)
    return entries


@pytest.mark.interpreted
@pytest.mark.parametrize("words", [(), ("GROUP", "g", 0), RETRY])
def test_large_limits_are_measured_in_slices(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, words: tuple[str | int, ...]
) -> None:
    monkeypatch.setattr(slices, "TURN_NS", 1)
    entries, other = many(c), connect()
    limit = 3_500_000
    steps = Steps(hand, monkeypatch, lambda turn: other.send("PING") if turn == 1 else None)
    first = c("TREAD", "s", 0, MANY, "MAXBYTES", limit, *words)
    assert first == within(entries, limit)
    assert steps.turns >= 3
    assert other.read() == b"PONG"
    rest = c("TREAD", "s", first[-1][0], MANY, "MAXBYTES", 1 << 40, *words)
    assert rest == entries[len(first) :]
    if words == RETRY:
        hand.advance(1000)
        again = c("TREAD", "s", 0, MANY, "MAXBYTES", limit, *words)
        assert again == within(entries, limit)
        assert len(again) > 3000
    assert hand.call(lambda: hand.server.data.disk.store.view.pins) == 0


@pytest.mark.interpreted
def test_what_changes_between_slices_does_not_change_a_plain_read(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "TURN_NS", 1)
    entries, other = many(c), connect()
    Steps(hand, monkeypatch, lambda turn: other.send("DEL", "s") if turn == 1 else None)
    assert c("TREAD", "s", 0, MANY, "MAXBYTES", 4_000_000, "WITHINFO")[1:] == within(entries, 4_000_000)
    assert other.read() == 1


@pytest.mark.interpreted
def test_large_reads_agree_with_small_steps(c: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = fill(c, 100)
    for at in range(0, 100, 7):
        c("XDEL", "s", entries[at][0])
    entries = c("TREAD", "s", 0, 100)
    monkeypatch.setattr(measured, "MEASURED_AT_ONCE", 1)
    for limit in (1, 100, 5_000, 50_000, 1 << 40):
        assert c("TREAD", "s", 0, 100, "MAXBYTES", limit) == within(entries, limit)
