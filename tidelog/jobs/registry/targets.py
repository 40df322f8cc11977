"""The jobs of a module, and what the registry is told about one."""

from __future__ import annotations

from types import ModuleType

from tidelog.client.steps import Steps
from tidelog.jobs.declare import Job
from tidelog.jobs.errors import JobError
from tidelog.jobs.registry.registry import JobSpec
from tidelog.topics import Topic, TopicError
from tidelog.topics.reconcile import agree


def jobs_of(module: ModuleType) -> list[tuple[str, Job]]:
    """The jobs that a module declares, each with its attribute, in the order of their names."""
    return sorted((name, found) for name, found in vars(module).items() if isinstance(found, Job))


def describe(job: Job, target: str, store: str = "", start: str = "") -> Steps[JobSpec]:
    """What the registry is told. Topics that aren't there are made; JobError where they are not as declared."""
    partitions: dict[str, int] = {}
    for topic in (*job.inputs, *job.outputs):
        partitions[topic.name] = yield from _partitions(job, topic)
    return JobSpec(
        job.name, target, job.kind, job.version, inputs=tuple(each.name for each in job.inputs),
        outputs=tuple(each.name for each in job.outputs), partitions=job.partitions or _agreed(job, partitions),
        state=type_name(job.state), start=start, store=store,
    )  # fmt: skip


def _partitions(job: Job, topic: Topic[object]) -> Steps[int]:
    try:
        facts = yield from agree(topic.name, topic.declared)
    except TopicError as error:
        raise JobError(f"job {job.name!r}: {error}") from None
    return facts.partitions or 1


def _agreed(job: Job, partitions: dict[str, int]) -> int:
    """How many partitions the job has."""
    inputs = {topic.name: partitions[topic.name] for topic in job.inputs}
    several = {number for number in inputs.values() if number > 1}
    if len(several) > 1:
        listed = ", ".join(f"{name} has {number}" for name, number in inputs.items())
        raise JobError(
            f"job {job.name!r}: its inputs are not co-partitioned: {listed}. They need as many partitions each (or 1: a"
            " topic that every partition reads whole): tidelog topics grow, or a job that writes one of them anew"
        )
    return max(several, default=1)


def type_name(kind: type[object] | None) -> str:
    """The type of a state's values, as the registry has it."""
    return "" if kind is None else getattr(kind, "__qualname__", str(kind))
