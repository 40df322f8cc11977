"""``Topic``: a stream in parts, with records of one type. A declaration, and what sends and reads by it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from tidelog.client import steps
from tidelog.client.asyncclient import AsyncClient
from tidelog.client.client import Client
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import Steps
from tidelog.codecs import Codec, codec_for
from tidelog.codecs.pickling import make_portable
from tidelog.topics import delayed
from tidelog.topics.partition import Key
from tidelog.topics.pipeline import CallPipeline
from tidelog.topics.producer import Producer, SyncProducer
from tidelog.topics.reconcile import agree
from tidelog.topics.sending import Gather, Keyed, PartitionBy, Sender, check_key_type
from tidelog.topics.settings import (
    FUNCTION,
    Overflow,
    Retention,
    TopicError,
    TopicSettings,
    check_name,
    check_partitions,
)
from tidelog.transport.access import Access

R = TypeVar("R")
CHECKED: Final = 5.0  # seconds until a program looks again whether the topic is what it declares


@dataclass(frozen=True)
class PartitionLocation:
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
    url: the server, as for Client. Use ``access`` instead for TLS files and other settings, or ``use`` to set clients.

    The first use writes this declaration to the server, or compares it: TopicMismatchError is raised if they differ.
    They are compared again every few seconds, so that a running program notices when a topic grows. Raises TopicError
    or CodecError if the declaration is invalid.

    A topic can be pickled. The copy has the same declaration and opens its own connections. Clients that were set with
    ``use`` are not pickled.
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
        access: Access | None = None,
    ) -> None:
        title = f"topic {name!r}"
        check_name(name)
        check_partitions(name, partitions)
        self.name = name
        self._url = url
        self.access = _access(title, url, access)
        self.codec: Codec[R] = codec_for(record_type, codec)
        check_key_type(title, partition_by, self.codec)
        self._keyed = Keyed(title, partition_by, self.codec.shape.mapping)
        self.declared = TopicSettings(
            partitions,
            FUNCTION if callable(partition_by) else partition_by,
            self.codec.name,
            {field.name: field.kind for field in self.codec.shape.fields},
            Retention(partition_size, _milliseconds(title, max_age), overflow, hard_limit),
        )
        self._facts: TopicSettings | None = None
        self._check_at = 0.0  # on the monotonic clock: when they are compared again
        self._sender: Sender | None = None
        self._lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[CallPipeline, AsyncClient]] = (
            WeakKeyDictionary()
        )
        self._given: AsyncClient | None = None
        self._given_in: asyncio.AbstractEventLoop | None = None  # the event loop that ``_given`` is for; None: any
        self._sync_client: Client | None = None
        self._sync_is_ours = True

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, {self.codec.shape.title})"

    def __reduce__(self) -> tuple[Any, ...]:
        declared, kept = self.declared, self.declared.retention
        make_portable(self.codec.shape.type)
        options = {
            "partition_by": self._keyed.by, "partitions": declared.partitions, "codec": self.codec.name,
            "partition_size": kept.partition_size, "overflow": kept.overflow, "hard_limit": kept.hard_limit,
            "max_age": None if kept.max_age_ms is None else timedelta(milliseconds=kept.max_age_ms), "url": self.url,
            "access": self.access if self.url is None else None,
        }  # fmt: skip
        return _again, (type(self), self.name, self.codec.shape.type, options, self._facts)

    @property
    def url(self) -> str | None:
        """The URL of the server, if it was given by one. A change holds for connections made afterwards."""
        return self._url

    @url.setter
    def url(self, url: str | None) -> None:
        self._url, self.access = url, _access(f"topic {self.name!r}", url, None)

    # -- what needs no server --------------------------------------------------------------------------------
    def stream(self, partition: int) -> str:
        """The key of a partition's stream."""
        return f"{self.name}:{partition}"

    def partition(self, record: R) -> int:
        """The partition of a record. TopicError before the number of partitions is known, CodecError without a key."""
        return self._keyed.partition(record, self.partitions)

    def key(self, record: R) -> Key | None:
        """The partition key of a record; None without ``partition_by``. CodecError where the record has none."""
        return self._keyed.key(record)

    def decode(self, entry: Entry, partition: int) -> R:
        """The record of an entry. UndecodableError if it is none."""
        return self.codec.decode(entry, self.stream(partition).encode())

    def place(self, partition: int) -> PartitionLocation:
        """Where a partition is: today always on the server of the topic."""
        return PartitionLocation(partition, self.stream(partition))

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
    def facts(self) -> TopicSettings:
        """What the topic is. TopicError before the server was asked (``ready``)."""
        if self._facts is None:
            raise TopicError(f"topic {self.name!r}: what the server says about it is known after ready()")
        return self._facts

    # -- the server ------------------------------------------------------------------------------------------
    def use(self, client: AsyncClient | None = None, sync: Client | None = None) -> None:
        """Send over these clients. The caller keeps them and closes them.

        ``client`` is used in the running event loop, or in any if none is running.
        """
        if client is not None:
            self._given, self._given_in = client, _running()
        if sync is not None:
            self._sync_client, self._sync_is_ours = sync, False

    def forget(self, client: AsyncClient) -> None:
        """Stop using a client that was set with ``use``."""
        if self._given is client:
            self._given = None
        for loop, (_, used) in list(self._lanes.items()):
            if used is client:
                del self._lanes[loop]

    @contextmanager
    def elsewhere(self, url: str) -> Iterator[None]:
        """Be on another server until the end of this context, as if it had just been declared: for tests.

        Whoever enters it closes what was opened meanwhile (``close``) before it ends.
        """
        ours: dict[str, Any] = {
            "_url": url, "access": Access.of(url), "_facts": None, "_check_at": 0.0, "_sender": None,
            "_lanes": WeakKeyDictionary(), "_given": None, "_given_in": None, "_sync_client": None,
            "_sync_is_ours": True,
        }  # fmt: skip
        kept = {name: self.__dict__[name] for name in ours}
        self.__dict__.update(ours)
        try:
            yield
        finally:
            self.close_sync()
            self.__dict__.update(kept)

    @property
    def lane(self) -> CallPipeline:
        """The lane of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._lanes.get(loop)
        if found is None:
            given = self._given if self._given_in in (None, loop) else None
            client = given or AsyncClient(self._where())
            found = self._lanes[loop] = (CallPipeline(client), client)
        return found[0]

    @property
    def client(self) -> Client:
        """The client of the sync twin."""
        if self._sync_client is None:
            self._sync_client, self._sync_is_ours = Client(self._where()), True
        return self._sync_client

    def _where(self) -> str | Access:
        """What clients are made of."""
        where = self.url or self.access
        if where is None:
            raise TopicError(f"topic {self.name!r} has no server: Topic(..., url='redis://...'), or topic.use(client)")
        return where

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

    async def ready(self) -> TopicSettings:
        """Write the facts of the topic to the server, or compare them. TopicMismatchError where they differ."""
        if not self.agreed:
            await self.lane.run(self.agree())
        return self.facts

    async def send(
        self, record: R, *, delay: timedelta | float | None = None, at: datetime | None = None
    ) -> StreamId:  # fmt: skip
        """Append a record; returns its ID. Order is that of the calls, for each partition.

        With ``delay``, in seconds, or ``at``, a time with its zone, the record waits until then in the stream
        ``<name>:delayed``. The ID is the one that it has there. It is sent by the leader of a worker's app that has
        this topic, so one must run. TopicError for a delay or a time that makes no sense.

        CodecError for a record of another type, TopicFullError beyond the hard limit, TopicMismatchError at the first
        use. redis.ConnectionError and redis.TimeoutError if the server did not answer: it may have appended the record
        all the same (``producer`` sends exactly once).
        """
        lane = self.lane
        due = delayed.due_text(self.name, delay, at)
        async with lane.turn:  # a comparison of the facts must not let later calls pass
            await self.ready()
            sending = lane.start(self.sending(record, due))
        return await sending

    async def send_many(
        self, records: Iterable[R] | AsyncIterable[R], *, delay: timedelta | float | None = None,
        at: datetime | None = None,
    ) -> int:  # fmt: skip
        """Append any number of records by many in one command; returns how many. Errors as for ``send``, and ``delay``
        and ``at``, which are the same for all of them.

        They leave in windows of up to 8192 records or 8 MB: for records that come slowly, ``send`` is right. After an
        error, records before and after the one that could not be sent may be there.
        """
        due = delayed.due_text(self.name, delay, at)
        sent = 0
        left = aiter(records) if isinstance(records, AsyncIterable) else iter(records)
        under_way: asyncio.Task[int] | None = None  # the window before: the server appends it while this one is made
        await self.ready()
        try:
            while True:
                sender = self.sender()
                gather = await _gathered(sender, left)
                if under_way is not None:
                    sent += await under_way
                    under_way = None
                if not gather.rows:
                    return sent
                await self.ready()
                if self.sender() is not sender:  # the topic has grown since the first of them
                    sender = self.sender()
                    gather = sender.gathered(gather.records)
                under_way = asyncio.create_task(self.lane.run(self.sending_window(gather, due)))
        except BaseException as error:
            if under_way is not None and isinstance(error, asyncio.CancelledError):
                under_way.cancel()
            elif under_way is not None:
                await asyncio.wait([under_way])
                _ = under_way.cancelled() or under_way.exception()  # this error hides it
            raise

    def producer(self, name: str) -> Producer[R]:
        """A producer: what it sends counts once, whatever is repeated. See Producer."""
        return Producer(self, name)

    # -- for the twins ---------------------------------------------------------------------------------------
    def agree(self) -> Steps[TopicSettings]:
        """The steps of ``ready``."""
        facts = yield from agree(self.name, self.declared)
        if facts != self._facts:
            self._facts, self._sender = facts, None
        self._check_at = time.monotonic() + CHECKED
        return facts

    def sending(self, record: R, due: bytes | None) -> Steps[StreamId]:
        """The steps of ``send``; ``due`` as made by ``delayed.due_text``. Only after ``agree``."""
        return self.sender().send(record) if due is None else delayed.send(self.sender(), record, due)

    def sending_window(self, gather: Gather, due: bytes | None) -> Steps[int]:
        """As ``sending``, for the records that the topic's sender has gathered; returns how many."""
        if due is None:
            return self.sender().send_window(gather.runs, gather.rows)
        return delayed.send_window(self.sender(), gather.records, due)

    def sender(self) -> Sender:
        """What makes the calls. Only after ``agree``."""
        if self._sender is None:
            streams = [self.stream(at) for at in range(self.partitions)]
            self._sender = Sender(self.name, self.codec, self._keyed, self.facts, streams)
        return self._sender


