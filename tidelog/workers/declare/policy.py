"""The failure policy: retries and then a final action for an event that failed.

Rule 1: a policy only decides. The execution package carries out the result of ``decide``.
Rule 2: a cancellation is not a failure. It is raised again.
Rule 3: an entry that can't be decoded is not retried: the final action applies immediately.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.codecs import UndecodableError
from tidelog.topics.failureactions import DeadLetter, Halt, Park, Pause, Retry, Skip
from tidelog.workers.declare.errors import AppError


@dataclass(frozen=True)
class RetryAfter:
    """Retry the event after ``delay`` seconds."""

    delay: float


FinalAction = DeadLetter | Skip | Park | Pause | Halt
Decision = RetryAfter | FinalAction
_FINAL_ACTIONS: Final = (DeadLetter, Skip, Park, Pause, Halt)
_NAMES: Final = "DeadLetter(), Skip(), Park(), Pause() or Halt()"


@dataclass(frozen=True)
class Policy:
    """Retries and a final action."""

    retry: Retry | None
    final: FinalAction

    @classmethod
    def of(cls, steps: Sequence[Any] | Policy | None) -> Policy:
        """Return the policy for an ``on_error`` list: ``[Retry(...), action]`` or ``[action]``.

        None: ``[Retry(3), DeadLetter()]``. Raises AppError for any other list.
        """
        if steps is None:
            return DEFAULT
        if isinstance(steps, Policy):
            return steps
        if isinstance(steps, str | bytes) or not isinstance(steps, Sequence):
            raise AppError(f"on_error must be a list such as [Retry(3), DeadLetter()]: {steps!r}")
        for step in steps:
            if isinstance(step, type) and issubclass(step, (*_FINAL_ACTIONS, Retry)):
                raise AppError(f"on_error: {step.__name__} is a class: write {step.__name__}(...)")
            if not isinstance(step, (*_FINAL_ACTIONS, Retry)):
                raise AppError(f"on_error: {step!r} is neither Retry(...) nor {_NAMES}")
        retries = [step for step in steps if isinstance(step, Retry)]
        endings = [step for step in steps if isinstance(step, _FINAL_ACTIONS)]
        if len(endings) != 1:
            raise AppError(f"on_error needs exactly one final action, {_NAMES}: {list(steps)!r}")
        if len(retries) > 1 or steps[-1] is not endings[0]:
            raise AppError(f"on_error allows at most one Retry(...), followed by the final action: {list(steps)!r}")
        return cls(retries[0] if retries else None, endings[0])

    def decide(self, error: BaseException, attempt: int, chance: Callable[[], float] = random.random) -> Decision:
        """Decide what follows after this attempt, counted from 1, failed with ``error``.

        ``chance`` returns a number from 0 to 1. Raises an error that is not an Exception, such as a cancellation.
        """
        if not isinstance(error, Exception):
            raise error
        if self.retry is None or attempt > self.retry.attempts or isinstance(error, UndecodableError):
            return self.final
        return RetryAfter(self.retry.backoff.delay(attempt, chance))


DEFAULT: Final = Policy(Retry(3, first=1.0, most=60.0), DeadLetter())
