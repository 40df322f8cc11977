"""Reads streams: what sources with and without a group have in common, and the source without a group.

Without a group, every entry after an ID is read once, and no position is stored on the server. The runtime keeps events
that are to be retried. After a restart of the process, reading starts at ``start`` again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tidelog.client import calls, tracecontext
from tidelog.flows.api.connectorcontext import ConnectorContext
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import Token
from tidelog.flows.connectors.tidelog.entrywaiter import EntryWaiter
from tidelog.flows.connectors.tidelog.fieldcodec import EntryCodec
from tidelog.options.start import StartPosition
from tidelog.topics.groupreader import ZERO, GroupReader, ReadableStream, ReadCounts, Row, S
from tidelog.transport.call import Call


class StreamSource(GroupReader[S]):
    """The reader of one source."""

    def __init__(self, streams: Iterable[S], waiter: EntryWaiter, codec: EntryCodec, context: ConnectorContext) -> None:
        super().__init__(ReadCounts())
        self.streams = {stream.stream: stream for stream in streams}
        self._waiter = waiter
        self._decode = codec.decode
        self._context = context
        self._about: dict[str, str] = {}  # more metadata of each event
        self._prefixes = {key: f"{key}/" if len(self.streams) > 1 else "" for key in self.streams}  # of event IDs

    async def open(self) -> None:
        """See ``Source.connect``."""
        await self._waiter.open()
        self.heat(self.streams)

    async def close(self) -> None:
        """See ``Source.close``."""
        await self._waiter.close()

    def interrupt(self) -> None:
        """See ``Source.interrupt``."""
        self._waiter.interrupt()

    async def settled(self, tokens: Sequence[Token]) -> None:
        """See ``Source.settled``."""
        raise NotImplementedError

    async def received(self, events: list[Event], streams: Sequence[S]) -> list[Event] | None:  # noqa: ARG002
        """Process the events of a round of reads; returns those to send. None: the source is paused."""
        return events

    async def send(self, reads: Sequence[Call[Any]]) -> Sequence[Any]:
        """See ``GroupReader.send``. Raises ConnectionError."""
        return await self._waiter.send(reads)

    async def pull(self, limit: int) -> list[Event]:
        """See ``Source.pull``."""
        while True:
            if not self.hot:
                due_in = None if self._waiter.warm() else await self._waiter.due_in([*self.streams])
                after = {key: stream.offset or ZERO for key, stream in self.streams.items()}
                found = await self._waiter.until(after, due_in)
                if not found:
                    return []
                self.heat(found)
            wanted = list(self.hot.values())[:limit]
            before = self._waiter.bytes_received  # counting the fields of each entry would cost 3 %
            rows = await self.read([(stream, limit // len(wanted)) for stream in wanted])
            self._context.received(max(0, self._waiter.bytes_received - before))
            self._report()
            events = [event for stream, some in rows if some for event in self._events(stream.stream, some)]
            found_events = await self.received(events, wanted)
            if found_events is None:
                return []
            if found_events:
                self._waiter.found()
                return found_events

    def _report(self) -> None:
        """Count the entries that ``read`` has left out."""
        counts, self.counts = self.counts, ReadCounts()
        if counts.missing:
            self._context.count("missing", counts.missing)
        if counts.repeated:
            self._context.count("delivered_in_hand", counts.repeated)

    def _events(self, key: str, rows: list[Row]) -> list[Event]:
        decode, prefix, about = self._decode, self._prefixes[key], {"stream": key, **self._about}
        events = []
        for row in rows:
            flat = row[1:]
            name = prefix + row[0].decode()
            try:
                own, context = tracecontext.split(flat)
                events.append(Event(decode(own), about | context, name))
            except ValueError as error:
                events.append(Event(flat, {"stream": key, "error": str(error)}, name, path="err"))
        return events


class PlainSource(StreamSource[ReadableStream]):
    """The source without a group."""

    def __init__(
        self, keys: list[str], start: StartPosition, waiter: EntryWaiter, codec: EntryCodec, context: ConnectorContext
    ) -> None:  # fmt: skip
        super().__init__(map(ReadableStream, keys), waiter, codec, context)
        self._start = start

    async def open(self) -> None:
        await super().open()
        for stream in self.streams.values():
            if stream.offset is None and self._start.after is not None:
                stream.offset = self._start.after
            elif stream.offset is None:
                (end,) = await self._waiter.send([calls.tread(stream.stream, "", 0, with_info=True)])
                stream.offset = end.info.last if end.info is not None else ZERO

    async def settled(self, tokens: Sequence[Token]) -> None:
        """Do nothing: no position is stored."""
