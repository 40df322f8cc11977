"""The group reader: reads streams with a consumer group. Workers and flows use it.

    GroupStream     one stream: its entries in flight, and the calls that read and settle them
    ReadableStream  one stream without a group, for the flows that need none
    GroupReader     the streams of one reader: which of them are read next, and rounds of TREADs
    touch           touches entries that have been in flight for a long time

Rule 1: an ID is in flight from its delivery until the server has confirmed its acknowledgement, or until it is
        returned. An entry that is redelivered meanwhile, because a reply was lost or its deadline has passed, is
        dropped: its settlement is in flight.
Rule 2: a TREAD and a settlement on another connection can overtake each other. While a TREAD is in flight, IDs that are
        settled elsewhere (``forget``) therefore stay in flight until the reply to the TREAD has been processed. On the
        connection of the TREADs, replies have the order of the calls, and IDs are removed at once (``drop``).
Rule 3: a stream is hot if it may have unread entries: a TREAD returned as many entries as requested, or TWAIT named the
        stream. Only hot streams are read. All TREADs of a round are sent together.
Rule 4: a reply contains due redeliveries first, then new entries in order. Entries at or before the offset that the
        group had before the read are redeliveries. The delivery count is read from the server only for these.
Rule 5: an entry that is in flight for one to two fifths of its retry time is touched (TTOUCH), and again after each two
        fifths, so that it is not redelivered while its reader lives.

Decision: both engines extend one class. They differ in these points, where each needs its own form. With the shared
class, a worker and a flow use the same CPU time per event as with separate classes.

    send      a worker fences a round by its claims in a transaction; a flow sends the calls without one
    exact     sources of flows share a stream, so they read the group's offset with each TREAD, which costs one call.
              A worker knows the offset, or owns the partition.
    waiting   a worker reconnects on its own and has one TWAIT at a time. A flow leaves reconnecting to its runtime, and
              its idle sources share the waits of the process.
    settling  a worker collects acknowledgements for 50 ms and commits them with the records that it sends. The runtime
              of a flow already passes settlements in batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from tidelog.client import calls
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import Steps, checked
from tidelog.transport.call import Call, Value, plain

PAGE: Final = 1000  # pending entries of one reply
ZERO: Final = StreamId(0)

Row = list[Any]  # an entry as the server sends it: ID, field, value, ...


def id_of(raw: bytes) -> StreamId:
    """Return an ID that the server has sent."""
    ms, _, seq = raw.partition(b".")
    return StreamId(int(ms), int(seq))


def raw_id(id: StreamId) -> bytes:  # noqa: A002 - its name everywhere else
    """Return an ID as the server sends it."""
    return b"%d.%d" % (id.ms, id.seq)


def entry_of(row: Row) -> Entry:
    """Convert an entry to the client's type."""
    return Entry(id_of(row[0]), row[1:])


def group_offset(stream: str, group: str) -> Call[StreamId | None]:
    """Return the group's offset; None: the stream has no such group."""
    name = group.encode()

    def read(reply: list[Any]) -> StreamId | None:
        for listed in reply:
            group = listed if isinstance(listed, dict) else dict(zip(listed[::2], listed[1::2], strict=True))
            if group[b"name"] == name:
                return id_of(group[b"offset"])
        return None

    return Call(("TGROUP", "LIST", stream), read)


@dataclass(slots=True)
class ReadCounts:
    """Counters of what was read."""

    fetched: int = 0  # entries that were delivered, including redeliveries
    repeated: int = 0  # of these, entries that were already in flight and were dropped
    missing: int = 0  # nulls instead of entries that were evicted before they were read


class ReadableStream:
    """One stream that is read without a group."""

    __slots__ = ("not_reading", "offset", "stream")

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.offset: StreamId | None = None  # entries up to this ID were delivered before; None: this is not recorded
        self.not_reading = asyncio.Event()  # cleared while a TREAD is in flight
        self.not_reading.set()

    def reads(self, count: int) -> list[Call[Any]]:
        """Return the calls that read up to ``count`` entries."""
        return [plain("TREAD", self.stream, str(self.offset or ZERO), count)]

    def taken(self, replies: Sequence[Any], counts: ReadCounts) -> list[Row]:
        """Process the replies to ``reads``, and return the entries that were not in flight."""
        rows: list[Row] = [row for row in replies[-1] if row is not None]
        counts.fetched += len(rows)
        counts.missing += len(replies[-1]) - len(rows)
        if rows:
            self.offset = id_of(rows[-1][0])
        return rows

    def read_finished(self) -> None:
        """Mark the TREAD as finished."""
        self.not_reading.set()


