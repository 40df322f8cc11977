"""``Topic``: a partitioned stream with records of one type.

It is both the declaration of a topic and the object with which programs send and decode records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from tidelog.client.asyncclient import AsyncClient
from tidelog.client.client import Client
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import Steps
from tidelog.codecs import Codec, codec_for
from tidelog.codecs.pickling import make_portable
from tidelog.topics import delayed, retention
from tidelog.topics.partition import Key
from tidelog.topics.pipeline import CallPipeline
from tidelog.topics.producer import Producer
from tidelog.topics.reconcile import agree
from tidelog.topics.sending import Keyed, PartitionBy, RecordWindow, Sender, check_key_type
from tidelog.topics.settings import (
    FUNCTION,
    Overflow,
    Retention,
    TopicError,
    TopicSettings,
    check_name,
    check_partitions,
    tier_option,
    tier_words,
)
from tidelog.topics.synctopic import SyncTopic
from tidelog.transport.access import Access

R = TypeVar("R")
CHECKED: Final = 5.0  # seconds until a program compares its declaration with the server again


@dataclass(frozen=True)
class PartitionLocation:
    """The location of a partition."""

    partition: int
    key: str  # of its stream
    url: str | None = None  # its server's URL; None: the server that stores the settings of the topic


class Topic(Generic[R]):
    """A topic: the streams ``name:0`` ... ``name:<partitions - 1>``, with records of ``record_type``.

    >>> orders = Topic("orders", Order, partition_by="id", partitions=16, url="redis://localhost:6379")
    >>> await orders.send(Order(id=1, item="tea"))
    >>> orders.sync.send(Order(id=2, item="milk"))       # the same, blocking

    name: 1 to 200 characters without spaces. The streams of the partitions are ``name:0``, ``name:1``, and so on.
    record_type: The [type](#records-and-codecs) of the records.
    partition_by: The field whose value determines the partition, or a function that returns such a value (str, int,
        bytes or UUID) for a record. Records with the same key stay in order. None: round-robin.
    partitions: None: the number stored on the server, or 16 for a new topic.
    codec: ``plain`` (one entry field per record field), ``json``, ``msgpack``, ``json+zstd`` or ``msgpack+zstd`` (a
        single field, ``data``). None: ``plain`` if the type is flat, otherwise ``json``.
    partition_size: Number of entries that a partition retains. None: all.
    max_age: How long entries are retained: seconds, or a timedelta. None: no limit.
    overflow: ``protect`` evicts only entries that all groups of a partition have finished. ``drop`` evicts the excess
        entries whether they were read or not. None: ``protect``.
    hard_limit: With ``protect``: sending to a partition with that many entries raises ``TopicFullError``.
    tier_after: How much of a partition stays local if the server copies [history](history.md) to an object store: an
        age (seconds, a timedelta, or text such as ``7d``), or a size such as ``1GB``. ``default`` or None: the
        server's.
    url: The [server](#the-server).
    access: An ``Access`` with TLS files and other settings; replaces ``url``. ``use`` sets clients.

    The first use stores these settings on the server or, if they are already there, compares them, and raises
    TopicMismatchError if they differ. They are compared again every few seconds, so that a running program notices
    when a topic grows. Raises TopicError or CodecError if the declaration is invalid.

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
        tier_after: timedelta | float | str | None = None,
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
            Retention(
                partition_size, _milliseconds(title, max_age), overflow, hard_limit, tier_words(title, tier_after)
            ),
        )
        self._settings: TopicSettings | None = None
        self._check_at = 0.0  # on the monotonic clock: when they are compared again
        self._sender: Sender | None = None
        self._pipelines: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[CallPipeline, AsyncClient]] = (
            WeakKeyDictionary()
        )
        self._given: AsyncClient | None = None
        self._given_in: asyncio.AbstractEventLoop | None = None  # the event loop for ``_given``; None: any
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
            "tier_after": None if kept.tier_after is None else tier_option(kept.tier_after),
            "max_age": None if kept.max_age_ms is None else timedelta(milliseconds=kept.max_age_ms), "url": self.url,
            "access": self.access if self.url is None else None,
        }  # fmt: skip
        return _again, (type(self), self.name, self.codec.shape.type, options, self._settings)

    @property
    def url(self) -> str | None:
        """The URL of the server, if the topic was declared with one. A change affects connections opened later."""
        return self._url

    @url.setter
    def url(self, url: str | None) -> None:
        self._url, self.access = url, _access(f"topic {self.name!r}", url, None)

    # -- without the server ----------------------------------------------------------------------------------
    def stream(self, partition: int) -> str:
        """Return the key of a partition's stream."""
        return f"{self.name}:{partition}"

    def partition(self, record: R) -> int:
        """Return the partition of a record.

        Raises TopicError before the number of partitions is known, and CodecError if the record has no key.
        """
        return self._keyed.partition(record, self.partitions)

    def key(self, record: R) -> Key | None:
        """Return the partition key of a record; None without ``partition_by``. Raises CodecError if it has no key."""
        return self._keyed.key(record)

    def decode(self, entry: Entry, partition: int) -> R:
        """Return the record of an entry. Raises UndecodableError if the entry is not such a record."""
        return self.codec.decode(entry, self.stream(partition).encode())

    def place(self, partition: int) -> PartitionLocation:
        """Return the location of a partition, which is currently always on the server of the topic."""
        return PartitionLocation(partition, self.stream(partition))

    @property
    def partitions(self) -> int:
        """The number of partitions. Raises TopicError if it is not declared and not yet known (``ready``)."""
        known = self._settings.partitions if self._settings is not None else self.declared.partitions
        if known is None:
            raise TopicError(f"topic {self.name!r}: the number of partitions is known after ready()")
        return known

    @property
    def agreed(self) -> bool:
        """Whether the settings on the server matched the declaration within the last CHECKED seconds."""
        return self._settings is not None and time.monotonic() < self._check_at

    @property
    def settings(self) -> TopicSettings:
        """The settings on the server. Raises TopicError before the first request (``ready``)."""
        if self._settings is None:
            raise TopicError(f"topic {self.name!r}: its settings are known after ready()")
        return self._settings

    # -- the server ------------------------------------------------------------------------------------------
    def use(self, client: AsyncClient | None = None, sync: Client | None = None) -> None:
        """Send with these clients, which the caller closes.

        ``client`` is used in the running event loop, or in any event loop if none is running.
        """
        if client is not None:
            self._given, self._given_in = client, _running()
        if sync is not None:
            self._sync_client, self._sync_is_ours = sync, False

    def forget(self, client: AsyncClient) -> None:
        """Stop using a client that was set with ``use``."""
        if self._given is client:
            self._given = None
        for loop, (_, used) in list(self._pipelines.items()):
            if used is client:
                del self._pipelines[loop]

    def forget_settings(self) -> None:
        """Read the settings from the server again at the next use: for tests that delete topics."""
        self._settings, self._check_at, self._sender = None, 0.0, None

    @contextmanager
    def elsewhere(self, url: str) -> Iterator[None]:
        """Use another server until the end of this context, as if the topic had just been declared. For tests.

        The caller closes the connections that were opened (``close``) before the context ends.
        """
        ours: dict[str, Any] = {
            "_url": url, "access": Access.of(url), "_settings": None, "_check_at": 0.0, "_sender": None,
            "_pipelines": WeakKeyDictionary(), "_given": None, "_given_in": None, "_sync_client": None,
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
    def pipeline(self) -> CallPipeline:
        """The pipeline of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._pipelines.get(loop)
        if found is None:
            given = self._given if self._given_in in (None, loop) else None
            client = given or AsyncClient(self._where())
            found = self._pipelines[loop] = (CallPipeline(client), client)
        return found[0]

    @property
    def client(self) -> Client:
        """The client of ``sync``."""
        if self._sync_client is None:
            self._sync_client, self._sync_is_ours = Client(self._where()), True
        return self._sync_client

    def _where(self) -> str | Access:
        """Return the argument with which clients are created."""
        where = self.url or self.access
        if where is None:
            raise TopicError(f"topic {self.name!r} has no server: Topic(..., url='redis://...'), or topic.use(client)")
        return where

    async def close(self) -> None:
        """Close the connections that the topic opened in the running event loop."""
        _, client = self._pipelines.pop(asyncio.get_running_loop(), (None, None))
        if client is not None and client is not self._given:
            await client.close()

    def close_sync(self) -> None:
        """Close the connections that ``sync`` opened."""
        if self._sync_is_ours and self._sync_client is not None:
            self._sync_client.close()
            self._sync_client = None

    @cached_property
    def sync(self) -> SyncTopic[R]:
        """The same operations, blocking."""
        return SyncTopic(self)

    async def ready(self) -> TopicSettings:
        """Store the settings of the topic on the server, or compare them. Raises TopicMismatchError if they differ."""
        if not self.agreed:
            await self.pipeline.run(self.agree())
        return self.settings

    async def send(
        self, record: R, *, delay: timedelta | float | None = None, at: datetime | None = None
    ) -> StreamId:  # fmt: skip
        """Append a record and return its ID. In each partition, records have the order of the calls.

        With ``delay``, in seconds, or ``at``, a time with its zone, the server delays the record (TDELAY): it joins its
        partition at that time, with another ID. The token of the delayed entry is returned, which has the form of an
        ID. Raises TopicError for an invalid delay or time.

        Raises CodecError for a record of another type, TopicFullError if the hard limit is reached, TopicMismatchError
        at the first use, and redis.ConnectionError or redis.TimeoutError if the server did not answer. The server may
        have appended the record anyway; ``producer`` sends exactly once.
        """
        pipeline = self.pipeline
        due = delayed.due_of(self.name, delay, at)
        async with pipeline.turn:  # later calls must not overtake this one while the settings are compared
            await self.ready()
            sending = pipeline.start(self.sending(record, due))
        return await sending

    async def send_many(
        self, records: Iterable[R] | AsyncIterable[R], *, delay: timedelta | float | None = None,
        at: datetime | None = None,
    ) -> int:  # fmt: skip
        """Append any number of records, many per command, and return their number.

        ``delay`` and ``at`` apply to all records. Errors are those of ``send``. Records are sent in windows of up to
        8192 records or 8 MB, so use ``send`` for records that arrive slowly. After an error, records before and after
        the one that could not be sent may have been appended.
        """
        due = delayed.due_of(self.name, delay, at)
        sent = 0
        left = aiter(records) if isinstance(records, AsyncIterable) else iter(records)
        under_way: asyncio.Task[int] | None = None  # the previous window, which the server appends at the same time
        await self.ready()
        try:
            while True:
                sender = self.sender()
                collected = await _gathered(sender, left)
                if under_way is not None:
                    sent += await under_way
                    under_way = None
                if not collected.rows:
                    return sent
                await self.ready()
                if self.sender() is not sender:  # the topic has grown since the first record
                    sender = self.sender()
                    collected = sender.gathered(collected.records)
                under_way = asyncio.create_task(self.pipeline.run(self.sending_window(collected, due)))
        except BaseException as error:
            if under_way is not None and isinstance(error, asyncio.CancelledError):
                under_way.cancel()
            elif under_way is not None:
                await asyncio.wait([under_way])
                _ = under_way.cancelled() or under_way.exception()  # only the first error is raised
            raise

    def producer(self, name: str) -> Producer[R]:
        """Return a producer, which sends exactly once even if calls are repeated. See Producer."""
        return Producer(self, name)

    # -- operations of both interfaces -----------------------------------------------------------------------
    def agree(self) -> Steps[TopicSettings]:
        """Return the operation of ``ready``."""
        settings = yield from agree(self.name, self.declared)
        if settings != self._settings:
            yield from retention.enforce_changed(self.name, settings, self._settings)
            self._settings, self._sender = settings, None
        self._check_at = time.monotonic() + CHECKED
        return settings

    def sending(self, record: R, due: delayed.Due | None) -> Steps[StreamId]:
        """Return the operation of ``send``; ``due`` comes from ``delayed.due_of``. Requires ``agree``."""
        return self.sender().send(record) if due is None else delayed.send(self.sender(), record, due)

    def sending_window(self, collected: RecordWindow, due: delayed.Due | None) -> Steps[int]:
        """Return the operation that sends a window of records; its result is their number."""
        if due is None:
            return self.sender().send_window(collected.batches, collected.rows)
        return delayed.send_window(self.sender(), collected.records, due, collected.context)

    def sender(self) -> Sender:
        """Return the object that builds the calls. Requires ``agree``."""
        if self._sender is None:
            streams = [self.stream(at) for at in range(self.partitions)]
            self._sender = Sender(self.name, self.codec, self._keyed, self.settings, streams)
        return self._sender


async def _gathered(sender: Sender, records: AsyncIterator[Any] | Iterator[Any]) -> RecordWindow:
    """Collect records like ``Sender.gathered``, but let other tasks run and pending requests complete in between."""
    collected = RecordWindow(sender)
    while wanted := collected.wanted():
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
        collected.add(some)
        await asyncio.sleep(0)
    return collected


def _access(title: str, url: str | None, access: Access | None) -> Access | None:
    """Return the Access of a topic. Raises TopicError if the URL is invalid."""
    if url is not None and access is not None:
        raise TopicError(f"{title}: url and access both specify the server: use one of them")
    if access is not None and not isinstance(access, Access):
        raise TopicError(f"{title}: access must be a tidelog.Access, not {access!r}")
    if url is None:
        return access
    try:
        return Access.of(url)
    except ValueError as error:
        raise TopicError(f"{title}: {error}") from None


def _again(
    kind: type[Topic[Any]], name: str, record_type: Any, options: dict[str, Any], settings: TopicSettings | None
) -> Any:
    """Restore a topic that was pickled."""
    made = kind(name, record_type, **options)
    made._settings = settings
    return made


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _milliseconds(title: str, span: timedelta | float | None) -> int | None:
    """Convert a time in seconds or a timedelta to ms. Raises TopicError unless it is at least 1 ms."""
    if span is None:
        return None
    if isinstance(span, bool) or not isinstance(span, timedelta | int | float):
        raise TopicError(f"{title}: max_age is seconds or a timedelta: {span!r}")
    ms = round((span.total_seconds() if isinstance(span, timedelta) else span) * 1000)
    if ms < 1:
        raise TopicError(f"{title}: max_age must be positive: {span!r}")
    return ms
