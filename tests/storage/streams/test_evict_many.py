"""Many nodes go at once: none of them stays in memory, all others do."""

from __future__ import annotations

import pytest

from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool
from storage.streams.stream import Stream
from tests.storage.nodes.nodestore import MemoryStore, cached

COUNT = 101
NODE = 2  # entries


def wire(ms: int) -> bytes:
    return b"*3\r\n$%d\r\n%d.0\r\n$1\r\nf\r\n$1\r\nv\r\n" % (len(str(ms)) + 2, ms)


@pytest.fixture(params=[0, 40, 90], ids=lambda stored: f"{stored} stored")
def stream(request: pytest.FixtureRequest) -> Stream:
    """Of its entries 1 to COUNT so many are in the store, the others still in memory; some nodes are cached."""
    store = MemoryStore()
    nodes = NodePool(store, NodeCache(1 << 20))
    nodes.max_entries = NODE
    stream = Stream(1, nodes)
    for ms in range(1, COUNT + 1):
        stream.append(ms, 0, wire(ms))
        if ms == request.param:
            capture = stream.capture()
            store.write(capture)
            stream.captured(capture)
    for ordinal in range(0, COUNT, 10):
        stream.read(ordinal, ordinal + 1)
    return stream


def unstored(stream: Stream) -> dict[int, int]:
    """The first ordinals and sizes of the nodes that the next checkpoint stores, without the active node."""
    return {first: len(blob) for first, _, blob in stream.capture().nodes}


@pytest.mark.parametrize("gone", [1, 2, 3, 15, 16, 40, 41, 97, 99, 100, 101])
def test_what_is_gone_leaves_cache_and_memory(stream: Stream, gone: int) -> None:
    blobs, before = unstored(stream), {first for sid, first in cached(stream.pool)}
    assert stream.evict_before(gone, gone << 64) == gone
    border = gone // NODE * NODE  # nodes that begin here or later have something left
    assert set(unstored(stream)) == {first for first in blobs if first >= border}
    assert {first for _, first in cached(stream.pool)} == {first for first in before if first >= border}
    assert stream.pool.cache.bytes == sum(node.size for node in cached(stream.pool).values())
    assert stream.pool.unstored == sum(unstored(stream).values())
    assert stream.read(stream.first_ord, stream.next_ord) == b"".join(map(wire, range(gone + 1, COUNT + 1)))
    assert stream.node_count == (COUNT + 1) // NODE - border // NODE - (gone == COUNT)


def test_other_streams_keep_theirs(stream: Stream) -> None:
    other = Stream(2, stream.pool)
    for ms in range(1, 9):
        other.append(ms, 0, wire(ms))
    other.read(0, 8)
    stream.evict_before(100, 100 << 64)
    assert {first for sid, first in cached(stream.pool) if sid == 2} == {0, 2, 4, 6}
