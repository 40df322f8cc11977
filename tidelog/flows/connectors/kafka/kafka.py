"""``kafka``: topics of Kafka, or of another server with its protocol (the package aiokafka).

A source is a member of a group. It commits the settled prefix of each partition, so messages after it are redelivered
after a crash: at least once. A sink waits for all replicas (``acks: all``). With ``transactional_id``, each write is a
transaction, so consumers with ``read_committed`` get all of its messages or none.

Rule 1: A partition is committed before it is revoked. Later settlements of its messages are ignored, even if the
        partition is assigned to this member again and the messages are read again.
Rule 2: A transaction that can't be committed is aborted, and all of its events are retried.
Rule 3: In all partitions together, at most ``max_unsettled`` messages are read beyond the settled prefixes.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.codec import has_zstd
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, UnsupportedCodecError
from msgspec import field

from tidelog.flows.api.cancellation import cancel
from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import REJECT, RETRY, Token
from tidelog.flows.connectors.kafka.targets import NO_TOPIC, MessageTarget, TargetTemplates, is_topic
from tidelog.flows.connectors.namedmessages import named_messages
from tidelog.flows.connectors.ongoingread import OngoingRead
from tidelog.flows.connectors.payload import MessageReader, PayloadOptions, PayloadWriter
from tidelog.flows.connectors.settledprefix import SettledPrefix
from tidelog.flows.connectors.templates import Template, fixed_text
from tidelog.flows.connectors.tls import ClientTlsOptions
from tidelog.options.structs import nearest

POLL_MS: Final = 1_000  # for one fetch, so that an interruption is noticed
COMMIT: Final = 1.0  # s between two commits, at least
TOPICS: Final = 1_000  # of a sink with a template: a write adds at most 512
PACKED: Final = ("snappy", "lz4", "zstd")  # aiokafka needs cramjam for these
DISCOVERY_MS: Final = 30_000  # period in which topics of a pattern are searched
MISSING: Final = "needs the package 'cramjam': pip install 'tidelog[flows-kafka]'"

log = logging.getLogger("tidelog.flows")


class KafkaOptions(PayloadOptions):
    """Options of ``kafka``."""

    templates: ClassVar[tuple[str, ...]] = ("topic", "key", "headers")

    servers: str | list[str] = "localhost:9092"  # One or several bootstrap servers.
    topic: str | list[str] = ""  # The topic. Required. A source may have several. Sink: a [template](#templates).
    pattern: str | None = None
    # Source: a regular expression of topics instead of `topic`. It matches whole names. New topics are found.
    group: str = ""  # Source: the consumer group. Required.
    start: Literal["earliest", "latest"] = "earliest"
    # Source: where a group without commits begins, `earliest` or `latest`.
    key: str | None = None
    # Sink: the key of the message, a [template](#templates) such as `{customer}`. `null`: no key.
    headers: dict[str, str] = field(default_factory=dict)
    # Sink: headers of the message. Their values are [templates](#templates).
    transactional_id: str | None = None
    # Sink: write each batch in a transaction of this ID. Each instance of a flow adds its name.
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    # Sink: the compression, `none`, `gzip`, `snappy`, `lz4` or `zstd`.
    security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    # The protocol: `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`.
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    # The SASL mechanism: `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`.
    username: str | None = None  # The SASL user.
    password: str | None = None  # The SASL password.
    tls: ClientTlsOptions | None = None
    # TLS settings for `SSL` and `SASL_SSL`. `null`: the system's certificate authorities.
    options: dict[str, Any] = field(default_factory=dict)  # Further options of aiokafka's consumer or producer.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topic and self.pattern is None:
            raise ValueError("topic is missing")
        if self.topic and self.pattern is not None:
            raise ValueError("pattern and topic exclude each other: give one of them")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(f"pattern: {self.pattern!r} is not a regular expression: {error}") from None
        if self.transactional_id == "":
            raise ValueError("transactional_id is empty: set it, or omit it")
        if self.security.startswith("SASL") and not (self.username and self.password):
            raise ValueError("username and password are missing: SASL requires both")
        if self.tls is not None and not self.security.endswith("SSL"):
            raise ValueError(f"tls: security is {self.security}: it must be SSL or SASL_SSL")


class _Partition:
    """The state of one partition."""

    def __init__(self, position: int) -> None:
        self.prefix: SettledPrefix[int] = SettledPrefix(position)  # the offset to commit
        self.committed = position
        self.delivered = position  # the offset after the last message that was read


class KafkaConnector(Source, Sink):
    """Sets ``event.id`` to topic/partition/offset, and in meta ``topic``, ``partition``, ``key``, ``headers``, and all
    of them with the offset and the time in ``kafka``.
    """

    type = "kafka"
    Options = KafkaOptions

    @classmethod
    def option_errors(cls, options: KafkaOptions, *, source: bool) -> list[str]:
        found = []
        if not source and options.compression in PACKED and not has_zstd():
            found.append(f"compression {options.compression} {MISSING}")
        if not source and options.pattern is not None:
            found.append("topic is missing: a pattern is for sources")
        for each in [options.topic] if isinstance(options.topic, str) else options.topic:
            fixed = Template(each).fixed
            if fixed and not is_topic(fixed):
                found.append(f"topic: {fixed!r:.260} {NO_TOPIC}")
        for name in options.options:
            known = inspect.signature(AIOKafkaConsumer if source else AIOKafkaProducer).parameters
            if name not in known:
                found.append(f"options: aiokafka has no option {name!r} here; {nearest(name, known)}")
        return found

    @classmethod
    def option_warnings(cls, options: KafkaOptions, *, source: bool) -> list[str]:  # noqa: ARG003
        """Warn about compressed messages: whether a topic has any is not known before it is read."""
        if not source or has_zstd():
            return []
        return [f"to read messages that are compressed by snappy, lz4 or zstd {MISSING}"]

    def __init__(self, options: KafkaOptions) -> None:
        super().__init__()
        self._options = options
        self._topics = [options.topic] if isinstance(options.topic, str) else list(options.topic)
        self._consumer: Any = None
        self._producer: Any = None
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._late: Counter[str] = Counter()  # by event ID: future settlements to ignore
        self._reader = MessageReader(options)
        self._writing = PayloadWriter(options)
        self._recent: dict[str, None] = {}  # topics that were written, the most recent one last
        self._target = TargetTemplates(self._topics[0] if self._topics else "", options.key, options.headers)
        self._read: OngoingRead[Mapping[TopicPartition, Sequence[Any]]] = OngoingRead(self.wait)
        self._committer: asyncio.Task[None] | None = None
        self._dirty = asyncio.Event()

    async def _common(self) -> dict[str, Any]:
        options = self._options
        given: dict[str, Any] = {
            "bootstrap_servers": options.servers, "security_protocol": options.security,
            "client_id": f"tidelog-flow-{self.context.flow}-{self.context.name}",
        }  # fmt: skip
        if options.security.startswith("SASL"):
            given |= {
                "sasl_mechanism": options.mechanism, "sasl_plain_username": options.username,
                "sasl_plain_password": options.password,
            }  # fmt: skip
        if options.security.endswith("SSL"):
            tls = options.tls or ClientTlsOptions()
            given["ssl_context"] = await asyncio.to_thread(tls.context)
        return given | options.options

    async def connect(self) -> None:
        options = self._options
        try:
            if self.context.source is not None:
                if not options.group:
                    raise ConnectionError("group is missing: a source needs one")
                self._consumer = AIOKafkaConsumer(
                    group_id=options.group, enable_auto_commit=False, auto_offset_reset=options.start,
                    **({"metadata_max_age_ms": DISCOVERY_MS} if options.pattern else {}) | await self._common(),
                )  # fmt: skip
                await self._consumer.start()
                listener = _RebalanceListener(self)
                if options.pattern is not None:
                    self._consumer.subscribe(pattern=f"(?:{options.pattern})\\Z", listener=listener)
                else:
                    self._consumer.subscribe([fixed_text(each) for each in self._topics], listener=listener)
                self._committer = asyncio.get_running_loop().create_task(self._commits())
            if self.context.sink is not None:
                compression = None if options.compression == "none" else options.compression
                identity = options.transactional_id and f"{options.transactional_id}-{self.context.flow}"
                self._producer = AIOKafkaProducer(
                    acks="all", compression_type=compression, transactional_id=identity, **await self._common()
                )
                await self._producer.start()
        except KafkaError as error:
            raise ConnectionError(_text(error)) from error

    async def close(self) -> None:
        committer, self._committer = self._committer, None
        await cancel(committer)
        await self._read.cancel()
        consumer, self._consumer = self._consumer, None
        producer, self._producer = self._producer, None
        if consumer is not None:
            try:
                await self.commit(consumer)
            except ConnectionError as error:
                log.debug("%s: the last commit: %s", self.context.name, error)
            await consumer.stop()
        self._forget(tuple(self._partitions))
        if producer is not None:
            await producer.stop()

    # -- reading ---------------------------------------------------------------------------------------------
    @property
    def lag(self) -> int | None:
        """The messages that its partitions have and that were not read. None before the first message was read."""
        known = [(self._consumer.highwater(at), each.delivered) for at, each in self._partitions.items()
                 if self._consumer is not None]  # fmt: skip
        found = [max(0, end - read) for end, read in known if end is not None]
        return sum(found) if found else None

    @property
    def room(self) -> int:
        """Implement Rule 3."""
        return self._options.max_unsettled - sum(len(each.prefix) for each in self._partitions.values())

    async def pull(self, limit: int) -> list[Event] | None:
        if self._consumer is None:
            raise ConnectionError("not connected")
        consumer = self._consumer
        try:
            found = await self._read.result(lambda: consumer.getmany(timeout_ms=POLL_MS, max_records=limit)) or {}
        except UnsupportedCodecError as error:
            missing = "" if has_zstd() else f"; to read such messages {MISSING}"
            raise ConnectionError(f"a message can't be decompressed: {error}{missing}") from error
        except KafkaError as error:
            raise ConnectionError(_text(error)) from error
        return [event for at, messages in found.items() for message in messages for event in self._events(at, message)]

    def _events(self, at: TopicPartition, message: Any) -> list[Event]:
        known = self._partitions.get(at)
        if known is None:
            known = self._partitions[at] = _Partition(message.offset)
        if message.offset < known.delivered:
            return []
        known.delivered = message.offset + 1
        about: dict[str, Any] = {"topic": at.topic, "partition": at.partition}
        if message.key is not None:
            about["key"] = message.key.decode("utf-8", "replace")
        if message.headers:
            about["headers"] = {name: (raw or b"").decode("utf-8", "replace") for name, raw in message.headers}
        about["kafka"] = {**about, "offset": message.offset, "timestamp": message.timestamp}
        self.context.received(len(message.value or b""))
        events = self._reader.read(message.value or b"", about)
        name = _name(at, message.offset)
        known.prefix.add(message.offset, message.offset + 1, len(events))
        for event in events:
            event.id = name
        return events

    # -- settling --------------------------------------------------------------------------------------------
    async def settled(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            if token.key in self._late:
                self._late[token.key] -= 1
                if not self._late[token.key]:
                    del self._late[token.key]
                continue
            topic, partition, offset = token.key.rsplit("/", 2)
            known = self._partitions.get(TopicPartition(topic, int(partition)))
            if known is not None and known.prefix.settle(int(offset)):
                self._dirty.set()

    async def _commits(self) -> None:
        """Commit changed positions periodically."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self.commit(self._consumer)
            except ConnectionError as error:
                self.context.count("commit_errors")
                log.info("%s: %s: commit: %s", self.context.flow, self.context.name, error)
                self._dirty.set()
            await asyncio.sleep(COMMIT)

    async def commit(self, consumer: Any) -> None:
        """Commit the settled prefix of each partition. Raises ConnectionError if it may have failed."""
        mine = consumer.assignment()
        moved = {
            at: each.prefix.position
            for at, each in self._partitions.items()
            if each.prefix.position > each.committed and at in mine
        }
        if not moved:
            return
        try:
            await consumer.commit(moved)
        except KafkaError as error:
            raise ConnectionError(_text(error)) from error
        for at, position in moved.items():
            if at in self._partitions:
                self._partitions[at].committed = position

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit and forget partitions that are assigned to another member (Rule 1)."""
        if self._consumer is not None:
            try:
                await self.commit(self._consumer)
            except ConnectionError as error:
                log.info("%s: %s: commit before a rebalance: %s", self.context.flow, self.context.name, error)
        self._forget(partitions)
        self.context.room_changed()

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        for at in partitions:
            known = self._partitions.pop(at, None)
            if known is not None:
                for offset, missing in known.prefix.missing():
                    self._late[_name(at, offset)] += missing

    # -- writing ---------------------------------------------------------------------------------------------
    async def write(self, events: list[Event]) -> Sequence[Outcome] | None:
        if self._producer is None:
            raise ConnectionError("not connected")
        messages, outcomes = named_messages(self._writing, self._target.of, events)
        self.context.sent(sum(len(message) for _, _, message in messages))
        by_topic: dict[str, list[tuple[MessageTarget, list[int], bytes]]] = {}
        for each in messages:
            by_topic.setdefault(each[0].topic, []).append(each)
        failed = await self._send_all(self._producer, by_topic)
        for indexes, problem in (one for each in failed for one in each):
            permanent = isinstance(problem, MessageSizeTooLargeError)
            for at in indexes:
                outcomes[at] = (REJECT, str(problem)) if permanent else (RETRY, _text(problem))
        self._forget_topics(self._producer, by_topic)
        return outcomes

    async def _send_all(
        self, producer: Any, by_topic: Mapping[str, list[tuple[MessageTarget, list[int], bytes]]]
    ) -> list[list[tuple[list[int], Exception]]]:
        """Send the messages of all topics. Return those that failed; in a transaction, all or those that never fit."""
        if self._options.transactional_id is None or not by_topic:
            # each topic by itself, because a missing topic delays its first message by up to request_timeout_ms
            return await asyncio.gather(*(self._send(producer, topic, each) for topic, each in by_topic.items()))
        everything = [indexes for each in by_topic.values() for _, indexes, _ in each]
        try:
            await producer.begin_transaction()
            try:
                failed = await asyncio.gather(*(self._send(producer, topic, each) for topic, each in by_topic.items()))
                for _, error in (one for each in failed for one in each):
                    if not isinstance(error, MessageSizeTooLargeError):
                        raise error
                await producer.commit_transaction()
            except KafkaError:
                await producer.abort_transaction()
                raise
        except KafkaError as error:
            # a producer whose transaction has failed may not be usable any more
            self.context.disconnected(ConnectionError(_text(error)))
            return [[(indexes, error) for indexes in everything]]
        return failed

    def _forget_topics(self, producer: Any, used: Iterable[str]) -> None:
        """Limit the topics whose metadata the producer stores and requests again periodically."""
        for topic in used:
            self._recent.pop(topic, None)
            self._recent[topic] = None
        if len(self._recent) > TOPICS:
            for topic in list(itertools.islice(self._recent, len(self._recent) - TOPICS)):
                del self._recent[topic]
            producer.client.set_topics(list(self._recent))

    async def _send(
        self, producer: Any, topic: str, messages: list[tuple[MessageTarget, list[int], bytes]]
    ) -> list[tuple[list[int], Exception]]:
        """Send the messages of a topic in order. Return the indexes and the error of those that failed."""
        sent: list[tuple[list[int], Awaitable[object]]] = []
        failed: list[tuple[list[int], Exception]] = []
        for target, indexes, message in messages:
            try:
                future = await producer.send(topic, message, key=target.key, headers=list(target.headers))
                sent.append((indexes, future))
            except KafkaError as error:
                failed.append((indexes, error))
        for indexes, future in sent:
            try:
                await future
            except KafkaError as error:
                failed.append((indexes, error))
        return failed


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _name(at: TopicPartition, offset: Any) -> str:
    return f"{at.topic}/{at.partition}/{offset}"


class _RebalanceListener(ConsumerRebalanceListener):  # type: ignore[misc] # it has no types
    def __init__(self, kafka: KafkaConnector) -> None:
        self._kafka = kafka

    async def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        await self._kafka.revoked(revoked)

    async def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        """Do nothing: reading starts at the committed offset."""
