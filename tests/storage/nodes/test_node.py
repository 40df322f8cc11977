"""Macro nodes as blobs: golden bytes both ways, every kind of column, damage at every byte; the cache of nodes."""

from __future__ import annotations

import random
import struct
from array import array
from bisect import bisect_right
from itertools import accumulate
from zlib import crc32

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from resp.errors import CorruptError
from storage.model.ids import MASK64, MAX_ID
from storage.nodes.cache import NodeCache
from storage.nodes.index import NodeIndex
from storage.nodes.node import BODY, ActiveNode, Node, seal
from storage.nodes.packed import open_stored
from tests.storage.nodes.nodestore import opened

Entry = tuple[int, int, bytes]  # ms, seq, wire


def tail_of(entries: list[Entry]) -> ActiveNode:
    tail = ActiveNode()
    for ms, seq, wire in entries:
        tail.ms.append(ms)
        tail.seq.append(seq)
        tail.wire += wire
        tail.ends.append(len(tail.wire))
    return tail


def entries_of(node: Node) -> list[Entry]:
    return [(node.id_at(i) >> 64, node.id_at(i) & MASK64, node.slice(i, i + 1)) for i in range(len(node))]


def with_crc(head: bytes, body: bytes) -> bytes:
    return head + struct.pack("<I", crc32(head + body)) + body


# name, entries, `how` of the raw blob, body in hex: ms, seq and size columns as the module draws them, then the wire
GOLDEN: list[tuple[str, list[Entry], int, str]] = [
    ("one entry", [(1000, 7, b"abc")], 0, "00  07  03  616263"),
    ("narrow", [(1000, 0, b"a"), (1000, 1, b"bb"), (1255, 0, b"")], 0, "0000ff  000100  010200  616262"),
    ("ms u16", [(1, 0, b"a"), (257, 0, b"b")], 0x02, "0000 0001  0000  0101  6162"),
    ("ms u32", [(1, 0, b"a"), (65537, 0, b"b")], 0x04, "00000000 00000100  0000  0101  6162"),
    ("ms u64", [(0, 1, b"a"), (MASK64, 0, b"b")], 0x06, "0000000000000000 ffffffffffffffff  0100  0101  6162"),
    ("seq i8", [(1, 300, b"a"), (1, 301, b"b"), (2, 299, b"c")], 0x80, "000001  0001fe  010101  616263"),
    ("seq i8, lowest", [(1, 300, b"a"), (2, 172, b"b")], 0x80, "0001  0080  0101  6162"),
    ("seq i16", [(1, 300, b"a"), (2, 0, b"b")], 0x88, "0001  0000 d4fe  0101  6162"),
    ("seq i32", [(1, 0, b"a"), (1, 1 << 20, b"b")], 0x90, "0000  00000000 00001000  0101  6162"),
    ("seq i64", [(1, 0, b"a"), (1, 1 << 40, b"b")], 0x98, "0000  0000000000000000 0000000000010000  0101  6162"),
    ("seq u64", [(1, 3, b"a"), (1, MASK64, b"b")], 0x18, "0000  0300000000000000 ffffffffffffffff  0101  6162"),
    ("sizes u16", [(1, 0, b"a"), (1, 1, b"b" * 256)], 0x20, "0000  0001  0100 0001  61" + "62" * 256),
    ("sizes u32", [(1, 0, b"b" * 65536)], 0x40, "00  00  00000100  " + "62" * 65536),
]


