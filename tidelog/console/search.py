"""Searching the entries of a stream, or of the partitions of a topic, for a text, in steps.

Rule 1: a search has one request in flight, on a connection of its own. A step has at most ENTRIES entries and about
        BYTES, and other tasks run between the steps. Nothing but the hits of one step is in memory.
Rule 2: a search ends after FOUND hits, after LONGEST, or at the end of its range. It returns the bound from which
        another search continues.
Rule 3: the first SEARCHED bytes of each value are searched.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Final

from tidelog.client import calls
from tidelog.client.entries import SEQ_MAX, Entry, StreamId
from tidelog.client.steps import CallSender
from tidelog.console.errors import page_error
from tidelog.console.streams import StreamReader
from tidelog.transport.call import Call

ENTRIES: Final = 250  # of a step, at most
FIRST: Final = 10  # of the first step
BYTES: Final = 1 << 20  # of a step, about: 1 to 2 ms of the event loop
GROWTH: Final = 4  # of the number of entries from one step to the next, at most
TURN: Final = 50  # entries after which other tasks run
TOGETHER: Final = 200  # streams whose entries are counted by a request
FOUND: Final = 100  # hits after which a search ends
LONGEST: Final = 600.0  # s after which a search ends
SEARCHED: Final = 1 << 20  # bytes of a value
SHOWN_EVERY: Final = 0.25  # s between two reports of progress without hits


class EntryFilter:
    """Whether an entry has a text in a value or in the name of a field. name: only values of this field are searched.

    Without ``match_case``, upper and lower case are the same.
    """

    def __init__(self, words: str, name: str = "", match_case: bool = False) -> None:
        self._match_case = match_case
        self._ascii = words.isascii()
        self._words = words if match_case else words.casefold()
        self._raw = self._words.encode()
        self._name = name.encode()

    def matches(self, entry: Entry) -> bool:
        flat = entry.flat
        if self._name:
            return any(
                name == self._name and self._has(value) for name, value in zip(flat[::2], flat[1::2], strict=True)
            )
        return any(map(self._has, flat))

    def _has(self, value: bytes) -> bool:
        part = value[:SEARCHED]
        if self._match_case:
            return self._raw in part
        if self._ascii:
            return self._raw in part.lower()
        return self._words in part.decode("utf-8", "replace").casefold()


@dataclass(frozen=True)
class SearchStep:
    """The progress of a search."""

    examined: int  # entries so far
    hits: list[Entry] = field(default_factory=list)  # since the last step
    at: StreamId | None = None  # the last entry that was examined
    ended: str = ""  # why the search has ended; empty: it continues
    following: str = ""  # the bound from which another search continues; empty: the range was searched completely


async def bounds(reader: StreamReader, key: bytes, start: str, end: str) -> tuple[str, str]:
    """Return the IDs of a range that a user has entered; an empty word is an open end. Raises PageError."""
    low = "-"
    if start.strip():
        low = await reader.position(key, start)
        if low != "+" and StreamId.parse(low).seq == SEQ_MAX:  # a time
            low = str(StreamId(StreamId.parse(low).ms, 0))
    return low, await reader.position(key, end) if end.strip() else "+"


async def count(reader: StreamReader, link: CallSender, keys: Sequence[bytes], low: str, high: str) -> int | None:
    """Return the number of entries of a range in all streams, None on a redis-server. Raises PageError."""
    if not reader.tidelog:
        return None
    total = 0
    for start in range(0, len(keys), TOGETHER):
        total += sum(await _send(link, *(calls.tcount(key, low, high) for key in keys[start : start + TOGETHER])))
    return total


async def search_all(
    reader: StreamReader, link: CallSender, keys: Sequence[bytes], within: tuple[str, str],
    matches: Callable[[Entry], bool], newest_first: bool, following: tuple[int, str] = (0, ""),
) -> AsyncIterator[tuple[int, SearchStep]]:  # fmt: skip
    """Search a range of streams, one stream after the other. Yields the index of the stream with each step.

    following: where an earlier search has ended: a stream, and a bound in it. ``following`` of a step has both, with a
    space between them. ``link``: the connection of the search. Raises PageError for an error reply.
    """
    began = monotonic()
    before = found = 0
    for at in range(following[0], len(keys)):
        low, high = within
        if at == following[0] and following[1]:
            low, high = (low, following[1]) if newest_first else (following[1], high)
        longest, examined = LONGEST - (monotonic() - began), 0
        steps = search(reader, link, keys[at], low, high, matches, newest_first, FOUND - found, longest)
        async with aclosing(steps) as source:  # type: ignore[type-var] # a generator
            async for step in source:
                found += len(step.hits)
                examined = step.examined
                ended, where = step.ended, f"{at} {step.following}" if step.following else ""
                if ended and not where and at + 1 < len(keys):
                    ended, where = "", f"{at + 1} "
                yield at, replace(step, examined=before + examined, ended=ended, following=where)
                if ended:
                    return
        before += examined


async def search(
    reader: StreamReader, link: CallSender, key: bytes, low: str, high: str, matches: Callable[[Entry], bool],
    newest_first: bool, most: int = FOUND, longest: float = LONGEST,
) -> AsyncIterator[SearchStep]:  # fmt: skip
    """Search a range of a stream for up to ``most`` hits, for up to ``longest`` seconds. Raises PageError.

    ``link``: the connection of the search.
    """
    began = shown = monotonic()
    examined, found, wanted = 0, 0, FIRST
    while True:
        (entries,) = await _send(link, reader.search_call(key, low, high, wanted, newest_first))
        hits = []
        last: StreamId | None = None
        for entry in entries:
            examined, last = examined + 1, entry.id
            if examined % TURN == 0:
                await asyncio.sleep(0)  # decoding a step of records can take 50 ms
            if matches(entry):
                hits.append(entry)
                if found + len(hits) == most:
                    break
        found += len(hits)
        if last is not None:
            low, high = (low, f"({last}") if newest_first else (f"({last}", high)
        following = high if newest_first else low
        if found == most:
            yield SearchStep(examined, hits, last, f"{FOUND} entries were found", following)
            return
        if len(entries) < wanted:
            yield SearchStep(examined, hits, last, "the whole range was searched")
            return
        if monotonic() - began > longest:
            yield SearchStep(examined, hits, last, f"the search took {LONGEST / 60:g} minutes", following)
            return
        if hits or monotonic() - shown > SHOWN_EVERY:
            shown = monotonic()
            yield SearchStep(examined, hits, last, "", following)
        largest = 1 + max(sum(map(len, entry.flat)) for entry in entries)
        wanted = max(1, min(ENTRIES, GROWTH * wanted, BYTES // largest))


async def _send(link: CallSender, *sent: Call[Any]) -> list[Any]:
    """Send calls. Raises PageError for an error reply."""
    found = await link.together(*sent, raise_on_error=False)
    for each in found:
        if isinstance(each, Exception):
            raise page_error(each)
    return found
