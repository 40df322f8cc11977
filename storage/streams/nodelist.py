"""A stream's nodes and marks: what ``stream`` and ``streamreads`` stand on. Here entries are added.

See ``stream`` for the rules.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from resp.errors import CorruptError
from storage.groups.group import Group
from storage.model.tombstones import Marks
from storage.nodes.appendlist import ENTRY_BYTES as LOOSE_BYTES
from storage.nodes.appendlist import LARGE as LARGE_LOOSE
from storage.nodes.appendlist import LIST_BYTES, MOST, STEP, add, begun, first_id, join, sealed_blob
from storage.nodes.draft import Draft, WrittenDraft
from storage.nodes.index import INDEX_BYTES, NODE_BYTES, NodeIndex
from storage.nodes.node import OVERHEAD, TailNode, sealed
from storage.nodes.packed import AnyNode, open_stored
from storage.nodes.pool import NodePool
from storage.streams.producers import Producers

# Shared by all streams without sealed nodes, so that 100,000 small ones stay cheap. Never changed.
NO_INDEX: Final = NodeIndex()
NO_BLOBS: Final[dict[int, bytes | Draft]] = {}

NO_SIZES: Final[list[int]] = []  # never changed, nor the next
NO_PARTS: Final[list[bytes]] = []

NOT_CODED: Final = 1024  # bytes: nodes whose entries are larger, on the average, are not coded (see ``coder``)
LARGE: Final = 4096  # bytes of entries that are not copied once more on their way
MOST_ADDED: Final = (1 << 63) - 1  # what clients take for an integer
STREAM_BYTES: Final = 440  # memory of an empty stream
BLOB_BYTES: Final = 150  # memory that a blob in ``_blobs`` takes besides its own bytes
ENTRY_BYTES: Final = 20  # of an entry in the tail: its ID and its end


class StreamNodes:
    """See ``stream``. ``sid`` is the stream's name in the store and is never used twice."""

    __slots__ = (
        "_blob_bytes", "_blobs", "_claimed", "_evicted_to", "_front", "_front_ord", "_index", "_largest_entry",
        "_largest_node", "_loose", "_marked", "_raised", "_reopen", "_sealed_bytes", "_sealed_entries", "_tail",
        "_tail_bytes", "_tail_ord", "_together", "deleted", "dirty", "first_ord", "groups", "idmp_most", "idmp_ms",
        "last_ms", "last_seq", "lone", "marks", "max_deleted", "next_ord", "pool", "producers", "shift", "sid", "used",
    )  # fmt: skip

    def __init__(self, sid: int, pool: NodePool) -> None:
        # First what an append uses: compiled, attributes lie in this order, and of 100,000 streams none is in a cache.
        # Booleans take a byte each, if they lie together.
        self.pool = pool
        pool.bytes += STREAM_BYTES
        self._loose: list[Any] | None = None  # the tail's last entries (see ``loose``); never empty
        self._tail_bytes = 0  # of wire in the tail, if some of it is loose
        self._tail_ord = 0  # first ordinal of the tail; next_ord if there is no tail
        self.last_ms = 0  # last ID given out, or set by XSETID; 0, 0 until the first entry
        self.last_seq = 0
        self.next_ord = 0  # entries ever added
        self.dirty = False  # changed since the last capture; kept by the keyspace
        self._together = False  # the tail is read: what comes is joined at once
        self._reopen = False  # the last node in the index may become the tail, or its beginning
        self.lone = False  # it lives without entries and groups, even if it never had an entry
        self.used = 0  # ms since epoch of the last command that looked at it, 0 if there was none; kept by the keyspace
        self.sid = sid
        self._tail: TailNode | None = None  # the tail, but for what is loose; never empty
        self.first_ord = 0  # the oldest living entry; next_ord if there is none
        self.shift = 0  # entries_added is so much above next_ord
        self.marks: Marks | None = None  # of dead entries from first_ord on; None if there are none
        self.deleted = 0  # entries ever deleted one by one
        self.max_deleted = 0  # the highest of their IDs, or set by XSETID
        self.producers: Producers | None = None
        self.idmp_ms = 0  # how long the IDs of producers are remembered, and how many of each; 0: never set
        self.idmp_most = 0
        self.groups: dict[bytes, Group] = {}
        self._evicted_to = 0  # see evicted_to
        self._front: AnyNode | None = None  # if that is to be looked up: the node of the entry before first_ord ...
        self._front_ord = 0  # ... and its first ordinal
        self._index = NO_INDEX
        self._blobs = NO_BLOBS  # first ordinal -> blob or draft not yet stored, ascending
        self._blob_bytes = 0  # of those, in memory
        self._raised = -1  # the last ID is not that of the last entry as long as this is next_ord
        self._marked: Marks | None = None  # what ``marks`` is; without marks, what a capture must still take
        self._claimed = 0  # marks that the restored metadata promises
        # of all nodes ever sealed, evicted ones included
        self._sealed_entries = 0
        self._sealed_bytes = 0  # of blobs
        self._largest_entry = 0  # bytes of wire
        self._largest_node = 0  # bytes of wire

    @property
    def last_id(self) -> int:
        return self.last_ms << 64 | self.last_seq

    @property
    def evicted_to(self) -> int:
        """ID of the newest evicted entry, 0 if none. It is looked up when somebody asks: see ``_note_evicted``."""
        front = self._front
        if front is not None:
            self._evicted_to = front.sure_id_at(self.first_ord - 1 - self._front_ord)
            self._front = None
        return self._evicted_to

    @property
    def length(self) -> int:
        """Living entries."""
        marks = self.marks
        return self.next_ord - self.first_ord - (0 if marks is None else marks.total)

    @property
    def entries_added(self) -> int:
        """Entries ever added, as far as XSETID has not said otherwise; at the largest number it stays."""
        return min(self.next_ord + self.shift, MOST_ADDED)

    @property
    def node_count(self) -> int:
        return len(self._index) + (self.next_ord > self._tail_ord)

    # -- appending -------------------------------------------------------------------------------------------
    def append(self, ms: int, seq: int, wire: bytes) -> None:
        """Add an entry whose ID is above last_id. All or nothing, also without memory (MemoryError)."""
        loose = self._loose
        size = len(wire)
        if loose is None:
            if self._together:
                self._append_joined(ms, seq, wire)
                return
            self._begin_loose(ms, seq, wire)
        elif len(loose) >= MOST and size < LARGE_LOOSE:
            self._join(loose)
            self.append(ms, seq, wire)
            return
        else:
            add(loose, ms, seq, wire)
        pool = self.pool
        pool.bytes += size + LOOSE_BYTES
        size += self._tail_bytes
        self._tail_bytes = size
        self.last_ms = ms
        self.last_seq = seq
        self.next_ord += 1
        if size >= pool.max_bytes or self.next_ord - self._tail_ord >= pool.max_entries:
            loose = self._loose
            if loose is not None and self._are_large(size, self.next_ord - self._tail_ord):
                self._seal_loose(loose, 0, 0, NO_SIZES, NO_PARTS)
                return
            tail = self._whole_tail()
            if tail is not None:
                self._seal(tail)

    def _are_large(self, size: int, count: int) -> bool:
        """Whether the tail with its ``count`` entries of ``size`` bytes is sealed without joining it first."""
        return self._tail is None and size > NOT_CODED * count

    def _begin_loose(self, ms: int, seq: int, wire: bytes) -> None:
        if self._reopen and self._tail is None and self._blobs:
            self._reopen_last()
        tail = self._tail
        self._loose = begun(ms, seq, wire)
        if tail is None:
            self._tail_ord = self.next_ord
            self._tail_bytes = 0
        else:
            self._tail_bytes = len(tail.wire)
        self.pool.bytes += LIST_BYTES

    def _join(self, loose: list[Any]) -> TailNode:
        """Make the loose entries a part of the tail's node; returns it."""
        tail = TailNode() if self._tail is None else self._tail
        count = len(loose) // STEP
        join(loose, tail)
        self._loose = None
        self.pool.bytes += (ENTRY_BYTES - LOOSE_BYTES) * count - LIST_BYTES
        if self._tail is None:
            self._tail = tail
            self.pool.bytes += OVERHEAD
        return tail

    def _whole_tail(self) -> TailNode | None:
        """The tail, for those who read it."""
        if self._loose is not None:
            self._together = True
            return self._join(self._loose)
        return self._tail

    def _append_joined(self, ms: int, seq: int, wire: bytes) -> None:
        """append(), to the tail's node. No entry is loose."""
        tail = self._tail
        if tail is None:
            tail = self._open_tail()
        held = tail.wire
        held += wire  # first what may fail
        size = len(held)
        tail.add(ms, seq, size)
        pool = self.pool
        if self._tail is None:  # only now: it is never empty
            self._tail = tail
            pool.bytes += OVERHEAD
        pool.bytes += len(wire) + ENTRY_BYTES
        self.last_ms = ms
        self.last_seq = seq
        self.next_ord += 1
        if size >= pool.max_bytes or len(tail.ends) >= pool.max_entries:
            self._seal(tail)

    def append_packed(self, ms: int, seq: int, sizes: array[int], wire: bytes) -> None:
        """Add a batch of entries, joined, with the IDs ms.seq, ms.seq + 1 ...; ``sizes``: bytes of each.

        Does the same as that many append()s.
        """
        at = start = 0
        total = len(sizes)
        pool = self.pool
        if self._loose is not None:
            self._join(self._loose)
        while at < total:
            tail = self._tail
            if tail is None:
                tail = self._open_tail()
            held = end = len(tail.wire)
            most = pool.max_bytes
            ends: list[int] = []
            for size in sizes[at : at + max(1, pool.max_entries - len(tail.ends))].tolist():
                end += size
                ends.append(end)
                if end >= most:  # the entry that exceeds the limit is the last
                    break
            count, stop = len(ends), start + end - held
            if stop - start == len(wire):
                tail.wire += wire  # first what may fail
            elif stop - start < LARGE:
                tail.wire += wire[start:stop]
            else:
                tail.wire += memoryview(wire)[start:stop]
            self._extended(tail, ms, seq + at, ends, end - held)
            at += count
            start = stop

    def _extended(self, tail: TailNode, ms: int, seq: int, ends: list[int], size: int) -> None:
        """The wire of the tail, or of what becomes the tail, has grown by ``size`` bytes: entries from ms.seq on, which
        end at ``ends``."""
        pool, count = self.pool, len(ends)
        tail.extend(ms, seq, ends)
        if self._tail is None:
            self._tail = tail
            pool.bytes += OVERHEAD
        pool.bytes += size + ENTRY_BYTES * count
        self.last_ms, self.last_seq = ms, seq + count - 1
        self.next_ord += count
        if len(tail.wire) >= pool.max_bytes or len(tail.ends) >= pool.max_entries:
            self._seal(tail)

    def append_parts(self, ms: int, seq: int, sizes: array[int], parts: list[bytes], counts: list[int]) -> None:
        """append_packed() with entries in parts, so many each."""
        at = here = 0
        total = len(sizes)
        pool = self.pool
        if self._tail is None and not (self._reopen or self._together):
            at, here = self._seal_parts(ms, seq, sizes, parts, counts)
        if at < total and self._loose is not None:
            self._join(self._loose)
        while at < total:
            tail = self._tail
            if tail is None:
                tail = self._open_tail()
            held = end = len(tail.wire)
            most = pool.max_bytes
            stop = min(total, at + max(1, pool.max_entries - len(tail.ends)))
            ends: list[int] = []
            there = here
            first = at
            while at < stop and (end < most or not ends):
                end += sizes[at]
                there += counts[at]
                ends.append(end)
                at += 1
            tail.wire = bytearray().join([tail.wire, *parts[here:there]])  # first what may fail; copied only once
            here = there
            self._extended(tail, ms, seq + first, ends, end - held)

    def _seal_parts(
        self, ms: int, seq: int, sizes: array[int], parts: list[bytes], counts: list[int]
    ) -> tuple[int, int]:  # fmt: skip
        """append_parts() while the tail is loose, or empty: nodes are sealed from the parts. Returns how many entries
        and parts were added; the others are not as large."""
        at = here = 0
        total = len(sizes)
        pool = self.pool
        while at < total:
            loose = self._loose
            end = 0 if loose is None else self._tail_bytes
            count = 0 if loose is None else self.next_ord - self._tail_ord
            first, there = at, here
            while at < total and (at == first or (end < pool.max_bytes and count < pool.max_entries)):
                end += sizes[at]
                there += counts[at]
                count += 1
                at += 1
            if not self._are_large(end, count):
                return first, here
            if end >= pool.max_bytes or count >= pool.max_entries:
                self._seal_loose(loose or [], ms, seq + first, sizes[first:at].tolist(), parts[here:there])
                here = there
            else:
                while first < at:
                    there = here + counts[first]
                    self.append(ms, seq + first, b"".join(parts[here:there]))
                    here = there
                    first += 1
        return at, here

    def _open_tail(self) -> TailNode:
        if self._reopen:
            self._reopen_last()
        if self._tail is None:
            self._tail_ord = self.next_ord
            return TailNode()
        return self._tail

    def adopt(self, draft: Draft, ms: int, seq: int) -> None:
        """Add a draft's entries, whose IDs are ms.seq, ms.seq + 1 ..., all above last_id."""
        tail = self._whole_tail()
        if tail is not None:
            if not self._is_dead(self._tail_ord, self.next_ord, tail.id_at(0)):
                self._adopt(WrittenDraft(tail), self._tail_ord, tail.id_at(0))
            self._drop_tail()
        self._adopt(draft, self.next_ord, ms << 64 | seq)
        self.next_ord += len(draft)
        self.last_ms, self.last_seq = ms, seq + len(draft) - 1
        self._tail_ord = self.next_ord
        self._reopen = True

    def _adopt(self, draft: Draft, first: int, first_id: int) -> None:
        self._push(first, first_id, draft, draft.size)
        self._largest_entry = max(self._largest_entry, draft.largest)
        self._largest_node = max(self._largest_node, draft.wire_bytes)

    def _push(self, first: int, first_id: int, blob: bytes | Draft, size: int) -> None:
        """Add a node to the index; its blob takes ``size`` bytes of memory until it is stored."""
        if self._index is NO_INDEX:
            self._index = NodeIndex()
            self.pool.bytes += INDEX_BYTES
        if self._blobs is NO_BLOBS:
            self._blobs = {}
        self._blobs[first] = blob
        self._blob_bytes += size
        self._index.push(first, first_id)
        self.pool.bytes += NODE_BYTES + BLOB_BYTES + size
        self.pool.unstored += size

    def _last_node(self, more: int) -> TailNode | None:
        """A copy of the last node of the index, if it has room for all entries after it, which take ``more`` bytes."""
        index, pool = self._index, self.pool
        last = len(index.ords) - 1
        if last < index.head or self.next_ord - index.ords[last] >= pool.max_entries:
            return None
        node = self._node(last).unpack()
        if len(node.wire) + more >= pool.max_bytes or len(node) != self._tail_ord - index.ords[last]:
            return None
        return TailNode.of(node)

    def _reopen_last(self) -> None:
        """Make the last node of the index the tail, if it has room. There is no tail."""
        tail = self._last_node(0)
        self._reopen = False
        if tail is not None:
            self._take_last()
            self._tail = tail
            self.pool.bytes += tail.size

    def _take_last(self) -> None:
        """The last node of the index is a part of the tail from now on."""
        index, pool = self._index, self.pool
        first = index.pop()
        pool.bytes -= NODE_BYTES
        pool.cache.drop(self.sid, first)
        self._drop_blob(first)
        self._tail_ord = first

    def rejoin(self) -> None:
        """Make one tail of the last node of the index, which was the tail before, and of what came after it, if it has
        room.

        A start that opened each of 100,000 tails again, only because entries follow, would take a second longer. So
        where a node is in the store that is left to the next checkpoint. A damaged one stays: who reads it is told.
        """
        loose, tail = self._loose, self._tail
        if loose is not None:
            more = self._tail_bytes
        elif tail is not None:
            more = len(tail.wire)
        else:
            return
        try:
            whole = self._last_node(more)
        except CorruptError:
            whole = None
        self._reopen = False
        if whole is None:
            return
        if tail is not None:
            end = len(whole.wire)
            whole.ends.extend([end + one for one in tail.ends])
            whole.ms.extend(tail.ms)
            whole.seq.extend(tail.seq)
            whole.wire += tail.wire
        size = self._tail_size()
        self._take_last()
        self._tail = whole
        if loose is not None:
            self._tail_bytes = len(whole.wire) + sum([len(wire) for wire in loose[::STEP]])
        self.pool.bytes += self._tail_size() - size

    def _seal(self, tail: TailNode) -> None:
        """The tail is full. It isn't put into the cache, which is for nodes that are read."""
        self._reopen = False
        first = tail.id_at(0)
        if not self._is_dead(self._tail_ord, self.next_ord, first):
            self._keep(first, len(tail), len(tail.wire), sealed(tail))
        self._drop_tail()
        self._tail_ord = self.next_ord

    def _seal_loose(self, loose: list[Any], ms: int, seq: int, sizes: list[int], parts: list[bytes]) -> None:
        """_seal() of a tail that is loose, together with entries in parts that come behind it, with the IDs ms.seq,
        ms.seq + 1 ... and of so many bytes each. They are large ones."""
        self._reopen = False
        if not loose:
            self._tail_ord = self.next_ord
        first = first_id(loose) if loose else ms << 64 | seq
        count, end = len(loose) // STEP + len(sizes), self.next_ord + len(sizes)
        size = (self._tail_bytes if loose else 0) + sum(sizes)
        if not self._is_dead(self._tail_ord, end, first):
            self._keep(first, count, size, sealed_blob(loose, ms, seq, sizes, parts))  # first what may fail
        if sizes:
            self.last_ms, self.last_seq = ms, seq + len(sizes) - 1
        self.next_ord = end
        self._drop_tail()
        self._tail_ord = end

    def _keep(self, first: int, count: int, size: int, made: tuple[bytes, int]) -> None:
        """Add a sealed node of ``count`` entries: its blob, and bytes of its largest entry."""
        blob, largest = made
        self._push(self._tail_ord, first, blob, len(blob))
        self._sealed_entries += count
        self._sealed_bytes += len(blob)
        self._largest_entry = max(self._largest_entry, largest)
        self._largest_node = max(self._largest_node, size)

    def _drop_tail(self) -> None:
        self.pool.bytes -= self._tail_size()
        self._tail = self._loose = None
        self._together = False

    def _tail_size(self) -> int:
        """Bytes of memory that the tail takes, roughly."""
        loose, tail = self._loose, self._tail
        if loose is None:
            return 0 if tail is None else tail.size
        count = len(loose) // STEP
        size = self._tail_bytes + LIST_BYTES + LOOSE_BYTES * count
        return size if tail is None else size + OVERHEAD + ENTRY_BYTES * (self.next_ord - self._tail_ord - count)

    # -- nodes -----------------------------------------------------------------------------------------------
    def _node(self, position: int) -> AnyNode:
        """The node at a position of the index."""
        index, pool = self._index, self.pool
        first = index.ords[position]
        node = pool.cache.get(self.sid, first)
        if node is None:
            first_id = index.first_id(position)
            blob = self._blobs.get(first)
            if isinstance(blob, Draft):
                node = blob.unpack()
            else:
                blob = blob or pool.store.load(self.sid, first, first_id)
                node = open_stored(blob, self.sid, first, first_id, self._end(position) - first, self.marks)
            pool.cache.put(self.sid, first, node)
        return node

    def _end(self, position: int) -> int:
        """The ordinal after the last entry of the node at a position, and after the dead ones behind it."""
        position += 1
        ords = self._index.ords
        return ords[position] if position < len(ords) else self._tail_ord

    def _is_dead(self, first: int, end: int, first_id: int) -> bool:
        """Whether the node of [first, end) has no living entry; then the store is told to forget it.

        One that has some dead ones is noted for capture().
        """
        marks = self.marks
        dead = 0 if marks is None else marks.count(first, end)
        if marks is None or not dead:
            return False
        if dead == end - first:
            marks.dead_nodes.append((first, first_id))
            marks.thin.discard(first)
            return True
        marks.thin.add(first)
        return False

    def _drop_nodes(self, first_ords: array[int]) -> None:
        """Nodes at the front are gone. Of 100,000 most are neither in ``_blobs`` nor in the cache."""
        self.pool.cache.drop_many(self.sid, first_ords)
        blobs, last = self._blobs, first_ords[-1]
        for first in first_ords if len(first_ords) <= len(blobs) else [first for first in blobs if first <= last]:
            self._drop_blob(first)

    def _drop_blob(self, first_ord: int) -> None:
        blob = self._blobs.pop(first_ord, None)
        if blob is not None:
            size = blob.size if isinstance(blob, Draft) else len(blob)
            self._blob_bytes -= size
            self.pool.bytes -= BLOB_BYTES + size
            self.pool.unstored -= size
            self.pool.dropped += size
