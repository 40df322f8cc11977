"""``FlowContext``: what the entities of an instance of a flow share."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidelog.flows.api.event import Event
from tidelog.flows.api.givenup import GivenUpLog
from tidelog.flows.api.tokens import Token, TokenOwner


def now() -> float:
    """Return the event loop time in seconds."""
    return asyncio.get_running_loop().time()


class Gatherer(Protocol):
    """The entity of an operator that stores events until others arrive."""

    def gathered(self, owner: TokenOwner) -> Iterable[Token]: ...
    def release(self, name: str, option: str) -> None: ...


@dataclass
class FlowContext:
    """The context of one instance of a flow."""

    flow: str  # alias of the instance, such as orders or orders.2
    server: str | None = None  # URL of the tidelog server; None: no server
    debug: bool = False  # raise an error if an event is settled twice, or never
    queue: int = 128  # batches in a channel
    now_ns: Callable[[], int] = time.time_ns  # ns since 1970
    random: random.Random = field(default_factory=random.Random)
    dead_letters: Callable[[str, Sequence[tuple[Event, str]]], Awaitable[bool]] | None = None
    # Writes dead letters: (source, [(event, reason)]); returns True once they are stored. None: no dead letters.
    lost: list[str] = field(default_factory=list)  # tokens that were collected unsettled, in debug mode
    shared: dict[str, Any] = field(default_factory=dict)  # by all flows of the process, such as HTTP routes
    gatherers: list[Gatherer] = field(default_factory=list)  # operators that store events until others arrive
    draining: bool = False  # no source reads any more; DRAIN follows after all events
    end: Callable[[], None] = lambda: None  # ends the flow as if all sources had ended
    changed: Callable[[], None] = lambda: None  # called when the flow may have ended
    given_up: GivenUpLog = field(init=False)
    _versions: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.given_up = GivenUpLog(self.flow)

    def version(self) -> int:
        """Return the next version of breaker messages."""
        return next(self._versions)
