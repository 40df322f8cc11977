"""Streams against a plain list: everything in any order, with checkpoints, restarts and snapshots that outlive them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from nodestore import MemoryStore

from resp.errors import CorruptError
from storage.cache import NodeCache
from storage.ids import MASK64, MAX_ID
from storage.node import open_node
from storage.stream import Nodes, Stream, StreamCapture


@dataclass
class Model:
    """The stream as a list. ``log`` is what a journal would hold; ``applied`` how much of it the store has."""

    ids: list[int] = field(default_factory=list)  # of all entries ever
    wires: list[bytes] = field(default_factory=list)
    first: int = 0  # entries evicted
    log: list[tuple[int, bytes] | tuple[int, int]] = field(default_factory=list)
    applied: int = 0


@dataclass
class Reader:
    """A pieces() under way."""

    pieces: Iterator[bytes]
    close: Callable[[], None]
    expected: bytes
    got: bytes = b""


class StreamMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.nodes = Nodes(self.store, NodeCache(4000))
        self.nodes.max_entries = 4
        self.nodes.max_bytes = 100
        self.sid = 0
        self.readers: list[Reader] = []
        self.create()

    def create(self) -> None:
        self.sid += 1
        self.stream = Stream(self.sid, self.nodes)
        self.model = Model()
        self.capture: tuple[StreamCapture, int] | None = None

    def apply(self, stream: Stream, entry: tuple[int, bytes] | tuple[int, int]) -> None:
        """One logged effect: an append, or an eviction up to an ordinal."""
        if isinstance(entry[1], bytes):
            stream.append(entry[0] >> 64, entry[0] & MASK64, entry[1])
        else:
            stream.evict_before(entry[1], entry[0])

    def span(self, data: st.DataObject) -> tuple[int, int]:
        lo = data.draw(st.integers(self.model.first, len(self.model.ids)))
        return lo, data.draw(st.integers(lo, len(self.model.ids)))

    # -- changes ---------------------------------------------------------------------------------------------
    @initialize(entries=st.integers(0, 40))
    def fill(self, entries: int) -> None:
        for number in range(entries):
            self.append(number % 3, number % 2, b"%d." % number)

    @rule(
        ms=st.sampled_from([0, 0, 1, 7, 1 << 33, 1 << 60]),
        seq=st.sampled_from([0, 1, 2, 300, 1 << 20]),
        wire=st.binary(max_size=30),
    )
    def append(self, ms: int, seq: int, wire: bytes) -> None:
        last = self.model.ids[-1] if self.model.ids else 0
        new = last + seq + 1 if not ms else ((last >> 64) + ms) << 64 | seq
        if new > MAX_ID:
            return
        self.model.ids.append(new)
        self.model.wires.append(wire)
        self.model.log.append((new, wire))
        self.apply(self.stream, self.model.log[-1])

    @rule(count=st.integers(1, 12), size=st.integers(0, 3))
    def append_some(self, count: int, size: int) -> None:
        for number in range(count):
            self.append(0, 0, b"%d" % number * size)

    @rule(ms=st.sampled_from([1, 7, 1 << 33]), parts=st.lists(st.binary(max_size=60), max_size=14))
    def append_run(self, ms: int, parts: list[bytes]) -> None:
        last = self.model.ids[-1] if self.model.ids else 0
        first = ((last >> 64) + ms) << 64
        self.stream.append_run(first >> 64, 0, parts)
        for number, wire in enumerate(parts):
            self.model.ids.append(first + number)
            self.model.wires.append(wire)
            self.model.log.append((first + number, wire))

    def evict(self, border: int) -> None:
        model = self.model
        if border > model.first:
            gone, to = border - model.first, model.ids[border - 1]
            model.first = border
            model.log.append((to, border))
            assert self.stream.evict_before(border, to) == gone

    @rule(keep=st.integers(0, 20))
    def evict_by_count(self, keep: int) -> None:
        self.evict(self.stream.next_ord - keep)
        assert self.stream.length <= max(keep, 0)

    @rule(data=st.data())
    def evict_by_time(self, data: st.DataObject) -> None:
        ids = self.model.ids[self.model.first :]
        now = data.draw(st.sampled_from(ids)) if ids else 5
        self.evict(self.stream.ord_from(now >> 64 << 64))
        assert self.stream.first_id() >= now >> 64 << 64 or not self.stream.length

    @rule()
    def evict_nothing(self) -> None:
        assert self.stream.evict_before(self.model.first, 77) == 0
        assert self.stream.evict_before(0, 77) == 0

    @rule(entries=st.integers(1, 8), size=st.sampled_from([1, 30, 100, 10_000]))
    def change_limits(self, entries: int, size: int) -> None:
        self.nodes.max_entries, self.nodes.max_bytes = entries, size

    @rule(size=st.sampled_from([0, 700, 2000, 100_000]))
    def resize_cache(self, size: int) -> None:
        self.nodes.cache.max_bytes = size
        assert self.nodes.cache.bytes <= size

    @rule()
    def delete(self) -> None:
        self.nodes.cache.drop_stream(self.sid)
        for first in self.store.firsts(self.sid):
            del self.store.blobs[self.sid, first]
        self.create()

    # -- checkpoints and restarts ------------------------------------------------------------------------------
    @precondition(lambda self: self.capture is None)
    @rule()
    def begin_checkpoint(self) -> None:
        model, capture = self.model, self.stream.capture()
        ends = []
        for first, first_id, blob in capture.nodes + ([capture.tail] if capture.tail else []):
            node = open_node(blob)
            ends.append(first + len(node))
            assert first_id == model.ids[first]
            assert node.ids(0, len(node)) == model.ids[first : ends[-1]]
            assert node.slice(0, len(node)) == b"".join(model.wires[first : ends[-1]])
        assert all(end > model.first for end in ends)  # nothing that is dead
        assert capture.first_ord == model.first
        self.capture = capture, len(model.log)

    @precondition(lambda self: self.capture is not None)
    @rule()
    def complete_checkpoint(self) -> None:
        assert self.capture is not None
        capture, position = self.capture
        self.store.write(capture)
        self.stream.captured(capture)
        self.model.applied = position
        self.capture = None
        taken = {first for first, _, _ in capture.nodes}
        assert not taken & {first for first, _, _ in self.stream.capture().nodes}

    @precondition(lambda self: self.capture is not None)
    @rule()
    def fail_checkpoint(self) -> None:
        self.capture = None

    @precondition(lambda self: self.sid in self.store.metas)
    @rule()
    def restart(self) -> None:
        """What is in the store, then what was logged since."""
        self.nodes.cache.clear()
        self.capture = None
        stream = Stream.restore(self.sid, self.store.metas[self.sid], self.nodes)
        loads = self.store.loads
        for first in self.store.firsts(self.sid):
            stream.add_stored_node(first, self.store.blobs[self.sid, first][0])
        assert self.store.loads == loads  # keys only
        assert stream.meta() == self.store.metas[self.sid]
        for entry in self.model.log[self.model.applied :]:
            self.apply(stream, entry)
        self.stream = stream

    # -- reading ---------------------------------------------------------------------------------------------
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        lo, hi = self.span(data)
        wires = self.model.wires[lo:hi]
        loads = self.store.loads
        assert self.stream.wire_size(lo, hi) >= len(b"".join(wires))
        assert self.store.loads == loads  # from the index
        assert self.stream.read(lo, hi) == b"".join(wires)
        assert self.stream.read_reverse(lo, hi) == wires[::-1]
        assert self.stream.ids(lo, hi) == self.model.ids[lo:hi]
        if lo < hi:
            assert self.stream.id_at(lo) == self.model.ids[lo]
            assert self.stream.id_at(hi - 1) == self.model.ids[hi - 1]

    @rule(data=st.data(), step=st.sampled_from([-1, 0, 0, 1]))
    def find(self, data: st.DataObject, step: int) -> None:
        model = self.model
        probe = data.draw(st.sampled_from([0, 5 << 64, MAX_ID, *model.ids])) + step
        if 0 <= probe <= MAX_ID + 1:
            at = bisect_left(model.ids, probe)
            assert self.stream.ord_from(probe) == max(model.first, at)
            there = model.first <= at < len(model.ids) and model.ids[at] == probe
            assert self.stream.find(probe) == (model.wires[at] if there else None)

    @precondition(lambda self: len(self.readers) < 4)
    @rule(data=st.data(), backward=st.booleans())
    def begin_reader(self, data: st.DataObject, backward: bool) -> None:
        lo, hi = self.span(data)
        wires = self.model.wires[lo:hi]
        pieces, close = (self.stream.pieces_reverse if backward else self.stream.pieces)(lo, hi)
        self.readers.append(Reader(pieces, close, b"".join(wires[::-1] if backward else wires)))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), count=st.integers(1, 3))
    def read_on(self, data: st.DataObject, count: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        for _ in range(count):
            piece = next(reader.pieces, None)
            if piece is None:
                return self.end(reader)
            reader.got += piece
            assert reader.expected.startswith(reader.got)
        return None

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def read_to_the_end(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        reader.got += b"".join(reader.pieces)
        self.end(reader)

    def end(self, reader: Reader) -> None:
        """It was read to its end, which frees what it pinned; close() does no harm then."""
        assert reader.got == reader.expected
        self.readers.remove(reader)
        assert self.store.pins == len(self.readers)
        reader.close()

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def give_up_reader(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        self.readers.remove(reader)
        reader.close()
        reader.close()

    # -- what always holds -----------------------------------------------------------------------------------
    @invariant()
    def figures_are_right(self) -> None:
        model, stream = self.model, self.stream
        assert (stream.first_ord, stream.next_ord) == (model.first, len(model.ids))
        assert stream.length == len(model.ids) - model.first
        assert stream.last_id == (model.ids[-1] if model.ids else 0)
        assert stream.first_id() == (model.ids[model.first] if stream.length else 0)
        assert stream.evicted_to == (model.ids[model.first - 1] if model.first else 0)
        assert (stream.node_count > 0) == (stream.length > 0)
        assert stream.node_count <= stream.length
        assert stream.disk_bytes() >= 0
        assert self.store.pins == len(self.readers)
        assert 0 <= self.nodes.cache.bytes <= self.nodes.cache.max_bytes
        assert len(self.nodes.cache) <= stream.node_count  # what is dead has left it

    def teardown(self) -> None:
        for reader in list(self.readers):
            reader.got += b"".join(reader.pieces)
            self.end(reader)


TestStreamMachine = StreamMachine.TestCase
TestStreamMachine.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)


# -- one by one: what the machine can't see --------------------------------------------------------------------
def made(entries: int, max_entries: int = 10, cache: int = 1 << 20) -> tuple[Stream, MemoryStore, Nodes]:
    """Entry n has the ID (n + 1).0 and the wire ``<n>``."""
    store = MemoryStore()
    nodes = Nodes(store, NodeCache(cache))
    nodes.max_entries = max_entries
    stream = Stream(1, nodes)
    for number in range(entries):
        stream.append(number + 1, 0, b"<%d>" % number)
    return stream, store, nodes


def checkpoint(stream: Stream, store: MemoryStore) -> StreamCapture:
    capture = stream.capture()
    store.write(capture)
    stream.captured(capture)
    return capture


def reborn(store: MemoryStore, nodes: Nodes) -> Stream:
    nodes.cache.clear()
    stream = Stream.restore(1, store.metas[1], nodes)
    for first in store.firsts(1):
        stream.add_stored_node(first, store.blobs[1, first][0])
    return stream


def wires(lo: int, hi: int) -> bytes:
    return b"".join(b"<%d>" % number for number in range(lo, hi))


def test_limits_seal_the_tail() -> None:
    stream, _, nodes = made(25)
    assert stream.node_count == 3
    nodes.max_bytes = 21
    stream.append(100, 0, b"x")  # 5 entries of 4 bytes and this one: full
    assert stream.capture().tail is None
    assert [(first, first_id >> 64) for first, first_id, _ in stream.capture().nodes] == [(0, 1), (10, 11), (20, 21)]
    stream.append(101, 0, b"x" * 50)
    assert stream.capture().nodes[-1][:2] == (26, 101 << 64)


@pytest.mark.parametrize(("max_entries", "max_bytes"), [(1, 1000), (7, 1000), (512, 1), (512, 40), (512, 41), (5, 40)])
def test_a_run_makes_the_same_nodes_as_single_appends(max_entries: int, max_bytes: int) -> None:
    made_by = []
    for in_runs in (False, True):
        stream, _, nodes = made(3, max_entries=100)
        nodes.max_entries, nodes.max_bytes = max_entries, max_bytes
        entries = [b"%d" % number * (number % 9) for number in range(60)]
        if in_runs:
            stream.append_run(9, 5, entries[:1])
            stream.append_run(9, 6, [])
            stream.append_run(9, 6, entries[1:])
        else:
            for number, wire in enumerate(entries):
                stream.append(9, 5 + number, wire)
        made_by.append(stream.capture())
    assert made_by[0] == made_by[1]


def test_a_capture_holds_what_the_store_lacks() -> None:
    stream, store, _ = made(25)
    first = checkpoint(stream, store)
    assert [ordinal for ordinal, _, _ in first.nodes] == [0, 10]
    assert first.tail is not None
    assert (first.tail[0], first.tail[1] >> 64, len(open_node(first.tail[2]))) == (20, 21, 5)
    second = stream.capture()
    assert (second.nodes, second.tail) == ([], first.tail)
    for number in range(25, 32):
        stream.append(number + 1, 0, b"<%d>" % number)
    third = stream.capture()
    assert [ordinal for ordinal, _, _ in third.nodes] == [20]
    assert third.tail is not None
    assert third.tail[0] == 30
    assert [ordinal for ordinal, _, _ in stream.capture().nodes] == [20]  # until it is stored it is captured again


def test_stored_nodes_leave_memory() -> None:
    stream, store, nodes = made(20_000, max_entries=500)
    before = stream.memory_bytes()
    checkpoint(stream, store)
    assert stream.memory_bytes() < before / 10
    nodes.cache.clear()
    assert stream.read(4_000, 4_010) == wires(4_000, 4_010)
    assert (store.loads, len(nodes.cache)) == (1, 1)
    assert stream.read(4_100, 4_110) == wires(4_100, 4_110)
    assert store.loads == 1  # from the cache


def test_long_replies_leave_the_cache_alone() -> None:
    stream, store, nodes = made(1_000)
    checkpoint(stream, store)
    nodes.cache.clear()
    pieces, _ = stream.pieces(5, 995)
    assert b"".join(pieces) == wires(5, 995)
    assert len(nodes.cache) == 0


def test_pieces_open_only_what_they_give() -> None:
    stream, store, nodes = made(1_005)
    checkpoint(stream, store)
    for lo, hi, expected in ((1_000, 1_005, 1), (15, 15, 0), (10, 20, 1), (19, 21, 2), (995, 1_002, 2)):
        nodes.cache.clear()
        for pieces, close in (stream.pieces(lo, hi), stream.pieces_reverse(lo, hi)):
            assert sum(1 for _ in pieces) == expected
            close()
    assert store.pins == 0


def test_pieces_are_bounded_by_a_node() -> None:
    stream, _, _ = made(1_000)
    pieces, close = stream.pieces(0, 1_000)
    assert max(map(len, pieces)) == len(wires(990, 1_000))
    close()


def test_a_closed_reader_says_so() -> None:
    stream, store, _ = made(100)
    checkpoint(stream, store)
    pieces, close = stream.pieces(0, 100)
    next(pieces)
    close()
    with pytest.raises(RuntimeError, match="after its close"):
        next(pieces)
    assert store.pins == 0


def test_an_abandoned_reader_frees_its_view() -> None:
    stream, store, _ = made(100)
    pieces, close = stream.pieces(0, 100)
    next(pieces)
    del pieces, close
    assert store.pins == 0


def test_after_a_restart_the_last_node_grows_on() -> None:
    stream, store, nodes = made(25)
    checkpoint(stream, store)
    stream = reborn(store, nodes)
    assert stream.read(0, 25) == wires(0, 25)
    loads = store.loads
    stream = reborn(store, nodes)
    assert store.loads == loads  # nothing is read before it is needed
    stream.append(26, 0, b"<25>")
    assert (stream.node_count, store.loads, len(nodes.cache)) == (3, loads + 1, 0)
    capture = stream.capture()
    assert capture.nodes == []
    assert capture.tail is not None
    assert capture.tail[0] == 20
    assert stream.read(0, 26) == wires(0, 26)
    for number in range(26, 30):
        stream.append(number + 1, 0, b"<%d>" % number)
    nodes.max_entries = 100
    stream.append(31, 0, b"<30>")  # but once only: what it seals itself stays sealed
    assert stream.node_count == 4


@pytest.mark.parametrize("limits", [(5, 1 << 16), (10, 20)])
def test_after_a_restart_a_full_last_node_stays(limits: tuple[int, int]) -> None:
    stream, store, nodes = made(25)
    checkpoint(stream, store)
    nodes.max_entries, nodes.max_bytes = limits
    stream = reborn(store, nodes)
    stream.append(26, 0, b"<25>")
    assert stream.node_count == 4
    assert stream.read(0, 26) == wires(0, 26)
    capture = stream.capture()
    assert capture.tail is not None
    assert capture.tail[0] == 25


def test_after_a_restart_of_an_emptied_stream_dead_nodes_are_passed_over() -> None:
    stream, store, nodes = made(25)
    checkpoint(stream, store)
    stream.evict_before(25, 25 << 64)
    checkpoint(stream, store)
    assert store.firsts(1)  # the store can't know where its last node ends
    stream = reborn(store, nodes)
    assert (stream.node_count, stream.length, stream.last_id, stream.first_id()) == (0, 0, 25 << 64, 0)
    assert stream.ord_from(0) == 25
    stream.append(26, 0, b"<25>")
    assert stream.read(25, 26) == b"<25>"
    assert stream.find(3 << 64) is None


def test_dead_nodes_that_the_store_still_has_are_passed_over() -> None:
    stream, store, nodes = made(45)
    checkpoint(stream, store)
    stream.evict_before(20, 20 << 64)
    store.metas[1] = stream.meta()
    assert store.firsts(1) == [0, 10, 20, 30, 40]
    stream = reborn(store, nodes)
    assert (stream.node_count, stream.first_id() >> 64) == (3, 21)
    assert stream.read(20, 45) == wires(20, 45)


def test_a_reader_passes_over_a_cached_node_that_ends_elsewhere() -> None:
    stream, _, nodes = made(20)
    short, _, _ = made(4)
    short_capture = short.capture()
    assert short_capture.tail is not None
    pieces, _ = stream.pieces(2, 18)
    nodes.cache.put(1, 0, open_node(short_capture.tail[2]))
    assert b"".join(pieces) == wires(2, 18)


def test_a_failed_append_adds_nothing() -> None:
    stream, _, _ = made(0)
    for entries in (0, 3):
        for number in range(stream.next_ord, entries):
            stream.append(number + 1, 0, b"<%d>" % number)
        with pytest.raises(TypeError):  # fails where there being no memory would
            stream.append(1_000, 0, None)  # type: ignore[arg-type]
        assert (stream.next_ord, stream.last_id, stream.node_count) == (entries, entries << 64, int(entries > 0))
        assert stream.read(0, entries) == wires(0, entries)
        assert stream.find(1_000 << 64) is None


def test_eviction_finds_its_border_in_the_index_alone() -> None:
    stream, store, nodes = made(10_000)
    checkpoint(stream, store)
    nodes.cache.clear()
    assert stream.evict_before(5_005, 5_005 << 64) == 5_005
    assert stream.ord_from(17) == 5_005
    assert stream.find(17 << 64) is None
    assert stream.first_id() == 5_006 << 64
    assert (stream.node_count, store.loads) == (500, 1)  # first_id() opened one
    assert stream.evict_before(10_000, 10_000 << 64) == 4_995
    assert (stream.node_count, stream.memory_bytes() < 30_000) == (0, True)


def test_wire_size_stays_near_the_truth() -> None:
    stream, store, nodes = made(5_000, max_entries=500)
    assert len(wires(100, 110)) <= stream.wire_size(100, 110) <= 10 * 6
    stream.append(9_000, 0, b"x" * 1_000_000)
    for number in range(5_001, 9_000):
        stream.append(number + 9_000, 0, b"<%d>" % number)
    assert stream.wire_size(5_000, 5_001) >= 1_000_000
    assert stream.wire_size(8_990, 9_000) <= 60  # the tail is exact
    checkpoint(stream, store)
    assert reborn(store, nodes).wire_size(5_000, 5_001) >= 1_000_000
    assert stream.wire_size(7, 7) == 0


def test_wire_size_after_a_restart_knows_the_tail() -> None:
    stream, store, nodes = made(0)
    stream.append(1, 0, b"x" * 5_000)
    stream.append(2, 0, b"y")
    checkpoint(stream, store)
    assert reborn(store, nodes).wire_size(0, 1) >= 5_000


# -- damage ------------------------------------------------------------------------------------------------------
def test_metadata_golden() -> None:
    stream, _, _ = made(3)
    stream.evict_before(1, 1 << 64)
    # version, last ID, next_ord, first_ord, evicted_to, sealed entries and bytes, largest entry and node, crc32
    raw = bytes.fromhex(
        """01  0000000000000003 0000000000000000  0000000000000003  0000000000000001  00000000000000010000000000000000
        0000000000000000 0000000000000000  0000000000000003 0000000000000009  3be0e787"""
    )
    assert stream.meta() == raw
    assert Stream.restore(1, raw, stream.nodes).meta() == raw


def test_damaged_metadata_is_refused() -> None:
    stream, _, nodes = made(30)
    meta = stream.meta()
    for at in range(len(meta)):
        with pytest.raises(CorruptError, match="stream 7"):
            Stream.restore(7, meta[:at] + bytes([meta[at] ^ 1 << at % 8]) + meta[at + 1 :], nodes)
        with pytest.raises(CorruptError, match="stream 7"):
            Stream.restore(7, meta[:at], nodes)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ([(10, 11)], "lacks the first"),
        ([(0, 1), (20, 21), (10, 11)], "out of order"),
        ([(0, 1), (10, 11), (20, 11)], "out of order"),
        ([(0, 1), (10, 11), (20, 21), (25, 26)], "behind the stream's end"),
    ],
)
def test_stored_nodes_that_do_not_fit_are_refused(keys: list[tuple[int, int]], text: str) -> None:
    stream, store, nodes = made(25)
    checkpoint(stream, store)
    stream = Stream.restore(1, store.metas[1], nodes)
    for first, ms in keys[:-1]:
        stream.add_stored_node(first, ms << 64)
    with pytest.raises(CorruptError, match=text):
        stream.add_stored_node(keys[-1][0], keys[-1][1] << 64)


def test_a_node_that_is_missing_or_another_is_refused_when_read() -> None:
    stream, store, nodes = made(40)
    checkpoint(stream, store)
    stream = Stream.restore(1, store.metas[1], nodes)
    for first, ms in ((0, 1), (20, 21), (30, 31)):  # the key of the second is lost
        stream.add_stored_node(first, ms << 64)
    nodes.cache.clear()
    assert stream.read(20, 40) == wires(20, 40)
    for lo in (5, 15):
        with pytest.raises(CorruptError, match=r"stream 1, entries 0 to 19"):
            stream.read(lo, lo + 1)
    stream = reborn(store, nodes)
    store.blobs[1, 10] = store.blobs[1, 10][0], store.blobs[1, 20][1]
    with pytest.raises(CorruptError, match="belongs elsewhere"):
        stream.read(12, 13)
    pieces, close = stream.pieces(0, 40)
    with pytest.raises(CorruptError, match="belongs elsewhere"):
        list(pieces)
    close()
    assert store.pins == 0
