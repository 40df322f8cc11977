"""``format("tidelog")`` for Spark: the data source, and its readers for batch and stream.

What Spark does with them, as far as it matters here:

    load()             TidelogDataSource(options), in a process of its own; pickled from then on
    batch              reader().partitions() once, then read() for each in the tasks
    stream             streamReader() in one process that lives as long as the query: initialOffset() for a query
                       without a checkpoint, then latestOffset() about 90 times a second, partitions() for each batch
    stream, restarted  partitions() of the batch that was under way, for the offsets in the checkpoint

Rule 1: read() depends on nothing but its partition. commit() and stop() may be called late or never; neither is used.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidelog.client.entries import StreamId
from tidelog.spark.columns import BATCH_ROWS, DEFAULT_SCHEMA, Columns
from tidelog.spark.offsets import ZERO, Ids, Offsets, Span, data_loss
from tidelog.spark.options import BATCH, STREAM, Given, Source, for_sink, for_source, is_source
from tidelog.spark.ranges import Range, read_pages, report
from tidelog.spark.sink import TidelogStreamWriter, TidelogWriter


class TidelogDataSource(DataSource):
    """What Spark makes of ``format("tidelog")`` and its options. OptionError for options that can't be used."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.given = Given(options)
        if is_source(self.given):
            for_source(self.given)  # so that load() fails where an option is wrong, not a query later on

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> str:
        for_source(self.given)
        return DEFAULT_SCHEMA

    def reader(self, schema: StructType) -> TidelogReader:
        return TidelogReader(for_source(self.given, BATCH), schema)

    def streamReader(self, schema: StructType) -> TidelogStreamReader:  # noqa: N802 - Spark's name
        return TidelogStreamReader(for_source(self.given, STREAM), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TidelogWriter:
        return TidelogWriter(for_sink(self.given, BATCH), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TidelogStreamWriter:  # noqa: N802, ARG002 - Spark's
        return TidelogStreamWriter(for_sink(self.given, STREAM), schema)


def planned(offsets: Offsets, spans: list[Span]) -> list[Range]:
    """Spans as partitions: checked for losses, in as many pieces as are wanted, each with its server."""
    source = offsets.source
    if not spans:
        return []
    report(offsets.verify({span.key: span.after for span in spans}), source.fail_on_loss)
    replicas = offsets.servers.replicas() if source.from_replica else ()
    pieces = offsets.split(spans, source.min_partitions)
    return [
        Range.of(span, replicas[number % len(replicas)] if replicas else "") for number, (span, _) in enumerate(pieces)
    ]


def batches(source: Source, made: Columns, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task hands to Spark for its partition."""
    if isinstance(partition, Range):  # Spark makes up a partition of its own where there is none
        for page in read_pages(source, partition, made.wanted, BATCH_ROWS):
            yield made.batch(partition.key, page)


class TidelogReader(DataSourceReader):
    """A read of what is there, from the starting to the ending offsets."""

    def __init__(self, source: Source, schema: StructType) -> None:
        self.source = source
        self.columns = Columns(schema, source.mode)

    def partitions(self) -> Sequence[InputPartition]:
        offsets = Offsets(self.source)
        try:
            starts = offsets.start()
            ends = offsets.end(starts)
            return planned(offsets, [Span(key, starts[key], end) for key, end in ends.items()])
        finally:
            offsets.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches(self.source, self.columns, partition)


class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A read that goes on."""

    def __init__(self, source: Source, schema: StructType) -> None:
        self.source = source
        self.columns = Columns(schema, source.mode)
        self._offsets: Offsets | None = None  # only in the query's own process: tasks get this object pickled
        self._target: Ids | None = None  # for availableNow: what there was when the query started
        self._triggered = -float("inf")  # monotonic seconds; when minOffsetsPerTrigger last let a batch through

    @property
    def offsets(self) -> Offsets:
        if self._offsets is None:
            self._offsets = Offsets(self.source)
        return self._offsets

    # -- offsets ------------------------------------------------------------------------------------------------
    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return written(self.offsets.start())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        if self.source.max_offsets is not None:
            return ReadMaxRows(self.source.max_offsets)
        if self.source.min_offsets is not None:
            return ReadMinRows(self.source.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self.offsets.tails(fresh=True)

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802 - Spark's name
        begun = read(start)
        spans = self._available(begun)
        if not isinstance(limit, ReadAllAvailable) and self.source.min_offsets is not None and self._target is None:
            spans = self._enough(spans, self.source.min_offsets)
        if isinstance(limit, ReadMaxRows) and spans:
            spans = self.offsets.limited(spans, limit.max_rows)
        return written(begun | {span.key: span.end for span in spans})

    def reportLatestOffset(self) -> dict[str, str] | None:  # noqa: N802 - Spark's name
        return written(self.offsets.tails())

    def _available(self, begun: Ids) -> list[Span]:
        """What there is to read after these IDs. DataLossError where a stream ends before its ID."""
        tails = self.offsets.tails()
        spans = []
        for key, tail in tails.items():
            after = begun.get(key, ZERO)
            if tail < after and self.source.fail_on_loss:
                info = self.offsets.infos([key])[key]
                if info is None or info.last < after:
                    raise data_loss(key, after, info, "it was deleted" if info is None else "it is shorter than before")
            end = tail if self._target is None else min(tail, self._target.get(key, ZERO))
            if end > after:
                spans.append(Span(key, after, end))
        return self._and_deleted(begun, tails, spans)

    def _and_deleted(self, begun: Ids, tails: Ids, spans: list[Span]) -> list[Span]:
        """For a pattern: keys that were read and are gone. Keys that were named and are no more keep their place."""
        gone = [key for key, after in begun.items() if key not in tails and after > ZERO]
        if gone and self.source.subscription.pattern and self.source.fail_on_loss:
            infos = self.offsets.infos(gone)
            for key, info in infos.items():
                if info is None:
                    raise data_loss(key, begun[key], None, "it was deleted")
        return spans

    def _enough(self, spans: list[Span], least: int) -> list[Span]:
        """The spans if they have enough entries together, or if that took too long; else none."""
        if not spans:
            return []
        now = time.monotonic()
        if now - self._triggered < self.source.max_delay_ms / 1000 and sum(self.offsets.counts(spans)) < least:
            return []
        self._triggered = now
        return spans

    # -- reading ------------------------------------------------------------------------------------------------
    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        begun, ends = read(start), read(end)
        spans = [Span(key, begun.get(key, ZERO), last) for key, last in ends.items() if last > begun.get(key, ZERO)]
        return planned(self.offsets, spans)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches(self.source, self.columns, partition)

    def stop(self) -> None:
        if self._offsets is not None:
            self._offsets.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_offsets": None}


def written(ids: Ids) -> dict[str, str]:
    """An offset as Spark keeps it."""
    return {key: str(place) for key, place in sorted(ids.items())}


def read(offset: dict[str, str]) -> Ids:
    """An offset as it was kept."""
    return {key: StreamId.parse(place) for key, place in offset.items()}
