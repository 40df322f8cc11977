"""Entries that are loose come out as if each had been joined at once."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.model.ids import MASK64
from storage.nodes.appendlist import LARGE, MOST, STEP, add, begun, first_id, join, raw_blob, sealed_blob
from storage.nodes.cache import NodeCache
from storage.nodes.node import ActiveNode, sealed
from storage.nodes.pool import NodePool
from storage.streams.stream import Stream
from tests.storage.nodes.nodestore import MemoryStore
from tests.storage.streams.captures import parts_of

NOW = 1_700_000_000_000
GAPS = st.sampled_from([0, 1, 255, 256, 65_535, 65_536, 1 << 31, 1 << 33])
SIZES = st.sampled_from([0, 1, 255, 256, 65_535, 65_536])
ENTRIES = st.lists(st.tuples(GAPS, st.integers(1, 300), SIZES), min_size=1, max_size=20)


def made(max_entries: int = 512, max_bytes: int = 1 << 16) -> Stream:
    pool = NodePool(MemoryStore(), NodeCache(0))
    pool.max_entries, pool.max_bytes = max_entries, max_bytes
    return Stream(1, pool)


@given(ENTRIES, st.sampled_from([0, 250, MASK64 - 10_000]))
def test_a_blob_of_loose_entries(entries: list[tuple[int, int, int]], seq: int) -> None:
    ms, loose = NOW, list[object]()
    for gap, more, size in entries:
        ms, seq = ms + gap, 0 if gap else seq + more
        if loose:
            add(loose, ms, seq, bytes(size))
        else:
            loose = begun(ms, seq, bytes(size))
    tail = ActiveNode()
    join(loose, tail)
    assert tail.wire == b"".join(bytes(size) for _, _, size in entries)
    assert (list(tail.ms), list(tail.seq)) == (loose[1::STEP], loose[2::STEP])
    assert first_id(loose) == tail.id_at(0)
    assert raw_blob(loose) == sealed(tail, compress=False)


BIG = st.sampled_from([1025, 4096, 10_000, 70_000])


@given(st.lists(st.tuples(GAPS, st.integers(1, 300), BIG), max_size=8), st.lists(BIG, max_size=8), st.data())
@settings(deadline=None)
def test_a_sealed_blob_of_large_entries_in_parts(
    entries: list[tuple[int, int, int]], more: list[int], data: st.DataObject
) -> None:
    seq = data.draw(st.sampled_from([0, 250, MASK64 - 10_000]))
    ms, loose, tail = NOW, list[object](), ActiveNode()
    for gap, ahead, size in entries:
        ms, seq = ms + gap, 0 if gap else seq + ahead
        wire = str(seq).encode() * size
        if loose:
            add(loose, ms, seq, wire)
        else:
            loose = begun(ms, seq, wire)
    if loose:
        join(loose, tail)
    wires, parts = [b"%d" % size * size for size in more], list[bytes]()
    for number, wire in enumerate(wires):
        parts += [wire[:100], wire[100:]]
        tail.wire += wire
        tail.add(ms, seq + 1 + number, len(tail.wire))
    if entries or more:
        assert sealed_blob(loose, ms, seq + 1, list(map(len, wires)), parts) == sealed(tail)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_large_entries_in_parts_are_like_joined_ones(data: st.DataObject) -> None:
    joined, apart = made(), made()
    for number in range(1, data.draw(st.integers(1, 15))):
        sizes = data.draw(st.lists(st.sampled_from([20, 4096, 10_000, 30_000, 70_000]), min_size=1, max_size=12))
        wires = [bytes([number]) * size for size in sizes]
        ms, seq, column = NOW + number // 3, number * 100, array("I", sizes)
        if data.draw(st.booleans()):
            joined.append_packed(ms, seq, column, b"".join(wires))
            parts = [half for wire in wires for half in (wire[:9], wire[9:])]
            apart.append_parts(ms, seq, column, parts, [2] * len(sizes))
        else:
            for at, wire in enumerate(wires):
                joined.append(ms, seq + at, wire)
                apart.append(ms, seq + at, wire)
        if data.draw(st.integers(0, 3)) == 0:
            lo = data.draw(st.integers(joined.first_ord, joined.next_ord))
            assert joined.read(lo, joined.next_ord) == apart.read(lo, joined.next_ord)
        if data.draw(st.integers(0, 5)) == 0:
            border = data.draw(st.integers(joined.first_ord, joined.next_ord))
            assert joined.evict_before(border) == apart.evict_before(border)
        assert apart.pool.bytes == apart.memory_bytes()
        assert (apart.node_count, apart.length, apart.last_id) == (joined.node_count, joined.length, joined.last_id)
        assert apart.meta() == joined.meta()
    lo, hi = joined.first_ord, joined.next_ord
    assert parts_of(joined.capture()) == parts_of(apart.capture())
    assert (joined.ids(lo, hi), joined.each(lo, hi)) == (apart.ids(lo, hi), apart.each(lo, hi))


@pytest.mark.parametrize(
    ("max_entries", "max_bytes"), [(1, 1000), (3, 1000), (16, 1000), (512, 1), (512, 60), (40, 900)]
)
@settings(deadline=None, max_examples=50)
@given(st.data())
def test_unread_is_like_read(max_entries: int, max_bytes: int, data: st.DataObject) -> None:
    read, unread = made(max_entries, max_bytes), made(max_entries, max_bytes)
    for number in range(1, data.draw(st.integers(1, 80))):
        wire = b"<%d>" % number * data.draw(st.sampled_from([1, 1, 1, 9, LARGE]))
        for stream in (read, unread):
            stream.append(number // 3 + 1, number, wire)
            assert stream.pool.bytes == stream.memory_bytes()
        read.read(read.first_ord, read.next_ord)
        if not data.draw(st.integers(0, 7)):
            border = data.draw(st.integers(read.first_ord, read.next_ord))
            assert read.evict_before(border) == unread.evict_before(border)
        if not data.draw(st.integers(0, 7)):
            assert parts_of(read.capture()) == parts_of(unread.capture())
            assert read.meta() == unread.meta()
        assert (read.node_count, read.length) == (unread.node_count, unread.length)
        assert unread.pool.bytes == unread.memory_bytes()
    assert parts_of(read.capture()) == parts_of(unread.capture())
    lo, hi = read.first_ord, read.next_ord
    assert (read.ids(lo, hi), read.each(lo, hi)) == (unread.ids(lo, hi), unread.each(lo, hi))


def test_what_is_read_is_joined_and_what_is_not_is_small() -> None:
    read, unread = made(), made()
    for seq in range(6):
        for stream in (read, unread):
            stream.append(NOW, seq + 1, b"x" * 80)
        assert read.read(0, 1) == b"x" * 80
    assert unread.memory_bytes() < read.memory_bytes()
    assert unread.newest_id() == NOW << 64 | 6
    assert unread.memory_bytes() < read.memory_bytes()  # to ask for the newest ID is not to read
    assert unread.read(5, 6) == b"x" * 80
    assert unread.memory_bytes() == read.memory_bytes()


@pytest.mark.interpreted
def test_an_append_without_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = made()
    for seq in range(MOST // STEP):
        stream.append(NOW, seq, b"x")

    def fails(loose: list[object], tail: ActiveNode) -> None:
        raise MemoryError

    monkeypatch.setattr("storage.streams.nodelist.join", fails)
    with pytest.raises(MemoryError):
        stream.append(NOW, 99, b"y")
    monkeypatch.undo()
    assert stream.next_ord == MOST // STEP
    assert stream.pool.bytes == stream.memory_bytes()
    stream.append(NOW, 99, b"y")
    assert stream.read(0, stream.next_ord) == b"x" * (MOST // STEP) + b"y"


@pytest.mark.interpreted
@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("step", [0, 1])
def test_a_read_or_a_checkpoint_without_memory_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, reads: bool, step: int
) -> None:
    stream = made()
    for at in range(MOST // STEP + 8):  # of which some are in the tail's node
        stream.append(NOW + step * at, at, b"%02d" % at)

    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ActiveNode, "extend", fails)
    monkeypatch.setattr("storage.nodes.appendlist.array", fails)
    if reads:
        with pytest.raises(MemoryError):
            stream.read(0, stream.next_ord)
    else:
        with pytest.raises(MemoryError):
            stream.capture()
    monkeypatch.undo()
    whole = b"".join(b"%02d" % at for at in range(MOST // STEP + 8))
    assert stream.read(0, stream.next_ord) == whole