@pytest.mark.parametrize(("entries", "how", "columns"), [case[1:] for case in GOLDEN], ids=[case[0] for case in GOLDEN])
def test_golden_blobs_both_ways(entries: list[Entry], how: int, columns: str) -> None:
    body = bytes.fromhex(columns)
    wire_size = sum(len(wire) for _, _, wire in entries)
    ms, seq, _ = entries[0]
    raw = with_crc(b"TN\1" + struct.pack("<BIIQQ", how, len(entries), wire_size, ms, seq), body)
    assert seal(tail_of(entries), compress=False) == raw
    assert entries_of(opened(raw)) == entries
    # the compressed form: the same header but for bit 0, the same body in one zstd frame of known length
    packed = seal(tail_of(entries))
    assert packed[:28] == raw[:3] + bytes([how | 1]) + raw[4:28]
    assert packed == with_crc(packed[:28], packed[BODY:])
    assert zstandard.frame_content_size(packed[BODY:]) == len(body)
    assert zstandard.ZstdDecompressor().decompress(packed[BODY:]) == body
    assert entries_of(opened(packed)) == entries
    # trailing bytes belong to nothing
    for blob in (raw, packed):
        with pytest.raises(CorruptError):
            opened(blob + b"\0")


entry_lists = st.lists(
    st.tuples(st.integers(0, MAX_ID), st.binary(max_size=40)), min_size=1, max_size=30, unique_by=lambda item: item[0]
) | st.lists(
    st.tuples(st.integers(5 << 64, (5 << 64) + 2000) | st.just(6 << 64), st.binary(max_size=3)),
    min_size=1, max_size=30, unique_by=lambda item: item[0],
)  # fmt: skip


@given(entry_lists, st.booleans())
def test_whatever_is_sealed_opens_again(raw: list[tuple[int, bytes]], compress: bool) -> None:
    entries = [(entry_id >> 64, entry_id & MASK64, wire) for entry_id, wire in sorted(raw)]
    tail = tail_of(entries)
    node = opened(seal(tail, compress))
    assert entries_of(node) == entries == entries_of(tail)
    assert entries_of(opened(seal(node, compress))) == entries  # an opened node seals as well
    assert entries_of(ActiveNode.of(node)) == entries
    lo, hi = len(entries) // 3, len(entries)
    assert entries_of(tail.part(lo, hi)) == entries[lo:hi]
    ids = [ms << 64 | seq for ms, seq, _ in entries]
    wires = [wire for _, _, wire in entries]
    for some in (tail, node):
        assert some.ids(0, len(some)) == ids
        assert some.ids(lo, hi) == ids[lo:hi]
        assert some.slice(lo, hi) == b"".join(wires[lo:hi])
        assert some.slice(hi, lo) == b""
        assert some.each_reversed(lo, hi) == wires[lo:hi][::-1]
        assert some.each(lo, hi) == wires[lo:hi]
        assert some.cuts(lo, hi) == list(accumulate(map(len, wires[lo:hi])))
        assert some.largest() == max(map(len, wires))
        for probe in [0, MAX_ID] + [near + step for near in ids for step in (-1, 0, 1)]:
            if probe >= 0:
                assert some.find_from(probe) == sum(entry_id < probe for entry_id in ids), probe


def sensor_node(count: int) -> ActiveNode:
    wire = b"*3\r\n$6\r\nsensor\r\n$2\r\n%02d\r\n"
    return tail_of([(1_700_000_000_000 + 10 * i, 0, wire % (i % 100)) for i in range(count)])


@pytest.mark.parametrize("compress", [True, False])
def test_a_flipped_bit_never_goes_unseen(compress: bool) -> None:
    blob = seal(sensor_node(40), compress)
    for at in range(len(blob)):
        damaged = bytearray(blob)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(CorruptError):
            opened(bytes(damaged))


@pytest.mark.parametrize("compress", [True, False])
def test_a_cut_blob_is_refused(compress: bool) -> None:
    blob = seal(sensor_node(40), compress)
    for size in range(len(blob)):
        with pytest.raises(CorruptError):
            opened(blob[:size])


def head(how: int, count: int, wire: int, ms: int = 1, seq: int = 1) -> bytes:
    return b"TN\1" + struct.pack("<BIIQQ", how, count, wire, ms, seq)


