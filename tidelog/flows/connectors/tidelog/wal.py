"""``wal``: makes any source durable. It settles an event once it is on the server's disk, and sends it from there.

An entry of its stream has one field, ``event``: [value, meta, ingest time in ns] in MessagePack.

Rule 1: The stream contains the events that are not settled, and settled events behind the first unsettled one. Reading
        after a crash therefore starts with the first entry, and no other state is stored.
Rule 2: An event is settled upstream when WAITAOF reports that its entry is on the leader's disk.
Rule 3: The stream is bounded. When it is full, the connector accepts no events, and sources above it stop for the
        reason ``wal_full``.
Rule 4: At most ``max_unsettled`` events are sent after the first one that is not settled. A crash repeats only these.

Each instance of a flow has its own stream. If two processes run the same instance, both send all events; none is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import redis

from tidelog.client import calls
from tidelog.client.entries import StreamId
from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import OK, REJECT, RETRY, Token
from tidelog.flows.connectors.settledprefix import SettledPrefix
from tidelog.flows.connectors.tidelog.entrywaiter import EntryWaiter
from tidelog.flows.serveraccess import access, channel
from tidelog.options.units import Size
from tidelog.topics.groupprogress import after
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import AsyncConnection

FIELD: Final = "event"
FULL: Final = "wal_full"
DISK_MS: Final = 10_000  # maximum time in ms until a write is on disk
ZERO: Final = StreamId(0)


class WalOptions(ConnectorOptions):
    """Options of ``wal``."""

    key: str | None = None  # The stream. `null`: `flow:INSTANCE:wal:NAME`.
    max_events: int = 1_000_000  # Maximum number of stored events. At this number, no events are accepted.
    max_size: Size = Size(1 << 30)  # Maximum size of the stored events.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_events < 1 or self.max_size < 1:
            raise ValueError("max_events and max_size must be at least 1")
        if self.key == "":
            raise ValueError("key is empty: omit it for flow:<instance>:wal:<name>")


class WalConnector(Source, Sink):
    """Its source sends the events that its sink has stored."""

    type = "wal"
    Options = WalOptions

    @classmethod
    def option_server(cls, options: ConnectorOptions) -> bool:  # noqa: ARG003
        return True

    def __init__(self, options: WalOptions) -> None:
        super().__init__()
        self._options = options
        self._key = ""
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(tuple[Any, dict[str, Any], int]).decode
        self._waiter: EntryWaiter | None = None
        self._writes: AsyncConnection | None = None
        self._after = ZERO  # the last ID that was read
        self._prefix: SettledPrefix[StreamId] = SettledPrefix(ZERO)
        self._evicted = ZERO
        self._appends: deque[tuple[StreamId, int, int]] = deque()  # of each append: last ID, entries, bytes
        self._count = 0  # entries in the stream
        self._bytes = 0
        self._full = False

    def _where(self) -> Access:
        return access(self.context.server or "")

    async def connect(self) -> None:
        context = self.context
        name = f"tidelog-flow:{context.flow}:{context.name}"
        self._key = self._options.key or f"flow:{context.flow}:wal:{context.name}"
        if context.sink is not None:
            self._writes = await channel(self._where(), name)
        if context.source is not None:
            self._waiter = EntryWaiter(self._where(), name, None)
            await self._waiter.open()
        await self._measure()

    async def _measure(self) -> None:
        """Read the size of the stream: it may contain entries of an earlier process, or of appends without a reply."""
        over = self._writes if self._waiter is None else self._waiter.channel
        if over is None:
            return
        (info,) = await over.send([calls.tinfo(self._key)])
        self._appends.clear()
        self._count = self._bytes = 0
        if not isinstance(info, Exception):
            self._add(info.last, info.length, info.disk_bytes if info.length else 0)
        elif "no such key" not in str(info).lower():
            raise ConnectionError(f"{self._key}: {info}")
        self._look()

    async def close(self) -> None:
        if self._writes is not None:
            self._writes.close()
            self._writes = None
        waiting, self._waiter = self._waiter, None
        if waiting is not None:
            await waiting.close()

    # -- input -----------------------------------------------------------------------------------------------
    async def write(self, events: list[Event]) -> Sequence[Outcome] | None:
        if self._writes is None:
            raise ConnectionError("not connected")
        rows: list[tuple[bytes]] = []
        outcomes: list[Outcome] = [OK] * len(events)
        for at, event in enumerate(events):
            try:
                rows.append((self._encode((event.value, event.meta, event.ingest_ns)),))
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                outcomes[at] = (REJECT, f"it can't be written: {error}")
        if not rows:
            return outcomes
        span, disk = await self._writes.send([calls.tmappend(self._key, [FIELD], rows), calls.waitaof(1, 0, DISK_MS)])
        why = ""
        if isinstance(span, redis.ResponseError):
            why = f"{self._key}: {span}"
        else:
            size = sum(len(row[0]) for row in rows)
            self._add(span.last, len(rows), size)
            self.context.sent(size)
            self._look()
            if self._waiter is not None:
                self._waiter.ring()
            if isinstance(disk, redis.ResponseError):
                why = str(disk)
            elif not disk[0]:
                why = f"not on the server's disk within {DISK_MS / 1000:g} s"
        if why:
            return [each if each != OK else (RETRY, why) for each in outcomes]
        return outcomes if len(rows) < len(events) else None

    def _add(self, last: StreamId, count: int, size: int) -> None:
        self._appends.append((last, count, size))
        self._count += count
        self._bytes += size

    def _look(self) -> None:
        """Update whether the stream is full (Rule 3)."""
        full = self._count >= self._options.max_events or self._bytes >= self._options.max_size
        if full is self._full:
            return
        self._full = full
        self.concurrency = 0 if full else 1
        if full:
            self.context.trigger(FULL, f"{self._count} events, {self._bytes} bytes")
        else:
            self.context.restore(FULL)
            self.context.wake()

    # -- output ----------------------------------------------------------------------------------------------
    @property
    def stored(self) -> int:
        return max(0, self._count - len(self._prefix))

    @property
    def room(self) -> int:
        """Implement Rule 4."""
        return self._options.max_unsettled - len(self._prefix)

    async def pull(self, limit: int) -> list[Event] | None:
        while True:
            waiting = self._waiter
            if waiting is None:
                raise ConnectionError("not connected")
            (entries,) = await waiting.send([calls.trange(self._key, f"({self._after}", "+", limit)])
            if entries:
                waiting.found()
                self.context.received(sum(len(each.flat[1]) for each in entries))
                return [self._event(each.id, each.flat) for each in entries]
            if not await waiting.until({self._key: self._after}, None):
                return []

    def _event(self, at: StreamId, flat: tuple[bytes, ...]) -> Event:
        self._after = at
        name = str(at)
        self._prefix.add(name, at)
        try:
            value, meta, ingest_ns = self._decode(flat[1])
        except ValueError as error:
            return Event(list(flat), {"error": str(error)}, name, path="err")
        return Event(value, meta, name, ingest_ns=ingest_ns)

    def interrupt(self) -> None:
        if self._waiter is not None:
            self._waiter.interrupt()

    async def settled(self, tokens: Sequence[Token]) -> None:
        self._prefix.settle_all(token.key for token in tokens)
        to = self._prefix.position
        if self._waiter is None:
            raise ConnectionError("not connected")
        if to == self._evicted:
            return
        await self._waiter.send([calls.ttrim(self._key, before=after(to))])
        self._evicted = to
        while self._appends and self._appends[0][0] <= to:
            _, count, size = self._appends.popleft()
            self._count -= count
            self._bytes -= size
        self._look()
