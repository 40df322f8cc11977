"""``df.write`` and ``df.writeStream`` with ``format("tidelog")``: the writers, as Spark calls them.

    tasks    write(rows)                     stage them; the commit message names the stages
    driver   commit(messages[, batch ID])    publish all stages in one step, in the order of the partitions
             abort(messages[, batch ID])     drop them

Rule 1: a batch of a query is published with the query as fence and the batch ID as epoch. A batch that is run again is
        skipped if it was published, whatever its partitions are now.
Rule 2: Spark may call abort() after a publish that succeeded. abort() does nothing but drop stages, and names of stages
        are never used again, so that is safe.
Rule 3: rows are only appended. In complete mode each batch appends the whole result, as Spark's Kafka sink does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidelog.client.client import StaleEpochError
from tidelog.client.publish import Publisher, Stager
from tidelog.spark.commands import Entries
from tidelog.spark.options import OptionError, Sink

NAME: Final = "spark-tidelog-sink"  # of connections, stages, fences and claims: the beginning of each of these names

Messages = Sequence[WriterCommitMessage | None]


class StaleError(Exception):
    """A batch of a query that comes after a later one was published."""


@dataclass
class Staged(WriterCommitMessage):
    """What a task tells the driver."""

    query: str  # the streaming query's ID, which Spark does not pass to commit(); "" in a batch write
    partition: int
    stages: tuple[str, ...]
    keys: frozenset[bytes]  # the streams that rows are for
    rows: int


def staged(sink: Sink, entries: Entries, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Stage the rows of one task."""
    context = TaskContext.get()
    query = (context.getLocalProperty("sql.streaming.queryId") if context else None) or ""
    batch = (context.getLocalProperty("streaming.sql.batchId") if context else None) or ""
    stager = Stager(sink.access, f"{NAME}-task", f"{NAME}:{query or uuid4().hex}:{batch}", sink.stage_ttl_ms)
    keys: set[bytes] = set()
    for rows in batches:
        parts = list(entries.parts(rows))
        keys.update(part.key for part in parts)
        stager.stage(parts)
    stager.finish()
    return Staged(query, context.partitionId() if context else 0, tuple(stager.names), frozenset(keys), stager.rows)


def of(messages: Messages) -> list[Staged]:
    """The messages of the tasks that succeeded, in the order of the partitions."""
    return sorted((message for message in messages if isinstance(message, Staged)), key=lambda m: m.partition)


def names(messages: list[Staged]) -> list[str]:
    """All stages, in the order of the partitions."""
    return [name for message in messages for name in message.stages]


def publisher(sink: Sink) -> Publisher:
    """What the driver publishes, drops and evicts with."""
    return Publisher(sink.access, f"{NAME}-driver")


def evict(by: Publisher, sink: Sink, messages: list[Staged]) -> None:
    """Evict from the streams that were written to, as ``maxlen`` or ``maxage`` say."""
    if sink.maxlen is not None or sink.maxage_ms is not None:
        keys = {key for message in messages for key in message.keys}
        by.evict(sorted(keys), count=sink.maxlen, ms=sink.maxage_ms)


def drop(sink: Sink, messages: Messages) -> None:
    """Drop what was staged."""
    with publisher(sink) as by:
        by.drop(names(of(messages)))


class TidelogStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, each exactly once."""

    def __init__(self, sink: Sink, schema: StructType) -> None:
        self.sink = sink
        self.entries = Entries(schema, sink.key)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return staged(self.sink, self.entries, iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        done = of(messages)
        if not names(done):
            return
        query = done[0].query
        if not query:
            raise AssertionError("Spark did not tell the tasks which query they work for")
        with publisher(self.sink) as by:
            try:
                by.publish(f"{NAME}:query:{query}", batchId, names(done))
            except StaleEpochError as error:
                raise StaleError(
                    f"batch {batchId} of query {query} comes after a later one was published: another run of the query "
                    f"is ahead, or its checkpoint was put back to an older state ({error})"
                ) from None
            evict(by, self.sink, done)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803, ARG002 - Spark's name and signature
        drop(self.sink, messages)


class TidelogWriter(DataSourceArrowWriter):
    """``df.write``: writes all rows or none. OptionError for ``mode("overwrite")``."""

    def __init__(self, sink: Sink, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('mode("overwrite") is not possible, streams are appended to: use mode("append")')
        self.sink = sink
        self.entries = Entries(schema, sink.key)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return staged(self.sink, self.entries, iterator)

    def commit(self, messages: Messages) -> None:
        done = of(messages)
        stages = names(done)
        if not stages:
            return
        with publisher(self.sink) as by:
            if self.sink.transaction is None:
                by.publish_once(f"{NAME}:jobs", stages)
            else:
                application, version = self.sink.transaction
                try:
                    by.publish(f"{NAME}:txn:{application}", version, stages)
                except StaleEpochError:  # skipped, like a version that was published: as Delta does
                    by.drop(stages)
            evict(by, self.sink, done)

    def abort(self, messages: Messages) -> None:
        drop(self.sink, messages)
