"""What happens to an event that failed: retries first, then one ending. Data, decided in one place.

Rule 1: a policy decides, it does nothing: the runtime carries out what ``decide`` returns.
Rule 2: a cancellation is no failure. It has no decision; it is raised again.
Rule 3: an entry that is no record won't be one later: it gets its ending without retries.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.codecs import UndecodableError
from tidelog.topics import Topic, TopicError
from tidelog.topics.deadletters import DEAD
from tidelog.workers.declare.errors import AppError


def is_number(value: object) -> bool:
    """Whether it is an int or a float, no bool, and finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


@dataclass(frozen=True)
class Retry:
    """Try again up to ``n`` times, after ``first`` seconds, then after twice as long each time, up to ``most``.

    ``jitter`` spreads each delay by that fraction, up and down, so that events that failed together don't come back
    together. 0: none.
    """

    n: int
    first: float = 1.0  # seconds
    most: float = 60.0  # seconds
    jitter: float = 0.1  # fraction of the delay, 0 to 1

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or isinstance(self.n, bool) or self.n < 1:
            raise AppError(f"Retry: n is how often to try again, from 1: {self.n!r}. To try once, leave Retry out")
        for name in ("first", "most", "jitter"):
            value = getattr(self, name)
            if not is_number(value) or value < 0:
                raise AppError(f"Retry: {name} must be a number from 0: {value!r}")
        if self.most < self.first:
            raise AppError(f"Retry: most ({self.most} s) is below first ({self.first} s)")
        if self.jitter > 1:
            raise AppError(f"Retry: jitter is a fraction from 0 to 1: {self.jitter!r}")

    def delay(self, attempt: int, chance: float) -> float:
        """Seconds to wait after the attempt of this number, from 1. ``chance``: from 0 to 1."""
        delay = min(self.most, self.first * 2.0 ** min(attempt - 1, 1000))
        return delay * (1 + self.jitter * (2 * chance - 1))


@dataclass(frozen=True)
class DeadLetter:
    """Write the event, with what went wrong, to a topic for such events, and acknowledge it.

    ``topic``: its name. None: the name of the event's topic with ``.dead`` appended.
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
        """The topic that dead letters of ``topic`` go to."""
        return self.topic or topic + DEAD


@dataclass(frozen=True)
class Skip:
    """Count and log the failure, acknowledge the event, go on."""


@dataclass(frozen=True)
class Park:
    """Hold back this event and all others of its key until someone resumes the key. Others go on."""


@dataclass(frozen=True)
class Pause:
    """Hold back the partition until someone resumes it. The event is the first one then."""


@dataclass(frozen=True)
class Halt:
    """Stop this processor, in this app, until someone resumes it. Other processors go on."""


@dataclass(frozen=True)
class Again:
    """Try the event again in ``delay`` seconds."""

    delay: float


Ending = DeadLetter | Skip | Park | Pause | Halt
Decision = Again | Ending
_ENDINGS: Final = (DeadLetter, Skip, Park, Pause, Halt)
_NAMES: Final = "DeadLetter(), Skip(), Park(), Pause() or Halt()"


@dataclass(frozen=True)
class Policy:
    """Retries, then an ending."""

    retry: Retry | None
    ending: Ending

    @classmethod
    def of(cls, steps: Sequence[Any] | Policy | None) -> Policy:
        """From the list that ``on_error`` takes: ``[Retry(...), ending]`` or ``[ending]``.

        None: ``[Retry(3), DeadLetter()]``. AppError for any other list.
        """
        if steps is None:
            return DEFAULT
        if isinstance(steps, Policy):
            return steps
        if isinstance(steps, str | bytes) or not isinstance(steps, Sequence):
            raise AppError(f"on_error is a list such as [Retry(3), DeadLetter()]: {steps!r}")
        for step in steps:
            if isinstance(step, type) and issubclass(step, (*_ENDINGS, Retry)):
                raise AppError(f"on_error: {step.__name__} is a class: write {step.__name__}(...)")
            if not isinstance(step, (*_ENDINGS, Retry)):
                raise AppError(f"on_error: {step!r} is neither Retry(...) nor {_NAMES}")
        retries = [step for step in steps if isinstance(step, Retry)]
        endings = [step for step in steps if isinstance(step, _ENDINGS)]
        if len(endings) != 1:
            raise AppError(f"on_error needs exactly one ending, {_NAMES}: {list(steps)!r}")
        if len(retries) > 1 or steps[-1] is not endings[0]:
            raise AppError(f"on_error is at most one Retry(...), then the ending: {list(steps)!r}")
        return cls(retries[0] if retries else None, endings[0])

    def decide(
        self, error: BaseException, attempt: int, chance: Callable[[], float] = random.random
    ) -> Decision:
        """What happens after the attempt of this number, from 1, failed with ``error``.

        ``chance`` returns a number from 0 to 1. An error that is no Exception, such as a cancellation, is raised.
        """
        if not isinstance(error, Exception):
            raise error
        if self.retry is None or attempt > self.retry.n or isinstance(error, UndecodableError):
            return self.ending
        return Again(self.retry.delay(attempt, chance()))


DEFAULT: Final = Policy(Retry(3, first=1.0, most=60.0), DeadLetter())
