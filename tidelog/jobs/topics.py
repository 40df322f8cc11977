"""The settings of a job's topics on the server, and whether they fit together.

Rule 1: Inputs must exist; outputs are created by their declaration. All must agree with the declarations.
Rule 2: A job has as many partitions as its inputs. Each input has that many, or 1: such an input is broadcast, and
        every partition of the job reads it completely.
Rule 3: All topics must be on the server that has the job's keys, since publishing is one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

from tidelog.client.steps import Steps, checked, drive_over
from tidelog.jobs.declare import Job
from tidelog.jobs.errors import JobError
from tidelog.topics.reconcile import known
from tidelog.topics.settings import TopicError, TopicSettings, key_of, read_settings
from tidelog.topics.topic import Topic
from tidelog.transport.access import Access
from tidelog.transport.call import Call
from tidelog.transport.leader import LeaderConnection

PROBE_MS: Final = 2000  # timeout for connecting to the server that a topic names

log = logging.getLogger(__name__)

Ask = Callable[..., list[Any]]  # a method of LeaderConnection or of a Publisher


@dataclass(frozen=True)
class JobTopics:
    """The topics of a job, as on the server."""

    partitions: int  # of the job
    inputs: Mapping[str, TopicSettings]  # by topic
    outputs: Mapping[str, TopicSettings]

    def part(self, topic: str, partition: int) -> int:
        """Return the partition of an input that a partition of the job reads."""
        return 0 if self.inputs[topic].partitions == 1 else partition

    def streams(self) -> list[tuple[str, int]]:
        """Return all input streams, as topic and partition."""
        return [(name, at) for name, facts in self.inputs.items() for at in range(facts.partitions or 1)]

    def ids(self) -> dict[str, str]:
        """Return the ID of each topic."""
        return {name: facts.id for name, facts in (*self.inputs.items(), *self.outputs.items())}

    def updated(self, facts: Mapping[str, TopicSettings]) -> JobTopics:
        """Return the same topics with new settings."""
        inputs = {name: facts[name] for name in self.inputs}
        return replace(self, inputs=inputs, outputs={name: facts[name] for name in self.outputs})


def job_topics(access: Access, ask: Ask, job: Job) -> JobTopics:
    """Return a job's topics after checking them. Raises JobError that names the topic and the remedy."""
    _same_server(access, ask, job)
    inputs = {topic.name: drive_over(ask, _input(job, topic)) for topic in job.inputs}
    outputs = {topic.name: drive_over(ask, agreed(job, topic)) for topic in job.outputs}
    numbers = {name: facts.partitions or 1 for name, facts in inputs.items()}
    return JobTopics(partitions_of(job, numbers), inputs, outputs)


def facts_now(names: Sequence[str]) -> list[Call[bytes | None]]:
    """Return calls that read the settings of these topics; ``read_now`` decodes the replies."""
    return [Call(("GET", key_of(name)), lambda reply: reply) for name in names]


def read_now(names: Sequence[str], replies: Sequence[bytes | None]) -> dict[str, TopicSettings | None]:
    """Return the settings by topic; None if the topic does not exist any more."""
    return {
        name: None if text is None else read_settings(name, text) for name, text in zip(names, replies, strict=True)
    }  # fmt: skip


def changed(name: str, before: TopicSettings, now: TopicSettings | None) -> str:
    """Describe how a topic has changed; "" if it is the same, with equally many partitions."""
    if now is None:
        return f"topic {name!r} was deleted"
    if now.id != before.id:
        return f"topic {name!r} was deleted and recreated"
    if now.partitions != before.partitions:
        return f"topic {name!r} has {now.partitions} partitions now, and had {before.partitions}"
    return ""


def reset_hint(name: str) -> str:
    """Return the command that starts the job again from the beginning."""
    return f"to start again with empty state: tidelog jobs reset {name} --to earliest|latest|ID|TIME"


def agreed(job: Job, topic: Topic[Any]) -> Steps[TopicSettings]:
    """Return the settings of a topic, which is created if it is missing. Raises JobError if it is not as declared."""
    try:
        return (yield from topic.agree())
    except TopicError as error:
        raise JobError(f"job {job.name!r}: {error}") from error


def _input(job: Job, topic: Topic[Any]) -> Steps[TopicSettings]:
    try:
        there = yield from known(topic.name)
    except TopicError as error:
        raise JobError(f"job {job.name!r}: {error}") from error
    if there is None:
        raise JobError(
            f"job {job.name!r}: its input topic {topic.name!r} does not exist: the first program that uses a"
            " topic creates it (for example with topic.sync.ready()), or the job that writes it. Check name and server"
        )
    return (yield from agreed(job, topic))


def partitions_of(job: Job, inputs: Mapping[str, int]) -> int:
    """Return the number of partitions of a job (Rule 2). ``inputs``: those of each input."""
    if job.is_source:
        return job.partitions or 1
    wide = {name: number for name, number in inputs.items() if number > 1}
    if len(set(wide.values())) > 1:
        listed = ", ".join(f"{name!r} has {number}" for name, number in wide.items())
        raise JobError(
            f"job {job.name!r}: its inputs must have equal numbers of partitions, or 1: {listed}. Use tidelog topics"
            " grow, or a job that copies one of them to a topic with as many partitions as the others"
        )
    return max(inputs.values())


def _same_server(access: Access, ask: Ask, job: Job) -> None:
    """Raise JobError if topics name servers other than the job's."""
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
            with closing(LeaderConnection(replace(probed, retries=0, connect_ms=PROBE_MS), "")) as other:
                (there,) = checked(other.ask(get))
        except OSError as error:
            log.warning("job %s: the server that topic %r names is unreachable: %s", job.name, name, error)
            return
        (here,) = checked(ask(get))
        ids = [None if text is None else read_settings(name, text).id for text in (there, here)]
        if ids[0] != ids[1]:
            raise JobError(
                f"job {job.name!r}: topic {name!r} is declared at {one.places}, and the job's server is"
                f" {access.places}: leave out url in the declaration, or run the engine with that server"
            )
        return
