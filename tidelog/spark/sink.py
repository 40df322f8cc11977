"""``df.write`` and ``df.writeStream`` with ``format("tidelog")``: the writers, as Spark calls them.

    tasks    write(rows)                     stage them; the commit message names the stages
    driver   commit(messages[, batch ID])    publish all stages in one step, in the order of the partitions
             abort(messages[, batch ID])     drop them

Rule 1: a batch of a query is published with the query as fence and the batch ID as epoch. A batch that is run again is
        skipped if it was published, whatever its partitions are now.
        A batch of the same number that is another one fails (checks.py): skipping it would lose its rows.
Rule 2: Spark may call abort() after a publish that succeeded. abort() does nothing but drop stages, and names of stages
        are never used again, so that is safe.
        The check of a batch for a topic is made of all its rows: which partition has how many changes as a topic grows.
Rule 3: rows are only appended. In complete mode each batch appends the whole result, as Spark's Kafka sink does.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidelog.client import calls
from tidelog.client.client import ConflictError, StaleEpochError
from tidelog.client.publish import Publisher, Stager
from tidelog.client.steps import good
from tidelog.client.wire import ReplyError
from tidelog.spark import checks
from tidelog.spark.commands import Entries
from tidelog.spark.given import NONE, OptionError
from tidelog.spark.options import Sink
from tidelog.spark.partitioning import TopicEntries
from tidelog.spark.topics import Target, target_of

NAME: Final = "spark-tidelog-sink"  # of connections, stages, fences and claims: the beginning of each of these names

log = logging.getLogger(__name__)

Messages = Sequence[WriterCommitMessage | None]


class StaleError(Exception):
    """A batch of a query that comes after a later one was published."""


class OtherBatchError(Exception):
    """A batch whose number was published before, for something else."""


@dataclass
class Staged(WriterCommitMessage):
    """What a task tells the driver."""

    query: str  # the streaming query's ID, which Spark does not pass to commit(); "" in a batch write
    partition: int
    stages: tuple[str, ...]
    rows: Mapping[bytes, int]  # the number of rows for each stream


def made(sink: Sink, schema: StructType) -> tuple[Target | None, Entries | TopicEntries]:
    """The topic that is written to, if it is one, and what makes entries."""
    return target_of(sink, sink.topic, schema) if sink.topic is not None else (None, Entries(schema, sink.key))


def staged(sink: Sink, entries: Entries | TopicEntries, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Stage the rows of one task."""
    context = TaskContext.get()
    query = (context.getLocalProperty("sql.streaming.queryId") if context else None) or ""
    batch = (context.getLocalProperty("streaming.sql.batchId") if context else None) or ""
    prefix = f"{NAME}:{query or uuid4().hex}:{batch}"
    stager = Stager(sink.access, f"{NAME}-task", prefix, sink.stage_ttl_ms, sink.copies)
    counts: Counter[bytes] = Counter()
    for rows in batches:
        parts = list(entries.parts(rows))
        for part in parts:
            counts[part.key] += part.rows
        stager.stage(parts)
    stager.finish()
    return Staged(query, context.partitionId() if context else 0, tuple(stager.names), dict(counts))


def of(messages: Messages) -> list[Staged]:
    """The messages of the tasks that succeeded, in the order of the partitions."""
    return sorted((message for message in messages if isinstance(message, Staged)), key=lambda m: m.partition)


def names(messages: list[Staged]) -> list[str]:
    """All stages, in the order of the partitions."""
    return [name for message in messages for name in message.stages]


def rows_of(messages: list[Staged]) -> Counter[bytes]:
    """The number of rows for each stream."""
    counts: Counter[bytes] = Counter()
    for message in messages:
        counts.update(message.rows)
    return counts


def publisher(sink: Sink) -> Publisher:
    """What the driver publishes, drops and evicts with."""
    return Publisher(sink.access, f"{NAME}-driver", sink.copies)


def counted(target: Target | None, messages: list[Staged]) -> Mapping[bytes, int]:
    """The number of rows that a check is made of: for each stream, for a topic in all."""
    rows = rows_of(messages)
    return rows if target is None else {target.name.encode(): rows.total()}


