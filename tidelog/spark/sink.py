"""``df.write`` and ``df.writeStream`` with ``format("tidelog")``: the writers, as Spark calls them.

    tasks    write(rows)                     stage the rows; the commit message names the stages
    driver   commit(messages[, batch ID])    publish all stages in one step, in the order of the partitions
             abort(messages[, batch ID])     drop the stages

Rule 1: a batch of a query is published with the query as fence and the batch ID as epoch. A repeated batch is skipped
        if it was published, even if its partitions differ. A different batch with the same number fails (checks.py),
        because skipping it would lose its rows.
Rule 2: Spark calls abort() if commit() fails, even if the rows were published. abort() only drops stages, and names of
        stages are never reused, so that is safe with one group. With several groups, commit() may have decided to
        publish: abort() then drops nothing if all tasks have succeeded, so that commit() may have been called. The
        check of a batch for topics covers all its rows, because the rows of each partition change when a topic grows.
Rule 3: with routes (routes.py), the fence is the one in the routes, and one publish writes the rows of all topics.
        Spark has no update mode for Python sinks. In that mode, foreachBatch writes each batch with its number.
Rule 4: rows are only appended. In complete mode, each batch appends the whole result, as Spark's Kafka sink does.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidelog.client import calls
from tidelog.client.dividedcommit import DividedCommit, DividedStager, commit_once
from tidelog.client.publish import NO_REPLICA_ACKS, Publisher, Stager
from tidelog.client.steps import checked
from tidelog.spark import checks
from tidelog.spark.commands import EntryBuilder
from tidelog.spark.options import SINK_NAME, WriteOptions
from tidelog.spark.optionvalues import NONE, OptionError
from tidelog.spark.partitioning import TopicEntries
from tidelog.spark.routes import RoutedEntries, routed
from tidelog.spark.topics import TargetTopic, target_of
from tidelog.transport.errors import ConflictError, ReplyError, StaleEpochError

log = logging.getLogger(__name__)

Messages = Sequence[WriterCommitMessage | None]
Targets = tuple[TargetTopic, ...]  # one for a topic, several with routes, none for streams
Maker = EntryBuilder | TopicEntries | RoutedEntries


class StaleError(Exception):
    """A later batch of the query was published before."""


class OtherBatchError(Exception):
    """The number of a batch was published before for a different batch."""


@dataclass
class Staged(WriterCommitMessage):
    """The commit message of a task to the driver."""

    query: str  # ID of the streaming query, which Spark does not pass to commit(); "" in a batch write
    partition: int
    stages: tuple[str, ...]
    rows: Mapping[bytes, int]  # the number of rows for each stream
    divided: Mapping[str, list[str]] = field(default_factory=dict)  # in place of ``stages``: stages by hash tag


def made(sink: WriteOptions, schema: StructType) -> tuple[Targets, Maker]:
    """Return the topics that are written, if any, and the builder of entries."""
    if sink.routes is not None:
        return routed(sink, sink.routes, schema)
    if sink.topic is None:
        return (), EntryBuilder(schema, sink.key)
    target, entries = target_of(sink, sink.topic, schema)
    return (target,), entries


def staged(sink: WriteOptions, entries: Maker, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Stage the rows of one task."""
    context = TaskContext.get()
    query = (context.getLocalProperty("sql.streaming.queryId") if context else None) or ""
    batch = (context.getLocalProperty("streaming.sql.batchId") if context else None) or ""
    name = sink.routes.fence if sink.routes is not None else sink.name()
    prefix = f"{name}:{query or uuid4().hex}:{batch}"
    stager = Stager(sink.access, f"{SINK_NAME}-task", prefix, sink.stage_ttl_ms, sink.copies)
    counts: Counter[bytes] = Counter()
    for rows in batches:
        parts = list(entries.parts(rows))
        for part in parts:
            counts[part.key] += part.rows
        stager.stage(parts)
    stager.finish()
    return Staged(query, context.partitionId() if context else 0, tuple(stager.names), dict(counts))


