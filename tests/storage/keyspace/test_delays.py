"""Delayed entries against a plain model: clocks that jump, tokens, cancellations; and damage in the index."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from resp.errors import CorruptError, DamagedNodeError
from resp.reply import bulk, integer
from storage.groups import pendingformat
from storage.keyspace import delivering
from storage.keyspace.replay import replay
from storage.model import records
from storage.model.entries import entry_wire, id_bulk, wire_values
from storage.streams.delayed import DelayedEntries, split, stored_head
from storage.streams.stream import Stream
from tests.storage.keyspace.replaykit import NOW, call, empty, wire

TOKENS = st.sampled_from(["a", "b", "c", "d"])
KEPT_MS = 1000  # for which the tokens of delivered entries are remembered


def undamaged(error: DamagedNodeError) -> None:
    raise error


class Delays(RuleBasedStateMachine):
    """A leader and a replica of its log; ``delayed`` and ``joined`` are what there must be."""

    @initialize()
    def begin(self) -> None:
        self.ks, self.replica = empty(), empty()
        self.ks.pool.idmp_ms = KEPT_MS
        self.now = NOW
        self.number = 0
        self.delayed: dict[str, tuple[int, bool, int]] = {}  # token -> due time, whether it is wall-clock time, number
        self.joined: list[int] = []  # numbers
        self.known: dict[str, int] = {}  # token -> when it is forgotten
        self.top = 0  # ms of the last ID

    def run(self, *words: Any) -> Any:
        return call(self.ks, self.now, "TDELAY", "s", *words)

    def at(self, token: str) -> int:
        """The wall-clock time at which an entry is due."""
        due, wall, _ = self.delayed[token]
        return due if wall else due + self.ks.away

    @rule(token=st.none() | TOKENS, ms=st.integers(0, 50), wall=st.booleans())
    def delay(self, token: str | None, ms: int, wall: bool) -> None:
        self.number += 1
        reply = self.run(
            *(("AT", self.now + ms) if wall else ("IN", ms)), *(("ID", token) if token else ()), "n", self.number
        )
        if token is not None:
            assert reply == bulk(token.encode())
            if token in self.delayed or self.known.get(token, 0) > self.now:
                return
        name = token or reply.split(b"\r\n")[1].decode()
        assert name not in self.delayed
        self.delayed[name] = self.now + ms - (0 if wall else self.ks.away), wall, self.number

    @rule(token=TOKENS)
    def cancel(self, token: str) -> None:
        assert self.run("CANCEL", token) == integer(int(self.delayed.pop(token, None) is not None))

    @rule(ms=st.sampled_from([0, 1, 7, 30, -20, 400]))
    def pass_time(self, ms: int) -> None:
        self.now += ms

    @rule(ms=st.sampled_from([-40, -5, 5, 40]))
    def shift_served_time(self, ms: int) -> None:
        self.ks.set_away(self.ks.away + ms)

    @rule(limit=st.integers(1, 5))
    def deliver(self, limit: int) -> None:
        while delivering.run(self.ks, self.now, limit, undamaged):
            pass
        due = sorted((self.at(token), self.delayed[token][2], token) for token in self.delayed)
        for at, number, token in due:
            if at <= self.now:
                del self.delayed[token]
                self.joined.append(number)
                if token in "abcd":
                    self.known[token] = self.now + KEPT_MS

    @rule()
    def rename(self) -> None:
        if self.delayed or self.joined:
            call(self.ks, self.now, "RENAME", "s", "t")
            call(self.ks, self.now, "RENAME", "t", "s")

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "ks"):
            return
        batch = self.ks.take_batch()
        if batch:
            replay(self.replica, batch)
            assert self.replica.take_batch() == batch
        for ks in (self.ks, self.replica):
            stream, delayed = ks.keys.get(b"s"), ks.delayed.get(b"s")
            if not isinstance(stream, Stream):
                assert (self.joined, self.delayed) == ([], {})
                continue
            wires = stream.each(stream.first_ord, stream.next_ord) if stream.length else []
            assert [int(wire_values(one)[1]) for one in wires] == self.joined
            assert (0 if delayed is None else len(delayed)) == len(self.delayed) == ks.delayed_count
        assert self.ks.digest() == self.replica.digest()


TestDelays = Delays.TestCase
TestDelays.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def filled(count: int = 300) -> DelayedEntries:
    ks = empty()
    for number in range(count):
        call(ks, NOW, "TDELAY", "s", "IN" if number % 3 else "AT", number + 5, "ID", f"t{number}", "f", "v")
    return ks.delayed[b"s"]


def test_a_damaged_index_is_refused() -> None:
    delayed = filled()
    [(name, meta, parts)], _ = delayed.capture_index()
    rows = bytes(pendingformat.assemble(parts))
    for bad_meta, bad_rows in (
        (meta[:-1], rows), (b"\2" + meta[1:], rows), (meta, rows[:-1]), (meta, rows[16:]), (b"", b""),
        (meta, b"\1" + rows[1:]),
    ):  # fmt: skip
        with pytest.raises(CorruptError):
            DelayedEntries(delayed.entries).restore_part(name, bad_meta, bad_rows)
    again = DelayedEntries(delayed.entries)
    with pytest.raises(CorruptError):
        again.restored()  # its index is empty
    again.restore_part(name, meta, rows)
    again.restored()
    assert bytes(pendingformat.assemble(again.parts())) == rows


CUT = [
    b"\r\n", b"*\r\n\r\n\r\n\r\n", b"*5\r\n$3\r\n1.0\r\n\r\n\r\n", b"*5\r\n$3\r\n1.0\r\n$-9\r\nt\r\n$1\r\n8\r\n\r\n",
    wire(1, 0).replace(b"$1\r\nv", b"$2\r\n20"),
]  # fmt: skip


def test_what_is_not_a_delayed_entry_is_refused() -> None:
    for bad in (wire(1, 0), b"", b"*3\r\n$3\r\n1.0\r\n$1\r\nt\r\n", *CUT):
        with pytest.raises(CorruptError):
            split(bad)
    assert stored_head(b"t", 5, 3) == [b"t", b"23"]


@pytest.mark.interpreted
def test_tokens_with_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.streams.delayed.hash_of", lambda _: b"12345678")
    delayed = filled(100)
    for number in (0, 99, 50):
        found = delayed.find(b"t%d" % number)
        assert found is not None
        assert found[0] == number
    assert delayed.find(b"t100") is None


@pytest.mark.parametrize("other", [[b"t1", b"21"], [b"t0", b"25"], [b"t0", b"20"]], ids=["token", "due", "clock"])
def test_a_record_that_removes_another_entry_is_refused(other: list[bytes]) -> None:
    """Otherwise the index could not be read after a checkpoint."""
    ks = empty()
    call(ks, NOW, "TDELAY", "s", "AT", 5, "ID", "t0", "f", "v")
    bad = entry_wire(id_bulk(NOW, 0), [*other, b"f", b"v"])
    for record in (records.cancel(b"s", 0, bad), records.join(b"s", NOW, 0, NOW, 5, 5, [0], [bad])):
        with pytest.raises(CorruptError, match=r"that do(es)? not exist"):
            replay(ks, record)


@pytest.mark.interpreted
def test_a_delivery_that_fails_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> bool:
        raise OSError("the store can't be read")

    ks = empty()
    call(ks, NOW, "TDELAY", "s", "IN", 0, "f", "v")
    with monkeypatch.context() as broken:
        broken.setattr(delivering, "_append", fails)
        with pytest.raises(OSError, match="can't be read"):
            delivering.run(ks, NOW, 100, undamaged)
    delivering.run(ks, NOW + delivering.RETRY_MS - 1, 100, undamaged)
    assert ks.delayed_count == 1
    delivering.run(ks, NOW + delivering.RETRY_MS, 100, undamaged)
    assert ks.delayed_count == 0


def test_a_backlog_in_random_order_reads_each_node_few_times() -> None:
    ks, rng, count = empty(), random.Random(1), 4000
    ks.pool.cache.max_bytes, ks.pool.max_entries = 0, 50
    dues = [NOW + number // 3 for number in range(count)]
    rng.shuffle(dues)
    for number, due in enumerate(dues):
        call(ks, NOW - 1, "TDELAY", "s", "AT", due, "ID", f"t{number}", "n", number, "body", "x" * 100)
    delayed = ks.delayed[b"s"]
    nodes = delayed.entries.node_count
    left, steps, now = set(range(count)), 0, NOW + count
    while delivering.run(ks, now, 100, undamaged):
        steps += 1
        if steps % 3 == 0:
            cancelled = rng.randrange(count)
            if call(ks, now, "TDELAY", "s", "CANCEL", f"t{cancelled}") == integer(1):
                left.remove(cancelled)
    stream = ks.keys[b"s"]
    assert isinstance(stream, Stream)
    found = [int(wire_values(wire)[1]) for wire in stream.each(0, stream.next_ord)]
    assert found == sorted(left, key=lambda number: (dues[number], number))
    assert ks.pool.cache.misses < 3 * nodes + 2 * steps  # CANCEL reads the node, too
    assert (ks.pool.ahead, len(delayed)) == (0, 0)
    assert ks.pool.bytes == stream.memory_bytes() + delayed.memory_bytes()
