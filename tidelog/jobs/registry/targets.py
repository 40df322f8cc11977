"""Finds the jobs of a module, and describes a job for the registry."""

from __future__ import annotations

from types import ModuleType

from tidelog.client.steps import Steps
from tidelog.jobs.declare import Job
from tidelog.jobs.errors import JobError
from tidelog.jobs.registry.registry import JobSpec
from tidelog.topics import Topic, TopicError
from tidelog.topics.reconcile import agree


def jobs_of(module: ModuleType) -> list[tuple[str, Job]]:
    """Return the jobs that a module declares, each with its attribute, ordered by name."""
    return sorted((name, found) for name, found in vars(module).items() if isinstance(found, Job))


def describe(job: Job, target: str, store: str = "", start: str = "") -> Steps[JobSpec]:
    """Return a job's spec. Creates missing topics; raises JobError if existing ones are not as declared."""
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
    """Return the number of partitions of the job."""
    inputs = {topic.name: partitions[topic.name] for topic in job.inputs}
    several = {number for number in inputs.values() if number > 1}
    if len(several) > 1:
        listed = ", ".join(f"{name} has {number}" for name, number in inputs.items())
        raise JobError(
            f"job {job.name!r}: its inputs are not co-partitioned: {listed}. They need equal numbers of partitions,"
            " or 1 (such a topic is read completely by every partition): use tidelog topics grow, or a job that"
            " rewrites one of them"
        )
    return max(several, default=1)


def type_name(kind: type[object] | None) -> str:
    """Return the name of the type of a state's values, as in the registry."""
    return "" if kind is None else getattr(kind, "__qualname__", str(kind))
