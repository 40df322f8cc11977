"""``AppProtocol``: the part of ``App`` that workers, tests and the operating tools use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from tidelog.topics import Topic
from tidelog.transport.access import Access
from tidelog.workers.declare.processor import Processor
from tidelog.workers.declare.schedule import ScheduledFunction


class AppProtocol(Protocol):
    """Topics, processors and timers, and the server that holds them."""

    name: str
    access: Access
    lease: float
    grace: float
    topics: dict[str, Topic[Any]]
    processors: dict[str, Processor]
    timers: dict[str, ScheduledFunction]

    def select(self, names: Iterable[str] | None = None) -> list[Processor]:
        """Return the processors with these names, or all of them. Raises AppError if a name is unknown."""
