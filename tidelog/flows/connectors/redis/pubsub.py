"""``redis_pubsub``: channels of any server with the protocol of Redis. Delivery is at most once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tidelog.flows.api.connector import Outcome
from tidelog.flows.api.event import Event
from tidelog.flows.connectors.namedmessages import by_name, named_messages
from tidelog.flows.connectors.payload import MessageReader, PayloadOptions, PayloadWriter
from tidelog.flows.connectors.redis.base import RedisConnector, check_url, checked_reply
from tidelog.flows.connectors.redis.subscriptions import Subscriptions
from tidelog.flows.connectors.templates import Template, fixed_text


class RedisPubSubOptions(PayloadOptions):
    """Options of ``redis_pubsub``."""

    templates: ClassVar[tuple[str, ...]] = ("channel",)

    url: str = "redis://localhost:6379"  # The URL of the server.
    channel: str | list[str] = []  # noqa: RUF012 - One or several channels. Sink: the first one, a [template](#templates).
    pattern: str | list[str] = []  # noqa: RUF012 - Source: patterns of channels, such as `orders.*`.

    def __post_init__(self) -> None:
        super().__post_init__()
        check_url(self.url)
        if not self.channel and not self.pattern:
            raise ValueError("channel is missing: set channel or pattern")


class RedisPubSub(RedisConnector):
    """Sets ``meta["channel"]`` to the channel of a message. A sink publishes to the first channel."""

    type = "redis_pubsub"
    Options = RedisPubSubOptions
    remembers = False

    def __init__(self, options: RedisPubSubOptions) -> None:
        super().__init__(options.url)
        self._options = options
        self._channels = _list(options.channel)
        self._channel = Template(self._channels[0] if self._channels else "")
        self._patterns = _list(options.pattern)
        self._subscriptions: Subscriptions | None = None
        self._reader = MessageReader(options)
        self._writer = PayloadWriter(options)
        self._left: list[Event] = []

    async def connect(self) -> None:
        await super().connect()
        if self.context.sink is not None and not self._channels:
            raise ConnectionError("a sink needs a channel, not a pattern")
        if self.context.source is not None:
            assert self._client is not None  # noqa: S101 - connected
            channels = list(map(fixed_text, self._channels))
            self._subscriptions = Subscriptions(self._client, channels, self._patterns)
            await checked_reply(self._subscriptions.open())

    async def close(self) -> None:
        await self._read.cancel()  # of the subscriptions
        subscriptions, self._subscriptions = self._subscriptions, None
        if subscriptions is not None:
            await subscriptions.close()
        await super().close()

    async def pull(self, limit: int) -> list[Event] | None:
        subscriptions = self._subscriptions
        if subscriptions is None:
            raise ConnectionError("not connected")
        if not self._left:
            for message in await self.blocking(lambda: subscriptions.next(limit)) or ():
                self._left += self._events(message)
        events, self._left = self._left[:limit], self._left[limit:]
        return events

    def _events(self, message: dict[str, Any]) -> list[Event]:
        if message["type"] not in ("message", "pmessage"):
            return []
        name = message["channel"].decode("utf-8", "replace")
        self.context.received(len(message["data"]))
        return self._reader.read(message["data"], {"channel": name})

    async def write(self, events: list[Event]) -> Sequence[Outcome] | None:
        pipe = self.server().pipeline(transaction=False)
        messages, outcomes = named_messages(self._writer, by_name(self._channel), events)
        for channel, _, message in messages:
            pipe.publish(channel, message)
            self.context.sent(len(message))
        return await self.sent(pipe, [indexes for _, indexes, _ in messages], outcomes)


def _list(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)
