"""``Program``: what a worker, a test and the commands for people need of an app. ``App`` is one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from tidelog.topics import Topic
from tidelog.transport.access import Access
from tidelog.workers.declare.processor import Declared
from tidelog.workers.declare.schedule import Scheduled


class Program(Protocol):
    """Topics, processors and timers, and the server that they are on."""

    name: str
    access: Access
    lease: float
    grace: float
    topics: dict[str, Topic[Any]]
    processors: dict[str, Declared]
    timers: dict[str, Scheduled]

    def select(self, names: Iterable[str] | None = None) -> list[Declared]:
        """The processors of these names, all without names. AppError for a name that there is not."""
