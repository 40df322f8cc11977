"""The entity of a sink.

Rule 1: Each event is settled once, whatever the sink does. Late, repeated and unknown outcomes are counted and ignored.
Rule 2: While the sink is not connected, nothing is written, and events stay in the channels. If the connection is lost,
        events that wait for an outcome are settled for a retry.
Rule 3: The sink is flushed after its last write, and after each later write of a retry.
Rule 4: A sink that cannot write, and has nothing to write, does not delay a drain.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from tidelog.flows.api.cancellation import from_outside
from tidelog.flows.api.connector import Deferred, Outcome, Sink
from tidelog.flows.api.errors import PeerGoneError, RejectError
from tidelog.flows.api.event import Event, EventPredicate
from tidelog.flows.api.flowcontext import FlowContext, now
from tidelog.flows.api.signals import DISCONNECTED, PAUSED, STARTING
from tidelog.flows.api.tokens import OK, REJECT, RETRY, TokenGroup, settle_all
from tidelog.flows.runtime.channel import EventChannel
from tidelog.flows.runtime.connection import ConnectorConnection
from tidelog.flows.runtime.node import FlowNode, fail
from tidelog.operating.errortexts import summary_of

SOON: Final = 1e-3  # s by which a timeout may be early, so that one timer serves several events

log = logging.getLogger("tidelog.flows")


class SinkNode(FlowNode):
    """Writes the events of its inputs to its connector, and settles them."""

    kind = "sink"

    def __init__(
        self, name: str, sink: Sink, connection: ConnectorConnection, context: FlowContext, timeout: float | None = None
    ) -> None:
        super().__init__(name, context)
        self.sink = sink
        self.connection = connection
        self.timeout = timeout  # s for one write; None: unlimited
        self.writing = 0  # current calls of write
        self._batches: dict[int, list[Event]] = {}  # by id(): batches in a write, none of whose events is settled
        self._events: dict[int, Event] = {}  # by id(): events of the other batches in a write
        self._deferred: dict[int, tuple[float, Event]] = {}  # by id(), in order: events without an outcome
        self.withdrawn: set[int] = set()  # id() of events that were withdrawn during a write
        self._overdue: asyncio.TimerHandle | None = None
        self.authoritative = True  # False: the outcome of events in this sink is ignored
        self.paused = False
        self.error_text = ""  # of the last failed write
        self.drained = asyncio.Event()  # DRAIN has arrived, and all events are written
        self._drain_begun = False
        connection.on_change.append(self._changed)

    # -- connected, paused -----------------------------------------------------------------------------------
    def _changed(self) -> None:
        if self.connection.connected:
            self.restore(STARTING)
            self.restore(DISCONNECTED)
        else:
            if f"{STARTING}:{self.name}" not in self.active:
                self.trigger(DISCONNECTED, self.connection.error)
            self._retry_deferred(list(self._deferred), ConnectionError(self.connection.error or "disconnected"))
        self.wake()

    def trigger(self, kind: str, detail: str = "") -> None:
        if self.authoritative:  # other sinks do not stop their sources
            super().trigger(kind, detail)

    def lost(self, error: BaseException, connects: int | None = None) -> None:
        self.connection.lost(error, connects)

    def pause(self, owner: str) -> None:  # noqa: ARG002 - only sources are paused by several owners
        """Stop writing until ``resume``. The sources above stop, and events stay in the channels."""
        self.paused = True
        self.trigger(PAUSED)

    def resume(self, owner: str) -> None:  # noqa: ARG002
        self.paused = False
        self.restore(PAUSED)
        self.wake()

    def forget(self) -> None:
        super().forget()
        for each in (self._batches, self._events, self._deferred):
            each.clear()

    def withdraw(self, wanted: EventPredicate) -> list[Event]:
        found = super().withdraw(wanted)
        for event in self.sink.withdraw(wanted):
            if self._remove(event):
                self.withdrawn.add(id(event))  # unique, because the write retains the event
                found.append(event)
        if found:
            self.wake()  # the drain may be complete
        return found

    # -- writing ---------------------------------------------------------------------------------------------
    def ready(self) -> bool:
        return self.connection.connected and not self.paused and self.writing < self.sink.concurrency

    @property
    def in_flight(self) -> int:
        """The number of events that were taken and are not settled."""
        return sum(map(len, self._batches.values())) + len(self._events) + len(self._deferred)

    def step(self) -> bool:
        if super().step():
            return True
        if self.draining and not self._drain_begun and not self.writing:
            self._drain_begun = True
            self.spawn(self._drain())
            return True
        return False

    def on_batch(self, events: list[Event], channel: EventChannel) -> None:  # noqa: ARG002 - one is as good as another
        self.count("in", len(events))
        self.writing += 1
        self._batches[id(events)] = events
        self.spawn(self._write(events))

    async def _write(self, events: list[Event]) -> None:
        connects = self.connection.connects
        try:
            try:
                if self.timeout is None:
                    outcomes = await self.sink.write(events)
                else:
                    async with asyncio.timeout(self.timeout):
                        outcomes = await self.sink.write(events)
                if self._drain_begun:
                    await self.sink.flush()
            finally:
                self.writing -= 1
                self.wake()
            if outcomes is None:
                known = self._take_unsettled(events)
                self.count("ok", len(known))
                settle_all(known)
            elif isinstance(outcomes, Deferred):
                self._defer(events, connects)
            else:
                self._settle_outcomes(events, outcomes)
        except asyncio.CancelledError:
            if from_outside():
                raise
            self._failed(self._take_unsettled(events), RETRY, RuntimeError("the write was cancelled from inside"))
        except Exception as error:  # noqa: BLE001 - any error of the sink, or invalid outcomes: the events are retried
            self._raised(events, error, connects)
        finally:
            if self.withdrawn:
                self.withdrawn.difference_update(map(id, events))

    def _raised(self, events: list[Event], error: Exception, connects: int) -> None:
        gone = isinstance(error, OSError)  # includes ConnectionError
        if isinstance(error, TimeoutError):
            gone = error.errno is not None  # raised by the system, which has closed the connection
            text = "no reply" if self.timeout is None else f"no reply within {self.timeout:g} s"
            error = TimeoutError(str(error) or text)
        self._failed(self._take_unsettled(events), REJECT if isinstance(error, RejectError) else RETRY, error)
        if gone:
            self.lost(error, connects)
        elif isinstance(error, PeerGoneError):
            self.later(partial(fail, error))

    def _defer(self, events: list[Event], connects: int) -> None:
        """Store events whose outcome follows later. ``connects``: the number of connects when the write began."""
        left = self._take_unsettled(events)
        clock = now()
        self._deferred.update((id(each), (clock, each)) for each in left)
        if not self.connection.connected or self.connection.connects != connects:
            error = ConnectionError(self.connection.error or "disconnected")  # no outcome will follow
            self._retry_deferred([id(each) for each in left], error)
        elif self.timeout is not None and self._deferred and self._overdue is None:
            self._overdue = self.after(self.timeout, partial(self._check_overdue, self.timeout))

    def _check_overdue(self, timeout: float) -> None:
        """Retry overdue events. One timer serves all events, because a timer per event would retain settled ones."""
        self._overdue = None
        since = now() - timeout
        late = list(itertools.takewhile(lambda one: self._deferred[one][0] <= since + SOON, self._deferred))
        self._retry_deferred(late, TimeoutError(f"no reply within {timeout:g} s"))
        if self._deferred:
            first, _ = next(iter(self._deferred.values()))
            self._overdue = self.after(first - since, partial(self._check_overdue, timeout))

    def _retry_deferred(self, late: list[int], error: Exception) -> None:
        """Settle events that still wait for an outcome, for a retry."""
        left = [found[1] for each in late if (found := self._deferred.pop(each, None)) is not None]
        if left:
            self._failed(left, RETRY, error)

    def _take_unsettled(self, events: list[Event]) -> list[Event]:
        """Return the unsettled events of a batch, which are no longer in flight."""
        if self._batches.pop(id(events), None) is not None:
            return events
        return [each for each in events if self._events.pop(id(each), None) is not None]

    def _separate(self, events: list[Event]) -> None:
        """Track the events of a batch separately from now on."""
        if self._batches.pop(id(events), None) is not None:
            self._events.update((id(each), each) for each in events)

    def _remove(self, event: Event) -> bool:
        """Remove an event from those in flight. Return whether it was one of them."""
        if self._deferred.pop(id(event), None) is not None:
            return True
        if id(event) not in self._events:
            for batch in list(self._batches.values()):  # one per concurrent write
                if any(each is event for each in batch):
                    self._separate(batch)
                    break
        return self._events.pop(id(event), None) is not None

    def _settle_outcomes(self, events: list[Event], outcomes: Sequence[Outcome]) -> None:
        if len(outcomes) != len(events):
            text = f"{type(self.sink).__name__}.write returned {len(outcomes)} outcomes for {len(events)} events"
            self._failed(self._take_unsettled(events), RETRY, ValueError(text))
            return
        self._separate(events)
        for event, outcome in zip(events, outcomes, strict=True):
            if id(event) in self.withdrawn:
                continue
            if isinstance(outcome, int):
                self.answer(event, outcome)
            elif outcome and isinstance(outcome[0], int):
                self.answer(event, outcome[0], str(outcome[1]))
            else:
                self.answer_items(event, outcome)  # type: ignore[arg-type] # pairs are handled above

    def answer_items(self, event: Event, outcomes: Sequence[tuple[int, str]]) -> None:
        worst = max(outcomes, default=(OK, ""))
        for status, _ in outcomes:
            _check_status(status)
        if not self._remove(event):
            self.count("late_answers")
            return
        if isinstance(event.token, TokenGroup) and event.token.intact and len(event.token.members) == len(outcomes):
            for status, _ in outcomes:
                self.count(_COUNTED[status])
            event.token.settle_items(outcomes)
        elif event.token is not None:  # its members are no longer together
            self.count(_COUNTED[worst[0]])
            event.token.settle(*worst)
        if worst[0] != OK:
            self.error_text = worst[1]
        self.wake()

    def answer(self, event: Event, status: int, reason: str = "") -> bool:
        _check_status(status)
        if not self._remove(event):
            self.count("late_answers")
            return False
        self.count(_COUNTED[status])
        if status != OK and reason:
            self.error_text = reason
        if event.token is not None:
            event.token.settle(status, f"{self.name}: {reason}" if reason else "")
        elif status >= REJECT:
            self._given_up(event, reason)
        self.wake()
        return True

    def _failed(self, events: list[Event], status: int, error: BaseException) -> None:
        """Settle events that were already removed from those in flight."""
        text = summary_of(error)
        if text != self.error_text and not isinstance(error, (OSError, RejectError)):
            log.warning("%s: %s: %s", self.context.flow, self.name, text, exc_info=error)
        self.error_text = text
        self.count(_COUNTED[status], len(events))
        settle_all(events, status, f"{self.name}: {text}")
        for event in events:
            if event.token is None:
                self._given_up(event, text)

    def _given_up(self, event: Event, reason: str) -> None:
        """Log an event without a token, in a flow without settlement."""
        if self.authoritative:
            self.context.given_up.add(self.name, reason, event.id, event.value)

    def respond(self, events: list[Event], port: str) -> None:
        """Emit events of the sink itself. Called by the tasks of the sink."""
        if self.outputs.get(port):
            self.emit(events, port)
            self.wake()
        else:
            settle_all(events)

    # -- drain -----------------------------------------------------------------------------------------------
    def on_drain(self) -> None:
        self.wake()  # there may be no write in progress

    async def _drain(self) -> None:
        try:
            if self.connection.connected:
                await self.sink.flush()
        except Exception as error:  # noqa: BLE001 - unsettled events are retried
            log.warning("%s: %s: flush: %s", self.context.flow, self.name, error)
        self.drained.set()
        self.later(lambda: FlowNode.on_drain(self))


def _check_status(status: object) -> None:
    if type(status) is not int or not OK <= status <= RETRY:  # excludes booleans
        raise ValueError(f"{status!r} is not the status of an event")


_COUNTED = ("ok", "discarded", "rejected", "retried")
