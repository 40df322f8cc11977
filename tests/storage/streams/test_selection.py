"""Entries that are picked are read as they were, whatever becomes of them; what they take in memory. The model of
streams picks in any order.
"""

from __future__ import annotations

from array import array

import pytest

from storage.nodes.cache import NodeCache
from storage.nodes.draft import StagedDraft
from storage.nodes.pool import NodePool
from storage.nodes.stagedentries import StagedChunk
from storage.streams.selection import NODE_BYTES, PICK_BYTES, Selection
from storage.streams.stream import Stream
from tests.storage.nodes.nodestore import MemoryStore

NODE = 4  # entries
COUNT = 18


def wire(ms: int, *, value: bytes = b"") -> bytes:
    value = value or b"%d" % ms * 40
    return b"*3\r\n$%d\r\n%d.0\r\n$1\r\nf\r\n$%d\r\n%b\r\n" % (len(str(ms)) + 2, ms, len(value), value)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def stream(store: MemoryStore) -> Stream:
    """Four full nodes, and a tail of two entries; nothing is stored."""
    nodes = NodePool(store, NodeCache(1 << 20))
    nodes.max_entries = NODE
    stream = Stream(1, nodes)
    for ms in range(1, COUNT + 1):
        stream.append(ms, 0, wire(ms))
    return stream


def stored(stream: Stream, store: MemoryStore) -> None:
    capture = stream.capture()
    store.write(capture)
    stream.captured(capture)


def pick(stream: Stream, picks: Selection, *mss: int) -> None:
    for ms in mss:
        place = stream.locate(ms << 64)
        assert place is not None
        stream.pick(place, picks)


def read(picks: Selection) -> list[bytes | None]:
    return [wire for wires in picks.entries() for wire in wires]


@pytest.mark.parametrize("before", [True, False], ids=["stored before", "stored after"])
def test_what_is_evicted_and_deleted_is_read(stream: Stream, store: MemoryStore, before: bool) -> None:
    picks, mss = Selection(), [18, 2, 9, 3, 9, 17, 1, 12]
    if before:
        stored(stream, store)
    pick(stream, picks, *mss)
    stream.delete([8, 9, 10], 11 << 64)
    stream.evict_before(16, 16 << 64)
    stored(stream, store)
    stream.evict_before(18, 18 << 64)
    stored(stream, store)
    stream.gone()
    assert read(picks) == [wire(ms) for ms in mss]
    assert store.pins == 0


def test_a_node_that_was_thinned_and_opened_since(stream: Stream, store: MemoryStore) -> None:
    """The cache has it without the bytes of what died after it was picked."""
    stored(stream, store)
    picks = Selection()
    pick(stream, picks, 5, 6, 7, 8)
    stream.delete([4, 5, 6], 7 << 64)
    stored(stream, store)
    stream.pool.cache.clear()
    assert stream.find(8 << 64) == wire(8)
    assert read(picks) == [wire(ms) for ms in (5, 6, 7, 8)]


def test_a_tail_that_goes_on(stream: Stream, store: MemoryStore) -> None:
    picks = Selection()
    pick(stream, picks, 17)
    stream.append(19, 0, wire(19))
    pick(stream, picks, 19, 18)
    stream.append(20, 0, wire(20))
    stored(stream, store)
    pick(stream, picks, 20, 17)
    assert read(picks) == [wire(ms) for ms in (17, 19, 18, 20, 17)]


def test_a_node_that_becomes_the_tail_again(stream: Stream, store: MemoryStore) -> None:
    bare = b"*2\r\n\r\n$1\r\nf\r\n"
    stream.adopt(StagedDraft(100, 0, [StagedChunk.of(b"k", array("I", [len(bare)]), bare)]), 100, 0)
    picks = Selection()
    pick(stream, picks, 100)
    for ms in range(101, 101 + NODE):
        stream.append(ms, 0, wire(ms))
        pick(stream, picks, ms)
    stored(stream, store)
    assert read(picks)[1:] == [wire(ms) for ms in range(101, 101 + NODE)]


def test_streams_with_the_same_ordinals(stream: Stream) -> None:
    other = Stream(2, stream.pool)
    for ms in range(1, COUNT + 1):
        other.append(ms, 0, wire(ms, value=b"other"))
    picks = Selection()
    for ms in (1, 2, 18):
        pick(stream, picks, ms)
        picks.add_missing()
        pick(other, picks, ms)
    mine = [[wire(ms), None, wire(ms, value=b"other")] for ms in (1, 2, 18)]
    assert read(picks) == [one for three in mine for one in three]


def test_memory(stream: Stream, store: MemoryStore) -> None:
    """Nodes in memory are the stream's; they count as soon as they may have left it."""
    stored(stream, store)
    for ms in range(COUNT + 1, 3 * COUNT):
        stream.append(ms, 0, wire(ms))
    picks = Selection()
    assert (picks.memory_bytes(), picks.pinned()) == (0, 0)
    pick(stream, picks, 1, 2, 3)
    assert picks.memory_bytes() == NODE_BYTES + 3 * PICK_BYTES
    pick(stream, picks, 30, 31, 40)
    assert picks.memory_bytes() == 3 * NODE_BYTES + 6 * PICK_BYTES
    assert picks.pinned() == 0
    stream.gone()
    assert 0 < picks.pinned() <= 2 * NODE * len(wire(40))
    picks.close()
    assert store.pins == 0
    with pytest.raises(RuntimeError):
        read(picks)
