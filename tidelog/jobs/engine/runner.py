"""``Runner``: the interface between the supervisor and a running job of either kind.

    prepare   step   step   wait   step   ...   close

Rule 1: ``prepare``, ``step`` and ``close`` block. They are called one after another, each in any thread.
Rule 2: ``cancel`` may be called at any time, in any thread, and returns immediately. The current call then soon fails.
Rule 3: The class of an error determines the reaction. JobError: retrying does not help. SupersededError: continue from
        what was published. Other errors may be temporary. After any error the runner is closed and a new one created.
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
        """Continue after the last published epoch."""

    def step(self) -> StepReport:
        """Run an epoch if there is new input; a frame job only polls its query."""

    async def wait(self) -> None:
        """Wait until there may be something to do. Cancelled when the job is to end."""

    def cancel(self) -> None:
        """Cancel the current call; see Rule 2."""

    def close(self) -> None:
        """Release all resources. No other method is called afterwards."""


#: Creates the runner of a job under its claim, in a thread.
CreateRunner = Callable[[JobSpec, Claim], Runner]
