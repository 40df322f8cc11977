"""``mqtt``: topics of a broker with MQTT 5.0 or 3.1.1 (the package aiomqtt).

A source has a session on the broker. It acknowledges a message when all of its events are settled, so the broker sends
unsettled messages again after a restart: at least once.

Rule 1: Messages are acknowledged in the order of their arrival (MQTT 4.6).
Rule 2: The sink has a connection and a session of its own, which ends with the connection. In a session that continues,
        a broker would take a new message with QoS 2 for a repeated one, because message IDs start again at 1.
Rule 3: With QoS 2, the broker gives up a message before its events are settled. A source therefore has QoS 0 or 1.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

import aiomqtt
import msgspec
from msgspec import field
from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import REJECT, RETRY, Token
from tidelog.flows.connectors.brokers import BrokerOptions
from tidelog.flows.connectors.mqtt.ackorder import AckOrder
from tidelog.flows.connectors.mqtt.client import MqttClient
from tidelog.flows.connectors.namedmessages import by_name, named_messages
from tidelog.flows.connectors.ongoingread import OngoingRead
from tidelog.flows.connectors.payload import MessageReader, PayloadWriter
from tidelog.flows.connectors.templates import Template, fixed_text
from tidelog.options.units import Duration

MOST: Final = 65_535  # messages in flight, the limit of the protocol
OVERHEAD: Final = 64  # bytes of a packet beyond topic, headers, and payload, at most
REFUSED: Final = 0x80  # reason codes from here on are errors


class MqttOptions(BrokerOptions, kw_only=True):
    """Options of ``mqtt``."""

    templates: ClassVar[tuple[str, ...]] = ("topic", "headers")
    schemes: ClassVar[Mapping[str, tuple[bool, int]]] = {"mqtt": (False, 1883), "mqtts": (True, 8883)}

    url: str = "mqtt://localhost:1883"  # The URL of the broker: `mqtt://HOST`, or `mqtts://HOST` with TLS.
    topic: str | list[str] = ""
    # Source: one or several topics, with wildcards: `sensors/+/temperature`. Sink: a [template](#templates). Required.
    qos: Annotated[int, msgspec.Meta(ge=0, le=2)] = 1  # The quality of service: 0 or 1; a sink also 2.
    retain: bool = False  # Sink: the broker stores the last message of each topic.
    headers: dict[str, str] = field(default_factory=dict)
    # Sink: user properties of MQTT 5.0; the values are [templates](#templates).
    version: Literal["5.0", "3.1.1"] = "5.0"  # The version of the protocol: `"5.0"` or `"3.1.1"`.
    client_id: str | None = None  # Source: the name of the session, which must be unique. `null`: `FLOW.NAME@HOST`.
    session: Duration = Duration(3600.0)
    # Source: how long the broker stores messages while the source is not connected. MQTT 3.1.1: without limit, or `0`.
    keepalive: Duration = Duration(30.0)
    # Interval of keep-alive packets. A silent connection is closed after up to twice this time.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topic:
            raise ValueError("topic is missing")
        if not 1 <= self.keepalive <= MOST:
            raise ValueError(f"keepalive is {self.keepalive:g} s: it must be between 1s and 18h")
        if len(self.addresses) > 1:
            raise ValueError("url: give one broker")
        if self.headers and self.version != "5.0":
            raise ValueError("headers: MQTT 3.1.1 has none")


class MqttConnector(Source, Sink):
    """Sets ``topic``, ``qos``, ``retain`` and ``headers`` (user properties) in meta."""

    type = "mqtt"
    Options = MqttOptions

    @classmethod
    def option_errors(cls, options: MqttOptions, *, source: bool) -> list[str]:
        found = super().option_errors(options, source=source)
        if source and options.qos > 1:
            found.append("qos: 2: a source can't acknowledge such messages after their settlement; use 1")
        if not source and not isinstance(options.topic, str):
            found.append("topic: a sink has one topic, which may be a template")
        for each in [options.topic] if isinstance(options.topic, str) else options.topic:
            fixed = Template(each).fixed
            if fixed is not None and source and not _is_filter(fixed):
                found.append(f"topic: {fixed!r}: '+' must be a whole level, and '#' the last one")
            elif fixed is not None and not source and not {"+", "#"}.isdisjoint(fixed):
                found.append(f"topic: {fixed!r}: a sink writes to one topic, which has no wildcards")
        return found

    def __init__(self, options: MqttOptions) -> None:
        super().__init__()
        self._options = options
        self._five = options.version == "5.0"
        self._reading: MqttClient | None = None
        self._writing: MqttClient | None = None
        self._dropped = 0
        # source
        self._topics = [options.topic] if isinstance(options.topic, str) else list(options.topic)
        self._connects = 0  # part of event IDs: message IDs start again with each connection
        self._number = 0  # of a message of this connection
        self._message_ids: dict[int, int] = {}  # by number
        self._acks = AckOrder()
        self._left: deque[Event] = deque()
        self._reader = MessageReader(options)
        self._read: OngoingRead[None] = OngoingRead(self.wait)
        # sink
        self._topic = by_name(Template(self._topics[0]))
        self._headers = {name: Template(each) for name, each in options.headers.items()}
        self._writer = PayloadWriter(options)

    async def connect(self) -> None:
        if self.context.source is not None:
            name = self._options.client_id or f"{self.context.flow}.{self.context.name}@{socket.gethostname()}"
            self._reading = await self._client(name, persistent=self._options.session > 0)
            self._connects += 1
            self._number = 0
            self._message_ids.clear()
            self._acks = AckOrder()
            await self._subscribe(self._reading)
        if self.context.sink is not None:
            self._writing = await self._client(None, persistent=False)
            self._writing.watch(self.context.disconnected)

    async def _client(self, name: str | None, *, persistent: bool) -> MqttClient:
        options, (address,) = self._options, self._options.addresses
        given: dict[str, Any] = {"protocol": aiomqtt.ProtocolVersion.V311, "clean_session": not persistent}
        if name is None:
            given["clean_session"] = True
        if self._five:
            connecting = _properties(PacketTypes.CONNECT)
            connecting.ReceiveMaximum = min(MOST, options.max_unsettled)
            if persistent:
                connecting.SessionExpiryInterval = min(round(options.session), 0xFFFFFFFE)
            given = {
                "protocol": aiomqtt.ProtocolVersion.V5, "clean_start": not persistent, "properties": connecting,
            }  # fmt: skip
        client = MqttClient(
            address.host, address.port, options.max_unsettled, identifier=name or "", username=address.username,
            password=address.password, tls_context=await asyncio.to_thread(options.tls_context),
            timeout=float(options.request_timeout), keepalive=round(options.keepalive), **given,
        )  # fmt: skip
        await client.open()
        return client

    async def _subscribe(self, client: MqttClient) -> None:
        topics = [fixed_text(each) for each in self._topics]
        try:
            if self._five:  # retained messages only for a new subscription
                options = SubscribeOptions(self._options.qos, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
                codes: Any = await client.subscribe([(each, options) for each in topics])
            else:
                codes = await client.subscribe([(each, self._options.qos) for each in topics])
        except (aiomqtt.MqttError, ValueError) as error:
            raise ConnectionError(str(error)) from error
        for topic, code in zip(topics, codes, strict=True):
            if getattr(code, "value", code) >= REFUSED:
                raise ConnectionError(f"the broker refuses a subscription to {topic!r}: {code}")

    async def close(self) -> None:
        await self._read.cancel()
        clients = (self._reading, self._writing)
        self._reading = self._writing = None
        for each in clients:
            if each is not None:
                await each.shut()

    # -- reading ---------------------------------------------------------------------------------------------
    @property
    def backlog(self) -> int:
        return self._reading.waiting if self._reading is not None and not self._options.qos else 0

    async def pull(self, limit: int) -> list[Event] | None:
        client = self._reading
        if client is None:
            raise ConnectionError("not connected")
        if not self._left:
            await self._read.result(client.arrived)
            while len(self._left) < limit and (message := client.take()) is not None:
                self._left += self._events(client, message)
        if client.dropped > self._dropped:
            self.context.count("dropped", client.dropped - self._dropped)
        self._dropped = client.dropped
        return [self._left.popleft() for _ in range(min(limit, len(self._left)))]

    def _events(self, client: MqttClient, message: MQTTMessage) -> list[Event]:
        self._number += 1
        self.context.received(len(message.payload))
        events = self._reader.read(bytes(message.payload), _described(message))
        for event in events:
            event.id = f"{self._connects}/{self._number}"
        if message.qos:
            self._message_ids[self._number] = message.mid
            self._acks.add(self._number, len(events))
            if not events:
                self._acknowledge(client)
        return events

    async def settled(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            connects, _, number = token.key.partition("/")
            if int(connects) == self._connects:  # the broker sends messages of earlier connections again
                self._acks.settle(int(number))
        if self._reading is not None:
            self._acknowledge(self._reading)

    def _acknowledge(self, client: MqttClient) -> None:
        for number in self._acks.due():
            client.ack(self._message_ids.pop(number))

    # -- writing ---------------------------------------------------------------------------------------------
    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        client = self._writing
        if client is None:
            raise ConnectionError("not connected")
        messages, outcomes = named_messages(self._writer, self._destination, events)
        self.context.sent(sum(len(message) for _, _, message in messages))
        results = await self._sent([self._send(client, name, message) for name, _, message in messages])
        lost: BaseException | None = None
        for (_, indexes, _), result in zip(messages, results, strict=True):
            if isinstance(result, ConnectionError):
                lost = result
            for at in indexes if result else ():
                permanent = isinstance(result, (ValueError, RejectError))
                outcomes[at] = (REJECT if permanent else RETRY, str(result))
        if lost is not None:
            client.abort()
            self.context.disconnected(lost)  # messages that the broker has confirmed have their own outcomes
        return outcomes

    async def _sent(self, work: Sequence[Coroutine[Any, Any, str]]) -> list[str | BaseException]:
        """Return the result or the error of each message."""
        if not work:
            return []
        tasks = [asyncio.ensure_future(each) for each in work]
        timeout = float(self._options.request_timeout)
        try:
            await asyncio.wait(tasks, timeout=timeout)
        finally:
            for each in tasks:
                each.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
        late = ConnectionError(f"no reply within {timeout:g} s")
        return [late if isinstance(each, asyncio.CancelledError) else each for each in found]

    def _destination(self, event: Event) -> tuple[str, tuple[str, ...]]:
        """Return the topic and the values of the headers."""
        return self._topic(event), tuple(each.fill(event) for each in self._headers.values())

    async def _send(self, client: MqttClient, name: tuple[str, tuple[str, ...]], message: bytes) -> str:
        topic, values = name
        properties = None
        if self._headers:
            properties = _properties(PacketTypes.PUBLISH)
            properties.UserProperty = list(zip(self._headers, values, strict=True))
        size = len(message) + sum(len(each.encode()) for each in (topic, *self._headers, *values)) + OVERHEAD
        if client.max_packet and size > client.max_packet:
            raise RejectError(f"the message needs a packet of {size} bytes: the broker accepts {client.max_packet}")
        return await client.send(topic, message, self._options.qos, properties, retain=self._options.retain)


def _is_filter(text: str) -> bool:
    """Return whether '+' is only used as a whole level, and '#' only as the last one."""
    levels = text.split("/")
    return all(each in ("+", "#") or not {"+", "#"}.intersection(each) for each in levels) and "#" not in levels[:-1]


def _properties(kind: int) -> Any:
    return Properties(kind)  # type: ignore[no-untyped-call] # paho has types for the rest


def _described(message: MQTTMessage) -> dict[str, Any]:
    try:
        topic = message.topic
    except UnicodeDecodeError:
        topic = "?"
    about: dict[str, Any] = {"topic": topic, "qos": message.qos}
    if message.retain:
        about["retain"] = True
    found = getattr(message.properties, "UserProperty", None)
    if found:
        about["headers"] = dict(found)
    return about