def ready(by: Publisher, target: Target | None, messages: list[Staged], fence: str = "", epoch: int = 0) -> None:
    """Raise what keeps a topic from taking a batch, unless it was published before."""
    if target is None:
        return
    last = good(by.ask(calls.tfence(fence)))[0] if fence else None
    if last is None or last < epoch:
        target.unchanged(by.ask)
        target.room(by.ask, rows_of(messages))


def evict(by: Publisher, sink: Sink, target: Target | None, messages: list[Staged]) -> None:
    """Evict from the streams that were written to, as ``maxlen``, ``maxage`` or the topic say."""
    if target is not None:
        target.evict(by.ask, rows_of(messages))
    elif sink.maxlen is not None or sink.maxage_ms is not None:
        by.evict(sorted(rows_of(messages)), count=sink.maxlen, ms=sink.maxage_ms)


def drop(sink: Sink, messages: Messages) -> None:
    """Drop what was staged."""
    with publisher(sink) as by:
        by.drop(names(of(messages)))


class TidelogStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, each exactly once."""

    def __init__(self, sink: Sink, schema: StructType) -> None:
        self.sink = sink
        self.target, self.entries = made(sink, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return staged(self.sink, self.entries, iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        done = of(messages)
        if not names(done):
            return
        query = done[0].query
        if not query:
            raise AssertionError("Spark did not tell the tasks which query they work for")
        check = checks.of_batch(self.sink.check, self.sink.checkpoint, batchId, counted(self.target, done))
        fence = f"{NAME}:query:{query}"
        with publisher(self.sink) as by:
            ready(by, self.target, done, fence, batchId)
            try:
                by.publish(fence, batchId, names(done), check)
            except StaleEpochError as error:
                raise StaleError(
                    f"batch {batchId} of query {query} comes after a later one was published: another run of the query "
                    f"is ahead, or its checkpoint was put back to an older state ({error})"
                ) from None
            except ConflictError as error:
                what = f"batch {batchId} of query {query}"
                raise OtherBatchError(checks.explained(what, check, error)) from None
            evict(by, self.sink, self.target, done)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803, ARG002 - Spark's name and signature
        drop(self.sink, messages)


class TidelogWriter(DataSourceArrowWriter):
    """``df.write``: writes all rows or none. OptionError for ``mode("overwrite")``."""

    def __init__(self, sink: Sink, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('mode("overwrite") is not possible, streams are appended to: use mode("append")')
        self.sink = sink
        self.target, self.entries = made(sink, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return staged(self.sink, self.entries, iterator)

    def commit(self, messages: Messages) -> None:
        done = of(messages)
        stages = names(done)
        if not stages:
            return
        with publisher(self.sink) as by:
            if self.sink.transaction is None:
                ready(by, self.target, done)
                by.publish_once(f"{NAME}:jobs", stages)
            else:
                self._publish_version(by, *self.sink.transaction, done)
            evict(by, self.sink, self.target, done)

    def _publish_version(self, by: Publisher, application: str, version: int, done: list[Staged]) -> None:
        """Publish once for each version, application and option ``key`` or topic, as Delta does for each table."""
        stages = names(done)
        former = f"{NAME}:txn:{application}"
        if passed(by, former, version):
            log.warning("skipped: version %d or a later one was published under the fence %r", version, former)
            by.drop(stages)
            return
        words = [application] if self.sink.key is None else [application, self.sink.key]
        if self.target is not None:  # one of this name that is made after this one was deleted is another topic
            words = [application, "topic", self.target.name, self.target.facts.id]
        fence = f"{NAME}:txn:{json.dumps(words)}"
        check = "" if self.sink.check == NONE else checks.of_rows(counted(self.target, done))
        ready(by, self.target, done, fence, version)
        try:
            by.publish(fence, version, stages, check)
        except StaleEpochError:  # skipped, like a version that was published: as Delta does
            by.drop(stages)
        except ConflictError as error:
            what = f"version {version} of application {application}"
            raise OtherBatchError(checks.explained(what, check, error)) from None

    def abort(self, messages: Messages) -> None:
        drop(self.sink, messages)


def passed(by: Publisher, fence: str, version: int) -> bool:
    """Whether this version or a later one was published under a fence that is never published under again.

    Fences were for an application with all its streams before they were for one of its streams.
    """
    try:
        by.publish(fence, version, [f"{NAME}:none"])  # there is no such stage, so nothing is ever published
    except StaleEpochError:
        return True
    except ReplyError as error:
        if error.code != "NOSTAGE":
            raise
        return False
    return True
