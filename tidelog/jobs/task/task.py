"""The work of a Spark task: one epoch of one partition of a batch job.

    check fence and topics -> open the state -> recover it -> read -> call -> stage outputs -> commit the state
    -> stage the marker

A task can run in any process, which retains only what it can recreate: a connection, and the settings of topics.

Rule 1: Nothing is published here. Stages and the new version of the state count once the driver has published all
        partitions of the epoch; otherwise the stages expire, and the next task undoes the version.
Rule 2: Errors are returned as a TaskFailure in the result. An exception is a bug.
Rule 3: A topic that was deleted and recreated is not read as if it were the same: its ID must be the driver's.
Rule 4: A task does not change the state unless its epoch is the next one according to the fence, under the store's
        lock. A late task (which Spark started before another attempt) would undo or discard what was published.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tidelog.client import calls, strings
from tidelog.client.dividedcommit import DividedStager
from tidelog.client.entries import StreamId
from tidelog.client.publish import NotReplicatedError, StagedRows, Stager
from tidelog.client.steps import checked
from tidelog.codecs import CodecError
from tidelog.history import choice
from tidelog.history.errors import HistoryError
from tidelog.jobs import errors, keys
from tidelog.jobs.declare import Job
from tidelog.jobs.errors import JobError, SupersededError, TryAgainError
from tidelog.jobs.loading import load
from tidelog.jobs.replaylog.marker import InputSpan, Marker
from tidelog.jobs.store import StateStore, StoreError
from tidelog.jobs.task.calls import CallContext, FunctionCalls, SkippedRow
from tidelog.jobs.task.outputs import (
    EpochOutput,
    OutputWriter,
    create_dead_letter_topics,
    dead_letter_part,
    marker_part,
)
from tidelog.jobs.task.plan import TaskFailure, TaskPlan, TaskResult
from tidelog.jobs.task.reading import TaskInput, inspect_inputs
from tidelog.jobs.task.recovery import Recovery, open_store, position, ranges
from tidelog.jobs.task.results import TaskOutput
from tidelog.jobs.task.rows import InputRows, bounded, shares, split_calls
from tidelog.topics import TopicError
from tidelog.topics.settings import TopicSettings, key_of, read_settings
from tidelog.transport.access import Access
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection

NAME: Final = "tidelog-jobs-task"  # name of the connection in CLIENT LIST
TOGETHER: Final = 1 << 20  # maximum bytes of outputs that are staged with the marker
AHEAD_MS: Final = 1000  # an ID this far ahead of the clock means that the clock was set back
ATTEMPTS: Final = 5  # attempts, a few ms apart, to read entries that are too new to be merged

log = logging.getLogger(__name__)
_local = threading.local()


def run(plan: TaskPlan) -> TaskResult:
    """Execute one epoch of one partition. Errors are in ``TaskResult.failure`` (Rule 2)."""
    servers = connection_to(plan.where.access)
    done = False
    try:
        job = load(plan.where.target, plan.where.path, plan.where.version)
        if job.kind != "batch":
            raise JobError(f"job {job.name!r} is a {job.kind} job: tasks are for batch jobs")
        result = _Task(plan, job, servers).run()
        done = True
        return result
    except (JobError, SupersededError) as error:
        return _failed(plan, error)
    except (TopicError, CodecError) as error:
        return _failed(plan, JobError(f"{plan.where.target}, partition {plan.partition}: {error}"))
    except (OSError, ReplyError, HistoryError, StoreError, NotReplicatedError, TryAgainError) as error:
        text = f"{plan.where.target}, partition {plan.partition}, epoch {plan.epoch}: {type(error).__name__}: {error}"
        return TaskResult(plan.partition, failure=TaskFailure("", text))
    finally:
        if not done:
            servers.close()  # a reply may be outstanding


def _failed(plan: TaskPlan, error: JobError | SupersededError) -> TaskResult:
    """Return a failure that is named after the class in ``errors``."""
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return TaskResult(plan.partition, failure=TaskFailure(kind.__name__, str(error)))


def connection_to(access: Access) -> LeaderConnection:
    """Return the connection of this thread, which tasks share: connecting takes longer than reading a small batch."""
    known: dict[tuple[int, Access], LeaderConnection] = _local.__dict__.setdefault("servers", {})
    return known.setdefault((os.getpid(), access), LeaderConnection(access, NAME))


@dataclass(frozen=True, eq=False)
class TaskTopics:
    """A job's topics, as one partition uses them."""

    inputs: Mapping[str, TaskInput]
    writers: Mapping[str, OutputWriter]


