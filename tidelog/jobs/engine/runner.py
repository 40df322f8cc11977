"""``Runner``: a job that runs on this engine, of whatever kind: what the supervisor needs of it.

    prepare   step   step   wait   step   ...   close

Rule 1: ``prepare``, ``step`` and ``close`` block, and are called one after another, each in some thread.
Rule 2: ``cancel`` may be called at any time, in any thread, and returns at once: what runs ends soon, with an error.
Rule 3: an error says what is to be done. JobError: trying again does not help. SupersededError: begin again from what
        was published. Anything else may pass. After each of them the runner is closed, and another one made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidelog.coordination import Claim
from tidelog.jobs.registry.registry import JobSpec
from tidelog.jobs.registry.status import StepReport


class Runner(Protocol):
    """A running job."""

    def prepare(self) -> StepReport:
        """Begin where the last epoch that was published ended."""

    def step(self) -> StepReport:
        """Run an epoch if there is anything to do; or look how what runs by itself is."""

    async def wait(self) -> None:
        """Until there may be something to do. Cancelled when the job is to end."""

    def cancel(self) -> None:
        """End what runs. See Rule 2."""

    def close(self) -> None:
        """Give back what it has. Nothing else is called then."""


#: Makes a runner, in a thread; ``held`` says whether its claim is held at that moment.
Make = Callable[[JobSpec, Claim], Runner]
