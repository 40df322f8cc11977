"""What the entities of one running flow share."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidelog.flows.api.event import Event
from tidelog.flows.api.givenup import GivenUpLog
from tidelog.flows.api.tokens import Token, TokenOwner


class Gatherer(Protocol):
    """An operator's entity that keeps events until others have come."""

    def gathered(self, owner: TokenOwner) -> Iterable[Token]: ...
    def release(self, name: str, option: str) -> None: ...


@dataclass
class FlowContext:
    """One for each instance of a flow."""

    flow: str  # its alias, as orders or orders.2
    server: str | None = None  # URL of the tidelog server; None: there is none
    debug: bool = False  # settled twice, or collected unsettled, is an error
    queue: int = 128  # batches in a channel
    now_ns: Callable[[], int] = time.time_ns  # ns since 1970
    random: random.Random = field(default_factory=random.Random)
    letters: Callable[[str, Sequence[tuple[Event, str]]], Awaitable[bool]] | None = None
    # Writes dead letters: (source, [(event, reason)]). True: they are on disk. None: the flow has none.
    lost: list[str] = field(default_factory=list)  # debug: tokens that were collected unsettled
    shared: dict[str, Any] = field(default_factory=dict)  # of one process: an HTTP server's routes, a client
    gatherers: list[Gatherer] = field(default_factory=list)  # operators that keep events until others have come
    draining: bool = False  # no source reads any more; the signal DRAIN comes later, behind all events
    end: Callable[[], None] = lambda: None  # ends the flow as if all its sources had ended
    changed: Callable[[], None] = lambda: None  # told whenever the flow may have come to an end
    given_up: GivenUpLog = field(init=False)
    _versions: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.given_up = GivenUpLog(self.flow)

    def version(self) -> int:
        """Of a breaker message: grows."""
        return next(self._versions)
