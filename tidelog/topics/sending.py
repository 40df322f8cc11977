"""Records into calls: which partition, which fields, which command.

Rule 1: the records of one partition stay in the order in which they were given.
Rule 2: consecutive records of a partition with the same fields are one TMAPPEND of up to ROWS rows or BYTES bytes.
Rule 3: what a partition holds beyond its hard limit is seen in the reply to a send, and refused from the next one on.
        So the limit can be exceeded by what was under way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from operator import attrgetter, itemgetter
from typing import Any, Final, Protocol

import hiredis

from tidelog.client import calls
from tidelog.client.calls import Call
from tidelog.client.entries import StreamId
from tidelog.client.packedrows import tmappend_packed, tstage_packed
from tidelog.codecs import Codec, CodecError
from tidelog.topics.facts import Facts, Retention, TopicError
from tidelog.topics.partition import Key, partition_of
from tidelog.topics.steps import Steps, good

log = logging.getLogger(__name__)
ROWS: Final = 500  # of one TMAPPEND
BYTES: Final = 1 << 20  # of the rows of one TMAPPEND
WINDOW: Final = 8192  # rows of one pipeline

PartitionBy = str | Callable[[Any], Key] | None


class TopicFullError(TopicError):
    """A partition holds as many entries as its hard limit allows. Nothing was sent."""

    def __init__(self, name: str, partition: int, length: int, limit: int) -> None:
        super().__init__(
            f"topic {name!r}: partition {partition} holds {length:,} entries, and its hard_limit is {limit:,}."
            " Processors have not finished them, or nothing evicts what they have finished (tidelog topics trim)"
        )
        self.name, self.partition, self.length, self.limit = name, partition, length, limit

    def __reduce__(self) -> tuple[type[TopicFullError], tuple[str, int, int, int]]:
        return TopicFullError, (self.name, self.partition, self.length, self.limit)


class Keyed:
    """How a topic's records find their partitions."""

    def __init__(self, title: str, partition_by: PartitionBy, mapping: bool) -> None:
        self._title = title  # of the topic, for messages
        self._by = partition_by
        self._turn = count()  # without keys, partitions take turns
        self._key: Callable[[Any], Key] | None = None
        if callable(partition_by):
            self._key = partition_by
        elif partition_by is not None:
            self._key = itemgetter(partition_by) if mapping else attrgetter(partition_by)

    def partition(self, record: Any, partitions: int) -> int:
        """The partition of a record. CodecError where it has no key, or one of a wrong type."""
        if self._key is None:
            return next(self._turn) % partitions
        try:
            key = self._key(record)
        except (KeyError, AttributeError, TypeError) as error:
            if callable(self._by):
                raise
            raise CodecError(f"{self._title}: a record has no field {self._by!r}, its partition key: {error}") from None
        try:
            return partition_of(key, partitions)
        except TypeError as error:
            raise CodecError(f"{self._title}: partition_by gives {error}") from None


class Run:
    """Consecutive rows of one partition with the same fields."""

    __slots__ = ("fields", "head", "rows", "size")

    def __init__(self, fields: tuple[str, ...]) -> None:
        self.fields = fields
        self.rows: list[bytes] = []  # the values of each as RESP bulk strings
        self.size = 0  # bytes of all rows
        self.head = len(b"*%d\r\n" % len(fields))  # bytes before them where a row is packed

    def append(self, key: str) -> Call[Any]:
        """The TMAPPEND of these rows."""
        return tmappend_packed(key, self.fields, len(self.rows), b"".join(self.rows))

    def stage(self, stage: str, ttl_ms: int, key: str) -> Call[int]:
        """The TSTAGE of these rows."""
        return tstage_packed(stage, ttl_ms, key, self.fields, len(self.rows), b"".join(self.rows))


Window = tuple[list[tuple[int, Run]], int]  # runs with their partitions, rows in all


