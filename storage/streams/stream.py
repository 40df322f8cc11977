"""A stream: an interval of ordinals [first_ord, next_ord), stored as macro nodes.

Rule 1: an entry's ordinal never changes. Appending advances next_ord, eviction advances first_ord. Counts are
differences.
Rule 2: sealed nodes are immutable. Until a checkpoint has stored a node, its blob or a draft of it (see ``draft``) is
in ``SealedNodes.blobs``. Afterwards the node is read through ``pool.store``. Opened nodes stay in ``pool.cache`` while
there is room.
Rule 3: the active node is the only mutable node. A stream has none just after it was restored or adopted drafts. The
next append makes the last node the active node again; if entries are in an append list, the next checkpoint does so.
The boundaries of nodes depend on the limits at the time and on restarts; no code relies on them. Until the active node
is read, its last entries can be in an append list (see ``appendlist``). Readers call _active_node().
Rule 4: no code reads a whole stream at once. Long ranges are read in pieces, from a snapshot.
Rule 5: a change of memory_bytes() changes ``pool.bytes`` by the same amount.
Rule 6: an entry that is deleted individually keeps its ordinal, which gets a tombstone. The entry at first_ord is
always alive. A sealed node without living entries leaves the index. The node before it then ends before the next one
begins, and all ordinals in between have tombstones.

``nodelist`` contains nodes and appends, ``reads`` finds and reads entries. This module removes entries and creates
captures.

    ordinals   first_ord                                    _active_ord     next_ord
                  |    node      node     node      node        | active node|
    [..evicted..|ooooooo][oooooooooooo][ooooooooo][ooooooooooooo][ooooooooooooo>
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from resp.errors import AbsentNodeError, CorruptError, DamagedNodeError
from storage.model.ids import MASK64
from storage.model.tombstones import Tombstones
from storage.nodes import appendlist
from storage.nodes.draft import Draft
from storage.nodes.index import NODE_BYTES
from storage.nodes.node import active_blob
from storage.nodes.packed import open_packed
from storage.nodes.pool import NodePool
from storage.nodes.reference import is_reference, unpack
from storage.streams import metadata
from storage.streams.capture import StreamCapture
from storage.streams.metadata import LONE, RAISED, StreamMeta
from storage.streams.nodelist import BLOB_BYTES, NO_NODES, SEALED_BYTES, STREAM_BYTES
from storage.streams.producers import Producers
from storage.streams.reads import StreamReads


class Stream(StreamReads):
    """A stream (see the module's docstring). ``sid`` identifies the stream in the store and is never reused."""

    __slots__ = ()

    # -- eviction, deletion ----------------------------------------------------------------------------------
    def evict_before(self, ordinal: int, evicted_to: int = -1) -> int:
        """Evict the entries before ``ordinal`` (at most next_ord). Return the number of living ones.

        ``evicted_to``: the ID of the newest of them; -1: read it from its node. If this node is damaged, raises
        DamagedNodeError, unless the node is evicted as a whole.
        """
        if ordinal <= self.first_ord:
            return 0
        gone = self.count(self.first_ord, ordinal)
        if evicted_to < 0:
            try:
                self._note_evicted(ordinal - 1)
            except DamagedNodeError as error:
                evicted_to = self._unread_id(error, ordinal)
                if not evicted_to:
                    raise
                self._front, self._evicted_to = None, evicted_to
        else:
            self._front, self._evicted_to = None, evicted_to
        self._begin_at(ordinal)
        return gone

    def _unread_id(self, error: DamagedNodeError, ordinal: int) -> int:
        """Return the ID of the last entry before ``ordinal``, whose node can't be read, if it is the first or the last
        one of the node. 0: it is not. If the node is damaged, return the highest ID that the entry can have."""
        following = self._first_id_at(ordinal)
        if not isinstance(error, AbsentNodeError):
            return max(0, following - 1)
        if self.tombstones is not None and self.tombstones.has(ordinal - 1):
            return 0
        if error.first_ord == ordinal - 1:
            return error.first_id
        return error.last_id if following and error.first_ord + error.count == ordinal else 0

    def require_border(self, ordinal: int) -> None:
        """Raise AbsentNodeError if evict_before() would raise it for this ordinal, which must not be above next_ord."""
        if ordinal > self.first_ord:
            try:
                self.id_before(ordinal)
            except AbsentNodeError as error:
                if not self._unread_id(error, ordinal):
                    raise
            except DamagedNodeError:
                pass  # evict_before() reports it

    def _note_evicted(self, ordinal: int) -> None:
        """Remember the node of the last entry to be evicted, from which evicted_to is read when it is needed.

        There are often many evictions before that. The node is kept open, so that reading it later cannot fail.
        """
        front, index = self._front, self._sealed
        if self.tombstones is not None:
            evicted_to = self.id_before(ordinal + 1)
        elif front is not None and ordinal - self._front_ord < len(front):
            return
        elif ordinal >= self._active_ord:
            active = self._active
            if active is not None and ordinal - self._active_ord < len(active):
                self._front, self._front_ord = active, self._active_ord
                return
            evicted_to = self.id_at(ordinal)
        elif ordinal < self._end(index.head):
            self._front, self._front_ord = self._node(index.head), index.ords[index.head]
            return
        else:
            evicted_to = self.id_at(ordinal)
        self._front, self._evicted_to = None, evicted_to

    def _first_id_at(self, ordinal: int) -> int:
        """Return the ID of the entry at the beginning of a node, or the ID after the last one; 0 if no node begins at
        ``ordinal``. Opens no sealed node."""
        if ordinal >= self.next_ord:
            return self.last_id + 1
        if ordinal >= self._active_ord:
            return self.id_at(ordinal) if ordinal == self._active_ord else 0
        index = self._sealed
        position = index.of_ord(ordinal)
        return index.first_id(position) if index.ords[position] == ordinal else 0

    def _begin_at(self, ordinal: int) -> None:
        """Set first_ord to the first living entry from ``ordinal`` on, and drop the nodes before it."""
        tombstones = self.tombstones
        if tombstones is not None:
            ordinal = tombstones.live_from(ordinal)
            size = tombstones.bytes
            tombstones.drop_before(ordinal)
            self.pool.bytes += tombstones.bytes - size
            if not tombstones.total:
                self.tombstones = None
        self.first_ord = ordinal
        index = self._sealed
        head = index.head
        if head < len(index.ords) and self._end(head) <= ordinal:
            keep = index.of_ord(ordinal)  # position of the first node to retain
            if self._end(keep) <= ordinal:
                keep += 1
            self._drop_nodes(index.ords[head:keep])
            index.drop_front(keep)
            self.pool.bytes -= NODE_BYTES * (keep - head)
        if ordinal >= self.next_ord:
            self._drop_active()
            self._active_ord = self.next_ord

    def delete(self, ordinals: list[int], highest: int) -> None:
        """Delete living entries (at least one, ascending).

        ``highest``: the ID of the last one, for max_deleted; 0: unchanged.
        """
        tombstones = self._own_tombstones()
        size = tombstones.bytes
        tombstones.add(ordinals)
        self.pool.bytes += tombstones.bytes - size
        self.deleted += len(ordinals)
        if self._front is not None:
            self._evicted_to = self.evicted_to  # before first_ord changes
        self.max_deleted = max(self.max_deleted, highest)
        if ordinals[0] == self.first_ord:
            self._begin_at(self.first_ord + 1)
        self._drop_dead_nodes(ordinals)

    def _own_tombstones(self) -> Tombstones:
        tombstones = self._tombstones_to_capture
        if tombstones is None:
            tombstones = self._tombstones_to_capture = Tombstones()
            self.pool.bytes += tombstones.bytes
        self.tombstones = tombstones
        return tombstones

    def _drop_dead_nodes(self, ordinals: list[int]) -> None:
        """Remove nodes without living entries after these were deleted. Record the other nodes for capture()."""
        index, at = self._sealed, len(ordinals)
        while at > 0:
            ordinal = ordinals[at - 1]
            if ordinal < self.first_ord:
                return
            if ordinal >= self._active_ord:
                at = bisect_left(ordinals, self._active_ord)
                continue
            position = index.of_ord(ordinal)
            first, end = index.ords[position], self._end(position)
            at = bisect_left(ordinals, first)
            if self._is_dead(first, end, index.first_id(position)):
                self._drop_nodes(index.ords[position : position + 1])
                index.remove(position)
                self.pool.bytes -= NODE_BYTES

    def set_last_id(self, last_id: int, entries_added: int, max_deleted: int) -> None:
        """Set the last ID (XSETID). ``last_id`` must not be below top_id()."""
        if last_id < self.last_id:  # entries with IDs up to a group's offset can be added again
            for group in self.groups.values():
                group.cursor_of = -1
        self.last_ms, self.last_seq = last_id >> 64, last_id & MASK64
        self.shift = entries_added - self.next_ord
        self.max_deleted = max_deleted
        self._raised = self.next_ord
        self._evicted_to = min(self.evicted_to, last_id)

    # -- producers -------------------------------------------------------------------------------------------
    def idmp(self) -> tuple[int, int]:
        """Return how long (ms) the IDs of producers are remembered, and how many of each producer."""
        pool, own = self.pool, self.producers
        return (pool.idmp_ms, pool.idmp_most) if own is None or not own.keep_ms else (own.keep_ms, own.most)

    def own_producers(self) -> Producers:
        if self.producers is None:
            self.producers = Producers(self.pool)
        return self.producers

    # -- stats -----------------------------------------------------------------------------------------------
    def memory_bytes(self) -> int:
        """Return the estimated memory, without cached nodes and groups."""
        total = STREAM_BYTES + self._sealed.blob_bytes + BLOB_BYTES * len(self._sealed.blobs)
        if self._tombstones_to_capture is not None:
            total += self._tombstones_to_capture.bytes
        if self.producers is not None:
            total += self.producers.bytes
        if self._sealed is not NO_NODES:
            total += SEALED_BYTES + self._sealed.memory_bytes()
        return total + self._active_size()

    def disk_bytes(self) -> int:
        """Return the estimated size in the store, from the mean size of the entries sealed so far."""
        raw, sealed = self._active_size(), self._sealed
        if not sealed.entries:
            return raw
        return raw + sealed.bytes * max(0, self._active_ord - self.first_ord) // sealed.entries

    # -- checkpoints and start-up ----------------------------------------------------------------------------
    def capture(self) -> StreamCapture:
        """Return the changes that the store lacks. O(nodes sealed since the last completed checkpoint)."""
        if self._reopen:
            self.rejoin()
        index = self._sealed
        nodes: Sequence[tuple[int, int, bytes | Draft]] = ()
        if self._sealed.blobs:
            nodes = [(first, index.first_id(index.of_ord(first)), blob) for first, blob in self._sealed.blobs.items()]
        listed, active, node = self._append_list, None, self._active
        largest = 0
        if listed is not None and node is not None:
            node = self._join(listed)
        if node is not None:
            blob, largest = active_blob(node)
            active = (self._active_ord, node.id_at(0), blob)
        elif listed is not None:
            blob, largest = appendlist.active_blob(listed, self._active_bytes)
            active = (self._active_ord, appendlist.first_id(listed), blob)
        capture = StreamCapture(self.sid, self._meta(largest), self.first_ord, self.next_ord, nodes, active)
        tombstones = self._tombstones_to_capture
        if tombstones is not None:
            capture.tombstones = tombstones.take_changed()
            capture.sparse = self._sparse()
            tombstones.thin.clear()
            capture.dead_nodes, tombstones.dead_nodes = tombstones.dead_nodes, []
        if self.producers is not None:
            capture.producers = self.producers.take_changed()
        return capture

    def _sparse(self) -> list[tuple[int, int, list[tuple[int, int]]]]:
        """Return the nodes that are at least half deleted, among those with deletions since the last capture.

        Each comes with the ranges of its living entries. It is unknown here whether deleted entries at the end belong
        to the node or to nodes that were dropped.
        """
        found: list[tuple[int, int, list[tuple[int, int]]]] = []
        index, tombstones = self._sealed, self.tombstones
        if tombstones is None:
            return found
        for first in sorted(tombstones.thin):
            position = index.of_ord(first)
            if position < index.head or index.ords[position] != first:
                continue
            lo, end = max(first, self.first_ord), self._end(position)
            beyond = tombstones.live_below(end) + 1
            size = min(end - first, max(beyond - first, self.pool.max_entries))
            if 2 * (end - lo - tombstones.count(lo, end)) <= size:
                alive = [(start - first, stop - first) for start, stop in tombstones.live_ranges(lo, beyond)]
                found.append((first, index.first_id(position), alive))
        return found

    def uncaptured(self, capture: StreamCapture) -> None:
        """Record all changes of a capture again, since it was not stored."""
        tombstones = self._tombstones_to_capture
        if tombstones is not None:
            tombstones.changed.update([chunk for chunk, _ in capture.tombstones])
            tombstones.thin.update([first for first, _, _ in capture.sparse])
            tombstones.dead_nodes += capture.dead_nodes
        if self.producers is not None:
            self.producers.changed.update([name for name, _ in capture.producers])

    def captured(self, capture: StreamCapture) -> bool:
        """Release the blobs of a capture that was stored. ``pool.store`` now reads from it.

        Returns True if meta() changed, because the sizes of sealed drafts are now known.
        """
        drafts = False
        for first, _, blob in capture.nodes:
            if isinstance(blob, Draft):
                drafts = True
                self._count(blob, blob.sealed)
            held = self._sealed.blobs.get(first)  # another one if a draft became the active node and then a longer node
            if held is not None and (held is blob or (isinstance(blob, Draft) and held is blob.replacement)):
                self._drop_blob(first)
        tombstones = self._tombstones_to_capture
        if tombstones is not None and not (tombstones.total or tombstones.changed or tombstones.dead_nodes):
            self.pool.bytes -= tombstones.bytes
            self._tombstones_to_capture = None
        return drafts

    def meta(self) -> bytes:
        """Return the metadata (see ``metadata``). Its largest entry and node include those of the active node."""
        active = self._active_node()
        return self._meta(0 if active is None else active.largest())

    def _meta(self, largest: int) -> bytes:
        """Return meta(). ``largest``: size of the largest entry in the active node, 0 if there is none."""
        largest_entry, largest_node = max(self._sealed.largest_entry, largest), self._sealed.largest_node
        if self._append_list is not None:
            largest_node = max(largest_node, self._active_bytes)
        elif self._active is not None:
            largest_node = max(largest_node, len(self._active.wire))
        flags = (LONE if self.lone else 0) | (RAISED if self._raised == self.next_ord else 0)
        if (
            self._tombstones_to_capture is None
            and self.producers is None
            and self.retention is None
            and self.tier_after is None
            and not (flags or self.shift or self.deleted or self.max_deleted)
        ):
            return metadata.pack_plain(
                self.last_ms, self.last_seq, self.next_ord, self.first_ord, self.evicted_to, self._sealed.entries,
                self._sealed.bytes, largest_entry, largest_node,
            )  # fmt: skip
        producers = self.producers
        return metadata.pack(StreamMeta(
            self.last_ms, self.last_seq, self.next_ord, self.first_ord, self.evicted_to, self._sealed.entries,
            self._sealed.bytes, largest_entry, largest_node, self.entries_added, self.max_deleted, self.deleted,
            0 if self.tombstones is None else self.tombstones.total, flags,
            *((0, 0, 0, 0) if producers is None else (
                producers.keep_ms, producers.most, producers.added, producers.duplicates
            )),
            self.retention, self.tier_after,
        ))  # fmt: skip

    @classmethod
    def restore(cls, sid: int, meta: bytes, pool: NodePool) -> Stream:
        """Create a stream from its meta(). The caller then adds nodes and tombstones.

        Raises CorruptError if the metadata is damaged.
        """
        stream = cls(sid, pool)
        found = metadata.unpack(sid, meta)
        stream.last_ms, stream.last_seq = found.last_ms, found.last_seq
        stream.next_ord, stream.first_ord, stream._evicted_to = found.next_ord, found.first_ord, found.evicted_to
        if found.sealed_entries or found.largest_entry:
            sealed = stream._own_sealed()
            sealed.entries, sealed.bytes = found.sealed_entries, found.sealed_bytes
            sealed.largest_entry, sealed.largest_node = found.largest_entry, found.largest_node
        stream._set_rest(found)
        if found.tombstones:
            stream._own_tombstones().claimed = found.tombstones
        stream._active_ord = stream.next_ord
        stream._reopen = True
        return stream

    # -- a copy from another group ---------------------------------------------------------------------------
    @classmethod
    def begin_copy(cls, sid: int, meta: bytes, pool: NodePool) -> Stream:
        """Create a stream, without entries yet, to which the nodes of another one are added. ``meta``: of the other.

        At any time until complete_copy(), it is a valid stream. Raises CorruptError if the metadata is damaged.
        """
        found = metadata.unpack(sid, meta)
        stream = cls(sid, pool)
        stream.last_ms, stream.last_seq, stream._evicted_to = found.last_ms, found.last_seq, found.evicted_to
        stream.next_ord = stream.first_ord = stream._active_ord = found.first_ord
        stream.lone = True
        return stream

    def add_copied_node(self, first: int, end: int, dead: list[int], blob: bytes) -> None:
        """Add the next node of a copy, whose range of ordinals ends before ``end``. ``dead``: deleted ordinals among
        them, ascending. ``blob`` b"": all are deleted. It can be a reference. Raises CorruptError if the node does not
        fit."""
        count, first_id, last_id = _borders_of(blob) if blob else (0, 0, 0)
        begin = max(self.next_ord, first)
        if (
            not (self.next_ord == first or (self.first_ord == self.next_ord and first <= self.next_ord)) or end <= begin
            or (dead and (dead[0] < begin or dead[-1] >= end or dead[0] == self.first_ord))
            or (not count and (len(dead) != end - begin or self.first_ord == self.next_ord))
            or (count and (count > end - first or last_id > self.last_id))
        ):  # fmt: skip
            raise CorruptError("a copied node that does not fit its stream")
        if dead:
            tombstones = self._own_tombstones()
            size = tombstones.bytes
            tombstones.add(dead)
            self.pool.bytes += tombstones.bytes - size
        if count:
            self._push(first, first_id, blob, len(blob))
            if is_reference(blob):
                self.pool.tiered = self.pool.adopted = True
            if dead and self.tombstones is not None:
                self.tombstones.thin.add(first)
        self.next_ord = self._active_ord = end
        self._reopen = True

    def complete_copy(self, meta: bytes) -> None:
        """Set what begin_copy() has left out. Raises CorruptError if nodes are missing."""
        found = metadata.unpack(self.sid, meta)
        dead = 0 if self.tombstones is None else self.tombstones.total
        if (found.next_ord, found.first_ord, found.tombstones) != (self.next_ord, self.first_ord, dead):
            raise CorruptError("the copy of a stream is incomplete")
        if found.sealed_entries or found.largest_entry:
            sealed = self._own_sealed()
            sealed.entries, sealed.bytes = found.sealed_entries, found.sealed_bytes
            sealed.largest_entry, sealed.largest_node = found.largest_entry, found.largest_node
        self._set_rest(found)

    def _set_rest(self, found: StreamMeta) -> None:
        """Set the attributes of the metadata that do not depend on nodes and tombstones."""
        self.shift = found.added - found.next_ord
        self.max_deleted, self.deleted = found.max_deleted, found.deleted
        self.lone = bool(found.flags & LONE)
        self._raised = found.next_ord if found.flags & RAISED else -1
        if found.iids_added or found.idmp_ms:
            producers = self.own_producers()
            producers.keep_ms, producers.most = found.idmp_ms, found.idmp_most
            producers.added, producers.duplicates = found.iids_added, found.iids_repeated
        self.retention, self.tier_after = found.retention, found.tier_after

    def restore_tombstones(self, chunk: int, container: bytes) -> None:
        """Add a chunk of tombstones from the store, in order. Raises CorruptError if it is damaged."""
        tombstones = self._own_tombstones()
        size = tombstones.bytes
        tombstones.restore(chunk, container)
        self.pool.bytes += tombstones.bytes - size

    def add_stored_node(self, first_ord: int, first_id: int) -> None:
        """Add a node from the store, in order. Evicted nodes that are still in the store are skipped.

        Raises CorruptError if the node does not fit the stream, or if a node before it is missing.
        """
        if first_ord >= self.next_ord:
            raise CorruptError(f"the store has a node of stream {self.sid} beyond the stream's end")
        if self.first_ord == self.next_ord:
            return
        index = self._own_sealed()
        self.pool.bytes += NODE_BYTES
        if first_ord <= self.first_ord or not index.ords:
            self.pool.bytes -= NODE_BYTES * len(index)  # nodes before this one end at or before first_ord
            index.begin(first_ord, first_id)
            if first_ord > self.first_ord:
                raise CorruptError(f"the store lacks the first node of stream {self.sid}")
            return
        if first_ord <= index.ords[-1] or first_id <= index.first_id(len(index.ords) - 1):
            raise CorruptError(f"the store has the nodes of stream {self.sid} out of order")
        index.push(first_ord, first_id)

    def all_nodes_added(self) -> None:
        """Check the stream after all nodes and tombstones were added. Raises CorruptError if it is incomplete."""
        tombstones = self.tombstones
        if tombstones is not None and tombstones.total != tombstones.claimed:
            raise CorruptError(f"the store has a wrong number of deleted entries of stream {self.sid}")
        if tombstones is not None and (
            tombstones.has(self.first_ord)
            or tombstones.before(self.first_ord)
            or tombstones.before(self.next_ord) != tombstones.total
        ):
            raise CorruptError(f"the store has invalid deleted entries of stream {self.sid}")
        if self.first_ord == self.next_ord:
            return
        if not self._sealed.ords:
            raise CorruptError(f"the store lacks the nodes of stream {self.sid}")
        if self._sealed.first_id(len(self._sealed.ords) - 1) > self.last_id:
            raise CorruptError(f"the store has a node of stream {self.sid} with IDs beyond the stream's last")

    def gone(self) -> None:
        """Subtract the deleted stream's memory from that of the pool."""
        self.pool.bytes -= self.memory_bytes()
        self.pool.unstored -= self._sealed.blob_bytes
        self.pool.dropped += self._sealed.blob_bytes
        if self.pool.drafts:
            for blob in self._sealed.blobs.values():
                if isinstance(blob, Draft):
                    self.pool.drop_draft(blob)


def _borders_of(blob: bytes) -> tuple[int, int, int]:
    """Return the number of entries in a blob, or those of a reference, and the first and the last ID.

    Raises CorruptError.
    """
    if is_reference(blob):
        found = unpack(blob)
        return found.entries, found.first_id, found.last_id
    node = open_packed(blob)
    return len(node), node.first_id, node.id_at(len(node) - 1)