class GroupStream(ReadableStream):
    """One stream that is read with a group. ``start``: the position of a new group, in the form of TREAD."""

    __slots__ = ("_exact", "_leaving", "_options", "_seen", "group", "in_flight", "redelivered", "retry_ms", "start")

    def __init__(self, stream: str, group: str, start: str, retry_ms: int, *, exact: bool = False) -> None:
        super().__init__(stream)
        self.group = group
        self.start = start
        self.retry_ms = retry_ms  # until an entry that is neither settled nor touched is redelivered
        self.in_flight: dict[bytes, Row] = {}  # by ID
        self.redelivered: list[bytes] = []  # IDs that were delivered before, see ``take_redelivered``
        self._leaving: list[bytes] = []  # see Rule 2
        self._seen: set[bytes] = set()  # IDs that were in flight at the last call of ``aging``, and were not returned
        self._options: tuple[Value, ...] = ("GROUP", group, 0, "RETRY", retry_ms, 0)
        self._exact = group_offset(stream, group) if exact else None

    @property
    def active(self) -> bool:
        """Whether the stream may be read and settled."""
        return True

    # -- reading ---------------------------------------------------------------------------------------------
    def reads(self, count: int) -> list[Call[Any]]:
        """See ``ReadableStream.reads``."""
        read = plain("TREAD", self.stream, self.start, count, *self._options)
        return [read] if self._exact is None else [self._exact, read]

    def taken(self, replies: Sequence[Any], counts: ReadCounts) -> list[Row]:
        """See ``ReadableStream.taken``, Rule 1 and Rule 4."""
        if self._exact is not None:
            self.offset = replies[0] or self.offset or ZERO
        in_flight = self.in_flight
        fresh: list[Row] = []
        for row in replies[-1]:
            if row is None:
                counts.missing += 1
            elif row[0] in in_flight:
                counts.repeated += 1
                counts.fetched += 1
            else:
                in_flight[row[0]] = row
                fresh.append(row)
        counts.fetched += len(fresh)
        if fresh and (offset := self.offset) is not None:
            for row in fresh:
                if id_of(row[0]) > offset:
                    break
                self.redelivered.append(row[0])
            self.offset = max(offset, id_of(fresh[-1][0]))
        return fresh

    def take_redelivered(self) -> list[bytes]:
        """Return the redelivered IDs since the last call."""
        found, self.redelivered = self.redelivered, []
        return found

    def read_finished(self) -> None:
        """See ``ReadableStream.read_finished``."""
        super().read_finished()
        if self._leaving:
            leaving, self._leaving = self._leaving, []
            self.forget(leaving)

    # -- settling --------------------------------------------------------------------------------------------
    def forget(self, ids: Iterable[bytes]) -> None:
        """Remove entries that were settled on any connection (Rule 2)."""
        if self.not_reading.is_set():
            self.drop(ids)
        else:
            self._leaving.extend(ids)

    def drop(self, ids: Iterable[bytes]) -> None:
        """Remove entries that were or are being settled on the connection of the TREADs (Rule 2)."""
        pop = self.in_flight.pop
        for entry_id in ids:
            pop(entry_id, None)

    def ack(self, ids: Iterable[bytes]) -> Call[int]:
        """Return the call that acknowledges entries."""
        return Call(("TACK", self.stream, self.group, *ids), int)

    def nack(self, ids: Iterable[bytes], delay_ms: int = 0) -> Call[int]:
        """Return the call that returns entries for redelivery after a delay."""
        return calls.tnack(self.stream, self.group, *ids, delay=delay_ms)

    def touch(self, ids: Iterable[bytes], ms: int | None = None) -> Call[int]:
        """Return the call that postpones the redelivery of entries, by default by the retry time."""
        return calls.ttouch(self.stream, self.group, self.retry_ms if ms is None else ms, *ids)

    def aging(self) -> list[bytes]:
        """Return the IDs that were in flight at the previous call, too, and that it did not return."""
        found = [entry_id for entry_id in self.in_flight if entry_id in self._seen]
        self._seen = self.in_flight.keys() - found
        return found

    # -- pending entries -------------------------------------------------------------------------------------
    def make_due(self) -> Steps[list[bytes]]:
        """Make pending entries due that are not in flight, in the order of their IDs. Returns them.

        Due entries are delivered before new ones. Ends early if the stream is no longer ``active``.
        """
        found: list[bytes] = []
        start = "-"
        while True:
            (page,) = checked((yield [calls.tpending_range(self.stream, self.group, start, "+", PAGE)]))
            if not page or not self.active:
                return found
            ids = [each for message in page if (each := raw_id(message.id)) not in self.in_flight]
            if ids:
                checked((yield [self.nack(ids)]))
            found += ids
            start = f"({page[-1].id}"

    def deliveries(self, ids: Sequence[bytes]) -> Steps[dict[bytes, int]]:
        """Return how often entries were delivered, without those that are not pending.

        Most of them are on one page of the pending list; the others are requested one by one.
        """

        def pending(first: bytes, last: bytes, count: int) -> Call[Any]:
            return calls.tpending_range(self.stream, self.group, first, last, count)

        ordered = sorted(ids, key=id_of)
        pages = checked((yield [pending(ordered[0], ordered[-1], 2 * len(ids))]))
        found = {raw_id(message.id): message.deliveries for message in pages[0]}
        if len(pages[0]) == 2 * len(ids) and (missing := [each for each in ids if each not in found]):
            pages = checked((yield [pending(each, each, 1) for each in missing]))
            found |= {raw_id(message.id): message.deliveries for page in pages for message in page}
        return {each: found[each] for each in ids if each in found}


