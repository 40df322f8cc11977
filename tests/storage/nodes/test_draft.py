"""Entries that get their IDs later are, byte for byte, those that got them at once."""

from __future__ import annotations

from array import array

import pytest

from storage.model.entries import entry_wire, id_bulk
from storage.model.ids import MASK64
from storage.nodes import appendlist
from storage.nodes.draft import ActiveDraft, Draft, ListDraft, StagedDraft
from storage.nodes.node import ActiveNode, new_compressor, seal
from storage.nodes.stagedentries import LONGEST_ID, StagedChunk, bulk_ids, write
from tests.storage.nodes.nodestore import opened

VALUES = [b"f", b"1"], [b"f", b"", b"", b"\r\n\r\n"], [b"%d", b"x" * 5000], [b"*3\r\n", b"$1\r\n"] * 40


def bare(values: list[bytes]) -> bytes:
    """An entry without the ID."""
    return entry_wire(b"", values)


def draft(ms: int, seq: int, count: int) -> tuple[StagedDraft, list[bytes]]:
    """A draft, and what its entries are."""
    rows = [VALUES[number % len(VALUES)] for number in range(count)]
    bares = [bare(values) for values in rows]
    sizes = array("I", map(len, bares))
    pieces = [StagedChunk.of(b"k", sizes[lo:hi], b"".join(bares[lo:hi])) for lo, hi in ((0, 3), (3, 4), (4, count))]
    made = StagedDraft(ms, seq, pieces)
    return made, [entry_wire(id_bulk(ms, seq + number), values) for number, values in enumerate(rows)]


@pytest.mark.parametrize("ms", [0, 7, 1_700_000_000_000, MASK64])
@pytest.mark.parametrize("seq", [0, 5, 8, 98, 995, 9_990, 99_995, MASK64 - 11])
def test_ids_are_written_as_they_always_are(ms: int, seq: int) -> None:
    assert bulk_ids(ms, seq, 12) == [b"\r\n" + id_bulk(ms, seq + number) for number in range(12)]
    assert max(map(len, bulk_ids(ms, seq, 12))) <= LONGEST_ID + 2


def test_ids_end() -> None:
    assert bulk_ids(5, MASK64, 1) == [b"\r\n$22\r\n5.18446744073709551615"]
    assert bulk_ids(5, 0, 0) == []
    with pytest.raises(ValueError, match="2\\*\\*64"):
        bulk_ids(5, MASK64, 2)


@pytest.mark.parametrize("seq", [0, 3, 9_995, MASK64 - 9])
def test_a_draft_makes_the_node_that_appending_would_have_made(seq: int) -> None:
    made, wires = draft(77, seq, 10)
    tail = ActiveNode()
    for number, wire in enumerate(wires):
        tail.wire += wire
        tail.ms.append(77)
        tail.seq.append(seq + number)
        tail.ends.append(len(tail.wire))
    node = made.unpack()
    assert len(made) == len(node) == 10
    assert node.slice(0, 10) == b"".join(wires)
    assert node.ids(0, 10) == tail.ids(0, 10)
    assert list(node.ends) == list(tail.ends)
    assert made.largest >= node.largest()
    assert made.wire_bytes >= len(node.wire)
    assert made.seal(new_compressor()) == seal(tail)


@pytest.mark.parametrize("kind", ["bare", "written"])
def test_sealed_and_opened(kind: str) -> None:
    made: Draft
    made, wires = draft(77, 5, 9)
    if kind == "written":
        made = ActiveDraft(ActiveNode.of(made.unpack()))
    assert not made.sealed
    blob = made.seal(new_compressor())
    assert made.sealed == len(blob)
    assert opened(blob).slice(2, 7) == made.unpack().slice(2, 7) == b"".join(wires[2:7])
    assert made.largest >= made.unpack().largest()
    assert made.wire_bytes >= len(made.unpack().wire)


@pytest.mark.parametrize("listed_count", [0, 1, 3])
@pytest.mark.parametrize("part_count", [0, 1, 4])
def test_a_list_and_parts(listed_count: int, part_count: int) -> None:
    """The node is the one that joining the entries makes."""
    if not listed_count + part_count:
        return
    wires = [entry_wire(id_bulk(70, number), [b"f", b"%d" % number * 3000]) for number in range(listed_count)]
    parts = [entry_wire(id_bulk(77, 5 + number), [b"f", b"x%d" % number * 2000]) for number in range(part_count)]
    listed = [one for number, wire in enumerate(wires) for one in (wire, 70, number)]
    joined = ActiveNode()
    for ms, seq, wire in [
        *((70, number, wire) for number, wire in enumerate(wires)),
        *((77, 5 + number, wire) for number, wire in enumerate(parts)),
    ]:
        joined.wire += wire
        joined.add(ms, seq, len(joined.wire))
    made = ListDraft(listed, sum(map(len, wires)), 77, 5, list(map(len, parts)), parts)
    node = made.unpack()
    assert len(made) == len(node) == len(joined)
    assert node.slice(0, len(node)) == bytes(joined.wire)
    assert node.ids(0, len(node)) == joined.ids(0, len(joined))
    assert made.largest == joined.largest()
    assert made.wire_bytes == len(joined.wire)
    assert made.size > made.wire_bytes
    blob = made.seal(new_compressor())
    assert blob == appendlist.sealed_blob(listed, 77, 5, list(map(len, parts)), parts)[0]
    assert opened(blob).slice(0, len(node)) == bytes(joined.wire)
    assert made.seal(new_compressor()) is blob, "sealed once"


def test_written_one_by_one() -> None:
    bares = [bare(values) for values in VALUES]
    assert write(3, 9, bares) == [entry_wire(id_bulk(3, 9 + number), values) for number, values in enumerate(VALUES)]
