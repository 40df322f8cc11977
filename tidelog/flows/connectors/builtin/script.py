"""``script``: a source of given values, and a sink with a configured outcome for each event. For tests.

The outcome of an event is the option ``act``, or the event's ``meta["script"]``; docs/flows-connectors.md explains the
values.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, Literal

from tidelog.flows.api.connector import DEFERRED, Deferred, Outcome, Sink, Source
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.event import Event, copied
from tidelog.flows.api.tokens import DISCARD, OK, REJECT, RETRY
from tidelog.options.limits import Probability
from tidelog.options.units import Duration

Act = Literal[
    "ok", "discard", "reject", "retry", "fails", "sometimes", "one", "slow", "blocks", "hangs", "twice", "late",
    "after_cancel", "disconnects", "raises",
]  # fmt: skip

_PUT_OFF = frozenset(("slow", "late", "hangs", "twice"))
_PLAIN = {"ok": OK, "discard": DISCARD, "reject": REJECT, "retry": RETRY}


class ScriptOptions(ConnectorOptions):
    """Options of ``script``."""

    values: list[Any] = []  # noqa: RUF012 - Source: one event for each value.
    act: Act = "ok"  # Sink: the outcome of events, see below.
    times: int = 1  # Sink: number of failures for each ID, for `fails`, `disconnects` and `raises`.
    p: Probability = 0.1  # Sink: the probability for `sometimes`.
    id: Any = None  # Sink: the ID that always fails, for `one`.
    delay: Duration = Duration(1.0)  # Sink: the delay of `slow`, `blocks`, `twice` and `late`.
    seed: int = 0  # Sink: the seed of the random numbers for `sometimes`.


class ScriptConnector(Source, Sink):
    """``delivered``: the IDs and values that were settled ok, in this order."""

    type = "script"
    Options = ScriptOptions

    def __init__(self, options: ScriptOptions | None = None) -> None:
        super().__init__()
        self._options = options or ScriptOptions()
        self._given = 0
        self._random = random.Random(self._options.seed)
        self._failed: dict[Any, int] = {}  # times, by ID
        self.delivered: list[tuple[Any, Any]] = []

    async def pull(self, limit: int) -> list[Event] | None:
        first = self._given
        values = self._options.values[first : first + limit]
        if not values:
            return None
        self._given += len(values)
        return [Event(copied(value), None, first + number) for number, value in enumerate(values)]

    async def write(self, events: list[Event]) -> Deferred | list[Outcome]:
        outcomes: list[Outcome] = []
        later = []
        cancelled = False  # a write is cancelled once
        for event in events:
            act = event.meta.get("script", self._options.act)
            if act in _PUT_OFF:
                later.append((event, act))
                continue
            status = OK if cancelled else await self._now(event, act)
            cancelled = cancelled or act == "after_cancel"
            if status == OK:
                self._deliver(event)
            outcomes.append((status, "" if status == OK else f"the script says {act}"))
        if not later:
            return outcomes
        put_off = {id(event) for event, _ in later}
        at_once = (event for event in events if id(event) not in put_off)
        for event, outcome in zip(at_once, outcomes, strict=True):
            self.context.answer(event, *outcome)  # type: ignore[misc] # they are pairs
        for event, act in later:
            self._put_off(event, act)
        return DEFERRED

    async def _now(self, event: Event, act: str) -> int:
        if act in _PLAIN:
            return _PLAIN[act]
        if act == "sometimes":
            return RETRY if self._random.random() < self._options.p else OK
        if act == "one":
            return RETRY if event.id == self._options.id else OK
        if act == "blocks":
            await asyncio.sleep(self._options.delay)
            return OK
        if act == "after_cancel":
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                return OK
        failed = self._failed.get(event.id, 0)
        if failed >= self._options.times:
            return OK
        self._failed[event.id] = failed + 1
        if act == "disconnects":
            raise ConnectionError("the script says so")
        if act == "raises":
            raise ValueError("the script says so")
        return RETRY

    def _put_off(self, event: Event, act: str) -> None:
        def answer() -> None:
            if self.context.answer(event, OK):
                self._deliver(event)

        if act == "twice":
            answer()
        if act != "hangs":
            asyncio.get_running_loop().call_later(self._options.delay, answer)

    def _deliver(self, event: Event) -> None:
        self.delivered.append((event.id, event.value))
