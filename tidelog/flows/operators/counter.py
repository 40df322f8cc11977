"""``counter``: counts events, for the API, the metrics and the port ``counts``.

The events on the port ``counts`` belong to this operator. They have no tokens and delay nothing. If the port has no
room, a count is omitted, and the next one includes it.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.operator import Operator
from tidelog.options.structs import Struct
from tidelog.options.units import Interval

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_RUNTIMES: Final = frozenset(("in", "out", "failed", "discarded", "unconnected", "released", "settled_twice"))


class CounterOptions(Struct):
    """The options of ``counter``."""

    name: str = "counted"  # The name of the counter: a to z, digits and `_`. The short form: `counter: orders`.
    every: Interval | None = None
    # The interval at which a count is sent to the port `counts`: `{name, total, count, seconds}`, where `count` is the
    # number of events in the last `seconds`.
    wrap: bool = False  # `true`: the value becomes `{count, event}`, with the number of this event and its value.

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name is {self.name!r}: it must match {_NAME.pattern}")
        if self.name in _RUNTIMES:
            raise ValueError(f"name is {self.name!r}: the runtime has a counter with this name")


class CounterOperator(Operator):
    """Implements ``counter``."""

    type = "counter"
    short = "name"
    Options = CounterOptions

    def __init__(self, options: CounterOptions | None = None) -> None:
        self._options = options or CounterOptions()
        self._total = 0
        self._sent = 0  # events in the counts that were sent
        self._since = 0.0  # event loop time of the last count
        self._timer: asyncio.TimerHandle | None = None
        self._draining = False

    def ports(self) -> tuple[str, ...]:
        return ("counts",)

    def start(self) -> None:
        self._since = now()
        self._set_timer()

    def process(self, events: list[Event]) -> None:
        self.node.count(self._options.name, len(events))
        if self._options.wrap:
            for number, event in enumerate(events, self._total + 1):
                event.value = {"count": number, "event": event.value}
        self._total += len(events)
        self.emit(events)

    def _set_timer(self) -> None:
        if self._options.every is not None and not self._draining and self.node.outputs.get("counts"):
            self._timer = self.node.after(self._options.every, self._send)

    def _send(self) -> None:
        clock = now()
        if not self.node.held:
            value = {
                "name": self._options.name,
                "total": self._total,
                "count": self._total - self._sent,
                "seconds": round(clock - self._since, 6),
            }
            self._sent, self._since = self._total, clock
            path = f"{self.node.name}.counts"
            self.emit([Event(value, ingest_ns=self.node.context.now_ns(), path=path)], "counts")
        self._set_timer()

    def drain(self) -> None:
        """Send the last count, so that all counts add up to the total."""
        self._draining = True
        if self._timer is not None:
            self._timer.cancel()
        if self._options.every is not None and self.node.outputs.get("counts"):
            self._send()
