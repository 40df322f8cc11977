"""``fallback``: sends events that fail on ``out`` to the port ``fallback``.

Rule 1: The source is notified of the outcome on ``fallback``, and not of the failure on ``out``.
Rule 2: While ``out`` has a reason, events are sent to ``fallback`` immediately (``outage: fallback``), including those
        that were sent to ``out`` and are not being processed there; or the source waits (``outage: wait``).
Rule 3: A flow starts when one of the ports can be used, and its sources stop when neither can. While ``fallback`` can't
        be used, events that fail on ``out`` are returned to their source, which retries them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from tidelog.flows.api.breaker import Breaker
from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.signals import PAUSED, Restore, Trigger
from tidelog.flows.api.tokens import RETRY, STATUSES, Token, Withdrawn
from tidelog.flows.operators.copies import RetainedCopies, RetainedCopy
from tidelog.flows.operators.hops import Recall
from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Struct

FALLBACK: Final = "fallback"


class FallbackOptions(Struct):
    """The options of ``fallback``."""

    on: Annotated[tuple[Literal["retry", "reject"], ...], msgspec.Meta(min_length=1)] = ("retry", "reject")
    # The outcomes that count as failures.
    outage: Literal["fallback", "wait"] = "fallback"
    # What happens while `out` cannot be used because it is disconnected or a `backpressure` below pauses it.
    # `fallback`: all events are sent to the port `fallback`. `wait`: the sources stop.
    max_copies: AtLeastOne = 10_000  # Maximum number of events in flight for which a copy is retained.


class FallbackOperator(Operator):
    """Implements ``fallback``."""

    type = "fallback"
    guards = True
    Options = FallbackOptions

    def __init__(self, options: FallbackOptions | None = None) -> None:
        self._options = options or FallbackOptions()
        self.out = Breaker()  # reasons of out
        self._spare = Breaker()  # reasons of fallback
        statuses = frozenset(STATUSES.index(each) for each in self._options.on)
        self.copies = RetainedCopies(self, self._options.max_copies, statuses, self._failed)
        self._recall = Recall(self, self._lost, self._taken_back)
        self._began = False
        self._open = False  # whether the sources above may send

    def ports(self) -> tuple[str, ...]:
        return (FALLBACK,)

    def required(self) -> tuple[str, ...]:
        return self.ports()

    def start(self) -> None:
        self._began = True
        self._look()

    def busy(self) -> bool:
        return not self._open

    def process(self, events: list[Event]) -> None:
        if self.out:
            why = self._why(self.out)
            for event in events:
                event.meta["error"] = why
            self._divert(events)
        else:
            take = self.copies.take
            self.emit([take(each) for each in events])

    def _divert(self, events: list[Event]) -> None:
        self.node.count(FALLBACK, len(events))
        for event in events:
            event.meta["error_at"] = self.node.name
        self.emit(events, FALLBACK)

    def settled(self, tokens: list[Token]) -> None:
        self.copies.settled(tokens)

    def _failed(self, copy: RetainedCopy) -> None:
        self.copies.done()
        reason = copy.reason()
        if self._spare and not self.out:
            self.node.count("given_back")
            why = f"{reason}; {FALLBACK} can't be used: {self._why(self._spare)}"
            copy.failed = dict.fromkeys(copy.failed, (RETRY, why))
            copy.give_up()
            return
        copy.narrowed()
        copy.event.meta["error"] = str(reason)
        self._divert([copy.event])

    # -- outages ---------------------------------------------------------------------------------------------
    def breaker(self, message: Trigger | Restore, port: str) -> bool:
        if port == FALLBACK:
            below = self._spare
        elif port == "out" and self._options.outage == FALLBACK and not message.reason.startswith(f"{PAUSED}:"):
            below = self.out
        else:
            return False
        if isinstance(message, Trigger):
            below.trigger(message, now() if self._began else 0.0)
        else:
            below.restore(message)
        self._look()
        return True

    def _look(self) -> None:
        """Update the state after a change of one of the breakers."""
        if not self._began:
            return
        usable = not self.out or not self._spare
        if usable and not self._open:
            self._open = True
            self.node.started()
            self.node.restore(FALLBACK)
            self.node.wake()
        elif not usable and self._open:
            self._open = False
            self.node.trigger(FALLBACK, f"out: {self._why(self.out)}; {FALLBACK}: {self._why(self._spare)}")
        self._recall.look()

    @staticmethod
    def _why(below: Breaker) -> str:
        return ", ".join(each.reason for each in below.reasons)

    def _lost(self) -> list[str]:
        return ["out"] if self.out and not self._spare and self.copies.count else []

    def _taken_back(self, port: str, events: list[Event]) -> None:  # noqa: ARG002 - there is one port
        reason = Withdrawn(self._why(self.out), self.node)
        for event in events:
            if event.token is not None:
                event.token.settle(RETRY, reason)
