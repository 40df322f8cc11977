"""Collects what is known about jobs, for ``tidelog jobs status``. Operations without I/O.

Rule 1: The progress of a batch job comes from its replay log; that of a frame job from its group, which follows within
        seconds. The status comes from the job's engine, whose lease determines whether it is alive.
Rule 2: A problem with one job must not affect the others: missing and invalid data is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from tidelog.client import calls, strings
from tidelog.client.entries import StreamId
from tidelog.client.steps import Steps, checked
from tidelog.jobs import keys
from tidelog.jobs.errors import JobError
from tidelog.jobs.registry import registry, status
from tidelog.jobs.registry.registry import JobRegistry, JobSpec
from tidelog.jobs.registry.status import SnapshotSummary, Status
from tidelog.jobs.replaylog.marker import Marker, read_marker
from tidelog.operating.throughput import Throughput
from tidelog.options.start import StartPosition
from tidelog.topics import TopicError, deadletters
from tidelog.topics.settings import key_of, read_settings
from tidelog.transport.call import Call

PAGE: Final = 2000  # calls in one pipeline
_Streams = list[list[tuple[str, str]]]  # topics and streams that each partition of a job reads


@dataclass(frozen=True)
class PartitionOverview:
    """The progress of one partition of a job."""

    partition: int
    epoch: int | None  # of its last marker
    lag: int  # unread entries of its inputs
    lag_ms: int  # age of the oldest unread entry
    recovery: Any = None  # progress of a recovery, as its task reports it


@dataclass(frozen=True)
class JobOverview:
    """A job. ``status`` may come from an engine that no longer has the job."""

    spec: JobSpec
    engine: str  # the live engine that has its claim; empty: none
    status: Status | None
    partitions: tuple[PartitionOverview, ...] = ()
    snapshots: SnapshotSummary = SnapshotSummary()  # noqa: RUF009 - immutable
    dead_letters: Mapping[str, int | None] = field(default_factory=dict)  # open ones by topic; None: can't be read

    @property
    def lag(self) -> int:
        return sum(each.lag for each in self.partitions)

    @property
    def lag_ms(self) -> int:
        return max((each.lag_ms for each in self.partitions), default=0)

    @property
    def report(self) -> Status | None:
        """The status, if it belongs to this generation."""
        return self.status if self.status is not None and self.status.generation == self.spec.generation else None

    @property
    def throughput(self) -> Throughput:
        """Rates and dead letters. There are rates if an engine runs the job."""
        report = self.report
        if report is None or report.engine != self.engine:
            return Throughput(dead_letters=self.dead_letters)
        return Throughput(report.in_rate, report.out_rate, self.dead_letters)

    @property
    def state(self) -> str:
        """The state in one or two words."""
        if self.spec.paused:
            return "pausing" if self.engine else "paused"
        if not self.engine:
            return "no engine"
        if self.report is None or self.report.engine != self.engine:
            return "starting"
        if any(each.recovery is not None for each in self.partitions):
            return "recovering"
        return self.report.state

    def data(self) -> dict[str, Any]:
        """Return the data for JSON."""
        return {
            "job": self.spec, "state": self.state, "engine": self.engine or None, "lag": self.lag,
            "lag_ms": self.lag_ms, **self.throughput.data(), "status": self.report, "snapshots": self.snapshots,
            "partitions": self.partitions,
        }  # fmt: skip


@dataclass(frozen=True)
class JobsOverview:
    """The requested jobs; ``at``: ms since 1970, by the server's clock."""

    at: int
    jobs: tuple[JobOverview, ...]
    engines: tuple[str, ...] = ()  # live ones

    def to_json(self) -> str:
        """Return the data as JSON."""
        data = {"at": self.at, "engines": self.engines, "jobs": [each.data() for each in self.jobs]}
        return msgspec.json.encode(data).decode()