def staged_divided(sink: WriteOptions, entries: Maker, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Stage the rows of one task on the groups of their streams."""
    context = TaskContext.get()
    query = (context.getLocalProperty("sql.streaming.queryId") if context else None) or ""
    last = f"{query}:{(context.getLocalProperty('streaming.sql.batchId') if context else None) or ''}"
    stager = DividedStager(sink.access, f"{SINK_NAME}-task", commit_name(sink), last, sink.stage_ttl_ms, sink.copies)
    counts: Counter[bytes] = Counter()
    try:
        for rows in batches:
            parts = list(entries.parts(rows))
            for part in parts:
                counts[part.key] += part.rows
            stager.stage(parts)
    finally:
        stager.close()
    return Staged(query, context.partitionId() if context else 0, (), dict(counts), stager.stages)


def commit_name(sink: WriteOptions) -> str:
    """Return the ``name`` of the DividedCommit."""
    return sink.name() if sink.routes is None else sink.routes.name


def several_groups(sink: WriteOptions) -> bool:
    """Return whether several groups of a cluster share the slots. Raises UnreachableError."""
    with publisher(sink) as by:
        return by.several_groups()


def of(messages: Messages) -> list[Staged]:
    """Return the messages of successful tasks, in the order of the partitions."""
    return sorted((message for message in messages if isinstance(message, Staged)), key=lambda m: m.partition)


def names(messages: list[Staged]) -> list[str]:
    """Return all stages, in the order of the partitions."""
    return [name for message in messages for name in message.stages]


def divided_names(messages: list[Staged]) -> dict[str, list[str]]:
    """Return all stages by hash tag, each in the order of the partitions."""
    found: dict[str, list[str]] = {}
    for message in messages:
        for tag, stages in message.divided.items():
            found.setdefault(tag, []).extend(stages)
    return found


def rows_of(messages: list[Staged]) -> Counter[bytes]:
    """Return the number of rows for each stream."""
    counts: Counter[bytes] = Counter()
    for message in messages:
        counts.update(message.rows)
    return counts


def publisher(sink: WriteOptions) -> Publisher:
    """Return the publisher with which the driver publishes, drops, and evicts."""
    return Publisher(sink.access, f"{SINK_NAME}-driver", sink.copies)


def counted(targets: Targets, messages: list[Staged]) -> Mapping[bytes, int]:
    """Return the numbers of rows for a check: for each stream, or for a topic in total."""
    rows = rows_of(messages)
    if not targets:
        return rows
    totals = {target.name.encode(): sum(target.own(rows).values()) for target in targets}
    return {name: total for name, total in totals.items() if total}


def ready(by: Publisher, targets: Targets, messages: list[Staged], fence: str = "", epoch: int = 0) -> None:
    """Raise the reason why a topic cannot take a batch, unless the batch was published before."""
    if not targets:
        return
    last = checked(by.ask(calls.tfence(fence)))[0] if fence else None
    if last is None or last < epoch:
        for target in targets:
            if own := target.own(rows_of(messages)):
                target.unchanged(by.ask)
                target.room(by.ask, own)


def evict(by: Publisher, sink: WriteOptions, targets: Targets, messages: list[Staged]) -> None:
    """Evict from the written streams according to ``maxlen`` or ``maxage``. The server evicts from topics."""
    if targets:
        return
    if sink.maxlen is not None or sink.maxage_ms is not None:
        by.evict(sorted(rows_of(messages)), count=sink.maxlen, ms=sink.maxage_ms)


def publish_batch(
    sink: WriteOptions, targets: Targets, done: list[Staged], fence: str, batch: int, what: str, divided: bool = False
) -> None:  # fmt: skip
    """Publish a batch of a query, unless it was published. ``what`` names it in errors."""
    url = sink.routes.checkpoint if sink.routes is not None else ""
    check = checks.of_batch(sink.check, sink.checkpoint, batch, counted(targets, done), url)
    with publisher(sink) as by:
        ready(by, targets, done, fence, batch)
        try:
            commit = DividedCommit(commit_name(sink), fence)
            if divided:
                by.run(commit.commit(batch, check, divided_names(done)))
            elif not by.publish(fence, batch, names(done), check).now:
                by.run(commit.recover())  # it may have been decided while several groups shared the slots
        except StaleEpochError as error:
            raise StaleError(
                f"{what} comes after a later one was published: another run of the query is ahead, or its checkpoint "
                f"was put back to an older state ({error})"
            ) from None
        except ConflictError as error:
            raise OtherBatchError(checks.explained(what, check, error)) from None
        evict(by, sink, targets, done)


class _Writer:
    """What both writers do in tasks and after a failure."""

    def __init__(self, sink: WriteOptions, schema: StructType) -> None:
        self.sink = sink
        self.targets, self.entries = made(sink, schema)
        self.divided = several_groups(sink)
        if self.divided and not sink.copies.needed:  # the URL may name leaders only
            self.sink = replace(sink, copies=NO_REPLICA_ACKS)
        if self.divided and "{" in sink.name_prefix:
            raise OptionError("namePrefix can't contain a brace in a cluster of several groups: stages have hash tags")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return (staged_divided if self.divided else staged)(self.sink, self.entries, iterator)

    @staticmethod
    def _drop(by: Publisher, done: list[Staged]) -> None:
        """Drop rows whose publication was not decided."""
        for stages in (names(done), *divided_names(done).values()):
            by.drop(stages)

    def abort(self, messages: Messages, batchId: int = 0) -> None:  # noqa: N803, ARG002 - Spark's name and signature
        """Drop the staged rows, unless they may have been published in part (Rule 2)."""
        done = of(messages)
        if self.divided and len(done) == len(messages):
            return
        with publisher(self.sink) as by:
            self._drop(by, done)


class TidelogStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, each exactly once."""

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        done = of(messages)
        if not names(done) and not divided_names(done):
            return
        query = done[0].query
        if not query:
            raise AssertionError("Spark did not tell the tasks which query they work for")
        routes = self.sink.routes
        what = f"batch {batchId} of query {query}"
        if routes is not None:
            fence = routes.fence
        else:
            fence = self.sink.name("query", query)
            if self.sink.name_prefix:
                with publisher(self.sink) as by:
                    fence = _fence_of(by, fence, f"{SINK_NAME}:query:{query}", batchId, what)
        publish_batch(self.sink, self.targets, done, fence, batchId, what, self.divided)


class TidelogWriter(_Writer, DataSourceArrowWriter):
    """Writes all rows of ``df.write`` or none. Raises OptionError for ``mode("overwrite")``."""

    def __init__(self, sink: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('mode("overwrite") is not possible, streams are appended to: use mode("append")')
        super().__init__(sink, schema)

    def commit(self, messages: Messages) -> None:
        done = of(messages)
        stages = names(done)
        if not stages and not divided_names(done):
            return
        routes = self.sink.routes
        if routes is not None and routes.batch is not None:
            what = f"batch {routes.batch} of {routes.fence}"
            publish_batch(self.sink, self.targets, done, routes.fence, routes.batch, what, self.divided)
            return
        with publisher(self.sink) as by:
            if self.sink.transaction is None:
                ready(by, self.targets, done)
                if self.divided:
                    commit_once(by, self.sink.name(), self.sink.name("jobs"), divided_names(done))
                else:
                    by.publish_once(self.sink.name("jobs"), stages)
            else:
                self._publish_version(by, *self.sink.transaction, done)
            evict(by, self.sink, self.targets, done)

    def _publish_version(self, by: Publisher, application: str, version: int, done: list[Staged]) -> None:
        """Publish once for each version, application, and target, as Delta does for each table."""
        words = [application] if self.sink.key is None else [application, self.sink.key]
        for target in self.targets:  # a topic that is recreated with this name is another topic
            words = [application, "topic", target.name, target.facts.id]
        table = json.dumps(words)
        fence = self.sink.name("txn", table)
        formers = [f"{SINK_NAME}:txn:{application}"]
        if self.sink.name_prefix:
            formers.append(f"{SINK_NAME}:txn:{table}")
        for former in formers:
            if passed(by, former, version, bool(self.sink.name_prefix)):
                log.warning("skipped: version %d or a later one was published under the fence %r", version, former)
                self._drop(by, done)
                return
        check = "" if self.sink.check == NONE else checks.of_rows(counted(self.targets, done))
        ready(by, self.targets, done, fence, version)
        commit = DividedCommit(self.sink.name(), fence)
        try:
            if self.divided:
                by.run(commit.commit(version, check, divided_names(done)))
            elif not by.publish(fence, version, names(done), check).now:
                by.run(commit.recover())  # as in ``publish_batch``
        except StaleEpochError:  # skipped, like a version that was published: as Delta does
            self._drop(by, done)
        except ConflictError as error:
            what = f"version {version} of application {application}"
            raise OtherBatchError(checks.explained(what, check, error)) from None


def passed(by: Publisher, fence: str, version: int, limited: bool) -> bool:
    """Return whether this version or a later one was published under a fence that is not used any more.

    In earlier versions, a fence applied to an application with all its streams. An application can also have written
    without ``namePrefix`` before. ``limited``: a user without permission for that fence has not published under it.
    """
    try:
        (last,) = checked(by.ask(calls.tfence(fence)))
    except ReplyError as error:
        if not limited or error.code != "NOPERM":
            raise
        return False
    return last is not None and last >= version


def _fence_of(by: Publisher, fence: str, former: str, batch: int, what: str) -> str:
    """Return the fence of a batch of a query with ``namePrefix``. It is the former fence without prefix if the batch or
    a later one was published under it.

    Raises ReplyError (NOPERM) if the query has run before and the user has no permission to read the former fence.
    """
    (last,) = checked(by.ask(calls.tfence(fence)))
    if last is not None:
        return fence
    (reply,) = by.ask(calls.tfence(former))
    if isinstance(reply, ReplyError):
        if reply.code != "NOPERM":
            raise reply
        if batch:
            raise ReplyError(
                f"NOPERM {what} is the first one with namePrefix: the user needs the permission %R~{former} once, "
                "which shows whether the batch was published without namePrefix"
            )
        return fence
    return former if reply is not None and reply >= batch else fence