# Forged: the checksum is right, and what it covers makes no sense. None may crash, nor reserve what a header claims.
FORGED = [
    ("no entries", with_crc(head(0, 0, 1), b"x")),
    ("body too short", with_crc(head(0, 2, 5), b"\0\0\0\0\1\1abc")),
    ("body too long", with_crc(head(0, 1, 1), b"\0\0\1abc")),
    ("sizes of eight bytes", with_crc(head(0x60, 1, 1), b"\0\0" + bytes(7) + b"\1" + b"a")),
    ("sizes that don't add up", with_crc(head(0, 2, 3), b"\0\0\0\1\1\1abc")),
    ("ms beyond 64 bits", with_crc(head(0x06, 2, 2), b"\xff" * 16 + b"\0\1\1\1ab")),
    ("seq below 0", with_crc(head(0x80, 2, 2), b"\0\0\0\x80\1\1ab")),
    ("no zstd frame", with_crc(head(1, 1, 1), b"\0\0\1a")),
    ("a frame of a terabyte", with_crc(head(1, 1, 1), bytes.fromhex("28b52ffd e0 0000000000010000 010000"))),
    ("a frame of another length", with_crc(head(1, 1, 1), zstandard.compress(b"\0\0\1abc"))),
    ("bytes behind the frame", with_crc(head(1, 1, 1), zstandard.compress(b"\0\0\1a") + b"\0")),
    ("4 G entries", with_crc(head(1, 0xFFFFFFFF, 0xFFFFFFFF), zstandard.compress(b"\0\0\1a"))),
    ("later version", with_crc(b"TN\2" + head(0, 1, 1)[3:], b"\0\0\1a")),
    ("foreign", with_crc(b"XX\1" + head(0, 1, 1)[3:], b"\0\0\1a")),
]


@pytest.mark.parametrize("blob", [blob for _, blob in FORGED], ids=[name for name, _ in FORGED])
def test_forged_blobs_are_refused(blob: bytes) -> None:
    with pytest.raises(CorruptError):
        opened(blob)


@given(st.binary(max_size=200), st.integers(0, 255), st.integers(0, 50), st.integers(0, 200))
def test_any_content_under_a_right_checksum_is_a_node_or_damage(body: bytes, how: int, count: int, wire: int) -> None:
    try:
        node = opened(with_crc(head(how, count, wire), body))
    except CorruptError:
        return
    assert len(node) == count > 0
    assert len(node.slice(0, count)) == wire


def test_a_stored_node_must_be_the_one_expected() -> None:
    blob = seal(sensor_node(40))
    first = 1_700_000_000_000 << 64
    assert len(open_stored(blob, 9, 512, first, 40, None)) == 40
    for count, first_id, data in ((41, first, blob), (40, first + 1, blob), (40, first, blob[:-1])):
        with pytest.raises(CorruptError, match=r"stream 9, entries 512 to 55.*[Rr]estore"):
            open_stored(data, 9, 512, first_id, count, None)


def test_the_sensor_workload_takes_few_bytes() -> None:
    entries = []
    for i in range(512):
        ms = 1_700_000_000_000 + i // 4
        name, value = b"%d.%d" % (ms, i % 4), b"%d.%d" % (15 + i * 7 % 10, i * 3 % 10)
        wire = b"*5\r\n$%d\r\n%b\r\n$6\r\nsensor\r\n$2\r\n%02d\r\n$11\r\ntemperature\r\n$4\r\n%b\r\n"
        entries.append((ms, i % 4, wire % (len(name), name, i * 37 % 100, value)))
    assert len(seal(tail_of(entries))) / 512 < 6.4


# -- the cache -----------------------------------------------------------------------------------------------
def small(size: int) -> Node:
    return Node(1, array("I", [0]), array("B", [0]), array("I", [size]), b"x" * size)


