"""Reads streams without a group: every entry after an ID, once. No position is stored on the server.

The runtime keeps events that are to be retried. After a restart of the process, reading starts at ``start`` again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tidelog.client import calls
from tidelog.client.entries import StreamId
from tidelog.flows.api.connectorcontext import ConnectorContext
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import Token
from tidelog.flows.connectors.tidelog.entrywaiter import EntryWaiter
from tidelog.flows.connectors.tidelog.fieldcodec import EntryCodec
from tidelog.options.start import StartPosition
from tidelog.transport.access import Access
from tidelog.transport.call import Call

ZERO: Final = StreamId(0)


class PlainReader:
    """The reader of one source."""

    def __init__(
        self, where: Access, name: str, keys: list[str], start: StartPosition, codec: EntryCodec,
        context: ConnectorContext,
    ) -> None:  # fmt: skip
        self._start = start
        self._codec = codec
        self._context = context
        self._waiter = EntryWaiter(where, name, None)
        self._after: dict[str, StreamId] = {}
        self._keys = keys
        self._prefixes = {key: f"{key}/" if len(keys) > 1 else "" for key in keys}
        self._hot = dict.fromkeys(keys)

    async def open(self) -> None:
        await self._waiter.open()
        if not self._after:
            first = self._start.after
            if first is None:
                heads = await self._waiter.send([calls.tread(key, "", 0, with_info=True) for key in self._keys])
                self._after = {
                    key: head.info.last if head.info is not None else ZERO
                    for key, head in zip(self._keys, heads, strict=True)
                }
            else:
                self._after = dict.fromkeys(self._keys, first)
        self._hot = dict.fromkeys(self._keys)

    async def close(self) -> None:
        await self._waiter.close()

    def interrupt(self) -> None:
        self._waiter.interrupt()

    async def pull(self, limit: int) -> list[Event]:
        while True:
            if not self._hot:
                found = await self._waiter.until({key: self._after[key] for key in self._keys}, None)
                if not found:
                    return []
                self._hot = dict.fromkeys(found)
            wanted = list(self._hot)[:limit]
            room = limit // len(wanted)
            rows = await self._waiter.send([
                Call(("TREAD", key, str(self._after[key]), room), _as_it_is) for key in wanted
            ])  # fmt: skip
            events: list[Event] = []
            for key, some in zip(wanted, rows, strict=True):
                del self._hot[key]
                if len(some) >= room:
                    self._hot[key] = None  # behind the others
                events += self._events(key, some)
            if events:
                self._waiter.found()
                return events

    def _events(self, key: str, rows: list[list[bytes] | None]) -> list[Event]:
        events = []
        decode, prefix = self._codec.decode, self._prefixes[key]
        for row in rows:
            if row is None:
                self._context.count("missing")
                continue
            name = prefix + row[0].decode()
            flat = row[1:]
            try:
                events.append(Event(decode(flat), {"stream": key}, name))
            except ValueError as error:
                events.append(Event(flat, {"stream": key, "error": str(error)}, name, path="err"))
        if rows and (last := rows[-1]) is not None:
            self._after[key] = StreamId.parse(last[0])
        return events

    async def settled(self, tokens: Sequence[Token]) -> None:
        """Do nothing: no position is stored."""


def _as_it_is(reply: Any) -> Any:
    return reply
