"""Drafts in a stream: what appending, checkpoints and eviction do with nodes that are not written yet."""

from __future__ import annotations

from array import array

import pytest

from storage.model.entries import entry_wire, id_bulk
from storage.nodes.cache import NodeCache
from storage.nodes.draft import Draft, StagedDraft
from storage.nodes.node import new_compressor
from storage.nodes.pool import MOST_DRAFTED, NodePool, most_drafted
from storage.nodes.stagedentries import StagedChunk
from storage.streams.stream import Stream
from tests.storage.nodes.nodestore import MemoryStore, backward

BARE = entry_wire(b"", [b"f", b"v"])


def wires(ms: int, seq: int, count: int) -> bytes:
    return b"".join(entry_wire(id_bulk(ms, n), [b"f", b"v"]) for n in range(seq, seq + count))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def stream(store: MemoryStore) -> Stream:
    nodes = NodePool(store, NodeCache(0))
    nodes.max_entries = 4
    return Stream(1, nodes)


def adopt(stream: Stream, seq: int, count: int) -> None:
    piece = StagedChunk.of(b"k", array("I", [len(BARE)] * count), BARE * count)
    stream.adopt(StagedDraft(5, seq, [piece]), 5, seq)


def append(stream: Stream, seq: int, count: int) -> None:
    for number in range(seq, seq + count):
        stream.append(5, number, wires(5, number, 1))


def everything(stream: Stream) -> bytes:
    return stream.read(stream.first_ord, stream.next_ord)


def test_a_tail_before_and_appends_behind(stream: Stream) -> None:
    append(stream, 0, 2)
    adopt(stream, 2, 4)
    assert (stream.length, stream.last_id, stream.node_count) == (6, 5 << 64 | 5, 2)
    assert everything(stream) == wires(5, 0, 6)
    adopt(stream, 6, 1)
    append(stream, 7, 2)
    assert stream.node_count == 3  # the last draft had room
    assert everything(stream) == wires(5, 0, 9)
    assert [int.from_bytes(raw, "big") for raw in stream.raw_ids(stream.seek(0), 9)] == [5 << 64 | n for n in range(9)]


def test_a_draft_that_went_on_while_it_was_stored(stream: Stream, store: MemoryStore) -> None:
    adopt(stream, 0, 2)
    capture = stream.capture()
    append(stream, 2, 2)  # the draft is the tail again, full, and sealed
    store.write(capture)
    stream.captured(capture)
    assert everything(stream) == wires(5, 0, 4)
    capture = stream.capture()
    assert [type(node) for _, _, node in capture.nodes] == [bytes]
    store.write(capture)
    stream.captured(capture)
    assert not stream.capture().nodes
    assert everything(stream) == wires(5, 0, 4)


def test_memory_is_given_back(stream: Stream, store: MemoryStore) -> None:
    empty = stream.memory_bytes()
    for number in range(50):
        adopt(stream, number * 4, 4)
    full = stream.memory_bytes()
    assert full - empty > 200 * len(BARE)
    assert stream.disk_bytes() == 0  # nobody knows yet
    capture = stream.capture()
    assert all(isinstance(node, Draft) for _, _, node in capture.nodes)
    store.write(capture)
    assert stream.captured(capture), "its figures have changed"
    assert stream.memory_bytes() < full / 2
    assert stream.disk_bytes() == sum(len(store.load(1, n * 4, 5 << 64 | n * 4)) for n in range(50))
    assert not stream.captured(stream.capture())


def drafting(stream: Stream) -> NodePool:
    """The pool of the stream, which drafts full nodes from now on."""
    stream.pool.most_drafted = 1 << 20
    return stream.pool


def sealed(pool: NodePool) -> list[Draft]:
    """All drafts, sealed as a thread does."""
    drafts = pool.oldest_drafts(1 << 30)
    for draft in drafts:
        draft.seal(new_compressor())
    return drafts


def large(seq: int) -> bytes:
    return entry_wire(id_bulk(5, seq), [b"f", b"%d" % seq * 3000])


def test_full_nodes_are_compressed_later(stream: Stream, store: MemoryStore) -> None:
    pool = drafting(stream)
    append(stream, 0, 8)
    for seq in range(8, 12):
        stream.append(5, seq, large(seq))
    expected = wires(5, 0, 8) + b"".join(map(large, range(8, 12)))
    assert (stream.node_count, len(pool.drafts), stream.has_draft) == (3, 3, True)
    assert everything(stream) == expected
    before = stream.memory_bytes()
    pool.replace_drafts(sealed(pool))
    assert (pool.drafts, pool.drafted, stream.has_draft) == ({}, 0, False)
    assert stream.memory_bytes() < before - 10_000
    pool.cache.clear()
    assert everything(stream) == expected
    capture = stream.capture()
    assert all(isinstance(blob, bytes) for _, _, blob in capture.nodes)
    assert stream.disk_bytes() == sum(len(blob) for _, _, blob in capture.nodes if isinstance(blob, bytes))
    store.write(capture)
    assert not stream.captured(capture), "its totals were known before"
    assert everything(stream) == expected
    assert pool.unstored == 0


