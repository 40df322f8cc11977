"""Selections: individually selected entries in any order, which are read later. They are the source of long replies.

A ``Snapshot`` does the same for ranges. Until it is read, an entry takes 8 bytes and a node a few hundred, regardless
of the size of the entries. Nodes that are not in the store are shared with the stream. The active node is copied.

Rule 1: a selected entry can be read even if the stream drops it, since views of the store are pinned.
Rule 2: nodes that are opened to read a selection are not added to the cache (see ``snapshot``).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from resp.errors import AbsentNodeError
from storage.model.tombstones import Tombstones
from storage.nodes.draft import Draft, blob_bytes
from storage.nodes.node import Node
from storage.nodes.packed import AnyNode
from storage.nodes.pool import NodePool, NodeStore, open_sealed

NODE_BYTES: Final = 300  # memory of a node of the selection
PICK_BYTES: Final = 8
MISSING: Final = 0xFFFFFFFF  # replaces the number of a node
OPENED: Final = 8  # nodes that stay open, for entries in random order
# Limits for reading entries together.
READ_AT_ONCE: Final = 512
CHUNK_BYTES: Final = 64 * 1024


class _Source:
    """A node of the selection, in its state when its first entry was selected."""

    __slots__ = ("blob", "end", "first", "first_id", "tombstones", "pool", "sid", "active", "view")

    def __init__(self, pool: NodePool, sid: int, view: NodeStore, first: int, end: int) -> None:
        self.pool = pool
        self.sid = sid
        self.view = view
        self.first = first  # its first ordinal
        self.end = end  # the ordinal after its last entry
        self.first_id = 0
        self.blob: bytes | Draft | None = None  # None: read it from the view
        self.tombstones: Tombstones | None = None  # tombstones of its deleted entries
        self.active: Node | None = None  # a copy of the stream's active node

    def open(self) -> AnyNode:
        """Open the node. Raises CorruptError if it is damaged."""
        if self.active is not None:
            return self.active
        node = self.pool.cache.get(self.sid, self.first) if self.view.is_current() else None
        if node is None or len(node) < self.end - self.first:
            count = self.end - self.first
            node = open_sealed(self.blob, self.view, self.sid, self.first, self.first_id, count, self.tombstones)
        return node


class Selection:
    """Selected entries. The owner calls close(); reading to the end does so, too."""

    __slots__ = (
        "_blob_bytes", "_dropped", "_known", "_numbers", "_pool", "_positions", "_sid", "_sources", "_active_bytes",
        "_views", "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.waits = False  # see entries()
        self._sources: list[_Source] = []
        self._numbers = array("I")  # for each entry, the number of its source; MISSING: there is no entry
        self._positions = array("I")  # for each entry, its position in the source
        self._known: dict[int, int] = {}  # first ordinal -> number of its latest source, for the last stream
        self._sid = -1  # sid of the last stream
        self._pool: NodePool | None = None
        self._views: list[NodeStore] = []
        self._blob_bytes = self._active_bytes = self._dropped = 0

    def __len__(self) -> int:
        return len(self._numbers)

    # -- selecting: called by streams ------------------------------------------------------------------------
    def begin(self, pool: NodePool, sid: int) -> None:
        """Set the stream of the entries that follow."""
        if pool is not self._pool or sid != self._sid:
            if self._pool is None:
                self._dropped = pool.dropped
            self._pool, self._sid = pool, sid
            self._known.clear()

    def add(self, first: int, ordinal: int) -> bool:
        """Select an entry of the node that begins at ``first``. Return False if the node must be added first."""
        number = self._known.get(first, -1)
        if number < 0:
            return False
        if ordinal >= self._sources[number].end:  # the node was the active node and has grown
            return False
        self._numbers.append(number)
        self._positions.append(ordinal - first)
        return True

    def add_missing(self) -> None:
        self._numbers.append(MISSING)
        self._positions.append(0)

    def add_active(self, first: int, active: Node) -> None:
        """Add a copy of the active node."""
        self._add(first, first + len(active)).active = active
        self._active_bytes += active.size

    def add_node(
        self, first: int, end: int, first_id: int, blob: bytes | Draft | None, tombstones: Tombstones | None
    ) -> None:  # fmt: skip
        source = self._add(first, end)
        source.first_id, source.blob = first_id, blob
        if tombstones is not None:
            source.tombstones = tombstones.freeze(first, end)
        if blob is not None:
            self._blob_bytes += blob_bytes(blob)

    def _add(self, first: int, end: int) -> _Source:
        assert self._pool is not None  # noqa: S101 - begin() was called
        if not self._views or not self._views[-1].is_current():
            self._views.append(self._pool.store.pin())
        source = _Source(self._pool, self._sid, self._views[-1], first, end)
        self._known[first] = len(self._sources)
        self._sources.append(source)
        return source

    # -- memory ----------------------------------------------------------------------------------------------
    def memory_bytes(self) -> int:
        """Return the approximate memory, without nodes that are shared with streams."""
        return NODE_BYTES * len(self._sources) + PICK_BYTES * len(self._numbers) + self._active_bytes

    def pinned(self) -> int:
        """Return an upper bound of the memory of shared nodes that streams have dropped since."""
        if self._pool is None:
            return 0
        return min(self._blob_bytes, self._pool.dropped - self._dropped)

    # -- reading ---------------------------------------------------------------------------------------------
    def entries(self) -> Iterator[list[bytes | None]]:
        """Yield lists of entries in wire form, in order of selection; None for missing ones.

        With ``waits``, an absent node ends a list, which can be empty, and ``pool.absent`` is set. The next attempt to
        read the node follows when the iteration continues.
        """
        try:
            opened: dict[int, AnyNode] = {}
            found: list[bytes | None] = []
            size = 0
            for number, position in zip(self._numbers, self._positions, strict=True):
                if number == MISSING:
                    found.append(None)
                else:
                    node = opened.get(number)
                    while node is None:
                        try:
                            node = self._open(number)
                        except AbsentNodeError as error:
                            if not self.waits or error.failed or self._pool is None:
                                raise
                            self._pool.absent = error
                            yield found  # the reader waits for the node
                            found, size = [], 0
                            continue
                        if len(opened) == OPENED:
                            del opened[next(iter(opened))]
                        opened[number] = node
                    wire = node.slice(position, position + 1)
                    found.append(wire)
                    size += len(wire)
                if size > CHUNK_BYTES or len(found) == READ_AT_ONCE:
                    yield found
                    found, size = [], 0
            if found:
                yield found
        finally:
            self.close()

    def _open(self, number: int) -> AnyNode:
        if not self._views:
            raise RuntimeError("a selection was read after its close()")
        return self._sources[number].open()

    def close(self) -> None:
        """Release the pinned views. Idempotent."""
        views, self._views = self._views, []
        for view in views:
            view.release()
