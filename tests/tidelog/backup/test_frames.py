"""Frames and entries are those of the server, and damage is noticed."""

from __future__ import annotations

import random

import pytest

from replication import frames as servers
from storage.nodes.node import BODY
from tests.persistence.datakit import append, checkpoint, group, opened, readings
from tidelog.backup.frames import (
    ALIVE,
    BATCH,
    COPY,
    DONE,
    KINDS,
    LOG,
    MESSAGE,
    NODES,
    ONE,
    PIECE,
    TWO,
    BackupFrame,
    BackupFrameDecoder,
)
from tidelog.backup.frames import entries as entries_of
from tidelog.backup.targets import BackupError

FRAMES = [
    BackupFrame(COPY, 4711, servers.COPY_BODY.pack(3, 4000)),
    BackupFrame(PIECE, 4711, random.Random(1).randbytes(5000)),
    BackupFrame(DONE, 4711, servers.DONE_BODY.pack(3)),
    BackupFrame(BATCH, 1 << 60, b"records"),
    BackupFrame(ALIVE, 0, b"\0"),
    BackupFrame(MESSAGE, 0, b""),
    BackupFrame(LOG, 4711, servers.LOG_BODY.pack(1, 0)),
]


def test_the_server_makes_the_same_bytes() -> None:
    assert list(KINDS) == [servers.BATCH, servers.ALIVE, servers.COPY, servers.PIECE, servers.DONE, servers.MESSAGE,
                           servers.LOG]  # fmt: skip
    for frame in FRAMES:
        assert frame.encoded() == servers.encode(*frame)
    assert FRAMES[0].numbers(TWO) == (3, 4000)
    assert FRAMES[2].numbers(ONE) == (3,)
    with pytest.raises(BackupError, match="16 bytes instead of 8"):
        FRAMES[0].numbers(ONE)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_however_they_are_cut(size: int) -> None:
    raw = b"".join(frame.encoded() for frame in FRAMES)
    decoder, found = BackupFrameDecoder(), []
    for at in range(0, len(raw), size):
        found += decoder.feed(raw[at : at + size])
    assert found == FRAMES


def test_every_flipped_byte_is_noticed() -> None:
    raw = BackupFrame(PIECE, 4711, b"payload").encoded()
    for at in range(len(raw)):
        with pytest.raises(BackupError, match="damaged on the way"):
            BackupFrameDecoder().feed(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])


def test_a_kind_of_a_newer_server() -> None:
    with pytest.raises(BackupError, match="unknown kind 88"):
        BackupFrameDecoder().feed(BackupFrame(ord("X"), 0, b"").encoded())


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What a store sends that has some of everything."""
    with opened(tmp_path_factory.mktemp("data")) as (log, ks, _):
        append(ks, b"s", 100, pad=50)
        readings(ks, b"t", 100)
        group(ks, b"s", b"g", 7)
        ks.set_string(b"k" * 500, b"v")
        checkpoint(log, ks)
        copy = log.store.copy()
        made = list(copy.pieces(1000))
        copy.close()
    return made


def test_entries_of_a_store(pieces: list[bytes]) -> None:
    assert len(pieces) > 2
    for piece in pieces:
        found = list(entries_of(piece))
        assert [entry.start for entry in found] == [0, *(entry.end for entry in found[:-1])]
        assert found[-1].end == len(piece)
    dbs = [entry.db for piece in pieces for entry in entries_of(piece)]
    assert dbs == sorted(dbs)
    assert set(dbs) == {0, 1, 2, 3, 4}


def test_each_damaged_byte_of_an_entry_is_noticed(pieces: list[bytes]) -> None:
    for piece in pieces:
        for entry in entries_of(piece):
            value = entry.start + 7 + len(entry.key)
            places = range(value, min(entry.end, value + BODY + 10))
            for at in [*places, entry.end - 1] if entry.db == NODES else [*places, value - 1, entry.end - 1]:
                with pytest.raises(BackupError, match="the server's store is damaged: the entry"):
                    list(entries_of(piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]))


def test_a_piece_that_ends_too_early(pieces: list[bytes]) -> None:
    first = next(entries_of(pieces[-1]))
    for size in range(1, first.end):
        with pytest.raises(BackupError, match="ends inside of an entry"):
            list(entries_of(pieces[-1][:size]))


def test_an_entry_too_short_for_its_checksum() -> None:
    for db in (0, NODES):
        with pytest.raises(BackupError, match="is damaged"):
            list(entries_of(bytes([db]) + b"\0\x01\0\0\0\x02kvv"))
