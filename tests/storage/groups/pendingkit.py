"""Helpers for tests of pending lists. Only this file reads the sets below a table."""

from __future__ import annotations

from bisect import bisect_right

from storage.groups.ownerindex import BY_LAST, BY_OWNER
from storage.groups.pending import PendingRow, PendingTable
from storage.groups.pendingformat import assemble
from storage.groups.rangerow import ID_SIZE, OWNED, RANGE_SIZE
from storage.groups.rangetable import ENTRY
from storage.model.sortedrows import SortedRows
from tests.storage.model.test_sortedrows import check_chunks

NOW = 1_700_000_000_000
MAX_ID = (1 << 128) - 1


def raws(*entries: int) -> list[bytes]:
    return [entry.to_bytes(16, "big") for entry in entries]


def row(
    entry: int, deliveries: int, first: int, due: int, expire: int, retry: int, most: int, key: bytes
) -> PendingRow:  # fmt: skip
    """What TREAD delivered."""
    return PendingRow(entry, deliveries, first, due, expire, retry, most, key, 0, max(first, due - retry))


def ids_of(table: PendingTable) -> list[int]:
    return [row.id for row in table.rows(0, MAX_ID, len(table))]


def dumped(table: PendingTable) -> bytes:
    return bytes(assemble(table.parts()))


def sequence(count: int, start: int = 0) -> list[int]:
    """IDs as a stream gives them: three in each millisecond."""
    return [NOW + i // 3 << 64 | i % 3 for i in range(start, start + count)]


def filled(count: int) -> PendingTable:
    table = PendingTable()
    for start in range(0, count, 100):
        table.add(raws(*sequence(100, start)), NOW + start, NOW + start + 1000, NOW + start + 5000, 1000)
    return table


def sets(table: PendingTable) -> tuple[SortedRows, SortedRows, SortedRows, SortedRows]:
    """The messages, the ranges, and the ranges by due time and by leaving time."""
    return table._ids, table._ranges, table._due, table._drop


def is_fresh(table: PendingTable) -> bool:
    """Whether messages are in none of the sets."""
    return bool(table._fresh)


def range_count(table: PendingTable) -> int:
    return table._ranges.count


def key_counts(table: PendingTable) -> tuple[int, int]:
    """The dead-letter keys of a table with the free ones, and without."""
    return len(table._keys), len(table._slots)


def check_sets(table: PendingTable) -> None:
    """The chunks of all sets are in order, each range has messages, and the index by owner has each owned range."""
    for part, width in zip(sets(table), (ID_SIZE, RANGE_SIZE, ENTRY, ENTRY), strict=True):
        check_chunks(part, width, ID_SIZE if width == RANGE_SIZE else width)
    ids, ranges = (part.span(b"", b"", 100_000) for part in sets(table)[:2])
    lows = [row[:16] for row in ranges]
    assert sorted({bisect_right(lows, raw) for raw in ids}) == list(range(1, len(lows) + 1))
    index = table._owner_index
    if index is not None:
        owned = [row[:16] for row in ranges if row[-1] == OWNED]
        for part, width in ((index._by_owner, BY_OWNER), (index._by_last, BY_LAST)):
            check_chunks(part, width, width)
            assert sorted(entry[-16:] for entry in part.span(b"", b"", 100_000)) == owned
