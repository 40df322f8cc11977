"""What appends remember of the last one changes nothing: all comes out as if each were the first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import records
from storage.entries import bulk_runs, entry_of, entry_wire, id_bulk
from storage.ids import MASK64
from storage.nodes.node import TailNode, seal, sealed

SEQS = st.sampled_from([0, 1, 9, 10, 99, 1022, 1023, 1024, 4095, 9999, 10_000, 1 << 32, MASK64])
IDS = st.lists(st.tuples(st.sampled_from([0, 1, 1_700_000_000_000, MASK64]), SEQS), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("seq", "count"), [(0, 1), (0, 16), (0, 2000), (9, 2), (95, 16), (999, 1), (5, 9995), (9999, 1), (0, 10_000)]
)
def test_runs_of_ids(seq: int, count: int) -> None:
    runs = bulk_runs(77, seq, count)
    expected = [id_bulk(77, number) for number in range(seq, seq + count)]
    assert [head + end for head, ends in runs for end in ends] == expected
    assert all(len({len(end) for end in ends}) == 1 for _, ends in runs)


def test_runs_end_with_the_table() -> None:
    assert not bulk_runs(77, 9990, 11)
    assert not bulk_runs(77, MASK64 - 1, 2)


@given(IDS, st.lists(st.sampled_from([b"", b"s", b"key"]), min_size=20, max_size=20), st.data())
def test_records_of_appends(ids: list[tuple[int, int]], keys: list[bytes], data: st.DataObject) -> None:
    for (ms, seq), key in zip(ids, keys, strict=False):
        wire = bytes(data.draw(st.integers(0, 3)))
        log: list[bytes] = []
        records.log_append(log, key, ms, seq, wire)
        assert b"".join(log) == records.append_head(key, ms, seq, len(wire)) + key + wire


@given(IDS)
def test_columns_of_a_tail(ids: list[tuple[int, int]]) -> None:
    tail, other = TailNode(), TailNode()
    for number, (ms, seq) in enumerate(ids):
        tail.add(ms, seq, number)
        other.extend(ms, seq, [number])
    assert list(zip(tail.ms, tail.seq, strict=True)) == ids == list(zip(other.ms, other.seq, strict=True))
    assert tail.ends == other.ends
    assert TailNode().ms == TailNode().seq == TailNode().ends


@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=5))
def test_the_largest_entry_is_known_when_a_node_is_sealed(sizes: list[int]) -> None:
    tail = TailNode()
    for seq, size in enumerate(sizes):
        tail.wire += bytes(size)
        tail.add(1, seq, len(tail.wire))
    assert sealed(tail) == (seal(tail), max(sizes))


@pytest.mark.parametrize("size", [0, 1, 4095, 4096])
@pytest.mark.parametrize("count", [2, 4, 6])
def test_entries_of_arguments(size: int, count: int) -> None:
    values = [bytes(size)] * (count - 1) + [b"v"]
    assert entry_of(b"$3\r\n1.0", [b"TAPPEND", b"k", *values], 2) == entry_wire(b"$3\r\n1.0", values)
