"""Thinned nodes: the same entries at the same places, the dead ones without bytes; and only where that pays."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp.errors import CorruptError
from storage.nodes.compaction import compacted
from storage.nodes.draft import ActiveDraft, StagedDraft
from storage.nodes.node import HEADER, ActiveNode, Node, new_compressor, seal
from storage.nodes.packed import new_decompressor, open_packed
from storage.nodes.stagedentries import StagedChunk

pytestmark = pytest.mark.quick

ROW = st.tuples(st.integers(0, 300), st.integers(0, 1 << 40), st.integers(1, 300))
ENTRIES = st.lists(ROW, min_size=1, max_size=60)


def without(count: int, dead: Iterable[int]) -> list[tuple[int, int]]:
    """The runs of entries that are left of so many, one by one."""
    return [(at, at + 1) for at in range(count) if at not in set(dead)]


def made(rows: list[tuple[int, int, int]]) -> Node:
    """A node whose entries have these gaps of ms, sequence numbers, and sizes."""
    ms = list(accumulate([gap for gap, _, _ in rows], initial=0))[1:]
    taken: dict[int, int] = {}
    seqs = []
    for at, (_, seq, _) in zip(ms, rows, strict=True):
        taken[at] = max(seq, taken.get(at, -1) + 1)
        seqs.append(taken[at])
    wire = b"".join(bytes([n % 251]) * size for n, (_, _, size) in enumerate(rows))
    return Node(7, array("Q", ms), array("Q", seqs), array("I", accumulate(size for _, _, size in rows)), wire)


@given(ENTRIES, st.sets(st.integers(0, 59)))
def test_ids_and_living_entries_are_the_same(rows: list[tuple[int, int, int]], positions: set[int]) -> None:
    node, alive = made(rows), without(len(rows), positions)
    less = compacted(seal(node), alive, new_compressor(), new_decompressor())
    left = sum(size for at, (_, _, size) in enumerate(rows) if at not in positions)
    if 2 * left > len(node.wire):
        assert less is None
        return
    assert less is not None
    for opened in (open_packed(less), open_packed(less).unpack()):
        assert len(opened) == len(rows)
        assert opened.ids(0, len(rows)) == node.ids(0, len(rows))
        for at in range(len(rows)):
            assert opened.slice(at, at + 1) == (b"" if at in positions else node.slice(at, at + 1))
            assert opened.find_from(node.id_at(at)) == at
    assert compacted(less, alive, new_compressor()) is None, "once is enough"


def test_it_is_smaller_and_of_the_same_version() -> None:
    node = made([(1, 0, 100)] * 100)
    full = seal(node, compress=False)
    less = compacted(full, [(0, 1)], new_compressor())
    assert less is not None
    assert len(less) < len(full) / 10
    assert HEADER.unpack_from(less)[:2] == HEADER.unpack_from(full)[:2]


def test_of_drafts() -> None:
    tail = ActiveNode.of(made([(1, 0, 100)] * 10))
    written = ActiveDraft(tail)
    less = compacted(written, [(9, 10)], new_compressor())
    assert less is not None
    assert written.sealed == len(less), "the stream counts what was stored"
    assert open_packed(less).slice(9, 10) == tail.slice(9, 10)
    bare = b"*3\r\n$1\r\nf\r\n$1\r\nv\r\n"
    draft = StagedDraft(5, 3, [StagedChunk.of(b"key", array("I", [len(bare)] * 4), bare * 4)])
    whole = draft.unpack()
    less = compacted(draft, [(2, 3)], new_compressor())
    assert less is not None
    assert (open_packed(less).ids(0, 4), open_packed(less).slice(0, 4)) == (whole.ids(0, 4), whole.slice(2, 3))


def test_what_can_not_be() -> None:
    blob = seal(made([(1, 0, 10)] * 4))
    with pytest.raises(CorruptError, match="lacks entries"):
        compacted(blob, [(1, 2), (3, 5)], new_compressor())
    with pytest.raises(CorruptError):
        compacted(blob[:-1], [(3, 4)], new_compressor())
