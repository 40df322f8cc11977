"""``redis_list``: lists of any server with the protocol of Redis.

Each element is moved to a processing list (BLMOVE) until it is settled: at least once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from tidelog.flows.api.connector import Outcome
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import Token
from tidelog.flows.connectors.namedmessages import by_name, named_messages
from tidelog.flows.connectors.payload import MessageReader, PayloadOptions, PayloadWriter
from tidelog.flows.connectors.redis.base import BLOCK_MS, RedisConnector, check_url, checked_reply
from tidelog.flows.connectors.redis.processinglist import ProcessingList
from tidelog.flows.connectors.templates import Template, fixed_text
from tidelog.options.limits import AtLeastOne


class RedisListOptions(PayloadOptions):
    """Options of ``redis_list``."""

    templates: ClassVar[tuple[str, ...]] = ("key",)

    url: str = "redis://localhost:6379"  # The URL of the server.
    key: str = ""  # The key of the list. Required. Sink: a [template](#templates).
    processing: str | None = None
    # Source: the key of the list of elements in flight. `null`: `KEY:processing:INSTANCE.NAME`.
    max_length: AtLeastOne | None = None  # Sink: number of the newest elements that are retained. `null`: all.

    def __post_init__(self) -> None:
        super().__post_init__()
        check_url(self.url)
        if not self.key:
            raise ValueError("key is missing")
        if self.processing == self.key:
            raise ValueError("processing must be another list than key")


class RedisList(RedisConnector):
    """Reads elements from the left end of the list, and appends them at the right end."""

    type = "redis_list"
    Options = RedisListOptions

    def __init__(self, options: RedisListOptions) -> None:
        super().__init__(options.url)
        self._options = options
        self._key = options.key  # of the list that is read, after connecting
        self._template = Template(options.key)
        self._held: dict[int, bytes] = {}  # elements in flight, by number
        self._open: dict[int, int] = {}  # unsettled events of each element
        self._gone: Counter[bytes] = Counter()  # elements in flight that a command without a reply has removed
        self._number = 0
        self._reader = MessageReader(options)
        self._writer = PayloadWriter(options)
        self._others: ProcessingList | None = None

    @property
    def _processing(self) -> str:
        given = self._options.processing
        return given or f"{self._key}:processing:{self.context.flow}.{self.context.name}"

    async def connect(self) -> None:
        await super().connect()
        if self.context.source is not None:
            self._key = fixed_text(self._options.key)
            await self._recover()
            if self._options.processing is None:
                self._others = ProcessingList(self._key, self._processing, self.context)
                await checked_reply(self._others.begin(self.server()))

    async def close(self) -> None:
        others, self._others = self._others, None
        if others is not None and self._client is not None:
            await others.end(self.server())
        await super().close()

    async def _recover(self) -> None:
        """Move elements back that an earlier process had in flight, or that a command without a reply has read."""
        server = self.server()
        raws: list[bytes] = await checked_reply(server.lrange(self._processing, 0, -1))
        held = Counter(self._held.values())
        self._gone = held - Counter(raws)
        left = []
        for raw in raws:
            if held[raw] > 0:
                held[raw] -= 1
            else:
                left.append(raw)
        if not left:
            return
        pipe = server.pipeline(transaction=True)
        for raw in reversed(left):  # the newest first, so that the oldest is at the head
            pipe.lrem(self._processing, -1, raw)
            pipe.lpush(self._key, raw)
        await checked_reply(pipe.execute())
        self.context.count("recovered", len(left))

    async def pull(self, limit: int) -> list[Event] | None:
        server, key, to = self.server(), self._key, self._processing
        first = await self.blocking(lambda: server.blmove(key, to, BLOCK_MS / 1000, "LEFT", "RIGHT"))
        if first is None:
            return []
        raws = [first]
        if limit > 1 and (waiting := min(limit - 1, int(await checked_reply(server.llen(key))))):
            pipe = server.pipeline(transaction=False)
            for _ in range(waiting):
                pipe.lmove(key, to, "LEFT", "RIGHT")
            raws += [raw for raw in await checked_reply(pipe.execute()) if raw is not None]
        return [event for raw in raws for event in self._events(raw)]

    def _events(self, raw: bytes) -> list[Event]:
        number = self._number
        self._number += 1
        self._held[number] = raw
        about = {"key": self._key}
        self.context.received(len(raw))
        events = self._reader.read(raw, about)
        if not events:
            events = [Event(raw, {**about, "error": "there is no message in it"}, path="err")]
        self._open[number] = len(events)
        for part, event in enumerate(events):
            event.id = number if not part else f"{number}.{part}"
        return events

    async def settled(self, tokens: Sequence[Token]) -> None:
        left: Counter[int] = Counter(int(str(token.key).partition(".")[0]) for token in tokens)
        done = [number for number, count in left.items() if self._open.get(number, 0) <= count and number in self._held]
        if done:
            pipe = self.server().pipeline(transaction=False)
            gone = self._gone.copy()
            for number in done:
                raw = self._held[number]
                if gone[raw] > 0:
                    gone[raw] -= 1
                else:
                    pipe.lrem(self._processing, 1, raw)
            await checked_reply(pipe.execute())
            self._gone = +gone
        for number, count in left.items():
            self._open[number] = self._open.get(number, 0) - count
        for number in done:
            del self._held[number], self._open[number]

    async def write(self, events: list[Event]) -> Sequence[Outcome] | None:
        pipe = self.server().pipeline(transaction=False)
        messages, outcomes = named_messages(self._writer, by_name(self._template), events)
        for key, _, message in messages:
            pipe.rpush(key, message)
            self.context.sent(len(message))
        if self._options.max_length is not None:
            for key in dict.fromkeys(key for key, _, _ in messages):
                pipe.ltrim(key, -self._options.max_length, -1)
        return await self.sent(pipe, [indexes for _, indexes, _ in messages], outcomes)
