"""``fallback``: what fails on ``out`` goes to the port ``fallback``.

Rule 1: the source is not told that an event failed: it is told what became of it on ``fallback``.
Rule 2: while a reason of ``out`` stands, events go to ``fallback`` at once (``outage: fallback``), or the source waits
        (``outage: wait``). A flow starts when both ways are connected.
"""

from __future__ import annotations

from typing import Final, Literal

from tidelog.flows.event import Event
from tidelog.flows.operators.base import Operator
from tidelog.flows.operators.copies import Copies, Copy
from tidelog.flows.operators.hops import now
from tidelog.flows.options import Struct
from tidelog.flows.runtime.breaker import Breaker
from tidelog.flows.runtime.signals import PAUSED, Restore, Trigger
from tidelog.flows.tokens import STATUSES, Token

FALLBACK: Final = "fallback"


class FallbackOptions(Struct):
    """Its options."""

    on: tuple[Literal["retry", "reject"], ...] = ("retry", "reject")  # what counts as failed
    outage: Literal["fallback", "wait"] = "fallback"  # while out can't be used
    most: int = 10_000  # events of which copies are kept

    def __post_init__(self) -> None:
        if not self.on:
            raise ValueError("on is empty: nothing would go to the port fallback; give retry, reject or both")
        if self.most < 1:
            raise ValueError(f"most is {self.most}: it must be at least 1")


class Fallback(Operator):
    """The operator."""

    type = "fallback"
    Options = FallbackOptions

    def __init__(self, options: FallbackOptions | None = None) -> None:
        self._options = options or FallbackOptions()
        self._below = Breaker()  # of out, while its messages end here
        statuses = frozenset(STATUSES.index(each) for each in self._options.on)
        self._copies = Copies(self, self._options.most, statuses, self._failed)

    def ports(self) -> tuple[str, ...]:
        return (FALLBACK,)

    def required(self) -> tuple[str, ...]:
        return self.ports()

    def process(self, events: list[Event]) -> None:
        if self._below:
            why = ", ".join(each.reason for each in self._below.reasons)
            for event in events:
                event.meta["error"] = why
            self._divert(events)
        else:
            take = self._copies.take
            self.emit([take(each) for each in events])

    def _divert(self, events: list[Event]) -> None:
        self.node.count(FALLBACK, len(events))
        for event in events:
            event.meta["error_at"] = self.node.name
        self.emit(events, FALLBACK)

    def settled(self, tokens: list[Token]) -> None:
        self._copies.settled(tokens)

    def _failed(self, copy: Copy) -> None:
        self._copies.done()
        reason = copy.reason()
        copy.narrowed()
        copy.event.meta["error"] = reason
        self._divert([copy.event])

    def breaker(self, message: Trigger | Restore, port: str) -> bool:
        if port != "out" or self._options.outage == "wait" or message.reason.startswith(f"{PAUSED}:"):
            return False
        if isinstance(message, Trigger):
            self._below.trigger(message, now())
            return True
        self._below.restore(message)
        return False  # reasons from before the start are the sources' own