def overview(names: Sequence[str] = ()) -> Steps[JobsOverview]:
    """Return an overview of these jobs, or of all. Raises JobError if a job does not exist."""
    there: JobRegistry = yield from registry.read()
    specs = [there.find(name) for name in names] if names else [there.specs[name] for name in sorted(there.specs)]
    (now,) = checked((yield [strings.server_time()]))
    found, engines = yield from _owners(specs)
    counts = yield from deadletters.open_counts(topic for spec in specs for topic in spec.dead_letters)
    jobs = []
    for each, streams in zip(found, (yield from _streams(specs)), strict=True):
        partitions = yield from _partitions(each.spec, streams, now)
        letters = {topic: counts[topic] for topic in each.spec.dead_letters}
        jobs.append(replace(each, partitions=tuple(partitions), dead_letters=letters))
    return JobsOverview(now, tuple(jobs), tuple(engines))


def owner(name: str) -> Steps[str]:
    """Return the live engine that has a job's claim; empty if there is none."""
    (claim,) = checked((yield [strings.get(keys.owner(name))]))
    lease, value = _holder(claim)
    if not lease:
        return ""
    (there,) = checked((yield [strings.get(lease)]))
    return value.rpartition(b":")[0].decode() if there == value else ""


def _owners(specs: Sequence[JobSpec]) -> Steps[tuple[list[JobOverview], list[str]]]:
    """Return the jobs with their status and the holders of their claims, and all live engines."""
    (document,) = checked((yield [strings.get(keys.ENGINES)]))
    names = [spec.name for spec in specs]
    claims, said, kept = checked(
        (yield [strings.mget(*map(which, names)) for which in (keys.owner, keys.status, keys.snapshots)])
    )
    holders = [_holder(claim) for claim in claims]
    try:
        listed = sorted(msgspec.json.decode(document or b"{}").get("engines", {}))
        for name in listed:
            name.encode()
    except (ValueError, AttributeError, TypeError, RecursionError):
        listed = []
    leases = sorted({lease for lease, _ in holders if lease} | {keys.lease(name) for name in listed})
    (values,) = checked((yield [strings.mget(*leases)]))
    living = dict(zip(leases, values, strict=True))
    found = []
    for spec, (lease, value), text, snapshots in zip(specs, holders, said, kept, strict=True):
        lives = lease and living[lease] == value
        engine = value.rpartition(b":")[0].decode("utf-8", "backslashreplace") if lives else ""
        summary = status.snapshots_of(snapshots, spec.generation)
        found.append(JobOverview(spec, engine, status.decoded(text), snapshots=summary))
    return found, [name for name in listed if living[keys.lease(name)] is not None]


def _holder(claim: bytes | None) -> tuple[str, bytes]:
    """Return the lease that a claim names, and its value; empty if it is free."""
    parts = (claim or b"").split(b"|")
    return (parts[0].decode("utf-8", "backslashreplace"), parts[1]) if len(parts) == 3 else ("", b"")


def _streams(specs: Sequence[JobSpec]) -> Steps[list[_Streams]]:
    """Return the streams that each partition of each job reads. A topic with one partition is read by all."""
    topics = sorted({topic for spec in specs for topic in spec.inputs})
    (texts,) = checked((yield [strings.mget(*map(key_of, topics))]))
    counts = {topic: _count(topic, text) for topic, text in zip(topics, texts, strict=True)}
    return [
        [
            [(topic, f"{topic}:{0 if counts[topic] == 1 else at}") for topic in spec.inputs]
            for at in range(spec.partitions)
        ]
        for spec in specs
    ]


def _count(topic: str, text: bytes | None) -> int:
    try:
        return (read_settings(topic, text).partitions or 1) if text is not None else 0
    except TopicError:
        return 0


def _partitions(spec: JobSpec, streams: _Streams, now: int) -> Steps[list[PartitionOverview]]:
    """Return the progress of each partition of a job."""
    recovering = yield from _sent(strings.get(keys.recovery(spec.name, at)) for at in range(spec.partitions))
    lasts, positions = yield from _positions(spec, streams)
    requests: list[Call[Any]] = []
    for at, inputs in enumerate(streams):
        for topic, stream in inputs:
            after = positions[at, topic]
            requests += [calls.tcount(stream, f"({after}"), calls.trange(stream, f"({after}", "+", 1)]
    replies = iter((yield from _sent(requests)))
    progress = []
    for at, last in enumerate(lasts):
        lag = age = 0
        for _ in streams[at]:
            count, first = next(replies), next(replies)
            if isinstance(count, int) and isinstance(first, list):
                lag += count
                age = max([age, *[now - entry.id.ms for entry in first]])
        epoch = last.epoch if last else None
        progress.append(PartitionOverview(at, epoch, lag, age, _recovery(recovering[at], epoch)))
    return progress