class Sender:
    """Makes the calls of one topic. ``streams``: the keys of its partitions."""

    def __init__(
        self, name: str, codec: Codec[Any], keyed: Keyed, facts: Facts, streams: Sequence[str],
    ) -> None:  # fmt: skip
        self.name = name
        self.codec = codec
        self.keyed = keyed
        self.streams = streams
        self.retention: Retention = facts.retention
        self._full: set[int] = set()  # partitions that were beyond the hard limit when they were last seen

    def send(self, record: Any) -> Steps[StreamId]:
        """Append one record; returns its ID."""
        at = self.keyed.partition(record, len(self.streams))
        fields, values = self.codec.encode(record)
        pairs = list(zip(fields, values, strict=True))
        key, kept = self.streams[at], self.retention
        yield from self.room([at])
        if not kept.drops:
            made = [calls.tappend(key, pairs), *self._lengths([at])]
        elif kept.partition_size is not None:
            made = [calls.tappev(key, pairs, count=kept.partition_size), *self._evicted([at], size=False)]
        else:
            made = [calls.tappev(key, pairs, ms=kept.max_age_ms)]
        first, *after = yield made
        sent: StreamId
        (sent,) = good([first])
        self._followed([at], after)
        return sent

    def send_window(self, runs: list[tuple[int, Run]], rows: int) -> Steps[int]:
        """Append the runs of one window; returns the number of their rows."""
        touched = sorted({at for at, _ in runs})
        yield from self.room(touched)
        appends: list[Call[Any]] = [run.append(self.streams[at]) for at, run in runs]
        after = self._evicted(touched) if self.retention.drops else self._lengths(touched)
        replies = yield [*appends, *after]
        good(replies[: len(appends)])
        self._followed(touched, replies[len(appends) :])
        return rows

    def settled(self, partitions: Sequence[int]) -> Steps[None]:
        """What follows an append that was not made here: eviction, or a look at the hard limit."""
        after = self._evicted(partitions) if self.retention.drops else self._lengths(partitions)
        if after:
            self._followed(partitions, (yield after))

    def gathered(self, records: Iterable[Any]) -> Gather:
        """The next records, until a window is full."""
        gather = Gather(self)
        for record in records:
            if gather.add(record):
                break
        return gather

    # -- retention -------------------------------------------------------------------------------------------
    def _evicted(self, partitions: Sequence[int], size: bool = True) -> list[Call[Any]]:
        """Calls that evict what overflow='drop' gives up. ``size``: by size too, not only by age."""
        kept = self.retention
        made: list[Call[Any]] = []
        for at in partitions:
            if size and kept.partition_size is not None:
                made.append(calls.ttrim(self.streams[at], count=kept.partition_size))
            if kept.max_age_ms is not None:
                made.append(calls.ttrim(self.streams[at], ms=kept.max_age_ms))
        return made

    def _lengths(self, partitions: Sequence[int]) -> list[Call[Any]]:
        return [calls.tlen(self.streams[at]) for at in partitions] if self.retention.hard_limit is not None else []

    def _followed(self, partitions: Sequence[int], replies: list[Any]) -> None:
        """What came after an append: its failure is logged, for the records are there."""
        failed = next((reply for reply in replies if isinstance(reply, Exception)), None)
        limit = self.retention.hard_limit
        if failed is not None:
            log.warning("topic %s: records were appended, but nothing could be evicted: %s", self.name, failed)
        elif limit is not None:
            self._full.update(at for at, length in zip(partitions, replies, strict=True) if length >= limit)

    def room(self, partitions: Iterable[int]) -> Steps[None]:
        """Look again at partitions that were full. TopicFullError if one still is."""
        limit = self.retention.hard_limit
        for at in self._full.intersection(partitions):
            (length,) = good((yield [calls.tlen(self.streams[at])]))
            if limit is not None and length >= limit:
                raise TopicFullError(self.name, at, length, limit)
            self._full.discard(at)


class _Source(Protocol):
    @property
    def codec(self) -> Codec[Any]: ...
    @property
    def keyed(self) -> Keyed: ...
    @property
    def streams(self) -> Sequence[str]: ...


class Gather:
    """Collects the records of one window: ``runs``, and ``rows``, their number, 0 at the end."""

    def __init__(self, source: _Source) -> None:
        self._encode = source.codec.encode
        self._partition = source.keyed.partition
        self._partitions = len(source.streams)
        self.runs: list[tuple[int, Run]] = []  # partition, rows
        self.records: list[Any] = []
        self._open: dict[int, Run] = {}  # partition -> its last run
        self._bytes = 0
        self.rows = 0

    def add(self, record: Any) -> bool:
        """Add a record; returns whether the window is full."""
        self.records.append(record)
        at = self._partition(record, self._partitions)
        fields, values = self._encode(record)
        run = self._open.get(at)
        if run is None or run.fields != fields or len(run.rows) >= ROWS or run.size >= BYTES:
            run = self._open[at] = Run(fields)
            self.runs.append((at, run))
        row = hiredis.pack_command(values)[run.head :]  # type: ignore[arg-type]  # its annotation is wrong
        run.rows.append(row)
        size = len(row)
        run.size += size
        self._bytes += size
        self.rows += 1
        return self.rows >= WINDOW or self._bytes >= 8 * BYTES


def check_key_type(title: str, partition_by: PartitionBy, codec: Codec[Any]) -> None:
    """TopicError if ``partition_by`` can't be a key of records of this type."""
    if partition_by is None or callable(partition_by):
        return
    if not isinstance(partition_by, str):
        raise TopicError(f"{title}: partition_by is the name of a field or a function, not {partition_by!r}")
    known = {field.attribute: field for field in codec.shape.fields}
    if not known:
        return  # a dict: seen with each record
    found = known.get(partition_by)
    if found is None:
        raise TopicError(f"{title}: {codec.shape.title} has no field {partition_by!r} (it has {', '.join(known)})")
    if found.nullable or found.kind not in ("str", "int", "bytes", "uuid"):
        kind = "may be None" if found.nullable else f"is {found.kind}"
        raise TopicError(
            f"{title}: the field {partition_by!r} {kind}, and a partition key is str, int, bytes or UUID. partition_by"
            " can also be a function that makes one"
        )
