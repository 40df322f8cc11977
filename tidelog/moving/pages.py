"""Reads the entries of a stream in pages whose replies stay small, independent of the entry size.

A server builds a whole reply before it sends it. The number of entries per page is therefore derived from the largest
entry of the previous page, for at most REPLY bytes. The first page is small, and pages grow by GROWTH, so a page with
suddenly larger entries is bounded, too. The entries of a reply are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidelog.client.entries import StreamId
from tidelog.moving.descriptions import after, dashed
from tidelog.moving.endpoints import Endpoint

REPLY: Final = 4 << 20  # maximum size of a reply in bytes
FIRST: Final = 32  # entries of the first page
GROWTH: Final = 4  # maximum growth from one page to the next
OVERHEAD: Final = 64  # overhead of an entry in bytes

#: An ID as the server sent it, and its fields and values.
Row = tuple[bytes, list[bytes]]


def id_of(row: Row) -> StreamId:
    return StreamId.parse(row[0])


def entries(
    end: Endpoint, key: bytes, first: StreamId, last: StreamId, page: int, largest: int = 0
) -> Iterator[Row]:  # fmt: skip
    """Yield the entries from one ID to another, inclusive. ``largest``: known size of the largest entry in bytes."""
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
