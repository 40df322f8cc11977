"""Delayed entries of streams: listed in pages, merged by due time, cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client import calls
from tidelog.client.entries import Delayed
from tidelog.console.connection import UserConnection
from tidelog.console.errors import page_error
from tidelog.transport.call import Call

LISTED: Final = 50  # delayed entries of a page
TOGETHER: Final = 20  # streams of a request


@dataclass(frozen=True)
class DelayedEntry:
    """A delayed entry of a stream."""

    key: bytes
    entry: Delayed

    @property
    def token(self) -> bytes:
        return self.entry.token.encode("utf-8", "surrogateescape")


async def page(connection: UserConnection, key: bytes, cursor: str) -> tuple[list[DelayedEntry], str, int]:
    """Return a page of the delayed entries of a stream, the cursor of the next page, and the number of all.

    The cursor is "0" after the last page. Raises PageError.
    """
    found, total = await _ask(connection, calls.tdelay_list(key, cursor, LISTED), calls.tdelay_count(key))
    return [DelayedEntry(key, each) for each in found.entries], found.cursor, total


async def next_due(connection: UserConnection, keys: Sequence[bytes]) -> tuple[list[DelayedEntry], dict[bytes, int]]:
    """Return the first LISTED delayed entries of several streams by due time, and the number of each stream.

    Streams without delayed entries are left out. Raises PageError.
    """
    counts: dict[bytes, int] = {}
    found: list[DelayedEntry] = []
    for start in range(0, len(keys), TOGETHER):
        part = keys[start : start + TOGETHER]
        numbers = await _ask(connection, *map(calls.tdelay_count, part))
        counts |= {key: number for key, number in zip(part, numbers, strict=True) if number}
    some = list(counts)
    for start in range(0, len(some), TOGETHER):
        part = some[start : start + TOGETHER]
        pages = await _ask(connection, *(calls.tdelay_list(key, "0", LISTED) for key in part))
        for key, listed in zip(part, pages, strict=True):
            found += [DelayedEntry(key, each) for each in listed.entries]
        found = sorted(found, key=lambda each: each.entry.due)[:LISTED]
    return found, counts


async def _ask(connection: UserConnection, *sent: Call[Any]) -> list[Any]:
    found = await connection.read(*sent) if sent else []
    for each in found:
        if isinstance(each, Exception):
            raise page_error(each)
    return found
