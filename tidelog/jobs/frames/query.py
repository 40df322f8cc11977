"""``FrameRunner``: runs a frame job as one streaming query, driven by a thread of the supervisor.

    start()    calls the function once with the frames of its inputs, and starts the query from its checkpoint
    poll()     returns the state (running, idle, failed) and the last batch, and moves the job's group (``retention``)
    stop()     lets the current batch finish, and stops

Frame jobs use Spark's checkpoint, not a replay log: Spark's operators have their state in Spark's stores, in Spark's
format, and a log of our own would be a second source of truth. Fence and batch ID still make publishing exact.

Rule 1: All outputs are one query, and each batch is one publication: its fence is ``keys.fence(name, generation)``, its
        epoch the batch ID. A published batch is skipped when it runs again; a different batch with the same number is
        rejected (tidelog.spark.checks).
Rule 2: Offsets and state exist only in the checkpoint, ``<store or state_dir>/<name>/<generation>/checkpoint``. A job
        that has published under its fence needs that checkpoint: without it, start() raises JobError. On a shared file
        system or in an object store, the job can move between engines; in an engine's own ``state_dir`` it cannot.
Rule 3: A query that finds later or different batches under its fence is superseded and ends (SupersededError). Its
        unpublished batches are discarded.
Rule 4: If several groups of a cluster have the keys, the decision to publish a batch is one call, and the rows then
        appear on each group (``commits``). start() completes what was decided, also by earlier generations.

The module ``options`` describes the options of a job, and the settings that Spark needs for a store in S3. Of the job's
limits, only ``max_rows`` applies, per partition of an input; the option ``maxBytesPerTrigger`` limits bytes.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import redis
from pyspark.errors import AnalysisException, PySparkException

import tidelog.spark
from tidelog.client import calls
from tidelog.client.entries import StreamId
from tidelog.client.publish import Publisher
from tidelog.client.steps import checked, drive_over
from tidelog.jobs import keys, pools
from tidelog.jobs.commits import CLOSED, commit_of, complete_former
from tidelog.jobs.declare import Job
from tidelog.jobs.errors import FunctionError, JobError, SupersededError, TryAgainError
from tidelog.jobs.frames.errors import explained
from tidelog.jobs.frames.input import open_input
from tidelog.jobs.frames.options import checkpoint_of, options_of, starting
from tidelog.jobs.frames.output import ROWS, check_types, outputs_of, route_of, tagged
from tidelog.jobs.frames.retention import RetentionGroups
from tidelog.jobs.pools import pools_of
from tidelog.jobs.snapshots import SnapshotError, owners
from tidelog.jobs.snapshots.objects import ObjectStore
from tidelog.jobs.task.plan import TaskSettings
from tidelog.jobs.topics import agreed
from tidelog.spark.offsets import ZERO
from tidelog.spark.options import TopicRoutes, for_source, given_of
from tidelog.spark.optionvalues import ROUTES, STREAM, OptionError, OptionValues
from tidelog.topics import Topic, TopicSettings
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLLING: Final = "50ms"  # polling interval of an idle query. It sends no command, but Spark's default of 10 ms uses CPU
WAIT: Final = "waitReplicas"
STOPPING: Final = 60.0  # seconds within which the current batch may finish
QUICK_MS: Final = 2000  # timeout for connecting and for replies of unimportant requests

QueryState = Literal["new", "running", "idle", "failed", "stopped"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FrameState:
    """The state of a frame job. Numbers count from the start of the query."""

    state: QueryState = "new"
    error: Exception | None = None  # if ``failed``; see ``errors``
    batch: int | None = None  # the last committed one
    at: str = ""  # when it started, ISO 8601
    rows_in: int = 0  # entries read; an entry counts once for each output that depends on it
    rows_out: Mapping[str, int] = field(default_factory=dict)  # by topic
    watermark: str = ""  # ISO 8601; empty without one
    ends: Mapping[str, StreamId] = field(default_factory=dict)  # by input stream: read up to here


class FrameRunner:
    """Runs a frame job on a Spark session. One thread at a time may call its methods."""

    def __init__(self, spark: SparkSession, job: Job, where: TaskSettings) -> None:
        if job.kind != "frame":
            raise JobError(f"job {job.name!r} is not a frame job: annotate its parameters as DataFrame")
        self.job = job
        self.where = where
        self.options = options_of(job)
        self.location, self.url = checkpoint_of(job, where)
        self._spark = spark
        self._servers = LeaderConnection(where.access, f"tidelog-job-{job.name}")
        quick = where.access.single_attempt(QUICK_MS)
        self._quick = LeaderConnection(quick, f"tidelog-job-{job.name}")  # for poll(), which must not wait
        self._groups = RetentionGroups(self._quick, keys.group(job.name))
        self._query: StreamingQuery | None = None
        self._seen: tuple[int, str] | None = None  # the last progress that was counted
        self._state = FrameState()
        self._cancelled = False
        self._pool: int | None = None  # the number of its scheduler pool

    # -- starting ----------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the query, from its checkpoint if there is one. A runner can be started once.

        Raises FunctionError with the traceback if the function raises, or does not return frames of its outputs. Raises
        JobError if outputs do not fit their topics, if Spark rejects the query, or if the checkpoint is not that of the
        published batches. Raises SupersededError if a later generation has closed this one. Raises the errors of
        ``LeaderConnection.ask``.
        """
        try:
            self._start()
        except BaseException:
            self._close()
            raise

    def _start(self) -> None:
        job, where = self.job, self.where
        topics = dict.fromkeys((*job.inputs, *job.outputs))
        facts = {topic: drive_over(self._servers.ask, agreed(job, topic)) for topic in topics}
        published = checked(self._servers.ask(calls.tfence(keys.fence(job.name, where.generation))))[0]
        self._complete(published)
        self._check_checkpoint(published)
        self._record_owner({topic.name: each.id for topic, each in facts.items()})
        streams = [topic.stream(at) for topic in job.inputs for at in range(facts[topic].partitions or 1)]
        self._groups.create(streams, job.start == "latest", published is None and self._planned() is None)
        session = self._session()
        frames = [self._input(session, topic, facts[topic]) for topic in job.inputs]
        try:
            result = job.function(*frames)
        except Exception as error:
            raise FunctionError(f"job {job.name!r}: its function failed:\n{_shown(error)}") from error
        outputs = outputs_of(job, result)
        check_types(job, outputs, self._sink_options())
        routes = TopicRoutes(
            keys.prefix(job.name), keys.fence(job.name, where.generation),
            tuple(route_of(*output) for output in outputs), self.url,
        )  # fmt: skip
        if self._cancelled:
            raise TryAgainError(f"job {job.name!r}: cancelled")
        self._query = self._started(tagged(outputs), routes)
        self._state = FrameState("running")

    def _complete(self, published: int | None) -> None:
        """Publish what this generation, or an earlier one, has decided (Rule 4).

        published: the last batch of this generation. Raises SupersededError if a later generation has closed it.
        """
        name, generation = self.job.name, self.where.generation
        if published == CLOSED:
            raise SupersededError(f"job {name!r}: generation {generation} was closed by a later one")
        with Publisher(self.where.access, f"tidelog-job-{name}") as by:
            if published is None:
                by.run(complete_former(name, generation, by.several_groups()))
            else:
                by.run(commit_of(name, generation).recover())

    def _check_checkpoint(self, published: int | None) -> None:
        planned = self._planned()
        if published is not None and (planned is None or planned < published):
            what = "there is no checkpoint" if planned is None else f"the checkpoint ends with batch {planned}"
            raise JobError(
                f"job {self.job.name!r}: batch {published} was published, and {what} at {self.location}: "
                "another engine has it. Give all engines the same store, or reset the job"
            )

    def _record_owner(self, topics: Mapping[str, str]) -> None:
        """Record the owner next to the checkpoint in the object store, for the cleanup of the generation."""
        if self.where.store:
            try:
                owners.write(
                    ObjectStore(self.where.store, QUICK_MS / 1000), self.job.name, self.where.generation, topics
                )
            except SnapshotError as error:  # Spark reports the error if it cannot write either
                log.warning("job %s: %s", self.job.name, error)

    def _planned(self) -> int | None:
        """Return the last batch of the checkpoint; None without a checkpoint."""
        jvm: Any = self._spark._jvm
        jsc: Any = self._spark.sparkContext._jsc
        path = jvm.org.apache.hadoop.fs.Path(f"{self.location}/offsets")
        files = path.getFileSystem(jsc.hadoopConfiguration())
        if not files.exists(path):
            return None
        names = [each.getPath().getName() for each in files.listStatus(path)]
        return max((int(name) for name in names if name.isdigit()), default=None)

    def _session(self) -> SparkSession:
        """Return a session with its own settings, so that the settings of one job do not affect another."""
        session = self._spark.newSession()
        settings = {
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(self.where.partitions),  # each partition has a state store
            "spark.sql.streaming.pollingDelay": POLLING,
        }
        for name, value in (settings | self.options.settings).items():
            session.conf.set(name, value)
        tidelog.spark.register(session)
        return session

    def _input(self, session: SparkSession, topic: Topic[Any], facts: TopicSettings) -> DataFrame:
        streams = [topic.stream(at) for at in range(facts.partitions or 1)]
        most = self.job.max_rows * len(streams)
        options = {
            "groupIdPrefix": f"tidelog-job-{self.job.name}", "mode": "failfast", "maxOffsetsPerTrigger": str(most),
            **starting(self.job, streams), **self.options.source, **given_of(self.where.access), "topic": topic.name,
        }  # fmt: skip
        try:
            for_source(OptionValues(options), STREAM)  # Spark reads them only when the query runs
        except OptionError as error:
            raise JobError(f"job {self.job.name!r}, topic {topic.name!r}: {error}") from None
        return open_input(session.readStream.format("tidelog").options(**options), topic, facts, self.where.path)

    def _sink_options(self) -> dict[str, str]:
        given, replicas = self.options.sink, self.where.copies.replicas
        if replicas and not any(name.lower() == WAIT.lower() for name in given):
            given = given | {WAIT: str(replicas)}
        return given | given_of(self.where.access)

    def _started(self, rows: DataFrame, routes: TopicRoutes) -> StreamingQuery:
        job = self.job
        options = self._sink_options() | {"checkpointLocation": self.location}
        writer = rows.writeStream.outputMode(self.options.mode).queryName(job.name)
        if self.options.mode == "append":
            writer = writer.format("tidelog").options(**options, **{ROUTES: routes.written()})
        else:  # Spark supports the update mode for no Python sink
            writer = writer.option("checkpointLocation", self.location)
            writer = writer.foreachBatch(lambda batch, number: _written(batch, number, options, routes))
        if self.options.trigger:
            writer = writer.trigger(processingTime=self.options.trigger)
        context = rows.sparkSession.sparkContext
        pool = context.getLocalProperty("spark.scheduler.pool")
        if self._pool is None:
            self._pool = pools_of(context).acquire()
        context.setLocalProperty("spark.scheduler.pool", pools.pool_name(self._pool))
        try:
            return writer.start()
        except AnalysisException as error:
            raise JobError(f"job {job.name!r}: Spark cannot run its query: {_shown(error)}") from None
        finally:
            context.setLocalProperty("spark.scheduler.pool", pool)  # type: ignore[arg-type]  # None unsets it

    # -- polling -----------------------------------------------------------------------------------------
    def poll(self) -> FrameState:
        """Return the state of the job. Polls Spark and, every few seconds, moves the group, in at most QUICK_MS.

        Errors of the server are logged: the group is moved later.
        """
        if self._query is None or self._state.state in ("failed", "stopped"):
            return self._state
        self._read_progress(self._query)
        self._move_group(now=self._state.state == "failed")
        return self._state

    def _read_progress(self, query: StreamingQuery) -> None:
        active = query.isActive  # before the progress: if the query ends now, the next call notices
        error = None if active else query.exception()
        last = query.lastProgress
        if last is not None and (last.batchId, last.timestamp) != self._seen:
            self._seen = (last.batchId, last.timestamp)
            for progress in query.recentProgress:
                self._add(progress)
        state: QueryState = "idle"
        if error is not None:
            state = "failed"
        elif not active:
            state = "stopped"
        elif query.status["isTriggerActive"] and query.status["isDataAvailable"]:
            state = "running"
        self._state = replace(self._state, state=state, error=error and explained(self.job.name, str(error)))

    def _add(self, progress: Any) -> None:
        """Count a batch, unless it was counted. A batch without rows, for the watermark, counts as well.

        An idle query sometimes reports progress with the number of the next batch.
        """
        before = self._state
        if "addBatch" not in progress.durationMs or (before.batch is not None and progress.batchId <= before.batch):
            return
        observed = progress.observedMetrics.get(ROWS)
        out = {} if observed is None else observed.asDict()
        total = {name: before.rows_out.get(name, 0) + out.get(name, 0) for name in {**before.rows_out, **out}}
        ends = ends_of([source.endOffset for source in progress.sources], self.job)
        self._state = replace(
            before, batch=progress.batchId, at=progress.timestamp, rows_in=before.rows_in + progress.numInputRows,
            rows_out=total, watermark=progress.eventTime.get("watermark", ""), ends=ends,
        )  # fmt: skip

    def cancel(self) -> None:
        """Cancel the current batch, which then fails. Returns immediately; may be called in any thread."""
        self._cancelled = True
        query = self._query
        if query is not None:
            self._spark.sparkContext.cancelJobGroup(query.runId)  # the job group of the query's batches

    def stop(self, timeout: float = STOPPING) -> FrameState:
        """Stop when the current batch is finished, or after ``timeout`` seconds in the middle of it.

        An interrupted batch runs again later. After ``cancel``, stops immediately. The state becomes ``stopped``, or
        ``failed`` if the query failed in the meantime. Stopping again does nothing.
        """
        query = self._query
        if query is not None and self._state.state not in ("failed", "stopped"):
            last = query.lastProgress
            begun = last.batchId if last is not None else -1
            until = time.monotonic() + timeout
            while not self._cancelled and time.monotonic() < until and query.isActive and _busy(query, begun):
                time.sleep(0.02)
            query.stop()
            self._read_progress(query)
            self._move_group(now=True)
        self._close()
        return self._state

    def _move_group(self, now: bool) -> None:
        try:
            self._groups.advance(self._state.ends, now)
        except (OSError, ReplyError, redis.RedisError) as error:  # more entries are retained than necessary
            log.warning("job %s: moving its group failed: %s", self.job.name, error)

    def _close(self) -> None:
        if self._pool is not None:
            pools_of(self._spark.sparkContext).release(self._pool)
            self._pool = None
        self._servers.close()
        self._quick.close()


