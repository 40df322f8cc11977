"""``metronome``: an event at a fixed interval, regardless of the outcome of earlier events.

Times that pass while the flow is paused or a channel is full are skipped.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tidelog.flows.api.connector import Source
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.event import Event
from tidelog.options.units import PositiveDuration


class MetronomeOptions(ConnectorOptions, kw_only=True):
    """Options of ``metronome``."""

    interval: PositiveDuration  # Time between events, and before the first one.
    value: Any = None  # The value of each event. `null`: `{"id": NUMBER, "ingest_ns": TIME}`.


class MetronomeSource(Source):
    """Produces events. Failed events are not retried."""

    type = "metronome"
    Options = MetronomeOptions
    remembers = False

    def __init__(self, options: MetronomeOptions) -> None:
        super().__init__()
        self._options = options
        self._next: float | None = None  # loop time of the next event
        self._number = 0

    async def pull(self, limit: int) -> list[Event] | None:  # noqa: ARG002 - one at a time
        loop = asyncio.get_running_loop()
        interval = self._options.interval
        now = loop.time()
        if self._next is None:
            self._next = now + interval
        elif now - self._next >= interval:
            self._next += (now - self._next) // interval * interval
        if now < self._next and not await self.wait(asyncio.sleep(self._next - now)):
            return []
        self._next += interval
        now_ns = self.context.flow_context.now_ns()
        value = self._options.value
        event = Event({"id": self._number, "ingest_ns": now_ns} if value is None else value, None, self._number)
        event.ingest_ns = now_ns
        self._number += 1
        return [event]
