"""The origin of a generation of a job: its starting position in each input, and the topics at that time.

    {"start": "earliest", "partitions": 4, "topics": {"clicks": ["5f0c...", 4]},
     "starts": {"clicks": ["0.0", "1700000000000.3", "0.0", "0.0"]}}

Rule 1: It is written once, before the first epoch, by the first engine that prepares the generation. Another engine
        that starts before an epoch was published uses the same positions, so ``latest`` misses nothing.
Rule 2: The positions of an input that is added to the job later are added at that time. Existing ones never change.
Rule 3: A reset closes a generation before the next one starts: its fence gets the highest epoch, so an engine that
        still runs the old generation cannot publish.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tidelog.client import calls
from tidelog.client.entries import StreamId
from tidelog.client.steps import checked, drive_over, existing
from tidelog.coordination import documents
from tidelog.jobs import keys
from tidelog.jobs.declare import Job
from tidelog.jobs.errors import JobError
from tidelog.jobs.topics import Ask, JobTopics, reset_hint
from tidelog.options.start import StartPosition

ZERO: Final = StreamId(0, 0)


@dataclass(frozen=True)
class Origin:
    """The origin of a generation."""

    start: str  # earliest, latest, an ID or a time, as requested
    partitions: int  # of the job
    topics: dict[str, tuple[str, int]]  # by input: its ID and its number of partitions
    starts: dict[str, list[str]]  # by input: the ID after which each of its partitions is read

    def after(self, topic: str, partition: int) -> StreamId:
        """Return the ID after which a partition of an input is read."""
        return StreamId.parse(self.starts[topic][partition])


def agreed_origin(ask: Ask, job: Job, generation: int, start: str, shape: JobTopics) -> Origin:
    """Return the origin of a generation; create it if there is none. Raises JobError if the topics have changed."""
    key = keys.origin(job.name, generation)

    def edit(text: bytes | None) -> tuple[bytes | None, Origin]:
        known = None if text is None else _read(job, key, text)
        if known is not None:
            _check(job, known, shape)
        wanted = _extended(ask, job, known, start, shape)
        return (text if wanted is known else msgspec.json.encode(wanted)), wanted

    return drive_over(ask, documents.change(key, edit))


def _extended(ask: Ask, job: Job, known: Origin | None, start: str, shape: JobTopics) -> Origin:
    """Add positions for the inputs that have none."""
    new = [topic for topic in shape.inputs if known is None or topic not in known.topics]
    if known is not None and not new:
        return known
    start = known.start if known is not None else start
    streams = [(topic, at) for topic, at in shape.streams() if topic in new]
    found = _positions(ask, job, start, [f"{topic}:{at}" for topic, at in streams])
    topics = dict(known.topics) if known is not None else {}
    starts = dict(known.starts) if known is not None else {}
    for topic in new:
        facts = shape.inputs[topic]
        topics[topic] = (facts.id, facts.partitions or 1)
        starts[topic] = [str(after) for (name, _), after in zip(streams, found, strict=True) if name == topic]
    return Origin(start, shape.partitions, topics, starts)


def _positions(ask: Ask, job: Job, start: str, streams: Sequence[str]) -> list[StreamId]:
    """Return, for each stream, the ID after which to read."""
    infos = list(map(existing, streams, ask(*map(calls.tinfo, streams))))
    if start == "latest":
        return [ZERO if info is None else info.last for info in infos]
    earliest = [ZERO if info is None else info.evicted_to for info in infos]
    if start == "earliest":
        return earliest
    after = _position(job, start)
    newest = checked(ask(*[calls.trevrange(stream, after, "-", 1) for stream in streams]))
    return [entries[0].id if entries else first for entries, first in zip(newest, earliest, strict=True)]


def _position(job: Job, start: str) -> StreamId:
    try:
        return StartPosition(start).after or ZERO
    except ValueError as error:
        raise JobError(f"job {job.name!r}: {error}") from None


def _read(job: Job, key: str, text: bytes) -> Origin:
    try:
        return msgspec.json.decode(text, type=Origin)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise JobError(f"job {job.name!r}: {key!r} is not an origin: {error}") from None


def _check(job: Job, known: Origin, shape: JobTopics) -> None:
    """Raise JobError if inputs were deleted, recreated or grown since the generation started."""
    for topic, facts in shape.inputs.items():
        ident, partitions = known.topics.get(topic, (facts.id, facts.partitions or 1))
        if ident != facts.id:
            raise JobError(
                f"job {job.name!r}: topic {topic!r} was deleted and recreated after the job read it;"
                f" {reset_hint(job.name)}"
            )
        if partitions != facts.partitions:
            raise JobError(grown(job, topic, partitions, facts.partitions or 1))
    if known.partitions != shape.partitions:
        raise JobError(
            f"job {job.name!r}: it started with {known.partitions} partitions, and now declares"
            f" {shape.partitions}; {reset_hint(job.name)}, or declare {known.partitions}"
        )


def grown(job: Job, topic: str, before: int, now: int) -> str:
    """Return the error text for an input with a changed number of partitions."""
    return (
        f"job {job.name!r}: topic {topic!r} has {now} partitions now, and had {before} when the job started: keys may"
        f" belong to other partitions than their state; {reset_hint(job.name)}"
    )
