"""JOBS jobs with state that have nothing to do, each on a topic of its own."""

from __future__ import annotations

from typing import Any, Final

from tidelog.jobs import Job, MicroBatch, job
from tidelog.topics import Topic

JOBS: Final = 200
PREFIX: Final = "idle"


def _idle(number: int) -> Job:
    topic: Topic[Any] = Topic(f"{PREFIX}-topic-{number}", partitions=1)

    @job(inputs=[topic], state=int, name=f"{PREFIX}-{number}")
    def idle(batch: MicroBatch, state: Any) -> None:
        (before,) = state.get_many(["rows"])
        state.put_many(["rows"], [(before or 0) + len(batch)])

    return idle


globals().update({f"{PREFIX}_{number}": _idle(number) for number in range(JOBS)})
