"""The entity that a sink is.

Rule 1: each event that came in is settled here once, whatever the sink does: an answer after a timeout, a second answer,
        an answer for an event that never came are counted and change nothing.
Rule 2: while it isn't connected nothing is written. What is in its channels stays there, what was under way is given back.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence

from tidelog.flows.connectors.base import Later, Outcome, Sink
from tidelog.flows.errors import RejectError
from tidelog.flows.event import Event
from tidelog.flows.runtime.channel import Channel
from tidelog.flows.runtime.connecting import Connection
from tidelog.flows.runtime.node import Node
from tidelog.flows.runtime.signals import DISCONNECTED, PAUSED, STARTING
from tidelog.flows.runtime.surroundings import Surroundings
from tidelog.flows.tokens import OK, REJECT, RETRY, Group, settle_all

log = logging.getLogger("tidelog.flows")


class SinkNode(Node):
    kind = "sink"

    def __init__(
        self, name: str, sink: Sink, connection: Connection, around: Surroundings, timeout: float | None = None
    ) -> None:
        super().__init__(name, around)
        self.sink = sink
        self.connection = connection
        self.timeout = timeout  # s that a write may take; None: for ever
        self.writing = 0  # calls of write
        self.under_way: dict[int, Event] = {}  # by id(): taken and not settled
        self.authoritative = True  # False: what becomes of an event here does not count
        self.paused = False
        self.error_text = ""  # of the last write that failed
        self.drained = asyncio.Event()  # DRAIN came, and everything was written
        self._started = False
        connection.on_change.append(self._changed)

    # -- connected, paused -----------------------------------------------------------------------------------
    def _changed(self) -> None:
        if self.connection.connected:
            self.restore(STARTING)
            self.restore(DISCONNECTED)
        elif f"{STARTING}:{self.name}" not in self.standing and self.authoritative:
            self.trigger(DISCONNECTED, self.connection.error)
        self.wake()

    def lost(self, error: BaseException) -> None:
        self.connection.lost(error)

    def pause(self) -> None:
        """Write nothing until ``resume``: sources above stop, what is in the channels waits."""
        self.paused = True
        self.trigger(PAUSED)

    def resume(self) -> None:
        self.paused = False
        self.restore(PAUSED)
        self.wake()

    # -- writing ---------------------------------------------------------------------------------------------
    def ready(self) -> bool:
        return self.connection.connected and not self.paused and self.writing < self.sink.concurrency

    def on_batch(self, events: list[Event], channel: Channel) -> None:
        self.count("in", len(events))
        self.writing += 1
        self.under_way.update((id(each), each) for each in events)
        self.spawn(self._write(events))

    async def _write(self, events: list[Event]) -> None:
        try:
            try:
                if self.timeout is None:
                    outcomes = await self.sink.write(events)
                else:
                    async with asyncio.timeout(self.timeout):
                        outcomes = await self.sink.write(events)
            finally:
                self.writing -= 1
                self.wake()
        except RejectError as error:
            self._failed(events, REJECT, error)
        except TimeoutError as error:
            self._failed(events, RETRY, error if str(error) else TimeoutError(f"no answer within {self.timeout:g} s"))
        except OSError as error:  # ConnectionError is one
            self._failed(events, RETRY, error)
            self.lost(error)
        except Exception as error:  # noqa: BLE001 - the sink's own: its events are not lost
            self._failed(events, RETRY, error)
        else:
            if outcomes is None:
                self._all(events)
            elif not isinstance(outcomes, Later):
                self._each(events, outcomes)

    def _all(self, events: list[Event]) -> None:
        under_way = self.under_way
        known = [each for each in events if under_way.pop(id(each), None) is not None]
        self.count("ok", len(known))
        settle_all(known)

    def _each(self, events: list[Event], outcomes: Sequence[Outcome]) -> None:
        if len(outcomes) != len(events):
            error = ValueError(f"{type(self.sink).__name__}.write returned {len(outcomes)} outcomes for {len(events)} events")
            self._failed(events, RETRY, error)
            return
        for event, outcome in zip(events, outcomes, strict=True):
            if isinstance(outcome, int):
                self.answer(event, outcome)
            elif outcome and isinstance(outcome[0], int):
                self.answer(event, outcome[0], str(outcome[1]))
            elif self.under_way.pop(id(event), None) is not None:
                self._items(event, outcome)  # type: ignore[arg-type] # a pair was looked at before

    def _items(self, event: Event, outcomes: Sequence[tuple[int, str]]) -> None:
        worst = max(outcomes, default=(OK, ""))
        if isinstance(event.token, Group) and event.token.pending == 1 and len(event.token.members) == len(outcomes):
            for status, _ in outcomes:
                self.count(_COUNTED[status])
            event.token.settle_items(outcomes)
        elif event.token is not None:  # it is no longer made of what it was made of
            self.count(_COUNTED[worst[0]])
            event.token.settle(*worst)
        if worst[0] != OK:
            self.error_text = worst[1]

    def answer(self, event: Event, status: int, reason: str = "") -> bool:
        if self.under_way.pop(id(event), None) is None:
            self.count("late_answers")
            return False
        self.count(_COUNTED[status])
        if status != OK and reason:
            self.error_text = reason
        if event.token is not None:
            event.token.settle(status, f"{self.name}: {reason}" if reason else "")
        self.wake()
        return True

    def _failed(self, events: list[Event], status: int, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if text != self.error_text and not isinstance(error, (OSError, RejectError)):
            log.warning("%s: %s: %s", self.around.flow, self.name, text, exc_info=error)
        self.error_text = text
        known = [each for each in events if self.under_way.pop(id(each), None) is not None]
        self.count(_COUNTED[status], len(known))
        settle_all(known, status, f"{self.name}: {text}")

    def respond(self, events: list[Event], port: str) -> None:
        """From the sink's own tasks: what is sent out of the sink."""
        if self.outputs.get(port):
            self.emit(events, port)
            self.wake()
        else:
            settle_all(events)

    # -- drain -----------------------------------------------------------------------------------------------
    def on_drain(self) -> None:
        self.spawn(self._drain())

    async def _drain(self) -> None:
        try:
            await self.sink.flush()
        except Exception as error:  # noqa: BLE001 - what is unsettled says what became of it
            log.warning("%s: %s: flush: %s", self.around.flow, self.name, error)
        self.drained.set()
        self.later(lambda: Node.on_drain(self))


_COUNTED = ("ok", "discarded", "rejected", "retried")
