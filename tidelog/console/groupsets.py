"""Groups of the same name on several streams, such as the partitions of a topic, and their resets.

Rule 1: a page reads the groups of at most STREAMS streams and at most GROUPS groups, a few streams at a time.
Rule 2: lag and pending messages are determined for the rows of a page only, and for at most MEASURED groups of streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.client import calls
from tidelog.client.entries import Entry, StreamId
from tidelog.console.connection import UserConnection
from tidelog.console.errors import PageError, page_error
from tidelog.console.groups import GroupRow, GroupSummary, StreamGroups, group_of, named, position_of, rows_of
from tidelog.console.infotext import text
from tidelog.console.streams import StreamReader
from tidelog.options.start import StartPosition
from tidelog.transport.call import Call, plain
from tidelog.transport.errors import message_of

STREAMS: Final = 1000  # of a page
GROUPS: Final = 200_000  # of all streams of a page: about 60 MB
READ: Final = 5_000  # groups that a request reads, about: 20 ms of the event loop
TOGETHER: Final = 50  # streams of a request
CALLS: Final = 200  # of a request
MEASURED: Final = 2000  # groups of streams, at most, unless a single name is on more
LISTED_GROUPS: Final = 20  # of a stream whose readers are counted: TGROUP LIST describes all groups
LISTED: Final = 100  # names of a page
FEWEST: Final = 10  # names of a page, if they are on many streams

Member = tuple[bytes, GroupRow]  # a stream, and its group


@dataclass
class GroupSet:
    """The groups of one name. The values after ``members`` are known for the rows of a page only."""

    name: bytes
    members: list[tuple[bytes, GroupSummary]] = field(default_factory=list)  # by stream
    lag: int | None = None  # of all streams; None: not known
    oldest_unread: int | None = None  # ms since 1970, of all streams
    oldest_pending: int | None = None  # ms since 1970: the time of the entry
    measured: bool = False  # whether the three are known

    @property
    def pending(self) -> int:
        return sum(each.pending for _, each in self.members)

    @property
    def consumers(self) -> int:
        return sum(each.consumers for _, each in self.members)


@dataclass(frozen=True)
class GroupSetPage:
    """A page of groups by name."""

    rows: list[GroupSet]
    start: int  # names before the page
    matching: int
    size: int  # names of a page
    streams: int  # streams whose groups were read
    problems: list[tuple[bytes, str]]  # streams that can't be read, with the reason
    left_out: int  # streams that were not read, because there are too many groups


@dataclass(frozen=True)
class MemberState:
    """A group of one stream of a set."""

    key: bytes
    group: GroupSummary
    oldest: StreamId | None = None  # the pending message with the lowest ID
    deliveries: int = 0  # of this message
    readers: int | None = None  # clients that wait for entries; None: not known


@dataclass(frozen=True)
class PlannedReset:
    """The effect of a reset on one stream."""

    key: bytes
    before: StreamId
    after: StreamId
    read_again: int
    skipped: int
    at_least: bool  # the two numbers are minimums
    first: Entry | None  # the first entry that is read again


class GroupSets:
    """Groups of several streams, as one user sees them."""

    def __init__(self, reader: StreamReader, connection: UserConnection) -> None:
        self._reader = reader
        self._connection = connection
        self._groups = StreamGroups(reader, connection)

    async def page(
        self, keys: Sequence[bytes], words: bytes, order: str, start: int, most: int = LISTED
    ) -> GroupSetPage:
        """Return a page of the groups whose names contain ``words``. order: one of ``groups.ORDERS``."""
        replies, problems, left_out = await self._rows(keys)
        found = await asyncio.to_thread(_by_name, replies, words, order)
        size = max(FEWEST, min(most, MEASURED // max(map(len, found), default=1)))
        start = min(start, max(0, len(found) - 1)) // size * size
        rows = list(map(_set, found[start : start + size]))
        await self._measure(rows)
        return GroupSetPage(rows, start, len(found), size, len(replies), problems, left_out)

    async def members(self, keys: Sequence[bytes], name: bytes) -> list[MemberState]:
        """Return the groups of a name on these streams, with lag, oldest pending message, and readers.

        Raises PageError if there is none.
        """
        replies, problems, _ = await self._rows(keys, name)
        found = [(key, group_of(row)) for key, rows in replies for row in rows]
        if not found:
            reason = f": {problems[0][1]}" if problems else "."
            raise PageError(404, f"None of the {len(keys):,} streams has a group {text(name)}{reason}")
        states = []
        for start in range(0, len(found), TOGETHER):
            states += await self._states(found[start : start + TOGETHER])
        return states

    async def _states(self, found: Sequence[tuple[bytes, GroupSummary]]) -> list[MemberState]:
        infos = await self._connection.read(*(calls.tinfo(key) for key, _ in found)) if self._reader.tidelog else []
        few = {
            key for (key, _), info in zip(found, infos, strict=False)
            if not isinstance(info, Exception) and info.groups <= LISTED_GROUPS
        }  # fmt: skip
        sent: list[Call[Any]] = []
        for key, group in found:
            sent += [*self._groups.lag_calls(key, group), plain("XPENDING", key, group.name, "-", "+", 1)]
            if key in few:
                sent.append(calls.tgroup_list(key))
        replies = map(_value, await self._connection.read(*sent))
        states = []
        for key, group in found:
            measured = self._groups.measured(group, replies)
            oldest = next(replies) or []
            readers = None
            if key in few:
                listed = next(replies) or []
                readers = next((each.readers for each in listed if each.name == group.name), None)
            first = StreamId.parse(oldest[0][0]) if oldest else None
            states.append(MemberState(key, measured, first, int(oldest[0][3]) if oldest else 0, readers))
        return states

    # -- resets ----------------------------------------------------------------------------------------------------
    async def plan(self, keys: Sequence[bytes], name: bytes, words: str) -> list[PlannedReset]:
        """Return the effect of a reset to the position that a user means. Raises PageError."""
        try:
            start = StartPosition(words.strip())
        except ValueError as error:
            raise PageError(400, str(error).removeprefix("start ")) from None
        planned: list[PlannedReset] = []
        found = await self.positions(keys, name)
        for at in range(0, len(found), TOGETHER):
            part = found[at : at + TOGETHER]
            planned += await asyncio.gather(*(self._planned(key, group, start.after) for key, group in part))
        return planned

    async def _planned(self, key: bytes, group: GroupSummary, after: StreamId | None) -> PlannedReset:
        if after is None:
            after = (await self._reader.info(key)).last
        found = await self._groups.preview(key, group, after)
        return PlannedReset(
            key, group.position, after, found.read_again, found.skipped, found.at_least,
            found.sample[0] if found.sample else None,
        )  # fmt: skip

    async def positions(self, keys: Sequence[bytes], name: bytes) -> list[tuple[bytes, GroupSummary]]:
        """Return the group of this name of each stream. Raises PageError if a stream has none."""
        replies, problems, _ = await self._rows(keys, name)
        if problems:
            raise PageError(403, f"{text(problems[0][0])}: {problems[0][1]}")
        found = dict(replies)
        for key in keys:
            if not found.get(key):
                raise PageError(404, f"The stream {text(key)} has no group {text(name)}. Show the page again.")
        return [(key, group_of(found[key][0])) for key in keys]

    def id_text(self, at: StreamId) -> str:
        """Return an ID as the server prints it."""
        return self._reader.id_text(at)

    def reset_call(self, key: bytes, name: bytes, after: StreamId) -> Call[Any]:
        return self._groups.reset_call(key, name, after)

    # -- reading -----------------------------------------------------------------------------------------------------
    async def _rows(
        self, keys: Sequence[bytes], name: bytes | None = None
    ) -> tuple[list[tuple[bytes, list[GroupRow]]], list[tuple[bytes, str]], int]:
        """Return the groups by stream, the streams that can't be read, and how many were left out.

        name: only groups of this name are returned, and none of them is left out.
        """
        replies: list[tuple[bytes, list[GroupRow]]] = []
        problems: list[tuple[bytes, str]] = []
        read, kept, at, together = 0, 0, 0, 1
        while at < len(keys) and kept < GROUPS:
            part = keys[at : at + together]
            found = await self._connection.read(*(plain("XINFO", "GROUPS", key) for key in part))
            for key, reply in zip(part, found, strict=True):
                if isinstance(reply, Exception):
                    if "no such key" not in message_of(reply):  # a partition without entries
                        problems.append((key, message_of(reply)))
                    continue
                rows = rows_of(reply)
                read += len(rows)
                rows = rows if name is None else named(rows, name)
                kept += len(rows)
                replies.append((key, rows))
            at += len(part)
            together = max(1, min(TOGETHER, READ * at // max(1, read)))
        return replies, problems, len(keys) - at

    async def _measure(self, sets: Sequence[GroupSet]) -> None:
        """Determine lag and oldest messages of the rows of a page, as far as MEASURED suffices."""
        members: list[tuple[GroupSet, int, bytes, GroupSummary]] = []
        for each in sets:
            if members and len(members) + len(each.members) > MEASURED:
                break
            members += [(each, at, *member) for at, member in enumerate(each.members)]
            each.lag, each.measured = 0, True
        for start in range(0, len(members), CALLS):
            part = members[start : start + CALLS]
            sent: list[Call[Any]] = []
            for _, _, key, group in part:
                sent += self._groups.lag_calls(key, group)
                if group.pending:
                    sent.append(plain("XPENDING", key, group.name, "-", "+", 1))
            replies = map(_value, await self._connection.read(*sent))
            for whole, at, key, group in part:
                found = self._groups.measured(group, replies)
                whole.members[at] = key, found
                whole.lag = None if found.lag is None or whole.lag is None else whole.lag + found.lag
                whole.oldest_unread = _earlier(whole.oldest_unread, found.oldest_unread)
                if group.pending and (oldest := next(replies)):
                    whole.oldest_pending = _earlier(whole.oldest_pending, StreamId.parse(oldest[0][0]).ms)


def _by_name(replies: Sequence[tuple[bytes, list[GroupRow]]], words: bytes, order: str) -> list[list[Member]]:
    """Return the rows of each name, with their streams, in an order of ``groups.ORDERS``."""
    found: dict[bytes, list[Member]] = {}
    for key, rows in replies:
        for row in rows:
            if words in row[0]:
                found.setdefault(row[0], []).append((key, row))
    members = [found[name] for name in sorted(found)]
    if order == "position":
        members.sort(key=lambda some: min(position_of(row[1]) for _, row in some))
    elif order == "pending":
        members.sort(key=lambda some: -sum(row[2] for _, row in some))
    return members


def _set(rows: Sequence[Member]) -> GroupSet:
    members = [(key, group_of(row)) for key, row in rows]
    return GroupSet(members[0][1].name, members)


def _earlier(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


def _value(reply: Any) -> Any:
    """Return the result of a call; None if the group was deleted in the meantime. Raises PageError."""
    if isinstance(reply, Exception):
        if "NOGROUP" in message_of(reply):
            return None
        raise page_error(reply)
    return reply
