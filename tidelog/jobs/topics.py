"""What the topics of a job are on the server, and whether they fit together.

Rule 1: inputs must be there; outputs are made by their declaration. All must agree with the declarations.
Rule 2: a job has as many partitions as its inputs. They all have that many, or 1: such an input is broadcast, every
        partition of the job reads all of it.
Rule 3: all topics are on the server of the job's own keys, or publishing could not be one step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from tidelog.client.steps import Steps, checked, drive
from tidelog.jobs.declare import Job
from tidelog.jobs.errors import JobError
from tidelog.topics.reconcile import known
from tidelog.topics.settings import TopicError, TopicSettings, key_of, read_settings
from tidelog.topics.topic import Topic
from tidelog.transport.access import Access
from tidelog.transport.call import Call
from tidelog.transport.leader import LeaderConnection

PROBE_MS: Final = 2000  # for connecting to the server that a topic names

log = logging.getLogger(__name__)

T = TypeVar("T")
Ask = Callable[..., list[Any]]  # of a LeaderConnection, or a Publisher's


@dataclass(frozen=True)
class JobTopics:
    """The topics of a job, as they are on the server."""

    partitions: int  # of the job
    inputs: Mapping[str, TopicSettings]  # by topic
    outputs: Mapping[str, TopicSettings]

    def part(self, topic: str, partition: int) -> int:
        """The partition of an input that a partition of the job reads."""
        return 0 if self.inputs[topic].partitions == 1 else partition

    def streams(self) -> list[tuple[str, int]]:
        """All streams that are read: topic, and its partition."""
        return [(name, at) for name, facts in self.inputs.items() for at in range(facts.partitions or 1)]

    def ids(self) -> dict[str, str]:
        """By topic: its ID."""
        return {name: facts.id for name, facts in (*self.inputs.items(), *self.outputs.items())}

    def updated(self, facts: Mapping[str, TopicSettings]) -> JobTopics:
        """With facts as they are now."""
        inputs = {name: facts[name] for name in self.inputs}
        return replace(self, inputs=inputs, outputs={name: facts[name] for name in self.outputs})


def job_topics(access: Access, ask: Ask, job: Job) -> JobTopics:
    """Check the topics of a job. JobError that names the topic and the remedy."""
    _same_server(access, ask, job)
    inputs = {topic.name: _input(ask, job, topic) for topic in job.inputs}
    outputs = {topic.name: _agreed(ask, job, topic) for topic in job.outputs}
    return JobTopics(_partitions(job, inputs), inputs, outputs)


def facts_now(names: Sequence[str]) -> list[Call[bytes | None]]:
    """Calls that read the facts of these topics; ``read_now`` reads their replies."""
    return [Call(("GET", key_of(name)), lambda reply: reply) for name in names]


def read_now(names: Sequence[str], replies: Sequence[bytes | None]) -> dict[str, TopicSettings | None]:
    """By topic; None where there is no such topic any more."""
    return {
        name: None if text is None else read_settings(name, text) for name, text in zip(names, replies, strict=True)
    }  # fmt: skip


def changed(name: str, before: TopicSettings, now: TopicSettings | None) -> str:
    """What became of a topic, for people; "" if it is the same, in as many partitions."""
    if now is None:
        return f"topic {name!r} was deleted"
    if now.id != before.id:
        return f"topic {name!r} was deleted and made anew"
    if now.partitions != before.partitions:
        return f"topic {name!r} has {now.partitions} partitions now, it had {before.partitions}"
    return ""


def reset_hint(name: str) -> str:
    """How to begin again."""
    return f"to begin again with empty state: tidelog jobs reset {name} --from earliest|latest|TIME"


def _input(ask: Ask, job: Job, topic: Topic[Any]) -> TopicSettings:
    if _run(ask, job, topic, known(topic.name)) is None:
        raise JobError(
            f"job {job.name!r}: there is no topic {topic.name!r}, which it reads: it is made by the first program that"
            " uses it (topic.sync.ready() does), or by the job that writes it. Check the name and the server"
        )
    return _agreed(ask, job, topic)


def _agreed(ask: Ask, job: Job, topic: Topic[Any]) -> TopicSettings:
    return _run(ask, job, topic, topic.agree())


def _run(ask: Ask, job: Job, topic: Topic[Any], steps: Steps[T]) -> T:
    try:
        return drive(lambda made: ask(*made), steps)
    except TopicError as error:
        raise JobError(f"job {job.name!r}, topic {topic.name!r}: {error}") from error


def _partitions(job: Job, inputs: Mapping[str, TopicSettings]) -> int:
    if job.is_source:
        return job.partitions or 1
    numbers = {name: facts.partitions or 1 for name, facts in inputs.items()}
    wide = {name: number for name, number in numbers.items() if number > 1}
    if len(set(wide.values())) > 1:
        listed = ", ".join(f"{name!r} has {number}" for name, number in wide.items())
        raise JobError(
            f"job {job.name!r}: its inputs must have as many partitions as each other, or 1: {listed}. Write one of"
            " them anew, by a job, into a topic with as many partitions as the others"
        )
    return max(numbers.values())


def _same_server(access: Access, ask: Ask, job: Job) -> None:
    """JobError where topics name other servers than the job's."""
    declared = (*job.inputs, *job.outputs)
    topics = {topic.name: (topic.url, topic.access) for topic in declared if topic.access is not None}
    if len({one.places for _, one in topics.values()}) > 1:
        listed = ", ".join(f"{name!r} is at {one.places}" for name, (_, one) in topics.items())
        raise JobError(f"job {job.name!r}: all its topics must be on one server: {listed}")
    for name, (url, one) in topics.items():
        if url in access.urls or access.has(one):
            continue
        (get,) = facts_now([name])
        try:
            probed = one if url is None or one.movable else replace(access, urls=(url,), sentinels=(), service="")
            other = LeaderConnection(replace(probed, retries=0, connect_ms=PROBE_MS), "")
            try:
                (there,) = checked(other.ask(get))
            finally:
                other.close()
        except OSError as error:
            log.warning("job %s: the server that topic %r names does not answer: %s", job.name, name, error)
            return
        (here,) = checked(ask(get))
        ids = [None if text is None else read_settings(name, text).id for text in (there, here)]
        if ids[0] != ids[1]:
            raise JobError(
                f"job {job.name!r}: topic {name!r} is declared at {one.places}, and the job's server is"
                f" {access.places}: leave out url in the declaration, or run the engine with that server"
            )
        return
