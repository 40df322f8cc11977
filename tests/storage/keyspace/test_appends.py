"""What appends remember of the last one changes nothing: all comes out as if each were the first."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.keyspace.recordheads import RecordHeads
from storage.model.entries import bulk_ranges, entry_of, entry_wire, id_bulk
from storage.model.ids import MASK64
from storage.nodes.cache import NodeCache
from storage.nodes.node import FEW_STEPS, ActiveNode, _signed_gaps, _stepped, _steps, seal, sealed
from storage.nodes.pool import NodePool
from storage.streams.stream import Stream
from tests.storage.keyspace.replaykit import append_record
from tests.storage.nodes.nodestore import MemoryStore

SEQS = st.sampled_from([0, 1, 9, 10, 99, 1022, 1023, 1024, 4095, 9999, 10_000, 1 << 32, MASK64])
IDS = st.lists(st.tuples(st.sampled_from([0, 1, 1_700_000_000_000, MASK64]), SEQS), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("seq", "count"), [(0, 1), (0, 16), (0, 2000), (9, 2), (95, 16), (999, 1), (5, 9995), (9999, 1), (0, 10_000)]
)
def test_runs_of_ids(seq: int, count: int) -> None:
    runs = bulk_ranges(77, seq, count)
    expected = [id_bulk(77, number) for number in range(seq, seq + count)]
    assert [head + end for head, ends in runs for end in ends] == expected
    assert all(len({len(end) for end in ends}) == 1 for _, ends in runs)


def test_runs_end_with_the_table() -> None:
    assert not bulk_ranges(77, 9990, 11)
    assert not bulk_ranges(77, MASK64 - 1, 2)


@given(IDS, st.lists(st.sampled_from([b"", b"s", b"key"]), min_size=20, max_size=20), st.data())
def test_records_of_appends(ids: list[tuple[int, int]], keys: list[bytes], data: st.DataObject) -> None:
    heads = RecordHeads()
    for (ms, seq), key in zip(ids, keys, strict=False):
        wire = bytes(data.draw(st.integers(0, 3)))
        log: list[bytes] = []
        heads.log_append(log, key, ms, seq, wire)
        assert b"".join(log) == append_record(key, ms, seq, wire)


@given(IDS)
def test_columns_of_a_tail(ids: list[tuple[int, int]]) -> None:
    tail, other = ActiveNode(), ActiveNode()
    for number, (ms, seq) in enumerate(ids):
        tail.add(ms, seq, number)
        other.extend(ms, seq, [number])
    assert list(zip(tail.ms, tail.seq, strict=True)) == ids == list(zip(other.ms, other.seq, strict=True))
    assert tail.ends == other.ends
    assert ActiveNode().ms == ActiveNode().seq == ActiveNode().ends


@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=5))
def test_the_largest_entry_is_known_when_a_node_is_sealed(sizes: list[int]) -> None:
    tail = ActiveNode()
    for seq, size in enumerate(sizes):
        tail.wire += bytes(size)
        tail.add(1, seq, len(tail.wire))
    assert sealed(tail) == (seal(tail), max(sizes))


@pytest.mark.parametrize("size", [0, 1, 4095, 4096])
@pytest.mark.parametrize("count", [2, 4, 6])
def test_entries_of_arguments(size: int, count: int) -> None:
    values = [bytes(size)] * (count - 1) + [b"v"]
    assert entry_of(b"$3\r\n1.0", [b"TAPPEND", b"k", *values], 2) == entry_wire(b"$3\r\n1.0", values)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.sampled_from([0, 0, 7, 200, 40_000, 1 << 33])), min_size=1, max_size=12)
)
def test_numbers_that_begin_anew_with_each_millisecond(runs: list[tuple[int, int]]) -> None:
    ms, seq = array("Q"), array("Q")
    for at, (count, first) in enumerate(runs):
        ms.extend([at] * count)
        seq.extend(range(first, first + count))
    steps = _steps(ms, seq)
    assert bool(steps) == (max(seq) > 255 and len(runs) <= FEW_STEPS)
    if steps:
        assert _stepped(len(seq), steps) == _signed_gaps(seq)


def test_numbers_that_do_not_count_up() -> None:
    assert not _steps(array("Q", [1, 1, 1]), array("Q", [300, 301, 303]))
    assert not _steps(array("Q", [1, 1]), array("Q", [1 << 63, (1 << 63) + 1]))


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=9), min_size=1, max_size=99), st.sampled_from([4, 512])
)
def test_a_packed_append_equals_single_appends(batches: list[list[int]], most: int) -> None:
    pools = [NodePool(MemoryStore(), NodeCache(1 << 20)) for _ in "ab"]
    single, packed = (Stream(1, pool) for pool in pools)
    for pool in pools:
        pool.max_entries, pool.max_bytes = most, 90
    for number, sizes in enumerate(batches):
        wire = bytes((number,)) * sum(sizes)
        at = 0
        for seq, size in enumerate(sizes):
            single.append(number + 1, 5 + seq, wire[at : at + size])
            at += size
        packed.append_packed(number + 1, 5, array("I", sizes), wire)
    single.pieces(0, single.next_ord)[1]()  # joins the entries of the active node
    assert single.capture().nodes == packed.capture().nodes
    assert single.capture().active == packed.capture().active
    assert single.meta() == packed.meta()
    assert pools[0].bytes == pools[1].bytes
