"""``Driver``: runs one batch job, epoch by epoch. Blocking; one thread at a time.

    prepare   topics checked -> origin -> last markers -> group on the inputs
    step      new entries? room? -> a plan for each partition -> tasks -> publish under the job's fence
              -> evict from the log of a stateless job, move its group

Rule 1: The server decides what an epoch is. The first publication of epoch N under the fence counts; it carries its run
        as the check value. A repetition that is skipped was published by this driver. Any other reply means that
        another engine published: everything known here is discarded and read again from the log.
Rule 2: A run makes at most one attempt at each epoch. After an attempt that failed, or whose outcome is unknown, a new
        run begins, because the state of a failed attempt must not look like that of the published one. For the same
        reason a marker contains the driver's run and, after a dot, an ID of the attempt if Spark repeats tasks.
Rule 3: An epoch runs a task for each partition, and each task writes a marker, even if it reads nothing.
Rule 4: Before tasks run, and again before their stages are published, the fence must be at the last known epoch. It is
        behind if a replica that lacked epochs became the leader; in this case, that replica's log counts.
Rule 5: Before stages are published, the outputs must be unchanged since the start of the epoch. If one has grown, rows
        were assigned to the former partitions, and nothing is published.
Rule 6: Before stages are published, the last entries that tasks have read must exist or have been evicted. They are
        missing if tasks read from a leader that has been replaced by a replica that lacks them.
Rule 7: A task's error about the job counts only if the epoch is still the next one. A task of a superseded engine, or
        one that read from a replica that lacks epochs, misses entries that are not lost.
Rule 8: If several groups of a cluster have the keys, the decision to publish is one call, and the rows then appear on
        each group (``commits``). Stages are dropped only if the decision was not attempted. Whoever prepares the job
        completes what was decided.
Rule 9: The replay log of a stateless job is informational: the newest MARKERS of each partition are retained. The log
        of a job with state is needed for recovery; only ``snapshots.retention`` evicts from it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NoReturn
from uuid import uuid4

from tidelog.client import calls, strings
from tidelog.client.dividedcommit import StageExpiredError
from tidelog.client.entries import StreamId
from tidelog.client.publish import Publisher
from tidelog.client.steps import checked
from tidelog.jobs import errors, keys
from tidelog.jobs.commits import commit_of, complete_former
from tidelog.jobs.declare import Job
from tidelog.jobs.epochs.outcome import IDLE, EpochOutcome, PhaseTimer, done
from tidelog.jobs.epochs.precheck import Precheck, full, precheck
from tidelog.jobs.errors import InputsLostError, JobError, SupersededError, TryAgainError
from tidelog.jobs.replaylog.marker import Marker
from tidelog.jobs.replaylog.origin import ZERO, Origin, agreed_origin
from tidelog.jobs.replaylog.positions import JobPositions
from tidelog.jobs.replaylog.progress import last_markers
from tidelog.jobs.snapshots.catalog import JobSnapshots, decode
from tidelog.jobs.snapshots.schedule import SnapshotSchedule
from tidelog.jobs.task.plan import TaskFailure, TaskPlan, TaskResult, TaskSettings
from tidelog.jobs.topics import JobTopics, changed, job_topics
from tidelog.transport.errors import ConflictError, ReplyError, StaleEpochError

FULL_S: Final = 1.0  # seconds until a full output is checked again
MOVE_S: Final = 1.0  # seconds between two moves of a group
MARKERS: Final = 1000  # retained for a job without state
LASTING: Final = frozenset({"WRONGTYPE", "NOPERM", "NOAUTH", "WRONGPASS"})  # codes of errors that are not temporary
KINDS: Final = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, JobError | SupersededError)
}  # fmt: skip

log = logging.getLogger(__name__)

Tasks = Callable[[Sequence[TaskPlan]], Sequence[TaskResult]]


class Driver:
    """One batch job on one engine.

    where: the settings of tasks; the driver sets ``run``, ``partitions`` and ``topics``. start: where this generation
    starts, if it is new; None: as the job declares. tasks: runs a task for each plan, all in parallel, and returns
    their results. ``step`` propagates its errors, and the next step starts from the log.
    """

    def __init__(self, job: Job, where: TaskSettings, tasks: Tasks, start: str | None = None) -> None:
        if job.kind != "batch":
            raise JobError(f"job {job.name!r} is a {job.kind} job: it runs as a streaming query")
        self.job = job
        self.generation = where.generation
        self.start = start or job.start
        self.fence = keys.fence(job.name, where.generation)
        self._where = where
        self.tasks = tasks
        self.publisher = Publisher(where.access, f"tidelog-job-{job.name}", where.copies)
        self._schedule = SnapshotSchedule(job) if job.stateful and where.store else None
        self._ready = False
        self._divided = False  # whether several groups of a cluster share the slots
        self._run = ""
        self._published_at = -float("inf")  # monotonic
        self._moved_at = -float("inf")  # monotonic
        self._moved: dict[str, StreamId] = {}  # by stream: the position of the group
        self._trimmed = 0  # the epoch at which the log was last trimmed
        self._shape: JobTopics
        self._origin: Origin
        self.progress: JobPositions

    @property
    def epoch(self) -> int:
        """The last published epoch, as far as is known; 0 before the first."""
        return self.progress.epoch

    @property
    def lasts(self) -> Sequence[Marker | None]:
        """The last marker of each partition."""
        return self.progress.lasts

    @property
    def divided(self) -> bool:
        """Whether several groups of a cluster share the slots, as of ``prepare``."""
        return self._divided

    @property
    def partitions(self) -> int:
        return self._shape.partitions

    def positions(self) -> dict[str, StreamId]:
        """Return, by stream, how far every partition of the job that reads it has read."""
        return self.progress.by_stream()

    def close(self) -> None:
        """Close the connection. The driver can be used again."""
        self.publisher.close()

    # -- preparation -------------------------------------------------------------------------------------------------
    def prepare(self) -> None:
        """Read the settings of the job's topics and the job's progress from the server. ``step`` calls it if necessary.

        Raises JobError, which names the topic and the remedy, for topics that are missing or have changed, and for an
        incomplete replay log. Raises SupersededError if a later generation has started, or UnreachableError.
        """
        self._ready = False
        ask, job = self.publisher.ask, self.job
        self._divided = self.publisher.several_groups()
        self._shape = job_topics(self._where.access, ask, job)
        self._origin = agreed_origin(ask, job, self.generation, self.start, self._shape)
        lasts = self._last_markers()
        self.progress = JobPositions.of(self._shape, self._origin, lasts)
        self._run = uuid4().hex
        self._groups(new=lasts is None)
        if self._schedule is not None:
            self._schedule.begin(self.progress.epoch, self._shape.partitions, self._records())
        self._ready = True

    def _last_markers(self) -> Sequence[Marker] | None:
        """Return the last marker of each partition, after the last epoch was completed (Rule 8)."""
        name, partitions = self.job.name, self._shape.partitions
        commit = commit_of(name, self.generation)

        def complete() -> object:
            return self.publisher.run(commit.recover())

        known = complete() is not None or self._divided
        lasts = last_markers(self.publisher.ask, name, self.generation, partitions, complete if known else None)
        if lasts is None:
            self.publisher.run(complete_former(name, self.generation, self._divided))
        return lasts

    def _groups(self, new: bool) -> None:
        """Create the group on every input stream; move it to the start of a new generation.

        An existing group may lag to protect the entries that snapshots need: only ``snapshots.retention`` moves it.
        """
        group = keys.group(self.job.name)
        at = self.progress.by_stream() if new or not self.job.stateful else self.progress.origins()
        checked(self.publisher.ask(*[calls.tread(stream, after, 0, group=group) for stream, after in at.items()]))
        if new or not self.job.stateful:
            self._move(at)

    # -- an epoch -------------------------------------------------------------------------------------------------
    def step(self) -> EpochOutcome:
        """Run the next epoch, if there is something to do.

        Raises JobError (or a subclass) if the job cannot continue without a change, and SupersededError if another
        engine publishes. TryAgainError, OSError (including UnreachableError) and errors of ``tasks`` may be temporary.
        In all cases, nothing was published that is not in the log, and the next step starts from the log.
        """
        try:
            return self._step()
        except ReplyError as error:
            self._ready = False
            raise self._refused(error) from error
        except BaseException:
            self._ready = False
            raise

    def _step(self) -> EpochOutcome:
        timer = PhaseTimer()
        if not self._ready:
            self.prepare()
        seen = self._check()
        timer.lap("ask")
        news = self._due() == 0 if self.job.is_source else self.progress.has_new(seen.lasts)
        save = self._save()
        if not news and (not save or self.job.is_source):  # snapshots of a source are started with its calls
            return self._idle(self._due() if self.job.is_source else self._snapshot_wait())
        room = full(seen, self._shape)
        if room:
            return replace(IDLE, epoch=self.progress.epoch, waiting=room, again=FULL_S)
        plans = self._plans(save)
        results = self._ran(plans)
        timer.lap("tasks")
        try:
            self._check_again(results)
        except Exception:
            self._drop(results)
            raise
        self._publish(plans, results)
        timer.lap("publish")
        self._published_at = time.monotonic()
        markers = [result.marker for result in results if result.marker is not None]
        before, self.progress = self.progress, self.progress.after(markers)
        if self._schedule is not None:
            read = any(span.rows for marker in markers for span in marker.inputs.values())
            self._schedule.published(save, changed=read or self.job.is_source, epoch=self.progress.epoch)
        self._after_epoch()
        timer.lap("after")
        made = done(before, self.progress, results, seen, timer)
        return made if self.job.is_source else replace(made, again=self._snapshot_wait())

    def _save(self) -> bool:
        """Return whether snapshots are due, after checking the earlier ones if a check is due."""
        if self._schedule is None:
            return False
        if self._schedule.check_in == 0:
            self._schedule.check(self._shape.partitions, self._records())
        return self._schedule.due_in == 0

    def _snapshot_wait(self) -> float | None:
        """Return the seconds until snapshots require a step, or None."""
        if self._schedule is None:
            return None
        waits = (self._schedule.due_in, self._schedule.check_in)
        return min((each for each in waits if each is not None), default=None)

    def _records(self) -> JobSnapshots:
        """Return this generation's snapshots as the server lists them."""
        (text,) = checked(self.publisher.ask(strings.get(keys.snapshots(self.job.name))))
        records = decode(self.job.name, text)
        return records if records.generation == self.generation else JobSnapshots()

    def _plans(self, save: bool) -> list[TaskPlan]:
        where = replace(
            self._where, run=self._run, partitions=self._shape.partitions, topics=self._shape.ids(),
            divided=self._divided,
        )  # fmt: skip
        return [
            TaskPlan(where, at, self.progress.epoch + 1, self.progress.lasts[at], self.progress.starts[at], save)
            for at in range(self._shape.partitions)
        ]

    def _ran(self, plans: Sequence[TaskPlan]) -> Sequence[TaskResult]:
        """Return the results of the tasks in the order of the partitions. Raises the error of a failed task."""
        results = sorted(self.tasks(plans), key=lambda result: result.partition)
        failures = [(result.partition, result.failure) for result in results if result.failure is not None]
        if failures:
            self._drop(results)
            self._check(again=())  # Rule 7
            self._fail(failures)
        for plan, result in zip(plans, results, strict=True):
            marker = result.marker
            wanted = (plan.partition, plan.epoch, self._run)
            if (
                marker is None
                or not (result.stages or result.divided)
                or (result.partition, marker.epoch, marker.run.partition(".")[0]) != wanted
            ):
                raise AssertionError(f"job {self.job.name!r}: task {plan.partition} returned another plan's result")
        return results

    def _fail(self, failures: Sequence[tuple[int, TaskFailure]]) -> NoReturn:
        """Raise the error of the failed tasks, preferring one that is not temporary."""
        partition, failure = max(failures, key=lambda each: each[1].kind in KINDS)
        kind = KINDS.get(failure.kind, TryAgainError)
        if kind is InputsLostError and not self.progress.epoch and self._origin.start == "earliest":
            kind = TryAgainError  # the earliest entry has changed: ``checked`` continues there
        text = failure.text if self.job.name in failure.text else f"job {self.job.name!r}: {failure.text}"
        more = f" (and {len(failures) - 1} more partitions)" if len(failures) > 1 else ""
        raise kind(f"{text} [partition {partition}, epoch {self.progress.epoch + 1}]{more}")

    def _drop(self, results: Sequence[TaskResult]) -> None:
        """Drop stages whose publication was not attempted."""
        self.publisher.drop([stage for result in results for stage in result.stages])
        for stages in _by_tag(results).values():
            self.publisher.drop(stages)

    def _check_again(self, results: Sequence[TaskResult]) -> None:
        """Check the conditions for publishing."""
        read = {
            (f"{topic}:{self._shape.part(topic, result.partition)}", span.end): None
            for result in results if result.marker is not None
            for topic, span in result.marker.inputs.items() if span.rows and topic in self._shape.inputs
        }  # fmt: skip
        self._check(again=tuple(read))

    def _publish(self, plans: Sequence[TaskPlan], results: Sequence[TaskResult]) -> None:
        """Publish (Rule 1). If this raises, nothing was published, except that after an OSError, or with several groups
        after any other error than these two, the outcome is unknown.

        Raises SupersededError or TryAgainError.
        """
        name, epoch, by = self.job.name, plans[0].epoch, self.publisher
        stages = [stage for result in results for stage in result.stages]
        try:
            if self._divided:
                now = by.run(commit_of(name, self.generation).commit(epoch, self._run, _by_tag(results)))
            else:
                now = by.publish(self.fence, epoch, stages, check=self._run).now
        except OSError:
            raise
        except (ConflictError, StaleEpochError) as error:
            by.drop(stages)
            raise SupersededError(f"job {name!r}: epoch {epoch} was published by another engine: {error}") from None
        except StageExpiredError as error:
            raise TryAgainError(f"job {name!r}: epoch {epoch}: {error}") from None
        except Exception:
            by.drop(stages)
            raise
        if not now and self._divided:
            raise SupersededError(f"job {name!r}: epoch {epoch} or a later one was published by another engine")
        if not now:
            log.info("job %s: epoch %d had been published, but its reply was lost", name, epoch)

    def _refused(self, error: ReplyError) -> Exception:
        """Return the error for a refusal by the server. A stage that has expired, for example, is staged again."""
        kind = JobError if error.code in LASTING else TryAgainError
        return kind(f"job {self.job.name!r}: the server refused: {error}")

    # -- checks -------------------------------------------------------------------------------------
    def _check(self, again: Sequence[tuple[str, StreamId]] | None = None) -> Precheck:
        """Read what is new and check that nothing else has changed.

        again: check only the conditions for publishing, after tasks have read these last entries.
        """
        seen = precheck(self.publisher.ask, self.fence, self._shape, again)
        name = self.job.name
        if seen.epoch is not None and seen.epoch > self.progress.epoch:
            raise SupersededError(f"job {name!r}: epoch {seen.epoch} was published by another engine")
        if (seen.epoch or 0) < self.progress.epoch:
            raise TryAgainError(
                f"job {name!r}: the server has epoch {seen.epoch or 0} as the last one, not {self.progress.epoch}: a"
                " replica that lacked some became the leader. Continuing with the epochs it has"
            )
        for topic, facts in self._shape.inputs.items():
            if changed(topic, facts, seen.facts[topic]):
                self.prepare()  # raises an error with the remedy
                raise TryAgainError(f"job {name!r}: {changed(topic, facts, seen.facts[topic])}")
        for topic, facts in self._shape.outputs.items():
            what = changed(topic, facts, seen.facts[topic])
            if what:
                raise TryAgainError(f"job {name!r}: {what}: nothing was published")
        self._shape = self._shape.updated({name: facts for name, facts in seen.facts.items() if facts is not None})
        if seen.missing is not None:
            raise TryAgainError(
                f"job {name!r}: the entry {seen.missing[1]} of {seen.missing[0]!r} was read, and no longer exists:"
                " a replica that lacked it became the leader, or the stream was deleted. Nothing was published"
            )
        if again is None:
            self.progress = self.progress.checked(self.job, self._origin, seen.infos)
        return seen

    def _due(self) -> float | None:
        """Return the seconds until a job without inputs is called again; None for other jobs."""
        if not self.job.is_source:
            return None
        every = self.job.every or 0.0
        left = self._published_at + every - time.monotonic()
        lasts = [last.now_ms for last in self.progress.lasts if last is not None]
        if lasts:  # perhaps of another engine
            left = max(left, min(every, max(lasts) / 1000 + every - time.time()))
        return max(0.0, left)

    # -- after an epoch -----------------------------------------------------------------------------------------------
    def _idle(self, wait: float | None) -> EpochOutcome:
        if not self.job.stateful and self._unmoved():
            left = self._moved_at + MOVE_S - time.monotonic()
            if left <= 0:
                self._settle()
            else:
                wait = left if wait is None else min(wait, left)
        return replace(IDLE, epoch=self.progress.epoch, again=wait)

    def _after_epoch(self) -> None:
        """Perform the steps that may fail, and are then repeated after the next epoch."""
        try:
            if not self.job.stateful and self.progress.epoch >= self._trimmed + max(1, MARKERS // 4):
                logs = [keys.log(self.job.name, at) for at in range(self._shape.partitions)]
                checked(self.publisher.ask(*[calls.ttrim(key, count=MARKERS) for key in logs]))
                self._trimmed = self.progress.epoch
        except (OSError, ReplyError) as error:
            log.warning("job %s: evicting from its log failed: %s", self.job.name, error)
        if not self.job.stateful and time.monotonic() >= self._moved_at + MOVE_S:
            self._settle()

    def _settle(self) -> None:
        """Move the group of a stateless job to the job's position, so that entries it has read may be evicted."""
        try:
            self._move(self._unmoved())
        except (OSError, ReplyError) as error:
            log.warning("job %s: moving its group failed: %s", self.job.name, error)

    def _unmoved(self) -> dict[str, StreamId]:
        return {stream: at for stream, at in self.progress.by_stream().items() if self._moved.get(stream, ZERO) != at}

    def _move(self, to: dict[str, StreamId]) -> None:
        group = keys.group(self.job.name)
        checked(self.publisher.ask(*[calls.tgroup_setid(stream, group, at) for stream, at in to.items()]))
        self._moved |= to
        self._moved_at = time.monotonic()


def _by_tag(results: Sequence[TaskResult]) -> dict[str, list[str]]:
    """Return the stages of several groups by hash tag, each in the order of the partitions."""
    found: dict[str, list[str]] = {}
    for result in results:
        for tag, stages in result.divided.items():
            found.setdefault(tag, []).extend(stages)
    return found
