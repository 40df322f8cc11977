"""The entity of an operator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from tidelog.flows.api.errors import RetryError
from tidelog.flows.api.event import Event, EventPredicate
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.signals import STARTING, Restore, Signal, Trigger
from tidelog.flows.api.tokens import DISCARD, REJECT, RETRY, Token, TokenOwner, owned, settle_all
from tidelog.flows.runtime.channel import EventChannel
from tidelog.flows.runtime.node import FlowNode
from tidelog.operating.errortexts import summary_of, text_of

log = logging.getLogger("tidelog.flows")


class OperatorNode(FlowNode):
    """Runs an operator: the node owns the channels and the task."""

    kind = "operator"

    def __init__(self, name: str, operator: Operator, context: FlowContext) -> None:
        super().__init__(name, context)
        self.operator = operator
        operator.node = self
        self._drain_sent = False

    def begin(self) -> None:
        if self.operator.gathers:
            self.context.gatherers.append(self)
        self.operator.start()

    def started(self) -> None:
        """Report that one of the outputs can be used, so sources may start. Called by operators with ``guards``."""
        self.restore(STARTING)

    def step(self) -> bool:
        if super().step():
            return True
        if self.draining and not self._drain_sent and self.operator.drained():
            self._drain_sent = True
            self.emit_signal(Signal.DRAIN)
            return True
        return False

    def gathered(self, owner: TokenOwner) -> Iterable[Token]:
        """Yield the tokens of a source, or of an operator above, among the events that the operator stores until others
        arrive.
        """
        for token in self.operator.gathered():
            yield from owned(token, owner)

    def release(self, name: str, option: str) -> None:
        """Have the operator emit its gathered events, because all events that ``name`` may have in flight wait in such
        operators.

        ``option``: the option that limits the events in flight.
        """
        if "released" not in self.counts:
            log.warning(
                "%s: %s: all events that %s may have in flight wait here for more events, so they are released:"
                " increase %s of %s, or reduce the number for which %s waits",
                self.context.flow, self.name, name, option, name, self.name,
            )  # fmt: skip
        self.count("released")
        self.later(self.operator.release)

    def direct(self, port: str) -> bool:
        """Return whether a port leads to one sink, with nothing but transparent operators in between."""
        channels = [each for each in self.outputs.get(port, ()) if each.authoritative]
        if len(channels) != 1:
            return False
        consumer = channels[0].consumer
        if isinstance(consumer, OperatorNode):
            return consumer.operator.transparent and set(consumer.outputs) <= {"out"} and consumer.direct("out")
        return consumer.kind == "sink"

    def recall(self, port: str) -> list[Event]:
        """Take back the events that were sent by ``port`` and that no entity has begun to process.

        The caller must settle their tokens.
        """

        def wanted(event: Event) -> bool:
            return any(getattr(token.key, "way", port) == port for token in owned(event.token, self))

        found = [*super().withdraw(wanted)] if self.held else []
        reached = [each.consumer for each in self.outputs.get(port, ())]
        seen: set[int] = set()
        while reached:
            each = reached.pop()
            if id(each) in seen or not isinstance(each, FlowNode):
                continue
            seen.add(id(each))
            found += each.withdraw(wanted)
            if isinstance(each, OperatorNode):
                reached += [channel.consumer for channels in each.outputs.values() for channel in channels]
        return found

    def withdraw(self, wanted: EventPredicate) -> list[Event]:
        found = [*super().withdraw(wanted), *self.operator.withdraw(wanted)]
        if found:
            self.wake()  # there may be room, or the drain may be complete
        return found

    def ready(self) -> bool:
        return not self.operator.busy()

    def on_batch(self, events: list[Event], channel: EventChannel) -> None:  # noqa: ARG002 - one is as good as another
        self.count("in", len(events))
        self.operator.process(events)

    def on_drain(self) -> None:
        self.operator.drain()
        self.wake()

    def on_settled(self, tokens: list[Token]) -> None:
        self.operator.settled(tokens)

    def on_breaker(self, message: Trigger | Restore, channel: EventChannel) -> None:
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
        text = summary_of(error)
        if isinstance(error, RetryError):
            self.give_up(event, RETRY, f"{self.name}: {text_of(error)}")
        elif self.outputs.get("err"):
            event.meta["error"] = text
            event.meta["error_at"] = self.name
            self.emit([event], "err")
        else:
            self.give_up(event, REJECT, f"{self.name}: {text}")
