"""Stages: pieces that are cut at the limits of a node, joined where they are small, and counted."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.stages import Piece, Stage, grouped

ENTRIES = st.lists(st.binary(max_size=40), min_size=1, max_size=30)


def add(stage: Stage, key: bytes, entries: list[bytes], most: int = 4, limit: int = 60) -> None:
    stage.add(key, array("I", map(len, entries)), b"".join(entries), most, limit)


def content(pieces: list[Piece]) -> list[bytes]:
    for piece in pieces:
        assert sum(piece.sizes) == len(piece.bare)
    return [entry for piece in pieces for entry in piece.entries()]


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), ENTRIES), max_size=8))
def test_entries_keep_their_order_and_pieces_their_limits(calls: list[tuple[bytes, list[bytes]]]) -> None:
    stage = Stage(1, 0, 0)
    told = stage.bytes
    model: dict[bytes, list[bytes]] = {b"a": [], b"b": []}
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
        stage = Stage(1, 0, 0)
        add(stage, b"k", entries)
        pieces += stage.pieces
    groups = list(grouped(pieces, 4, 60))
    assert [piece for group in groups for piece in group] == pieces
    assert content(pieces) == [entry for entries in parts for entry in entries]

    def size(group: list[Piece]) -> tuple[int, int]:
        return sum(map(len, group)), sum(len(piece.bare) for piece in group)

    for group in groups:
        assert len(group) == 1 or (size(group)[0] <= 4 and size(group)[1] <= 60)
    for group, following in pairwise(groups):
        entries_, bytes_ = size([*group, following[0]])
        assert entries_ > 4 or bytes_ > 60


@pytest.mark.parametrize("ttl", [0, 50])
def test_being_away_is_not_silence(ttl: int) -> None:
    stage = Stage(1, ttl, 1000 + ttl if ttl else 0)
    stage.resume(5000)
    assert stage.deadline == (5050 if ttl else 0)
    stage.resume(4000)
    assert stage.deadline == (5050 if ttl else 0)
