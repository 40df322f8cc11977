"""The stored changes of the order of delayed entries: bytes, damage, and how much a checkpoint writes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from resp.errors import CorruptError
from storage.groups import pendingformat
from storage.keyspace.keyspace import Keyspace
from storage.streams.delayed import DelayedEntries
from storage.streams.indexlog import META, PART_BYTES, REMOVED, IndexChange, IndexLog, StoredChanges
from tests.storage.keyspace.replaykit import NOW, call, empty

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
        if name:
            again.restore_changes(name, meta, value)
        else:
            again.restore(meta, value)
    again.restored()
    return again


def add(ks: Keyspace, number: int, due: int) -> None:
    call(ks, NOW, "TDELAY", "s", "IN" if number % 3 else "AT", due, "ID", f"t{number}", "f", "v")


def test_golden_vector() -> None:
    log = IndexLog()
    log.begin_parts()
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


@pytest.mark.parametrize("change", ["name", "meta", "bytes", "length", "gap"])
def test_damaged_changes_are_refused(change: str) -> None:
    log: Any = IndexLog()
    log.begin_parts()
    log.note(IndexChange(5, 1, 7, b"12345678"), 0, 100)
    name, raw = log.part()
    value = bytes(pendingformat.assemble([raw]))
    StoredChanges().add(name, META, value)
    stored = StoredChanges()
    match change:
        case "name":
            name = b"group"
        case "meta":
            broken = b"\1" + META[1:]
            with pytest.raises(CorruptError):
                stored.add(name, broken, value)
            return
        case "bytes":
            value = b"\1" + value[1:]
        case "length":
            value = value[8:]
        case "gap":
            stored.add(name, META, value)
            name = b"\0\0\0\0\0\0\0\3"
    with pytest.raises(CorruptError):
        stored.add(name, META, value)
