"""The entity that a sink is.

Rule 1: each event that came in is settled here once, whatever the sink does: an answer after a timeout, a second
        answer, an answer for an event that never came are counted and change nothing.
Rule 2: while it isn't connected nothing is written. What is in its channels stays there. What waits for an answer
        when the connection is lost is given back.
Rule 3: its end comes after its last write: then it is flushed, and after each write that follows (what is tried again).
Rule 4: one that can't write, and has nothing to write, holds up no drain.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

from tidelog.flows.api.cancellation import from_outside
from tidelog.flows.api.connector import Deferred, Outcome, Sink
from tidelog.flows.api.errors import PeerGoneError, RejectError
from tidelog.flows.api.event import Event, EventPredicate
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.signals import DISCONNECTED, PAUSED, STARTING
from tidelog.flows.api.tokens import OK, REJECT, RETRY, TokenGroup, settle_all
from tidelog.flows.runtime.channel import EventChannel
from tidelog.flows.runtime.connection import ConnectorConnection
from tidelog.flows.runtime.node import FlowNode, fail
from tidelog.operating.errortexts import summary_of

SOON: Final = 1e-3  # s by which an answer may be given up early: not a timer for each

log = logging.getLogger("tidelog.flows")


class SinkNode(FlowNode):
    """Its connector does the writing."""

    kind = "sink"

    def __init__(
        self, name: str, sink: Sink, connection: ConnectorConnection, context: FlowContext, timeout: float | None = None
    ) -> None:
        super().__init__(name, context)
        self.sink = sink
        self.connection = connection
        self.timeout = timeout  # s that a write may take; None: for ever
        self.writing = 0  # calls of write
        self._whole: dict[int, list[Event]] = {}  # batches that are being written, by id(); no event of theirs answered
        self._single: dict[int, Event] = {}  # of batches that are being written, of which some are answered, by id()
        self._later: dict[int, tuple[float, Event]] = {}  # written, and not answered, by id(); since when, in order
        self._withdrawn: set[int] = set()  # id() of events of writes under way that were taken back
        self._overdue: asyncio.TimerHandle | None = None
        self.authoritative = True  # False: what becomes of an event here does not count
        self.paused = False
        self.error_text = ""  # of the last write that failed
        self.drained = asyncio.Event()  # DRAIN came, and everything was written
        self._drain_begun = False
        connection.on_change.append(self._changed)

    # -- connected, paused -----------------------------------------------------------------------------------
    def _changed(self) -> None:
        if self.connection.connected:
            self.restore(STARTING)
            self.restore(DISCONNECTED)
        else:
            if f"{STARTING}:{self.name}" not in self.standing:
                self.trigger(DISCONNECTED, self.connection.error)
            self._give_back(list(self._later), ConnectionError(self.connection.error or "disconnected"))
        self.wake()

    def trigger(self, kind: str, detail: str = "") -> None:
        if self.authoritative:  # nobody waits for one that isn't
            super().trigger(kind, detail)

    def lost(self, error: BaseException, connects: int | None = None) -> None:
        self.connection.lost(error, connects)

    def pause(self) -> None:
        """Write nothing until ``resume``: sources above stop, what is in the channels waits."""
        self.paused = True
        self.trigger(PAUSED)

    def resume(self) -> None:
        self.paused = False
        self.restore(PAUSED)
        self.wake()

    def forget(self) -> None:
        super().forget()
        for each in (self._whole, self._single, self._later):
            each.clear()

    def withdraw(self, wanted: EventPredicate) -> list[Event]:
        found = super().withdraw(wanted)
        for event in self.sink.withdraw(wanted):
            if self._take_out(event):
                self._withdrawn.add(id(event))  # the write keeps it, so the number is its own
                found.append(event)
        if found:
            self.wake()  # there may be nothing left to write before the end
        return found

    # -- writing ---------------------------------------------------------------------------------------------
    def ready(self) -> bool:
        return self.connection.connected and not self.paused and self.writing < self.sink.concurrency

    @property
    def under_way(self) -> int:
        """Events that are taken and not settled."""
        return sum(map(len, self._whole.values())) + len(self._single) + len(self._later)

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
        self._whole[id(events)] = events
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
                known = self._open(events)
                self.count("ok", len(known))
                settle_all(known)
            elif isinstance(outcomes, Deferred):
                self._put_off(events, connects)
            else:
                self._each(events, outcomes)
        except asyncio.CancelledError:
            if from_outside():
                raise
            self._failed(self._open(events), RETRY, RuntimeError("the write was cancelled from inside"))
        except Exception as error:  # noqa: BLE001 - the sink's own, or outcomes that are none: its events are not lost
            self._raised(events, error, connects)
        finally:
            if self._withdrawn:
                self._withdrawn.difference_update(map(id, events))

    def _raised(self, events: list[Event], error: Exception, connects: int) -> None:
        gone = isinstance(error, OSError)  # ConnectionError is one
        if isinstance(error, TimeoutError):
            gone = error.errno is not None  # the system's: it has given up the connection
            text = "no answer" if self.timeout is None else f"no answer within {self.timeout:g} s"
            error = TimeoutError(str(error) or text)
        self._failed(self._open(events), REJECT if isinstance(error, RejectError) else RETRY, error)
        if gone:
            self.lost(error, connects)
        elif isinstance(error, PeerGoneError):
            self.later(partial(fail, error))

    def _put_off(self, events: list[Event], connects: int) -> None:
        """The sink will answer. connects: how often it had been connected when the write began."""
        left = self._open(events)
        now = asyncio.get_running_loop().time()
        self._later.update((id(each), (now, each)) for each in left)
        if not self.connection.connected or self.connection.connects != connects:
            error = ConnectionError(self.connection.error or "disconnected")  # no answer will come
            self._give_back([id(each) for each in left], error)
        elif self.timeout is not None and self._later and self._overdue is None:
            self._overdue = self.after(self.timeout, partial(self._look_at_later, self.timeout))

    def _look_at_later(self, timeout: float) -> None:
        """One timer for all: one for each would keep what was answered."""
        self._overdue = None
        since = asyncio.get_running_loop().time() - timeout
        late = list(itertools.takewhile(lambda one: self._later[one][0] <= since + SOON, self._later))
        self._give_back(late, TimeoutError(f"no answer within {timeout:g} s"))
        if self._later:
            first, _ = next(iter(self._later.values()))
            self._overdue = self.after(first - since, partial(self._look_at_later, timeout))

    def _give_back(self, late: list[int], error: Exception) -> None:
        """What still waits for an answer."""
        left = [found[1] for each in late if (found := self._later.pop(each, None)) is not None]
        if left:
            self._failed(left, RETRY, error)

    def _open(self, events: list[Event]) -> list[Event]:
        """Those of a batch that are not settled. From now on they are not under way."""
        if self._whole.pop(id(events), None) is not None:
            return events
        return [each for each in events if self._single.pop(id(each), None) is not None]

    def _apart(self, events: list[Event]) -> None:
        """Its events are looked at one by one from now on."""
        if self._whole.pop(id(events), None) is not None:
            self._single.update((id(each), each) for each in events)

    def _take_out(self, event: Event) -> bool:
        """Whether it was under way. It isn't any more."""
        if self._later.pop(id(event), None) is not None:
            return True
        if id(event) not in self._single:
            for batch in list(self._whole.values()):  # as many as there are writes at a time
                if any(each is event for each in batch):
                    self._apart(batch)
                    break
        return self._single.pop(id(event), None) is not None

    def _each(self, events: list[Event], outcomes: Sequence[Outcome]) -> None:
        if len(outcomes) != len(events):
            text = f"{type(self.sink).__name__}.write returned {len(outcomes)} outcomes for {len(events)} events"
            self._failed(self._open(events), RETRY, ValueError(text))
            return
        self._apart(events)
        for event, outcome in zip(events, outcomes, strict=True):
            if id(event) in self._withdrawn:
                continue
            if isinstance(outcome, int):
                self.answer(event, outcome)
            elif outcome and isinstance(outcome[0], int):
                self.answer(event, outcome[0], str(outcome[1]))
            else:
                self._items(event, outcome)  # type: ignore[arg-type] # a pair was looked at before

    def _items(self, event: Event, outcomes: Sequence[tuple[int, str]]) -> None:
        worst = max(outcomes, default=(OK, ""))
        for status, _ in outcomes:
            _look_at(status)
        if not self._take_out(event):
            self.count("late_answers")
            return
        if isinstance(event.token, TokenGroup) and event.token.intact and len(event.token.members) == len(outcomes):
            for status, _ in outcomes:
                self.count(_COUNTED[status])
            event.token.settle_items(outcomes)
        elif event.token is not None:  # it is no longer made of what it was made of
            self.count(_COUNTED[worst[0]])
            event.token.settle(*worst)
        if worst[0] != OK:
            self.error_text = worst[1]

    def answer(self, event: Event, status: int, reason: str = "") -> bool:
        _look_at(status)
        if not self._take_out(event):
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
        """events: out of what is under way."""
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
        """An event that nobody waits for, in a flow without settlement."""
        if self.authoritative:
            self.context.given_up.add(self.name, reason, event.id, event.value)

    @property
    def connected_ports(self) -> Collection[str]:
        """Ports where something is connected."""
        return self.outputs.keys()

    def respond(self, events: list[Event], port: str) -> None:
        """From the sink's own tasks: what is sent out of the sink."""
        if self.outputs.get(port):
            self.emit(events, port)
            self.wake()
        else:
            settle_all(events)

    # -- drain -----------------------------------------------------------------------------------------------
    def on_drain(self) -> None:
        self.wake()  # it may be that nothing is written

    async def _drain(self) -> None:
        try:
            if self.connection.connected:
                await self.sink.flush()
        except Exception as error:  # noqa: BLE001 - what is unsettled says what became of it
            log.warning("%s: %s: flush: %s", self.context.flow, self.name, error)
        self.drained.set()
        self.later(lambda: FlowNode.on_drain(self))


def _look_at(status: object) -> None:
    if type(status) is not int or not OK <= status <= RETRY:  # true and false are none
        raise ValueError(f"{status!r} is no status of an event")


_COUNTED = ("ok", "discarded", "rejected", "retried")
