"""The cache of decoded nodes: the least recently used ones go first; all streams of a keyspace share its bytes."""

from __future__ import annotations

from collections import OrderedDict

from storage.node import Node


class NodeCache:
    """Bounded by ``max_bytes``, which may change at any time (what is too much goes at once); 0 switches it off.

    A node is known by its stream's sid and the ordinal of its first entry: both never come again for other entries.
    """

    __slots__ = ("_max_bytes", "_nodes", "_of_stream", "bytes", "hits", "misses")

    def __init__(self, max_bytes: int) -> None:
        self.bytes = 0  # of the nodes held, as Node.size counts
        self.hits = 0
        self.misses = 0
        self._max_bytes = max_bytes
        self._nodes: OrderedDict[tuple[int, int], Node] = OrderedDict()
        self._of_stream: dict[int, set[int]] = {}  # sid -> first ordinals; a stream with nothing here has no set

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, value: int) -> None:
        self._max_bytes = value
        self._trim()

    def get(self, sid: int, first_ord: int) -> Node | None:
        key = (sid, first_ord)
        node = self._nodes.get(key)
        if node is None:
            self.misses += 1
            return None
        self.hits += 1
        self._nodes.move_to_end(key)
        return node

    def put(self, sid: int, first_ord: int, node: Node) -> None:
        """Keep ``node``, in the place of one with the same beginning. One that exceeds max_bytes alone isn't kept."""
        self.drop(sid, first_ord)
        size = node.size
        if size > self._max_bytes:
            return
        self._nodes[sid, first_ord] = node
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

    def drop_stream(self, sid: int) -> None:
        """The stream is gone. O(nodes cached of it)."""
        for first_ord in self._of_stream.pop(sid, ()):
            self.bytes -= self._nodes.pop((sid, first_ord)).size

    def clear(self) -> None:
        self._nodes.clear()
        self._of_stream.clear()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def _trim(self) -> None:
        while self.bytes > self._max_bytes:
            (sid, first_ord), node = self._nodes.popitem(last=False)
            self._forget(sid, first_ord, node)

    def _forget(self, sid: int, first_ord: int, node: Node) -> None:
        self.bytes -= node.size
        ordinals = self._of_stream[sid]
        ordinals.discard(first_ord)
        if not ordinals:
            del self._of_stream[sid]