def _written(batch: DataFrame, number: int, options: Mapping[str, str], routes: TopicRoutes) -> None:
    """Write a batch of a query in update mode."""
    routed = replace(routes, batch=number)
    batch.write.format("tidelog").mode("append").options(**options, **{ROUTES: routed.written()}).save()


def _busy(query: StreamingQuery, begun: int) -> bool:
    """Return whether the batch after ``begun`` is in progress."""
    status = query.status
    if not (status["isTriggerActive"] and status["isDataAvailable"]):
        return False
    last = query.lastProgress
    return last is None or last.batchId <= begun


def _shown(error: Exception) -> str:
    """Return the text of an error: user code's with its traceback, Spark's own without the JVM stack trace."""
    if isinstance(error, AnalysisException):
        return str(error).partition("\n\nJVM stacktrace")[0].partition(";\n")[0]
    text = "".join(traceback.format_exception(error)).strip()
    return text.partition("\n\nJVM stacktrace")[0] if isinstance(error, PySparkException) else text


def ends_of(offsets: list[str | None], job: Job) -> dict[str, StreamId]:
    """Return how far each of a job's input streams has been read: the minimum of the end offsets of its sources."""
    prefixes = tuple(f"{topic.name}:" for topic in job.inputs)
    read: Callable[[str], dict[str, str]] = lambda text: msgspec.json.decode(text, type=dict[str, str])  # noqa: E731
    ends: dict[str, StreamId] = {}
    for text in offsets:
        for stream, last in (read(text) if text else {}).items():
            if stream.startswith(prefixes):
                end = StreamId.parse(last)
                ends[stream] = min(end, ends.get(stream, end))
    return {stream: end for stream, end in ends.items() if end > ZERO}
