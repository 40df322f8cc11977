"""The entity that an operator is."""

from __future__ import annotations

from tidelog.flows.errors import RetryError
from tidelog.flows.event import Event
from tidelog.flows.operators.base import Operator
from tidelog.flows.runtime.channel import Channel
from tidelog.flows.runtime.node import Node
from tidelog.flows.runtime.signals import STARTING, Restore, Signal, Trigger
from tidelog.flows.runtime.surroundings import Surroundings
from tidelog.flows.tokens import DISCARD, REJECT, RETRY, Token, settle_all


class OperatorNode(Node):
    kind = "operator"

    def __init__(self, name: str, operator: Operator, around: Surroundings) -> None:
        super().__init__(name, around)
        self.operator = operator
        operator.node = self
        self._drain_sent = False

    def begin(self) -> None:
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

    def ready(self) -> bool:
        return not self.operator.busy()

    def on_batch(self, events: list[Event], channel: Channel) -> None:
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

    def end(self) -> None:
        super().end()
        self.operator.stop()

    def drop(self, events: list[Event], reason: str) -> None:
        self.count("discarded", len(events))
        settle_all(events, DISCARD, reason)

    def fail(self, event: Event, error: BaseException) -> None:
        self.count("failed")
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, RetryError):
            if event.token is not None:
                event.token.settle(RETRY, f"{self.name}: {error}")
        elif self.outputs.get("err"):
            event.meta["error"] = text
            event.meta["error_at"] = self.name
            self.emit([event], "err")
        elif event.token is not None:
            event.token.settle(REJECT, f"{self.name}: {text}")
