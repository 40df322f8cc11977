"""``Topic``: a stream in parts, with records of one type. A declaration, and what sends and reads by it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from tidelog.client.aio import AsyncClient
from tidelog.client.calls import Call
from tidelog.client.client import Client
from tidelog.client.entries import Entry, StreamId
from tidelog.codecs import Codec, codec_for
from tidelog.topics import steps
from tidelog.topics.facts import MOST, Facts, Overflow, Retention, TopicError, key_of, read_facts
from tidelog.topics.lane import Lane
from tidelog.topics.producer import Producer, SyncProducer
from tidelog.topics.sending import Gather, Keyed, PartitionBy, Sender, check_key_type
from tidelog.topics.steps import Steps, good

R = TypeVar("R")
_NAME: Final = re.compile(r"[^\s\x00-\x1f\x7f*?\[\]\\^]{1,200}")
CHECKED: Final = 5.0  # seconds until a program looks again whether the topic is what it declares
_RESERVED: Final = "topic"  # its partitions would have the keys of other topics' facts


@dataclass(frozen=True)
class Place:
    """Where a partition is."""

    partition: int
    key: str  # of its stream
    url: str | None = None  # of its server; None: the one with the facts of the topic


class Topic(Generic[R]):
    """A topic: the streams ``name:0`` ... ``name:<partitions - 1>``, with records of ``record_type``.

    >>> orders = Topic("orders", Order, partition_by="id", partitions=16, url="redis://localhost:6379")
    >>> await orders.send(Order(id=1, item="tea"))
    >>> orders.sync.send(Order(id=2, item="milk"))       # the same from a thread

    partition_by: the field whose value decides the partition, or a function from a record to it: str, int, bytes or
        UUID. Records with the same key stay in order. None: partitions take turns.
    partitions: None: as many as the server says, 16 for a new topic.
    codec: ``plain`` (each field a field of the entry), ``json``, ``msgpack``, ``json+zstd`` or ``msgpack+zstd`` (one
        field, ``data``). None: ``plain`` where the type is flat, else ``json``.
    partition_size, max_age: how many entries a partition keeps, and for how long.
    overflow: ``protect`` (default) evicts only what all groups of a partition have finished (``trim``). ``drop`` evicts
        with each send, read or not.
    hard_limit: for ``protect``: sending to a partition with so many entries raises TopicFullError.
    url: the server, as for Client. ``use`` gives clients instead.

    The first use writes these facts to the server, or compares them: TopicMismatchError where they differ. They are
    compared again every few seconds, so that a running program notices when a topic grows. TopicError and CodecError
    for a declaration that makes no sense.
    """

    def __init__(
        self,
        name: str,
        record_type: type[R] | Any = dict,
        *,
        partition_by: PartitionBy = None,
        partitions: int | None = None,
        codec: str | None = None,
        partition_size: int | None = None,
        max_age: timedelta | float | None = None,
        overflow: Overflow | None = None,
        hard_limit: int | None = None,
        url: str | None = None,
    ) -> None:
        title = f"topic {name!r}"
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name == _RESERVED:
            raise TopicError(f"{title}: a name has 1 to 200 characters, no spaces, none of *?[]^\\, and is not 'topic'")
        if partitions is not None and (
            not isinstance(partitions, int) or isinstance(partitions, bool) or not 1 <= partitions <= MOST
        ):
            raise TopicError(f"{title}: partitions must be a whole number from 1 to {MOST:,}: {partitions!r}")
        self.name = name
        self.url = url
        self.codec: Codec[R] = codec_for(record_type, codec)
        check_key_type(title, partition_by, self.codec)
        self._keyed = Keyed(title, partition_by, self.codec.shape.mapping)
        self.declared = Facts(
            partitions,
            "(function)" if callable(partition_by) else partition_by,
            self.codec.name,
            {field.name: field.kind for field in self.codec.shape.fields},
            Retention(partition_size, _milliseconds(title, max_age), overflow, hard_limit),
        )
        self._facts: Facts | None = None
        self._check_at = 0.0  # on the monotonic clock: when they are compared again
        self._sender: Sender | None = None
        self._lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Lane, AsyncClient]] = WeakKeyDictionary()
        self._given: AsyncClient | None = None
        self._sync_client: Client | None = None
        self._sync_is_ours = True

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, {self.codec.shape.title})"

    # -- what needs no server --------------------------------------------------------------------------------
    def stream(self, partition: int) -> str:
        """The key of a partition's stream."""
        return f"{self.name}:{partition}"

    def partition(self, record: R) -> int:
        """The partition of a record. TopicError before the number of partitions is known, CodecError without a key."""
        return self._keyed.partition(record, self.partitions)

    def decode(self, entry: Entry, partition: int) -> R:
        """The record of an entry. UndecodableError if it is none."""
        return self.codec.decode(entry, self.stream(partition).encode())

    def place(self, partition: int) -> Place:
        """Where a partition is: today always on the server of the topic."""
        return Place(partition, self.stream(partition))

    @property
    def partitions(self) -> int:
        """How many there are. TopicError if that is not declared and the server was not asked yet (``ready``)."""
        known = self._facts.partitions if self._facts is not None else self.declared.partitions
        if known is None:
            raise TopicError(f"topic {self.name!r}: the number of partitions is known after ready()")
        return known

    @property
    def agreed(self) -> bool:
        """Whether the facts on the server agree with the declaration: as they were CHECKED seconds ago at most."""
        return self._facts is not None and time.monotonic() < self._check_at

    @property
    def facts(self) -> Facts:
        """What the topic is. TopicError before the server was asked (``ready``)."""
        if self._facts is None:
            raise TopicError(f"topic {self.name!r}: what the server says about it is known after ready()")
        return self._facts

    # -- the server ------------------------------------------------------------------------------------------
    def use(self, client: AsyncClient | None = None, sync: Client | None = None) -> None:
        """Send over these clients. They stay the caller's, who closes them."""
        if client is not None:
            self._given = client
        if sync is not None:
            self._sync_client, self._sync_is_ours = sync, False

    @property
    def lane(self) -> Lane:
        """The lane of the running event loop. A client that was given (``use``) is for one loop only."""
        loop = asyncio.get_running_loop()
        found = self._lanes.get(loop)
        if found is None:
            client = self._given or AsyncClient(self._url())
            found = self._lanes[loop] = (Lane(client), client)
        return found[0]

    @property
    def client(self) -> Client:
        """The client of the sync twin."""
        if self._sync_client is None:
            self._sync_client, self._sync_is_ours = Client(self._url()), True
        return self._sync_client

    def _url(self) -> str:
        if self.url is None:
            raise TopicError(f"topic {self.name!r} has no server: Topic(..., url='redis://...'), or topic.use(client)")
        return self.url

    async def close(self) -> None:
        """Close the connections that the topic made in the running event loop."""
        _, client = self._lanes.pop(asyncio.get_running_loop(), (None, None))
        if client is not None and client is not self._given:
            await client.close()

    def close_sync(self) -> None:
        """Close the connections that the sync twin made."""
        if self._sync_is_ours and self._sync_client is not None:
            self._sync_client.close()
            self._sync_client = None

    @cached_property
    def sync(self) -> SyncTopic[R]:
        """The same operations, blocking."""
        return SyncTopic(self)

    async def ready(self) -> Facts:
        """Write the facts of the topic to the server, or compare them. TopicMismatchError where they differ."""
        if not self.agreed:
            await self.lane.run(self.agree())
        return self.facts

    async def send(self, record: R) -> StreamId:
        """Append a record; returns its ID. Order is that of the calls, for each partition.

        CodecError for a record of another type, TopicFullError beyond the hard limit, TopicMismatchError at the first
        use. redis.ConnectionError and redis.TimeoutError if the server did not answer: it may have appended the record
        all the same (``producer`` sends exactly once).
        """
        lane = self.lane
        async with lane.turn:  # a comparison of the facts must not let later calls pass
            await self.ready()
            sending = lane.start(self.sender().send(record))
        return await sending

    async def send_many(self, records: Iterable[R] | AsyncIterable[R]) -> int:
        """Append any number of records by many in one command; returns how many. Errors as for ``send``.

        They leave in windows of up to 8192 records or 8 MB: for records that come slowly, ``send`` is right. After an
        error, records before and after the one that could not be sent may be there.
        """
        sent = 0
        left = aiter(records) if isinstance(records, AsyncIterable) else iter(records)
        await self.ready()
        while True:
            sender = self.sender()
            gather = await _gathered(sender, left) if isinstance(left, AsyncIterator) else sender.gathered(left)
            if not gather.rows:
                return sent
            await self.ready()
            if self.sender() is not sender:  # the topic has grown since the first of them
                sender = self.sender()
                gather = sender.gathered(gather.records)
            sent += await self.lane.run(sender.send_window(gather.runs, gather.rows))

    def producer(self, name: str) -> Producer[R]:
        """A producer: what it sends counts once, whatever is repeated. See Producer."""
        return Producer(self, name)

    # -- for the twins ---------------------------------------------------------------------------------------
    def agree(self) -> Steps[Facts]:
        """The steps of ``ready``."""
        wanted = self.declared.complete()
        key = key_of(self.name)
        while True:
            (there,) = good((yield [Call(("SET", key, wanted.written(), "NX", "GET"), lambda reply: reply)]))
            if there is None:
                facts = wanted
                break
            known = read_facts(self.name, there)
            facts = self.declared.agreed(self.name, known)
            if facts is known:
                break
            swap: Call[Any] = Call(("SET", key, facts.written(), "IFEQ", there), lambda reply: reply)
            (swapped,) = good((yield [swap]))
            if swapped is not None:
                break
        if facts != self._facts:
            self._facts, self._sender = facts, None
        self._check_at = time.monotonic() + CHECKED
        return facts

    def sender(self) -> Sender:
        """What makes the calls. Only after ``agree``."""
        if self._sender is None:
            streams = [self.stream(at) for at in range(self.partitions)]
            self._sender = Sender(self.name, self.codec, self._keyed, self.facts, streams)
        return self._sender


