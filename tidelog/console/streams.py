"""Streams of a tidelog server or of a redis-server: what they contain, and positions in them.

Rule 1: the cost of each call does not depend on the length of the stream. Positions come from TCOUNT and TSEEK, which a
        redis-server does not have: there, pages have no numbers and no plot.
Rule 2: a page of entries is read in two steps, the second of which is smaller if the entries of the first are large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tidelog.client import calls
from tidelog.client.entries import SEQ_MAX, Entry, Info, StreamId
from tidelog.console import history
from tidelog.console.connection import UserConnection
from tidelog.console.errors import PageError, page_error
from tidelog.console.infotext import text
from tidelog.transport.call import Call, plain
from tidelog.transport.errors import message_of

PAGE: Final = 50  # entries
FIRST: Final = 5  # entries of the first step
BYTES: Final = 4 << 20  # of a page, about
RATE_MS: Final = 60_000  # the time over which the rate of a stream is measured
DIGITS: Final = 19  # of a number that a user enters; further ones are ignored
BUCKETS: Final = 120  # bars of the plot of entries over time


@dataclass(frozen=True)
class StreamSummary:
    """A row of the list of streams."""

    key: bytes
    length: int | None = None
    last: StreamId | None = None
    groups: int | None = None
    bytes: int | None = None  # in memory and on disk
    recent: int | None = None  # entries of the last RATE_MS
    problem: str = ""  # why the stream can't be read


@dataclass(frozen=True)
class StreamPage:
    """A page of entries, newest first."""

    entries: list[Entry]
    first_number: int | None  # of the newest entry on the page: 1 is the oldest entry of the stream
    newer: bool  # there are newer entries
    older: bool


class StreamReader:
    """Reads streams as one user. ``tidelog``: the server has the T commands."""

    def __init__(self, connection: UserConnection, tidelog: bool) -> None:
        self._connection = connection
        self.tidelog = tidelog

    @classmethod
    async def of(cls, connection: UserConnection) -> StreamReader:
        """Return a reader for the kind of the server. The kind is determined once for each login."""
        if connection.tidelog is None:
            (reply,) = await connection.read(plain("TLEN", history.KEY))
            connection.tidelog = "unknown command" not in str(reply)
        return cls(connection, connection.tidelog)

    def id_text(self, at: StreamId) -> str:
        """Return an ID as the server prints it."""
        return str(at) if self.tidelog else f"{at.ms}-{at.seq}"

    async def summaries(self, keys: Sequence[bytes], now: int) -> list[StreamSummary]:
        """Return the rows of a list. now: ms since 1970."""
        sent = [call for key in keys for call in self._summary_calls(key, now)]
        replies = iter(await self._connection.read(*sent) if sent else [])
        step = len(sent) // len(keys) if keys else 0
        return [self._summary(key, [next(replies) for _ in range(step)]) for key in keys]

    def _summary_calls(self, key: bytes, now: int) -> list[Call[Any]]:
        if self.tidelog:
            return [calls.tinfo(key), calls.tcount(key, now - RATE_MS)]
        return [Call(("XINFO", "STREAM", key), _redis_info)]

    def _summary(self, key: bytes, replies: list[Any]) -> StreamSummary:
        info = replies[0]
        if isinstance(info, Exception):
            return StreamSummary(key, problem=message_of(info))
        size = info.memory_bytes + info.disk_bytes if self.tidelog else None
        recent = replies[1] if self.tidelog and not isinstance(replies[1], Exception) else None
        return StreamSummary(key, info.length, info.last, info.groups, size, recent)

    async def info(self, key: bytes) -> Info:
        """Return the description of a stream. Raises PageError if there is none, or if the user may not read it."""
        call = calls.tinfo(key) if self.tidelog else Call(("XINFO", "STREAM", key), _redis_info)
        (reply,) = await self._connection.read(call)
        if isinstance(reply, Exception):
            problem = message_of(reply)
            if "no such key" in problem:
                raise PageError(404, f"There is no stream {text(key)}.")
            raise page_error(reply, 403)
        found: Info = reply
        return found

    # -- entries -----------------------------------------------------------------------------------------------
    async def page(self, key: bytes, before: str = "+", after: StreamId | None = None) -> StreamPage:
        """Return the entries up to ``before``, newest first, or, if ``after`` is given, the next newer ones after it.

        If there is no full page of newer entries, the page has the newest entries.
        """
        if after is not None:
            entries = await self._read(key, "TRANGE", f"({after}", "+")
            if len(entries) == PAGE:
                return await self._numbered(key, entries[::-1])
            before = "+"
        return await self._numbered(key, await self._read(key, "TREVRANGE", before, "-"))

    async def entry(self, key: bytes, at: StreamId) -> Entry:
        """Return one entry. Raises PageError if it does not exist."""
        (found,) = await self._ask(self._range("TRANGE", key, str(at), str(at), 1))
        if not found:
            raise PageError(404, f"There is no entry {self.id_text(at)}. It may have been evicted or deleted.")
        entry: Entry = found[0]
        return entry

    async def neighbors(self, key: bytes, at: StreamId) -> tuple[StreamId | None, StreamId | None]:
        """Return the IDs of the next newer and the next older entry."""
        newer, older = await self._ask(
            self._range("TRANGE", key, f"({at}", "+", 1), self._range("TREVRANGE", key, f"({at}", "-", 1)
        )
        return (newer[0].id if newer else None), (older[0].id if older else None)

    async def newest_after(self, key: bytes, last: StreamId | None, most: int) -> tuple[list[Entry], int]:
        """Return the newest entries after an ID, newest first, and how many older ones after it were left out."""
        bound = "-" if last is None else f"({last}"
        entries = await self._read(key, "TREVRANGE", "+", bound, most)
        if len(entries) < FIRST or last is None or not self.tidelog:
            return entries, 0
        (count,) = await self._ask(calls.tcount(key, f"({last}", f"({entries[-1].id}"))
        return entries, int(count)

    async def position(self, key: bytes, words: str) -> str:
        """Return the bound that a user means: an ID, a time, or ``#n`` for the n-th entry. Raises PageError."""
        words = words.strip()
        if words.startswith("#") and words[1:].isdecimal() and self.tidelog:
            (found,) = await self._ask(calls.tseek(key, "0", min(SEQ_MAX >> 1, max(1, int(words[1:DIGITS])))))
            return "+" if found is None else str(found)
        try:
            at = StreamId.parse(words)
            return words if "." in words or "-" in words else str(StreamId(at.ms, SEQ_MAX))
        except ValueError:
            pass
        try:
            time = datetime.fromisoformat(words)
            zoned = time if time.tzinfo else time.replace(tzinfo=UTC)
            return str(StreamId(max(0, round(zoned.timestamp() * 1000)), SEQ_MAX))
        except (ValueError, OverflowError):
            known = "an ID, a time such as 2026-01-31 12:00 (UTC), or #7 for the seventh entry"
            raise PageError(400, f"{words[:60]!r} is not a position. Enter {known}.") from None

    async def density(self, key: bytes, start: int, end: int) -> tuple[list[int], list[int]]:
        """Return the times of BUCKETS periods between two times, in ms, and how many entries each has."""
        step = max(1, -(-(end - start + 1) // BUCKETS))
        times = list(range(start, end + 1, step))
        counts = await self._ask(*(calls.tcount(key, at, at + step - 1) for at in times))
        return times, counts

    async def _read(self, key: bytes, command: str, first: str, last: str, most: int = PAGE) -> list[Entry]:
        (entries,) = await self._ask(self._range(command, key, first, last, FIRST))
        if len(entries) < FIRST:
            return list(entries)
        average = 1 + sum(map(_bytes_of, entries)) // FIRST
        more = min(most - FIRST, max(0, BYTES // average - FIRST))
        if more:
            (others,) = await self._ask(self._range(command, key, f"({entries[-1].id}", last, more))
            entries += others
        return list(entries)

    async def _numbered(self, key: bytes, entries: list[Entry]) -> StreamPage:
        if not entries:
            return StreamPage([], None, False, False)
        newest, oldest = entries[0].id, entries[-1].id
        newer, older = await self._ask(
            self._range("TRANGE", key, f"({newest}", "+", 1), self._range("TREVRANGE", key, f"({oldest}", "-", 1)
        )
        number: int | None = None
        if self.tidelog:
            (number,) = await self._ask(calls.tcount(key, "-", newest))
        return StreamPage(entries, number, bool(newer), bool(older))

    def range_call(self, key: bytes, first: str, count: int, last: str = "+") -> Call[list[Entry]]:
        """Return the call for the oldest entries between two IDs."""
        return self._range("TRANGE", key, first, last, count)

    def search_call(self, key: bytes, low: str, high: str, count: int, newest_first: bool) -> Call[list[Entry]]:
        """Return the call for the first entries of a range in one of the two directions."""
        if newest_first:
            return self._range("TREVRANGE", key, high, low, count)
        return self._range("TRANGE", key, low, high, count)

    def _range(self, command: str, key: bytes, first: str, last: str, count: int) -> Call[Any]:
        name = command if self.tidelog else command.replace("T", "X", 1)
        words = (first, last) if self.tidelog else (first.replace(".", "-"), last.replace(".", "-"))
        return Call((name, key, *words, "COUNT", count), _entries)

    async def _ask(self, *sent: Call[Any]) -> list[Any]:
        """Send calls. Raises PageError for an error of the server."""
        found = await self._connection.read(*sent)
        for each in found:
            if isinstance(each, Exception):
                raise page_error(each)
        return found


def _bytes_of(entry: Entry) -> int:
    return sum(map(len, entry.flat))


def _entries(reply: list[Any]) -> list[Entry]:
    """Read entries of TRANGE, which are flat, or of XRANGE, which have a list of fields."""
    return [
        Entry(StreamId.parse(row[0]), row[1] if len(row) == 2 and isinstance(row[1], list) else row[1:])
        for row in reply
    ]  # fmt: skip


def _redis_info(reply: Any) -> Info:
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    first = fields[b"first-entry"]
    return Info(
        length=fields[b"length"], first=StreamId.parse(first[0]) if first else None,
        last=StreamId.parse(fields[b"last-generated-id"]), entries_added=fields.get(b"entries-added", 0), evicted=0,
        evicted_to=StreamId(0), nodes=fields[b"radix-tree-nodes"], memory_bytes=0, disk_bytes=0,
        groups=fields[b"groups"], pending=0, redelivered=0, expired=0, deadlettered=0,
    )  # fmt: skip
