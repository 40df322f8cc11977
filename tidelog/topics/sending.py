"""Converts records to calls: determines the partition, the fields and the command.

Rule 1: the records of one partition keep the order in which they were passed.
Rule 2: consecutive records of a partition with the same fields are one TMAPPEND of up to ROWS rows or BYTES bytes. They
        are encoded and packed together; records with different fields or types are encoded individually.
Rule 3: a partition that has reached its hard limit is detected by the reply to a send, and refused from the next send
        on. Sends in flight can therefore exceed the limit.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from itertools import count, islice
from operator import attrgetter, itemgetter
from typing import Any, Final, Protocol
from zlib import crc32

import hiredis

from tidelog.client import calls, tracecontext
from tidelog.client.entries import StreamId
from tidelog.client.packedrows import tmappend_packed, tstage_packed
from tidelog.client.steps import Steps, checked
from tidelog.client.tracecontext import TraceContext
from tidelog.codecs import Codec, CodecError
from tidelog.topics.partition import Key, canonical, partition_of
from tidelog.topics.settings import Retention, TopicError, TopicSettings
from tidelog.transport.call import Call, Name, Value

log = logging.getLogger(__name__)
ROWS: Final = 500  # maximum rows of one TMAPPEND
BYTES: Final = 1 << 20  # approximate maximum size of the rows of one TMAPPEND
FIRST: Final = 16  # records that are packed before their size is known
PLAIN: Final = "plain"  # the codec whose fields are those of the records
WINDOW: Final = 8192  # maximum rows of one pipeline

PartitionBy = str | Callable[[Any], Key] | None
Digest = Callable[[int, tuple[str, ...], bytes], None]


class TopicFullError(TopicError):
    """A partition has as many entries as its hard limit allows. Nothing was sent."""

    def __init__(self, name: str, partition: int, length: int, limit: int) -> None:
        super().__init__(
            f"topic {name!r}: partition {partition} holds {length:,} entries, and its hard_limit is {limit:,}."
            f" Processors have not finished them, or the topic retains them: tidelog topics show {name}"
        )
        self.name, self.partition, self.length, self.limit = name, partition, length, limit

    def __reduce__(self) -> tuple[type[TopicFullError], tuple[str, int, int, int]]:
        return TopicFullError, (self.name, self.partition, self.length, self.limit)


class Keyed:
    """Determines the keys and the partitions of a topic's records."""

    def __init__(self, title: str, partition_by: PartitionBy, mapping: bool) -> None:
        self._title = title  # of the topic, for messages
        self.by = partition_by
        self._turn = count()  # for round-robin, without keys
        self._key: Callable[[Any], Key] | None = None
        if callable(partition_by):
            self._key = partition_by
        elif partition_by is not None:
            self._key = itemgetter(partition_by) if mapping else attrgetter(partition_by)

    def beginning(self, turn: int) -> Keyed:
        """Return the same, but without keys, the first record belongs to the partition ``turn`` modulo their number."""
        made = copy(self)
        made._turn = count(turn)
        return made

    def partition(self, record: Any, partitions: int) -> int:
        """Return the partition of a record. Raises CodecError if it has no key or a key of another type."""
        if self._key is None:
            return next(self._turn) % partitions
        return self._of(self._found(record), partitions)

    def partitions(self, records: Sequence[Any], partitions: int) -> list[int]:
        """Return the partition of each record. Raises CodecError as ``partition`` does."""
        if self._key is None:
            return [at % partitions for at in islice(self._turn, len(records))]
        if callable(self.by):
            return [self._of(key, partitions) for key in map(self._key, records)]
        try:
            keys: list[Any] = list(map(self._key, records))
        except (KeyError, AttributeError, TypeError):
            return [self.partition(record, partitions) for record in records]
        kinds = set(map(type, keys))
        if kinds == {int}:
            return [crc32(b"%d" % key) % partitions for key in keys]
        if kinds == {str}:
            try:
                return [crc32(key.encode()) % partitions for key in keys]
            except UnicodeEncodeError as error:
                raise CodecError(f"{self._title}: partition_by: a key can't be written: {error}") from None
        return [self._of(key, partitions) for key in keys]

    def _of(self, key: Key, partitions: int) -> int:
        try:
            return partition_of(key, partitions)
        except (TypeError, UnicodeEncodeError) as error:
            raise CodecError(f"{self._title}: partition_by: {error}") from None

    def key(self, record: Any) -> Key | None:
        """Return the key of a record; None if the topic has no keys. Raises CodecError as ``partition`` does."""
        if self._key is None:
            return None
        key = self._found(record)
        if type(key) is not str:
            try:
                canonical(key)
            except TypeError as error:
                raise CodecError(f"{self._title}: partition_by: {error}") from None
        return key

    def _found(self, record: Any) -> Key:
        assert self._key is not None  # noqa: S101 - the callers have checked it
        try:
            return self._key(record)
        except (KeyError, AttributeError, TypeError) as error:
            if callable(self.by):
                raise
            raise CodecError(f"{self._title}: a record has no field {self.by!r}, its partition key: {error}") from None


