"""The entity that a source is.

Rule 1: it pulls, and sends, while its breaker is empty. A pull under way is not cancelled when that changes: what it
        brings is kept, and sent when the breaker is empty again.
Rule 2: ``pause`` is in force when it returns: there is nothing between the look at the breaker and the sending, and
        what is sent has room in the channels, so nothing is held back on its way out.
Rule 3: at most ``max_unsettled`` events are under way. When that many are, ``window_full`` stands; it holds up pulls
        only.
Rule 4: what is tried again waits for the breaker as what is new does, so an outage costs no attempts.
Rule 5: where it reads nothing more until something is settled, and operators keep all that is unsettled until more
        comes (a batch larger than ``max_unsettled``), they are told to send it on.
Rule 6: after a reason that ended by time the source begins slowly (``ramp.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidelog.flows.api.breaker import Breaker, BreakerReason
from tidelog.flows.api.cancellation import from_outside
from tidelog.flows.api.connector import Source
from tidelog.flows.api.event import BATCH, Event
from tidelog.flows.api.flowcontext import FlowContext, Gatherer
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
from tidelog.flows.runtime.inflight import InFlight
from tidelog.flows.runtime.node import FlowNode
from tidelog.flows.runtime.slowstart import SlowStart

log = logging.getLogger("tidelog.flows")

AGAIN: Final = 1.0  # s until tokens are handed again to a ``settled`` that failed; grows to AGAIN_MOST
AGAIN_MOST: Final = 30.0  # s
MOMENT: Final = 1.0  # s for which nothing may be sent without a reason that is told
GATHERED: Final = 0.05  # s until it is looked whether all that is unsettled waits for more; grows to GATHERED_MOST
GATHERED_MOST: Final = 1.0  # s


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of connectors that mean sources."""

    max_unsettled: int = 10_000  # events under way
    max_deliveries: int | None = None  # tries of one event; None: for ever
    retry_delay: float = 0.1  # s before the second try; then twice as long each time
    retry_delay_most: float = 30.0
    settle: bool = True  # False: events have no tokens


