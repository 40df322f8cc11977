"""``amqp``: queues and exchanges of AMQP 0.9.1, such as RabbitMQ (the package aio-pika).

A source acknowledges a message when all of its events are settled, and a sink waits for the broker's confirmation of
each message: at least once.

Rule 1: The broker sends at most ``prefetch`` messages that are not acknowledged, so the buffer is bounded.
Rule 2: A message can only be acknowledged on the channel that delivered it. After a lost connection, the broker
        delivers unsettled messages again, and their earlier tokens are ignored.
Rule 3: A message that no queue gets is not delivered. The broker returns it, and its events are retried.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

import aio_pika
import msgspec
from aio_pika.abc import AbstractIncomingMessage, DeliveryMode
from aio_pika.exceptions import AMQPException, DeliveryError
from aiormq.abc import DeliveredMessage
from msgspec import field

from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import RETRY, Token
from tidelog.flows.connectors.brokers import BrokerOptions
from tidelog.flows.connectors.destinations import header_template
from tidelog.flows.connectors.http.options import content_type
from tidelog.flows.connectors.namedmessages import by_name, named_messages
from tidelog.flows.connectors.payload import MessageReader, PayloadWriter
from tidelog.flows.connectors.templates import Template

LONGEST: Final = 255  # bytes of a routing key
WINDOW: Final = 200  # messages that are sent and not confirmed
FAILED: Final = (AMQPException, OSError, RuntimeError, TimeoutError)  # of a connection or a channel


class AmqpOptions(BrokerOptions, kw_only=True):
    """Options of ``amqp``."""

    templates: ClassVar[tuple[str, ...]] = ("routing_key", "headers")
    schemes: ClassVar[Mapping[str, tuple[bool, int]]] = {"amqp": (False, 5672), "amqps": (True, 5671)}

    url: str = "amqp://localhost:5672"  # The URL of the broker: `amqp://HOST/VHOST`, or `amqps://` with TLS.
    queue: str = ""  # Source: the queue. Required.
    declare: bool = False  # Source: create a durable queue if it does not exist.
    prefetch: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 1000
    # Source: maximum number of messages that the broker sends before they are acknowledged.
    exchange: str = ""  # Sink: the exchange. `""`: the default one, whose routing keys are names of queues.
    routing_key: str = ""  # Sink: a [template](#templates). Required, unless there is an exchange.
    persistent: bool = True  # Sink: a durable queue stores the messages on disk.
    headers: dict[str, str] = field(default_factory=dict)  # Sink: headers; the values are [templates](#templates).

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.addresses) > 1:
            raise ValueError("url: give one broker")


class AmqpConnector(Source, Sink):
    """Sets ``exchange``, ``routing_key``, ``redelivered``, ``headers`` and ``message_id`` in meta."""

    type = "amqp"
    Options = AmqpOptions

    @classmethod
    def option_errors(cls, options: AmqpOptions, *, source: bool) -> list[str]:
        found = super().option_errors(options, source=source)
        if source and not options.queue:
            found.append("queue is missing")
        if not source and not (options.routing_key or options.exchange):
            found.append("routing_key is missing: it is the name of the queue, unless there is an exchange")
        return found

    def __init__(self, options: AmqpOptions) -> None:
        super().__init__()
        self._options = options
        self._connection: aio_pika.abc.AbstractConnection | None = None
        # source
        self._arrived: deque[AbstractIncomingMessage] = deque()
        self._news = asyncio.Event()
        self._left: deque[Event] = deque()
        self._session = 0  # number of the connection
        self._open: dict[tuple[int, int], tuple[AbstractIncomingMessage, int]] = {}
        # by (session, number): the message, and its events that are not settled
        self._number = 0
        self._lost: Exception | None = None
        self._reader = MessageReader(options)
        # sink
        self._exchange: aio_pika.abc.AbstractExchange | None = None
        self._key = by_name(Template(options.routing_key))
        self._headers = {name: header_template(each) for name, each in options.headers.items()}
        self._writer = PayloadWriter(options)
        self._content_type = content_type(options.codec)

    async def connect(self) -> None:
        options, timeout = self._options, float(self._options.request_timeout)
        (address,) = options.addresses
        self._lost = None
        self._session += 1
        try:
            async with asyncio.timeout(timeout):
                tls = await asyncio.to_thread(options.tls_context)
                self._connection = await aio_pika.connect(
                    host=address.host, port=address.port, login=address.username or "guest",
                    password=address.password or "guest", virtualhost=address.path or "/", ssl=address.tls,
                    ssl_context=tls, timeout=timeout, heartbeat=max(1, round(timeout)),
                    client_properties={"connection_name": f"tidelog {self.context.flow}.{self.context.name}"},
                )  # fmt: skip
                self._connection.close_callbacks.add(self._watch())
                if self.context.source is not None:
                    await self._consume(self._connection)
                if self.context.sink is not None:
                    await self._open_exchange(self._connection)
        except FAILED as error:
            raise self._error(error) from None

    async def _consume(self, connection: aio_pika.abc.AbstractConnection) -> None:
        options, session = self._options, self._session

        async def arrived(message: AbstractIncomingMessage) -> None:
            if session == self._session:
                self._arrived.append(message)
                self._news.set()

        channel = await connection.channel(publisher_confirms=False)
        channel.close_callbacks.add(self._watch())
        await channel.set_qos(prefetch_count=options.prefetch)
        if options.declare:
            queue = await channel.declare_queue(options.queue, durable=True)
        else:
            queue = await channel.get_queue(options.queue, ensure=True)
        underlay = await channel.get_underlay_channel()
        cancelled = ConnectionError(f"the broker has cancelled the consumer: was {options.queue} deleted?")
        watch = self._watch()
        underlay.on_consumer_cancel_callbacks.add(lambda _: watch(None, cancelled))
        await queue.consume(arrived)

    async def _open_exchange(self, connection: aio_pika.abc.AbstractConnection) -> None:
        channel = await connection.channel(publisher_confirms=True)
        channel.close_callbacks.add(self._watch())
        name = self._options.exchange
        self._exchange = await channel.get_exchange(name, ensure=True) if name else channel.default_exchange

    def _watch(self) -> Callable[[Any, BaseException | None], None]:
        """Return a function that reports the end of the current connection, and does nothing after it was closed."""
        session = self._session

        def ended(_: Any, error: BaseException | None) -> None:
            if session == self._session:
                self._disconnect(error or ConnectionError("the broker has closed the connection"))

        return ended

    def _disconnect(self, error: BaseException) -> None:
        if self._connection is not None and self._lost is None:
            self._lost = self._error(error)
            self._news.set()
            self.context.disconnected(self._lost)

    def _error(self, error: BaseException) -> ConnectionError:
        if isinstance(error, TimeoutError) and not str(error):
            return ConnectionError(f"no reply within {self._options.request_timeout:g} s")
        text = " ".join(str(error).split())[:500] or type(error).__name__
        password = self._options.addresses[0].password
        return ConnectionError(text.replace(password, "***") if password else text)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        self._exchange = None
        self._session += 1
        self._arrived.clear()
        self._left.clear()
        self._open.clear()
        if connection is None:
            return
        try:
            async with asyncio.timeout(float(self._options.request_timeout)):
                await connection.close()
        except FAILED:
            pass  # it is lost

    # -- reading ---------------------------------------------------------------------------------------------
    async def pull(self, limit: int) -> list[Event] | None:
        if self._connection is None:
            raise ConnectionError("not connected")
        while not self._left and not self._arrived:
            if self._lost is not None:
                raise self._lost
            self._news.clear()
            if not await self.wait(self._news.wait()):
                return []
        while self._arrived and len(self._left) < limit:
            message = self._arrived.popleft()
            events = self._events(message)
            self._left += events
            if not events:
                await self._ack([message])
        return [self._left.popleft() for _ in range(min(limit, len(self._left)))]

    def _events(self, message: AbstractIncomingMessage) -> list[Event]:
        about: dict[str, Any] = {
            "exchange": message.exchange or "", "routing_key": message.routing_key or "",
            "redelivered": bool(message.redelivered),
        }  # fmt: skip
        if message.headers:
            about["headers"] = {name: _plain(each) for name, each in message.headers.items()}
        for name in ("message_id", "correlation_id", "content_type", "type"):
            if (value := getattr(message, name)) is not None:
                about[name] = value
        self.context.received(len(message.body))
        events = self._reader.read(message.body, about)
        self._number += 1
        key = (self._session, self._number)
        for event in events:
            event.id = key
        if events:
            self._open[key] = message, len(events)
        return events

    async def settled(self, tokens: Sequence[Token]) -> None:
        done: list[tuple[int, int]] = []
        for key, count in Counter(token.key for token in tokens).items():
            if key in self._open:  # Rule 2
                message, missing = self._open[key]
                self._open[key] = message, missing - count
                if missing <= count:
                    done.append(key)
        await self._ack([self._open[key][0] for key in done])
        for key in done:
            self._open.pop(key, None)

    async def _ack(self, messages: Sequence[AbstractIncomingMessage]) -> None:
        try:
            for each in messages:
                if not each.processed:
                    await each.ack()
        except FAILED as error:
            raise self._error(error) from None

    # -- writing ---------------------------------------------------------------------------------------------
    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        if self._connection is None or self._exchange is None:
            raise ConnectionError("not connected")
        messages, outcomes = named_messages(self._writer, self._destination, events)
        self.context.sent(sum(len(message) for _, _, message in messages))
        slots = asyncio.Semaphore(WINDOW)
        results = await asyncio.gather(
            *(_limited(slots, self._publish(self._exchange, name, message)) for name, _, message in messages),
            return_exceptions=True,
        )
        for (_, indexes, _), result in zip(messages, results, strict=True):
            if isinstance(result, BaseException):
                raise result if isinstance(result, ConnectionError) else self._error(result)
            for at in indexes if result else ():
                outcomes[at] = (RETRY, result)
        return outcomes

    def _destination(self, event: Event) -> tuple[str, tuple[str, ...]]:
        """Return the routing key and the values of the headers. Raises RejectError if the key is too long."""
        key = self._key(event) if self._options.routing_key else ""
        if len(key.encode()) > LONGEST:
            raise RejectError(f"routing_key: {key[:50]!r}... has more than {LONGEST} bytes")
        return key, tuple(each.fill(event) for each in self._headers.values())

    async def _publish(
        self, exchange: aio_pika.abc.AbstractExchange, name: tuple[str, tuple[str, ...]], body: bytes
    ) -> str:
        """Publish a message. Return "", or the reason why the broker has not accepted it."""
        message = aio_pika.Message(
            body, headers=dict(zip(self._headers, name[1], strict=True)), content_type=self._content_type,
            delivery_mode=DeliveryMode.PERSISTENT if self._options.persistent else DeliveryMode.NOT_PERSISTENT,
        )  # fmt: skip
        try:
            answer = await exchange.publish(message, name[0], timeout=float(self._options.request_timeout))
        except DeliveryError:
            return "the broker has refused the message"
        except FAILED as error:
            raise self._error(error) from None
        if isinstance(answer, DeliveredMessage):
            where = f"the exchange {self._options.exchange}" if self._options.exchange else "the default exchange"
            return f"no queue gets messages of {where} with the routing key {name[0]!r}"
        return ""


async def _limited(slots: asyncio.Semaphore, work: Coroutine[Any, Any, str]) -> str:
    async with slots:
        return await work


def _plain(value: Any) -> Any:
    """Return the value of a header as a value that codecs can encode."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else str(value)
