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
Rule 6: After a reason that ended by time, the source starts slowly (``slowstart``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tidelog.flows.api.breaker import Breaker, BreakerReason
from tidelog.flows.api.cancellation import from_outside
from tidelog.flows.api.connector import Source
from tidelog.flows.api.connectoroptions import SourceErrorPolicy, SourceRetryOptions
from tidelog.flows.api.errors import FlowError
from tidelog.flows.api.event import BATCH, Event
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.signals import (
    CHANNEL_FULL,
    DISCONNECTED,
    FAILED,
    PAUSED,
    PROBING,
    STARTING,
    WINDOW_FULL,
    Restore,
    Signal,
    Trigger,
)
from tidelog.flows.api.tokens import DISCARD, OK, REJECT, STATUSES, Token, WatchedToken, WeakToken, Withheld
from tidelog.flows.runtime.channel import EventChannel
from tidelog.flows.runtime.connection import ConnectorConnection
from tidelog.flows.runtime.gathering import GatheredRelease
from tidelog.flows.runtime.inflight import InFlight
from tidelog.flows.runtime.node import FlowNode, fail
from tidelog.flows.runtime.retries import RetryQueue
from tidelog.flows.runtime.settlement import SettlementReporter
from tidelog.flows.runtime.slowstart import SlowStart
from tidelog.transport.backoff import Backoff

log = logging.getLogger("tidelog.flows")

MOMENT: Final = 1.0  # s after which a source that sends nothing reports a reason for it


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a connector that apply to its source."""

    max_unsettled: int = 10_000
    on_error: SourceErrorPolicy = field(default_factory=lambda: SourceErrorPolicy(SourceRetryOptions()))
    settle: bool = True  # False: events have no tokens


class SourceNode(FlowNode):
    """Pulls events from its connector, sends them, and reports their settlement to the connector."""

    kind = "source"

    def __init__(
        self, name: str, source: Source, connection: ConnectorConnection, context: FlowContext, options: SourceOptions
    ) -> None:
        super().__init__(name, context)
        self.source = source
        self.connection = connection
        self.options = options
        self.breaker = Breaker()
        self.unsettled = 0  # events that were sent or wait for a retry, and whose settlement was not reported
        self.exhausted = False  # the connector will return no further events
        self.finished = asyncio.Event()  # DRAIN was sent
        policy = options.on_error
        self._token = WatchedToken if context.debug else Token
        self._retried = source.remembers and not source.owns_policy  # by the runtime
        # whether the keys of tokens are copies of events, for retries or for dead letters
        self._copies = self._retried or (context.dead_letters is not None and not source.owns_policy)
        self._full = f"{WINDOW_FULL}:{name}"
        self._unreadable = f"{name}.err"  # the path of events that the codec could not read
        self._pulled: list[Event] = []  # not sent yet
        self.in_flight = InFlight()
        self._retries = RetryQueue(policy.retry.backoff if policy.retry else Backoff(), context.random.random)
        self._settlement = SettlementReporter(
            self, source, connection, self._retries,
            copies=self._copies, skip=policy.action == "skip", reported=self._reported,
        )  # fmt: skip
        self._release = GatheredRelease(self, self._waits_for_settlement, self._stuck_on)
        self._slow_start = SlowStart()
        self._started = 0.0  # event loop time
        self._stopping = False
        self._pump_waiter: asyncio.Future[None] | None = None
        self._pulling = False
        self._idle: float | None = None  # event loop time since which nothing could be pulled or sent
        connection.on_change.append(self._connection_changed)

    def begin(self) -> None:
        self._started = self._now()
        self.breaker.begin(self._started)
        self.spawn(self._pump())
        self.spawn(self._settlement.run())

    def step(self) -> bool:
        if super().step():
            return True
        self._poke()  # a channel may have room again
        return False

    # -- the breaker -----------------------------------------------------------------------------------------
    def on_breaker(self, message: Trigger | Restore, channel: EventChannel) -> None:  # noqa: ARG002 - all are equal
        if isinstance(message, Trigger):
            if self.breaker.trigger(message, self._now()):
                self.count(f"breaker_{message.reason.partition(':')[0]}")
        elif self.breaker.restore(message):
            if message.probe and self.options.settle:
                self._slow_start.begin()
            self._poke()

    def pause(self, owner: str) -> None:
        """Add the reason PAUSED. ``owner``: ``api`` for the flow, or the connector's name. Each resumes its own."""
        self._set_reason(PAUSED, True, owner)
        self.source.interrupt()
        self._poke()
        self.context.changed()  # a drain may only wait for this

    def resume(self, owner: str) -> None:
        self._set_reason(PAUSED, False, owner)

    def escalate(self, action: str, reason: str) -> None:
        """Perform the action ``pause`` or ``halt`` of ``on_error``."""
        log.error("%s: %s: on_error: %s: %s", self.context.flow, self.name, action, reason)
        if action == "halt":
            self.later(partial(fail, FlowError(f"on_error: halt: {reason}")))
        else:
            self.pause(self.name)

    @property
    def paused(self) -> bool:
        return any(each.reason.startswith(PAUSED) for each in self.breaker.reasons)

    def _set_reason(self, kind: str, active: bool, owner: str = "", detail: str = "") -> None:
        """Add or remove a reason of this source."""
        reason = f"{kind}:{owner or self.name}"
        if active:
            self.breaker.trigger(Trigger(reason, self.context.version(), detail), self._now())
        elif self.breaker.restore(Restore(reason, self.context.version())):
            self._poke()

    def _blocked(self) -> bool:
        """Return whether no event may be sent, neither new ones nor retries."""
        active = len(self.breaker)
        return active > 1 or (active == 1 and self._full not in self.breaker)

    def reasons(self) -> tuple[BreakerReason, ...]:
        """Why nothing is sent: the reasons of the breaker, and those for which no entity has sent a message.

        Reasons of the second kind are omitted for a short time, because a channel is often full for a moment.
        """
        found = list(self.breaker.reasons)
        name, connection = self.name, self.connection
        if not connection.connects and not connection.failed and not self._stopping:
            found.append(BreakerReason(f"{STARTING}:{name}", self._started, connection.error or "not connected yet"))
        if connection.failed:
            found = [each for each in found if each.reason != f"{DISCONNECTED}:{name}"]
            found.append(BreakerReason(f"{FAILED}:{name}", 0.0, connection.error))
        if not found and self._idle is not None and not self.exhausted and self._now() - self._idle > MOMENT:
            found += self._idle_reasons(self._idle)
        return tuple(each._replace(detail=self._why_full()) if each.reason == self._full else each for each in found)

    def _idle_reasons(self, since: float) -> Iterable[BreakerReason]:
        if self.options.settle and self._window() <= 0:
            yield BreakerReason(self._full, since, "")
        elif self._has_room():
            if awaited := len(self._slow_start.awaited()):
                detail = f"few events are sent first after a pause: {awaited} of them are not settled"
                yield BreakerReason(f"{PROBING}:{self.name}", since, detail)
        else:
            for each in (each for channels in self.outputs.values() for each in channels):
                if each.authoritative and each.full:
                    detail = f"{each.events} events wait in its channel"
                    yield BreakerReason(f"{CHANNEL_FULL}:{each.consumer.name}", since, detail)

    def _why_full(self) -> str:
        room, most = self.source.room, self.options.max_unsettled
        if self.unsettled < most and room is not None and room <= 0:
            return f"{most:,} events follow the first one that is not settled"
        waiting = self._retries.waiting
        text = f"{self.unsettled:,} events are not settled, max_unsettled is {most:,}"
        return f"{text}; {waiting:,} of them wait for a retry" if waiting else text

    @property
    def accepting(self) -> bool:
        """Whether a new event would be sent soon: the breaker is empty, and the flow does not drain."""
        return not (self._stopping or self._ended or self._blocked())

    @property
    def ended(self) -> bool:
        """Whether the flow has ended, so that no event will be settled any more."""
        return self._ended

    @property
    def settles(self) -> bool:
        """Whether settlement is reported to the source."""
        return self.options.settle

    @property
    def connected_ports(self) -> Collection[str]:
        return self.outputs.keys()

    def _connection_changed(self) -> None:
        connection = self.connection
        if connection.connected:
            self._settlement.reconnected.set()
        self._set_reason(DISCONNECTED, not connection.connected, detail=connection.error)
        if connection.failed and not self.exhausted:
            self.error = ConnectionError(connection.error)
        self._poke()
        self.context.changed()

    def lost(self, error: BaseException, connects: int | None = None) -> None:
        self.connection.lost(error, connects)

    # -- pulling ---------------------------------------------------------------------------------------------
    def _limit(self) -> int:
        """Return the number of events to pull now; 0: none."""
        room = self._window() if self.options.settle else BATCH
        if (room <= 0) is not (self._full in self.breaker):
            self._set_reason(WINDOW_FULL, room <= 0)
        if room <= 0 or self._pulled or self._blocked() or not self.connection.connected or not self._has_room():
            return 0
        return min(room, self._slow_start.room(self._now()), BATCH)

    def _window(self) -> int:
        """Return the number of events that may be sent before others are settled."""
        room = self.options.max_unsettled - self.unsettled
        more = self.source.room
        return room if more is None else min(room, more)

    def room_changed(self) -> None:
        self._poke()

    async def _pump(self) -> None:
        while not self._stopping or (self.source.backlog and not self._stuck):
            if self._send_waiting():
                await asyncio.sleep(0)
                continue
            limit = self._limit()
            if not limit:
                if self._idle is None:
                    self._idle = self._now()
                self._release.watch()
                await self._until_poked()
                continue
            self._idle = None
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

    # -- sending ---------------------------------------------------------------------------------------------
    def _send_waiting(self) -> bool:
        """Send a batch of retries or pulled events, if this is permitted. Return whether events were sent."""
        if not (self._retries.due or self._pulled) or self._blocked() or not self._has_room():
            return False
        room = self._slow_start.room(self._now())
        if not room:
            return False
        self._idle = None
        if self._retries.due:
            self._send_again(self._retries.take(room))
        else:
            events = self._pulled
            self._pulled = events[room:] if len(events) > room else []
            self._send_new(events[:room] if len(events) > room else events)
        return True

    def _send_new(self, events: list[Event]) -> None:
        now_ns = self.context.now_ns()
        path = f"{self.name}.out"
        self.count("out", len(events))
        bad = False
        for event in events:
            if not event.ingest_ns:
                event.ingest_ns = now_ns
            if not event.path:
                event.path = path
            elif event.path == "err":
                event.path = self._unreadable
                bad = True
        if self.options.settle:
            since = self._now()
            make, copies = self._token, self._copies
            tokens: list[Token] = []
            for event in events:
                event.token = token = make(self, event.remembered() if copies else event.id)
                tokens.append(token)
            self._track(since, tokens)
            self.unsettled += len(tokens)
        if bad:
            self._send_unreadable(events)
        else:
            self.emit(events)

    def _track(self, since: float, tokens: list[Token]) -> None:
        tracked = [WeakToken(each) for each in tokens] if self.debug else tokens
        self._slow_start.sent(tracked)
        self.in_flight.add(since, tracked)
        self.in_flight.forget()

    def _send_unreadable(self, events: list[Event]) -> None:
        """Send events, some of which the codec could not read (path "err")."""
        bad = [each for each in events if each.path == self._unreadable]
        self.emit([each for each in events if each.path != self._unreadable])
        self.count("unreadable", len(bad))
        if self.outputs.get("err"):
            self.emit(bad, "err")
            return
        for event in bad:
            reason = str(event.meta.get("error", ""))
            if event.token is not None:
                event.token.settle(REJECT, reason)
            else:
                self.context.given_up.add(self.name, reason, event.id, event.value)

    def _send_again(self, copies: list[Event]) -> None:
        self.count("again", len(copies))
        since = self._now()
        events = []
        tokens = []
        for each in copies:
            each.attempt += 1
            event = each.remembered()
            event.token = token = self._token(self, each)
            tokens.append(token)
            events.append(event)
        self._track(since, tokens)
        bad = [each for each in events if each.path == self._unreadable]
        if bad:
            events = [each for each in events if each.path != self._unreadable]
            self.emit(bad, "err")
        self.emit(events)

    def _waits_for_settlement(self) -> bool:
        """Return whether nothing is read until events are settled."""
        return self.options.settle and (self._window() <= 0 or bool(self._slow_start.awaited()))

    def _stuck_on(self, gathered: set[int]) -> bool:
        """Return whether the source only waits for the tokens with these id()."""
        if self._blocked():
            return False
        awaited = self._slow_start.awaited()
        full = self._window() <= 0
        return (full and len(gathered) >= self.unsettled) or (bool(awaited) and awaited <= gathered)

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
            self._apply_policy(others)
        rest = self._slow_start.settled(self._now())
        if rest:
            self.after(rest, self._poke)
        self._settlement.changed.set()
        self.in_flight.forget()
        if others and self.draining:
            self.context.changed()

    def _apply_policy(self, tokens: list[Token]) -> None:
        """Apply ``on_error`` to tokens with a status other than OK."""
        policy = self.options.on_error
        most = policy.max_attempts
        retried: list[Event] = []
        for token in tokens:
            self.count(STATUSES[token.status])
            if token.status == DISCARD:
                self._settlement.add((token,))
            elif not self._retried:
                self.count("dropped")
                self._settlement.fail(token)
            elif isinstance(token.reason, Withheld):
                self._retries.withheld += 1
            elif token.status != REJECT and (most is None or token.key.attempt < most):
                retried.append(token.key)
            elif policy.action in ("pause", "halt"):
                self._retries.due.append(token.key)
                self.escalate(policy.action, f"{token.key.id!r}: {token.reason}")
            else:
                self._settlement.fail(token)
        for delay, events in self._retries.add(retried, self._arrival):
            self.after(delay, partial(self._retry, events))

    def _arrival(self, event: Event) -> float:
        """Return the event loop time at which an event arrived."""
        return self._now() - max(0, self.context.now_ns() - event.ingest_ns) / 1e9

    def _retry(self, events: list[Event]) -> None:
        self._retries.ready(events)
        self._poke()

    def _reported(self, count: int) -> None:
        self.unsettled -= count
        self._poke()
        self.context.changed()

    def oldest(self) -> float | None:
        """Return the age in seconds of the oldest event that is in flight or waits for a retry."""
        if not self.unsettled:
            return None
        sent, failing = self.in_flight.oldest(), self._settlement.failing_since
        known = [each for each in (sent, failing) if each is not None]
        known += self._retries.oldest()
        return max(0.0, self._now() - min(known, default=self._now()))

    # -- the end ---------------------------------------------------------------------------------------------
    def forget(self) -> None:
        super().forget()
        self._pulled = []
        self.in_flight = InFlight()
        self._slow_start = SlowStart()
        self._retries.clear()
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
    def at_rest(self) -> bool:
        """Whether no events are in flight and none will be sent. Retries of a source that is stuck do not count."""
        if not self.finished.is_set():
            return False
        waiting = self._retries.waiting if self._stuck else 0
        return self.unsettled == waiting + self._retries.withheld

    @property
    def _stuck(self) -> bool:
        """Whether no event will be sent any more: the connector has failed, or a paused source drains."""
        return self.connection.failed or (self.paused and self.context.draining)

    @property
    def kept(self) -> int:
        """The number of events that were pulled and not sent."""
        return len(self._pulled)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