@lru_cache(maxsize=4096)
def _prepared(job: Job, partition: int, texts: tuple[bytes, ...]) -> TaskTopics:
    """Create the TaskTopics from the server's settings. Raises TopicMismatchError if the declaration differs."""
    topics, history = [*job.inputs, *job.outputs], job.options.get("history", choice.AUTO)
    facts: dict[str, TopicSettings] = {}
    for topic, text in zip(topics, texts, strict=True):
        facts[topic.name] = read_settings(topic.name, text)
        topic.declared.agreed(topic.name, facts[topic.name])
    return TaskTopics(
        {topic.name: TaskInput(topic, facts[topic.name], partition, history) for topic in job.inputs},
        {topic.name: OutputWriter(TaskOutput.of(topic, facts[topic.name])) for topic in job.outputs},
    )


class _Task:
    def __init__(self, plan: TaskPlan, job: Job, servers: LeaderConnection) -> None:
        self.plan, self.job, self.servers = plan, job, servers
        self.seconds: dict[str, float] = {}
        self.more = False

    def run(self) -> TaskResult:
        if self.job.state is None:
            return self._epoch(self._topics(), None)
        with self._timed("hold"):
            store = open_store(self.plan.where, self.job, self.plan.partition)
        try:
            prepared = self._topics()
        except BaseException:
            store.close()
            raise
        recovery = Recovery(self.plan.where, self.job, self.plan.partition, prepared.inputs, self.servers, store)
        try:
            with self._timed("recover"):
                recovery.bring(self.plan.last)
            if self.plan.snapshot and self.plan.where.store:
                self._snapshot(prepared, recovery.store)
            return self._epoch(prepared, recovery)
        finally:
            recovery.store.close()

    def _epoch(self, prepared: TaskTopics, recovery: Recovery | None) -> TaskResult:
        plan, job = self.plan, self.job
        with self._timed("read"):
            read = self._read(prepared)
        spans = self._spans(read)
        began_ms = self._clock() if job.is_source else 0
        now_ms = max([began_ms, plan.last.now_ms if plan.last else 0, *(
            span.end.ms for span in spans.values() if span.rows
        )])  # fmt: skip
        context = CallContext(job, plan.partition, plan.epoch, now_ms, ranges(prepared.inputs, spans))
        returned = EpochOutput(context, prepared.writers)
        changes = recovery.store.begin(now_ms) if recovery is not None else None
        made = FunctionCalls(context, returned.take, changes, job.dead_letter is not None)
        with self._timed("call"):
            if job.is_source:
                made.run_empty()
            else:
                rows = [made.decoded(one) for one in read]
                made.run(rows, split_calls(rows, job.merge, job.max_rows))
        parts = returned.parts + self._dead_letters(prepared, context, made.skipped)
        stager = self._stager()
        if sum(len(part.values) for part in parts) > TOGETHER:
            with self._timed("stage"):
                stager.stage(parts)
            parts = []
        digest, keys, size = "", 0, 0
        if recovery is not None and changes is not None:
            with self._timed("state"):
                store = recovery.store
                digest = store.commit(changes, plan.epoch, plan.where.run, position(spans))
                keys, size = store.keys, store.disk_bytes
        skipped: dict[str, list[str]] = {}
        for one in made.skipped:
            skipped.setdefault(one.topic.name, []).append(one.id)
        marker = Marker(
            plan.epoch, plan.where.run, plan.where.generation, job.version, spans, now_ms, returned.rows, digest,
            skipped, tuple(made.ends) if made.bisected else (), job.merge, job.max_rows,
        )  # fmt: skip
        with self._timed("stage"):
            stager.stage([*parts, marker_part(context, marker)])
            if isinstance(stager, Stager):
                stager.finish()
        return TaskResult(
            plan.partition, tuple(stager.names) if isinstance(stager, Stager) else (), marker, self.more,
            len(made.skipped), keys, size, recovery.replayed if recovery is not None else 0, self.seconds,
            divided={} if isinstance(stager, Stager) else stager.stages,
        )  # fmt: skip

    def _stager(self) -> Stager | DividedStager:
        where, name = self.plan.where, self.job.name
        if where.divided:
            return DividedStager(
                where.access, NAME, keys.prefix(name), str(self.plan.partition), where.stage_ttl_ms, where.copies,
                servers=connection_to(where.access.single_attempt(where.access.read_ms)),
            )  # fmt: skip
        begin = f"{keys.prefix(name)}:{self.plan.partition}"
        return Stager(where.access, NAME, begin, where.stage_ttl_ms, where.copies, servers=self.servers)

    # -- reading ---------------------------------------------------------------------------------------------
    def _topics(self) -> TaskTopics:
        with self._timed("look"):
            return _prepared(self.job, self.plan.partition, self._facts())

    def _facts(self) -> tuple[bytes, ...]:
        """Return the settings of the topics from the server, if the epoch is the next one (Rule 4).

        Raises JobError if a topic does not exist any more, or is a different one (Rule 3).
        """
        names = [topic.name for topic in (*self.job.inputs, *self.job.outputs)]
        fence = calls.tfence(keys.fence(self.job.name, self.plan.where.generation))
        last, texts = checked(self.servers.ask(fence, strings.mget(*map(key_of, names))))
        if (last or 0) != self.plan.epoch - 1:
            kind = SupersededError if (last or 0) >= self.plan.epoch else TryAgainError
            raise kind(
                f"job {self.job.name!r}: epoch {last or 0} was published last, but this task of partition"
                f" {self.plan.partition} was planned for epoch {self.plan.epoch}"
            )
        for name, text in zip(names, texts, strict=True):
            known = self.plan.where.topics.get(name)
            if text is None:
                raise JobError(f"job {self.job.name!r}: topic {name!r} was deleted")
            if known is not None and (there := read_settings(name, text).id) != known:
                raise JobError(
                    f"job {self.job.name!r}: topic {name!r} was deleted and recreated: its ID was {known} and is"
                    f" {there} now. To start again with it: tidelog jobs reset {self.job.name} --to"
                    " earliest|latest|ID|TIME"
                )
        return tuple(texts)

    def _clock(self) -> int:
        """Return the time of a call without inputs: the driver's, or the server's."""
        if self.plan.now_ms:
            return self.plan.now_ms
        (now,) = checked(self.servers.ask(strings.server_time()))
        return int(now)

    def _read(self, prepared: TaskTopics) -> list[InputRows]:
        """Return the next rows of each input."""
        if self.job.is_source:
            return []
        for _ in range(ATTEMPTS):
            rows, delayed = self._read_once(prepared)
            if not delayed or any(map(len, rows)):
                break
            time.sleep(0.002)  # until the millisecond in which entries arrived has passed
        self.more = self.more or delayed
        return rows

    def _read_once(self, prepared: TaskTopics) -> tuple[list[InputRows], bool]:
        """Return the next rows of each input, and whether merging by time delays some of them."""
        job, inputs = self.job, list(prepared.inputs.values())
        starts = [self.plan.starts[one.topic.name] for one in inputs]
        now_ms, statuses = inspect_inputs(self.servers, inputs, starts, self._known_ends())
        counts = [one.count for one in statuses]
        given = shares(counts, max(job.max_rows, sum(map(bool, counts))))  # at least one of each, for ``bounded``
        busy = sum(map(bool, given)) or 1
        rows, more = [], []
        for one, start, there, most in zip(inputs, starts, statuses, given, strict=True):
            some, is_more = one.read(self.servers, start, there, most, max(1, job.max_bytes // busy))
            rows.append(some)
            more.append(is_more)
        self.more = any(more)
        if job.merge == "inputs" or len(inputs) == 1:
            return rows, False
        newest = max((there.info.last.ms for there in statuses if there.info is not None), default=0)
        kept = bounded(rows, more, now_ms if newest < now_ms + AHEAD_MS else newest + 1)
        return kept, sum(map(len, kept)) < sum(map(len, rows))

    def _known_ends(self) -> dict[str, StreamId]:
        """Return, by input, the ID of an entry that the last epoch has read. It must exist or have been evicted."""
        last = self.plan.last
        return {} if last is None else {name: span.end for name, span in last.inputs.items() if span.rows}

    def _spans(self, read: list[InputRows]) -> dict[str, InputSpan]:
        spans = {}
        for rows in read:
            after = self.plan.starts[rows.topic.name]
            spans[rows.topic.name] = InputSpan(after, rows.last or after, len(rows))
        return spans

    def _snapshot(self, prepared: TaskTopics, store: StateStore) -> None:
        """Start the process that creates a snapshot. A failure delays the snapshot, not the job."""
        from tidelog.jobs.snapshots import SnapshotRequest, start  # here, since it loads fsspec

        where, job = self.plan.where, self.job
        shared = tuple(name for name, one in prepared.inputs.items() if one.shared) if where.partitions > 1 else ()
        request = SnapshotRequest(
            job.name, where.generation, self.plan.partition, where.partitions, str(store.path), where.store,
            where.access, job.keep, where.topics, shared,
        )  # fmt: skip
        try:
            start(request)
        except OSError as error:
            log.warning("job %s, partition %d: no snapshot is made: %s", job.name, self.plan.partition, error)

    # -- dead letters ----------------------------------------------------------------------------------------
    def _dead_letters(self, prepared: TaskTopics, context: CallContext, skipped: list[SkippedRow]) -> list[StagedRows]:
        if not skipped:
            return []
        create_dead_letter_topics(self.servers, context, sorted({one.topic.name for one in skipped}))
        made = []
        for one in skipped:
            source = prepared.inputs[one.topic.name]
            entry = source.entry(self.servers, one.id)
            made.append(dead_letter_part(one, source.partition, entry, context, time.time_ns() // 1_000_000))
        return made

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - began
