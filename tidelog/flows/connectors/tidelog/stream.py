"""``stream``: streams of a tidelog server, as a source (``groupsource``, ``streamsource``) and as a sink
(``streamwriter``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import Token
from tidelog.flows.connectors.templates import Template, fixed_text
from tidelog.flows.connectors.tidelog.deadletters import topic_of
from tidelog.flows.connectors.tidelog.entrywaiter import EntryWaiter
from tidelog.flows.connectors.tidelog.fieldcodec import EntryCodec, FieldCodec
from tidelog.flows.connectors.tidelog.groupsource import GroupSource
from tidelog.flows.connectors.tidelog.streamsource import PlainSource, StreamSource
from tidelog.flows.connectors.tidelog.streamwriter import StreamRetention, StreamWriter
from tidelog.flows.serveraccess import access
from tidelog.options.start import EARLIEST, StartPosition
from tidelog.options.units import Duration
from tidelog.transport.access import Access


class StreamOptions(ConnectorOptions):
    """Options of ``stream``."""

    remedies: ClassVar[Mapping[str, str]] = {
        **ConnectorOptions.remedies,
        "topic": "fill the key from the event, such as key: 'city:{customer.city}'",
        "topic_meta": "fill the key from the metadata, such as key: '{meta.stream}'",
    }
    templates: ClassVar[tuple[str, ...]] = ("key",)

    key: str | list[str] = ""  # The stream. A source may read several. Sink: a [template](#templates).
    url: str | None = None  # The URL of the server. `null`: the flow's server.
    codec: FieldCodec = "plain"  # `plain`: a dict of fields. `json`, `msgpack`: the whole value is in the field `data`.
    group: str | None = None  # Source: the group. `null`: reads from `start`, and no position is stored.
    start: StartPosition = EARLIEST
    # Source: `earliest`, `latest`, an ID or a time. It applies to a new group, and without a group.
    retry: Duration = Duration(30.0)  # Source: after this time, the entries of a dead reader are redelivered.
    dead_letters: str | None = None  # Source: the dead-letter queue. `null`: `flow.NAME.dead`.
    evict: int | None = None  # Sink: how many of the newest entries are retained. `null`: all.
    evict_age: Duration | None = None  # Sink: entries older than this are evicted. `null`: never.
    concurrency: int = 4  # Sink: maximum number of batches in flight to the server.

    def __post_init__(self) -> None:
        super().__post_init__()
        keys = self.keys
        if not all(keys):
            raise ValueError("key is missing: name the stream")
        if len(set(keys)) != len(keys) or not keys:
            raise ValueError("key names a stream twice, or none")
        if self.group == "":
            raise ValueError("group is empty: omit it to read without a group")
        if self.retry < 0.1:
            raise ValueError(f"retry is {self.retry:g} s: it must be at least 100ms")
        if self.evict is not None and self.evict < 1:
            raise ValueError(f"evict is {self.evict}: it must be at least 1")
        if self.evict is not None and self.evict_age is not None:
            raise ValueError("evict and evict_age are exclusive: give one of them")
        if self.concurrency < 1:
            raise ValueError(f"concurrency is {self.concurrency}: it must be at least 1")
        if self.url is not None:
            access(self.url)

    @property
    def keys(self) -> list[str]:
        return [self.key] if isinstance(self.key, str) else self.key


class StreamConnector(Source, Sink):
    """Reads and writes streams of a tidelog server."""

    type = "stream"
    Options = StreamOptions

    @classmethod
    def option_server(cls, options: StreamOptions) -> bool:
        return options.url is None

    def __init__(self, options: StreamOptions) -> None:
        super().__init__()
        self._options = options
        self.owns_policy = options.group is not None
        self.concurrency = options.concurrency
        self._reader: StreamSource[Any] | None = None
        self._writer: StreamWriter | None = None

    def _where(self) -> Access:
        return access(self._options.url or self.context.server or "")

    async def connect(self) -> None:
        options, context = self._options, self.context
        name = f"tidelog-flow:{context.flow}:{context.name}"
        if context.source is not None:
            if self._reader is None:
                keys = [fixed_text(each) for each in options.keys]
                codec, waiter = EntryCodec(options.codec), EntryWaiter(self._where(), name, options.group)
                if options.group is not None:
                    self._reader = GroupSource(
                        keys, options.group, options.start, waiter, codec, context, retry=options.retry,
                        policy=options.on_error, letters=options.dead_letters or topic_of(context.flow),
                    )  # fmt: skip
                else:
                    self._reader = PlainSource(keys, options.start, waiter, codec, context)
            await self._reader.open()
        if context.sink is not None:
            if self._writer is None:
                evict = StreamRetention(options.evict, options.evict_age)
                key = Template(options.keys[0])
                self._writer = StreamWriter(self._where(), name, key, EntryCodec(options.codec), evict, context.sent)
            await self._writer.open()

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()
        if self._writer is not None:
            self._writer.close()

    async def pull(self, limit: int) -> list[Event] | None:
        if self._reader is None:
            raise ConnectionError("not connected")
        return await self._reader.pull(limit)

    def interrupt(self) -> None:
        if self._reader is not None:
            self._reader.interrupt()

    async def settled(self, tokens: Sequence[Token]) -> None:
        if self._reader is None:
            raise ConnectionError("not connected")
        await self._reader.settled(tokens)

    async def write(self, events: list[Event]) -> Sequence[Outcome] | None:
        if self._writer is None:
            raise ConnectionError("not connected")
        return await self._writer.write(events)