def _positions(spec: JobSpec, streams: _Streams) -> Steps[tuple[list[Marker | None], dict[tuple[int, str], StreamId]]]:
    """Return the last marker of each partition, and its position in each input, by partition and topic."""
    lasts = yield from _lasts(spec)
    begun = yield from _begun(spec, streams)
    positions = {}
    for at, (last, inputs) in enumerate(zip(lasts, streams, strict=True)):
        for topic, stream in inputs:
            span = last.inputs.get(topic) if last is not None else None
            positions[at, topic] = span.end if span is not None else begun.get((topic, stream), StreamId(0))
    return lasts, positions


@dataclass(frozen=True)
class ResetPreview:
    """The effect of a reset on one input of one partition."""

    partition: int
    stream: str
    before: StreamId  # the current position
    after: StreamId  # the new one
    read_again: int  # entries that were read and will be read again
    skipped: int  # unread entries that will not be read


def preview_reset(spec: JobSpec, start: StartPosition) -> Steps[list[ResetPreview]]:
    """Return the entries that a job reads again or skips if it is reset to ``start``."""
    (streams,) = yield from _streams([spec])
    _, positions = yield from _positions(spec, streams)
    rows = [(at, stream, positions[at, topic]) for at, inputs in enumerate(streams) for topic, stream in inputs]
    infos = yield from _sent(calls.tinfo(stream) for _, stream, _ in rows)
    requests: list[Call[Any]] = []
    targets = []
    for (_, stream, before), info in zip(rows, infos, strict=True):
        last = StreamId(0) if isinstance(info, Exception) else info.last
        target = last if start.after is None else start.after
        targets.append(target)
        requests += [calls.tcount(stream, f"({target}", before), calls.tcount(stream, f"({before}", target)]
    counts = [each if isinstance(each, int) else 0 for each in (yield from _sent(requests))]
    return [
        ResetPreview(at, stream, before, target, again, skipped)
        for (at, stream, before), target, again, skipped in zip(rows, targets, counts[::2], counts[1::2], strict=True)
    ]


def _lasts(spec: JobSpec) -> Steps[list[Marker | None]]:
    """Return the last marker of each partition."""
    if spec.kind == "frame":
        return [None] * spec.partitions
    logs = [keys.log(spec.name, at) for at in range(spec.partitions)]
    replies = yield from _sent(calls.trevrange(key, "+", "-", 1) for key in logs)
    return [_marker(key, spec, entries) for key, entries in zip(logs, replies, strict=True)]


def _marker(key: str, spec: JobSpec, entries: Any) -> Marker | None:
    if not isinstance(entries, list) or not entries:
        return None
    try:
        marker = read_marker(key, entries[0])
    except JobError:
        return None
    return marker if marker.generation == spec.generation else None


def _begun(spec: JobSpec, streams: _Streams) -> Steps[Mapping[tuple[str, str], StreamId]]:
    """Return the positions of the group, from which a job without markers continues."""
    group = keys.group(spec.name).encode()
    pairs = sorted({pair for inputs in streams for pair in inputs})
    listed = yield from _sent(calls.tgroup_list(stream) for _, stream in pairs)
    return {
        pair: each.offset
        for pair, groups in zip(pairs, listed, strict=True)
        if isinstance(groups, list)
        for each in groups
        if each.name == group
    }


def _sent(requests: Iterable[Call[Any]]) -> Steps[list[Any]]:
    """Send calls in batches; return their results, including errors."""
    left, replies = list(requests), []
    while left:
        replies += yield left[:PAGE]
        del left[:PAGE]
    return replies


def _recovery(text: Any, epoch: int | None) -> Any:
    """Return a recovery's progress, ``{"from": 3, "epoch": 5, "to": 9, "rows": 800}``; None after a later epoch."""
    if not isinstance(text, bytes):
        return None
    try:
        facts = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    to = facts.get("to") if isinstance(facts, dict) else None
    return None if isinstance(to, int) and epoch is not None and to < epoch else facts
