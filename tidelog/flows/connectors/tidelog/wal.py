"""``wal``: makes any source durable. What it takes is settled once it is on the server's disk, and goes out from there.

An entry of its stream has one field, ``event``: [value, meta, ingest time in ns] in MessagePack.

Rule 1: the stream holds what is not settled, in order, and before it what lies above a gap. So its first entry is where
        reading begins after a crash, and nothing else is remembered.
Rule 2: an event is settled upstream when WAITAOF has said that its entry is on the leader's disk.
Rule 3: it is bounded: when it is full nothing is taken, and sources above hear ``wal_full``.
Rule 4: no more than ``max_unsettled`` events lie behind the first one that is not settled: what a crash sends again.

Each instance of a flow has a stream of its own. Two processes that run the same instance both send everything; nothing
is lost by it.
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
from tidelog.flows.options import Size
from tidelog.flows.serveraccess import access, channel
from tidelog.topics.retention import after
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import Channel

FIELD: Final = "event"
FULL: Final = "wal_full"
DISK_MS: Final = 10_000  # for a write to reach the disk
ZERO: Final = StreamId(0)


class WalOptions(ConnectorOptions):
    """Options of ``wal``."""

    key: str | None = None  # the stream; null: flow:<instance>:wal:<name>
    max_events: int = 1_000_000  # unsettled; when it holds so many it takes no more
    max_size: Size = Size(1 << 30)  # of them

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_events < 1 or self.max_size < 1:
            raise ValueError("max_events and max_size must be at least 1")
        if self.key == "":
            raise ValueError("key is empty: leave it out for flow:<instance>:wal:<name>")


class WalConnector(Source, Sink):
    """What comes in by its sink goes out by its source."""

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
        self._waiting: EntryWaiter | None = None
        self._writes: Channel | None = None
        self._after = ZERO  # read up to here
        self._prefix: SettledPrefix[StreamId] = SettledPrefix(ZERO)
        self._evicted = ZERO
        self._held: deque[tuple[StreamId, int, int]] = deque()  # of appends: last ID, entries, bytes
        self._count = 0  # entries in it
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
            self._waiting = EntryWaiter(self._where(), name, None)
            await self._waiting.open()
        await self._measure()

    async def _measure(self) -> None:
        """What is in it: another process may have left it, and appends whose reply was lost."""
        over = self._writes if self._waiting is None else self._waiting.channel
        if over is None:
            return
        (info,) = await over.send([calls.tinfo(self._key)])
        self._held.clear()
        self._count = self._bytes = 0
        if not isinstance(info, Exception):  # else there is no such key yet
            self._add(info.last, info.length, info.disk_bytes if info.length else 0)
        elif "no such key" not in str(info).lower():
            raise ConnectionError(f"{self._key}: {info}")
        self._look()

    async def close(self) -> None:
        if self._writes is not None:
            self._writes.close()
            self._writes = None
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            await waiting.close()

    # -- in --------------------------------------------------------------------------------------------------
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
            self._add(span.last, len(rows), sum(len(row[0]) for row in rows))
            self._look()
            if self._waiting is not None:
                self._waiting.ring()
            if isinstance(disk, redis.ResponseError):
                why = str(disk)
            elif not disk[0]:
                why = f"not on the server's disk within {DISK_MS / 1000:g} s"
        if why:
            return [each if each != OK else (RETRY, why) for each in outcomes]
        return outcomes if len(rows) < len(events) else None

    def _add(self, last: StreamId, count: int, size: int) -> None:
        self._held.append((last, count, size))
        self._count += count
        self._bytes += size

    def _look(self) -> None:
        """Whether it is full (Rule 3)."""
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

    # -- out -------------------------------------------------------------------------------------------------
    @property
    def stored(self) -> int:
        return max(0, self._count - len(self._prefix))

    @property
    def room(self) -> int:
        """Rule 4."""
        return self._options.max_unsettled - len(self._prefix)

    async def pull(self, limit: int) -> list[Event] | None:
        while True:
            waiting = self._waiting
            if waiting is None:
                raise ConnectionError("not connected")
            (entries,) = await waiting.ask([calls.trange(self._key, f"({self._after}", "+", limit)])
            if entries:
                waiting.found()
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
        if self._waiting is not None:
            self._waiting.interrupt()

    async def settled(self, tokens: Sequence[Token]) -> None:
        self._prefix.settle_all(token.key for token in tokens)
        to = self._prefix.position
        if self._waiting is None:
            raise ConnectionError("not connected")
        if to == self._evicted:
            return
        await self._waiting.ask([calls.ttrim(self._key, before=after(to))])
        self._evicted = to
        while self._held and self._held[0][0] <= to:
            _, count, size = self._held.popleft()
            self._count -= count
            self._bytes -= size
        self._look()