class SourceNode(FlowNode):
    """Its connector does the reading."""

    kind = "source"

    def __init__(
        self, name: str, source: Source, connection: ConnectorConnection, context: FlowContext, options: SourceOptions
    ) -> None:
        super().__init__(name, context)
        self.source = source
        self.connection = connection
        self.options = options
        self.breaker = Breaker()
        self.unsettled = 0  # events that were sent, or wait to be sent again, and that the source has not been told of
        self.ended = False  # there will never be an event again
        self.finished = asyncio.Event()  # DRAIN was sent
        self._token = WatchedToken if context.debug else Token
        self._counts_tokens = options.settle
        self._remembers = source.remembers and not source.owns_policy
        self._keeps = self._remembers or (context.letters is not None and not source.owns_policy)  # a copy, for letters
        self._full = f"{WINDOW_FULL}:{name}"
        self._unreadable = f"{name}.err"  # the path of events that the codec could not read
        self._pulled: list[Event] = []  # brought by a pull, and not sent
        self._again: deque[Event] = deque()  # due to be sent again
        self._waiting = 0  # events whose delay runs
        self._failed: dict[int, float] = {}  # of events that were tried and are not settled, by id(): the first try
        self._untold: float | None = None  # s of the loop's clock: since when the source can't be told what is settled
        self._withheld: list[Token] = []  # given back by a drain; not sent again
        self._sent = InFlight()
        self._settled: list[Token] = []  # for Source.settled
        self._letters: list[Token] = []  # for the dead letters
        self._settler: asyncio.Event = asyncio.Event()
        self._began = 0.0  # s of the loop's clock: when the flow started
        self._connected: asyncio.Event = asyncio.Event()  # the connection came again
        self._ramp = SlowStart()
        self._stopping = False
        self._pump_waiter: asyncio.Future[None] | None = None
        self._pulling = False
        self._looking = 0.0  # s until the next look at what is gathered; 0: none is to come
        self._idle: float | None = None  # s of the loop's clock: since when nothing may be pulled or sent
        connection.on_change.append(self._connection_changed)

    def begin(self) -> None:
        self._began = self._now()
        self.breaker.begin(self._began)
        self.spawn(self._pump())
        self.spawn(self._settle())

    def step(self) -> bool:
        if super().step():
            return True
        self._poke()  # a channel may have room again
        return False

    # -- the breaker -----------------------------------------------------------------------------------------
    def on_breaker(self, message: Trigger | Restore, channel: EventChannel) -> None:  # noqa: ARG002 - one is as good as another
        if isinstance(message, Trigger):
            if self.breaker.trigger(message, self._now()):
                self.count(f"breaker_{message.reason.partition(':')[0]}")
        elif self.breaker.restore(message):
            if message.probe and self._counts_tokens:
                self._ramp.begin()
            self._poke()

    def pause(self, owner: str) -> None:
        """owner: ``api`` for the whole flow, or this connector's name: each resumes its own."""
        self._own(PAUSED, True, owner)
        self.source.interrupt()
        self._poke()
        self.context.changed()  # a drain may wait for nothing else

    def resume(self, owner: str) -> None:
        self._own(PAUSED, False, owner)

    @property
    def paused(self) -> bool:
        return any(each.reason.startswith(PAUSED) for each in self.breaker.reasons)

    def _own(self, kind: str, stands: bool, owner: str = "", detail: str = "") -> None:
        """A reason that this source has by itself."""
        reason = f"{kind}:{owner or self.name}"
        if stands:
            self.breaker.trigger(Trigger(reason, self.context.version(), detail), self._now())
        elif self.breaker.restore(Restore(reason, self.context.version())):
            self._poke()

    def _blocked(self) -> bool:
        """Whether nothing may be sent, new or again."""
        standing = len(self.breaker)
        return standing > 1 or (standing == 1 and self._full not in self.breaker)

    def reasons(self) -> tuple[BreakerReason, ...]:
        """Why nothing is sent: what stands in the breaker, and what holds this source up without a message from others.

        Momentary ones are left out: a channel may be full for a moment whenever much is sent.
        """
        found = list(self.breaker.reasons)
        name, connection = self.name, self.connection
        if not connection.connects and not connection.failed and not self._stopping:
            found.append(BreakerReason(f"{STARTING}:{name}", self._began, connection.error or "not connected yet"))
        if connection.failed:
            found = [each for each in found if each.reason != f"{DISCONNECTED}:{name}"]
            found.append(BreakerReason(f"{FAILED}:{name}", 0.0, connection.error))
        if not found and self._idle is not None and not self.ended and self._now() - self._idle > MOMENT:
            found += self._held_up(self._idle)
        return tuple(each._replace(detail=self._why_full()) if each.reason == self._full else each for each in found)

    def _held_up(self, since: float) -> list[BreakerReason]:
        if self._counts_tokens and self._window() <= 0:
            return [BreakerReason(self._full, since, "")]
        if self._has_room():
            awaited = len(self._ramp.awaited())
            detail = f"after a pause few events go first: {awaited} of them are not settled"
            return [BreakerReason(f"{PROBING}:{self.name}", since, detail)] if awaited else []
        full = [each for channels in self.outputs.values() for each in channels if each.authoritative and each.full]
        return [
            BreakerReason(f"{CHANNEL_FULL}:{each.consumer.name}", since, f"{each.events} events wait before it")
            for each in full
        ]

    def _why_full(self) -> str:
        room, most = self.source.room, self.options.max_unsettled
        if self.unsettled < most and room is not None and room <= 0:
            return f"{most:,} events lie behind the first one that is not settled"
        waits = self._waiting + len(self._again)
        text = f"{self.unsettled:,} events are not settled, max_unsettled is {most:,}"
        return f"{text}; {waits:,} of them wait to be tried again" if waits else text

    @property
    def taking(self) -> bool:
        """Whether an event that came now would be sent soon: no reason stands, and nothing drains."""
        return not (self._stopping or self._ended or self._blocked())

    @property
    def over(self) -> bool:
        """Whether the flow has ended: what is under way will never be settled."""
        return self._ended

    @property
    def tells(self) -> bool:
        """Whether the source is told what became of its events."""
        return self._counts_tokens

    @property
    def leading(self) -> Collection[str]:
        """Ports where something is connected."""
        return self.outputs.keys()

    def _connection_changed(self) -> None:
        connection = self.connection
        if connection.connected:
            self._connected.set()
        self._own(DISCONNECTED, not connection.connected, detail=connection.error)
        if connection.failed and not self.ended:
            self.error = ConnectionError(connection.error)
        self._poke()
        self.context.changed()

    def lost(self, error: BaseException, connects: int | None = None) -> None:
        self.connection.lost(error, connects)

    # -- pulling ---------------------------------------------------------------------------------------------
    def _limit(self) -> int:
        """Events that a pull may bring now; 0: none."""
        room = self._window() if self._counts_tokens else BATCH
        if (room <= 0) is not (self._full in self.breaker):
            self._own(WINDOW_FULL, room <= 0)
        if room <= 0 or self._pulled or self._blocked() or not self.connection.connected or not self._has_room():
            return 0
        return min(room, self._ramp.room(self._now()), BATCH)

    def _window(self) -> int:
        """Events that may be sent until others are settled."""
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
                self._look_later(GATHERED)
                await self._until_poked()
                continue
            self._idle = None
            events = await self._pull(limit)
            if events is None:
                self.ended = True
                break
            if events:
                self._pulled = events
                del events  # they are not to live as long as the next pull takes
                self._send_waiting()
            await asyncio.sleep(0)
        while self._pulled and not self._stuck:
            if not self._send_waiting():
                await self._until_poked()
        self.later(self._finish)
        while not self._ended:  # what is tried again
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
        """Whether a batch can leave by any port now."""
        if self._held:
            return False
        for channels in self.outputs.values():
            for each in channels:
                if each.authoritative and each.full:
                    return False
        return True

    def _send_waiting(self) -> bool:
        """Send a batch of what waits to be sent, if that is allowed. Whether something was sent."""
        if not (self._again or self._pulled) or self._blocked() or not self._has_room():
            return False
        room = self._ramp.room(self._now())
        if not room:
            return False
        self._idle = None
        if self._again:
            self._send_again([self._again.popleft() for _ in range(min(len(self._again), room))])
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
        if self._counts_tokens:
            since = self._now()
            make, remembers = self._token, self._keeps
            tokens: list[Token] = []
            for event in events:
                event.token = token = make(self, event.remembered() if remembers else event.id)
                tokens.append(token)
            self._under_way(since, tokens)
            self.unsettled += len(tokens)
        if bad:
            self._route(events)
        else:
            self.emit(events)

    def _under_way(self, since: float, tokens: list[Token]) -> None:
        seen = [WeakToken(each) for each in tokens] if self.debug else tokens
        self._ramp.sent(seen)
        self._sent.add(since, seen)
        self._sent.forget()

    def _route(self, events: list[Event]) -> None:
        """Events that the codec could not read (path "err") go another way."""
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

    def _send_again(self, kept: list[Event]) -> None:
        self.count("again", len(kept))
        since = self._now()
        events = []
        tokens = []
        for each in kept:
            each.attempt += 1
            event = each.remembered()
            event.token = token = self._token(self, each)
            tokens.append(token)
            events.append(event)
        self._under_way(since, tokens)
        bad = [each for each in events if each.path == self._unreadable]
        if bad:
            events = [each for each in events if each.path != self._unreadable]
            self.emit(bad, "err")
        self.emit(events)

    # -- what waits for more ---------------------------------------------------------------------------------
    def _waits(self) -> bool:
        """Whether nothing more is read until something is settled."""
        return self._counts_tokens and (self._window() <= 0 or bool(self._ramp.awaited()))

    def _look_later(self, seconds: float) -> None:
        if not self._looking and self.context.gatherers and self._waits():
            self._looking = seconds
            self.after(seconds, self._look_at_gathered)

    def _look_at_gathered(self) -> None:
        wait, self._looking = self._looking, 0.0
        if self._waits() and not self._blocked():
            found = [(each, self._gathered_by(each)) for each in self.context.gatherers]
            gathered = set().union(*(tokens for _, tokens in found))
            awaited = self._ramp.awaited()
            full = self._window() <= 0
            if (full and len(gathered) >= self.unsettled) or (awaited and awaited <= gathered):
                for gatherer, tokens in found:
                    if tokens:
                        gatherer.release(self.name, "max_unsettled")
                wait = GATHERED / 2
        self._look_later(min(wait * 2, GATHERED_MOST))

    def _gathered_by(self, gatherer: Gatherer) -> set[int]:
        return {id(token) for token in gatherer.gathered(self)}

    async def _until_poked(self) -> None:
        self._pump_waiter = asyncio.get_running_loop().create_future()
        await self._pump_waiter

    def _poke(self) -> None:
        waiter, self._pump_waiter = self._pump_waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        elif self._pulling and self._send_waiting():  # the pump waits for what is new
            self.later(self._poke)

    # -- settlement ------------------------------------------------------------------------------------------
    def on_settled(self, tokens: list[Token]) -> None:
        others = [each for each in tokens if each.status]  # not OK
        if len(others) < len(tokens):
            self.count(STATUSES[OK], len(tokens) - len(others))
        if not others or self.source.owns_policy:
            self._settled += tokens
            for token in others:
                self.count(STATUSES[token.status])
        else:
            self._settled += [each for each in tokens if each.status == OK]
            self._unhappy(others)
        rest = self._ramp.settled(self._now())
        if rest:
            self.after(rest, self._poke)
        self._settler.set()
        self._sent.forget()
        if others and self.draining:
            self.context.changed()

    def _unhappy(self, tokens: list[Token]) -> None:
        """What is not ok, of a source whose policy is the runtime's."""
        most = self.options.max_deliveries
        again: dict[float, list[Event]] = {}  # by delay
        for token in tokens:
            self.count(STATUSES[token.status])
            if token.status == DISCARD:
                self._settled.append(token)
            elif not self._remembers:
                self.count("dropped")
                self._letters.append(token)
            elif isinstance(token.reason, Withheld):
                self._withheld.append(token)
            elif token.status == REJECT or (most is not None and token.key.attempt >= most):
                self._letters.append(token)
            else:
                self._failed.setdefault(id(token.key), self._first_try(token.key))
                again.setdefault(self._delay(token.key.attempt), []).append(token.key)
        for delay, events in again.items():
            self._waiting += len(events)
            self.after(delay, partial(self._due, events))

    def _first_try(self, event: Event) -> float:
        return self._now() - max(0, self.context.now_ns() - event.ingest_ns) / 1e9

    def _delay(self, attempt: int) -> float:
        return min(self.options.retry_delay * 2.0 ** min(attempt - 1, 60), self.options.retry_delay_most)

    def _due(self, events: list[Event]) -> None:
        self._waiting -= len(events)
        self._again += events
        self._poke()

    async def _settle(self) -> None:
        """Tell the source, in bulk: whatever came while it was busy comes in the next call."""
        wait = AGAIN
        while not self._ended:
            if not self._settled and not self._letters:
                self._settler.clear()
                await self._settler.wait()
                continue
            tokens, self._settled = self._settled, []
            letters, self._letters = self._letters, []
            try:
                if letters:
                    await self._write_letters(letters)
                    tokens += letters
                    letters = []
                if self._keeps:
                    for token in tokens:
                        if isinstance(token.key, Event):
                            if self._failed:
                                self._failed.pop(id(token.key), None)
                            token.key = token.key.id
                await self._tell(tokens)
            except Exception as error:  # noqa: BLE001 - what it is does not matter: they are handed over again
                log.warning("%s: %s: settling: %s: %s", self.context.flow, self.name, type(error).__name__, error)
                self.count("settle_errors")
                self._settled = tokens + self._settled
                self._letters = letters + self._letters
                if self._untold is None:
                    self._untold = self._now()
                self._connected.clear()
                try:
                    async with asyncio.timeout(wait):
                        await self._connected.wait()
                except TimeoutError:
                    wait = min(wait * 2, AGAIN_MOST)
            else:
                wait = AGAIN
                self._untold = None
                self.unsettled -= len(tokens)
                self._poke()
                self.context.changed()

    async def _tell(self, tokens: Sequence[Token]) -> None:
        connects = self.connection.connects
        try:
            await self.source.settled(tokens)
        except OSError as error:  # as from a pull: there may be none that would notice
            self.lost(error, connects)
            raise
        except asyncio.CancelledError:
            if from_outside():
                raise
            raise RuntimeError("it was cancelled from inside") from None

    async def _write_letters(self, tokens: Sequence[Token]) -> None:
        letters = self.context.letters
        if letters is not None and not await letters(self.name, [(each.key, each.reason) for each in tokens]):
            raise OSError("the dead letters were not written")
        for token in tokens:
            event = token.key
            if isinstance(event, Event):
                self.context.given_up.add(self.name, token.reason, event.id, event.value)
            else:
                self.context.given_up.add(self.name, token.reason, event)
        self.count("dead", len(tokens))

    # -- what is under way -----------------------------------------------------------------------------------
    def oldest(self) -> float | None:
        """Seconds since the oldest event was sent that is not settled, or that waits to be sent again."""
        if not self.unsettled:
            return None
        sent = self._sent.oldest()
        known = [] if sent is None else [sent]
        known += self._failed.values()
        if self._untold is not None:
            known.append(self._untold)
        return max(0.0, self._now() - min(known, default=self._now()))

    # -- the end ---------------------------------------------------------------------------------------------
    def forget(self) -> None:
        super().forget()
        self._pulled = []
        self._again.clear()
        self._sent = InFlight()
        self._ramp = SlowStart()
        self._settled, self._letters, self._withheld = [], [], []
        self._failed.clear()

    def drain(self) -> None:
        """Pull nothing more. What is under way is waited for elsewhere."""
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
        """Nothing will be sent any more, and nothing that was sent is under way. What a source that is paused or has
        failed would try again does not go anywhere either.
        """
        if not self.finished.is_set():
            return False
        waits = self._waiting + len(self._again) if self._stuck else 0
        return self.unsettled == waits + len(self._withheld)

    @property
    def _stuck(self) -> bool:
        """Whether nothing will be sent any more.

        A source that is paused goes on when somebody resumes it, unless the flow is draining.
        """
        return self.connection.failed or (self.paused and self.context.draining)

    @property
    def kept(self) -> int:
        """Events that a pull brought and that were not sent."""
        return len(self._pulled)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
