"""The records of several partitions, merged by time.

Rule 1: records are ordered by ID, and by partition if the IDs are equal. A position is such a pair.
Rule 2: the cost does not depend on the lengths of the partitions. TCOUNT and TSEEK find the next ID of each partition;
        entries are read only from the partitions that have records of the page.
Rule 3: partitions of a group of a cluster that does not answer are left out, and the page says so.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tidelog.client import calls
from tidelog.client.entries import Entry, StreamId
from tidelog.console.connection import UserConnection
from tidelog.console.errors import GroupUnavailableError, UnavailableError, page_error
from tidelog.console.streams import BYTES, PAGE, StreamReader
from tidelog.topics.groupprogress import before as id_before
from tidelog.transport.call import Call

TOGETHER: Final = 200  # calls of a request
FIRST: Final = 5  # entries that are read from a partition at once, at first


class MergedPosition(NamedTuple):
    """A record of a topic."""

    id: StreamId
    partition: int


@dataclass(frozen=True)
class MergedRecord:
    """A record on the page."""

    partition: int
    key: bytes
    entry: Entry


@dataclass(frozen=True)
class MergedPage:
    """A page of records, newest first."""

    records: list[MergedRecord]
    newer: bool
    older: bool
    missing: int = 0  # partitions that were left out
    problem: str = ""  # why


class MergedReader:
    """Reads partitions as one user. The partition of a key is its index."""

    def __init__(self, reader: StreamReader, connection: UserConnection, keys: Sequence[bytes]) -> None:
        self._reader = reader
        self._connection = connection
        self._keys = keys
        self._missing: dict[int, str] = {}  # by partition: why it was left out

    async def page(self, before: MergedPosition | None = None, after: MergedPosition | None = None) -> MergedPage:
        """Return the records before a position, newest first, or the next newer ones after ``after``.

        If there is no full page of newer records, the page has the newest records.
        """
        if after is not None:
            records = await self._read(after, newer=True)
            if len(records) == PAGE:
                return await self._with_neighbors(records[::-1])
            before = None
        return await self._with_neighbors(await self._read(before, newer=False))

    async def _with_neighbors(self, records: list[MergedRecord]) -> MergedPage:
        if not records:
            return self._page([], False, False)
        newest, oldest = (MergedPosition(each.entry.id, each.partition) for each in (records[0], records[-1]))
        newer, older = await self._heads(newest, newer=True), await self._heads(oldest, newer=False)
        return self._page(records, any(newer), any(older))

    def _page(self, records: list[MergedRecord], newer: bool, older: bool) -> MergedPage:
        """Return a page. Raises UnavailableError if all partitions were left out."""
        problem = next(iter(self._missing.values()), "")
        if len(self._missing) == len(self._keys) > 0:
            raise UnavailableError(problem)
        return MergedPage(records, newer, older, len(self._missing), problem)

    async def _read(self, bound: MergedPosition | None, newer: bool) -> list[MergedRecord]:
        """Return up to PAGE records after a bound, oldest first if ``newer`` is set, otherwise newest first."""
        sign = 1 if newer else -1
        queue: list[tuple[int, int, int]] = []
        for at, head in enumerate(await self._heads(bound, newer)):
            if head is not None:
                queue.append(_rank(head, at, sign))
        heapq.heapify(queue)
        waiting: dict[int, list[Entry]] = {}  # by partition: entries that were read, the next one last
        found: list[MergedRecord] = []
        size = 0
        while queue and len(found) < PAGE and (size < BYTES or len(found) < FIRST):
            rank = heapq.heappop(queue)
            at = sign * rank[2]
            if not waiting.get(at):
                head = StreamId(sign * rank[0], sign * rank[1])
                waiting[at] = (await self._entries(at, head, newer, PAGE - len(found), size, len(found)))[::-1]
                if not waiting[at]:  # it was evicted in the meantime
                    continue
            entry = waiting[at].pop()
            size += sum(map(len, entry.flat))
            found.append(MergedRecord(at, self._keys[at], entry))
            if waiting[at]:
                heapq.heappush(queue, _rank(waiting[at][-1].id, at, sign))
                continue
            (head,) = await self._heads(MergedPosition(entry.id, at), newer, [at])
            if head is not None:
                heapq.heappush(queue, _rank(head, at, sign))
        return found

    async def _entries(self, at: int, head: StreamId, newer: bool, most: int, size: int, found: int) -> list[Entry]:
        count = FIRST if not found else max(1, min(most, BYTES * found // (size + 1), 4 * FIRST))
        low, high = (str(head), "+") if newer else ("-", str(head))
        call = self._reader.search_call(self._keys[at], low, high, min(most, count), not newer)
        (entries,) = await self._ask([at], call)
        return list(entries or ())

    async def _heads(
        self, bound: MergedPosition | None, newer: bool, parts: Sequence[int] | None = None
    ) -> list[StreamId | None]:
        """Return the ID of the next entry of each partition after a bound, or before it; None if there is none."""
        parts = range(len(self._keys)) if parts is None else parts
        if newer:
            start = bound or MergedPosition(StreamId(0), -1)
            last = [start.id if at <= start.partition else id_before(start.id) for at in parts]
            keys = [self._keys[at] for at in parts]
            return await self._ask(parts, *(calls.tseek(key, each, 1) for key, each in zip(keys, last, strict=True)))
        ends = ["+" if bound is None else f"{'(' if at >= bound.partition else ''}{bound.id}" for at in parts]
        counts = await self._ask(parts, *(
            calls.tcount(self._keys[at], "-", end) for at, end in zip(parts, ends, strict=True)
        ))  # fmt: skip
        heads: list[StreamId | None] = [None] * len(counts)
        full = [index for index, count in enumerate(counts) if count]
        found = await self._ask(
            [parts[index] for index in full],
            *(calls.tseek(self._keys[parts[index]], "0", counts[index]) for index in full),
        )
        for index, head in zip(full, found, strict=True):
            heads[index] = head
        return heads

    async def _ask(self, parts: Sequence[int], *sent: Call[Any]) -> list[Any]:
        """Send a call for each of these partitions, some at a time. Raises PageError for an error of the server.

        The result of a partition that is left out is None (Rule 3).
        """
        found: list[Any] = []
        for start in range(0, len(sent), TOGETHER):
            found += await self._connection.read(*sent[start : start + TOGETHER])
        for index, each in enumerate(found):
            if isinstance(each, GroupUnavailableError):
                self._missing[parts[index]], found[index] = str(each), None
            elif isinstance(each, Exception):
                raise page_error(each)
        return found


def _rank(head: StreamId, at: int, sign: int) -> tuple[int, int, int]:
    return sign * head.ms, sign * head.seq, sign * at