def test_the_cache_drops_what_was_used_longest_ago() -> None:
    node = small(1000)
    cache = NodeCache(3 * node.size)
    for first in (0, 1, 2):
        cache.put(1, first, node)
    assert cache.get(1, 0) is node
    cache.put(2, 0, node)
    assert [cache.get(1, first) is not None for first in (0, 1, 2)] == [True, False, True]
    assert (cache.hits, cache.misses) == (3, 1)
    assert cache.bytes == 3 * node.size == cache.max_bytes


def test_the_cache_counts_its_bytes_through_every_change() -> None:
    a, b = small(1000), small(3000)
    cache = NodeCache(100_000)
    cache.put(1, 0, a)
    cache.put(1, 0, b)  # in its place
    cache.put(1, 5, a)
    cache.put(2, 5, a)
    assert cache.bytes == b.size + 2 * a.size
    cache.drop(1, 5)
    cache.drop(1, 5)
    assert cache.bytes == b.size + a.size
    cache.drop_stream(1)
    cache.drop_stream(1)
    assert (len(cache), cache.bytes, cache.get(2, 5)) == (1, a.size, a)
    cache.clear()
    assert (len(cache), cache.bytes, cache.get(2, 5)) == (0, 0, None)


def test_the_cache_shrinks_at_once_and_can_be_off() -> None:
    node = small(1000)
    cache = NodeCache(10 * node.size)
    for first in range(10):
        cache.put(1, first, node)
    cache.max_bytes = 2 * node.size
    assert (len(cache), cache.bytes) == (2, 2 * node.size)
    assert cache.get(1, 9) is node
    cache.max_bytes = 0
    cache.put(1, 20, node)
    assert (len(cache), cache.bytes) == (0, 0)


def test_a_node_too_large_for_the_cache_does_not_leave_an_old_one() -> None:
    cache = NodeCache(2000)
    cache.put(1, 0, small(100))
    cache.put(1, 0, small(5000))
    assert (cache.get(1, 0), cache.bytes) == (None, 0)


# -- the index -----------------------------------------------------------------------------------------------
def test_the_index_finds_by_ordinal_and_by_id_behind_a_dead_prefix() -> None:
    index = NodeIndex()
    ids = [5 << 64, 5 << 64 | 9, 5 << 64 | MASK64, 7 << 64, (7 << 64) + 1] + [n << 64 for n in range(8, 103)]
    for number, first_id in enumerate(ids):
        index.push(10 * number, first_id)
    gone = 0
    for head in (0, 1, 2, 4, 40, 60, 80, 99):  # behind 32 and half of all the arrays are cut
        index.drop_front(head - gone + index.head)
        gone = head
        live = ids[gone:]
        assert len(index) == len(live)
        for number, first_id in enumerate(live):
            for probe in (first_id - 1, first_id, first_id + 1):
                expected = sum(one <= probe for one in live) - 1
                assert index.of_id(probe) == index.head + expected
            assert index.first_id(index.head + number) == first_id
            assert index.of_ord(10 * (gone + number) + 9) == index.head + number
        assert index.of_ord(10 * gone - 1) == index.head - 1
    assert len(index.ords) < 30


def test_the_index_finds_by_ordinal_while_it_changes() -> None:
    """of_ord() remembers what it found last."""
    chance, index, live = random.Random(4), NodeIndex(), list[int]()
    for step in range(4000):
        what = chance.randrange(10)
        if what < 3 or not live:
            live.append(10 * step)
            index.push(10 * step, step << 64)
        elif what == 3 and len(live) > 3:
            at = chance.randrange(len(live))
            del live[at]
            index.remove(index.head + at)
        elif what == 4:
            assert index.pop() == live.pop()
        elif what == 5 and len(live) > 30:
            index.drop_front(index.head + 20)
            del live[:20]
        for _ in range(2):
            near = chance.choice([*live[:2], *live[-2:], chance.randrange(10 * step + 20)]) + chance.randrange(-1, 12)
            probe = max(0, near)
            assert index.of_ord(probe) == index.head + bisect_right(live, probe) - 1