def test_sizes_are_unknown_until_they_are_compressed(stream: Stream) -> None:
    pool = drafting(stream)
    append(stream, 0, 8)
    assert stream.bytes_border(1) == 0
    assert stream.bytes_border(0) == 8
    append(stream, 8, 1)
    size = len(wires(5, 8, 1))
    assert [stream.bytes_border(most) for most in (size + 1, size, size - 1)] == [0, 8, 9]
    pool.replace_drafts(sealed(pool))
    assert stream.bytes_border(size + 1) == 8


def test_beyond_the_limit_they_are_compressed_at_once(stream: Stream) -> None:
    pool = drafting(stream)
    pool.most_drafted = 1
    append(stream, 0, 12)
    assert len(pool.drafts) == 1
    assert [isinstance(blob, Draft) for _, _, blob in stream.capture().nodes] == [True, False, False]
    assert everything(stream) == wires(5, 0, 12)


def test_a_checkpoint_meanwhile(stream: Stream, store: MemoryStore) -> None:
    """A draft that is replaced while it is being stored leaves memory, and counts once."""
    pool = drafting(stream)
    append(stream, 0, 4)
    capture = stream.capture()
    pool.replace_drafts(sealed(pool))
    store.write(capture)
    assert stream.captured(capture), "the stored totals lack it"
    assert not stream.capture().nodes
    assert stream.disk_bytes() == len(store.load(1, 0, 5 << 64))
    assert pool.unstored == 0


def test_a_checkpoint_before(stream: Stream, store: MemoryStore) -> None:
    pool = drafting(stream)
    append(stream, 0, 4)
    drafts = sealed(pool)
    capture = stream.capture()
    store.write(capture)
    stream.captured(capture)
    pool.replace_drafts(drafts)
    assert (pool.drafts, pool.drafted, pool.unstored) == ({}, 0, 0)
    assert everything(stream) == wires(5, 0, 4)
    assert stream.disk_bytes() == len(store.load(1, 0, 5 << 64))


def test_a_stream_that_is_gone_meanwhile(stream: Stream) -> None:
    pool = drafting(stream)
    append(stream, 0, 8)
    drafts = sealed(pool)
    stream.evict_before(4, 5 << 64 | 3)
    assert len(pool.drafts) == 1
    stream.gone()
    pool.replace_drafts(drafts)
    assert (pool.drafts, pool.drafted, pool.unstored, pool.bytes) == ({}, 0, 0, 0)


def test_the_oldest_come_first(stream: Stream) -> None:
    pool = drafting(stream)
    append(stream, 0, 12)
    first, second, third = pool.drafts
    assert pool.oldest_drafts(0) == [first]
    assert pool.oldest_drafts(first.size + second.size) == [first, second]
    assert pool.oldest_drafts(1 << 30) == [first, second, third]
    pool.drop_drafts()
    assert pool.oldest_drafts(1 << 30) == []


def test_drafts_take_a_part_of_maxmemory() -> None:
    assert most_drafted(0) == MOST_DRAFTED
    assert most_drafted(1 << 40) == MOST_DRAFTED
    assert most_drafted(16 << 20) == 1 << 20
    assert most_drafted(1) == 0


def test_a_failed_checkpoint_leaves_them(stream: Stream, store: MemoryStore) -> None:
    adopt(stream, 0, 4)
    stream.capture()
    capture = stream.capture()
    assert len(capture.nodes) == 1
    store.write(capture)
    stream.captured(capture)
    assert everything(stream) == wires(5, 0, 4)


def test_eviction(stream: Stream) -> None:
    empty = stream.memory_bytes()
    for number in range(5):
        adopt(stream, number * 4, 4)
    stream.evict_before(6, 5 << 64 | 5)
    assert everything(stream) == wires(5, 6, 14)
    assert stream.node_count == 4
    stream.evict_before(20, 5 << 64 | 19)
    assert (stream.node_count, stream.length) == (0, 0)
    assert stream.memory_bytes() < empty + 700
    append(stream, 20, 1)
    adopt(stream, 21, 3)
    assert everything(stream) == wires(5, 20, 4)


def test_a_snapshot_outlives_them(stream: Stream, store: MemoryStore) -> None:
    adopt(stream, 0, 4)
    adopt(stream, 4, 3)
    forward, _ = stream.pieces(1, 7)
    newest_first, _ = backward(stream, 0, 7)
    capture = stream.capture()
    store.write(capture)
    stream.captured(capture)
    append(stream, 7, 3)
    stream.evict_before(10, 5 << 64 | 9)
    assert b"".join(forward) == wires(5, 1, 6)
    assert b"".join(newest_first) == b"".join(wires(5, n, 1) for n in range(6, -1, -1))
