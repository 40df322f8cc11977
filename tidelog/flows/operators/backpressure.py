"""``backpressure``: sends fewer events while the sinks below are slow, fail, or report an outage.

Rule 1: A step starts at the time of its cause, and lasts for the duration in ``steps``, whatever the age of the events.
Rule 2: Events that were sent before a step say nothing about the state after it. So a thousand late events cause one
        step, and the next step requires an event that was sent after the last one.
Rule 3: An event that is never settled is late as well: its time in flight is checked, and not only its settlement.
"""

from __future__ import annotations

import math
from asyncio import TimerHandle
from collections import deque
from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from tidelog.flows.api.breaker import Breaker
from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.gathering import GatheredRelease
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.signals import PAUSED, Restore, Trigger
from tidelog.flows.api.tokens import Token
from tidelog.flows.operators.hops import OverdueWatch, SendWindow, SentBatch, runs, send, stalled
from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Struct
from tidelog.options.units import PositiveDuration

BACKPRESSURE: Final = "backpressure"  # the kind of its reason, and the reason of discarded events
STEPS: Final = tuple(PositiveDuration(each) for each in (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0))
QUANTILE: Final = 0.95


class BackpressureOptions(Struct):
    """The options of ``backpressure``."""

    timeout: PositiveDuration
    # The maximum acceptable latency, from the time an event leaves this operator until it is settled. The short form:
    # `backpressure: 200ms`.
    method: Literal["pause", "discard"] = "pause"
    # `pause`: the sources above stop, and no event is lost. `discard`: the sources continue, and events are sent to the
    # port `overflow`.
    steps: Annotated[tuple[PositiveDuration, ...], msgspec.Meta(min_length=1)] = STEPS
    # The durations of the first step, the second step, and so on. The last one is used for all further steps.
    restore_after: AtLeastOne = 3
    # After this many consecutive on-time settlements, the delay is reset to the first step. Events that are settled
    # together count as one.
    window: AtLeastOne = 100  # The number of recent settlements that are evaluated.

    def __post_init__(self) -> None:
        if list(self.steps) != sorted(self.steps):
            raise ValueError("steps must not decrease")


class BackpressureOperator(Operator):
    """Implements ``backpressure``."""

    type = "backpressure"
    short = "timeout"
    Options = BackpressureOptions

    def __init__(self, options: BackpressureOptions) -> None:
        self._options = options
        self._pauses = options.method == "pause"
        self._window = SendWindow()
        self._latencies: deque[float] = deque(maxlen=options.window)  # s, of events that were sent after the last step
        self._good = 0  # consecutive on-time settlements
        self._level = 0  # number of the current step; 0: none
        self._timer: TimerHandle | None = None  # set during a step
        self.buffer = []  # at most a batch
        self._below = Breaker()  # with method discard: reasons that were not forwarded
        self._drains = False
        self._overdue = OverdueWatch(self, options.timeout, self._late)
        self._stalled = GatheredRelease(lambda: self.node, "timeout", self._full, self._stuck_on)

    def ports(self) -> tuple[str, ...]:
        return ("overflow",)

    # -- forward ---------------------------------------------------------------------------------------------
    def busy(self) -> bool:
        return self._pauses and (self._timer is not None or bool(self.buffer))

    def process(self, events: list[Event]) -> None:
        room = len(events) if self._drains and self._pauses else self._room(len(events))
        rest = events[room:]
        if room:
            self._send(events[:room] if rest else events)
        if not rest:
            return
        if self._pauses:
            self.buffer = rest
            self._stalled.watch()
        else:
            self.divert(rest, "overflow", BACKPRESSURE)

    def _room(self, wanted: int) -> int:
        return 0 if self._timer is not None or self._below else self._window.room(wanted)

    def _send(self, events: list[Event]) -> None:
        sent = send(self.node, events, now(), self._window.generation)
        self._window.sent(sent)
        self._overdue.watch(sent)
        self.emit(events)

    def _send_kept(self) -> None:
        if self.buffer and (room := self._room(len(self.buffer))):
            events, self.buffer = self.buffer[:room], self.buffer[room:]
            self._send(events)
        if self.buffer:
            self._stalled.watch()

    def _full(self) -> list[tuple[str, SendWindow]]:
        waits = self.buffer and self._timer is None and not self._window.room(1)
        return [("out", self._window)] if waits else []

    def _stuck_on(self, gathered: Mapping[int, Token]) -> set[int]:
        return stalled(self._full(), gathered)

    # -- back ------------------------------------------------------------------------------------------------
    def settled(self, tokens: list[Token]) -> None:
        super().settled(tokens)
        clock = now()
        failed = None
        for run in runs(tokens):
            self._window.back(run)
            if run.sent.generation != self._window.generation or not run.answered:
                continue
            if run.retry is not None:
                failed = run.retry
                continue
            latency = clock - run.sent.since
            self._latencies.append(latency)
            self._good = self._good + 1 if latency <= self._options.timeout else 0
        if failed is not None:
            self._step(failed)
        elif self._latencies and (slow := percentile(self._latencies)) > self._options.timeout:
            self._step(f"95 % settled within {slow:.3g} s, the timeout is {self._options.timeout:g} s")
        elif self._level and self._good >= self._options.restore_after:
            self._level = 0
        self._send_kept()

    def _late(self, sent: SentBatch) -> None:
        if sent.generation == self._window.generation:
            self._step(f"not settled after {self._options.timeout:g} s")

    def breaker(self, message: Trigger | Restore, port: str) -> bool:
        if port != "out" or message.reason.startswith(f"{PAUSED}:"):  # a user's pause is not a sign of load
            return False
        if isinstance(message, Trigger):
            if not self._pauses:
                self._below.trigger(message, now())
            self._step(message.reason)
            return not self._pauses
        self._below.restore(message)
        return False

    def _step(self, why: str) -> None:
        if self._timer is not None or self._drains:
            return
        self._level = min(self._level + 1, len(self._options.steps))
        self._good = 0
        self._latencies.clear()
        self._window.begin()
        self.node.count("steps")
        if self._pauses:
            self.node.trigger(BACKPRESSURE, why)
        self._timer = self.node.after(self._options.steps[self._level - 1], self._step_ended)

    def _step_ended(self) -> None:
        self._timer = None
        if self._pauses:
            self.node.restore(BACKPRESSURE, probe=True)
        self._send_kept()

    # -- the end ---------------------------------------------------------------------------------------------
    def drain(self) -> None:
        self._drains = True


def percentile(latencies: deque[float]) -> float:
    """Return the latency that 95 % of the values do not exceed; for fewer than 20 values, the largest one."""
    return sorted(latencies)[math.ceil(QUANTILE * len(latencies)) - 1]
