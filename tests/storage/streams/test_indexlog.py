"""The stored changes of the order of delayed entries: bytes, damage, and how much a checkpoint writes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from resp.errors import CorruptError
from storage.groups import pendingformat
from storage.keyspace.keyspace import Keyspace
from storage.model.sortedrows import CHUNK_BYTES, SortedRows
from storage.streams.delayed import DelayedEntries, split
from storage.streams.duerows import ROW
from storage.streams.indexlog import (
    META,
    PART_BYTES,
    REMOVED,
    ROWS_CHUNKS,
    ROWS_META,
    IndexChange,
    IndexLog,
    rows_name,
)
from storage.streams.storedindex import ONE_PART, PARTS, StoredIndex, pack_head
from tests.storage.keyspace.replaykit import NOW, call, empty

PART_OF_ROWS = ROWS_CHUNKS * CHUNK_BYTES
MANY = 6600  # rows for several parts
Stored = dict[bytes, tuple[bytes, bytes]]


def rows(delayed: DelayedEntries) -> bytes:
    return bytes(pendingformat.assemble(delayed.parts()))


def store(delayed: DelayedEntries, stored: Stored) -> int:
    """Apply a capture of the index to ``stored``, and return the number of bytes that it writes."""
    parts, gone = delayed.capture_index()
    for name in gone:
        del stored[name]
    written = {name: (meta, bytes(pendingformat.assemble(some))) for name, meta, some in parts}
    stored.update(written)
    return sum(len(value) for _, value in written.values())


def loaded(delayed: DelayedEntries, stored: Stored) -> DelayedEntries:
    again = DelayedEntries(delayed.entries)
    for name, (meta, value) in sorted(stored.items()):
        again.restore_part(name, meta, value)
    again.restored()
    return again


def add(ks: Keyspace, number: int, due: int) -> None:
    call(ks, NOW, "TDELAY", "s", "IN" if number % 3 else "AT", due, "ID", f"t{number}", "f", "v")


def test_golden_vector() -> None:
    log = IndexLog()
    log.begin_parts(0)
    log.note(IndexChange(5, 1, 7, b"12345678"), 0, 100)
    log.note(IndexChange(6, 0, 8, b"abcdefgh"), REMOVED, 100)
    first, second = "00000000000000150000000000000007", "000000000000001a0000000000000008"
    expected = bytes.fromhex(first) + b"12345678" + bytes.fromhex(second) + b"abcdefgh"
    assert log.part() == (b"\0\0\0\0\0\0\0\1", expected)
    assert META.hex() == "03" + "00" * 56 + "f42ea8b0"


def test_a_checkpoint_writes_what_has_changed_and_the_index_is_the_same_after_a_start() -> None:
    ks, rng, stored = empty(), random.Random(1), Stored()
    ks.pool.max_entries = 100
    for number in range(2001):
        add(ks, number, rng.randrange(10**6))
    delayed = ks.delayed[b"s"]
    assert store(delayed, stored) > 32 * 2000
    wrote = []
    for number in range(2001, 4001):
        if rng.random() < 0.5:
            add(ks, number, rng.randrange(10**6))
        else:
            call(ks, NOW, "TDELAY", "s", "CANCEL", f"t{rng.randrange(number)}")
        if number % 20 == 0:
            wrote.append(store(delayed, stored))
        if number % 500 == 0:
            assert rows(loaded(delayed, stored)) == rows(delayed)
    assert min(wrote) < 20 * 30  # only the last changes
    assert sum(wrote) < PART_BYTES * len(wrote)
    assert sum(size > 32 * 1500 for size in wrote) <= 5  # times that all rows were written
    again = loaded(delayed, stored)
    delayed.capture_failed()
    assert store(delayed, stored) > 32 * 1500
    assert list(stored) == [b""]
    assert rows(loaded(delayed, stored)) == rows(again) == rows(delayed)


def test_many_rows_are_stored_in_parts_and_merged_with_the_changes_at_a_start() -> None:
    ks, rng, stored = empty(), random.Random(2), Stored()
    for number in range(MANY):
        add(ks, number, rng.randrange(10**6))
    delayed = ks.delayed[b"s"]
    one_part = pack_head(ONE_PART, MANY * 2 // 3, MANY // 3), rows(delayed)
    store(delayed, stored)
    assert sorted(stored) == [b"", *(rows_name(number) for number in range(len(stored) - 1))]
    assert len(stored) > 2
    assert len(stored[b""][1]) == 4  # its checksum
    assert max(len(value) for _, value in stored.values()) <= PART_OF_ROWS + 4
    for number in range(MANY, MANY + 600):
        add(ks, number, rng.randrange(10**6) if number % 2 else 2 * 10**6 + number)  # also above all others
        call(ks, NOW, "TDELAY", "s", "CANCEL", f"t{rng.randrange(number + 1)}")
        if number % 200 == 0:
            store(delayed, stored)
    store(delayed, stored)
    assert [meta for meta, _ in stored.values()].count(META) == 1  # it was written again
    again = loaded(delayed, stored)
    assert rows(again) == rows(delayed)
    assert again.index_bytes() < delayed.index_bytes()  # since its chunks are full, and packed
    earlier = {name: one for name, one in stored.items() if one[0] != ROWS_META}  # of a server that writes one part
    earlier[b""] = one_part
    assert rows(loaded(delayed, earlier)) == rows(delayed)


def test_a_start_continues_the_parts_and_few_rows_replace_them() -> None:
    ks, rng, stored = empty(), random.Random(3), Stored()
    for number in range(MANY):
        add(ks, number, rng.randrange(10**6))
    store(ks.delayed[b"s"], stored)
    before = len(stored)
    add(ks, MANY, 5)
    store(ks.delayed[b"s"], stored)
    ks.delayed[b"s"] = delayed = loaded(ks.delayed[b"s"], stored)
    add(ks, MANY + 1, 5)
    assert store(delayed, stored) < 100
    assert len(stored) == before + 2
    ordinals = range(MANY - 100)
    delayed.remove(ordinals, [split(delayed.read(ordinal)) for ordinal in ordinals])
    store(delayed, stored)
    assert list(stored) == [b""]
    assert rows(loaded(delayed, stored)) == rows(delayed)


def part(log: Any) -> tuple[bytes, bytes, bytes]:
    name, raw = log.part()
    return name, META, bytes(pendingformat.assemble([raw]))


def tables() -> list[SortedRows]:
    return [SortedRows(16, 16), SortedRows(16, 16), SortedRows(16, 16)]


def head(version: int, count: int) -> tuple[bytes, bytes, bytes]:
    return b"", pack_head(version, count, 0), bytes(pendingformat.assemble([]))


def test_stored_rows_and_changes() -> None:
    served, wall, tokens = found = tables()
    stored, log = StoredIndex(1, found), IndexLog()
    log.begin_parts(1)
    log.note(IndexChange(6, 1, 9, b"changed1"), 0, 100)
    log.note(IndexChange(5, 0, 7, b"removed1"), REMOVED, 100)
    changes = part(log)
    lines = [(5, 7), (8, 8)]
    due, hashes = [ROW.pack(*one) for one in lines], [b"removed1" + bytes(7) + b"\7", b"stored_1" + bytes(7) + b"\x08"]
    value = bytes(pendingformat.assemble([*due, *hashes]))
    for one in (head(PARTS, 2), changes, (rows_name(0), ROWS_META, value)):
        stored.add(*one)
    stored.end()
    assert served.span(b"", b"", 9) == [ROW.pack(8, 8)]
    assert wall.span(b"", b"", 9) == [ROW.pack(6, 9)]
    assert tokens.span(b"", b"", 9) == [b"changed1" + bytes(7) + b"\x09", b"stored_1" + bytes(7) + b"\x08"]
    for wrong in (  # a part is missing, there are two, or it has another number
        [head(PARTS, 2), changes],
        [head(PARTS, 2), (rows_name(0), ROWS_META, value), (rows_name(1), ROWS_META, value)],
        [head(PARTS, 2), (rows_name(1), ROWS_META, value)],
        [(rows_name(0), ROWS_META, value)],
        [head(PARTS, 2), (rows_name(0), ROWS_META, value), changes],
        [head(ONE_PART, 2), (rows_name(0), ROWS_META, value)],
        [head(PARTS, 2), (rows_name(0), b"\5", value)],
        [head(3, 2), (rows_name(0), ROWS_META, value)],
    ):
        stored = StoredIndex(1, tables())
        with pytest.raises(CorruptError):
            read(stored, wrong)


def read(stored: StoredIndex, parts: list[tuple[bytes, bytes, bytes]]) -> None:
    for one in parts:
        stored.add(*one)
    stored.end()


@pytest.mark.parametrize("change", ["name", "meta", "bytes", "length", "gap"])
def test_damaged_changes_are_refused(change: str) -> None:
    log = IndexLog()
    log.begin_parts(0)
    log.note(IndexChange(5, 1, 7, b"12345678"), 0, 100)
    name, meta, value = part(log)
    StoredIndex(1, tables()).add(name, meta, value)
    stored = StoredIndex(1, tables())
    match change:
        case "name":
            name = b"group"
        case "meta":
            meta = b"\1" + META[1:]
        case "bytes":
            value = b"\1" + value[1:]
        case "length":
            value = value[8:]
        case "gap":
            stored.add(name, META, value)
            name = b"\0\0\0\0\0\0\0\3"
    with pytest.raises(CorruptError):
        stored.add(name, meta, value)