S = TypeVar("S", bound=ReadableStream)
G = TypeVar("G", bound=GroupStream)


class GroupReader(Generic[S]):
    """Reads streams. An engine extends it by ``send``, and by how it waits for entries."""

    def __init__(self, counts: ReadCounts) -> None:
        self.counts = counts
        self.streams: dict[str, S] = {}  # by key
        self.hot: dict[str, S] = {}  # by key; the next one first

    async def send(self, reads: Sequence[Call[Any]]) -> Sequence[Any] | None:
        """Send the calls of a round; returns their results or errors, or None if none of them was executed."""
        raise NotImplementedError

    def refused(self, stream: S, error: Exception) -> None:  # noqa: ARG002
        """Handle a stream that can't be read. It is no longer hot."""
        raise error

    def heat(self, keys: Iterable[str]) -> None:
        """Read these streams next, except those that were removed."""
        self.hot.update({key: self.streams[key] for key in keys if key in self.streams})

    async def read(self, wanted: Sequence[tuple[S, int]]) -> list[tuple[S, list[Row]]]:
        """Read up to the given number of entries of each stream once; returns those that were not in flight.

        Streams that were not read are not in the result.
        """
        if not wanted:
            return []
        requests = [stream.reads(count) for stream, count in wanted]
        for stream, _ in wanted:
            stream.not_reading.clear()
        found: list[tuple[S, list[Row]]] = []
        try:
            replies = await self.send([call for some in requests for call in some])
            if replies is None:
                return found
            at = 0
            for (stream, count), some in zip(wanted, requests, strict=True):
                results = replies[at : at + len(some)]
                at += len(some)
                known = self.hot.get(stream.stream) is stream  # otherwise it was removed meanwhile
                if known:
                    del self.hot[stream.stream]
                if isinstance(results[-1], Exception):
                    self.refused(stream, results[-1])
                    continue
                if known and len(results[-1]) >= count:
                    self.hot[stream.stream] = stream  # behind the others
                found.append((stream, stream.taken(results, self.counts)))
            return found
        finally:
            for stream, _ in wanted:
                stream.read_finished()


async def touch(
    streams: Callable[[], Iterable[G]], retry: float, send: Callable[[G, Call[int]], Awaitable[object]]
) -> None:
    """Touch entries that are in flight for long, until cancelled (Rule 5). ``retry``: their retry time in seconds.

    If ``send`` raises OSError, the remaining streams are touched in the next round.
    """
    loop = asyncio.get_running_loop()
    next_at = loop.time()
    while True:
        next_at = max(next_at + retry / 5, loop.time())  # slow replies don't postpone the next round
        await asyncio.sleep(next_at - loop.time())
        for stream in list(streams()):
            ids = stream.aging() if stream.active else ()
            if ids:
                try:
                    await send(stream, stream.touch(ids))
                except OSError:
                    break
