"""Operators of the simulation: small ones, which do with tokens what the real ones do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidelog.flows import Event, RejectError, RetryError
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import RETRY, Token, TokenGroup


def ids(value: Any) -> list[int]:
    """The numbers of the events that a value was made of."""
    return [each["id"] for each in value] if isinstance(value, list) else [value["id"]]


class Where(Operator):
    def __init__(self, passes: Callable[[int], bool]) -> None:
        self.passes = passes

    def process(self, events: list[Event]) -> None:
        self.drop([each for each in events if not self.passes(each.value["id"])], "filtered")
        self.emit([each for each in events if self.passes(each.value["id"])])


class Batch(Operator):
    """Of so many, or after a time."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count = count
        self.seconds = seconds
        self.events: list[Event] = []
        self.timer: asyncio.TimerHandle | None = None
        self.draining = False

    def process(self, events: list[Event]) -> None:
        for event in events:
            self.events.append(event)
            if len(self.events) >= self.count or self.draining:
                self.flush()
        if self.events and self.timer is None:
            self.timer = self.node.after(self.seconds, self.flush)

    def flush(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        events, self.events = self.events, []
        if events:
            group = TokenGroup([each.token for each in events if each.token is not None])
            self.emit([Event([each.value for each in events], None, events[0].id, token=group)])

    def drain(self) -> None:
        self.draining = True
        self.flush()

    def kept(self) -> int:
        return len(self.events)

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def forget(self) -> None:
        self.events.clear()


class Unbatch(Operator):
    def process(self, events: list[Event]) -> None:
        for event in events:
            if event.token is not None:
                event.token.split(len(event.value) - 1)
            self.emit([event.derive(each) for each in event.value])


class Failing(Operator):
    """Some events never work, some not at first."""

    def __init__(self, never: Callable[[int], bool], at_first: Callable[[int], bool]) -> None:
        self.never = never
        self.at_first = at_first

    def process(self, events: list[Event]) -> None:
        good = []
        for event in events:
            number = event.value["id"]
            if self.never(number):
                self.fail(event, RejectError("never"))
            elif self.at_first(number) and event.attempt == 1:
                self.fail(event, RetryError("not yet"))
            else:
                good.append(event)
        self.emit(good)


class Hop(Operator):
    """Sees settlements: what is given back it sends once more itself."""

    def process(self, events: list[Event]) -> None:
        for event in events:
            event.token = Token(self.node, (event.remembered(), False), event.token)
        self.emit(events)

    def settled(self, tokens: list[Token]) -> None:
        for token in tokens:
            kept, again = token.key
            if token.status == RETRY and not again:
                event = kept.remembered()
                event.token = Token(self.node, (kept, True), token.parent)
                self.emit([event])
            elif token.parent is not None:
                token.parent.settle(token.status, token.reason)