async def _gathered(sender: Sender, records: AsyncIterator[Any]) -> Gather:
    """As ``Sender.gathered``."""
    gather = Gather(sender)
    async for record in records:
        if gather.add(record):
            break
    return gather


class SyncTopic(Generic[R]):
    """``topic.sync``: the operations of a topic, blocking. Threads may share it."""

    def __init__(self, topic: Topic[R]) -> None:
        self.topic = topic

    def ready(self) -> Facts:
        """See ``Topic.ready``."""
        if not self.topic.agreed:
            steps.run(self.topic.client, self.topic.agree())
        return self.topic.facts

    def send(self, record: R) -> StreamId:
        """See ``Topic.send``."""
        self.ready()
        return steps.run(self.topic.client, self.topic.sender().send(record))

    def send_many(self, records: Iterable[R]) -> int:
        """See ``Topic.send_many``."""
        sent, left = 0, iter(records)
        self.ready()
        while True:
            sender = self.topic.sender()
            gather = sender.gathered(left)
            if not gather.rows:
                return sent
            self.ready()
            if self.topic.sender() is not sender:  # the topic has grown since the first of them
                sender = self.topic.sender()
                gather = sender.gathered(gather.records)
            sent += steps.run(self.topic.client, sender.send_window(gather.runs, gather.rows))

    def producer(self, name: str) -> SyncProducer[R]:
        """See ``Topic.producer``."""
        return SyncProducer(self.topic, name)

    def close(self) -> None:
        """Close the connections that the topic made."""
        self.topic.close_sync()


def _milliseconds(title: str, span: timedelta | float | None) -> int | None:
    """A time in seconds, or a timedelta, as ms. TopicError unless it is at least 1 ms."""
    if span is None:
        return None
    if isinstance(span, bool) or not isinstance(span, timedelta | int | float):
        raise TopicError(f"{title}: max_age is seconds or a timedelta: {span!r}")
    ms = round((span.total_seconds() if isinstance(span, timedelta) else span) * 1000)
    if ms < 1:
        raise TopicError(f"{title}: max_age must be positive: {span!r}")
    return ms
