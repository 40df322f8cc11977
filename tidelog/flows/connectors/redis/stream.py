"""``redis_stream``: reads with a consumer group (XREADGROUP), and acknowledges settled entries: at least once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any, ClassVar

import redis

from tidelog.client import tracecontext
from tidelog.flows.api.connector import Outcome
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import OK, REJECT, Token
from tidelog.flows.connectors.redis.base import BLOCK_MS, LOST, RedisConnector, check_url, checked_reply
from tidelog.flows.connectors.templates import Template, filled_name, fixed_text
from tidelog.flows.connectors.tidelog.fieldcodec import EntryCodec, FieldCodec, entry_size, with_context
from tidelog.options.limits import AtLeastOne
from tidelog.options.start import EARLIEST, StartPosition
from tidelog.options.units import Duration


class RedisStreamOptions(ConnectorOptions):
    """Options of ``redis_stream``."""

    templates: ClassVar[tuple[str, ...]] = ("key",)

    url: str = "redis://localhost:6379"  # The URL of the server.
    key: str = ""  # The key of the stream. Required. Sink: a [template](#templates).
    codec: FieldCodec = "plain"  # The encoding of values in fields, as for `stream`.
    group: str = ""  # Source: the consumer group. Required.
    consumer: str | None = None  # Source: the name in the group, which must be unique. `null`: `INSTANCE.NAME@HOST`.
    start: StartPosition = EARLIEST  # Source: where a new group begins: `earliest`, `latest`, an ID or a time.
    claim: Duration = Duration(30.0)  # Source: idle time after which the entries of a dead consumer are claimed.
    max_length: AtLeastOne | None = None
    # Sink: approximate number of the newest entries that are retained. `null`: all.

    def __post_init__(self) -> None:
        super().__post_init__()
        check_url(self.url)
        if not self.key:
            raise ValueError("key is missing")
        if self.claim < 0.1:
            raise ValueError(f"claim is {self.claim:g} s: it must be at least 100ms")


class RedisStream(RedisConnector):
    """Sets ``event.id`` to the ID of the entry, and ``meta["stream"]`` to its key."""

    type = "redis_stream"
    Options = RedisStreamOptions

    def __init__(self, options: RedisStreamOptions) -> None:
        super().__init__(options.url)
        self._options = options
        self._key = options.key  # of the stream that is read, after connecting
        self._template = Template(options.key)
        self._codec = EntryCodec(options.codec)
        self._held: set[bytes] = set()  # IDs in flight
        self._claim_at = 0.0  # loop time of the next claim
        self._mine = True  # entries that this consumer had pending before are to be read

    @property
    def _consumer(self) -> str:
        return self._options.consumer or f"{self.context.flow}.{self.context.name}@{socket.gethostname()}"

    async def connect(self) -> None:
        if self.context.source is not None and not self._options.group:
            raise ConnectionError("group is missing: a source needs one")
        await super().connect()
        if self.context.source is None:
            return
        self._key = fixed_text(self._options.key)
        after = self._options.start.after
        begin = "$" if after is None else f"{after.ms}-{after.seq}"
        try:
            await self.server().xgroup_create(self._key, self._options.group, begin, mkstream=True)
        except LOST as error:
            raise ConnectionError(str(error)) from error
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise ConnectionError(f"the server refuses: {error}") from error
        self._mine = True
        self._claim_at = 0.0

    async def pull(self, limit: int) -> list[Event] | None:
        options, loop = self._options, asyncio.get_running_loop()
        if self._mine:  # the reply also contains the entries in flight
            most = limit + len(self._held)
            rows = _rows(await checked_reply(self._group_read("0", most)))
            self._mine = len(rows) >= most  # there may be more
        elif loop.time() >= self._claim_at:
            self._claim_at = loop.time() + options.claim / 3
            rows = await self._claimed(limit)
        else:
            block = max(1, min(BLOCK_MS, int((self._claim_at - loop.time()) * 1000)))
            rows = _rows(await self.blocking(lambda: self._group_read(">", limit, block)))
        return [event for at, fields in rows if (event := self._event(at, fields)) is not None]

    def _group_read(self, start: str, limit: int, block: int | None = None) -> Any:
        streams = {self._key: start}
        return self.server().xreadgroup(self._options.group, self._consumer, streams, limit, block)

    async def _claimed(self, limit: int) -> list[tuple[bytes, Any]]:
        """Claim the entries of dead consumers, after resetting the idle time of the entries in flight here."""
        options, server = self._options, self.server()
        if self._held:
            held = list(self._held)
            await checked_reply(server.xclaim(self._key, options.group, self._consumer, 0, held, justid=True))
        reply = await checked_reply(
            server.xautoclaim(self._key, options.group, self._consumer, int(options.claim * 1000), count=limit)
        )
        found: list[tuple[bytes, Any]] = reply[1]
        return found

    def _event(self, at: bytes, fields: dict[bytes, bytes] | None) -> Event | None:
        if at in self._held:
            return None
        about = {"stream": self._key}
        name = at.decode()
        if not fields:
            self.context.count("missing")  # it was trimmed while it was pending
            self._held.add(at)
            return Event({}, {**about, "error": "the entry was trimmed"}, name, path="err")
        self._held.add(at)
        flat = [word for pair in fields.items() for word in pair]
        self.context.received(sum(map(len, flat)))
        try:
            own, context = tracecontext.split(flat)
            return Event(self._codec.decode(own), about | context, name)
        except ValueError as error:
            return Event(flat, {**about, "error": str(error)}, name, path="err")

    async def settled(self, tokens: Sequence[Token]) -> None:
        ids = [token.key.encode() for token in tokens]
        await checked_reply(self.server().xack(self._key, self._options.group, *ids))
        self._held.difference_update(ids)

    async def write(self, events: list[Event]) -> Sequence[Outcome] | None:
        pipe = self.server().pipeline(transaction=False)
        outcomes: list[Outcome] = [OK] * len(events)
        indexes = []
        context = tracecontext.current()
        for at, event in enumerate(events):
            try:
                key = filled_name(self._template, event)
                names, values = with_context(self._codec.encode(event.value), event.meta, context)
            except RejectError as error:
                outcomes[at] = (REJECT, str(error))
                continue
            pipe.xadd(key, dict(zip(names, values, strict=True)), maxlen=self._options.max_length)
            self.context.sent(entry_size(names, values))
            indexes.append([at])
        return await self.sent(pipe, indexes, outcomes)


def _rows(reply: Any) -> list[tuple[bytes, Any]]:
    """Return the rows of one stream from the reply of XREADGROUP in RESP2 or RESP3."""
    if not reply:
        return []
    if isinstance(reply, dict):
        rows = next(iter(reply.values()))
        while rows and isinstance(rows[0], list) and rows[0] and isinstance(rows[0][0], (tuple, list)):
            rows = rows[0]
        return list(rows)
    return list(reply[0][1])
