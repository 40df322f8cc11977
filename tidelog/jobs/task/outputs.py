"""Rows of outputs, dead letters and the marker as staged entries.

Rule 1: rows of one partition keep their order, within a table and from call to call.
Rule 2: the marker is in the last stage. What is published without it does not exist for the job.
Rule 3: a dead letter is published with the epoch that leaves its entry out: both happen, or none.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec
import pyarrow as pa

from tidelog.client.entries import Entry
from tidelog.client.publish import StagedRows
from tidelog.client.steps import drive
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
from tidelog.topics.sending import bulk
from tidelog.transport.leader import LeaderConnection

KEY: Final = "\0key"  # a column that is not written: the bytes of each row's key


class OutputWriter:
    """Makes Parts of what the function returns, for one output."""

    def __init__(self, output: TaskOutput) -> None:
        self.output = output
        self._entries: dict[tuple[str, ...], TopicEntries] = {}

    def parts(self, batch: pa.RecordBatch) -> list[StagedRows]:
        """The rows as Parts. RowError."""
        columns = batch.schema.names
        try:
            if self.output.made_key or not self.output.plain:
                batch = self._made(batch)
                columns = [name for name in batch.schema.names if name != KEY] if self.output.plain else [FIELD]
            return list(self._of(columns, self.output.key).parts(batch))
        except (commands.RowError, CodecError) as error:
            raise OutputRowError(str(error)) from None

    def _of(self, columns: Sequence[str], key: str | None) -> TopicEntries:
        known = self._entries.get(tuple(columns))
        if known is None:
            output = self.output
            uuids = key is not None and any(field.name == key and field.kind == "uuid" for field in output.fields)
            name, by = output.topic.name, KEY if output.made_key or (key is not None and not output.plain) else key
            partitions = output.facts.partitions or 1
            # What is packed was packed here: one field, as it is.
            kinds = {field.name: field.kind for field in output.fields}
            known = TopicEntries(name, partitions, list(columns), by, uuids, "plain", kinds)
            self._entries[tuple(columns)] = known
        return known

    def _made(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """With the columns that are made of whole rows: keys by a function, and packed records."""
        rows = batch.to_pylist(maps_as_pydicts="lossy")
        output = self.output
        made = {name: batch.column(name) for name in batch.schema.names} if output.plain else {}
        if output.made_key:
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
        except Exception as error:  # noqa: BLE001 - the user's own function
            raise OutputRowError(f"topic {topic.name!r}: the key of a row can't be made: {error!r}") from None

    def _packed(self, batch: pa.RecordBatch, rows: list[dict[str, Any]]) -> list[bytes]:
        """Rows as records in the codec of the topic."""
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
            raise OutputRowError(f"topic {name!r}: a row can't be written as {codec}: {error}") from None
        try:
            self._read_again(written)
        except Exception as error:  # noqa: BLE001 - also what the user's own types raise
            title = self.output.topic.codec.shape.title
            raise OutputRowError(f"topic {name!r}: a row is no {title}: {error}") from None
        return written

    def _as_record(self, row: dict[str, Any]) -> bytes:
        """A row with a column of text that may stand for a number: as a record. RowError, CodecError."""
        codec = self.output.topic.codec
        try:
            made = codec.shape.made(self._record(row))
        except (ValueError, TypeError) as error:
            raise OutputRowError(
                f"topic {self.output.topic.name!r}: a row is no {codec.shape.title}: {error}"
            ) from None
        _, (data,) = codec.encode(made)
        return bytes(data) if isinstance(data, bytes | bytearray | memoryview) else str(data).encode()

    def _read_again(self, written: list[bytes]) -> None:
        """What is no record of the topic's type must not be written. Errors of ``Packed.record``."""
        codec = self.output.topic.codec
        if isinstance(codec, Packed) and codec.shape.fields:
            for data in written:
                codec.record(data)

    def _record(self, row: dict[str, Any]) -> dict[str, Any]:
        """Without nulls that the type does not have; text that is JSON as what it says."""
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
                    raise OutputRowError(f"topic {self.output.topic.name!r}: {name} is no JSON: {error}") from None
            made[name] = value
        return made

    @cached_property
    def _named(self) -> dict[str, Any]:
        return {field.name: field for field in self.output.fields}

    @cached_property
    def _packer(self) -> Packed[dict[str, Any]]:
        made = codec_for(dict[str, Any], self.output.facts.codec)
        assert isinstance(made, Packed)  # noqa: S101 - all but plain are
        return made


class EpochOutput:
    """Takes what the calls of an epoch return, and keeps it as Parts."""

    def __init__(self, place: CallContext, writers: Mapping[str, OutputWriter]) -> None:
        self._place = place
        self._writers = writers
        self._outputs = {name: writer.output for name, writer in writers.items()}
        self.parts: list[StagedRows] = []

    def take(self, returned: Any) -> None:
        """What one call returned. FunctionError, RowError: then nothing of it was taken."""
        found = tables(self._place, self._outputs, returned)
        made = [part for output, batch in found for part in self._writers[output.topic.name].parts(batch)]
        self.parts += made

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


def create_dead_letter_topics(servers: LeaderConnection, place: CallContext, topics: Sequence[str]) -> None:
    """Make the topics for the dead letters of these topics. JobError where one is something else."""
    for topic in topics:
        try:
            drive(lambda made: servers.ask(*made), deadletters.ready(topic + deadletters.DEAD))
        except TopicError as error:
            raise JobError(f"{place}: the dead letters of topic {topic!r} can't be written: {error}") from None


def dead_letter_part(skipped: SkippedRow, partition: int, entry: Entry, place: CallContext, now_ms: int) -> StagedRows:
    """The dead letter of an entry from this partition of its topic."""
    topic = skipped.topic
    try:
        key = topic.key(topic.decode(entry, partition))
    except Exception:  # noqa: BLE001 - an entry that is no record, or a record without a key
        key = None
    pairs = deadletters.fields_of(
        skipped.topic.name, partition, entry, key, f"job.{place.job.name}", skipped.error, 1, socket.gethostname(),
        now_ms,
    )  # fmt: skip
    return _part(deadletters.stream_of(skipped.topic.name + deadletters.DEAD), pairs)


def marker_part(place: CallContext, marker: Marker) -> StagedRows:
    """The marker of an epoch."""
    pairs = [(name.encode(), value.encode()) for name, value in marker.fields().items()]
    return _part(keys.log(place.job.name, place.partition), pairs)


def _part(key: str, pairs: Sequence[tuple[bytes, bytes]]) -> StagedRows:
    return StagedRows(key.encode(), tuple(name for name, _ in pairs), 1, bulk([value for _, value in pairs]))
