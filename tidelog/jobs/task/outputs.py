"""Output rows, dead letters and the marker as staged entries.

Rule 1: Rows of one partition keep their order, within a table and from call to call.
Rule 2: The marker is in the last stage. Anything published without it does not exist for the job.
Rule 3: A dead letter is published with the epoch that skips its entry, in one step.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec
import pyarrow as pa

from tidelog.client import tracecontext
from tidelog.client.entries import Entry
from tidelog.client.publish import StagedRows
from tidelog.client.steps import drive_over
from tidelog.codecs import CodecError, codec_for
from tidelog.codecs.packed import FIELD, Packed
from tidelog.jobs import keys
from tidelog.jobs.errors import JobError
from tidelog.jobs.replaylog.marker import Marker
from tidelog.jobs.task.calls import CallContext, OutputRowError, SkippedRow
from tidelog.jobs.task.results import TaskOutput, tables
from tidelog.spark import commands
from tidelog.spark.finite import check_finite
from tidelog.spark.partitioning import TopicEntries
from tidelog.topics import TopicError, deadletters
from tidelog.topics.partition import canonical
from tidelog.topics.sending import bulk, traced
from tidelog.transport.leader import LeaderConnection

KEY: Final = "\0key"  # an unwritten column: the bytes of each row's key


class OutputWriter:
    """Converts the function's results for one output to Parts."""

    def __init__(self, output: TaskOutput) -> None:
        self.output = output
        self._entries: dict[tuple[str, ...], TopicEntries] = {}

    def parts(self, batch: pa.RecordBatch) -> list[StagedRows]:
        """Return the rows as Parts. Raises OutputRowError."""
        columns = batch.schema.names
        try:
            if self.output.computed_key or not self.output.plain:
                batch = self._made(batch)
                columns = [name for name in batch.schema.names if name != KEY] if self.output.plain else [FIELD]
            batch, columns = self._traced(batch, columns)
            return list(self._of(columns, self.output.key).parts(batch))
        except (commands.RowError, CodecError) as error:
            raise OutputRowError(str(error)) from None

    def _traced(self, batch: pa.RecordBatch, columns: list[str]) -> tuple[pa.RecordBatch, list[str]]:
        """Add the trace context of the current span to each row, unless the topic or the table has such a field."""
        if tracecontext.has_either(columns):
            return batch, [columns[at] for at in tracecontext.first_those(columns)]
        names, values = tracecontext.current()
        if not names or not traced(self.output.topic.codec):
            return batch, columns
        for name, value in zip(names, values, strict=True):
            batch = batch.append_column(name, pa.array([value] * batch.num_rows, pa.string()))
        return batch, [*columns, *names]

    def _of(self, columns: Sequence[str], key: str | None) -> TopicEntries:
        known = self._entries.get(tuple(columns))
        if known is None:
            output = self.output
            uuids = key is not None and any(field.name == key and field.kind == "uuid" for field in output.fields)
            name, by = output.topic.name, KEY if output.computed_key or (key is not None and not output.plain) else key
            partitions = output.facts.partitions or 1
            # Packed records are written unchanged, as one field.
            kinds = {field.name: field.kind for field in output.fields}
            known = TopicEntries(name, partitions, list(columns), by, uuids, "plain", kinds)
            self._entries[tuple(columns)] = known
        return known

    def _made(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add the columns that are computed from entire rows: keys by a function, and packed records."""
        rows = batch.to_pylist(maps_as_pydicts="lossy")
        output = self.output
        made = {name: batch.column(name) for name in batch.schema.names} if output.plain else {}
        if output.computed_key:
            made[KEY] = pa.array([self._key(row) for row in rows], pa.binary())
        elif output.key is not None:
            made[KEY] = batch.column(output.key)
        if not output.plain:
            made[FIELD] = pa.array(self._packed(batch, rows), pa.binary())
        return pa.RecordBatch.from_pydict(made)

    def _key(self, row: dict[str, Any]) -> bytes:
        topic = self.output.topic
        shape = topic.codec.shape
        try:
            key = topic.key(row if shape.fields == () else shape.made(self._record(row)))
            return b"" if key is None else canonical(key)
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            raise OutputRowError(f"topic {topic.name!r}: the key of a row cannot be computed: {error!r}") from None

    def _packed(self, batch: pa.RecordBatch, rows: list[dict[str, Any]]) -> list[bytes]:
        """Return rows as records in the codec of the topic."""
        fields = self._named
        if any(
            name in fields and (fields[name].is_json or (batch.column(name).null_count and not fields[name].nullable))
            for name in batch.schema.names
        ):
            rows = list(map(self._record, rows))
        name, codec = self.output.topic.name, self.output.facts.codec
        check_finite(batch, batch.schema.names, codec)
        try:
            if any(field.kind in ("enum", "literal") for field in self.output.topic.codec.shape.fields):
                return list(map(self._as_record, rows))
            written = list(map(self._packer.written, rows))
        except CodecError as error:
            raise OutputRowError(f"topic {name!r}: a row cannot be encoded as {codec}: {error}") from None
        try:
            self._verify(written)
        except Exception as error:  # noqa: BLE001 - the user's types may raise anything
            title = self.output.topic.codec.shape.title
            raise OutputRowError(f"topic {name!r}: a row is not a {title}: {error}") from None
        return written

    def _as_record(self, row: dict[str, Any]) -> bytes:
        """Return a row as a record, for types whose text may be a number's. Raises OutputRowError or CodecError."""
        codec = self.output.topic.codec
        try:
            made = codec.shape.made(self._record(row))
        except (ValueError, TypeError) as error:
            raise OutputRowError(
                f"topic {self.output.topic.name!r}: a row is not a {codec.shape.title}: {error}"
            ) from None
        _, (data,) = codec.encode(made)
        return bytes(data) if isinstance(data, bytes | bytearray | memoryview) else str(data).encode()

    def _verify(self, written: list[bytes]) -> None:
        """Raise the errors of ``Packed.record`` if a record is not of the topic's type."""
        codec = self.output.topic.codec
        if isinstance(codec, Packed) and codec.shape.fields:
            for data in written:
                codec.record(data)

    def _record(self, row: dict[str, Any]) -> dict[str, Any]:
        """Remove nulls that the type does not allow, and decode text with JSON."""
        fields = self._named
        made = {}
        for name, value in row.items():
            field = fields.get(name)
            if value is None and field is not None and not field.nullable:
                continue
            if field is not None and field.is_json and isinstance(value, str):
                try:
                    value = msgspec.json.decode(value)
                except msgspec.DecodeError as error:
                    raise OutputRowError(f"topic {self.output.topic.name!r}: {name} is not JSON: {error}") from None
            made[name] = value
        return made

    @cached_property
    def _named(self) -> dict[str, Any]:
        return {field.name: field for field in self.output.fields}

    @cached_property
    def _packer(self) -> Packed[dict[str, Any]]:
        made = codec_for(dict[str, Any], self.output.facts.codec)
        assert isinstance(made, Packed)  # noqa: S101 - all codecs but plain are packed
        return made


class EpochOutput:
    """Collects the results of an epoch's calls as Parts."""

    def __init__(self, context: CallContext, writers: Mapping[str, OutputWriter]) -> None:
        self._context = context
        self._writers = writers
        self._outputs = {name: writer.output for name, writer in writers.items()}
        self.parts: list[StagedRows] = []

    def take(self, returned: Any) -> None:
        """Accept the result of one call completely, or raise FunctionError or OutputRowError."""
        found = tables(self._context, self._outputs, returned)
        made = [part for output, batch in found for part in self._writers[output.topic.name].parts(batch)]
        self.parts += made

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


def create_dead_letter_topics(servers: LeaderConnection, context: CallContext, topics: Sequence[str]) -> None:
    """Create the topics for dead letters of these topics. Raises JobError if one of them exists with other settings."""
    for topic in topics:
        try:
            drive_over(servers.ask, deadletters.ready(_dead_letter_topic(context, topic), deadletters.home(topic)))
        except TopicError as error:
            raise JobError(f"{context}: the dead letters of topic {topic!r} cannot be written: {error}") from None


def dead_letter_part(
    skipped: SkippedRow, partition: int, entry: Entry, context: CallContext, now_ms: int
) -> StagedRows:
    """Return the dead letter of an entry from this partition of its topic."""
    topic = skipped.topic
    try:
        key = topic.key(topic.decode(entry, partition))
    except Exception:  # noqa: BLE001 - not a record, or a record without a key
        key = None
    pairs = deadletters.fields_of(
        skipped.topic.name, partition, entry, key, f"job.{context.job.name}", skipped.error, 1, socket.gethostname(),
        now_ms,
    )  # fmt: skip
    return _part(deadletters.stream_of(_dead_letter_topic(context, topic.name)), pairs)


def _dead_letter_topic(context: CallContext, topic: str) -> str:
    assert context.job.dead_letter is not None  # noqa: S101 - otherwise no row is skipped
    return context.job.dead_letter.target(topic)


def marker_part(context: CallContext, marker: Marker) -> StagedRows:
    """Return the marker of an epoch."""
    pairs = [(name.encode(), value.encode()) for name, value in marker.fields().items()]
    return _part(keys.log(context.job.name, context.partition), pairs)


def _part(key: str, pairs: Sequence[tuple[bytes, bytes]]) -> StagedRows:
    return StagedRows(key.encode(), tuple(name for name, _ in pairs), 1, bulk([value for _, value in pairs]))
