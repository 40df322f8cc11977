"""Finding and reading the entries of a stream. See ``stream`` for the rules.

Unless stated otherwise, ordinals in arguments can be those of deleted entries. Returned entries are always alive.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Final

from resp.errors import DamagedNodeError
from storage.model.ids import raw_id
from storage.nodes import appendlist
from storage.nodes.coded import CodedNode
from storage.nodes.node import Node
from storage.nodes.packed import AnyNode, PackedNode
from storage.nodes.redisform import redis_node, redis_parts
from storage.streams.nodelist import StreamNodes
from storage.streams.position import StreamPosition
from storage.streams.selection import Selection
from storage.streams.snapshot import Snapshot

FEW: Final = 4  # with up to this many IDs in a node, each is searched separately
SPARSE: Final = 8  # with more entries per ID than this, each ID is searched separately, too


def begin_within(cuts: list[int], room: int, more: int) -> int:
    """Return how many entries begin within ``room`` bytes (at least 1) if the ends of their wire forms are ``cuts`` and
    each has ``more`` bytes in addition."""
    count = len(cuts)
    if count == 1 or cuts[count - 2] + more * (count - 1) < room:  # the common case
        return count
    number = 1
    while cuts[number - 1] + more * number < room:
        number += 1
    return number


class StreamReads(StreamNodes):
    """The base class of Stream that finds and reads entries."""

    __slots__ = ()

    # -- finding ---------------------------------------------------------------------------------------------
    def seek(self, id: int) -> StreamPosition:  # noqa: A002
        """Return the first living entry with an ID >= ``id``; its ordinal is next_ord if there is none."""
        if not id:  # from the start
            return StreamPosition(self.first_ord, None, 0, 0)
        if id > self.last_id:
            return StreamPosition(self.next_ord, None, 0, 0)
        if id <= self.evicted_to:
            return StreamPosition(self.first_ord, None, 0, 0)
        found = self._seek(id)
        return found if self.tombstones is None and found.ordinal >= self.first_ord else self._living(found)

    def _seek(self, id: int) -> StreamPosition:  # noqa: A002
        """Return the first entry, deleted or not. ``id`` is above evicted_to and at most last_id."""
        active = self._active_node()
        if active is not None and id >= active.id_at(0):
            first = self._active_ord
            return StreamPosition(first + active.find_from(id), active, first, self.next_ord)
        index = self._sealed
        position = index.of_id(id)
        if position < index.head:
            return StreamPosition(self.first_ord, None, 0, 0)
        node, first = self._node(position), index.ords[position]
        return StreamPosition(first + node.find_from(id), node, first, self._end(position))

    def _living(self, found: StreamPosition) -> StreamPosition:
        """Return the first living entry at or after a position."""
        ordinal = max(found.ordinal, self.first_ord)
        if self.tombstones is not None:
            ordinal = self.tombstones.live_from(ordinal)
        if ordinal >= self.next_ord:
            return StreamPosition(self.next_ord, None, 0, 0)
        if found.node is not None and ordinal < found.first + len(found.node):
            return StreamPosition(ordinal, found.node, found.first, found.end)
        return self.position_of(ordinal)

    def position_of(self, ordinal: int) -> StreamPosition:
        """Return the position of a living entry, with its node."""
        if ordinal >= self._active_ord:
            return StreamPosition(ordinal, self._active_node(), self._active_ord, self.next_ord)
        position = self._sealed.of_ord(ordinal)
        return StreamPosition(ordinal, self._node(position), self._sealed.ords[position], self._end(position))

    def node_start(self, ordinal: int) -> int:
        """Return the first ordinal of the node of an entry, without opening it."""
        index = self._sealed
        return self._active_ord if ordinal >= self._active_ord else index.ords[index.of_ord(ordinal)]

    def ord_from(self, id: int) -> int:  # noqa: A002
        """Return the ordinal of the first living entry with an ID >= ``id``; next_ord if there is none."""
        return self.seek(id).ordinal if id else self.first_ord

    def count(self, lo: int, hi: int) -> int:
        """Return the number of living entries in [lo, hi)."""
        tombstones = self.tombstones
        return hi - lo if tombstones is None else hi - lo - tombstones.count(lo, hi)

    def after(self, lo: int, count: int) -> int:
        """Return the ordinal after ``count`` living entries from ``lo`` on; at most next_ord."""
        tombstones = self.tombstones
        return min(lo + count, self.next_ord) if tombstones is None else tombstones.after(lo, count, self.next_ord)

    def ahead(self, hi: int, count: int) -> int:
        """Return the ordinal of the ``count``-th living entry before ``hi``; at least first_ord."""
        tombstones = self.tombstones
        return max(hi - count, self.first_ord) if tombstones is None else tombstones.ahead(hi, count, self.first_ord)

    def node_border(self, ordinal: int) -> int:
        """Return the highest ordinal up to ``ordinal`` where a node begins or the stream ends; at least first_ord."""
        if ordinal >= self.next_ord:
            return self.next_ord
        if ordinal >= self._active_ord:
            return max(self._active_ord, self.first_ord)
        index = self._sealed
        if ordinal < self._end(index.head):  # in the oldest node: the common case if appends trim
            return self.first_ord
        return max(index.ords[index.of_ord(ordinal)], self.first_ord)

    def bytes_border(self, most: int) -> int:
        """Return the lowest ordinal from which on the entries take at most ``most`` bytes; at least first_ord.

        The size of an entry in the active node is that of its wire form. Sealed entries have the mean size of all
        entries that were compressed so far, and none while this is unknown. O(log N); no sealed node is opened.
        """
        begin = max(self._active_ord, self.first_ord)
        listed, active = self._append_list, self._active
        size = self._active_bytes if listed is not None else 0 if active is None else len(active.wire)
        if size > most or begin > self._active_ord:
            node = self._active_node()
            if node is not None:
                ends, at = node.ends, begin - self._active_ord
                size -= ends[at - 1] if at else 0
                if size > most:
                    return begin + bisect_left(ends, ends[-1] - most, at) - at + 1
        sealed = self._sealed
        if not sealed.entries:
            return self.first_ord if size < most else begin
        return self.ahead(begin, (most - size) * sealed.entries // max(1, sealed.bytes))

    def head_until(self) -> int:
        """Return an ID up to which the entries of the oldest node extend. The stream must not be empty."""
        index = self._sealed
        if index.head + 1 < len(index.ords):
            return index.first_id(index.head + 1)
        if index.head == len(index.ords) or self._active_ord == self.next_ord:
            return self.last_id
        return self.id_at(self._active_ord)

    def head_end(self) -> int:
        """Return the ordinal after the oldest node, as far as it is known: the active node can still grow."""
        index = self._sealed
        position = index.head + 1
        if position < len(index.ords):
            return index.ords[position]
        return self._active_ord if index.head < len(index.ords) else self.next_ord

    def nodes_end(self, number: int) -> int:
        """Return the ordinal after the ``number`` oldest sealed nodes; next_ord if there are not more."""
        index = self._sealed
        position = index.head + number
        return index.ords[position] if position < len(index.ords) else self.next_ord

    def id_at(self, ordinal: int) -> int:
        """Return the ID of a living entry."""
        if ordinal == self.next_ord - 1 and self._raised != self.next_ord:
            return self.last_id
        if ordinal >= self._active_ord:  # without joining the append list, which makes later appends slower
            active, listed, at = self._active, self._append_list, ordinal - self._active_ord
            if active is not None:
                if at < len(active):
                    return active.id_at(at)
                at -= len(active)
            if listed is not None:
                return appendlist.id_at(listed, at)
        index = self._sealed
        position = index.head
        if self._end(position) <= ordinal:  # not in the oldest node, the common case of evictions
            position = index.of_ord(ordinal)
        first = index.ords[position]
        if first == ordinal:
            return index.first_id(position)
        return self._node(position).id_at(ordinal - first)

    def id_before(self, ordinal: int) -> int:
        """Return the ID of the newest living entry before ``ordinal``, which must be above first_ord."""
        tombstones = self.tombstones
        return self.id_at(ordinal - 1 if tombstones is None else tombstones.live_below(ordinal))

    def first_id(self) -> int:
        """Return the ID of the oldest living entry, 0 if there is none."""
        return self.id_at(self.first_ord) if self.first_ord < self.next_ord else 0

    def newest_id(self) -> int:
        """Return the ID of the newest living entry, 0 if there is none."""
        return self.id_before(self.next_ord) if self.first_ord < self.next_ord else 0

    def top_id(self) -> int:
        """Return the highest ID in a node, of a living or a deleted entry; 0 if there is none."""
        return self.id_at(self.next_ord - 1) if self.first_ord < self.next_ord else 0

    def locate(self, id: int) -> StreamPosition | None:  # noqa: A002
        """Return the position of the living entry with this ID; None if there is none."""
        if id <= self.evicted_to or id > self.last_id or self.first_ord == self.next_ord:
            return None
        found = self._seek(id)
        node, ordinal = found.node, found.ordinal
        at = ordinal - found.first
        if node is None or ordinal < self.first_ord or at >= len(node) or node.id_at(at) != id:
            return None
        if self.tombstones is not None and self.tombstones.has(ordinal):
            return None
        return found

    def find(self, id: int) -> bytes | None:  # noqa: A002
        """Return the wire form of the living entry with this ID; None if there is none."""
        found = self.locate(id)
        if found is None or found.node is None:
            return None
        at = found.ordinal - found.first
        return found.node.slice(at, at + 1)

    def pick(self, position: StreamPosition, picks: Selection) -> None:
        """Add a located living entry to a selection."""
        first, ordinal = position.first, position.ordinal
        picks.begin(self.pool, self.sid)
        if picks.add(first, ordinal):
            return
        active = self._active_node() if ordinal >= self._active_ord else None
        if active is not None:
            picks.add_active(first, active.part(0, len(active)))
        else:
            first_id = self._sealed.first_id(self._sealed.of_ord(first))
            picks.add_node(first, position.end, first_id, self._sealed.blobs.get(first), self.tombstones)
        picks.add(first, ordinal)

    def ords_of(self, ids: list[int]) -> list[int]:
        """Return the ordinals of the living entries with these IDs (ascending). Other IDs are ignored."""
        found: list[int] = []
        self.add_ords([raw_id(entry_id) for entry_id in ids], found)
        return found

    def add_ords(self, raws: list[bytes], found: list[int]) -> int:
        """Add the ordinals of the living entries with these IDs (16 bytes each, ascending, unique) to ``found``.

        Returns the ID of the last entry found; 0 if there is none.
        """
        highest = 0
        if self.first_ord == self.next_ord:
            return highest
        at, end = bisect_right(raws, raw_id(self.evicted_to)), bisect_right(raws, raw_id(self.last_id))
        while at < end:
            position = self._seek(int.from_bytes(raws[at], "big"))
            node = position.node
            stop = at + 1
            if node is not None and position.ordinal - position.first < len(node):
                stop = bisect_right(raws, raw_id(node.id_at(len(node) - 1)), at, end)
                here = self._ords_in(position.first, position.ordinal - position.first, node, raws[at:stop])
                if here:
                    found += here
                    highest = node.id_at(here[-1] - position.first)
            at = stop
        return highest

    def _ords_in(self, first: int, lo: int, node: AnyNode, raws: list[bytes]) -> list[int]:
        """Return the ordinals in the node that begins at ``first``. All IDs are at or above its entry ``lo``."""
        found: list[int] = []
        hi = lo + 1
        if len(raws) > 1:
            hi = min(len(node), node.find_from(int.from_bytes(raws[-1], "big")) + 1)
        if len(raws) < FEW or hi - lo > SPARSE * len(raws):
            for raw in raws:
                entry_id = int.from_bytes(raw, "big")
                at = node.find_from(entry_id)
                if node.id_at(at) == entry_id:
                    found.append(first + at)
        else:
            positions = dict(zip(node.raw_ids(lo, hi), range(first + lo, first + hi), strict=True))
            found = [positions[raw] for raw in raws if raw in positions]
        if found and found[0] < self.first_ord:
            found = [ordinal for ordinal in found if ordinal >= self.first_ord]
        tombstones = self.tombstones
        if found and tombstones is not None and tombstones.count(found[0], found[-1] + 1):
            dead = set(tombstones.marked(found[0], found[-1] + 1))
            found = [ordinal for ordinal in found if ordinal not in dead]
        return found

    def ids_of(self, ordinals: list[int]) -> list[int]:
        """Return the IDs of living entries with these ordinals (ascending)."""
        found: list[int] = []
        node: AnyNode | None = None
        first = end = 0
        for ordinal in ordinals:
            if node is None or ordinal >= end:
                position = self.position_of(ordinal)
                node, first, end = position.node, position.first, position.end
                if node is None:
                    continue
            found.append(node.id_at(ordinal - first))
        return found

    def raw_ids(self, position: StreamPosition, hi: int) -> list[bytes]:
        """Return the IDs (16 bytes each, big-endian) of the living entries from a position to before ordinal ``hi``."""
        node = position.node
        if node is not None and hi <= position.end and self.tombstones is None:
            return node.raw_ids(position.ordinal - position.first, hi - position.first)
        found: list[bytes] = []
        for node, start, stop in self.spans(position.ordinal, hi):
            found += node.raw_ids(start, stop)
        return found

    def ids(self, lo: int, hi: int) -> list[int]:
        """Return the IDs of the living entries in [lo, hi)."""
        found: list[int] = []
        for node, start, stop in self.spans(lo, hi):
            found += node.ids(start, stop)
        return found

    # -- reading living entries: of [lo, hi), which is within [first_ord, next_ord) ----------------------------
    def entries_of_node(self) -> int:
        """Return how many entries a node can have; at least 1. Computed from the largest entry so far."""
        pool, largest = self.pool, self._sealed.largest_entry
        return min(pool.max_entries, max(1, pool.max_bytes // largest)) if largest else pool.max_entries

    def wire_size(self, lo: int, hi: int) -> int:
        """Return an upper bound of the size of read(lo, hi), computed from the index. Opens no node."""
        size = 0
        active, first = self._active_node(), self._active_ord
        if active is not None and hi > first:
            start = max(lo - first, 0)
            size = active.ends[hi - first - 1] - (active.ends[start - 1] if start else 0)
            hi = first
        if lo >= hi:
            return size
        sealed = self._sealed
        bound = (hi - lo) * sealed.largest_entry
        if bound > sealed.largest_node:
            count = sealed.of_ord(hi - 1) - sealed.of_ord(lo) + 1
            bound = min(bound, count * sealed.largest_node)
        return size + bound

    def fitting(self, lo: int, hi: int, room: int, more: int) -> tuple[int, int]:
        """Return how many of the entries begin within ``room`` bytes, at least one, and the size of these. An entry
        counts as ``more`` bytes longer than its wire form. Opens the nodes of the entries that fit."""
        count = size = 0
        for node, start, stop in self.spans(lo, hi):
            cuts = node.cuts(start, stop)
            number = begin_within(cuts, room - size, more)
            count += number
            size += cuts[number - 1] + more * number
            if size >= room:
                break
        return count, size

    def at_hand(self, position: StreamPosition, hi: int, limit: int) -> bytes | None:
        """Return the wire form of the entries from a position to before ``hi``, if they are in one node.

        Returns None if the node is not smaller than ``limit`` bytes or entries in the range are deleted.
        """
        active, ordinal = self._active_node(), position.ordinal
        node, first, end = position.node, position.first, position.end
        if node is None:  # no node was searched: the range begins with the stream
            if active is not None and ordinal >= self._active_ord:
                node, first, end = active, self._active_ord, self.next_ord
            else:
                index = self._sealed
                slot = index.head if ordinal == self.first_ord else index.of_ord(ordinal)
                node, first, end = self._node(slot), index.ords[slot], self._end(slot)
        if self.tombstones is not None and self.tombstones.count(ordinal, hi):
            return None
        size = len(active.wire) if active is not None and node is active else self._sealed.largest_node
        if hi > end or size >= limit:
            return None
        return node.slice(ordinal - first, hi - first)

    def read(self, lo: int, hi: int) -> bytes:
        """Return the joined wire form of the entries."""
        return b"".join([node.slice(start, stop) for node, start, stop in self.spans(lo, hi)])

    def each(self, lo: int, hi: int) -> list[bytes]:
        """Return the wire form of each entry."""
        wires: list[bytes] = []
        for node, start, stop in self.spans(lo, hi):
            wires += node.each(start, stop)
        return wires

    def redis_form(self, position: StreamPosition, hi: int) -> list[bytes]:
        """Return the entries from a position to before ``hi`` in the form of X commands (``redisform``), in parts."""
        parts: list[bytes] = []
        if self.tombstones is not None:
            for span, start, stop in self.spans(position.ordinal, hi):
                parts += redis_parts(span.slice(start, stop), span.cuts(start, stop))
            return parts
        while True:
            node, lo = position.node, position.ordinal
            if node is None:
                position = self.position_of(lo)
                continue
            stop = min(hi, position.end)
            self._add_redis_part(position.first, node, lo - position.first, stop - position.first, parts)
            if stop == hi:
                return parts
            position = self.position_of(stop)

    def _add_redis_part(self, first: int, node: AnyNode, start: int, stop: int, parts: list[bytes]) -> None:
        """Add entries start to stop - 1 of one node in the form of X commands.

        A cached node stores this form once X commands have read more entries than the node has: storing it for a reader
        that reads a stream only once would gain nothing.
        """
        if type(node) is PackedNode or type(node) is CodedNode:
            node.redis_reads += stop - start
            if node.redis_reads > len(node):
                unpacked = node.unpack()
                self.pool.cache.put(self.sid, first, unpacked)
                node = unpacked
        elif type(node) is Node and not node.redis_wire:
            node.redis_reads += stop - start
        if type(node) is Node and (
            node.redis_wire or (node.redis_reads > len(node) and self._keep_redis_wire(first, node))
        ):
            ends = node.redis_ends
            parts.append(node.redis_wire[ends[start - 1] if start else 0 : ends[stop - 1]])
            return
        wire = node.slice(start, stop)
        parts += redis_parts(wire, [len(wire)] if stop - start == 1 else node.cuts(start, stop))

    def _keep_redis_wire(self, first: int, node: Node) -> bool:
        """Store the form of X commands in a cached node, if the cache has room. Return whether it was stored."""
        node.redis_reads = 0
        cache = self.pool.cache
        if cache.bytes + node.size > cache.max_bytes:  # the form is about as large as the node
            return False
        form, ends = redis_node(node)
        if not cache.grow(self.sid, first, node, len(form) + 4 * len(ends)):
            return False
        node.redis_wire, node.redis_ends = form, ends
        return True

    def read_reverse(self, lo: int, hi: int) -> list[bytes]:
        """Return the wire form of each entry, newest first."""
        active = self._active_node()
        if active is not None and self.tombstones is None and lo >= self._active_ord:  # the most frequent case
            return active.each_reversed(lo - self._active_ord, hi - self._active_ord)
        wires: list[bytes] = []
        for node, start, stop in reversed(list(self.spans(lo, hi))):
            wires += node.each_reversed(start, stop)
        return wires

    def spans(self, lo: int, hi: int) -> Iterator[tuple[AnyNode, int, int]]:
        """Yield the nodes of [lo, hi), each with start and stop of each range of living entries."""
        index, tombstones = self._sealed, self.tombstones
        position = index.of_ord(lo)
        while tombstones is not None and lo < hi:
            active = self._active_node()
            if active is not None and lo >= self._active_ord:
                first, stop = self._active_ord, hi
            else:
                first, stop = index.ords[position], min(hi, self._end(position))
            ranges = tombstones.live_ranges(lo, stop)
            if ranges:
                node: AnyNode = active if active is not None and lo >= self._active_ord else self._node(position)
                for start, end in ranges:
                    yield node, start - first, end - first
            lo = stop
            position += 1
        while lo < hi:
            last = self._active_node() if lo >= self._active_ord else None
            if last is not None:
                yield last, lo - self._active_ord, hi - self._active_ord
                return
            first, stop = index.ords[position], min(hi, self._end(position))
            yield self._node(position), lo - first, stop - first
            lo = stop
            position += 1

    def pieces(self, lo: int, hi: int) -> tuple[Iterator[bytes], Callable[[], None]]:
        """Return an iterator over the wire form, node by node, from a snapshot that later changes do not affect.

        The second value is a function that releases the snapshot. Reading to the end does so, too.
        """
        snapshot = self.snapshot(lo, hi)
        return snapshot.forward(), snapshot.close

    def _check_known(self, lo: int, hi: int) -> None:
        damaged = self.pool.damaged.get(self.sid)
        if damaged is None:
            return
        index = self._sealed
        for first in self.stored_nodes(lo, hi):
            if first in damaged:
                position = index.of_ord(first)
                count = self._end(position) - first
                raise DamagedNodeError(self.sid, first, index.first_id(position), count, damaged[first])

    def stored_nodes(self, lo: int, hi: int) -> list[int]:
        """Return the first ordinals of the nodes of [lo, hi) that are not in memory."""
        index = self._sealed
        found: list[int] = []
        for position in range(max(index.of_ord(lo), index.head), len(index.ords)):
            first = index.ords[position]
            if first >= hi:
                break
            if first not in index.blobs and self.pool.cache.get(self.sid, first) is None:
                found.append(first)
        return found

    def snapshot(self, lo: int, hi: int) -> Snapshot:
        """Return a snapshot, which the caller must close. O(nodes in the range + nodes that are not stored yet).

        Raises DamagedNodeError if it is known that a node is damaged, because a long reply can't report this later.
        """
        if self.pool.damaged:
            self._check_known(lo, hi)
        index, first = self._sealed, self._active_ord
        at = stop = 0  # positions of the sealed nodes of the range
        if lo < min(hi, first):
            at, stop = index.of_ord(lo), index.of_ord(min(hi, first) - 1) + 1
        borders: array[int] = index.ords[at:stop]
        known = self._sealed.blobs
        blobs = {ordinal: known[ordinal] for ordinal in borders if ordinal in known} if known else {}
        if stop > at:
            borders.append(self._end(stop - 1))
        last = self._active_node() if hi > max(lo, first) else None
        active = None if last is None else last.part(max(lo - first, 0), hi - first)
        ids = index.ms[at:stop], index.seq[at:stop]
        tombstones = self.tombstones
        if tombstones is not None:
            end = max(hi, borders[-1]) if borders else hi
            tombstones = tombstones.freeze(min(lo, borders[0]) if borders else lo, end)
        return Snapshot(self.sid, lo, hi, self.pool, borders, ids, blobs, active, tombstones)
