"""A node store in memory, for tests of what stands on it: it keeps what checkpoints write, as the real one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from resp.errors import CorruptError
from storage.nodes.compaction import compacted
from storage.nodes.node import Node, new_compressor
from storage.nodes.packed import AnyNode, open_packed
from storage.nodes.pool import NodePool
from storage.streams.capture import StreamCapture
from storage.streams.stream import Stream


class View:
    """The store as it was when it was pinned."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._blobs: dict[tuple[int, int], tuple[int, bytes]] | None = dict(store.blobs)
        self._writes = store.writes
        store.pins += 1

    def load(self, sid: int, first_ord: int, first_id: int) -> bytes:
        assert self._blobs is not None, "read from a released view"
        return find(self._blobs, sid, first_ord, first_id)

    def raw(self, sid: int, first_ord: int, first_id: int) -> bytes:
        return self.load(sid, first_ord, first_id)

    def reference(self, sid: int, first_ord: int, first_id: int) -> bytes:
        return b""

    def resolve(self, raw: bytes, sid: int, first_ord: int, first_id: int) -> bytes:
        return raw

    def pin(self) -> View:
        raise AssertionError("nobody pins a view")

    def is_current(self) -> bool:
        return self._writes == self._store.writes

    def release(self) -> None:
        assert self._blobs is not None, "released twice"
        self._blobs = None
        self._store.pins -= 1


def cached(pool: NodePool) -> dict[tuple[int, int], AnyNode]:
    """The nodes in the cache, by sid and first ordinal."""
    return dict(pool.cache._nodes)


def backward(stream: Stream, lo: int, hi: int) -> tuple[Iterator[bytes], Callable[[], None]]:
    """Like Stream.pieces(), newest entry first."""
    snapshot = stream.snapshot(lo, hi)
    return snapshot.backward(), snapshot.close


class MemoryStore:
    def __init__(self) -> None:
        self.blobs: dict[tuple[int, int], tuple[int, bytes]] = {}  # sid, first ordinal -> first ID, blob
        self.metas: dict[int, bytes] = {}
        self.tombstones: dict[tuple[int, int], bytes] = {}  # sid, chunk -> container
        self.pins = 0  # views not released
        self.writes = 0
        self.loads = 0

    def load(self, sid: int, first_ord: int, first_id: int) -> bytes:
        self.loads += 1
        return find(self.blobs, sid, first_ord, first_id)

    def raw(self, sid: int, first_ord: int, first_id: int) -> bytes:
        return self.load(sid, first_ord, first_id)

    def reference(self, sid: int, first_ord: int, first_id: int) -> bytes:
        return b""

    def resolve(self, raw: bytes, sid: int, first_ord: int, first_id: int) -> bytes:
        return raw

    def pin(self) -> View:
        return View(self)

    def is_current(self) -> bool:
        return True

    def release(self) -> None:
        raise AssertionError("the store itself isn't pinned")

    def write(self, capture: StreamCapture) -> None:
        """A checkpoint. Of the nodes that begin before the stream does the last one stays: its end isn't known here."""
        self.writes += 1
        self.metas[capture.sid] = capture.meta
        sparse = {first: alive for first, _, alive in capture.sparse}
        for first, first_id, node in [*capture.nodes, *([capture.active] if capture.active else [])]:
            less = compacted(node, sparse.pop(first), new_compressor()) if first in sparse else None
            blob = node if isinstance(node, bytes) else node.seal(new_compressor())
            self.blobs[capture.sid, first] = first_id, less or blob
        for first, alive in sparse.items():
            if (capture.sid, first) in self.blobs:
                first_id, blob = self.blobs[capture.sid, first]
                self.blobs[capture.sid, first] = first_id, compacted(blob, alive, new_compressor()) or blob
        for first, first_id in capture.dead_nodes:
            assert self.blobs.pop((capture.sid, first), (first_id, b""))[0] == first_id
        for chunk, container in capture.tombstones:
            if container:
                self.tombstones[capture.sid, chunk] = container
            else:
                self.tombstones.pop((capture.sid, chunk), None)
        dead = [first for first in self.firsts(capture.sid) if first <= capture.first_ord]
        for first in dead[:-1]:
            del self.blobs[capture.sid, first]

    def firsts(self, sid: int) -> list[int]:
        return sorted(first for other, first in self.blobs if other == sid)


def find(blobs: dict[tuple[int, int], tuple[int, bytes]], sid: int, first_ord: int, first_id: int) -> bytes:
    if (sid, first_ord) not in blobs:
        raise CorruptError(f"no node at {sid}, {first_ord}")
    stored_id, blob = blobs[sid, first_ord]
    assert stored_id == first_id
    return blob


def opened(blob: bytes) -> Node:
    """The node of a blob, with arrays. Raises CorruptError."""
    return open_packed(blob).unpack()
