"""Finds the jobs of a module, and describes a job for the registry."""

from __future__ import annotations

from types import ModuleType

from tidelog.client.steps import Steps
from tidelog.jobs.declare import Job
from tidelog.jobs.registry.registry import JobSpec
from tidelog.jobs.topics import agreed, partitions_of


def jobs_of(module: ModuleType) -> list[tuple[str, Job]]:
    """Return the jobs that a module declares, each with its attribute, ordered by name."""
    return sorted((name, found) for name, found in vars(module).items() if isinstance(found, Job))


def describe(job: Job, target: str, store: str = "", start: str = "") -> Steps[JobSpec]:
    """Return a job's spec. Creates missing topics; raises JobError if existing ones are not as declared."""
    partitions: dict[str, int] = {}
    for topic in (*job.inputs, *job.outputs):
        partitions[topic.name] = (yield from agreed(job, topic)).partitions or 1
    inputs = {topic.name: partitions[topic.name] for topic in job.inputs}
    return JobSpec(
        job.name, target, job.kind, job.version, inputs=tuple(inputs),
        outputs=tuple(each.name for each in job.outputs),
        dead_letters=() if job.dead_letter is None else tuple({job.dead_letter.target(name): 1 for name in inputs}),
        partitions=partitions_of(job, inputs), state=type_name(job.state), start=start, store=store,
    )  # fmt: skip


def type_name(kind: type[object] | None) -> str:
    """Return the name of the type of a state's values, as in the registry."""
    return "" if kind is None else getattr(kind, "__qualname__", str(kind))
