"""``Driver``: runs one batch job, epoch by epoch. Blocking; each has one thread at a time.

    prepare   topics checked -> origin -> last markers -> group on the inputs
    step      news? room? -> a plan for each partition -> tasks -> publish with the job's fence -> evict, move the group

Rule 1: what an epoch is, the server decides: the first publish of epoch N under the fence counts, and carries its run
        as check. A repetition that is skipped was ours. Any other answer means that somebody else published: what is
        known here is forgotten, and read again from the log.
Rule 2: a run has one attempt at most at each epoch. After an attempt that failed, or whose end is unknown, the run gets
        another name: the state of a failed attempt must not look like that of the published one. For the same reason a
        marker has the driver's run and, after a dot, what tells attempts at a task apart, if they are made by Spark.
Rule 3: an epoch runs a task for each partition, and each writes a marker, though there be nothing to read.
Rule 4: before tasks run, and again before their stages are published, the fence must be at the last known epoch. It is
        behind where a replica that lacked epochs became the leader: then its log counts.
Rule 5: before stages are published, the outputs must be what they were when the epoch began. Where one has grown, rows
        were given to partitions of before, and nothing is published.
Rule 6: before stages are published, the last entries that tasks have read must be there, or be evicted. They are not
        where tasks read of a leader that was replaced since by a replica that lacks them.
Rule 7: what a task says against the job counts only if the epoch is still the next one: a task of an engine that was
        superseded, or one that asked a replica that lacks epochs, finds entries missing which are no loss.
Rule 8: the replay log of a job without state is for people: its newest MARKERS are kept, in each partition. With a
        state it is what a recovery needs, and whoever knows the snapshots evicts from it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NoReturn
from uuid import uuid4

from tidelog.client import calls, strings
from tidelog.client.entries import StreamId
from tidelog.client.publish import Publisher
from tidelog.client.steps import checked
from tidelog.jobs import errors, keys
from tidelog.jobs.declare import Job
from tidelog.jobs.epochs.outcome import IDLE, DriverOptions, EpochOutcome, PhaseTimer, done
from tidelog.jobs.epochs.precheck import Precheck, evict, full, precheck
from tidelog.jobs.errors import InputsLostError, JobError, SupersededError, TryAgainError
from tidelog.jobs.replaylog.marker import Marker
from tidelog.jobs.replaylog.origin import ZERO, Origin, agreed_origin
from tidelog.jobs.replaylog.positions import Positions
from tidelog.jobs.replaylog.progress import last_markers
from tidelog.jobs.snapshots.catalog import JobSnapshots, decode
from tidelog.jobs.snapshots.schedule import SnapshotSchedule
from tidelog.jobs.task.plan import TaskFailure, TaskPlan, TaskResult, TaskSettings
from tidelog.jobs.topics import JobTopics, changed, job_topics
from tidelog.transport.access import Access
from tidelog.transport.errors import ConflictError, ReplyError, StaleEpochError

FULL_S: Final = 1.0  # until a full output is looked at again
MOVE_S: Final = 1.0  # between two moves of a group
MARKERS: Final = 1000  # that are kept of a job without state
LASTING: Final = frozenset({"WRONGTYPE", "NOPERM", "NOAUTH", "WRONGPASS"})  # codes of errors that don't pass
KINDS: Final = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, JobError | SupersededError)
}  # fmt: skip

log = logging.getLogger(__name__)

Tasks = Callable[[Sequence[TaskPlan]], Sequence[TaskResult]]


class Driver:
    """One batch job on one engine.

    target: ``module:attribute`` of the job, for tasks. start: where this generation begins, if it is new; None: as the
    job is declared. tasks: runs a task for each plan, all at once, and returns what they answer; what it raises is
    raised by ``step``, and the next step begins from the log.
    """

    def __init__(
        self,
        access: Access,
        job: Job,
        target: str,
        generation: int,
        options: DriverOptions,
        tasks: Tasks,
        start: str | None = None,
    ) -> None:
        if job.kind != "batch":
            raise JobError(f"job {job.name!r} is a {job.kind} job: it runs as a streaming query")
        self.job = job
        self.generation = generation
        self.start = start or job.start
        self.fence = keys.fence(job.name, generation)
        self._access = access
        self._target = target
        self._options = options
        self._tasks = tasks
        self._by = Publisher(access, f"tidelog-job-{job.name}", options.copies)
        self._saving = SnapshotSchedule(job) if job.stateful and options.store else None
        self._ready = False
        self._run = ""
        self._published_at = -float("inf")  # monotonic
        self._moved_at = -float("inf")  # monotonic
        self._moved: dict[str, StreamId] = {}  # by stream: where the group is
        self._trimmed = 0  # the epoch after which the log was evicted from
        self._shape: JobTopics
        self._origin: Origin
        self._at: Positions

    @property
    def epoch(self) -> int:
        """The last one that was published, as far as is known; 0 before the first."""
        return self._at.epoch

    @property
    def lasts(self) -> Sequence[Marker | None]:
        """The last marker of each partition."""
        return self._at.lasts

    @property
    def partitions(self) -> int:
        return self._shape.partitions

    def positions(self) -> dict[str, StreamId]:
        """By stream: up to where it was read, by every partition of the job that reads it."""
        return self._at.by_stream()

    def close(self) -> None:
        """Close the connection. The driver can be used again."""
        self._by.close()

    # -- to begin -------------------------------------------------------------------------------------------------
    def prepare(self) -> None:
        """Learn from the server what the job's topics are and how far it is. ``step`` does it when need be.

        JobError, which names the topic and the remedy, for topics that are missing, are not as declared or as they
        were; for a replay log that is not whole. SupersededError if a later generation has begun. UnreachableError.
        """
        self._ready = False
        ask, job = self._by.ask, self.job
        self._shape = job_topics(self._access, ask, job)
        self._origin = agreed_origin(ask, job, self.generation, self.start, self._shape)
        lasts = last_markers(ask, job.name, self.generation, self._shape.partitions)
        self._at = Positions.of(self._shape, self._origin, lasts)
        self._new_run()
        self._groups(new=lasts is None)
        if self._saving is not None:
            self._saving.begin(self._at.epoch, self._shape.partitions, self._records())
        self._ready = True

    def _new_run(self) -> None:
        self._run = uuid4().hex

    def _groups(self, new: bool) -> None:
        """See that the group is there, on every stream that is read; at the start of a new generation, if it is one.

        A group that is there may be behind, for the sake of snapshots: only who knows them moves it on.
        """
        group = keys.group(self.job.name)
        at = self._at.by_stream() if new or not self.job.stateful else self._at.origins()
        checked(self._by.ask(*[calls.tread(stream, after, 0, group=group) for stream, after in at.items()]))
        if new or not self.job.stateful:
            self._move(at)

    # -- an epoch -------------------------------------------------------------------------------------------------
    def step(self) -> EpochOutcome:
        """Run the next epoch, if there is something to do.

        JobError and its kinds: the job can't go on as it is. SupersededError: somebody else publishes. TryAgainError,
        OSError (UnreachableError is one), and what ``tasks`` raises: it may pass. In all cases nothing was published
        that is not in the log, and the next step begins from the log.
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
        seen = self._survey()
        timer.lap("ask")
        news = self._due() == 0 if self.job.is_source else self._at.news(seen.lasts)
        save = self._save()
        if not news and (not save or self.job.is_source):  # a source gets its snapshots with its calls
            return self._idle(self._due() if self.job.is_source else self._saving_left())
        room = full(seen, self._shape)
        if room:
            return replace(IDLE, epoch=self._at.epoch, waiting=room, again=FULL_S)
        plans = self._plans(save)
        results = self._ran(plans)
        timer.lap("tasks")
        stages = [stage for result in results for stage in result.stages]
        try:
            self._publish(plans, results, stages)
        except OSError:
            raise  # it is unknown whether they were published
        except Exception:
            self._by.drop(stages)
            raise
        timer.lap("publish")
        self._published_at = time.monotonic()
        markers = [result.marker for result in results if result.marker is not None]
        before, self._at = self._at, self._at.after(markers)
        if self._saving is not None:
            read = any(span.rows for marker in markers for span in marker.inputs.values())
            self._saving.published(save, changed=read or self.job.is_source, epoch=self._at.epoch)
        self._afterwards(any(marker.rows for marker in markers))
        timer.lap("after")
        made = done(before, self._at, results, seen, timer)
        return made if self.job.is_source else replace(made, again=self._saving_left())

    def _save(self) -> bool:
        """Whether snapshots are due, after a look at what became of those before, where that is due."""
        if self._saving is None:
            return False
        if self._saving.look == 0:
            self._saving.looked(self._shape.partitions, self._records())
        return self._saving.left == 0

    def _saving_left(self) -> float | None:
        """Seconds until there is something to do for snapshots; None: nothing."""
        if self._saving is None:
            return None
        return min((each for each in (self._saving.left, self._saving.look) if each is not None), default=None)

    def _records(self) -> JobSnapshots:
        """What the server knows of this generation's snapshots."""
        (text,) = checked(self._by.ask(strings.get(keys.snapshots(self.job.name))))
        records = decode(self.job.name, text)
        return records if records.generation == self.generation else JobSnapshots()

    def _plans(self, save: bool) -> list[TaskPlan]:
        options = self._options
        where = TaskSettings(
            self._target, options.path, self._access, self.generation, self._run, self._shape.partitions,
            options.state_dir, options.store, options.cache, options.stage_ttl_ms, self._shape.ids(), options.version,
            options.copies,
        )  # fmt: skip
        return [
            TaskPlan(where, at, self._at.epoch + 1, self._at.lasts[at], self._at.starts[at], save)
            for at in range(self._shape.partitions)
        ]

    def _ran(self, plans: Sequence[TaskPlan]) -> Sequence[TaskResult]:
        """The answers of the tasks, in the order of the partitions. Raises what one of them failed by."""
        results = sorted(self._tasks(plans), key=lambda result: result.partition)
        failures = [(result.partition, result.failure) for result in results if result.failure is not None]
        if failures:
            self._by.drop([stage for result in results for stage in result.stages])
            self._survey(again=())  # Rule 7
            self._fail(failures)
        for plan, result in zip(plans, results, strict=True):
            marker = result.marker
            wanted = (plan.partition, plan.epoch, self._run)
            if (
                marker is None
                or not result.stages
                or (result.partition, marker.epoch, marker.run.partition(".")[0]) != wanted
            ):
                raise AssertionError(f"job {self.job.name!r}: the task of {plan.partition} answers for another plan")
        return results

    def _fail(self, failures: Sequence[tuple[int, TaskFailure]]) -> NoReturn:
        """Raise what tasks failed by: first what does not pass."""
        partition, failure = max(failures, key=lambda each: each[1].kind in KINDS)
        kind = KINDS.get(failure.kind, TryAgainError)
        if kind is InputsLostError and not self._at.epoch and self._origin.start == "earliest":
            kind = TryAgainError  # what is the earliest has changed: ``checked`` moves on
        text = failure.text if self.job.name in failure.text else f"job {self.job.name!r}: {failure.text}"
        more = f" (and {len(failures) - 1} more partitions)" if len(failures) > 1 else ""
        raise kind(f"{text} [partition {partition}, epoch {self._at.epoch + 1}]{more}")

    def _publish(self, plans: Sequence[TaskPlan], results: Sequence[TaskResult], stages: Sequence[str]) -> None:
        """Publish (Rule 1). Raises, and then nothing was published, except with an OSError: then it is unknown."""
        read = {
            (f"{topic}:{self._shape.part(topic, result.partition)}", span.end): None
            for result in results if result.marker is not None
            for topic, span in result.marker.inputs.items() if span.rows and topic in self._shape.inputs
        }  # fmt: skip
        self._survey(again=tuple(read))
        name, epoch = self.job.name, plans[0].epoch
        try:
            published = self._by.publish(self.fence, epoch, stages, check=self._run)
        except (ConflictError, StaleEpochError) as error:
            raise SupersededError(f"job {name!r}: epoch {epoch} was published by another engine: {error}") from None
        if not published.now:
            log.info("job %s: epoch %d had been published, its reply was lost", name, epoch)

    def _refused(self, error: ReplyError) -> Exception:
        """What a refusal of the server means: a stage that ended, for one, is made anew."""
        kind = JobError if error.code in LASTING else TryAgainError
        return kind(f"job {self.job.name!r}: the server refuses: {error}")

    # -- what the server says -------------------------------------------------------------------------------------
    def _survey(self, again: Sequence[tuple[str, StreamId]] | None = None) -> Precheck:
        """See what is new, and that everything is as it was. ``again``: only what must hold for publishing, after tasks
        have read these entries last.
        """
        seen = precheck(self._by.ask, self.fence, self._shape, again)
        name = self.job.name
        if seen.epoch is not None and seen.epoch > self._at.epoch:
            raise SupersededError(f"job {name!r}: epoch {seen.epoch} was published by another engine")
        if (seen.epoch or 0) < self._at.epoch:
            raise TryAgainError(
                f"job {name!r}: the server has epoch {seen.epoch or 0} as the last one, not {self._at.epoch}: a replica"
                " that lacked some became the leader. Going on with what it has"
            )
        for topic, facts in self._shape.inputs.items():
            if changed(topic, facts, seen.facts[topic]):
                self.prepare()  # says what is wrong
                raise TryAgainError(f"job {name!r}: {changed(topic, facts, seen.facts[topic])}")
        for topic, facts in self._shape.outputs.items():
            what = changed(topic, facts, seen.facts[topic])
            if what:
                raise TryAgainError(f"job {name!r}: {what}: nothing was published")
        self._shape = self._shape.updated({name: facts for name, facts in seen.facts.items() if facts is not None})
        if seen.missing is not None:
            raise TryAgainError(
                f"job {name!r}: the entry {seen.missing[1]} of {seen.missing[0]!r} was read and is not there any more:"
                " a replica that lacked it became the leader, or the stream was deleted. Nothing was published"
            )
        if again is None:
            self._at = self._at.checked(self.job, self._origin, seen.infos)
        return seen

    def _due(self) -> float | None:
        """Seconds until a job without inputs is called again; None for others."""
        if not self.job.is_source:
            return None
        every = self.job.every or 0.0
        left = self._published_at + every - time.monotonic()
        lasts = [last.now_ms for last in self._at.lasts if last is not None]
        if lasts:  # of another engine, perhaps
            left = max(left, min(every, max(lasts) / 1000 + every - time.time()))
        return max(0.0, left)

    # -- afterwards -----------------------------------------------------------------------------------------------
    def _idle(self, wait: float | None) -> EpochOutcome:
        if not self.job.stateful and self._unmoved():
            left = self._moved_at + MOVE_S - time.monotonic()
            if left <= 0:
                self._settle()
            else:
                wait = left if wait is None else min(wait, left)
        return replace(IDLE, epoch=self._at.epoch, again=wait)

    def _afterwards(self, put_out: bool) -> None:
        """What may fail, and is done again after the next epoch."""
        try:
            if put_out:
                evict(self._by.ask, self._shape)
            if not self.job.stateful and self._at.epoch >= self._trimmed + max(1, MARKERS // 4):
                logs = [keys.log(self.job.name, at) for at in range(self._shape.partitions)]
                checked(self._by.ask(*[calls.ttrim(key, count=MARKERS) for key in logs]))
                self._trimmed = self._at.epoch
        except (OSError, ReplyError) as error:
            log.warning("job %s: outputs, or its log, were not evicted from: %s", self.job.name, error)
        if not self.job.stateful and time.monotonic() >= self._moved_at + MOVE_S:
            self._settle()

    def _settle(self) -> None:
        """Move the group of a stateless job to where it is, so that retention may evict what was read."""
        try:
            self._move(self._unmoved())
        except (OSError, ReplyError) as error:
            log.warning("job %s: its group was not moved: %s", self.job.name, error)

    def _unmoved(self) -> dict[str, StreamId]:
        return {stream: at for stream, at in self._at.by_stream().items() if self._moved.get(stream, ZERO) != at}

    def _move(self, to: dict[str, StreamId]) -> None:
        group = keys.group(self.job.name)
        checked(self._by.ask(*[calls.tgroup_setid(stream, group, at) for stream, at in to.items()]))
        self._moved |= to
        self._moved_at = time.monotonic()
