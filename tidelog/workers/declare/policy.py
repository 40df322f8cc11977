"""The failure policy: retries and then a final action for an event that failed.

Rule 1: a policy only decides. The execution package carries out the result of ``decide``.
Rule 2: a cancellation is not a failure. It is raised again.
Rule 3: an entry that can't be decoded is not retried: the final action applies immediately.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from tidelog.codecs import UndecodableError
from tidelog.topics import Topic, TopicError
from tidelog.topics.deadletters import DEAD
from tidelog.transport.backoff import Backoff
from tidelog.workers.declare.errors import AppError


def is_number(value: object) -> bool:
    """Return whether this is a finite int or float, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


@dataclass(frozen=True)
class Retry:
    """Retry up to ``attempts`` times after the first attempt has failed.

    The first delay is ``first`` seconds. Each further delay is ``growth`` times the previous one, at most ``most``
    seconds. ``jitter`` shortens each delay randomly by up to this fraction, so that events that failed together are not
    retried together.
    """

    attempts: int  # after the first one, from 1
    first: float = 1.0  # seconds
    most: float = 60.0  # seconds
    growth: float = 2.0  # factor, from 1
    jitter: float = 0.1  # fraction of the delay, 0 to 1

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or isinstance(self.attempts, bool) or self.attempts < 1:
            raise AppError(f"Retry: attempts must be a whole number from 1: {self.attempts!r}. To disable it, omit it")
        for name in ("first", "most", "growth", "jitter"):
            if not is_number(getattr(self, name)):
                raise AppError(f"Retry: {name} must be a number: {getattr(self, name)!r}")
        try:
            _ = self.backoff
        except ValueError as error:
            raise AppError(f"Retry: {error}") from None

    @cached_property
    def backoff(self) -> Backoff:
        """The delays before the attempts."""
        return Backoff(self.first, self.most, self.growth, self.jitter)


@dataclass(frozen=True)
class DeadLetter:
    """Write the event and its error to the dead-letter queue, and acknowledge it.

    ``topic``: the name of the dead-letter topic. None: the name of the event's topic with ``.dead`` appended.
    """

    topic: str | None = None

    def __post_init__(self) -> None:
        if self.topic is None:
            return
        try:
            Topic(self.topic)
        except TopicError as error:
            raise AppError(f"DeadLetter: {error}") from None

    def target(self, topic: str) -> str:
        """Return the dead-letter topic for events of ``topic``."""
        return self.topic or topic + DEAD


@dataclass(frozen=True)
class Skip:
    """Count and log the failure, and acknowledge the event."""


@dataclass(frozen=True)
class Park:
    """Retain this event and all further events of its key until the key is resumed. Other keys continue."""


@dataclass(frozen=True)
class Pause:
    """Pause the partition until it is resumed. The failed event is then processed first."""


@dataclass(frozen=True)
class Halt:
    """Stop this processor of the app until it is resumed. Other processors continue."""


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
