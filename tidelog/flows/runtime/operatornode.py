"""The entity that an operator is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

from tidelog.client.saying import said, text_of
from tidelog.flows.errors import RetryError
from tidelog.flows.event import Event
from tidelog.flows.runtime.channel import Channel, Wanted
from tidelog.flows.runtime.node import Node
from tidelog.flows.runtime.signals import STARTING, Restore, Signal, Trigger
from tidelog.flows.runtime.surroundings import Surroundings
from tidelog.flows.tokens import DISCARD, REJECT, RETRY, Owner, Token, Unsettled, owned, settle_all

log = logging.getLogger("tidelog.flows")


class Operated(Protocol):
    """What ``operators.base.Operator`` has for its node; it is described there."""

    guards: ClassVar[bool]
    gathers: ClassVar[bool]
    transparent: ClassVar[bool]
    node: OperatorNode

    def ports(self) -> tuple[str, ...]: ...
    def start(self) -> None: ...
    def process(self, events: list[Event]) -> None: ...
    def busy(self) -> bool: ...
    def drain(self) -> None: ...
    def drained(self) -> bool: ...
    def kept(self) -> int: ...
    def gathered(self) -> Iterable[Unsettled | None]: ...
    def release(self) -> None: ...
    def withdraw(self, wanted: Wanted) -> list[Event]: ...
    def settled(self, tokens: list[Token]) -> None: ...
    def breaker(self, message: Trigger | Restore, port: str) -> bool: ...
    def stop(self) -> None: ...
    def forget(self) -> None: ...


class OperatorNode(Node):
    """Its operator does the work; the node has the channels and the task."""

    kind = "operator"

    def __init__(self, name: str, operator: Operated, around: Surroundings) -> None:
        super().__init__(name, around)
        self.operator = operator
        operator.node = self
        self._drain_sent = False

    def begin(self) -> None:
        if self.operator.gathers:
            self.around.gatherers.append(self)
        self.operator.start()

    def started(self) -> None:
        """For an operator that ``guards``: one of its outputs can be used, so sources may begin."""
        self.restore(STARTING)

    def step(self) -> bool:
        if super().step():
            return True
        if self.draining and not self._drain_sent and self.operator.drained():
            self._drain_sent = True
            self.emit_signal(Signal.DRAIN)
            return True
        return False

    def gathered(self, owner: Owner) -> Iterable[Token]:
        """Tokens of a source, or of an operator above, of what the operator keeps until more comes."""
        for token in self.operator.gathered():
            yield from owned(token, owner)

    def release(self, name: str, option: str) -> None:
        """Have the operator send it on: all that ``name`` may have under way waits in such operators. option: that says
        how much that is.
        """
        if "released" not in self.counts:
            log.warning(
                "%s: %s: all events that %s may have under way are kept here until more come, so they go on as they"
                " are: raise %s of %s, or have %s wait for fewer",
                self.around.flow, self.name, name, option, name, self.name,
            )  # fmt: skip
        self.count("released")
        self.later(self.operator.release)

    def withdraw(self, wanted: Wanted) -> list[Event]:
        found = [*super().withdraw(wanted), *self.operator.withdraw(wanted)]
        if found:
            self.wake()  # there may be room, or nothing left to drain
        return found

    def ready(self) -> bool:
        return not self.operator.busy()

    def on_batch(self, events: list[Event], channel: Channel) -> None:  # noqa: ARG002 - one is as good as another
        self.count("in", len(events))
        self.operator.process(events)

    def on_drain(self) -> None:
        self.operator.drain()
        self.wake()

    def on_settled(self, tokens: list[Token]) -> None:
        self.operator.settled(tokens)

    def on_breaker(self, message: Trigger | Restore, channel: Channel) -> None:
        if not self.operator.breaker(message, channel.port):
            self.upward(message)

    def end(self) -> list[asyncio.Task[Any]]:
        tasks = super().end()
        self.operator.stop()
        return tasks

    def forget(self) -> None:
        super().forget()
        self.operator.forget()

    def drop(self, events: list[Event], reason: str) -> None:
        self.count("discarded", len(events))
        settle_all(events, DISCARD, reason)

    def fail(self, event: Event, error: BaseException) -> None:
        self.count("failed")
        text = said(error)
        if isinstance(error, RetryError):
            self._failed(event, RETRY, f"{self.name}: {text_of(error)}")
        elif self.outputs.get("err"):
            event.meta["error"] = text
            event.meta["error_at"] = self.name
            self.emit([event], "err")
        else:
            self._failed(event, REJECT, f"{self.name}: {text}")

    def _failed(self, event: Event, status: int, reason: str) -> None:
        if event.token is not None:
            event.token.settle(status, reason)
        else:
            self.around.given_up.add(self.name, reason, event.id, event.value)
