"""Restarts a job as a new generation with its registered code. ``tidelog jobs reset`` can register other code."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from tidelog.client import strings
from tidelog.client.steps import Steps, checked, single
from tidelog.jobs import keys
from tidelog.jobs.commits import commit_of
from tidelog.jobs.errors import JobError
from tidelog.jobs.registry import registry
from tidelog.jobs.registry.registry import JobSpec
from tidelog.options.start import LATEST, StartPosition
from tidelog.topics.settings import TopicError, key_of, read_settings
from tidelog.transport.call import Call


def reset(name: str, to: StartPosition, by: str) -> Steps[JobSpec]:
    """Start a new generation of a job from a position, with empty state. Returns its spec.

    Topics that have grown since the job was added get their partitions. Raises JobError if the job does not exist, or
    if its inputs do not fit together any more. Must be driven on one connection that is not reconnected.
    """
    old = (yield from registry.read()).find(name)
    partitions = yield from _partitions(old)
    start = yield from begin(to)
    spec = msgspec.structs.replace(old, partitions=partitions, start=start, store="")
    after, _ = yield from registry.change(registry.reset(spec), by)
    new = after.specs[name]
    yield from clear(old, new)
    return new


def begin(to: StartPosition) -> Steps[str]:
    """Return the start of a new generation. ``latest`` is the time of the server: all partitions begin there."""
    if to != LATEST:
        return str(to)
    now = yield from single(strings.server_time())
    return datetime.fromtimestamp((now + 1) / 1000, UTC).isoformat(timespec="milliseconds")


def clear(old: JobSpec, new: JobSpec) -> Steps[None]:
    """Delete the keys of the former generation that the new one does not use."""
    gone = [keys.origin(old.name, old.generation), *commit_of(old.name, old.generation).keys]
    gone += [key(old.name, at) for key in (keys.log, keys.recovery) for at in range(new.partitions, old.partitions)]
    yield from single(Call(("UNLINK", *gone), int))


def _partitions(spec: JobSpec) -> Steps[int]:
    """Return the number of partitions, which the inputs determine."""
    if not spec.inputs:
        return spec.partitions
    (texts,) = checked((yield [strings.mget(*map(key_of, spec.inputs))]))
    counts = {topic: _count(topic, text) for topic, text in zip(spec.inputs, texts, strict=True)}
    if len({count for count in counts.values() if count > 1}) > 1:
        listed = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
        raise JobError(f"job {spec.name!r}: its inputs must have equal numbers of partitions, or 1: {listed}")
    return max(counts.values())


def _count(topic: str, text: bytes | None) -> int:
    try:
        found = None if text is None else read_settings(topic, text).partitions
    except TopicError as error:
        raise JobError(str(error)) from None
    if found is None:
        raise JobError(f"the topic {topic!r} does not exist")
    return found
