"""``df.write`` and ``df.writeStream`` with ``format("tidelog")``: the writers, as Spark calls them.

    tasks    write(rows)                     stage them; the commit message names the stages
    driver   commit(messages[, batch ID])    publish all stages in one step, in the order of the partitions
             abort(messages[, batch ID])     drop them

Rule 1: a streaming batch is published under the fence of its query and its batch ID. A batch that is run again, in
        whatever partitions, is skipped if it was published.
Rule 2: abort() may come after a publish that succeeded. So it drops stages, by names that are never used again, and
        does nothing else.
Rule 3: rows are only ever appended, in complete mode too: like Kafka's sink, each batch is then the whole result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidelog.client.publish import NAME, Stager, StaleError, drop, evict, publish, publish_once
from tidelog.spark.commands import Entries
from tidelog.spark.options import OptionError, Sink

Messages = Sequence[WriterCommitMessage | None]


@dataclass
class Staged(WriterCommitMessage):
    """What a task tells the driver."""

    query: str  # the streaming query's ID, which commit() isn't told; "" in a batch
    partition: int
    stages: tuple[str, ...]
    keys: frozenset[bytes]  # streams that rows are for
    rows: int


def staged(sink: Sink, entries: Entries, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Stage a task's rows."""
    context = TaskContext.get()
    query = (context.getLocalProperty("sql.streaming.queryId") if context else None) or ""
    batch = (context.getLocalProperty("streaming.sql.batchId") if context else None) or ""
    stager = Stager(sink, f"{NAME}:{query or uuid4().hex}:{batch}")
    keys: set[bytes] = set()
    for rows in batches:
        parts = list(entries.parts(rows))
        keys.update(part.key for part in parts)
        stager.stage(parts)
    stager.finish()
    return Staged(query, context.partitionId() if context else 0, tuple(stager.names), frozenset(keys), stager.rows)


def of(messages: Messages) -> list[Staged]:
    """The messages of those tasks that succeeded, in the order of the partitions."""
    return sorted((message for message in messages if isinstance(message, Staged)), key=lambda m: m.partition)


def names(messages: list[Staged]) -> list[str]:
    return [name for message in messages for name in message.stages]


def touched(messages: list[Staged]) -> set[bytes]:
    return {key for message in messages for key in message.keys}


class TidelogStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query, each exactly once."""

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
        try:
            publish(self.sink, f"{NAME}:query:{query}", batchId, names(done))
        except StaleError as error:
            raise StaleError(
                f"batch {batchId} of query {query} comes after a later one was published: another run of the query is "
                f"ahead, or its checkpoint was put back to an older state ({error})"
            ) from None
        evict(self.sink, touched(done))

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803, ARG002 - Spark's name and signature
        drop(self.sink, names(of(messages)))


class TidelogWriter(DataSourceArrowWriter):
    """Writes a batch: all of it, or nothing."""

    def __init__(self, sink: Sink, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('mode("overwrite") is not possible, streams are appended to: use mode("append")')
        self.sink = sink
        self.entries = Entries(schema, sink.key)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return staged(self.sink, self.entries, iterator)

    def commit(self, messages: Messages) -> None:
        done = of(messages)
        if not names(done):
            return
        if self.sink.transaction is None:
            publish_once(self.sink, names(done))
        else:
            self._publish_version(*self.sink.transaction, names(done))
        evict(self.sink, touched(done))

    def _publish_version(self, application: str, version: int, stages: list[str]) -> None:
        """Publish unless this version was; a lower one than the last is old news, and skipped as well, as in Delta."""
        try:
            publish(self.sink, f"{NAME}:txn:{application}", version, stages)
        except StaleError:
            drop(self.sink, stages)

    def abort(self, messages: Messages) -> None:
        drop(self.sink, names(of(messages)))
