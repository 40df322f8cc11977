"""One stream: an interval of ordinals [first_ord, next_ord), kept as macro nodes.

Rule 1: an entry's ordinal never changes. Appending moves next_ord up, eviction first_ord; counts are differences.
Rule 2: sealed nodes are immutable. Until a checkpoint has stored a node, its blob or a draft of it (see ``draft``) is
in ``_blobs``; after that it is read back through ``pool.store``, and opened nodes stay in ``pool.cache`` while there is
room.
Rule 3: the tail is the only mutable node. A stream has none just after it was restored or given drafts: the next append
makes the last node the tail again, or, if entries are loose, the next checkpoint does. Where nodes end depends on the
limits at the time and on restarts; nothing may rely on it. As long as nobody reads them, the tail's last entries may be
loose (see ``loose``): _whole_tail() is for whoever reads.
Rule 4: nothing reads a whole stream at once: long ranges come in pieces, from a snapshot.
Rule 5: whatever changes memory_bytes() changes ``pool.bytes`` by as much.
Rule 6: an entry that is deleted one by one keeps its ordinal, which is marked (see ``marks``): it is *dead*. The entry
at first_ord is always alive. A sealed node without a living entry leaves the index; then the node before it ends before
the next one begins, and all ordinals in between are marked.

``streamnodes`` has nodes and appends, ``streamreads`` finds and reads; here is what removes entries, and checkpoints.

    ordinals   first_ord                                    _tail_ord       next_ord
                  |    node      node     node      node        |    tail      |
    [..trimmed..|ooooooo][oooooooooooo][ooooooooo][ooooooooooooo][ooooooooooooo>
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from resp.errors import CorruptError
from storage.model.ids import MASK64
from storage.model.tombstones import Marks
from storage.nodes import appendlist as listed
from storage.nodes.draft import Draft
from storage.nodes.index import INDEX_BYTES, NODE_BYTES, NodeIndex
from storage.nodes.node import tail_blob
from storage.nodes.pool import NodePool
from storage.streams import metadata
from storage.streams.capture import StreamCapture
from storage.streams.metadata import LONE, RAISED, StreamMeta
from storage.streams.nodelist import BLOB_BYTES, NO_INDEX, STREAM_BYTES
from storage.streams.producers import Producers
from storage.streams.reads import StreamReads


class Stream(StreamReads):
    """See the module's docstring. ``sid`` is the stream's name in the store and is never used twice."""

    __slots__ = ()

    # -- eviction, deletion ----------------------------------------------------------------------------------
    def evict_before(self, ordinal: int, evicted_to: int = -1) -> int:
        """Evict the entries before ``ordinal`` (at most next_ord): whole nodes, and a part of the one it falls into.

        ``evicted_to`` is the ID of the newest of them; -1: it is to be looked up. Returns the number of those that were
        alive.
        """
        if ordinal <= self.first_ord:
            return 0
        gone = self.count(self.first_ord, ordinal)
        if evicted_to < 0:
            self._note_evicted(ordinal - 1)
        else:
            self._front, self._evicted_to = None, evicted_to
        self._begin_at(ordinal)
        return gone

    def _note_evicted(self, ordinal: int) -> None:
        """The entries up to ``ordinal`` are about to be evicted: what evicted_to will be is looked up in their last
        node when somebody asks. Often that is after many evictions. Here nothing may fail any more then, so the node is
        held; whoever logs evictions asks for it soon."""
        front, tail, index = self._front, self._whole_tail(), self._index
        if self.marks is not None:
            evicted_to = self.id_before(ordinal + 1)
        elif front is not None and ordinal - self._front_ord < len(front):
            return
        elif tail is not None and ordinal >= self._tail_ord:
            self._front, self._front_ord = tail, self._tail_ord
            return
        elif ordinal < self._end(index.head):
            self._front, self._front_ord = self._node(index.head), index.ords[index.head]
            return
        else:
            evicted_to = self.id_at(ordinal)
        self._front, self._evicted_to = None, evicted_to

    def _begin_at(self, ordinal: int) -> None:
        """There are no living entries before ``ordinal``, which is above first_ord, any more."""
        marks = self.marks
        if marks is not None:
            ordinal = marks.live_from(ordinal)
            size = marks.bytes
            marks.drop_before(ordinal)
            self.pool.bytes += marks.bytes - size
            if not marks.total:
                self.marks = None
        self.first_ord = ordinal
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
            self._drop_tail()
            self._tail_ord = self.next_ord

    def delete(self, ordinals: list[int], highest: int) -> None:
        """Delete living entries one by one: at least one, ascending.

        ``highest``: the ID of the last, for max_deleted; 0 leaves that as it is.
        """
        marks = self._marked
        if marks is None:
            marks = self._marked = Marks()
            self.pool.bytes += marks.bytes
        size = marks.bytes
        marks.add(ordinals)
        self.pool.bytes += marks.bytes - size
        self.marks = marks
        self.deleted += len(ordinals)
        if self._front is not None:
            self._evicted_to = self.evicted_to  # before there is another first_ord
        self.max_deleted = max(self.max_deleted, highest)
        if ordinals[0] == self.first_ord:
            self._begin_at(self.first_ord + 1)
        self._look_for_dead(ordinals)

    def _look_for_dead(self, ordinals: list[int]) -> None:
        """Remove the nodes that these entries were the last living ones of; note the others for capture()."""
        index, at = self._index, len(ordinals)
        while at > 0:
            ordinal = ordinals[at - 1]
            if ordinal < self.first_ord:
                return
            if ordinal >= self._tail_ord:
                at = bisect_left(ordinals, self._tail_ord)
                continue
            position = index.of_ord(ordinal)
            first, end = index.ords[position], self._end(position)
            at = bisect_left(ordinals, first)
            if self._is_dead(first, end, index.first_id(position)):
                self._drop_nodes(index.ords[position : position + 1])
                index.remove(position)
                self.pool.bytes -= NODE_BYTES

    def set_last_id(self, last_id: int, entries_added: int, max_deleted: int) -> None:
        """XSETID. ``last_id`` must not be below top_id()."""
        if last_id < self.last_id:  # where a group read on may be entries again that come before its offset
            for group in self.groups.values():
                group.cursor_of = -1
        self.last_ms, self.last_seq = last_id >> 64, last_id & MASK64
        self.shift = entries_added - self.next_ord
        self.max_deleted = max_deleted
        self._raised = self.next_ord
        self._evicted_to = min(self.evicted_to, last_id)

    # -- producers -------------------------------------------------------------------------------------------
    def idmp(self) -> tuple[int, int]:
        """How many ms the IDs of producers are remembered, and how many of each."""
        pool = self.pool
        return self.idmp_ms or pool.idmp_ms, self.idmp_most or pool.idmp_most

    def add_produced(self, producer: bytes, name: bytes, entry_id: int, now: int, keep_ms: int, most: int) -> None:
        """An entry was added under the producer's own ID ``name``."""
        producers = self._own_producers()
        size = producers.bytes
        producers.add(producer, name, entry_id, now, keep_ms, most)
        self.pool.bytes += producers.bytes - size

    def set_idmp(self, keep_ms: int, most: int) -> None:
        """Remember IDs so long, and so many. What is remembered now is forgotten."""
        self.idmp_ms, self.idmp_most = keep_ms, most
        if self.producers is not None:
            self.pool.bytes -= self.producers.bytes
            self.producers.clear()
            self.pool.bytes += self.producers.bytes

    def forget_produced(self, now: int) -> None:
        """Forget the IDs whose time is over at ``now``."""
        if self.producers is not None:
            self.pool.bytes -= self.producers.bytes
            self.producers.forget(now)
            self.pool.bytes += self.producers.bytes

    def _own_producers(self) -> Producers:
        if self.producers is None:
            self.producers = Producers()
            self.pool.bytes += self.producers.bytes
        return self.producers

    # -- stats -----------------------------------------------------------------------------------------------
    def memory_bytes(self) -> int:
        """Estimate of what the stream takes in memory, without opened nodes in the cache and without groups."""
        total = STREAM_BYTES + self._blob_bytes + BLOB_BYTES * len(self._blobs)
        if self._marked is not None:
            total += self._marked.bytes
        if self.producers is not None:
            total += self.producers.bytes
        if self._index is not NO_INDEX:
            total += self._index.memory_bytes()
        return total + self._tail_size()

    def disk_bytes(self) -> int:
        """Estimate of what its entries take in the store, from the mean of the entries sealed so far."""
        raw = self._tail_size()
        if not self._sealed_entries:
            return raw
        sealed = max(0, self._tail_ord - self.first_ord)
        return raw + self._sealed_bytes * sealed // self._sealed_entries

    # -- checkpoints and start-up ----------------------------------------------------------------------------
    def capture(self) -> StreamCapture:
        """What the store lacks, as of now; O(nodes sealed since the last completed checkpoint)."""
        if self._reopen:
            self.rejoin()
        index = self._index
        nodes: Sequence[tuple[int, int, bytes | Draft]] = ()
        if self._blobs:
            nodes = [(first, index.first_id(index.of_ord(first)), blob) for first, blob in self._blobs.items()]
        loose, tail, node = self._loose, None, self._tail
        largest = 0
        if loose is not None and node is not None:
            node = self._join(loose)
        if node is not None:
            blob, largest = tail_blob(node)
            tail = (self._tail_ord, node.id_at(0), blob)
        elif loose is not None:
            blob, largest = listed.tail_blob(loose, self._tail_bytes)
            tail = (self._tail_ord, listed.first_id(loose), blob)
        capture = StreamCapture(self.sid, self._meta(largest), self.first_ord, self.next_ord, nodes, tail)
        marks = self._marked
        if marks is not None:
            capture.marks = marks.take_changed()
            capture.sparse = self._sparse()
            marks.thin.clear()
            capture.dead_nodes, marks.dead_nodes = marks.dead_nodes, []
        if self.producers is not None:
            capture.producers = self.producers.take_changed()
        return capture

    def _sparse(self) -> list[tuple[int, int, list[tuple[int, int]]]]:
        """The nodes that are dead by half or more, of those in which entries died since the last capture.

        Each with the runs of its living entries: how many dead ones end it, and where those of nodes that are gone
        begin, is not known here.
        """
        found: list[tuple[int, int, list[tuple[int, int]]]] = []
        index, marks = self._index, self.marks
        for first in sorted(marks.thin) if marks is not None else ():
            position = index.of_ord(first)
            if position < index.head or index.ords[position] != first:
                continue
            if marks is None:
                break
            lo, end = max(first, self.first_ord), self._end(position)
            beyond = marks.live_below(end) + 1
            size = min(end - first, max(beyond - first, self.pool.max_entries))
            if 2 * (end - lo - marks.count(lo, end)) <= size:
                alive = [(start - first, stop - first) for start, stop in marks.runs(lo, beyond)]
                found.append((first, index.first_id(position), alive))
        return found

    def uncaptured(self, capture: StreamCapture) -> None:
        """The capture was not stored: the next one has to take all of it again."""
        marks = self._marked
        if marks is not None:
            marks.changed.update([chunk for chunk, _ in capture.marks])
            marks.thin.update([first for first, _, _ in capture.sparse])
            marks.dead_nodes += capture.dead_nodes
        if self.producers is not None:
            self.producers.changed.update([name for name, _ in capture.producers])

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
        marks = self._marked
        if marks is not None and not (marks.total or marks.changed or marks.dead_nodes):
            self.pool.bytes -= marks.bytes
            self._marked = None
        return drafts

    def meta(self) -> bytes:
        """All but nodes and groups (see ``streammeta``). The tail counts among the largest: it is stored as a node."""
        tail = self._whole_tail()
        return self._meta(0 if tail is None else tail.largest())

    def _meta(self, largest: int) -> bytes:
        """meta(). ``largest``: bytes of the largest entry in the tail, 0 if there is none."""
        largest_entry, largest_node = max(self._largest_entry, largest), self._largest_node
        if self._loose is not None:
            largest_node = max(largest_node, self._tail_bytes)
        elif self._tail is not None:
            largest_node = max(largest_node, len(self._tail.wire))
        flags = (LONE if self.lone else 0) | (RAISED if self._raised == self.next_ord else 0)
        if (
            self._marked is None
            and self.producers is None
            and not (flags or self.shift or self.deleted or self.max_deleted or self.idmp_ms or self.idmp_most)
        ):
            return metadata.pack_plain(
                self.last_ms, self.last_seq, self.next_ord, self.first_ord, self.evicted_to, self._sealed_entries,
                self._sealed_bytes, largest_entry, largest_node,
            )  # fmt: skip
        return metadata.pack(StreamMeta(
            self.last_ms, self.last_seq, self.next_ord, self.first_ord, self.evicted_to, self._sealed_entries,
            self._sealed_bytes, largest_entry, largest_node, self.entries_added, self.max_deleted, self.deleted,
            0 if self.marks is None else self.marks.total, flags, self.idmp_ms, self.idmp_most,
            0 if self.producers is None else self.producers.added,
            0 if self.producers is None else self.producers.duplicates,
        ))  # fmt: skip

    @classmethod
    def restore(cls, sid: int, meta: bytes, pool: NodePool) -> Stream:
        """A stream from its meta(); nodes and marks follow by add_stored_node() and restore_marks().

        Raises CorruptError.
        """
        stream = cls(sid, pool)
        found = metadata.unpack(sid, meta)
        stream.last_ms, stream.last_seq = found.last_ms, found.last_seq
        stream.next_ord, stream.first_ord, stream._evicted_to = found.next_ord, found.first_ord, found.evicted_to
        stream._sealed_entries, stream._sealed_bytes = found.sealed_entries, found.sealed_bytes
        stream._largest_entry, stream._largest_node = found.largest_entry, found.largest_node
        stream.shift = found.added - found.next_ord
        stream.max_deleted, stream.deleted = found.max_deleted, found.deleted
        stream.lone = bool(found.flags & LONE)
        stream._raised = found.next_ord if found.flags & RAISED else -1
        stream.idmp_ms, stream.idmp_most = found.idmp_ms, found.idmp_most
        if found.iids_added:
            producers = stream._own_producers()
            producers.added, producers.duplicates = found.iids_added, found.iids_repeated
        stream._claimed = found.marks
        stream._tail_ord = stream.next_ord
        stream._reopen = True
        return stream

    def restore_marks(self, chunk: int, container: bytes) -> None:
        """Add a chunk of marks that the store has, in order. Raises CorruptError."""
        marks = self._marked
        if marks is None:
            marks = self.marks = self._marked = Marks()
            self.pool.bytes += marks.bytes
        size = marks.bytes
        marks.restore(chunk, container)
        self.pool.bytes += marks.bytes - size

    def restore_producer(self, name: bytes, dump: bytes) -> None:
        """Add a producer that the store has. Raises CorruptError."""
        producers = self._own_producers()
        size = producers.bytes
        producers.restore(name, dump)
        self.pool.bytes += producers.bytes - size

    def add_stored_node(self, first_ord: int, first_id: int) -> None:
        """Add a node that the store has, in order; evicted nodes that it still has are skipped.

        Raises CorruptError if the node can't be this stream's, or if one before it is missing.
        """
        if first_ord >= self.next_ord:
            raise CorruptError(f"the store has a node of stream {self.sid} beyond the stream's end")
        if self.first_ord == self.next_ord:
            return
        index = self._index
        if first_ord <= self.first_ord or index is NO_INDEX:
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
        """Called after the last node and the last marks were added. Raises CorruptError if that can't be all."""
        marks = self.marks
        if self._claimed != (0 if marks is None else marks.total):
            raise CorruptError(f"the store lacks marks of deleted entries of stream {self.sid}, or has too many")
        if marks is not None and (
            marks.has(self.first_ord) or marks.before(self.first_ord) or marks.before(self.next_ord) != marks.total
        ):
            raise CorruptError(f"the store has marks of deleted entries that stream {self.sid} can't have")
        if self.first_ord == self.next_ord:
            return
        if self._index is NO_INDEX:
            raise CorruptError(f"the store lacks the nodes of stream {self.sid}")
        if self._index.first_id(len(self._index.ords) - 1) > self.last_id:
            raise CorruptError(f"the store has a node of stream {self.sid} with IDs beyond the stream's last")

    def _let_go_of_index(self) -> None:
        if self._index is not NO_INDEX:
            self.pool.bytes -= self._index.memory_bytes()

    def gone(self) -> None:
        """The stream was deleted: its memory no longer counts."""
        self.pool.bytes -= self.memory_bytes()
        self.pool.unstored -= self._blob_bytes
        self.pool.dropped += self._blob_bytes
