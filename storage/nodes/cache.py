"""The cache of opened nodes: the least recently used ones go first; all streams of a keyspace share its bytes.

Nodes come packed (see ``packed``), and are unpacked when they have proved to be in demand.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import Final

from storage.nodes.node import TailNode
from storage.nodes.packed import AnyNode, PackedNode

UNPACK_AT: Final = 2  # uses of a packed node after its first: what is back so soon will be back again

NONE: Final[tuple[int, int, int, AnyNode]] = (0, 0, 0, TailNode())


class NodeCache:
    """Bounded by ``max_bytes``, which may change at any time (what is too much goes at once); 0 switches it off.

    A node is known by its stream's sid and the ordinal of its first entry: both never come again for other entries.
    """

    __slots__ = ("_max_bytes", "_nodes", "_of_stream", "bytes", "hits", "misses", "recent")

    def __init__(self, max_bytes: int) -> None:
        self.bytes = 0  # of the nodes held, as their ``size`` counts
        self.hits = 0
        self.misses = 0
        # The sealed node that a stream used last: sid, first ordinal, end, node. A read that follows a search finds it
        # here at once, also where the cache is off.
        self.recent = NONE
        self._max_bytes = max_bytes
        self._nodes: OrderedDict[tuple[int, int], AnyNode] = OrderedDict()
        self._of_stream: dict[int, set[int]] = {}  # sid -> first ordinals; a stream with nothing here has no set

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, value: int) -> None:
        self._max_bytes = value
        self._trim()

    def get(self, sid: int, first_ord: int) -> AnyNode | None:
        key = (sid, first_ord)
        node = self._nodes.get(key)
        if node is None:
            self.misses += 1
            return None
        self.hits += 1
        self._nodes.move_to_end(key)
        if type(node) is PackedNode:
            node.uses += 1
            if node.uses >= UNPACK_AT:
                node = node.unpack()
                self.put(sid, first_ord, node)
        return node

    def put(self, sid: int, first_ord: int, node: AnyNode) -> None:
        """Keep ``node``, in the place of one with the same beginning. One that exceeds max_bytes alone isn't kept."""
        key = (sid, first_ord)
        if key in self._nodes:
            self.drop(sid, first_ord)
        size = node.size
        if size > self._max_bytes:
            return
        self._nodes[key] = node
        ordinals = self._of_stream.get(sid)
        if ordinals is None:
            self._of_stream[sid] = {first_ord}
        else:
            ordinals.add(first_ord)
        self.bytes += size
        if self.bytes > self._max_bytes:
            self._trim()

    def drop(self, sid: int, first_ord: int) -> None:
        node = self._nodes.pop((sid, first_ord), None)
        if node is not None:
            self._forget(sid, first_ord, node)

    def drop_many(self, sid: int, first_ords: array[int]) -> None:
        """Nodes of a stream are gone, ``first_ords`` ascending. O(their number, or that of the stream's nodes here)."""
        cached = self._of_stream.get(sid)
        if cached is None:
            return
        lowest, highest = first_ords[0], first_ords[-1]
        for first_ord in first_ords if len(first_ords) < len(cached) else tuple(cached):
            if lowest <= first_ord <= highest:
                self.drop(sid, first_ord)

    def drop_stream(self, sid: int) -> None:
        """The stream is gone. O(nodes cached of it)."""
        self.recent = NONE
        for first_ord in self._of_stream.pop(sid, ()):
            self.bytes -= self._nodes.pop((sid, first_ord)).size

    def clear(self) -> None:
        self.recent = NONE
        self._nodes.clear()
        self._of_stream.clear()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def _trim(self) -> None:
        while self.bytes > self._max_bytes:
            (sid, first_ord), node = self._nodes.popitem(last=False)
            self._forget(sid, first_ord, node)

    def _forget(self, sid: int, first_ord: int, node: AnyNode) -> None:
        self.bytes -= node.size
        ordinals = self._of_stream[sid]
        ordinals.discard(first_ord)
        if not ordinals:
            del self._of_stream[sid]
