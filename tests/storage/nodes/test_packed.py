"""Packed nodes answer what the entries themselves would, as nodes with arrays do; when they are unpacked."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from random import Random
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp.errors import CorruptError
from storage.model.ids import MASK64, MAX_ID
from storage.nodes.cache import UNPACK_AT, NodeCache
from storage.nodes.node import ActiveNode, Node, seal
from storage.nodes.packed import AnyNode, PackedNode, _total, open_packed

Entry = tuple[int, bytes]  # ID, wire

# What makes a column narrow or wide, by its usual and its rarer steps.
GAPS = [[0], [0, 0, 0, 1], [1], [9, 11], [1000], [0, 255], [0, 256], [1, 1 << 17], [5, 1 << 34]]
SEQS = [[0], [1], [1, 2], [200], [300, 1], [1 << 20], [1 << 40]]
SIZES = [[1], [70, 74], [0, 255], [255], [256, 3], [0]]


def entries_of(count: int, gaps: list[int], seqs: list[int], sizes: list[int], seed: int) -> list[Entry]:
    """IDs as they are given: seq starts at 0 with each ms; the first one anywhere."""
    rng = Random(seed)
    ms, seq = rng.choice([0, 7, 1_700_000_000_000]), rng.choice([0, 0, 250, 1000])
    entries = []
    for _ in range(count):
        entries.append((ms << 64 | seq, rng.randbytes(rng.choice(sizes))))
        gap = rng.choice(gaps)
        ms, seq = (ms + gap, 0) if gap else (ms, seq + rng.choice(seqs))
    return entries


def tail_of(entries: list[Entry]) -> ActiveNode:
    tail = ActiveNode()
    for entry_id, wire in entries:
        tail.ms.append(entry_id >> 64)
        tail.seq.append(entry_id & MASK64)
        tail.wire += wire
        tail.ends.append(len(tail.wire))
    return tail


def check(node: AnyNode, entries: list[Entry], rng: Random) -> None:
    """All that a node can be asked, at its borders and at some places between."""
    ids, wires = [one for one, _ in entries], [wire for _, wire in entries]
    count = len(entries)
    assert len(node) == count
    borders = [0, 1, count - 1, count, *(rng.randrange(count + 1) for _ in range(4))]
    for lo in borders:
        for hi in borders:
            assert node.slice(lo, hi) == b"".join(wires[lo:hi])
            if lo <= hi:
                assert node.ids(lo, hi) == ids[lo:hi]
            if lo < hi:
                assert node.each_reversed(lo, hi) == wires[lo:hi][::-1]
    for index in {min(at, count - 1) for at in borders}:
        assert node.id_at(index) == ids[index]
        for probe in (ids[index] - 1, ids[index], ids[index] + 1, (ids[index] >> 64) << 64, ids[index] + (1 << 64)):
            assert node.find_from(max(0, probe)) == bisect_left(ids, probe), probe
    assert node.find_from(0) == 0
    assert node.find_from(MAX_ID) == count


@given(
    st.integers(1, 600), st.sampled_from(GAPS), st.sampled_from(SEQS), st.sampled_from(SIZES), st.integers(0, 1 << 30),
    st.booleans(),
)  # fmt: skip
def test_a_packed_node_answers_as_its_entries_do(
    count: int, gaps: list[int], seqs: list[int], sizes: list[int], seed: int, compress: bool
) -> None:
    entries = entries_of(count, gaps, seqs, sizes, seed)
    tail = tail_of(entries)
    packed = open_packed(seal(tail, compress))
    for node in (packed, packed.unpack(), tail):
        check(node, entries, Random(seed))
    assert packed.unpack().unpack().wire == tail.wire


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 512, 513, 1000])
def test_totals_are_exact_however_large_the_bytes_are(count: int) -> None:
    for numbers in (bytes(count), b"\xff" * count, Random(count).randbytes(count)):
        assert _total(numbers) == sum(numbers)
        assert _total(array("H", list(numbers))) == sum(numbers)


def forged(how: int, columns: bytes, wire: bytes, count: int, ms: int = 1, seq: int = 0) -> bytes:
    """A blob whose checksum is right."""
    head = b"TN\1" + struct.pack("<BIIQQ", how, count, len(wire), ms, seq)
    return head + struct.pack("<I", crc32(head + columns + wire)) + columns + wire


def test_impossible_columns_are_refused_before_they_are_used() -> None:
    assert open_packed(forged(0, b"\0\1\0\0\1\2", b"abb", 2)).slice(1, 2) == b"bb"
    for blob in (
        forged(0, b"\0\1\0\0\1\1", b"abb", 2),  # sizes that don't add up
        forged(0, b"\0\1\0\0\1\2", b"abb", 2, ms=MASK64),
        forged(0, b"\1\1\0\0\1\2", b"abb", 2),  # not the first ID that the header names
        forged(0, b"\0\1\0\0\1\2", b"abb", 2, seq=1),
        forged(0x80, b"\0\1\1\0\1\2", b"abb", 2),
        forged(0x06, b"\0" * 8 + b"\xff" * 8 + b"\0\0\1\2", b"abb", 2),  # ms beyond 64 bits
    ):
        with pytest.raises(CorruptError):
            open_packed(blob)


def test_impossible_differences_are_found_when_they_are_used() -> None:
    below = open_packed(forged(0x80, b"\0\0\0\xfe\1\2", b"abb", 2, seq=1))
    beyond = open_packed(forged(0x80, b"\0\0\0\2\1\2", b"abb", 2, seq=MASK64))
    for node in (below, beyond):
        for use in (node.unpack, lambda node=node: node.id_at(1), lambda node=node: node.ids(0, 2)):
            with pytest.raises(CorruptError):
                use()


# -- in the cache --------------------------------------------------------------------------------------------
def test_the_cache_unpacks_what_is_in_demand_and_counts_its_bytes() -> None:
    entries = entries_of(300, [9, 11], [1], [70, 74], 1)
    cache = NodeCache(1_000_000)
    cache.put(1, 0, open_packed(seal(tail_of(entries))))
    cache.put(1, 300, open_packed(seal(tail_of(entries))))
    before = cache.bytes
    kinds = [type(cache.get(1, 0)) for _ in range(UNPACK_AT + 1)]
    assert kinds == [PackedNode] * (UNPACK_AT - 1) + [Node] * 2
    kept, other = cache.get(1, 0), cache.get(1, 300)
    assert isinstance(kept, Node)
    assert isinstance(other, PackedNode)
    check(kept, entries, Random(1))
    assert cache.bytes == kept.size + other.size > before
    assert len(cache) == 2


def test_unpacking_stays_within_the_bytes_of_the_cache() -> None:
    entries = entries_of(300, [9, 11], [1], [1], 1)
    packed = open_packed(seal(tail_of(entries)))
    cache = NodeCache(2 * packed.size)
    cache.put(1, 0, packed)
    cache.put(1, 300, open_packed(seal(tail_of(entries))))
    for _ in range(UNPACK_AT):
        cache.get(1, 0)
    assert isinstance(cache.get(1, 0), Node)
    assert cache.get(1, 300) is None
    assert cache.bytes == packed.unpack().size <= cache.max_bytes