class PartitionBatch:
    """Consecutive rows of one partition with the same fields."""

    __slots__ = ("fields", "number", "pieces", "size")

    def __init__(self, fields: tuple[Name, ...]) -> None:
        self.fields = fields
        self.pieces: list[bytes] = []  # the values of its rows as RESP bulk strings
        self.number = 0  # of rows
        self.size = 0  # bytes of all pieces

    def add(self, piece: bytes, rows: int = 1) -> None:
        """Add packed rows."""
        self.pieces.append(piece)
        self.number += rows
        self.size += len(piece)

    def append(self, key: str) -> Call[Any]:
        """Return the TMAPPEND of these rows."""
        return tmappend_packed(key, self.fields, self.number, b"".join(self.pieces))

    def stage(self, stage: str, ttl_ms: int, key: str) -> Call[int]:
        """Return the TSTAGE of these rows."""
        return tstage_packed(stage, ttl_ms, key, self.fields, self.number, b"".join(self.pieces))


def bulk(values: Sequence[Value]) -> bytes:
    """Encode values as RESP bulk strings. Raises CodecError for a text that is not UTF-8."""
    try:
        packed: bytes = hiredis.pack_command(tuple(values))  # type: ignore[arg-type]  # its annotation is wrong
    except UnicodeEncodeError as error:
        raise CodecError(f"a text can't be written: {error}") from None
    return packed[packed.index(b"\r\n") + 2 :]  # without the number of values


class Sender:
    """Builds the calls of one topic. ``streams``: the keys of its partitions."""

    def __init__(
        self, name: str, codec: Codec[Any], keyed: Keyed, settings: TopicSettings, streams: Sequence[str],
    ) -> None:  # fmt: skip
        self.name = name
        self.codec = codec
        self.keyed = keyed
        self.streams = streams
        self.retention: Retention = settings.retention
        self._traced = traced(codec)
        self.full: set[int] = set()  # partitions that had reached the hard limit at the last reply

    def encode(self, record: Any, context: TraceContext | None = None) -> tuple[tuple[str, ...], tuple[Value, ...]]:
        """Return the names and values of the entry, with this trace context; None: of the current span."""
        fields, values = self.codec.encode(record)
        if self._traced:
            more, texts = tracecontext.current() if context is None else context
            if more and not tracecontext.has_either(fields):
                return (*fields, *more), (*values, *texts)
        return fields, values

    def send(self, record: Any) -> Steps[StreamId]:
        """Append one record and return its ID."""
        at = self.keyed.partition(record, len(self.streams))
        fields, values = self.encode(record)
        pairs = list(zip(fields, values, strict=True))
        yield from self.room([at])
        first, *after = yield [calls.tappend(self.streams[at], pairs), *self._lengths([at])]
        sent: StreamId
        (sent,) = checked([first])
        self._followed([at], after)
        return sent

    def send_window(self, batches: list[tuple[int, PartitionBatch]], rows: int) -> Steps[int]:
        """Append the rows of one window and return their number."""
        touched = sorted({at for at, _ in batches})
        yield from self.room(touched)
        appends: list[Call[Any]] = [batch.append(self.streams[at]) for at, batch in batches]
        replies = yield [*appends, *self._lengths(touched)]
        checked(replies[: len(appends)])
        self._followed(touched, replies[len(appends) :])
        return rows

    def settled(self, partitions: Sequence[int]) -> Steps[None]:
        """Check the hard limit after an append by another object."""
        after = self._lengths(partitions)
        if after:
            self._followed(partitions, (yield after))

    def numbered(self, number: int, partitions: int) -> Sender:
        """Return a sender for a batch with a number: it divides the same records in the same way each time."""
        made = copy(self)
        made.keyed, made.streams = self.keyed.beginning(number), self.streams[:partitions]
        return made

    def gathered(self, records: Iterable[Any], digest: Digest | None = None) -> RecordWindow:
        """Collect the next records until a window is full."""
        window = RecordWindow(self, digest)
        left = iter(records)
        while (wanted := window.wanted()) and (some := list(islice(left, wanted))):
            window.add(some)
        return window

    # -- the hard limit --------------------------------------------------------------------------------------
    def _lengths(self, partitions: Sequence[int]) -> list[Call[Any]]:
        return [calls.tlen(self.streams[at]) for at in partitions] if self.retention.hard_limit is not None else []

    def _followed(self, partitions: Sequence[int], replies: list[Any]) -> None:
        """Handle the replies to the calls after an append. A failure is only logged, since the append succeeded."""
        failed = next((reply for reply in replies if isinstance(reply, Exception)), None)
        limit = self.retention.hard_limit
        if failed is not None:
            log.warning("topic %s: records were appended, but the lengths can't be read: %s", self.name, failed)
        elif limit is not None:
            self.full.update(at for at, length in zip(partitions, replies, strict=True) if length >= limit)

    def room(self, partitions: Iterable[int]) -> Steps[None]:
        """Check partitions that were full. Raises TopicFullError if one still is."""
        limit = self.retention.hard_limit
        for at in self.full.intersection(partitions):
            (length,) = checked((yield [calls.tlen(self.streams[at])]))
            if limit is not None and length >= limit:
                raise TopicFullError(self.name, at, length, limit)
            self.full.discard(at)


