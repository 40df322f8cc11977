"""The nodes of a stream, and appends to them. See ``stream`` for the rules.

Decision: the active node is part of the stream object. With 100,000 streams, no object that an append touches is in a
processor cache, and each separate object costs a wait for memory. The attributes that an append uses come first, since
compiled attributes are laid out in this order. Only the state of sealed nodes is in a separate object, which streams
without sealed nodes share.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from resp.errors import CorruptError
from storage.groups.group import Group
from storage.model.tombstones import Tombstones
from storage.nodes.appendlist import ENTRY_BYTES as LISTED_BYTES
from storage.nodes.appendlist import LARGE as LARGE_LISTED
from storage.nodes.appendlist import LIST_BYTES, MOST, STEP, add, begun, first_id, join, sealed_blob
from storage.nodes.draft import ActiveDraft, Draft, ListDraft, blob_bytes
from storage.nodes.index import INDEX_BYTES, NODE_BYTES, NodeIndex
from storage.nodes.node import OVERHEAD, ActiveNode, sealed
from storage.nodes.packed import AnyNode
from storage.nodes.pool import NodePool, open_sealed
from storage.streams.producers import Producers
from storage.streams.retention import NO_CHECK, RetentionPolicy
from storage.streams.tierafter import TierAfter

NO_SIZES: Final[list[int]] = []  # never changed, like the next ones
NO_PARTS: Final[list[bytes]] = []
NO_BLOBS: Final[dict[int, bytes | Draft]] = {}

NOT_CODED: Final = 1024  # bytes: nodes with a larger mean entry size are not coded (see ``coder``)
LARGE: Final = 4096  # bytes: larger entries are not copied an extra time
MOST_ADDED: Final = (1 << 63) - 1  # the largest integer that clients accept
STREAM_BYTES: Final = 376  # memory of an empty stream
SEALED_BYTES: Final = 65  # additional memory of a SealedNodes object
BLOB_BYTES: Final = 150  # memory of a blob in ``SealedNodes.blobs`` without its bytes
ENTRY_BYTES: Final = 20  # memory of an entry in the active node: its ID and its end


class SealedNodes(NodeIndex):
    """The index of a stream's sealed nodes, and the nodes that are not stored yet."""

    __slots__ = ("blob_bytes", "blobs", "bytes", "entries", "largest_entry", "largest_node")

    def __init__(self) -> None:
        super().__init__()
        self.blobs = NO_BLOBS  # first ordinal -> blob or draft that is not stored yet, ascending
        self.blob_bytes = 0  # memory of ``blobs``
        # totals over all nodes ever sealed, including evicted ones
        self.entries = 0
        self.bytes = 0  # total size of blobs
        self.largest_entry = 0  # wire bytes
        self.largest_node = 0  # wire bytes


NO_NODES: Final = SealedNodes()  # shared by all streams without sealed nodes; never changed


