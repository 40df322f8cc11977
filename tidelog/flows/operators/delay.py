"""``delay``: passes events on after a delay, in order."""

from __future__ import annotations

import asyncio
from collections import deque

from tidelog.flows.api.event import Event, EventPredicate, extract
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.operator import Operator
from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Struct
from tidelog.options.units import Duration


class DelayOptions(Struct):
    """The options of ``delay``."""

    time: Duration  # The delay. The short form: `delay: 5s`.
    max_kept: AtLeastOne = 10_000
    # When this many events are waiting, no further batch is accepted. A batch has up to 512 events.


class DelayOperator(Operator):
    """Implements ``delay``."""

    type = "delay"
    transparent = True
    short = "time"
    Options = DelayOptions

    def __init__(self, options: DelayOptions) -> None:
        self._options = options
        self._batches: deque[tuple[float, list[Event]]] = deque()  # (event loop time at which they are due, events)
        self._kept = 0
        self._timer: asyncio.TimerHandle | None = None

    def process(self, events: list[Event]) -> None:
        if self.node.draining or self.node.context.draining or not self._options.time:
            self.drain()
            self.emit(events)
            return
        self._batches.append((now() + self._options.time, events))
        self._kept += len(events)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._batches and self._timer is None:
            wait = self._batches[0][0] - now()
            self._timer = self.node.after(max(0.0, wait), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        clock = now()
        while self._batches and self._batches[0][0] <= clock:
            self._next()
        self._set_timer()

    def _next(self) -> None:
        _, events = self._batches.popleft()
        self._kept -= len(events)
        self.emit(events)

    def busy(self) -> bool:
        # a drain does not wait for room: its signal is behind the events in the channel
        return self._kept >= self._options.max_kept and not self.node.context.draining

    def drain(self) -> None:
        """Emit all events immediately."""
        while self._batches:
            self._next()

    def withdraw(self, wanted: EventPredicate) -> list[Event]:
        found: list[Event] = []
        batches = [(due, extract(events, wanted, found)) for due, events in self._batches]
        if found:
            self._batches = deque(each for each in batches if each[1])
            self._kept -= len(found)
        return found

    def kept(self) -> int:
        return self._kept

    def forget(self) -> None:
        self._batches.clear()
