"""``format("tidelog")``: the data source and its readers for batches and streams, as Spark calls them.

    load()             TidelogDataSource(options) in its own process; it is then pickled
    batch              reader().partitions() once, then read() in the tasks, for each partition
    stream             streamReader() in a process that lives as long as the query: initialOffset() if there is no
                       checkpoint, then latestOffset() about 90 times per second, and partitions() for each batch
    stream, restarted  partitions() of the unfinished batch, with the offsets in the checkpoint

Rule 1: the result of read() depends only on its partition.
Rule 2: Spark may call commit() and stop() late, or never. Nothing depends on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidelog.arrow.columns import BATCH_ROWS, Columns
from tidelog.client.entries import StreamId
from tidelog.spark.columns import DEFAULT_SCHEMA, TOPIC_SCHEMA, columns_of
from tidelog.spark.direct import placed, read_pages_of, tasks_of
from tidelog.spark.filters import Narrowed, narrowed
from tidelog.spark.offsets import ZERO, DataLossError, Ids, OffsetRange, Offsets, data_loss
from tidelog.spark.options import ReadOptions, for_sink, for_source, is_source
from tidelog.spark.optionvalues import BATCH, STREAM, OptionValues
from tidelog.spark.ranges import Ranges, grouped, report
from tidelog.spark.sink import TidelogStreamWriter, TidelogWriter
from tidelog.spark.topicread import MARK
from tidelog.transport.leader import LeaderConnection


class TidelogDataSource(DataSource):
    """The entry point, created by Spark from the options of a format. Raises OptionError for invalid options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.given = OptionValues(options)
        if is_source(self.given):
            for_source(self.given)  # so that load() fails for an invalid option, and not a later query

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> str:
        return TOPIC_SCHEMA if for_source(self.given).subscription.topic else DEFAULT_SCHEMA

    def reader(self, schema: StructType) -> TidelogReader:
        return TidelogReader(for_source(self.given, BATCH), schema)

    def streamReader(self, schema: StructType) -> TidelogStreamReader:  # noqa: N802 - Spark's name
        return TidelogStreamReader(for_source(self.given, STREAM), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TidelogWriter:
        return TidelogWriter(for_sink(self.given, BATCH), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TidelogStreamWriter:  # noqa: N802, ARG002 - Spark's
        return TidelogStreamWriter(for_sink(self.given, STREAM), schema)


def planned(offsets: Offsets, made: Columns, spans: list[OffsetRange]) -> list[Ranges]:
    """Convert spans to partitions: verify them, divide them into ``minPartitions``, combine them into
    ``maxPartitions``, and choose the server for each.

    Raises DataLossError for lost entries, and MistakenColumnError for columns that would always be null.
    """
    source = offsets.source
    if offsets.topic is not None:
        offsets.topic.check_fields(made.wanted.names)
    if not spans:
        return []
    report(offsets.verify({span.key: span.after for span in spans}), source.fail_on_loss)
    if made.wanted.names:
        for key, entry in offsets.firsts(spans).items():
            made.check_names(key, entry)
    replicas = offsets.servers.replicas() if source.from_replica else ()
    pieces = placed(offsets, offsets.split(spans, source.min_partitions, source.max_records))
    if len(pieces) > source.max_partitions:
        groups = grouped(offsets.counted(pieces), source.max_partitions, source.max_records)
    else:
        groups = tasks_of(source, pieces)
    places = replicas or ("",)
    return [Ranges(tuple(group), places[number % len(places)]) for number, group in enumerate(groups)]


def batches(source: ReadOptions, made: Columns, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition, as a task returns them to Spark."""
    if not isinstance(partition, Ranges):  # without partitions, Spark reads a dummy partition
        return
    with closing(LeaderConnection(source.access, f"{source.name}-task")) as servers:
        for piece in partition.ranges:
            for page in read_pages_of(source, servers, piece, partition.replica, made.wanted, BATCH_ROWS):
                yield made.batch(piece.key, page)


class TidelogReader(DataSourceReader):
    """Implements ``spark.read``: reads from the starting to the ending offsets."""

    def __init__(self, source: ReadOptions, schema: StructType) -> None:
        self.source = source
        self.columns = columns_of(schema, source.mode, bool(source.subscription.topic))
        self.narrowed = Narrowed()

    @property
    def pushFilters(self) -> Callable[[list[Filter]], Iterable[Filter]]:  # noqa: N802 - Spark's name
        """Restrict the read by the filters. Spark applies them to the rows as well.

        Spark refuses a source that has this method while spark.sql.python.filterPushdown.enabled is false, the default,
        although it does not call the method then. It detects the method by ``__func__``, so this one looks inherited.
        """

        def push(filters: list[Filter]) -> Iterable[Filter]:
            self.narrowed = narrowed(filters)
            return filters

        push.__func__ = DataSourceReader.pushFilters  # type: ignore[attr-defined]
        return push

    def partitions(self) -> Sequence[InputPartition]:
        with closing(Offsets(self.source)) as offsets:
            starts = offsets.start()
            ends = offsets.end(starts)
            spans = [OffsetRange(key, starts[key], end) for key, end in ends.items()]
            if self.narrowed != Narrowed():
                spans = offsets.narrowed(spans, self.narrowed)
            return planned(offsets, self.columns, spans)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches(self.source, self.columns, partition)


class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Implements ``spark.readStream``."""

    def __init__(self, source: ReadOptions, schema: StructType) -> None:
        self.source = source
        self.columns = columns_of(schema, source.mode, bool(source.subscription.topic))
        self._offsets: Offsets | None = None  # only in the process of the query: tasks receive this object pickled
        self._target: Ids | None = None  # with availableNow, the last IDs at the start of the query
        self._triggered = -float("inf")  # monotonic time of the last batch that minOffsetsPerTrigger permitted

    @property
    def offsets(self) -> Offsets:
        if self._offsets is None:
            self._offsets = Offsets(self.source)
        return self._offsets

    # -- offsets ------------------------------------------------------------------------------------------------
    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        mark = self.offsets.mark()
        return written(self.offsets.start()) | mark

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        if self.source.max_offsets is not None:
            return ReadMaxRows(self.source.max_offsets)
        if self.source.max_bytes is not None:
            return ReadMaxBytes(self.source.max_bytes)
        if self.source.min_offsets is not None:
            return ReadMinRows(self.source.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self.offsets.lasts(fresh=True)

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802 - Spark's name
        begun = read(start)
        mark = self.offsets.mark()  # before the topic is compared: the next call detects a later replacement
        self.offsets.check_topic(start)
        try:
            spans = self._available(begun)
        except DataLossError:
            self.offsets.check_topic(start, fresh=True)  # this error has more details
            raise
        if not isinstance(limit, ReadAllAvailable) and self.source.min_offsets is not None and self._target is None:
            spans = self._enough(spans, self.source.min_offsets)
        if not isinstance(limit, ReadAllAvailable) and spans:  # Spark knows one limit, but there can be two
            if self.source.max_offsets is not None:
                spans = self.offsets.limited(spans, self.source.max_offsets)
            if self.source.max_bytes is not None:
                spans = self.offsets.limited_bytes(spans, self.source.max_bytes)
        return written(begun | {span.key: span.end for span in spans}) | mark

    def reportLatestOffset(self) -> dict[str, str] | None:  # noqa: N802 - Spark's name
        mark = self.offsets.mark()
        return written(self.offsets.lasts()) | mark

    def _available(self, begun: Ids) -> list[OffsetRange]:
        """Return the readable spans. Raises DataLossError, with ``failOnDataLoss``, if a stream ends before its ID."""
        lasts = self.offsets.lasts()
        spans = []
        for key, last in lasts.items():
            after = begun.get(key, ZERO)
            if last < after and self.source.fail_on_loss:
                info = self.offsets.infos([key])[key]
                if info is None or info.last < after:
                    what = "it was deleted" if info is None else "it is shorter than before"
                    raise data_loss(self.source, key, after, info, what)
            end = last if self._target is None else min(last, self._target.get(key, ZERO))
            if end > after:
                spans.append(OffsetRange(key, after, end))
        self._check_deleted(begun, lasts)
        return spans

    def _check_deleted(self, begun: Ids, lasts: Ids) -> None:
        """Raise DataLossError, with ``failOnDataLoss``, if a key that matched the pattern and was read was deleted."""
        gone = [key for key, after in begun.items() if key not in lasts and after > ZERO]
        if gone and self.source.subscription.pattern and self.source.fail_on_loss:
            for key, info in self.offsets.infos(gone).items():
                if info is None:
                    raise data_loss(self.source, key, begun[key], None, "it was deleted")

    def _enough(self, spans: list[OffsetRange], least: int) -> list[OffsetRange]:
        """Return the spans if they have ``least`` entries in total or the maximum delay has passed, otherwise none."""
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
        self.offsets.check_topic(end)
        spans = [
            OffsetRange(key, begun.get(key, ZERO), last) for key, last in ends.items() if last > begun.get(key, ZERO)
        ]
        try:
            return planned(self.offsets, self.columns, spans)
        except DataLossError:
            self.offsets.check_topic(end, fresh=True)
            raise

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches(self.source, self.columns, partition)

    def stop(self) -> None:
        if self._offsets is not None:
            self._offsets.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_offsets": None}


def written(ids: Ids) -> dict[str, str]:
    """Return an offset in the form that Spark stores."""
    return {key: str(last) for key, last in sorted(ids.items())}


def read(offset: dict[str, str]) -> Ids:
    """Parse an offset in the form that Spark stores, without the mark of a topic."""
    return {key: StreamId.parse(last) for key, last in offset.items() if not last.startswith(MARK)}
