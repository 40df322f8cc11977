"""One stream: an interval of ordinals [first_ord, next_ord), kept as macro nodes.

Rule 1: an entry's ordinal never changes. Appending moves next_ord up, eviction first_ord; counts are differences.
Rule 2: sealed nodes are immutable. Until a checkpoint has stored one its blob is in ``_blobs``, or a draft of it (see
``draft``); after, it is read back through ``nodes.store``, and kept open in ``nodes.cache`` as far as that has room.
Rule 3: the tail is the only mutable node. A stream just restored has none, nor has one that drafts were added to: the
next append pulls the last node back. Where nodes end depends on the limits at the time and on restarts; nothing may
rely on it.
Rule 4: nothing reads a stream whole: what is long comes in pieces, from a snapshot.

    ordinals   first_ord                                    _tail_ord       next_ord
                  |    node      node     node      node        |    tail      |
    [..trimmed..|ooooooo][oooooooooooo][ooooooooo][ooooooooooooo][ooooooooooooo>
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from struct import Struct
from typing import Final
from zlib import crc32

from resp.errors import CorruptError
from storage.capture import StreamCapture
from storage.groups.group import Group
from storage.nodes.draft import Draft, WrittenDraft
from storage.nodes.index import NodeIndex
from storage.nodes.node import TailNode, seal
from storage.nodes.packed import AnyNode, open_stored
from storage.nodes.pool import Nodes
from storage.snapshot import Snapshot

# A stream's metadata as the store keeps it, numbers big-endian u64 unless said:
#
#     0     1         9          17         25          33            49        57       65         73        81      85
#     +-----+---------+----------+----------+-----------+-------------+---------+--------+----------+---------+-------+
#     | 1 u8| last ms | last seq | next_ord | first_ord | evicted_to  | sealed  | sealed | largest  | largest | crc32 |
#     |     |         |          |          |           | u128        | entries | bytes  | entry    | node    | u32   |
#     +-----+---------+----------+----------+-----------+-------------+---------+--------+----------+---------+-------+
#
# Valid if it is 85 bytes long, starts with the version, and the crc32 is that of the 81 bytes before it.
META_VERSION: Final = 1
META: Final = Struct(">BQQQQ16sQQQQ")
CRC: Final = Struct(">I")

# What streams without sealed nodes share, so that 100,000 small ones stay cheap. Never written to.
_NO_INDEX: Final = NodeIndex()
_NO_BLOBS: Final[dict[int, bytes | Draft]] = {}


class Stream:
    """See the module's docstring. ``sid`` names the stream in the store and is never used twice."""

    __slots__ = (
        "_blob_bytes", "_blobs", "_index", "_largest_entry", "_largest_node", "_reopen", "_sealed_bytes",
        "_sealed_entries", "_tail", "_tail_ord", "dirty", "evicted_to", "first_ord", "groups", "last_ms", "last_seq",
        "next_ord", "nodes", "sid", "used",
    )  # fmt: skip

    def __init__(self, sid: int, nodes: Nodes) -> None:
        self.sid = sid
        self.nodes = nodes
        self.last_ms = 0  # last generated ID; 0, 0 until the first entry
        self.last_seq = 0
        self.next_ord = 0  # entries ever added
        self.first_ord = 0  # entries ever evicted
        self.evicted_to = 0  # ID of the newest evicted entry, 0 if none
        self.groups: dict[bytes, Group] = {}
        self.dirty = False  # changed since the last capture; kept by the keyspace
        self.used = 0  # ms since epoch of the last command that looked at it, 0 if none did yet; kept by the keyspace
        self._index = _NO_INDEX
        self._blobs = _NO_BLOBS  # first ordinal -> blob or draft not yet stored, ascending
        self._blob_bytes = 0  # of those, in memory
        self._tail: TailNode | None = None  # never empty
        self._tail_ord = 0  # first ordinal of the tail; next_ord if there is no tail
        self._reopen = False  # the last node in the index may become the tail again
        # of all nodes ever sealed, those gone included
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
        self._tail = tail  # a new one only now: it is never empty
        self.last_ms = ms
        self.last_seq = seq
        self.next_ord += 1
        nodes = self.nodes
        if size >= nodes.max_bytes or len(tail.ends) >= nodes.max_entries:
            self._seal(tail)

    def append_run(self, ms: int, seq: int, wires: Sequence[bytes]) -> None:
        """Add entries with the IDs ms.seq, ms.seq + 1, ...: the same as that many append()s, at less cost."""
        self.append_packed(ms, seq, array("I", list(map(len, wires))), b"".join(wires))

    def append_packed(self, ms: int, seq: int, sizes: array[int], wire: bytes) -> None:
        """The same of entries that are joined already; ``sizes``: bytes of each."""
        at = start = 0
        total = len(sizes)
        nodes = self.nodes
        while at < total:
            tail = self._tail
            if tail is None:
                tail = self._open_tail()
            held = len(tail.wire)
            ends = list(accumulate(sizes[at : at + max(1, nodes.max_entries - len(tail.ends))], initial=held))
            del ends[0]
            if ends[-1] > nodes.max_bytes:
                del ends[bisect_left(ends, nodes.max_bytes) + 1 :]  # the entry that passes the limit is the last
            count, stop = len(ends), start + ends[-1] - held
            tail.wire += wire if stop - start == len(wire) else wire[start:stop]  # first what may fail
            tail.extend(ms, seq + at, ends)
            self._tail = tail
            at += count
            start = stop
            self.last_ms, self.last_seq = ms, seq + at - 1
            self.next_ord += count
            if ends[-1] >= nodes.max_bytes or len(tail.ends) >= nodes.max_entries:
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
        """Add a draft's entries, which have the IDs ms.seq, ms.seq + 1 ..., all above last_id."""
        tail = self._tail
        if tail is not None:
            self._adopt(WrittenDraft(tail), self._tail_ord, tail.id_at(0))
            self._tail = None
        self._adopt(draft, self.next_ord, ms << 64 | seq)
        self.next_ord += len(draft)
        self.last_ms, self.last_seq = ms, seq + len(draft) - 1
        self._tail_ord = self.next_ord
        self._reopen = True

    def _adopt(self, draft: Draft, first: int, first_id: int) -> None:
        if self._index is _NO_INDEX:
            self._index = NodeIndex()
        if self._blobs is _NO_BLOBS:
            self._blobs = {}
        self._blobs[first] = draft
        self._blob_bytes += draft.size
        self._index.push(first, first_id)
        self._largest_entry = max(self._largest_entry, draft.largest)
        self._largest_node = max(self._largest_node, draft.wire_bytes)

    def _reopen_last(self) -> TailNode | None:
        """The last node of the index as the tail, if it has room."""
        index, nodes = self._index, self.nodes
        last = len(index.ords) - 1
        if last < index.head or self.next_ord - index.ords[last] >= nodes.max_entries:
            return None
        node = self._node(last).unpack()
        if len(node.wire) >= nodes.max_bytes:
            return None
        nodes.cache.drop(self.sid, index.ords[last])
        self._drop_blob(index.ords[last])
        self._tail_ord = index.pop()
        return TailNode.of(node)

    def _seal(self, tail: TailNode) -> None:
        """The tail is full. It does not go into the cache: that is for what is read."""
        first = self._tail_ord
        blob = seal(tail)
        if self._index is _NO_INDEX:
            self._index = NodeIndex()
        if self._blobs is _NO_BLOBS:
            self._blobs = {}
        self._blobs[first] = blob
        self._blob_bytes += len(blob)
        self._index.push(first, tail.id_at(0))
        self._sealed_entries += len(tail)
        self._sealed_bytes += len(blob)
        self._largest_entry = max(self._largest_entry, tail.largest())
        self._largest_node = max(self._largest_node, len(tail.wire))
        self._tail = None
        self._tail_ord = self.next_ord

    # -- finding ---------------------------------------------------------------------------------------------
    def _node(self, position: int) -> AnyNode:
        """The node at a position of the index."""
        index, nodes = self._index, self.nodes
        first, end = index.ords[position], self._end(position)
        node = nodes.cache.get(self.sid, first)
        if node is None:
            first_id = index.first_id(position)
            blob = self._blobs.get(first)
            if isinstance(blob, Draft):
                node = blob.unpack()
            else:
                blob = blob or nodes.store.load(self.sid, first, first_id)
                node = open_stored(blob, self.sid, first, first_id, end - first)
            nodes.cache.put(self.sid, first, node)
        nodes.cache.recent = (self.sid, first, end, node)
        return node

    def _end(self, position: int) -> int:
        """The ordinal behind the node at a position."""
        position += 1
        ords = self._index.ords
        return ords[position] if position < len(ords) else self._tail_ord

    def ord_from(self, id: int) -> int:  # noqa: A002
        """Ordinal of the first entry with an ID >= ``id``; next_ord if there is none."""
        if id > self.last_id:
            return self.next_ord
        if id <= self.evicted_to:
            return self.first_ord
        tail = self._tail
        if tail is not None and id >= tail.id_at(0):
            return self._tail_ord + tail.find_from(id)
        index = self._index
        position = index.of_id(id)
        if position < index.head:
            return self.first_ord
        return index.ords[position] + self._node(position).find_from(id)

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
        """Wire of the entry with that ID; None if it isn't there (any more)."""
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

    def ids(self, lo: int, hi: int) -> list[int]:
        """IDs of the entries with ordinals [lo, hi)."""
        found: list[int] = []
        for node, start, stop in self._spans(lo, hi):
            found += node.ids(start, stop)
        return found

    # -- reading: ordinals [lo, hi) must be live ---------------------------------------------------------------
    def wire_size(self, lo: int, hi: int) -> int:
        """At most so many bytes read(lo, hi) returns. An estimate from the index: it opens no node."""
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

    def at_hand(self, lo: int, hi: int, limit: int) -> bytes | None:
        """Their wire, if the tail or the node that a search just found has all of it and less than ``limit`` bytes."""
        tail = self._tail
        if tail is not None and lo >= self._tail_ord:
            return tail.slice(lo - self._tail_ord, hi - self._tail_ord) if len(tail.wire) < limit else None
        sid, first, end, node = self.nodes.cache.recent
        if sid == self.sid and first <= lo and hi <= end and self._largest_node < limit:
            return node.slice(lo - first, hi - first)
        return None

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
        """Node by node, the part of it that lies in [lo, hi)."""
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
        """Their wire node by node, from a snapshot taken now: nothing that happens later changes it.

        The second value frees what the snapshot pins; exhausting the first frees it too.
        """
        snapshot = self._snapshot(lo, hi)
        return snapshot.forward(), snapshot.close

    def pieces_reverse(self, lo: int, hi: int) -> tuple[Iterator[bytes], Callable[[], None]]:
        """The same, newest entry first."""
        snapshot = self._snapshot(lo, hi)
        return snapshot.backward(), snapshot.close

    def _snapshot(self, lo: int, hi: int) -> Snapshot:
        """O(nodes in the range) copying of arrays, O(those not yet stored) else."""
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
            tail = self._tail.freeze(max(lo - first, 0), hi - first)
        ids = index.ms[at:stop], index.seq[at:stop]
        return Snapshot(self.sid, lo, hi, self.nodes.cache, self.nodes.store.pin(), borders, ids, blobs, tail)

    # -- eviction --------------------------------------------------------------------------------------------
    def evict_before(self, ordinal: int, evicted_to: int) -> int:
        """Entries before ``ordinal`` (at most next_ord) go: whole nodes, and a trimmed one where that is in the middle.

        ``evicted_to`` is the ID of the newest that goes. Returns how many went.
        """
        gone = ordinal - self.first_ord
        if gone <= 0:
            return 0
        self.first_ord = ordinal
        self.evicted_to = evicted_to
        index = self._index
        head = index.head
        if head < len(index.ords) and self._end(head) <= ordinal:
            keep = index.of_ord(ordinal)  # position of the first node that has something left
            if self._end(keep) <= ordinal:
                keep += 1
            self._drop_nodes(index.ords[head:keep])
            index.drop_front(keep)
        if ordinal >= self.next_ord:
            self._tail = None
            self._tail_ord = self.next_ord
        return gone

    def _drop_nodes(self, first_ords: array[int]) -> None:
        """Nodes at the front are gone; of 100,000 most are neither in memory nor in the cache."""
        self.nodes.cache.drop_many(self.sid, first_ords)
        blobs, last = self._blobs, first_ords[-1]
        for first in first_ords if len(first_ords) <= len(blobs) else [first for first in blobs if first <= last]:
            self._drop_blob(first)

    def _drop_blob(self, first_ord: int) -> None:
        blob = self._blobs.pop(first_ord, None)
        if blob is not None:
            self._blob_bytes -= blob.size if isinstance(blob, Draft) else len(blob)

    # -- figures ---------------------------------------------------------------------------------------------
    def memory_bytes(self) -> int:
        """What the stream takes in memory, estimated; decoded nodes in the cache and groups are not counted."""
        total = 350 + self._blob_bytes + 150 * len(self._blobs)
        if self._index is not _NO_INDEX:
            total += self._index.memory_bytes()
        return total if self._tail is None else total + self._tail.size

    def disk_bytes(self) -> int:
        """What its entries take in the store, estimated from what a sealed entry has taken so far."""
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
        """The capture is stored, and ``nodes.store`` reads from there: its blobs leave memory.

        True if that changed what meta() says: now it is known how far drafts are compressed.
        """
        drafts = False
        for first, _, blob in capture.nodes:
            if isinstance(blob, Draft):
                drafts = True
                self._sealed_entries += len(blob)
                self._sealed_bytes += blob.sealed
            if self._blobs.get(first) is blob:  # a draft may have become the tail since, and a longer node
                self._drop_blob(first)
        return drafts

    def meta(self) -> bytes:
        """All but nodes and groups, as drawn above. The tail counts among the largest: it is stored as a node."""
        largest_entry, largest_node = self._largest_entry, self._largest_node
        if self._tail is not None:
            largest_entry = max(largest_entry, self._tail.largest())
            largest_node = max(largest_node, len(self._tail.wire))
        raw = META.pack(
            META_VERSION, self.last_ms, self.last_seq, self.next_ord, self.first_ord,
            self.evicted_to.to_bytes(16, "big"), self._sealed_entries, self._sealed_bytes, largest_entry, largest_node,
        )  # fmt: skip
        return raw + CRC.pack(crc32(raw))

    @classmethod
    def restore(cls, sid: int, meta: bytes, nodes: Nodes) -> Stream:
        """A stream from its meta(); its nodes follow by add_stored_node(). Raises CorruptError."""
        if len(meta) != META.size + CRC.size or CRC.unpack_from(meta, META.size)[0] != crc32(meta[: META.size]):
            raise CorruptError(f"the metadata of stream {sid} is damaged")
        stream = cls(sid, nodes)
        (
            version, stream.last_ms, stream.last_seq, stream.next_ord, stream.first_ord, evicted_to,
            stream._sealed_entries, stream._sealed_bytes, stream._largest_entry, stream._largest_node,
        ) = META.unpack_from(meta)  # fmt: skip
        if version != META_VERSION:
            raise CorruptError(f"the metadata of stream {sid} has version {version}: written by a newer tidelog?")
        stream.evicted_to = int.from_bytes(evicted_to, "big")
        stream._tail_ord = stream.next_ord
        stream._reopen = True
        return stream

    def add_stored_node(self, first_ord: int, first_id: int) -> None:
        """A node that the store holds; called in order. Dead ones that it still has are passed over.

        Raises CorruptError if it can't be this stream's, or if one before it is missing.
        """
        if first_ord >= self.next_ord:
            raise CorruptError(f"the store has a node of stream {self.sid} behind the stream's end")
        if self.first_ord == self.next_ord:
            return
        index = self._index
        if first_ord <= self.first_ord or index is _NO_INDEX:
            self._index = index = NodeIndex()  # whatever came before ends at or before first_ord: dead
            if first_ord > self.first_ord:
                raise CorruptError(f"the store lacks the first node of stream {self.sid}")
        elif first_ord <= index.ords[-1] or first_id <= index.first_id(len(index.ords) - 1):
            raise CorruptError(f"the store has the nodes of stream {self.sid} out of order")
        index.push(first_ord, first_id)
