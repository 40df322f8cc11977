"""``nats``: subjects of NATS, and streams of JetStream (the package nats-py).

With JetStream, a source reads a durable consumer. It acknowledges a message when all of its events are settled, and a
sink waits for the acknowledgement of the stream: at least once. Core NATS stores nothing: at most once.

Rule 1: A message in flight is acknowledged by its reply subject, also over a new connection.
Rule 2: The deadline of messages in flight is extended, so that the server does not send them again while a flow waits.
Rule 3: When the flow ends, unsettled messages are returned to the server, so that they need not wait for the deadline.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

from msgspec import field
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, SlowConsumerError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError, NotFoundError

from tidelog.flows.api.cancellation import cancel
from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import REJECT, RETRY, Token
from tidelog.flows.connectors.brokers import BrokerOptions
from tidelog.flows.connectors.destinations import header_template
from tidelog.flows.connectors.namedmessages import by_name, named_messages
from tidelog.flows.connectors.ongoingread import OngoingRead
from tidelog.flows.connectors.payload import MessageReader, PayloadWriter
from tidelog.flows.connectors.templates import Template, fixed_text
from tidelog.options.units import PositiveDuration

FETCH: Final = 5.0  # s for one request for messages
WINDOW: Final = 200  # messages that are sent to JetStream and not acknowledged
TOO_LARGE: Final = frozenset((10054, 10097))  # errors of JetStream: the message exceeds a limit of the stream
PENDING: Final = 64 << 20  # bytes of messages of core NATS that wait

_SUBJECT: Final = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_FILTER: Final = re.compile(r"((\*|[^\s.*>]+)\.)*(\*|>|[^\s.*>]+)")  # '>' is the last part


class NatsOptions(BrokerOptions, kw_only=True):
    """Options of ``nats``."""

    templates: ClassVar[tuple[str, ...]] = ("subject", "headers")
    schemes: ClassVar[Mapping[str, tuple[bool, int]]] = {"nats": (False, 4222), "tls": (True, 4222)}

    url: str = "nats://localhost:4222"  # The URLs of servers, separated by commas. `tls://HOST`: with TLS.
    subject: str = ""
    # The subject. Required. Source: with wildcards, such as `orders.*`. Sink: a [template](#templates).
    jetstream: bool = False  # Use JetStream: delivery at least once.
    durable: str | None = None  # Source: the name of the consumer. Required with `jetstream`.
    stream: str | None = None  # Source: the stream. `null`: the one that has the subject.
    start: Literal["earliest", "latest"] = "earliest"  # Source: where a new consumer begins, with `jetstream`.
    ack_wait: PositiveDuration = PositiveDuration(30.0)
    # Source: time after which the server sends messages of a process that was killed again, with `jetstream`.
    queue: str = ""  # Source: the queue group whose members share the messages, without `jetstream`.
    headers: dict[str, str] = field(default_factory=dict)  # Sink: headers; the values are [templates](#templates).
    credentials: str | None = None  # The path of a file with credentials (`.creds`).

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.subject:
            raise ValueError("subject is missing")
        if len({each.tls for each in self.addresses}) > 1:
            raise ValueError("url: all URLs must have the same scheme")
        if self.queue and self.jetstream:
            raise ValueError("queue: sources with the same durable consumer share its messages; remove queue")
        if not self.jetstream and (self.durable is not None or self.stream is not None):
            raise ValueError("jetstream is missing: durable and stream need jetstream: true")
        if self.ack_wait < 1:
            raise ValueError(f"ack_wait is {self.ack_wait:g} s: it must be at least 1s")


class NatsConnector(Source, Sink):
    """Sets ``subject`` and ``headers`` in meta; with JetStream also ``stream``, ``sequence`` and ``delivered``."""

    type = "nats"
    Options = NatsOptions

    @classmethod
    def option_errors(cls, options: NatsOptions, *, source: bool) -> list[str]:
        found = super().option_errors(options, source=source)
        if source and options.jetstream and not options.durable:
            found.append("durable is missing: a source with jetstream needs the name of its consumer")
        fixed = Template(options.subject).fixed
        if fixed is not None and source and not _FILTER.fullmatch(fixed):
            found.append(f"subject: {fixed!r}: it has a space, an empty part, or a '*' or '>' that is not a whole part")
        elif fixed is not None and not source and not _SUBJECT.fullmatch(fixed):
            found.append(f"subject: {fixed!r}: a sink's subject has no wildcard, space, or empty part")
        return found

    def __init__(self, options: NatsOptions) -> None:
        super().__init__()
        self._options = options
        self._connection: Any = None
        self._problems: list[str] = []  # permissions that the server denied since the last write
        # source
        self._subscription: Any = None
        self._held: dict[str, int] = {}  # by reply subject: events of the message that are not settled
        self._number = 0  # of a message of core NATS
        self._left: deque[Event] = deque()
        self._reader = MessageReader(options)
        self._read: OngoingRead[list[Msg]] = OngoingRead(self.wait)
        self._extending: asyncio.Task[None] | None = None
        # sink
        self._subject = by_name(Template(options.subject))
        self._headers = {name: header_template(each) for name, each in options.headers.items()}
        self._writer = PayloadWriter(options)

    async def connect(self) -> None:
        options, (first, *_) = self._options, self._options.addresses
        scheme = "tls" if first.tls else "nats"
        timeout = float(options.request_timeout)
        self._problems.clear()
        given: dict[str, Any] = {
            "servers": [f"{scheme}://{each.host}:{each.port}" for each in options.addresses],
            "name": f"tidelog {self.context.flow}.{self.context.name}", "allow_reconnect": False,
            "connect_timeout": timeout, "ping_interval": timeout, "max_outstanding_pings": 2,
            "error_cb": self._error, "closed_cb": self._closed, "user": first.username, "password": first.password,
        }  # fmt: skip
        if first.tls:
            given["tls"] = await asyncio.to_thread(options.tls_context)
        if options.credentials is not None:
            given["user_credentials"] = options.credentials
        self._connection = Client()
        try:
            async with asyncio.timeout(timeout):
                await self._connection.connect(**given)
                if self.context.source is not None:
                    await self._subscribe()
        except NotFoundError as error:
            raise ConnectionError(f"no stream has the subject {options.subject}, or there is no such stream") from error
        except (NatsError, APIError, ValueError) as error:
            raise ConnectionError(_text(error)) from error
        except TimeoutError:
            raise ConnectionError(f"no reply within {timeout:g} s") from None

    async def _subscribe(self) -> None:
        options, connection = self._options, self._connection
        subject = fixed_text(options.subject)
        if not options.jetstream:
            self._subscription = await connection.subscribe(
                subject, options.queue, pending_msgs_limit=options.max_unsettled, pending_bytes_limit=PENDING
            )
            await connection.flush(float(options.request_timeout))
            if self._problems:
                raise ConnectionError(_text(self._problems[0]))
            return
        config = ConsumerConfig(
            ack_wait=float(options.ack_wait), max_ack_pending=options.max_unsettled,
            deliver_policy=DeliverPolicy.ALL if options.start == "earliest" else DeliverPolicy.NEW,
        )  # fmt: skip
        self._subscription = await connection.jetstream().pull_subscribe(
            subject, durable=options.durable, stream=options.stream, config=config
        )
        self._extending = asyncio.get_running_loop().create_task(self._extend())

    async def _error(self, error: Exception) -> None:
        """Count dropped messages, and store the permissions that the server denies."""
        if isinstance(error, SlowConsumerError):
            self.context.count("dropped")
        elif "permissions violation" in str(error).lower():
            self._problems.append(str(error))
            if self.context.source is not None and "for subscription" in str(error).lower():
                self.context.disconnected(ConnectionError(_text(error)))  # the client can report it after the flush

    async def _closed(self) -> None:
        if self._connection is not None:  # not closed by this connector
            self.context.disconnected(ConnectionError("the server has closed the connection"))

    async def close(self) -> None:
        extending, self._extending = self._extending, None
        await cancel(extending)
        await self._read.cancel()
        connection, self._connection = self._connection, None
        subscription, self._subscription = self._subscription, None
        if connection is None:
            return
        if self.context.ended and self._held and not connection.is_closed:  # Rule 3
            await subscription.unsubscribe()  # the server would send them to the last request of this process
            for reply in self._held:
                await connection.publish(reply, b"-NAK")
            self._held.clear()
        await connection.close()
        transport = getattr(connection, "_transport", None)
        if transport is not None:
            transport.close()  # nats-py leaves it open if connecting fails

    # -- reading ---------------------------------------------------------------------------------------------
    @property
    def backlog(self) -> int:
        if self._options.jetstream or self._subscription is None:
            return 0
        return int(self._subscription.pending_msgs) + len(self._left)

    async def pull(self, limit: int) -> list[Event] | None:
        if self._connection is None or self._connection.is_closed:
            raise ConnectionError("not connected")
        if not self._left:
            receive = self._fetched if self._options.jetstream else self._received
            for message in await self._read.result(lambda: receive(limit)) or ():
                self._left += self._events(message)
            if self._options.jetstream:
                await self._acknowledge()
        return [self._left.popleft() for _ in range(min(limit, len(self._left)))]

    async def _fetched(self, limit: int) -> list[Msg]:
        try:
            found: list[Msg] = await self._subscription.fetch(limit, timeout=FETCH)
        except (NatsTimeoutError, TimeoutError):
            return []
        except (NatsError, APIError) as error:
            raise ConnectionError(_text(error)) from error
        return found

    async def _received(self, limit: int) -> list[Msg]:
        subscription = self._subscription
        try:
            found = [await subscription.next_msg(timeout=FETCH)]
            while len(found) < limit and subscription.pending_msgs:
                found.append(await subscription.next_msg(timeout=FETCH))
        except (NatsTimeoutError, TimeoutError):
            return []
        except NatsError as error:
            raise ConnectionError(_text(error)) from error
        return found

    def _events(self, message: Msg) -> list[Event]:
        about: dict[str, Any] = {"subject": message.subject}
        if message.headers:
            about["headers"] = dict(message.headers)
        if self._options.jetstream:
            known = message.metadata
            about |= {"stream": known.stream, "sequence": known.sequence.stream, "delivered": known.num_delivered}
            name = message.reply
        else:
            self._number += 1
            name = str(self._number)
        self.context.received(len(message.data))
        events = self._reader.read(message.data, about)
        for event in events:
            event.id = name
        if self._options.jetstream:
            self._held[name] = len(events)
        return events

    async def settled(self, tokens: Sequence[Token]) -> None:
        if not self._options.jetstream:
            return
        for name, count in Counter(token.key for token in tokens).items():
            if name in self._held:
                self._held[name] -= count
        await self._acknowledge()

    async def _acknowledge(self) -> None:
        """Implement Rule 1. Without a connection, this happens after the next one is open."""
        for name in [each for each, missing in self._held.items() if missing <= 0]:
            await self._reply(name, b"+ACK")
            self._held.pop(name, None)  # a concurrent call may have acknowledged it as well

    async def _reply(self, name: str, text: bytes) -> None:
        if self._connection is None or self._connection.is_closed:
            raise ConnectionError("not connected")
        try:
            await self._connection.publish(name, text)
        except NatsError as error:
            raise ConnectionError(_text(error)) from error

    async def _extend(self) -> None:
        """Implement Rule 2."""
        while True:
            await asyncio.sleep(self._options.ack_wait / 3)
            for name in list(self._held):
                try:
                    await self._reply(name, b"+WPI")
                except ConnectionError:
                    return  # the source gets the error too

    # -- writing ---------------------------------------------------------------------------------------------
    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        if self._connection is None or self._connection.is_closed:
            raise ConnectionError("not connected")
        messages, outcomes = named_messages(self._writer, self._destination, events)
        self.context.sent(sum(len(message) for _, _, message in messages))
        self._problems.clear()
        publish = self._publish_stored if self._options.jetstream else self._publish
        slots = asyncio.Semaphore(WINDOW)
        results = await asyncio.gather(
            *(_limited(slots, publish(name, message)) for name, _, message in messages), return_exceptions=True
        )
        if not self._options.jetstream:
            await self._confirm()
        for ((subject, _), indexes, _), result in zip(messages, results, strict=True):
            reason = result or next((each for each in self._problems if f'"{subject}"' in each), "")
            for at in indexes if reason else ():
                permanent = isinstance(result, (RejectError, MaxPayloadError)) or _too_large(result)
                outcomes[at] = (REJECT, _text(reason)) if permanent else (RETRY, _text(reason))
        return outcomes

    def _destination(self, event: Event) -> tuple[str, tuple[str, ...]]:
        """Return the subject and the values of the headers. Raises RejectError if the subject is not valid."""
        subject = self._subject(event)
        if not _SUBJECT.fullmatch(subject):
            raise RejectError(f"{subject!r:.200} is not a subject: it has a wildcard, a space, or an empty part")
        return subject, tuple(each.fill(event) for each in self._headers.values())

    async def _publish(self, name: tuple[str, tuple[str, ...]], message: bytes) -> None:
        await self._connection.publish(name[0], message, headers=self._headers_of(name))

    async def _publish_stored(self, name: tuple[str, tuple[str, ...]], message: bytes) -> None:
        timeout = float(self._options.request_timeout)
        stream = self._connection.jetstream(timeout=timeout)
        await stream.publish(name[0], message, timeout=timeout, headers=self._headers_of(name))

    def _headers_of(self, name: tuple[str, tuple[str, ...]]) -> dict[str, str] | None:
        return dict(zip(self._headers, name[1], strict=True)) if self._headers else None

    async def _confirm(self) -> None:
        """Wait until the server has processed all messages."""
        try:
            await self._connection.flush(float(self._options.request_timeout))
        except (NatsError, TimeoutError) as error:
            raise ConnectionError(f"no reply within {self._options.request_timeout:g} s") from error


async def _limited(slots: asyncio.Semaphore, work: Coroutine[Any, Any, None]) -> None:
    async with slots:
        await work


def _too_large(error: object) -> bool:
    return isinstance(error, APIError) and error.err_code in TOO_LARGE


def _text(error: object) -> str:
    text = str(error).removeprefix("nats: ")
    return text[:500] or type(error).__name__
