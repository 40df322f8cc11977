"""A sealed node's columns: the differences that plain arithmetic gives, each column as narrow as they allow."""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from storage.nodes.node import BODY, HEADER, SEQ_DELTAS, Node, seal
from storage.nodes.packed import open_packed

TOP = (1 << 64) - 1
EDGES = [1 << bits for bits in (0, 7, 8, 13, 14, 15, 16, 29, 30, 31, 32, 47, 62, 63)]
number = st.one_of(st.integers(0, 5), st.sampled_from(EDGES).flatmap(lambda n: st.integers(max(0, n - 3), n + 3)))
entry = st.tuples(st.one_of(st.just(0), number), number, st.one_of(st.integers(1, 300), st.integers(65_500, 65_600)))


def node_of(first_ms: int, entries: list[tuple[int, int, int]]) -> Node:
    """Of steps in ms, numbers (a step where ms stays), sizes; steps that would leave 64 bits are left out."""
    ms, seq = array("Q"), array("Q")
    sizes = []
    for step, n, size in entries:
        if not ms:
            ms.append(first_ms)
            seq.append(n)
        elif step and ms[-1] + step <= TOP:
            ms.append(ms[-1] + step)
            seq.append(n)
        elif seq[-1] + n + 1 <= TOP:
            ms.append(ms[-1])
            seq.append(seq[-1] + n + 1)
        else:
            continue
        sizes.append(size)
    return Node(0, ms, seq, array("I", accumulate(sizes)), bytes(sum(sizes)))


def narrow(values: list[int], signed: bool) -> tuple[int, bytes]:
    """The power of two of the width, and the column."""
    for power in range(4):
        try:
            raw = b"".join([n.to_bytes(1 << power, "little", signed=signed) for n in values])
        except OverflowError:
            continue
        return power, raw
    raise AssertionError


@given(st.one_of(st.just(1_700_000_000_000), number), st.lists(entry, min_size=1, max_size=40))
@example(250, [(0, 0, 40), (3, 0, 40), (0, 0, 40)])  # ms that pass a byte's end
@example(0, [(0, 0, 1), *[(0, 0, 1)] * 600])  # a run
@example(0, [(0, 300, 1), (0, 126, 1), (0, 127, 1), (1, 428, 1), (1, 300, 1)])  # differences at a byte's ends
@example(0, [(0, 300, 1), (0, 126, 1), (1, 299, 1)])
@example(0, [(0, TOP - 1, 1), (0, 0, 1)])
def test_columns_are_what_plain_arithmetic_gives(first_ms: int, entries: list[tuple[int, int, int]]) -> None:
    node = node_of(first_ms, entries)
    blob = seal(node, compress=False)
    how = HEADER.unpack_from(blob)[2]
    sizes = [node.ends[0], *(b - a for a, b in pairwise(node.ends))]
    gaps = narrow([0, *(b - a for a, b in pairwise(node.ms))], False)
    top = max(node.seq)
    if top < 256 or top >> 63:
        seqs = narrow(list(node.seq), False)
        assert not how & SEQ_DELTAS
    else:
        seqs = narrow([0, *(b - a for a, b in pairwise(node.seq))], True)
        assert how & SEQ_DELTAS
    widths = how >> 1 & 3, how >> 3 & 3, how >> 5 & 3
    lengths = narrow(sizes, False)
    assert widths == (gaps[0], seqs[0], lengths[0])
    assert blob[BODY:].startswith(gaps[1] + seqs[1] + lengths[1])
    assert node.largest() == max(sizes)


@given(
    st.one_of(st.just(1_700_000_000_000), number), st.lists(entry, min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(0, 59), st.integers(-2, 2), st.integers(-1, 1)), max_size=30),
)  # fmt: skip
@example(5, [(0, 0, 9)] * 50, [(n, 0, 0) for n in range(50)])
@example(5, [(1, 0, 9), *[(0, 1, 9)] * 50], [(n, 1, 0) for n in range(50)])
@example(5, [(0, 300, 9), *[(0, 0, 9)] * 50], [(n, 0, 0) for n in range(50)])
def test_an_id_is_found_where_a_scan_finds_it(
    first_ms: int, entries: list[tuple[int, int, int]], redis_reads: list[tuple[int, int, int]]
) -> None:
    node = node_of(first_ms, entries)
    packed = open_packed(seal(node))
    unpacked = packed.unpack()
    ids = node.ids(0, len(node))
    for at, seqs, ms in redis_reads:
        wanted = max(0, ids[at % len(ids)] + seqs + (ms << 64))
        place = sum(id < wanted for id in ids)  # noqa: A001
        assert [one.find_from(wanted) for one in (node, packed, unpacked)] == [place] * 3
