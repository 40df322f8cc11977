"""The rows of programs: apps, jobs, and flows in one form, and why one of them makes no progress.

Rule 1: a row has the reason for a state that is not normal. A state that needs a person is ``bad``, one that a person
        has set, or that ends by itself, is ``wait``.
Rule 2: a page shows at most SHOWN programs of each kind, by name, and reads AT_ONCE of them at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import redis

from tidelog.console.connection import UserConnection
from tidelog.operating.throughput import Throughput, rate
from tidelog.transport.cancellation import cancel_and_wait
from tidelog.transport.errors import ReplyError, message_of

SHOWN: Final = 50
AT_ONCE: Final = 5
REFUSED: Final = (redis.ResponseError, ReplyError)

T = TypeVar("T")
Level = Literal["good", "wait", "bad"]
ProgramKind = Literal["app", "job", "flow"]


@dataclass(frozen=True)
class ProgramRow:
    """A processor of an app, a job, or a flow."""

    kind: ProgramKind
    name: str  # of the app, the job or the flow
    part: str = ""  # the processor
    state: str = ""
    level: Level = "good"
    reasons: tuple[str, ...] = ()
    lag: int | None = None  # entries; None: unknown
    lag_ms: int = 0  # age of the oldest
    throughput: Throughput = field(default_factory=Throughput)
    process: str = ""  # of a flow

    @property
    def dead(self) -> int | None:
        """Open dead letters; None if they can't be counted."""
        counts = list(self.throughput.dead_letters.values())
        return None if None in counts else sum(each or 0 for each in counts)

    @property
    def rates(self) -> tuple[str, str]:
        return rate(self.throughput.in_rate), rate(self.throughput.out_rate)


@dataclass(frozen=True)
class ProgramList:
    """The rows of one kind, why there may be more, and how many there are."""

    rows: Sequence[ProgramRow] = ()
    problem: str = ""
    total: int = 0  # programs


def unreadable(kind: ProgramKind, name: str, error: Exception) -> ProgramRow:
    """Return the row of a program that the user may not read."""
    return ProgramRow(kind, name, state="not readable", level="bad", reasons=(message_of(error),))


async def some(names: Sequence[str], read: Callable[[str], Coroutine[Any, Any, T]]) -> list[T]:
    """Call ``read`` with these names, AT_ONCE at the same time. Returns the results in order, or raises an error."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> T:
        async with room:
            return await read(name)

    tasks = [asyncio.create_task(one(name)) for name in names]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            await cancel_and_wait(task)


class PolledCalls:
    """Drives operations that a page repeats: ``arun(PolledCalls(connection), steps)``."""

    def __init__(self, connection: UserConnection) -> None:
        self._connection = connection

    async def together(self, *calls: Any, raise_on_error: bool = True) -> list[Any]:
        return await self._connection.poll_together(*calls, raise_on_error=raise_on_error)
