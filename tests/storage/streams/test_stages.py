"""Stages: pieces that are cut at the limits of a node, joined where they are small, and counted."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.keyspace.stagemutators import StagedContent
from storage.nodes.stagedentries import StagedChunk
from storage.streams.stages import Stage

ENTRIES = st.lists(st.binary(max_size=40), min_size=1, max_size=30)


def add(stage: Stage, key: bytes, entries: list[bytes], most: int = 4, limit: int = 60) -> None:
    stage.add(key, array("I", map(len, entries)), b"".join(entries), most, limit)


def content(pieces: list[StagedChunk]) -> list[bytes]:
    for piece in pieces:
        assert sum(piece.sizes) == len(piece.bare)
    return [entry for piece in pieces for entry in piece.entries()]


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b""]), ENTRIES), max_size=12))
def test_entries_keep_their_order_and_pieces_their_limits(calls: list[tuple[bytes, list[bytes]]]) -> None:
    stage = Stage(1, b"", 0, 0)
    told = stage.bytes
    model: dict[bytes, list[bytes]] = {b"a": [], b"b": [], b"": []}
    for key, entries in calls:
        add(stage, key, entries)
        model[key] += entries
    for key, entries in model.items():
        pieces = [piece for piece in stage.pieces if piece.key == key]
        assert content(pieces) == entries
        for piece in pieces:
            assert 1 <= len(piece) <= 4
            assert len(piece.bare) - piece.sizes[-1] < 60  # the entry that passes it is the last
            assert piece.largest == max(piece.sizes)
        for piece in pieces[:-1]:
            assert len(piece) == 4 or len(piece.bare) >= 60
            assert isinstance(piece.bare, bytes)
    total = sum(map(len, model.values()))
    assert stage.entries == total
    assert stage.bytes - told >= sum(len(entry) + 4 for entries in model.values() for entry in entries)


@given(st.lists(ENTRIES, max_size=12))
def test_small_pieces_are_grouped(parts: list[list[bytes]]) -> None:
    pieces = []
    for entries in parts:
        stage = Stage(1, b"", 0, 0)
        add(stage, b"k", entries)
        pieces += stage.pieces
    held = StagedContent(pieces, 4, 60)
    groups = [draft.entries() for draft in held.drafts]
    assert content(pieces) == [entry for group in groups for entry in group]
    assert held.count == sum(map(len, parts)) == sum(map(len, held.drafts))
    at = 0
    for group in groups:
        first = at
        while sum(map(len, pieces[first:at])) < len(group):
            at += 1  # no piece is divided
        assert [entry for piece in pieces[first:at] for entry in piece.entries()] == group
        small = len(group) <= 4 and sum(map(len, group)) <= 60
        assert small or at == first + 1
        if at < len(pieces):  # nor would the next one have found room
            more = group + pieces[at].entries()
            assert len(more) > 4 or sum(map(len, more)) > 60


@pytest.mark.parametrize("ttl", [0, 50])
def test_being_away_is_not_silence(ttl: int) -> None:
    stage = Stage(1, b"", ttl, 1000 + ttl if ttl else 0)
    stage.resume(5000)
    assert stage.deadline == (5050 if ttl else 0)
    stage.resume(4000)
    assert stage.deadline == (5050 if ttl else 0)
