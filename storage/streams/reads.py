"""A stream's entries, found and read. See ``stream`` for the rules.

Ordinals that are given need not be those of living entries, unless this is said; what is returned is alive.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final

from storage.model.ids import raw_id
from storage.nodes.coded import CodedNode
from storage.nodes.node import Node
from storage.nodes.packed import AnyNode, PackedNode
from storage.nodes.redisform import dashed_node, dashed_run
from storage.streams.nodelist import StreamNodes
from storage.streams.position import Place
from storage.streams.selection import Picks
from storage.streams.snapshot import Snapshot

FEW: Final = 4  # IDs of a node: each one is searched
SPARSE: Final = 8  # entries for each ID that is searched among them: with more, too


class StreamReads(StreamNodes):
    """See ``stream``."""

    __slots__ = ()

    # -- finding ---------------------------------------------------------------------------------------------
    def seek(self, id: int) -> Place:  # noqa: A002
        """The first living entry with an ID >= ``id``; its ordinal is next_ord if there is none."""
        if not id:  # from the beginning
            return Place(self.first_ord, None, 0, 0)
        if id > self.last_id:
            return Place(self.next_ord, None, 0, 0)
        if id <= self.evicted_to:
            return Place(self.first_ord, None, 0, 0)
        found = self._seek(id)
        return found if self.marks is None and found.ordinal >= self.first_ord else self._living(found)

    def _seek(self, id: int) -> Place:  # noqa: A002
        """The same, dead or alive. ``id`` is above evicted_to, and not above last_id."""
        tail = self._whole_tail()
        if tail is not None and id >= tail.id_at(0):
            first = self._tail_ord
            return Place(first + tail.find_from(id), tail, first, self.next_ord)
        index = self._index
        position = index.of_id(id)
        if position < index.head:
            return Place(self.first_ord, None, 0, 0)
        node, first = self._node(position), index.ords[position]
        return Place(first + node.find_from(id), node, first, self._end(position))

    def _living(self, found: Place) -> Place:
        """The first living entry from a place on."""
        ordinal = max(found.ordinal, self.first_ord)
        if self.marks is not None:
            ordinal = self.marks.live_from(ordinal)
        if ordinal >= self.next_ord:
            return Place(self.next_ord, None, 0, 0)
        if found.node is not None and ordinal < found.first + len(found.node):
            return Place(ordinal, found.node, found.first, found.end)
        return self.place(ordinal)

    def place(self, ordinal: int) -> Place:
        """A live entry, with its node."""
        if ordinal >= self._tail_ord:
            return Place(ordinal, self._whole_tail(), self._tail_ord, self.next_ord)
        position = self._index.of_ord(ordinal)
        return Place(ordinal, self._node(position), self._index.ords[position], self._end(position))

    def ord_from(self, id: int) -> int:  # noqa: A002
        """Ordinal of the first living entry with an ID >= ``id``; next_ord if there is none."""
        return self.seek(id).ordinal if id else self.first_ord

    def count(self, lo: int, hi: int) -> int:
        """Living entries in [lo, hi)."""
        marks = self.marks
        return hi - lo if marks is None else hi - lo - marks.count(lo, hi)

    def after(self, lo: int, count: int) -> int:
        """The ordinal behind ``count`` living entries from ``lo`` on; at most next_ord."""
        marks = self.marks
        return min(lo + count, self.next_ord) if marks is None else marks.after(lo, count, self.next_ord)

    def ahead(self, hi: int, count: int) -> int:
        """The ordinal of the ``count``-th living entry before ``hi``; at least first_ord."""
        marks = self.marks
        return max(hi - count, self.first_ord) if marks is None else marks.ahead(hi, count, self.first_ord)

    def node_border(self, ordinal: int) -> int:
        """The highest ordinal up to ``ordinal`` at which a node begins, or the stream ends; at least first_ord."""
        if ordinal >= self.next_ord:
            return self.next_ord
        if ordinal >= self._tail_ord:
            return max(self._tail_ord, self.first_ord)
        index = self._index
        if ordinal < self._end(index.head):  # in the oldest node, as after most appends to a stream that is trimmed
            return self.first_ord
        return max(index.ords[index.of_ord(ordinal)], self.first_ord)

    def id_at(self, ordinal: int) -> int:
        """ID of a live entry."""
        if ordinal == self.next_ord - 1 and self._raised != self.next_ord:
            return self.last_id
        tail = self._whole_tail() if ordinal >= self._tail_ord else None
        if tail is not None:
            return tail.id_at(ordinal - self._tail_ord)
        index = self._index
        position = index.head
        if self._end(position) <= ordinal:  # not in the oldest node, which evictions ask about
            position = index.of_ord(ordinal)
        first = index.ords[position]
        if first == ordinal:
            return index.first_id(position)
        return self._node(position).id_at(ordinal - first)

    def id_before(self, ordinal: int) -> int:
        """ID of the newest living entry before ``ordinal``, which is above first_ord."""
        marks = self.marks
        return self.id_at(ordinal - 1 if marks is None else marks.live_below(ordinal))

    def first_id(self) -> int:
        """ID of the oldest living entry, 0 if there is none."""
        return self.id_at(self.first_ord) if self.first_ord < self.next_ord else 0

    def newest_id(self) -> int:
        """ID of the newest living entry, 0 if there is none."""
        return self.id_before(self.next_ord) if self.first_ord < self.next_ord else 0

    def top_id(self) -> int:
        """The highest ID that a node still has, of a living entry or a dead one; 0 if there is none."""
        return self.id_at(self.next_ord - 1) if self.first_ord < self.next_ord else 0

    def ord_of(self, id: int) -> int:  # noqa: A002
        """Ordinal of the living entry with that ID; -1 if there is none, or no longer."""
        if id <= self.evicted_to or id > self.last_id or self.first_ord == self.next_ord:
            return -1
        found = self._seek(id)
        node, ordinal = found.node, found.ordinal
        if (
            node is None
            or ordinal < self.first_ord
            or ordinal - found.first >= len(node)
            or (node.id_at(ordinal - found.first) != id or (self.marks is not None and self.marks.has(ordinal)))
        ):
            return -1
        return ordinal

    def locate(self, id: int) -> Place | None:  # noqa: A002
        """The living entry with that ID; None if there is none, or no longer."""
        ordinal = self.ord_of(id)
        return None if ordinal < 0 else self.place(ordinal)

    def find(self, id: int) -> bytes | None:  # noqa: A002
        """Wire of the living entry with that ID; None if there is none, or no longer."""
        if id <= self.evicted_to or id > self.last_id or self.first_ord == self.next_ord:
            return None
        found = self._seek(id)
        node = found.node
        if node is None or found.ordinal < self.first_ord:
            return None
        at = found.ordinal - found.first
        if at >= len(node) or node.id_at(at) != id or (self.marks is not None and self.marks.has(found.ordinal)):
            return None
        return node.slice(at, at + 1)

    def pick(self, place: Place, picks: Picks) -> None:
        """Add a living entry that was located to ``picks``."""
        first, ordinal = place.first, place.ordinal
        picks.begin(self.pool, self.sid)
        if picks.add(first, ordinal):
            return
        tail = self._whole_tail() if ordinal >= self._tail_ord else None
        if tail is not None:
            picks.add_tail(first, tail.part(0, len(tail)))
        else:
            first_id = self._index.first_id(self._index.of_ord(first))
            picks.add_node(first, place.end, first_id, self._blobs.get(first), self.marks)
        picks.add(first, ordinal)

    def ords_of(self, ids: list[int]) -> list[int]:
        """Ordinals of the living entries with these IDs, which ascend: of those that there are."""
        found: list[int] = []
        self.add_ords([raw_id(entry_id) for entry_id in ids], found)
        return found

    def add_ords(self, raws: list[bytes], found: list[int]) -> int:
        """The same; the IDs as 16 bytes each, big-endian, none twice. Adds to ``found`` and returns the ID of the last
        entry there; 0 if there is none."""
        highest = 0
        if self.first_ord == self.next_ord:
            return highest
        at, end = bisect_right(raws, raw_id(self.evicted_to)), bisect_right(raws, raw_id(self.last_id))
        while at < end:
            place = self._seek(int.from_bytes(raws[at], "big"))
            node = place.node
            stop = at + 1
            if node is not None and place.ordinal - place.first < len(node):
                stop = bisect_right(raws, raw_id(node.id_at(len(node) - 1)), at, end)
                here = self._ords_in(place.first, place.ordinal - place.first, node, raws[at:stop])
                if here:
                    found += here
                    highest = node.id_at(here[-1] - place.first)
            at = stop
        return highest

    def _ords_in(self, first: int, lo: int, node: AnyNode, raws: list[bytes]) -> list[int]:
        """Those in one node, which begins at ordinal ``first``; no ID is below that of its entry ``lo``."""
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
        marks = self.marks
        if found and marks is not None and marks.count(found[0], found[-1] + 1):
            dead = set(marks.marked(found[0], found[-1] + 1))
            found = [ordinal for ordinal in found if ordinal not in dead]
        return found

    def ids_of(self, ordinals: list[int]) -> list[int]:
        """IDs of living entries, which ascend."""
        found: list[int] = []
        node: AnyNode | None = None
        first = end = 0
        for ordinal in ordinals:
            if node is None or ordinal >= end:
                place = self.place(ordinal)
                node, first, end = place.node, place.first, place.end
                if node is None:
                    continue
            found.append(node.id_at(ordinal - first))
        return found

    def raw_ids(self, place: Place, hi: int) -> list[bytes]:
        """IDs of the living entries from ``place`` to before ordinal ``hi``, each as 16 bytes, big-endian."""
        node = place.node
        if node is not None and hi <= place.end and self.marks is None:
            return node.raw_ids(place.ordinal - place.first, hi - place.first)
        found: list[bytes] = []
        for node, start, stop in self._spans(place.ordinal, hi):
            found += node.raw_ids(start, stop)
        return found

    def ids(self, lo: int, hi: int) -> list[int]:
        """IDs of the living entries in [lo, hi)."""
        found: list[int] = []
        for node, start, stop in self._spans(lo, hi):
            found += node.ids(start, stop)
        return found

    # -- reading living entries: of [lo, hi), which is within [first_ord, next_ord) ----------------------------
    def wire_size(self, lo: int, hi: int) -> int:
        """Upper bound of the bytes that read(lo, hi) returns. An estimate from the index: it opens no node."""
        size = 0
        tail, first = self._whole_tail(), self._tail_ord
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
        """Wire of the entries from ``place`` to before ``hi``, if one node smaller than ``limit`` bytes has them.

        None also if entries among them are dead.
        """
        tail, ordinal = self._whole_tail(), place.ordinal
        node, first, end = place.node, place.first, place.end
        if node is None:  # the range begins with the stream: no node was searched
            if tail is not None and ordinal >= self._tail_ord:
                node, first, end = tail, self._tail_ord, self.next_ord
            else:
                index = self._index
                position = index.head if ordinal == self.first_ord else index.of_ord(ordinal)
                node, first, end = self._node(position), index.ords[position], self._end(position)
        if self.marks is not None and self.marks.count(ordinal, hi):
            return None
        if hi > end or (len(tail.wire) if tail is not None and node is tail else self._largest_node) >= limit:
            return None
        return node.slice(ordinal - first, hi - first)

    def read(self, lo: int, hi: int) -> bytes:
        """Their wire."""
        return b"".join([node.slice(start, stop) for node, start, stop in self._spans(lo, hi)])

    def each(self, lo: int, hi: int) -> list[bytes]:
        """Their wire one by one."""
        wires: list[bytes] = []
        for node, start, stop in self._spans(lo, hi):
            wires += node.each(start, stop)
        return wires

    def dashed(self, place: Place, hi: int) -> list[bytes]:
        """Those from ``place`` to before ``hi`` in the X form (see ``nodes.dashed``), in parts."""
        parts: list[bytes] = []
        if self.marks is not None:
            for span, start, stop in self._spans(place.ordinal, hi):
                parts += dashed_run(span.slice(start, stop), span.cuts(start, stop))
            return parts
        while True:
            node, lo = place.node, place.ordinal
            if node is None:
                place = self.place(lo)
                continue
            stop = min(hi, place.end)
            self._dashed_part(place.first, node, lo - place.first, stop - place.first, parts)
            if stop == hi:
                return parts
            place = self.place(stop)

    def _dashed_part(self, first: int, node: AnyNode, start: int, stop: int, parts: list[bytes]) -> None:
        """dashed() of entries start to stop - 1 of one node.

        A node in the cache gets the X form when X commands have asked for more than all its entries: who reads a
        stream once, from end to end, gains nothing by it.
        """
        if type(node) is PackedNode or type(node) is CodedNode:
            node.asked += stop - start
            if node.asked > len(node):
                unpacked = node.unpack()
                self.pool.cache.put(self.sid, first, unpacked)
                node = unpacked
        elif type(node) is Node and not node.dashed:
            node.asked += stop - start
        if type(node) is Node and (node.dashed or (node.asked > len(node) and self._dash(first, node))):
            ends = node.dashed_ends
            parts.append(node.dashed[ends[start - 1] if start else 0 : ends[stop - 1]])
            return
        wire = node.slice(start, stop)
        parts += dashed_run(wire, [len(wire)] if stop - start == 1 else node.cuts(start, stop))

    def _dash(self, first: int, node: Node) -> bool:
        """Give a node in the cache its entries in the X form, if there is room for them."""
        node.asked = 0
        cache = self.pool.cache
        if cache.bytes + node.size > cache.max_bytes:  # the form takes about as much as the node
            return False
        form, ends = dashed_node(node)
        if not cache.grow(self.sid, first, node, len(form) + 4 * len(ends)):
            return False
        node.dashed, node.dashed_ends = form, ends
        return True

    def read_reverse(self, lo: int, hi: int) -> list[bytes]:
        """Their wire one by one, newest first."""
        tail = self._whole_tail()
        if tail is not None and self.marks is None and lo >= self._tail_ord:  # the newest ones, asked for most often
            return tail.each_reversed(lo - self._tail_ord, hi - self._tail_ord)
        wires: list[bytes] = []
        for node, start, stop in reversed(list(self._spans(lo, hi))):
            wires += node.each_reversed(start, stop)
        return wires

    def _spans(self, lo: int, hi: int) -> Iterator[tuple[AnyNode, int, int]]:
        """The nodes of [lo, hi), with the start and stop of each run of living entries in them."""
        index, marks = self._index, self.marks
        position = index.of_ord(lo)
        while marks is not None and lo < hi:
            tail = self._whole_tail()
            if tail is not None and lo >= self._tail_ord:
                first, stop = self._tail_ord, hi
            else:
                first, stop = index.ords[position], min(hi, self._end(position))
            runs = marks.runs(lo, stop)
            if runs:
                node: AnyNode = tail if tail is not None and lo >= self._tail_ord else self._node(position)
                for run in runs:
                    yield node, run[0] - first, run[1] - first
            lo = stop
            position += 1
        while lo < hi:
            last = self._whole_tail() if lo >= self._tail_ord else None
            if last is not None:
                yield last, lo - self._tail_ord, hi - self._tail_ord
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
        last = self._whole_tail() if hi > max(lo, first) else None
        tail = None if last is None else last.part(max(lo - first, 0), hi - first)
        ids = index.ms[at:stop], index.seq[at:stop]
        marks = self.marks
        if marks is not None:
            end = max(hi, borders[-1]) if borders else hi
            marks = marks.freeze(min(lo, borders[0]) if borders else lo, end)
        return Snapshot(self.sid, lo, hi, self.pool, borders, ids, blobs, tail, marks)
