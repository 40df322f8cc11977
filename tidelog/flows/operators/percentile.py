"""``percentile``: passes on the share of events that is settled in time, and sends the others to ``overflow``.

Rule 1: The share is reduced by ``step_down`` when an event is late or fails, or a sink below reports an outage. It is
        not reduced again until an event that was sent afterwards is late. It is increased by ``step_up`` with each
        on-time settlement of an event that was sent afterwards.
Rule 2: The passed events are distributed evenly and not at random: with a share of 0.25, every fourth event passes.
Rule 3: While no event is in flight, one passes whatever the share is, so a recovery is noticed.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.signals import PAUSED, Restore, Trigger
from tidelog.flows.api.tokens import Token
from tidelog.flows.operators.hops import OverdueWatch, SentBatch, runs, send
from tidelog.options.structs import Struct
from tidelog.options.units import PositiveDuration

SHED: Final = "percentile"

ShareStep: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1)]


class PercentileOptions(Struct):
    """The options of ``percentile``."""

    timeout: PositiveDuration  # The maximum acceptable latency. The short form: `percentile: 200ms`.
    step_down: ShareStep = 0.05
    # Subtracted from the share if an event is late or fails, or a sink below reports an outage. It is not subtracted
    # again until an event that was sent afterwards is late.
    step_up: ShareStep = 0.001
    # Added to the share for each on-time settlement. Events that are settled together count as one.


class PercentileOperator(Operator):
    """Implements ``percentile``."""

    type = "percentile"
    short = "timeout"
    Options = PercentileOptions

    def __init__(self, options: PercentileOptions) -> None:
        self._options = options
        self.share = 1.0  # share of events that pass
        self._credit = 0.0  # fraction of the next event that may pass
        self._in_flight = 0
        self._generation = 0  # number of reductions of the share
        self._drains = False
        self._overdue = OverdueWatch(self, options.timeout, self._late)

    def ports(self) -> tuple[str, ...]:
        return ("overflow",)

    def process(self, events: list[Event]) -> None:
        if self.share < 1 and not self._drains:
            events, shed = self._chosen(events)
            self.divert(shed, "overflow", SHED)
        if events:
            sent = send(self.node, events, now(), self._generation)
            self._in_flight += sent.left
            self._overdue.watch(sent)
            self.emit(events)

    def _chosen(self, events: list[Event]) -> tuple[list[Event], list[Event]]:
        through: list[Event] = []
        shed: list[Event] = []
        for event in events:
            self._credit += self.share
            if self._credit >= 1 or not (self._in_flight or through):
                self._credit = max(self._credit - 1, 0.0)
                through.append(event)
            else:
                shed.append(event)
        return through, shed

    def settled(self, tokens: list[Token]) -> None:
        super().settled(tokens)
        clock = now()
        for run in runs(tokens):
            self._in_flight -= run.size
            if not run.answered:
                continue
            if run.retry is not None or clock - run.sent.since > self._options.timeout:
                self._late(run.sent)
            elif run.sent.generation == self._generation:
                self.share = min(self.share + self._options.step_up, 1.0)

    def _late(self, sent: SentBatch) -> None:
        if sent.generation == self._generation:
            self._less()

    def _less(self) -> None:
        self.share = max(self.share - self._options.step_down, 0.0)
        self._generation += 1
        self.node.count("steps")

    def breaker(self, message: Trigger | Restore, port: str) -> bool:
        if port == "out" and isinstance(message, Trigger) and not message.reason.startswith(f"{PAUSED}:"):
            self._less()
        return False

    def drain(self) -> None:
        self._drains = True
