"""The steps of ``on_error``, the same in all engines: ``[Retry(...), action]`` or ``[action]``.

An engine supports some of the actions, and rejects the others when the processor or job is declared. Invalid arguments
raise ValueError with a text for users.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tidelog.topics.deadletters import DEAD
from tidelog.topics.settings import TopicError, check_name
from tidelog.transport.backoff import Backoff


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
            raise ValueError(f"Retry: attempts must be a whole number from 1: {self.attempts!r}. Omit it to disable it")
        for name in ("first", "most", "growth", "jitter"):
            if not is_number(getattr(self, name)):
                raise ValueError(f"Retry: {name} must be a number: {getattr(self, name)!r}")
        try:
            _ = self.backoff
        except ValueError as error:
            raise ValueError(f"Retry: {error}") from None

    @cached_property
    def backoff(self) -> Backoff:
        """The delays before the attempts."""
        return Backoff(self.first, self.most, self.growth, self.jitter)


@dataclass(frozen=True)
class DeadLetter:
    """Write the event and its error to the dead-letter queue, and acknowledge it.

    ``topic``: the name of the dead-letter queue. None: the name of the event's topic with ``.dead`` appended.
    """

    topic: str | None = None

    def __post_init__(self) -> None:
        if self.topic is None:
            return
        try:
            check_name(self.topic)
        except TopicError as error:
            raise ValueError(f"DeadLetter: {error}") from None

    def target(self, topic: str) -> str:
        """Return the dead-letter queue for events of ``topic``."""
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