class StreamNodes:
    """The base class of Stream, with its nodes. ``sid`` identifies the stream in the store and is never reused."""

    __slots__ = (
        "_active", "_active_bytes", "_active_ord", "_append_list", "_evicted_to", "_front", "_front_ord", "_joins",
        "_raised", "_reopen", "_sealed", "_tombstones_to_capture", "deleted", "dirty", "first_ord", "groups", "last_ms",
        "check_from", "last_seq", "lone", "max_deleted", "next_ord", "pool", "producers", "retention", "shift", "sid",
        "tier_after", "tombstones", "used",
    )  # fmt: skip

    def __init__(self, sid: int, pool: NodePool) -> None:
        # Attributes that an append uses come first. Booleans take one byte each if they are adjacent.
        self.pool = pool
        pool.bytes += STREAM_BYTES
        self._append_list: list[Any] | None = None  # the last entries of the active node (``appendlist``); never empty
        self._active_bytes = 0  # wire bytes in the active node, if it has an append list
        self._active_ord = 0  # first ordinal of the active node; next_ord if there is none
        self.last_ms = 0  # last ID that was assigned, or set by XSETID; 0, 0 before the first entry
        self.last_seq = 0
        self.next_ord = 0  # number of entries ever added
        self.check_from = NO_CHECK  # the next_ord from which on the retention policy must be checked; see ``retaining``
        self.dirty = False  # changed since the last capture; set by the keyspace
        self._joins = False  # the active node is being read: new entries are joined immediately
        self._reopen = False  # the last node of the index, or a part of it, can become the active node
        self.lone = False  # the stream remains without entries and groups, even if it never had an entry
        self.used = 0  # ms since epoch of the last command that used it, 0: none yet; set by the keyspace
        self.sid = sid
        self._active: ActiveNode | None = None  # the active node without its append list; never empty
        self.first_ord = 0  # ordinal of the oldest living entry; next_ord if there is none
        self.shift = 0  # entries_added minus next_ord
        self.tombstones: Tombstones | None = None  # of deleted entries from first_ord on, or None
        self.deleted = 0  # number of entries ever deleted individually
        self.max_deleted = 0  # the highest ID of those, or the one set by XSETID
        self.producers: Producers | None = None
        self.retention: RetentionPolicy | None = None
        self.tier_after: TierAfter | None = None  # None: as configured
        self.groups: dict[bytes, Group] = {}
        self._evicted_to = 0  # see evicted_to
        # the node of the entry before first_ord, unless evicted_to was already read from it
        self._front: AnyNode | None = None
        self._front_ord = 0  # the first ordinal of that node
        self._sealed = NO_NODES
        self._raised = -1  # while this equals next_ord, the last ID is not that of the last entry
        self._tombstones_to_capture: Tombstones | None = None  # ``tombstones``, or an empty one with changes to store

    @property
    def last_id(self) -> int:
        return self.last_ms << 64 | self.last_seq

    @property
    def evicted_to(self) -> int:
        """The ID of the newest evicted entry, 0 if none. It is read from its node when needed (``_note_evicted``)."""
        front = self._front
        if front is not None:
            self._evicted_to = front.sure_id_at(self.first_ord - 1 - self._front_ord)
            self._front = None
        return self._evicted_to

    @property
    def length(self) -> int:
        """The number of living entries."""
        tombstones = self.tombstones
        return self.next_ord - self.first_ord - (0 if tombstones is None else tombstones.total)

    @property
    def entries_added(self) -> int:
        """The number of entries ever added, or the number set by XSETID; at most MOST_ADDED."""
        return min(self.next_ord + self.shift, MOST_ADDED)

    @property
    def node_count(self) -> int:
        return len(self._sealed) + (self.next_ord > self._active_ord)

    @property
    def has_draft(self) -> bool:
        """Whether the last full node waits to be compressed. Nodes are compressed in their order."""
        blobs = self._sealed.blobs
        return bool(blobs) and isinstance(next(reversed(blobs.values())), Draft)

    # -- appending -------------------------------------------------------------------------------------------
    def append(self, ms: int, seq: int, wire: bytes) -> None:
        """Add an entry whose ID is above last_id. Changes nothing if memory runs out (MemoryError)."""
        listed = self._append_list
        size = len(wire)
        if listed is None:
            if self._joins:
                self._append_joined(ms, seq, wire)
                return
            self._begin_list(ms, seq, wire)
        elif len(listed) >= MOST and size < LARGE_LISTED:
            self._join(listed)
            self.append(ms, seq, wire)
            return
        else:
            add(listed, ms, seq, wire)
        pool = self.pool
        pool.bytes += size + LISTED_BYTES
        size += self._active_bytes
        self._active_bytes = size
        self.last_ms = ms
        self.last_seq = seq
        self.next_ord += 1
        if size >= pool.max_bytes or self.next_ord - self._active_ord >= pool.max_entries:
            listed = self._append_list
            if listed is not None and self._are_large(size, self.next_ord - self._active_ord):
                self._seal_list(listed, 0, 0, NO_SIZES, NO_PARTS)
                return
            active = self._active_node()
            if active is not None:
                self._seal(active)

    def seal_from(self, size: int) -> None:
        """Seal the active node if it has at least ``size`` bytes, so that nodes are smaller than those of others."""
        active = self._active
        held = self._active_bytes if self._append_list is not None else 0 if active is None else len(active.wire)
        if held >= size:
            active = self._active_node()
            if active is not None:
                self._seal(active)

    def _are_large(self, size: int, count: int) -> bool:
        """Return whether an active node of ``count`` entries and ``size`` bytes is sealed without joining it first."""
        return self._active is None and size > NOT_CODED * count

    def _begin_list(self, ms: int, seq: int, wire: bytes) -> None:
        if self._reopen and self._active is None and self._sealed.blobs:
            self._reopen_last()
        active = self._active
        self._append_list = begun(ms, seq, wire)
        if active is None:
            self._active_ord = self.next_ord
            self._active_bytes = 0
        else:
            self._active_bytes = len(active.wire)
        self.pool.bytes += LIST_BYTES

    def _join(self, listed: list[Any]) -> ActiveNode:
        """Move the append list into the active node and return that node."""
        active = ActiveNode() if self._active is None else self._active
        count = len(listed) // STEP
        join(listed, active)
        self._append_list = None
        self.pool.bytes += (ENTRY_BYTES - LISTED_BYTES) * count - LIST_BYTES
        if self._active is None:
            self._active = active
            self.pool.bytes += OVERHEAD
        return active

    def _active_node(self) -> ActiveNode | None:
        """Return the complete active node, for readers."""
        if self._append_list is not None:
            self._joins = True
            return self._join(self._append_list)
        return self._active

    def _append_joined(self, ms: int, seq: int, wire: bytes) -> None:
        """Append to the active node. There is no append list."""
        active = self._active
        if active is None:
            active = self._open_active()
        held = active.wire
        held += wire  # first, since it can fail
        size = len(held)
        active.add(ms, seq, size)
        pool = self.pool
        if self._active is None:  # only now, since it is never empty
            self._active = active
            pool.bytes += OVERHEAD
        pool.bytes += len(wire) + ENTRY_BYTES
        self.last_ms = ms
        self.last_seq = seq
        self.next_ord += 1
        if size >= pool.max_bytes or len(active.ends) >= pool.max_entries:
            self._seal(active)

    def append_packed(self, ms: int, seq: int, sizes: array[int], wire: bytes) -> None:
        """Add joined entries with the IDs ms.seq, ms.seq + 1 ...; ``sizes``: the size of each.

        The result is the same as after that many calls of append().
        """
        at = start = 0
        total = len(sizes)
        pool = self.pool
        if self._append_list is not None:
            self._join(self._append_list)
        while at < total:
            active = self._active
            if active is None:
                active = self._open_active()
            held = end = len(active.wire)
            most = pool.max_bytes
            ends: list[int] = []
            for size in sizes[at : at + max(1, pool.max_entries - len(active.ends))].tolist():
                end += size
                ends.append(end)
                if end >= most:  # the entry that exceeds the limit is the last
                    break
            count, stop = len(ends), start + end - held
            if stop - start == len(wire):
                active.wire += wire  # first, since it can fail
            elif stop - start < LARGE:
                active.wire += wire[start:stop]
            else:
                active.wire += memoryview(wire)[start:stop]
            self._extended(active, ms, seq + at, ends, end - held)
            at += count
            start = stop

    def _extended(self, active: ActiveNode, ms: int, seq: int, ends: list[int], size: int) -> None:
        """Record entries from ms.seq on whose ``size`` bytes were appended to the active node, or to a new one.

        ``ends``: the end of each entry.
        """
        pool, count = self.pool, len(ends)
        active.extend(ms, seq, ends)
        if self._active is None:
            self._active = active
            pool.bytes += OVERHEAD
        pool.bytes += size + ENTRY_BYTES * count
        self.last_ms, self.last_seq = ms, seq + count - 1
        self.next_ord += count
        if len(active.wire) >= pool.max_bytes or len(active.ends) >= pool.max_entries:
            self._seal(active)

    def append_parts(self, ms: int, seq: int, sizes: array[int], parts: list[bytes], counts: list[int]) -> None:
        """Add entries in parts, like append_packed(). ``counts``: the number of parts of each entry."""
        at = here = 0
        total = len(sizes)
        pool = self.pool
        if self._active is None and not (self._reopen or self._joins):
            at, here = self._seal_parts(ms, seq, sizes, parts, counts)
        if at < total and self._append_list is not None:
            self._join(self._append_list)
        while at < total:
            active = self._active
            if active is None:
                active = self._open_active()
            held = end = len(active.wire)
            most = pool.max_bytes
            stop = min(total, at + max(1, pool.max_entries - len(active.ends)))
            ends: list[int] = []
            there = here
            first = at
            while at < stop and (end < most or not ends):
                end += sizes[at]
                there += counts[at]
                ends.append(end)
                at += 1
            active.wire = bytearray().join([active.wire, *parts[here:there]])  # first, since it can fail
            here = there
            self._extended(active, ms, seq + first, ends, end - held)

    def _seal_parts(
        self, ms: int, seq: int, sizes: array[int], parts: list[bytes], counts: list[int]
    ) -> tuple[int, int]:  # fmt: skip
        """Seal nodes directly from the parts, while the active node is empty or an append list.

        Returns how many entries and parts were added. The remaining entries are smaller.
        """
        at = here = 0
        total = len(sizes)
        pool = self.pool
        while at < total:
            listed = self._append_list
            end = 0 if listed is None else self._active_bytes
            count = 0 if listed is None else self.next_ord - self._active_ord
            first, there = at, here
            while at < total and (at == first or (end < pool.max_bytes and count < pool.max_entries)):
                end += sizes[at]
                there += counts[at]
                count += 1
                at += 1
            if not self._are_large(end, count):
                return first, here
            if end >= pool.max_bytes or count >= pool.max_entries:
                self._seal_list(listed or [], ms, seq + first, sizes[first:at].tolist(), parts[here:there])
                here = there
            else:
                while first < at:
                    there = here + counts[first]
                    self.append(ms, seq + first, b"".join(parts[here:there]))
                    here = there
                    first += 1
        return at, here

    def _open_active(self) -> ActiveNode:
        if self._reopen:
            self._reopen_last()
        if self._active is None:
            self._active_ord = self.next_ord
            return ActiveNode()
        return self._active

    def adopt(self, draft: Draft, ms: int, seq: int) -> None:
        """Add the entries of a draft, with the IDs ms.seq, ms.seq + 1 ..., all above last_id."""
        active = self._active_node()
        if active is not None:
            if not self._is_dead(self._active_ord, self.next_ord, active.id_at(0)):
                self._adopt(ActiveDraft(active), self._active_ord, active.id_at(0))
            self._drop_active()
        self._adopt(draft, self.next_ord, ms << 64 | seq)
        self.next_ord += len(draft)
        self.last_ms, self.last_seq = ms, seq + len(draft) - 1
        self._active_ord = self.next_ord
        self._reopen = True

    def _adopt(self, draft: Draft, first: int, first_id: int) -> None:
        """Add a full node, which another thread will compress."""
        self._push(first, first_id, draft, draft.size)
        self.pool.add_draft(draft, self, first)
        sealed = self._sealed
        sealed.largest_entry = max(sealed.largest_entry, draft.largest)
        sealed.largest_node = max(sealed.largest_node, draft.wire_bytes)

    def _push(self, first: int, first_id: int, blob: bytes | Draft, size: int) -> None:
        """Add a node to the index. Its blob takes ``size`` bytes of memory until it is stored."""
        sealed = self._own_sealed()
        ords = sealed.ords
        assert not ords or first > ords[-1]  # noqa: S101 - ordinals only grow
        if sealed.blobs is NO_BLOBS:
            sealed.blobs = {}
        sealed.blobs[first] = blob
        sealed.blob_bytes += size
        sealed.push(first, first_id)
        self.pool.bytes += NODE_BYTES + BLOB_BYTES + size
        self.pool.unstored += size

    def _own_sealed(self) -> SealedNodes:
        if self._sealed is NO_NODES:
            self._sealed = SealedNodes()
            self.pool.bytes += SEALED_BYTES + INDEX_BYTES
        return self._sealed

    def _last_node(self, more: int) -> ActiveNode | None:
        """Return a copy of the last node of the index if it has room for all later entries (``more`` bytes)."""
        index, pool = self._sealed, self.pool
        last = len(index.ords) - 1
        if last < index.head or self.next_ord - index.ords[last] >= pool.max_entries:
            return None
        node = self._node(last).unpack()
        if len(node.wire) + more >= pool.max_bytes or len(node) != self._active_ord - index.ords[last]:
            return None
        return ActiveNode.of(node)

    def _reopen_last(self) -> None:
        """Make the last node of the index the active node, if it has room. There must be no active node.

        A damaged node is not reopened, so that an append, which may be a part of a larger change, does not fail.
        """
        try:
            active = self._last_node(0)
        except CorruptError:
            active = None
        self._reopen = False
        if active is not None:
            self._take_last()
            self._active = active
            self.pool.bytes += active.size

    def _take_last(self) -> None:
        """Remove the last node of the index, which becomes a part of the active node."""
        index, pool = self._sealed, self.pool
        first = index.pop()
        pool.bytes -= NODE_BYTES
        pool.cache.drop(self.sid, first)
        self._drop_blob(first)
        self._active_ord = first

    def rejoin(self) -> None:
        """Join the last node of the index, which was the active node before a restart, with the entries after it.

        The next checkpoint does this, not the start: opening 100,000 nodes would delay a start by a second, and the
        checkpoint writes the active node anyway. A damaged node is not joined; reading it fails.
        """
        listed, active = self._append_list, self._active
        if listed is not None:
            more = self._active_bytes
        elif active is not None:
            more = len(active.wire)
        else:
            return
        try:
            whole = self._last_node(more)
        except CorruptError:
            whole = None
        self._reopen = False
        if whole is None:
            return
        if active is not None:
            end = len(whole.wire)
            whole.ends.extend([end + one for one in active.ends])
            whole.ms.extend(active.ms)
            whole.seq.extend(active.seq)
            whole.wire += active.wire
        size = self._active_size()
        self._take_last()
        self._active = whole
        if listed is not None:
            self._active_bytes = len(whole.wire) + sum([len(wire) for wire in listed[::STEP]])
        self.pool.bytes += self._active_size() - size

    def _seal(self, active: ActiveNode) -> None:
        """Seal the full active node. It is not added to the cache, which contains only nodes that are read."""
        self._reopen = False
        first = active.id_at(0)
        if not self._is_dead(self._active_ord, self.next_ord, first):
            if self.pool.drafted < self.pool.most_drafted:
                self._adopt(ActiveDraft(active), self._active_ord, first)
            else:
                self._add_sealed(first, len(active), len(active.wire), sealed(active))
        self._drop_active()
        self._active_ord = self.next_ord

    def _seal_list(self, listed: list[Any], ms: int, seq: int, sizes: list[int], parts: list[bytes]) -> None:
        """Seal an append list together with the entries in parts after it, with the IDs ms.seq, ms.seq + 1 ...

        ``sizes``: the sizes of the entries in parts. All entries are large. Joining them only now saves a fifth of an
        append's instructions (see ``appendlist``).
        """
        self._reopen = False
        if not listed:
            self._active_ord = self.next_ord
        first = first_id(listed) if listed else ms << 64 | seq
        count, end = len(listed) // STEP + len(sizes), self.next_ord + len(sizes)
        size = (self._active_bytes if listed else 0) + sum(sizes)
        if self._is_dead(self._active_ord, end, first):
            pass
        elif self.pool.drafted < self.pool.most_drafted:
            draft = ListDraft(listed, self._active_bytes if listed else 0, ms, seq, sizes, parts)
            self._adopt(draft, self._active_ord, first)
        else:
            self._add_sealed(first, count, size, sealed_blob(listed, ms, seq, sizes, parts))  # first, since it can fail
        if sizes:
            self.last_ms, self.last_seq = ms, seq + len(sizes) - 1
        self.next_ord = end
        self._drop_active()
        self._active_ord = end

    def _add_sealed(self, first: int, count: int, size: int, node: tuple[bytes, int]) -> None:
        """Add a sealed node of ``count`` entries: its blob and the size of its largest entry."""
        blob, largest = node
        self._push(self._active_ord, first, blob, len(blob))
        nodes = self._sealed
        nodes.entries += count
        nodes.bytes += len(blob)
        nodes.largest_entry = max(nodes.largest_entry, largest)
        nodes.largest_node = max(nodes.largest_node, size)

    def _drop_active(self) -> None:
        self.pool.bytes -= self._active_size()
        self._active = self._append_list = None
        self._joins = False

    def _active_size(self) -> int:
        """Return the approximate memory of the active node."""
        listed, active = self._append_list, self._active
        if listed is None:
            return 0 if active is None else active.size
        count = len(listed) // STEP
        size = self._active_bytes + LIST_BYTES + LISTED_BYTES * count
        return size if active is None else size + OVERHEAD + ENTRY_BYTES * (self.next_ord - self._active_ord - count)

    # -- nodes -----------------------------------------------------------------------------------------------
    def _node(self, position: int) -> AnyNode:
        """Return the node at a position of the index."""
        index, pool = self._sealed, self.pool
        first = index.ords[position]
        node = pool.cache.get(self.sid, first)
        if node is None:
            node = open_sealed(
                self._sealed.blobs.get(first), pool.store, self.sid, first, index.first_id(position),
                self._end(position) - first, self.tombstones,
            )  # fmt: skip
            pool.cache.put(self.sid, first, node)
        return node

    def _end(self, position: int) -> int:
        """Return the ordinal after the node at a position, and after deleted entries that follow it."""
        position += 1
        ords = self._sealed.ords
        return ords[position] if position < len(ords) else self._active_ord

    def _is_dead(self, first: int, end: int, first_id: int) -> bool:
        """Return whether the node of [first, end) has no living entry; the next capture then deletes it from the store.

        A node with some deleted entries is recorded for capture().
        """
        tombstones = self.tombstones
        dead = 0 if tombstones is None else tombstones.count(first, end)
        if tombstones is None or not dead:
            return False
        if dead == end - first:
            tombstones.dead_nodes.append((first, first_id))
            tombstones.thin.discard(first)
            return True
        tombstones.thin.add(first)
        return False

    def _drop_nodes(self, first_ords: array[int]) -> None:
        """Drop nodes at the front. If there are many, most are neither in ``blobs`` nor in the cache."""
        self.pool.cache.drop_many(self.sid, first_ords)
        blobs, last = self._sealed.blobs, first_ords[-1]
        for first in first_ords if len(first_ords) <= len(blobs) else [first for first in blobs if first <= last]:
            self._drop_blob(first)

    def _drop_blob(self, first_ord: int) -> None:
        blob = self._sealed.blobs.pop(first_ord, None)
        if blob is not None:
            size = blob_bytes(blob)
            self._sealed.blob_bytes -= size
            self.pool.bytes -= BLOB_BYTES + size
            self.pool.unstored -= size
            self.pool.dropped += size
            if isinstance(blob, Draft):
                self.pool.drop_draft(blob)

    def draft_sealed(self, first: int, draft: Draft, blob: bytes) -> None:
        """Implement DraftOwner."""
        sealed, pool = self._sealed, self.pool
        more = len(blob) - draft.size
        sealed.blobs[first] = draft.replacement = blob
        sealed.blob_bytes += more
        pool.bytes += more
        pool.unstored += more
        pool.dropped += draft.size
        pool.drop_draft(draft)
        self._count(draft, len(blob))

    def _count(self, draft: Draft, size: int) -> None:
        """Include a draft, sealed as a blob of ``size`` bytes, in the totals once."""
        if not draft.counted:
            draft.counted = True
            self._sealed.entries += len(draft)
            self._sealed.bytes += size
