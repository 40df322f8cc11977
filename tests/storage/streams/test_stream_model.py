"""Streams against a plain list: everything in any order, with checkpoints, restarts and snapshots that outlive them."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage.model.entries import entry_wire, id_bulk
from storage.model.ids import MASK64, MAX_ID
from storage.nodes import coder
from storage.nodes.cache import NodeCache
from storage.nodes.draft import Draft, StagedDraft
from storage.nodes.node import new_compressor
from storage.nodes.packed import AnyNode
from storage.nodes.pool import NodePool
from storage.nodes.stagedentries import StagedChunk
from storage.streams.capture import StreamCapture
from storage.streams.selection import Selection
from storage.streams.stream import Stream
from tests.storage.nodes.nodestore import MemoryStore, backward, opened

# A change as a journal would hold it: last ID, entries added and highest deleted ID; an ID and its entry's bytes; an ID
# and the ordinal up to which entries were evicted; ordinals of deleted entries
Effect = tuple[int, int, int] | tuple[int, bytes] | tuple[int, int] | list[int]


@dataclass
class Model:
    """The stream as a list. ``log`` is what a journal would hold; ``applied`` how much of it the store has."""

    ids: list[int] = field(default_factory=list)  # of all entries ever
    wires: list[bytes] = field(default_factory=list)
    first: int = 0  # the oldest living entry
    evicted_to: int = 0
    last: int = 0  # the last ID
    shift: int = 0
    dead: set[int] = field(default_factory=set)  # ordinals, from the first on
    deleted: int = 0
    max_deleted: int = 0
    log: list[Effect] = field(default_factory=list)
    applied: int = 0

    def living(self, lo: int, hi: int) -> list[int]:
        return [ordinal for ordinal in range(lo, hi) if ordinal not in self.dead]

    def begin_at(self, first: int) -> None:
        while first in self.dead:
            first += 1
        self.first = first
        self.dead = {ordinal for ordinal in self.dead if ordinal >= first}


@dataclass
class Reader:
    """A pieces() under way."""

    pieces: Iterator[bytes]
    close: Callable[[], None]
    expected: bytes
    got: bytes = b""


@dataclass
class Picked:
    """Entries that are picked, and read later."""

    picks: Selection = field(default_factory=Selection)
    expected: list[bytes | None] = field(default_factory=list)


class StreamMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.nodes = NodePool(self.store, NodeCache(4000))
        self.nodes.max_entries = 4
        self.nodes.max_bytes = 100
        self.sid = 0
        self.readers: list[Reader] = []
        self.picked: list[Picked] = []
        self.sealing: list[Draft] = []  # sealed in a thread, and not replaced yet
        self.late = False  # the ID of the newest evicted entry is looked up later
        self.create()

    def written(self, entry_id: int, value: bytes) -> bytes:
        """The bytes of an entry: of any, as nodes don't look into them, or as here."""
        return value

    def part(self, value: bytes) -> bytes:
        """The bytes of a bare entry behind its ID."""
        return value

    def create(self) -> None:
        self.sid += 1
        self.stream = Stream(self.sid, self.nodes)
        self.model = Model()
        self.capture: tuple[StreamCapture, int] | None = None

    def apply(self, stream: Stream, entry: Effect) -> None:
        """One logged effect."""
        if isinstance(entry, list):
            stream.delete(entry, self.model.ids[entry[-1]])
        elif len(entry) == 3:
            stream.set_last_id(*entry)
        elif isinstance(entry[1], bytes):
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
        last = self.model.last
        new = last + seq + 1 if not ms else ((last >> 64) + ms) << 64 | seq
        if new > MAX_ID:
            return
        wire = self.written(new, wire)
        self.model.ids.append(new)
        self.model.wires.append(wire)
        self.model.last = new
        self.model.log.append((new, wire))
        self.apply(self.stream, self.model.log[-1])

    @rule(count=st.integers(1, 12), size=st.integers(0, 3))
    def append_some(self, count: int, size: int) -> None:
        for number in range(count):
            self.append(0, 0, b"%d" % number * size)

    @rule(ms=st.sampled_from([1, 7, 1 << 33]), parts=st.lists(st.binary(max_size=60), max_size=14))
    def append_packed(self, ms: int, parts: list[bytes]) -> None:
        last = self.model.last
        first = ((last >> 64) + ms) << 64
        parts = [self.written(first + number, part) for number, part in enumerate(parts)]
        self.stream.append_packed(first >> 64, 0, array("I", map(len, parts)), b"".join(parts))
        for number, wire in enumerate(parts):
            self.model.ids.append(first + number)
            self.model.wires.append(wire)
            self.model.last = first + number
            self.model.log.append((first + number, wire))

    @rule(ms=st.sampled_from([1, 1, 7, 1 << 33]), parts=st.lists(st.binary(max_size=60), min_size=1, max_size=6))
    def adopt(self, ms: int, parts: list[bytes]) -> None:
        """Entries that get their IDs later; a restart finds them one by one."""
        last = self.model.last
        first = ((last >> 64) + ms) << 64 | last & 1023
        parts = [self.part(part) for part in parts]
        bares = [b"*2\r\n\r\n" + part for part in parts]
        draft = StagedDraft(
            first >> 64, first & 1023, [StagedChunk.of(b"k", array("I", map(len, bares)), b"".join(bares))]
        )
        self.stream.adopt(draft, first >> 64, first & 1023)
        for number, part in enumerate(parts):
            text = b"%d.%d" % (first >> 64, (first & 1023) + number)
            self.model.ids.append(first + number)
            self.model.wires.append(b"*2\r\n$%d\r\n%b\r\n%b" % (len(text), text, part))
            self.model.last = first + number
            self.model.log.append((first + number, self.model.wires[-1]))

    def evict(self, border: int) -> None:
        model = self.model
        if border > model.first:
            gone = model.living(model.first, border)
            to = self.stream.id_before(border)
            assert to == model.ids[gone[-1]]
            model.evicted_to = to
            model.begin_at(border)
            model.log.append((to, border))
            evicted = self.stream.evict_before(border) if self.late else self.stream.evict_before(border, to)
            assert evicted == len(gone)

    @rule(late=st.booleans())
    def ask_for_evicted_to(self, late: bool) -> None:
        assert self.stream.evicted_to == self.model.evicted_to
        self.late = late

    @rule(keep=st.integers(0, 20))
    def evict_by_count(self, keep: int) -> None:
        self.evict(self.stream.ahead(self.stream.next_ord, keep))
        assert self.stream.length <= max(keep, 0)

    def delete_some(self, ordinals: list[int]) -> None:
        model = self.model
        if ordinals:
            model.dead.update(ordinals)
            model.deleted += len(ordinals)
            model.max_deleted = max(model.max_deleted, model.ids[ordinals[-1]])
            model.begin_at(model.first)
            model.log.append(ordinals)
            self.apply(self.stream, ordinals)

    @rule(data=st.data())
    def delete_one(self, data: st.DataObject) -> None:
        living = self.model.living(self.model.first, len(self.model.ids))
        if living:
            self.delete_some([data.draw(st.sampled_from(living))])

    @rule(data=st.data(), step=st.sampled_from([1, 1, 2, 3]))
    def delete_many(self, data: st.DataObject, step: int) -> None:
        lo, hi = self.span(data)
        living = self.model.living(lo, hi)[::step]
        ids = [self.model.ids[ordinal] for ordinal in living]
        assert self.stream.ords_of([0, *ids, MAX_ID]) == living
        self.delete_some(living)
        assert self.stream.ords_of(ids) == []

    @rule(data=st.data())
    def evict_by_time(self, data: st.DataObject) -> None:
        ids = self.model.ids[self.model.first :]
        now = data.draw(st.sampled_from(ids)) if ids else 5
        self.evict(self.stream.ord_from(now >> 64 << 64))
        assert self.stream.first_id() >= now >> 64 << 64 or not self.stream.length

    @rule(ahead=st.sampled_from([0, 1, 5, 1 << 64]), added=st.integers(0, 100))
    def set_last_id(self, ahead: int, added: int) -> None:
        model = self.model
        model.last += ahead
        model.shift = added - len(model.ids)
        model.max_deleted = min(model.last, model.max_deleted + 1)
        model.log.append((model.last, added, model.max_deleted))
        self.apply(self.stream, model.log[-1])

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
        self.stream.gone()
        assert (self.nodes.bytes, self.nodes.unstored) == (0, 0)
        for first in self.store.firsts(self.sid):
            del self.store.blobs[self.sid, first]
        self.create()

    # -- full nodes that are compressed later ----------------------------------------------------------------------
    @rule(most=st.sampled_from([0, 1, 2000, 1 << 30]))
    def limit_drafts(self, most: int) -> None:
        self.nodes.most_drafted = most

    @rule(size=st.sampled_from([0, 1000, 1 << 30]))
    def seal_drafts(self, size: int) -> None:
        self.sealing = self.nodes.oldest_drafts(size)
        for draft in self.sealing:
            draft.seal(new_compressor())

    @rule()
    def replace_drafts(self) -> None:
        self.nodes.replace_drafts(self.sealing)
        assert not any(draft in self.nodes.drafts for draft in self.sealing)

    # -- checkpoints and restarts ------------------------------------------------------------------------------
    @precondition(lambda self: self.capture is None)
    @rule()
    def begin_checkpoint(self) -> None:
        model, capture = self.model, self.stream.capture()
        ends = []
        node: AnyNode
        for first, first_id, blob in [*capture.nodes, *([capture.active] if capture.active else [])]:
            node = opened(blob) if isinstance(blob, bytes) else blob.unpack()
            ends.append(first + len(node))
            assert first_id == model.ids[first]
            assert node.ids(0, len(node)) == model.ids[first : ends[-1]]
            assert node.slice(0, len(node)) == b"".join(model.wires[first : ends[-1]])
        assert all(end > model.first for end in ends)  # nothing that is evicted
        assert capture.first_ord == model.first
        for first, first_id, runs in capture.sparse:
            assert first_id == model.ids[first]
            alive = [first + at for start, stop in runs for at in range(start, stop)]
            assert alive == model.living(max(first, model.first), alive[-1] + 1)
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
        taken = [blob for _, _, blob in capture.nodes]  # where one was, another may be: of a draft that went on
        again = self.stream.capture()
        self.stream.uncaptured(again)
        assert not [blob for _, _, blob in again.nodes if any(blob is old for old in taken)]

    @precondition(lambda self: self.capture is not None)
    @rule()
    def fail_checkpoint(self) -> None:
        assert self.capture is not None
        self.stream.uncaptured(self.capture[0])
        self.capture = None

    @precondition(lambda self: self.sid in self.store.metas)
    @rule()
    def restart(self) -> None:
        """What is in the store, then what was logged since."""
        self.nodes.cache.clear()
        self.capture = None
        self.stream.gone()
        stream = Stream.restore(self.sid, self.store.metas[self.sid], self.nodes)
        loads = self.store.loads
        for first in self.store.firsts(self.sid):
            stream.add_stored_node(first, self.store.blobs[self.sid, first][0])
        for (sid, chunk), container in sorted(self.store.tombstones.items()):
            if sid == self.sid:
                stream.restore_tombstones(chunk, container)
        stream.all_nodes_added()
        assert self.store.loads == loads  # keys only
        assert stream.meta() == self.store.metas[self.sid]
        for entry in self.model.log[self.model.applied :]:
            self.apply(stream, entry)
        self.stream = stream

    # -- reading ---------------------------------------------------------------------------------------------
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        lo, hi = self.span(data)
        living = self.model.living(lo, hi)
        wires = [self.model.wires[ordinal] for ordinal in living]
        ids = [self.model.ids[ordinal] for ordinal in living]
        loads = self.store.loads
        assert self.stream.wire_size(lo, hi) >= len(b"".join(wires))
        assert self.store.loads == loads  # from the index
        assert self.stream.read(lo, hi) == b"".join(wires)
        assert self.stream.read_reverse(lo, hi) == wires[::-1]
        assert self.stream.each(lo, hi) == wires
        assert self.stream.ids(lo, hi) == ids
        assert self.stream.count(lo, hi) == len(ids)
        for some in (1, len(ids) // 2, len(ids)):
            if 0 < some <= len(ids):
                assert self.stream.count(lo, self.stream.after(lo, some)) == some
                assert self.stream.count(self.stream.ahead(hi, some), hi) == some
        if living:
            lo = living[0]
            for place in (self.stream.position_of(lo), self.stream.seek(self.model.ids[lo])):
                assert place.ordinal == lo
                raws = [entry_id.to_bytes(16, "big") for entry_id in ids]
                assert self.stream.raw_ids(place, hi) == raws
                for limit in (20, 1000):  # a node ends with the entry that exceeds 100 bytes, of 30 at most
                    assert self.stream.at_hand(place, hi, limit) in (None, b"".join(wires))
            assert self.stream.id_at(lo) == ids[0]
            assert self.stream.id_before(hi) == ids[-1]

    @rule(data=st.data(), step=st.sampled_from([-1, 0, 0, 1]))
    def find(self, data: st.DataObject, step: int) -> None:
        model = self.model
        probe = data.draw(st.sampled_from([0, 5 << 64, MAX_ID, *model.ids])) + step
        if 0 <= probe <= MAX_ID + 1:
            at = bisect_left(model.ids, probe)
            living = model.living(max(model.first, at), len(model.ids))
            assert self.stream.ord_from(probe) == (living[0] if living else len(model.ids))
            there = bool(living) and model.ids[living[0]] == probe
            found = self.stream.locate(probe)
            assert (None if found is None else found.ordinal) == (at if there else None)
            assert self.stream.find(probe) == (model.wires[at] if there else None)

    @precondition(lambda self: len(self.readers) < 4)
    @rule(data=st.data(), newest_first=st.booleans())
    def begin_reader(self, data: st.DataObject, newest_first: bool) -> None:
        lo, hi = self.span(data)
        wires = [self.model.wires[ordinal] for ordinal in self.model.living(lo, hi)]
        pieces, close = backward(self.stream, lo, hi) if newest_first else self.stream.pieces(lo, hi)
        self.readers.append(Reader(pieces, close, b"".join(wires[::-1] if newest_first else wires)))

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
        assert self.store.pins == self.pinned()
        reader.close()

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def give_up_reader(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        self.readers.remove(reader)
        reader.close()
        reader.close()

    @rule(data=st.data(), new=st.booleans())
    def pick(self, data: st.DataObject, new: bool) -> None:
        """Entries in any order, some twice, some missing, at several moments."""
        if new and len(self.picked) < 3:
            self.picked.append(Picked())
        if not self.picked:
            return
        one = data.draw(st.sampled_from(self.picked))
        for entry_id in data.draw(st.lists(st.sampled_from([0, MAX_ID, *self.model.ids]), max_size=8)):
            place = self.stream.locate(entry_id)
            one.expected.append(self.stream.find(entry_id))
            assert (place is None) == (one.expected[-1] is None)
            if place is None:
                one.picks.add_missing()
            else:
                self.stream.pick(place, one.picks)
        assert len(one.picks) == len(one.expected)

    @precondition(lambda self: self.picked)
    @rule(data=st.data(), to_the_end=st.booleans())
    def read_picks(self, data: st.DataObject, to_the_end: bool) -> None:
        one = data.draw(st.sampled_from(self.picked))
        self.picked.remove(one)
        if to_the_end:
            assert [wire for wires in one.picks.entries() for wire in wires] == one.expected
        else:
            one.picks.close()
        one.picks.close()
        assert one.picks.memory_bytes() >= 8 * len(one.expected)

    def pinned(self) -> int:
        """Views of the store that are in use."""
        return len(self.readers) + sum(len(one.picks._views) for one in self.picked)

    # -- what always holds -----------------------------------------------------------------------------------
    @invariant()
    def stats_are_right(self) -> None:
        model, stream = self.model, self.stream
        assert (stream.first_ord, stream.next_ord) == (model.first, len(model.ids))
        living = model.living(model.first, len(model.ids))
        assert stream.length == len(living)
        assert (stream.tombstones is None) == (not model.dead)
        assert stream.tombstones is None or stream.tombstones.marked(0, len(model.ids)) == sorted(model.dead)
        assert (stream.deleted, stream.max_deleted) == (model.deleted, model.max_deleted)
        assert stream.newest_id() == (model.ids[living[-1]] if living else 0)
        assert self.nodes.bytes == stream.memory_bytes()
        held = [blob for blob in stream._sealed.blobs.values() if isinstance(blob, Draft)]
        assert list(self.nodes.drafts) == held
        assert self.nodes.drafted == sum([draft.size for draft in held])
        assert stream.last_id == model.last
        assert stream.entries_added == len(model.ids) + model.shift
        assert stream.first_id() == (model.ids[model.first] if stream.length else 0)
        assert self.late or stream.evicted_to == model.evicted_to
        assert (stream.node_count > 0) == (stream.length > 0)
        assert stream.node_count <= stream.length + 1  # the tail may have no living entry
        assert stream.disk_bytes() >= 0
        assert self.store.pins == self.pinned()
        assert 0 <= self.nodes.cache.bytes <= self.nodes.cache.max_bytes
        assert len(self.nodes.cache) <= stream.node_count  # what is dead has left it

    def teardown(self) -> None:
        for reader in list(self.readers):
            reader.got += b"".join(reader.pieces)
            self.end(reader)
        for one in self.picked:
            assert [wire for wires in one.picks.entries() for wire in wires] == one.expected


class CodedStreamMachine(StreamMachine):
    """Entries with numbers and texts that return, in larger nodes: most of these are coded, whatever that saves."""

    def __init__(self) -> None:
        self.eager = patch.object(coder, "SMALL", 10_000)
        self.eager.start()
        super().__init__()
        self.nodes.max_entries = 9
        self.nodes.max_bytes = 2000

    def written(self, entry_id: int, value: bytes) -> bytes:
        return entry_wire(id_bulk(entry_id >> 64, entry_id & MASK64), [coded_value(value)])

    def part(self, value: bytes) -> bytes:
        value = coded_value(value)
        return b"$%d\r\n%b\r\n" % (len(value), value)

    def teardown(self) -> None:
        super().teardown()
        self.eager.stop()


def coded_value(value: bytes) -> bytes:
    return b"%d" % sum(value) if len(value) % 4 else b"%.1f" % (sum(value) / 7)


TestCodedStreamMachine = CodedStreamMachine.TestCase
TestCodedStreamMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)

TestStreamMachine = StreamMachine.TestCase
TestStreamMachine.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)
