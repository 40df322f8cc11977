"""One stream: an interval of ordinals [first_ord, next_ord), kept as macro nodes.

Rule 1: an entry's ordinal never changes. Appending moves next_ord up, eviction first_ord; counts are differences.
Rule 2: sealed nodes are immutable. Until a checkpoint has stored a node, its blob or a draft of it (see ``draft``) is
in ``_blobs``; after that it is read back through ``pool.store``, and opened nodes stay in ``pool.cache`` while there is
room.
Rule 3: the tail is the only mutable node. A stream has none just after it was restored or given drafts: the next append
makes the last node the tail again. Where nodes end depends on the limits at the time and on restarts; nothing may rely
on it.
Rule 4: nothing reads a whole stream at once: long ranges come in pieces, from a snapshot.
Rule 5: whatever changes memory_bytes() changes ``pool.bytes`` by as much.

    ordinals   first_ord                                    _tail_ord       next_ord
                  |    node      node     node      node        |    tail      |
    [..trimmed..|ooooooo][oooooooooooo][ooooooooo][ooooooooooooo][ooooooooooooo>
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Final

from resp.errors import CorruptError
from storage import streammeta
from storage.capture import StreamCapture
from storage.groups.group import Group
from storage.nodes.draft import Draft, WrittenDraft
from storage.nodes.index import INDEX_BYTES, NODE_BYTES, NodeIndex
from storage.nodes.node import OVERHEAD, TailNode, seal
from storage.nodes.packed import AnyNode, open_stored
from storage.nodes.pool import NodePool
from storage.place import Place
from storage.snapshot import Snapshot

# Shared by all streams without sealed nodes, so that 100,000 small ones stay cheap. Never changed.
_NO_INDEX: Final = NodeIndex()
_NO_BLOBS: Final[dict[int, bytes | Draft]] = {}

STREAM_BYTES: Final = 350  # memory of an empty stream
BLOB_BYTES: Final = 150  # memory that a blob in ``_blobs`` takes besides its own bytes
ENTRY_BYTES: Final = 20  # of an entry in the tail: its ID and its end


class Stream:
    """See the module's docstring. ``sid`` is the stream's name in the store and is never used twice."""

    __slots__ = (
        "_blob_bytes", "_blobs", "_index", "_largest_entry", "_largest_node", "_reopen", "_sealed_bytes",
        "_sealed_entries", "_tail", "_tail_ord", "dirty", "evicted_to", "first_ord", "groups", "last_ms", "last_seq",
        "next_ord", "pool", "sid", "used",
    )  # fmt: skip

    def __init__(self, sid: int, pool: NodePool) -> None:
        self.sid = sid
        self.pool = pool
        pool.bytes += STREAM_BYTES
        self.last_ms = 0  # last ID given out; 0, 0 until the first entry
        self.last_seq = 0
        self.next_ord = 0  # entries ever added
        self.first_ord = 0  # entries ever evicted
        self.evicted_to = 0  # ID of the newest evicted entry, 0 if none
        self.groups: dict[bytes, Group] = {}
        self.dirty = False  # changed since the last capture; kept by the keyspace
        self.used = 0  # ms since epoch of the last command that looked at it, 0 if there was none; kept by the keyspace
        self._index = _NO_INDEX
        self._blobs = _NO_BLOBS  # first ordinal -> blob or draft not yet stored, ascending
        self._blob_bytes = 0  # of those, in memory
        self._tail: TailNode | None = None  # never empty
        self._tail_ord = 0  # first ordinal of the tail; next_ord if there is no tail
        self._reopen = False  # the last node in the index may become the tail again
        # of all nodes ever sealed, evicted ones included
        self._sealed_entries = 0
        self._sealed_bytes = 0  # of blobs
        self._largest_entry = 0  # bytes of wire
        self._largest_node = 0  # bytes of wire

    @property
    def last_id(self) -> int:
        return self.last_ms << 64 | self.last_seq

    @property
    def length(self) -> int:
        return self.next_ord - self.first_ord

    @property
    def node_count(self) -> int:
        return len(self._index) + (self._tail is not None)

    # -- appending -------------------------------------------------------------------------------------------
    def append(self, ms: int, seq: int, wire: bytes) -> None:
        """Add an entry whose ID is above last_id. All or nothing, also without memory (MemoryError)."""
        tail = self._tail
        if tail is None:
            tail = self._open_tail()
        held = tail.wire
        held += wire  # first what may fail
        size = len(held)
        tail.ends.append(size)
        tail.ms.append(ms)
        tail.seq.append(seq)
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
        while at < total:
            tail = self._tail
            if tail is None:
                tail = self._open_tail()
            held = len(tail.wire)
            ends = list(accumulate(sizes[at : at + max(1, pool.max_entries - len(tail.ends))], initial=held))
            del ends[0]
            if ends[-1] > pool.max_bytes:
                del ends[bisect_left(ends, pool.max_bytes) + 1 :]  # the entry that exceeds the limit is the last
            count, stop = len(ends), start + ends[-1] - held
            tail.wire += wire if stop - start == len(wire) else wire[start:stop]  # first what may fail
            tail.extend(ms, seq + at, ends)
            if self._tail is None:
                self._tail = tail
                pool.bytes += OVERHEAD
            pool.bytes += ends[-1] - held + ENTRY_BYTES * len(ends)
            at += count
            start = stop
            self.last_ms, self.last_seq = ms, seq + at - 1
            self.next_ord += count
            if ends[-1] >= pool.max_bytes or len(tail.ends) >= pool.max_entries:
                self._seal(tail)

    def _open_tail(self) -> TailNode:
        if self._reopen:
            self._reopen = False
            self._tail = self._reopen_last()
        if self._tail is None:
            self._tail_ord = self.next_ord
            return TailNode()
        return self._tail

    def adopt(self, draft: Draft, ms: int, seq: int) -> None:
        """Add a draft's entries, whose IDs are ms.seq, ms.seq + 1 ..., all above last_id."""
        tail = self._tail
        if tail is not None:
            self._adopt(WrittenDraft(tail), self._tail_ord, tail.id_at(0))
            self._drop_tail(tail)
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
        if self._index is _NO_INDEX:
            self._index = NodeIndex()
            self.pool.bytes += INDEX_BYTES
        if self._blobs is _NO_BLOBS:
            self._blobs = {}
        self._blobs[first] = blob
        self._blob_bytes += size
        self._index.push(first, first_id)
        self.pool.bytes += NODE_BYTES + BLOB_BYTES + size
        self.pool.unstored += size

    def _reopen_last(self) -> TailNode | None:
        """The last node of the index as the tail, if it has room."""
        index, pool = self._index, self.pool
        last = len(index.ords) - 1
        if last < index.head or self.next_ord - index.ords[last] >= pool.max_entries:
            return None
        node = self._node(last).unpack()
        if len(node.wire) >= pool.max_bytes:
            return None
        pool.cache.drop(self.sid, index.ords[last])
        self._drop_blob(index.ords[last])
        self._tail_ord = index.pop()
        tail = TailNode.of(node)
        pool.bytes += tail.size - NODE_BYTES
        return tail

    def _seal(self, tail: TailNode) -> None:
        """The tail is full. It isn't put into the cache, which is for nodes that are read."""
        blob = seal(tail)
        self._push(self._tail_ord, tail.id_at(0), blob, len(blob))
        self._sealed_entries += len(tail)
        self._sealed_bytes += len(blob)
        self._largest_entry = max(self._largest_entry, tail.largest())
        self._largest_node = max(self._largest_node, len(tail.wire))
        self._drop_tail(tail)
        self._tail_ord = self.next_ord

    def _drop_tail(self, tail: TailNode) -> None:
        self._tail = None
        self.pool.bytes -= tail.size

    # -- finding ---------------------------------------------------------------------------------------------
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
                node = open_stored(blob, self.sid, first, first_id, self._end(position) - first)
            pool.cache.put(self.sid, first, node)
        return node

    def _end(self, position: int) -> int:
        """The ordinal after the last entry of the node at a position."""
        position += 1
        ords = self._index.ords
        return ords[position] if position < len(ords) else self._tail_ord

    def seek(self, id: int) -> Place:  # noqa: A002
        """The first entry with an ID >= ``id``; its ordinal is next_ord if there is none."""
        if id > self.last_id:
            return Place(self.next_ord, None, 0, 0)
        if id <= self.evicted_to:
            return Place(self.first_ord, None, 0, 0)
        tail = self._tail
        if tail is not None and id >= tail.id_at(0):
            first = self._tail_ord
            return Place(first + tail.find_from(id), tail, first, self.next_ord)
        index = self._index
        position = index.of_id(id)
        if position < index.head:
            return Place(self.first_ord, None, 0, 0)
        node, first = self._node(position), index.ords[position]
        return Place(first + node.find_from(id), node, first, self._end(position))

    def place(self, ordinal: int) -> Place:
        """A live entry, with its node."""
        if self._tail is not None and ordinal >= self._tail_ord:
            return Place(ordinal, self._tail, self._tail_ord, self.next_ord)
        position = self._index.of_ord(ordinal)
        return Place(ordinal, self._node(position), self._index.ords[position], self._end(position))

    def ord_from(self, id: int) -> int:  # noqa: A002
        """Ordinal of the first entry with an ID >= ``id``; next_ord if there is none."""
        return self.seek(id).ordinal

    def id_at(self, ordinal: int) -> int:
        """ID of a live entry."""
        if ordinal == self.next_ord - 1:
            return self.last_id
        if self._tail is not None and ordinal >= self._tail_ord:
            return self._tail.id_at(ordinal - self._tail_ord)
        position = self._index.of_ord(ordinal)
        first = self._index.ords[position]
        if first == ordinal:
            return self._index.first_id(position)
        return self._node(position).id_at(ordinal - first)

    def first_id(self) -> int:
        """ID of the oldest entry, 0 if there is none."""
        return self.id_at(self.first_ord) if self.first_ord < self.next_ord else 0

    def find(self, id: int) -> bytes | None:  # noqa: A002
        """Wire of the entry with that ID; None if there is none, or no longer."""
        if id <= self.evicted_to or id > self.last_id:
            return None
        tail = self._tail
        node: AnyNode
        if tail is not None and id >= tail.id_at(0):
            node = tail
        else:
            position = self._index.of_id(id)
            if position < self._index.head:
                return None
            node = self._node(position)
        at = node.find_from(id)
        if at == len(node) or node.id_at(at) != id:
            return None
        return node.slice(at, at + 1)

    def raw_ids(self, place: Place, hi: int) -> list[bytes]:
        """IDs of the entries from ``place`` to before ordinal ``hi``, each as 16 bytes, big-endian."""
        node = place.node
        if node is not None and hi <= place.end:
            return node.raw_ids(place.ordinal - place.first, hi - place.first)
        found: list[bytes] = []
        for node, start, stop in self._spans(place.ordinal, hi):
            found += node.raw_ids(start, stop)
        return found

    # -- reading: ordinals [lo, hi) must be live ---------------------------------------------------------------
    def wire_size(self, lo: int, hi: int) -> int:
        """Upper bound of the bytes that read(lo, hi) returns. An estimate from the index: it opens no node."""
        size = 0
        tail, first = self._tail, self._tail_ord
        if tail is not None and hi > first:
            start = max(lo - first, 0)
            size = tail.ends[hi - first - 1] - (tail.ends[start - 1] if start else 0)
            hi = first
        if lo >= hi:
            return size
        bound = (hi - lo) * self._largest_entry
        if bound > self._largest_node:
            count = self._index.of_ord(hi - 1) - self._index.of_ord(lo) + 1
            bound = min(bound, count * self._largest_node)
        return size + bound

    def at_hand(self, place: Place, hi: int, limit: int) -> bytes | None:
        """Wire of the entries from ``place`` to before ``hi``, if one node smaller than ``limit`` bytes has them."""
        tail, ordinal = self._tail, place.ordinal
        node, first, end = place.node, place.first, place.end
        if node is None:  # the range begins with the stream: no node was searched
            if tail is not None and ordinal >= self._tail_ord:
                node, first, end = tail, self._tail_ord, self.next_ord
            else:
                index = self._index
                position = index.head if ordinal == self.first_ord else index.of_ord(ordinal)
                node, first, end = self._node(position), index.ords[position], self._end(position)
        if hi > end or (len(tail.wire) if tail is not None and node is tail else self._largest_node) >= limit:
            return None
        return node.slice(ordinal - first, hi - first)

    def read(self, lo: int, hi: int) -> bytes:
        """Their wire."""
        return b"".join([node.slice(start, stop) for node, start, stop in self._spans(lo, hi)])

    def read_reverse(self, lo: int, hi: int) -> list[bytes]:
        """Their wire one by one, newest first."""
        wires: list[bytes] = []
        for node, start, stop in reversed(list(self._spans(lo, hi))):
            wires += node.each_reversed(start, stop)
        return wires

    def _spans(self, lo: int, hi: int) -> Iterator[tuple[AnyNode, int, int]]:
        """The nodes of [lo, hi), each with the start and stop of its part in the range."""
        index = self._index
        position = index.of_ord(lo)
        while lo < hi:
            if self._tail is not None and lo >= self._tail_ord:
                yield self._tail, lo - self._tail_ord, hi - self._tail_ord
                return
            first, stop = index.ords[position], min(hi, self._end(position))
            yield self._node(position), lo - first, stop - first
            lo = stop
            position += 1

    def pieces(self, lo: int, hi: int) -> tuple[Iterator[bytes], Callable[[], None]]:
        """Their wire node by node, from a snapshot taken now, which later changes don't affect.

        The second value frees what the snapshot pins; so does reading the first one to the end.
        """
        snapshot = self.snapshot(lo, hi)
        return snapshot.forward(), snapshot.close

    def pieces_reverse(self, lo: int, hi: int) -> tuple[Iterator[bytes], Callable[[], None]]:
        """The same, newest entry first."""
        snapshot = self.snapshot(lo, hi)
        return snapshot.backward(), snapshot.close

    def snapshot(self, lo: int, hi: int) -> Snapshot:
        """The caller closes it. Copies arrays of O(nodes in the range); everything else is O(nodes not yet stored)."""
        index, first = self._index, self._tail_ord
        at = stop = 0  # positions of the sealed nodes of the range
        if lo < min(hi, first):
            at, stop = index.of_ord(lo), index.of_ord(min(hi, first) - 1) + 1
        borders: array[int] = index.ords[at:stop]
        known = self._blobs
        blobs = {ordinal: known[ordinal] for ordinal in borders if ordinal in known} if known else {}
        if stop > at:
            borders.append(self._end(stop - 1))
        tail = None
        if self._tail is not None and hi > max(lo, first):
            tail = self._tail.part(max(lo - first, 0), hi - first)
        ids = index.ms[at:stop], index.seq[at:stop]
        return Snapshot(self.sid, lo, hi, self.pool.cache, self.pool.store.pin(), borders, ids, blobs, tail)

    # -- eviction --------------------------------------------------------------------------------------------
    def evict_before(self, ordinal: int, evicted_to: int) -> int:
        """Evict the entries before ``ordinal`` (at most next_ord): whole nodes, and a part of the one it falls into.

        ``evicted_to`` is the ID of the newest of them. Returns their number.
        """
        gone = ordinal - self.first_ord
        if gone <= 0:
            return 0
        self.first_ord = ordinal
        self.evicted_to = evicted_to
        index = self._index
        head = index.head
        if head < len(index.ords) and self._end(head) <= ordinal:
            keep = index.of_ord(ordinal)  # position of the first node with entries left
            if self._end(keep) <= ordinal:
                keep += 1
            self._drop_nodes(index.ords[head:keep])
            index.drop_front(keep)
            self.pool.bytes -= NODE_BYTES * (keep - head)
        if ordinal >= self.next_ord:
            if self._tail is not None:
                self._drop_tail(self._tail)
            self._tail_ord = self.next_ord
        return gone

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

    # -- stats -----------------------------------------------------------------------------------------------
    def memory_bytes(self) -> int:
        """Estimate of what the stream takes in memory, without opened nodes in the cache and without groups."""
        total = STREAM_BYTES + self._blob_bytes + BLOB_BYTES * len(self._blobs)
        if self._index is not _NO_INDEX:
            total += self._index.memory_bytes()
        return total if self._tail is None else total + self._tail.size

    def disk_bytes(self) -> int:
        """Estimate of what its entries take in the store, from the mean of the entries sealed so far."""
        raw = 0 if self._tail is None else self._tail.size
        if not self._sealed_entries:
            return raw
        sealed = max(0, self._tail_ord - self.first_ord)
        return raw + self._sealed_bytes * sealed // self._sealed_entries

    # -- checkpoints and start-up ----------------------------------------------------------------------------
    def capture(self) -> StreamCapture:
        """What the store lacks, as of now; O(nodes sealed since the last completed checkpoint)."""
        index = self._index
        nodes = [(first, index.first_id(index.of_ord(first)), blob) for first, blob in self._blobs.items()]
        tail = None
        if self._tail is not None:
            tail = (self._tail_ord, self._tail.id_at(0), seal(self._tail, compress=False))
        return StreamCapture(self.sid, self.meta(), self.first_ord, self.next_ord, nodes, tail)

    def captured(self, capture: StreamCapture) -> bool:
        """The capture is stored, and ``pool.store`` reads from it: its blobs leave memory.

        True if that changed meta(), because the sizes of sealed drafts are now known.
        """
        drafts = False
        for first, _, blob in capture.nodes:
            if isinstance(blob, Draft):
                drafts = True
                self._sealed_entries += len(blob)
                self._sealed_bytes += blob.sealed
            if self._blobs.get(first) is blob:  # a draft may have become the tail since, then a longer node
                self._drop_blob(first)
        return drafts

    def meta(self) -> bytes:
        """All but nodes and groups (see ``streammeta``). The tail counts among the largest: it is stored as a node."""
        largest_entry, largest_node = self._largest_entry, self._largest_node
        if self._tail is not None:
            largest_entry = max(largest_entry, self._tail.largest())
            largest_node = max(largest_node, len(self._tail.wire))
        return streammeta.pack(
            self.last_ms, self.last_seq, self.next_ord, self.first_ord, self.evicted_to, self._sealed_entries,
            self._sealed_bytes, largest_entry, largest_node,
        )  # fmt: skip

    @classmethod
    def restore(cls, sid: int, meta: bytes, pool: NodePool) -> Stream:
        """A stream from its meta(); its nodes follow by add_stored_node(). Raises CorruptError."""
        stream = cls(sid, pool)
        (
            stream.last_ms, stream.last_seq, stream.next_ord, stream.first_ord, stream.evicted_to,
            stream._sealed_entries, stream._sealed_bytes, stream._largest_entry, stream._largest_node,
        ) = streammeta.unpack(sid, meta)  # fmt: skip
        stream._tail_ord = stream.next_ord
        stream._reopen = True
        return stream

    def add_stored_node(self, first_ord: int, first_id: int) -> None:
        """Add a node that the store has, in order; evicted nodes that it still has are skipped.

        Raises CorruptError if the node can't be this stream's, or if one before it is missing.
        """
        if first_ord >= self.next_ord:
            raise CorruptError(f"the store has a node of stream {self.sid} beyond the stream's end")
        if self.first_ord == self.next_ord:
            return
        index = self._index
        if first_ord <= self.first_ord or index is _NO_INDEX:
            self._let_go_of_index()  # what came before ends at or before first_ord: it was evicted
            self._index = index = NodeIndex()
            self.pool.bytes += INDEX_BYTES
            if first_ord > self.first_ord:
                raise CorruptError(f"the store lacks the first node of stream {self.sid}")
        elif first_ord <= index.ords[-1] or first_id <= index.first_id(len(index.ords) - 1):
            raise CorruptError(f"the store has the nodes of stream {self.sid} out of order")
        index.push(first_ord, first_id)
        self.pool.bytes += NODE_BYTES

    def all_nodes_added(self) -> None:
        """Called after the last add_stored_node(). Raises CorruptError if what was added can't be all."""
        if self.first_ord == self.next_ord:
            return
        if self._index is _NO_INDEX:
            raise CorruptError(f"the store lacks the nodes of stream {self.sid}")
        if self._index.first_id(len(self._index.ords) - 1) > self.last_id:
            raise CorruptError(f"the store has a node of stream {self.sid} with IDs beyond the stream's last")

    def _let_go_of_index(self) -> None:
        if self._index is not _NO_INDEX:
            self.pool.bytes -= self._index.memory_bytes()

    def gone(self) -> None:
        """The stream was deleted: its memory no longer counts."""
        self.pool.bytes -= self.memory_bytes()
        self.pool.unstored -= self._blob_bytes