def traced(codec: Codec[Any]) -> bool:
    """Return whether entries of these records may have a trace context: not if the records have such fields."""
    return codec.name != PLAIN or not tracecontext.has_either(field.name for field in codec.shape.fields)


class _Source(Protocol):
    @property
    def codec(self) -> Codec[Any]: ...
    @property
    def keyed(self) -> Keyed: ...
    @property
    def streams(self) -> Sequence[str]: ...


class RecordWindow:
    """Collects the records of one window in ``batches``. ``rows`` is the number of records, 0 at the end.

    ``digest`` is called with the partition, fields and packed values of consecutive rows, without a trace context.
    """

    def __init__(self, source: _Source, digest: Digest | None = None) -> None:
        self._digest = digest
        self._codec = source.codec
        self._keyed = source.keyed
        self._partitions = len(source.streams)
        #: Of the span that is current where the records are collected; they may be sent in another thread.
        self.context = tracecontext.current() if traced(source.codec) else tracecontext.NONE
        self.batches: list[tuple[int, PartitionBatch]] = []  # partition, rows
        self.records: list[Any] = []
        self._open: dict[int, PartitionBatch] = {}  # by partition: the last one
        self._bytes = 0
        self.rows = 0

    def wanted(self) -> int:
        """Return how many records to add next; 0: the window is full."""
        if self.rows >= WINDOW or self._bytes >= 8 * BYTES:
            return 0
        most = BYTES * self.rows // self._bytes if self._bytes else FIRST
        return max(1, min(ROWS, most, WINDOW - self.rows))

    def add(self, records: list[Any]) -> None:
        """Add some records, at most ``wanted()``."""
        self.records += records
        places = self._keyed.partitions(records, self._partitions)
        alike = self._codec.encode_alike(records)
        if alike is None:
            self._add_each(records, places)
            return
        fields, rows = alike
        values: defaultdict[int, list[Value]] = defaultdict(list)  # of the rows of each partition
        for at, row in zip(places, rows, strict=True):
            values[at] += row
        for at, flat in values.items():
            self._add_rows(at, fields, flat)

    def _add_each(self, records: list[Any], places: list[int]) -> None:
        """Add records that differ. Consecutive records of a partition with the same fields are packed together."""
        waiting: dict[int, tuple[tuple[str, ...], list[Value]]] = {}
        for record, at in zip(records, places, strict=True):
            fields, row = self._codec.encode(record)
            before = waiting.get(at)
            if before is not None and before[0] == fields:
                before[1].extend(row)
                continue
            if before is not None:
                self._add_rows(at, *before)
            waiting[at] = fields, list(row)
        for at, (fields, values) in waiting.items():
            self._add_rows(at, fields, values)

    def _add_rows(self, at: int, fields: tuple[str, ...], values: list[Value]) -> None:
        if self._digest is not None:
            self._digest(at, fields, bulk(values))
        self._add(at, fields, values)

    def _add(self, at: int, fields: tuple[str, ...], values: list[Value]) -> None:
        """Add the values of consecutive rows of a partition."""
        more, texts = self.context
        if more and not tracecontext.has_either(fields):
            width = len(fields)
            values = [
                word for row in range(0, len(values), width) for word in (*values[row : row + width], *texts)
            ]  # fmt: skip
            fields = (*fields, *more)
        piece, rows = bulk(values), len(values) // len(fields)
        if len(piece) > 4 * BYTES and rows > 1:  # much larger than the rows before
            half = rows // 2 * len(fields)
            self._add(at, fields, values[:half])
            self._add(at, fields, values[half:])
            return
        batch = self._open.get(at)
        if batch is None or batch.number + rows > ROWS or batch.size >= BYTES or batch.fields != fields:
            batch = self._open[at] = PartitionBatch(fields)
            self.batches.append((at, batch))
        batch.add(piece, rows)
        self._bytes += len(piece)
        self.rows += rows


def check_key_type(title: str, partition_by: PartitionBy, codec: Codec[Any]) -> None:
    """Raise TopicError if ``partition_by`` can't be a key of records of this type."""
    if partition_by is None or callable(partition_by):
        return
    if not isinstance(partition_by, str):
        raise TopicError(f"{title}: partition_by is the name of a field or a function, not {partition_by!r}")
    known = {field.attribute: field for field in codec.shape.fields}
    if not known:
        return  # a dict: checked for each record
    found = known.get(partition_by)
    if found is None:
        raise TopicError(f"{title}: {codec.shape.title} has no field {partition_by!r} (it has {', '.join(known)})")
    if found.nullable or found.kind not in ("str", "int", "bytes", "uuid"):
        kind = "may be None" if found.nullable else f"is {found.kind}"
        raise TopicError(
            f"{title}: the field {partition_by!r} {kind}, and a partition key is str, int, bytes or UUID. partition_by"
            " can also be a function that makes one"
        )
