"""Entries of a stream in pages whose replies stay small, whatever entries are in them.

A server makes a whole reply before it sends it. So the number of entries a page follows the size of the largest entry
of the page before: REPLY bytes at most, if the entries are alike. It begins small and grows by GROWTH, so one page with
entries that are suddenly larger is bounded as well. Here, entries are taken from a reply one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidelog.client.entries import StreamId
from tidelog.moving.ends import End
from tidelog.moving.facts import after, dashed

REPLY: Final = 4 << 20  # bytes that a reply should have at most
FIRST: Final = 32  # entries of the first page
GROWTH: Final = 4  # a page has at most so many times the entries of the one before
OVERHEAD: Final = 64  # bytes of an entry beside its fields and values

#: An ID as the server sent it, its fields and values.
Row = tuple[bytes, list[bytes]]


def id_of(row: Row) -> StreamId:
    return StreamId.parse(row[0])


def entries(
    end: End, key: bytes, first: StreamId, last: StreamId, page: int, largest: int = 0
) -> Iterator[Row]:  # fmt: skip
    """The entries from one ID to another, both included. ``largest``: bytes of an entry, as far as is known."""
    count = _count(page, FIRST, largest + OVERHEAD)
    bound = dashed(last)
    while first <= last:
        number, largest, at = 0, 0, b""
        for at, flat in end.elements("XRANGE", key, dashed(first), bound, "COUNT", count):
            number += 1
            largest = max(largest, OVERHEAD + sum(map(len, flat)) + 16 * len(flat))
            yield at, flat
        if number < count:
            return
        first = after(StreamId.parse(at))
        count = _count(page, count * GROWTH, largest)


def _count(page: int, at_most: int, largest: int) -> int:
    return max(1, min(page, at_most, REPLY // largest))