async def _gathered(sender: Sender, records: AsyncIterator[Any] | Iterator[Any]) -> Gather:
    """As ``Sender.gathered``. Other tasks get their turn meanwhile, and what is under way leaves and is answered."""
    gather = Gather(sender)
    while wanted := gather.wanted():
        some = []
        if isinstance(records, AsyncIterator):
            async for record in records:
                some.append(record)
                if len(some) == wanted:
                    break
        else:
            some = list(islice(records, wanted))
        if not some:
            break
        gather.add(some)
        await asyncio.sleep(0)
    return gather


class SyncTopic(Generic[R]):
    """``topic.sync``: the operations of a topic, blocking. Threads may share it."""

    def __init__(self, topic: Topic[R]) -> None:
        self.topic = topic

    def ready(self) -> TopicSettings:
        """See ``Topic.ready``."""
        if not self.topic.agreed:
            steps.run(self.topic.client, self.topic.agree())
        return self.topic.facts

    def send(
        self, record: R, *, delay: timedelta | float | None = None, at: datetime | None = None
    ) -> StreamId:  # fmt: skip
        """See ``Topic.send``."""
        due = delayed.due_text(self.topic.name, delay, at)
        self.ready()
        return steps.run(self.topic.client, self.topic.sending(record, due))

    def send_many(
        self, records: Iterable[R], *, delay: timedelta | float | None = None, at: datetime | None = None
    ) -> int:  # fmt: skip
        """See ``Topic.send_many``."""
        due = delayed.due_text(self.topic.name, delay, at)
        sent, left = 0, iter(records)
        self.ready()
        with ThreadPoolExecutor(1, f"send to {self.topic.name}") as pool:
            under_way: Future[int] | None = None  # the window before: the server appends it while this one is made
            while True:
                sender = self.topic.sender()
                gather = sender.gathered(left)
                if under_way is not None:
                    sent += under_way.result()
                if not gather.rows:
                    return sent
                self.ready()
                if self.topic.sender() is not sender:  # the topic has grown since the first of them
                    sender = self.topic.sender()
                    gather = sender.gathered(gather.records)
                window = self.topic.sending_window(gather, due)
                if gather.wanted():  # it is the last one
                    return sent + steps.run(self.topic.client, window)
                under_way = pool.submit(steps.run, self.topic.client, window)

    def producer(self, name: str) -> SyncProducer[R]:
        """See ``Topic.producer``."""
        return SyncProducer(self.topic, name)

    def close(self) -> None:
        """Close the connections that the topic made."""
        self.topic.close_sync()


def _access(title: str, url: str | None, access: Access | None) -> Access | None:
    """The Access of a topic. Raises TopicError if a URL can't be used."""
    if url is not None and access is not None:
        raise TopicError(f"{title}: url and access both say where the server is: give one")
    if access is not None and not isinstance(access, Access):
        raise TopicError(f"{title}: access must be a tidelog.Access, not {access!r}")
    if url is None:
        return access
    try:
        return Access.of(url)
    except ValueError as error:
        raise TopicError(f"{title}: {error}") from None


def _again(
    kind: type[Topic[Any]], name: str, record_type: Any, options: dict[str, Any], facts: TopicSettings | None
) -> Any:
    """A topic that was pickled."""
    made = kind(name, record_type, **options)
    made._facts = facts
    return made


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


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
