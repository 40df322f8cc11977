"""Chunks hold exactly what came, and after a change most of them are the same as before."""

from __future__ import annotations

import random
from collections.abc import Sequence
from struct import Struct
from zlib import crc32

import pytest

from tidelog.backup.chunks import LARGEST, LOG_CHUNK, SMALLEST, LogCutter, StoreCutter
from tidelog.backup.frames import BATCH, ENTRY, NODES, BackupFrame, BackupFrameDecoder, entries

KEY = Struct(">QQQQ")
RNG = random.Random(3)
BLOB = RNG.randbytes(1 << 16)


def entry(db: int, key: bytes, value: bytes) -> bytes:
    if db == NODES:
        value = value[:2] + b"\1" + value[3:]  # not a coded one, whose checksum is another
        value = value[:28] + crc32(value[28:], crc32(value[:28])).to_bytes(4, "little") + value[28:]
    else:
        value = crc32(value, crc32(key)).to_bytes(4, "big") + value
    return ENTRY.pack(db, len(key), len(value)) + key + value


def node(sid: int, number: int, size: int = 8000) -> bytes:
    at = (sid * 7919 + number * 31) % (len(BLOB) - size)
    return entry(NODES, KEY.pack(sid, number * 400, 1_700_000_000_000 + number, 0), BLOB[at : at + size])


def cut(parts: Sequence[bytes], piece: int) -> list[bytes]:
    """The chunks of these entries, if they arrive in pieces of about ``piece`` bytes."""
    cutter, chunks, waiting = StoreCutter(), list[bytes](), b""
    for part in parts:
        waiting += part
        if len(waiting) >= piece:
            chunks += cutter.add(waiting)
            waiting = b""
    chunks += [*cutter.add(waiting), *cutter.end()]
    assert cutter.entries == len(parts)
    return chunks


@pytest.fixture(scope="module")
def store() -> list[bytes]:
    """Four streams, 32 MB of nodes; and a few small entries."""
    nodes = [node(sid, number) for sid in range(1, 5) for number in range(1000)]
    return [entry(0, b"offset", b"12345678"), *nodes, *(entry(4, b"\0k%04d" % n, b"v") for n in range(100))]


def test_chunks_hold_what_came_however_it_came(store: list[bytes]) -> None:
    chunks = cut(store, 1 << 16)
    assert b"".join(chunks) == b"".join(store)
    assert cut(store, 1) == chunks
    assert cut(store, 5_000_000) == chunks


def test_sizes(store: list[bytes]) -> None:
    sizes = [len(chunk) for chunk in cut(store, 1 << 16)]
    whole = sizes[1:-2]  # without the first and the last database, and the last chunk of the nodes
    assert len(whole) > 5
    assert all(SMALLEST <= size < LARGEST + 9000 for size in whole)


def test_a_chunk_has_entries_of_one_database(store: list[bytes]) -> None:
    for chunk in cut(store, 1 << 16):
        assert len({found.db for found in entries(chunk)}) == 1


def test_what_an_insertion_leaves_as_it_was(store: list[bytes]) -> None:
    before = set(cut(store, 1 << 16))
    grown = store[:1001] + [node(1, number) for number in range(1000, 1010)] + store[1001:]
    grown[0] = entry(0, b"offset", b"87654321")
    new = [chunk for chunk in cut(grown, 1 << 16) if chunk not in before]
    assert sum(map(len, new)) < len(b"".join(store)) / 4
    evicted = store[:1] + store[201:]
    assert sum(len(chunk) for chunk in cut(evicted, 1 << 16) if chunk not in before) < len(b"".join(store)) / 4


def test_an_entry_larger_than_a_chunk() -> None:
    large = entry(4, b"\0b", bytes(2 * LARGEST))
    chunks = cut([entry(4, b"\0a", b"v"), large, entry(4, b"\0c", b"v")], 1000)
    assert len(chunks) == 2
    assert chunks[0].endswith(large)


def test_nothing() -> None:
    assert cut([], 1) == []
    assert list(LogCutter().end()) == []


def test_the_log_is_cut_at_the_same_offsets_wherever_it_begins() -> None:
    sizes = [RNG.randrange(1, 100_000) for _ in range(300)]
    batches, at = list[BackupFrame](), 1000
    for size in sizes:
        batches.append(BackupFrame(BATCH, at, bytes(size)))
        at += size

    def cut_log(some: list[BackupFrame]) -> list[bytes]:
        cutter = LogCutter()
        return [chunk for batch in some for chunk in cutter.add(batch)] + list(cutter.end())

    chunks = cut_log(batches)
    assert len(chunks) == at // LOG_CHUNK + 1
    assert BackupFrameDecoder().feed(b"".join(chunks)) == batches
    assert cut_log(batches[10:])[1:] == chunks[1:]
    assert cut_log(batches[:200])[:-1] == chunks[: len(cut_log(batches[:200])) - 1]
