"""The entity of a source.

Rule 1: The source pulls and sends while its breaker is empty. A pull in progress is not cancelled when a reason is
        added: its events are kept, and sent when the breaker is empty again. So a pause loses nothing.
Rule 2: ``pause`` is in effect when it returns: there is no wait between the check of the breaker and the sending of a
        batch, and a batch is only sent if the channels have room for it.
Rule 3: At most ``max_unsettled`` events are in flight. At this number the reason ``window_full`` is added, which only
        stops pulls.
Rule 4: Retries wait for the breaker in the same way as new events, so an outage costs no attempts.
Rule 5: If the source waits for settlements, and all unsettled events are stored in operators that wait for more events
        (such as a batch larger than ``max_unsettled``), the operators are requested to release them (``gathering``).
Rule 6: After a reason that ended by time, the source starts slowly (``SlowStart``).
Rule 7: ``halt`` of a source that owns its policy ends the flow after the pull and the call of ``settled`` in progress,
        HALTING seconds at most. ``settled`` returns the failed entry to the server. If the flow ended first, it would
        cancel a pull that has just received this entry again, and the entry would be redelivered only when its retry
        time is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Set
from functools import partial
from typing import Final

from tidelog.flows.api.breaker import BreakerReason
from tidelog.flows.api.cancellation import from_outside
from tidelog.flows.api.connector import Source
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.errors import FlowError
from tidelog.flows.api.event import BATCH, Event
from tidelog.flows.api.flowcontext import FlowContext, now
from tidelog.flows.api.gathering import GatheredRelease
from tidelog.flows.api.signals import DISCONNECTED, PAUSED, WINDOW_FULL, Restore, Signal, Trigger
from tidelog.flows.api.tokens import OK, STATUSES, Token
from tidelog.flows.runtime.channel import EventChannel
from tidelog.flows.runtime.connection import ConnectorConnection
from tidelog.flows.runtime.failedevents import FailedEvents
from tidelog.flows.runtime.node import FlowNode, fail
from tidelog.flows.runtime.retries import RetryQueue
from tidelog.flows.runtime.settlement import SettlementReporter
from tidelog.flows.runtime.sourcebreaker import SourceBreaker
from tidelog.flows.runtime.sourcesender import SourceSender
from tidelog.flows.runtime.sourcestatus import SourceStatus
from tidelog.flows.runtime.sourcewindow import SourceWindow
from tidelog.transport.backoff import Backoff

HALTING: Final = 2.0  # s

log = logging.getLogger("tidelog.flows")


class SourceNode(FlowNode):
    """Pulls events from its connector, sends them, and reports their settlement to the connector."""

    kind = "source"

    def __init__(
        self, name: str, source: Source, connection: ConnectorConnection, context: FlowContext,
        options: ConnectorOptions, *, settles: bool,
    ) -> None:  # fmt: skip
        super().__init__(name, context)
        self.source = source
        self.connection = connection
        self.settles = settles  # settlement is reported to the source; False: events have no tokens
        self.exhausted = False  # the connector will return no further events
        self.finished = asyncio.Event()  # DRAIN was sent
        policy = options.on_error
        retried = source.remembers and not source.owns_policy  # by the runtime
        copies = retried or (context.dead_letters is not None and not source.owns_policy)
        self.breaker = SourceBreaker(name, context.version)
        self.window = SourceWindow(source, options.max_unsettled, settles=settles, debug=context.debug)
        self.retries = RetryQueue(policy.retry.backoff if policy.retry else Backoff(), context.random.random)
        self._sender = SourceSender(self, self.window, settles=settles, copies=copies)
        self._settlement = SettlementReporter(
            self, source, connection, self.retries,
            copies=copies, skip=policy.action == "skip", reported=self._reported,
        )  # fmt: skip
        self._failed = FailedEvents(
            self, policy, self.retries, self._settlement, retried=retried, escalate=self.escalate, due=self._poke
        )
        self._status = SourceStatus(self, connection, self.breaker, self.window, self.retries, self._settlement)
        self._release = GatheredRelease(lambda: self, "max_unsettled", lambda: self.window.waits, self._stuck_on)
        self._stopping = False
        self._halt: FlowError | None = None  # ends the flow when the source is idle
        self._pulled: list[Event] = []  # not sent yet
        self._pulling = False
        self._pump_waiter: asyncio.Future[None] | None = None
        connection.on_change.append(self._connection_changed)

    def begin(self) -> None:
        self._status.started = now()
        self.breaker.begin(now())
        self.spawn(self._pump())
        self.spawn(self._settlement.run())

    def step(self) -> bool:
        if super().step():
            return True
        self._poke()  # a channel may have room again
        return False

    # -- flow control ----------------------------------------------------------------------------------------
    def on_breaker(self, message: Trigger | Restore, channel: EventChannel) -> None:  # noqa: ARG002 - all are equal
        if isinstance(message, Trigger):
            if self.breaker.trigger(message, now()):
                self.count(f"breaker_{message.reason.partition(':')[0]}")
        elif self.breaker.restore(message):
            if message.probe and self.settles:
                self.window.slow_start.begin()
            self._poke()

    def pause(self, owner: str) -> None:
        """Add the reason PAUSED. ``owner``: ``api`` for the flow, or the connector's name. Each resumes its own."""
        self.breaker.set(PAUSED, True, owner)
        self.source.interrupt()
        self._poke()
        self.context.changed()  # a drain may only wait for this

    def resume(self, owner: str) -> None:
        if self.breaker.set(PAUSED, False, owner):
            self._poke()

    def escalate(self, action: str, reason: str) -> None:
        """Perform the action ``pause`` or ``halt`` of ``on_error``."""
        if self._halt is not None:
            return
        log.error("%s: %s: on_error: %s: %s", self.context.flow, self.name, action, reason)
        if action != "halt":
            self.pause(self.name)
            return
        error = FlowError(f"on_error: halt: {reason}")
        if self.source.owns_policy:  # Rule 7
            self._halt = error
            self.pause(self.name)
            self.after(HALTING, partial(fail, error))
        else:
            self.later(partial(fail, error))

    def _halt_if_idle(self) -> None:
        if self._halt is not None and not self._pulling and not self._settlement.reporting:
            self.later(partial(fail, self._halt))

    @property
    def accepting(self) -> bool:
        """Whether a new event would be sent soon: the breaker is empty, and the flow does not drain."""
        return not (self._stopping or self._ended or self.breaker.blocked)

    def _connection_changed(self) -> None:
        connection = self.connection
        if connection.connected:
            self._settlement.reconnected.set()
        self.breaker.set(DISCONNECTED, not connection.connected, detail=connection.error)
        if connection.failed and not self.exhausted:
            self.error = ConnectionError(connection.error)
        self._poke()
        self.context.changed()

    def lost(self, error: BaseException, connects: int | None = None) -> None:
        self.connection.lost(error, connects)

    def room_changed(self) -> None:
        self._poke()

    # -- pulling and sending ---------------------------------------------------------------------------------
    async def _pump(self) -> None:
        while not self._stopping or (self.source.backlog and not self._stuck):
            if self._send_waiting():
                await asyncio.sleep(0)
                continue
            limit = self._limit()
            if not limit:
                if self._status.idle is None:
                    self._status.idle = now()
                self._release.watch()
                await self._until_poked()
                continue
            self._status.idle = None
            events = await self._pull(limit)
            if events is None:
                self.exhausted = True
                break
            if events:
                self._pulled = events
                del events  # otherwise they would live until the next pull returns
                self._send_waiting()
            await asyncio.sleep(0)
        while self._pulled and not self._stuck:
            if not self._send_waiting():
                await self._until_poked()
        self.later(self._finish)
        while not self._ended:  # only retries
            if not self._send_waiting():
                await self._until_poked()

    def _limit(self) -> int:
        """Return the number of events to pull now; 0: none."""
        room, breaker = self.window.room, self.breaker
        if (room <= 0) is not (breaker.full in breaker):
            breaker.set(WINDOW_FULL, room <= 0)
        if room <= 0 or self._pulled or breaker.blocked or not self.connection.connected or not self._has_room():
            return 0
        return min(room, self.window.slow_start.room(now()), BATCH)

    async def _pull(self, limit: int) -> list[Event] | None:
        connects = self.connection.connects
        self._pulling = True
        try:
            return await self.source.pull(limit)
        except OSError as error:
            self.lost(error, connects)
        except asyncio.CancelledError:
            if from_outside():
                raise
            self.lost(ConnectionError("a pull was cancelled from inside"), connects)
        finally:
            self._pulling = False
            self._halt_if_idle()
        return []

    def _has_room(self) -> bool:
        """Return whether a batch can be sent on any port now."""
        if self._held:
            return False
        for channels in self.outputs.values():
            for each in channels:
                if each.authoritative and each.full:
                    return False
        return True

    def _send_waiting(self) -> bool:
        """Send a batch of retries or pulled events, if this is permitted. Return whether events were sent."""
        if not (self.retries.due or self._pulled) or self.breaker.blocked or not self._has_room():
            return False
        room = self.window.slow_start.room(now())
        if not room:
            return False
        self._status.idle = None
        if self.retries.due:
            self._sender.send_again(self.retries.take(room))
        else:
            events = self._pulled
            self._pulled = events[room:] if len(events) > room else []
            self._sender.send(events[:room] if len(events) > room else events)
        return True

    def _stuck_on(self, gathered: Mapping[int, Token]) -> Set[int]:
        """Return the gathered tokens if the source only waits for them."""
        stuck = not self.breaker.blocked and self.window.waits_only_for(gathered.keys())
        return gathered.keys() if stuck else frozenset()

    async def _until_poked(self) -> None:
        self._pump_waiter = asyncio.get_running_loop().create_future()
        await self._pump_waiter

    def _poke(self) -> None:
        waiter, self._pump_waiter = self._pump_waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        elif self._pulling and self._send_waiting():  # the pump is waiting for new events
            self.later(self._poke)

    # -- settlement ------------------------------------------------------------------------------------------
    def on_settled(self, tokens: list[Token]) -> None:
        others = [each for each in tokens if each.status]  # not OK
        if len(others) < len(tokens):
            self.count(STATUSES[OK], len(tokens) - len(others))
        if not others or self.source.owns_policy:
            self._settlement.add(tokens)
            for token in others:
                self.count(STATUSES[token.status])
        else:
            self._settlement.add([each for each in tokens if each.status == OK])
            self._failed.apply(others)
        self.window.latencies.settled(now())
        rest = self.window.slow_start.settled(now())
        if rest:
            self.after(rest, self._poke)
        self._settlement.changed.set()
        self.window.in_flight.settled(tokens)
        if others and self.draining:
            self.context.changed()

    def _reported(self, count: int) -> None:
        self.window.reported(count)
        self._halt_if_idle()
        self._poke()
        self.context.changed()

    # -- observation -----------------------------------------------------------------------------------------
    def reasons(self) -> tuple[BreakerReason, ...]:
        """Return why nothing is sent."""
        return self._status.reasons(drains=self._stopping)

    def oldest(self) -> float | None:
        """Return the age in seconds of the oldest event that is in flight or waits for a retry."""
        return self._status.oldest()

    @property
    def unsettled(self) -> int:
        """The number of events that were sent or wait for a retry, and whose settlement was not reported."""
        return self.window.unsettled

    @property
    def kept(self) -> int:
        """The number of events that were pulled and not sent."""
        return len(self._pulled)

    def latencies(self) -> list[float]:
        """Return the times in seconds from sending to settlement of some events, since the last call."""
        return self.window.latencies.take()

    # -- the end ---------------------------------------------------------------------------------------------
    def forget(self) -> None:
        super().forget()
        self._pulled = []
        self.window.forget()
        self.retries.clear()
        self._settlement.clear()

    def drain(self) -> None:
        """Stop pulling. The caller waits for the events in flight."""
        self._stopping = True
        self.source.interrupt()
        self._poke()

    def _finish(self) -> None:
        self.emit_signal(Signal.DRAIN)
        self.draining = True
        self.finished.set()
        self.context.changed()

    @property
    def ended(self) -> bool:
        """Whether the flow has ended, so that no event will be settled any more."""
        return self._ended

    @property
    def at_rest(self) -> bool:
        """Whether no events are in flight and none will be sent. Retries of a source that is stuck do not count."""
        if not self.finished.is_set():
            return False
        waiting = self.retries.waiting if self._stuck else 0
        return self.unsettled == waiting + self.retries.withheld

    @property
    def _stuck(self) -> bool:
        """Whether no event will be sent any more: the connector has failed, or a paused source drains."""
        return self.connection.failed or (self.breaker.paused and self.context.draining)
