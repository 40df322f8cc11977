"""The entity that a source is.

Rule 1: it pulls, and sends, while its breaker is empty. A pull under way is not cancelled when that changes: what it
        brings is kept, and sent when the breaker is empty again.
Rule 2: ``pause`` is in force when it returns: there is nothing between the look at the breaker and the sending.
Rule 3: at most ``max_unsettled`` events are under way. Before that many are, ``window_full`` stands; it holds up pulls only.
Rule 4: what is tried again waits for the breaker as what is new does, so an outage costs no attempts.
Rule 5: after a reason that ended by time one event is sent and waited for, then twice as many, and so on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.flows.connectors.base import Source
from tidelog.flows.event import BATCH, Event, copied
from tidelog.flows.runtime.breaker import Breaker
from tidelog.flows.runtime.channel import Channel
from tidelog.flows.runtime.connecting import Connection
from tidelog.flows.runtime.node import Node
from tidelog.flows.runtime.signals import DISCONNECTED, PAUSED, WINDOW_FULL, Restore, Signal, Trigger
from tidelog.flows.runtime.surroundings import Surroundings
from tidelog.flows.tokens import DISCARD, OK, REJECT, RETRY, STATUSES, Token, WatchedToken

log = logging.getLogger("tidelog.flows")

AGAIN: Final = 1.0  # s until tokens are handed again to a ``settled`` that failed; grows to AGAIN_MOST
AGAIN_MOST: Final = 30.0  # s


@dataclass(frozen=True, slots=True)
class SourceOptions:
    max_unsettled: int = 10_000  # events under way
    max_deliveries: int | None = None  # tries of one event; None: for ever
    retry_delay: float = 0.1  # s before the second try; then twice as long each time
    retry_delay_most: float = 30.0
    settle: bool = True  # False: events have no tokens


class SourceNode(Node):
    kind = "source"

    def __init__(
        self, name: str, source: Source, connection: Connection, around: Surroundings, options: SourceOptions
    ) -> None:
        super().__init__(name, around)
        self.source = source
        self.connection = connection
        self.options = options
        self.breaker = Breaker()
        self.unsettled = 0  # events that were sent, or wait to be sent again, and that the source has not been told of
        self.settling = 0  # of these: settled, and ``Source.settled`` has not returned
        self.ended = False  # there will never be an event again
        self.finished = asyncio.Event()  # DRAIN was sent
        self._token = WatchedToken if around.debug else Token
        self._counts_tokens = options.settle and source.counts
        self._pulled: list[Event] = []  # brought by a pull, and not sent
        self._again: deque[Event] = deque()  # due to be sent again
        self._waiting = 0  # events whose delay runs
        self._sent: deque[tuple[float, list[Token]]] = deque()  # by pull: when, what
        self._compacted = 64  # pulls in _sent after which settled ones are taken out of its middle
        self._settled: list[Token] = []  # for Source.settled
        self._letters: list[Token] = []  # for the dead letters
        self._settler: asyncio.Event = asyncio.Event()
        self._ramp = 0  # events that may be sent at once; 0: any number
        self._stopping = False
        self._pump_waiter: asyncio.Future[None] | None = None
        self._pulling = False
        connection.on_change.append(self._connection_changed)

    def begin(self) -> None:
        self.spawn(self._pump())
        self.spawn(self._settle())

    # -- the breaker -----------------------------------------------------------------------------------------
    def on_breaker(self, message: Trigger | Restore, channel: Channel) -> None:
        if isinstance(message, Trigger):
            if self.breaker.trigger(message, self._now()):
                self.count(f"breaker_{message.reason.partition(':')[0]}")
        elif self.breaker.restore(message):
            if message.probe and self._counts_tokens:
                self._ramp = 1
            self._poke()

    def pause(self, owner: str) -> None:
        """owner: ``api`` for the whole flow, or this connector's name: each resumes its own."""
        self._own(PAUSED, True, owner)
        self.source.interrupt()

    def resume(self, owner: str) -> None:
        self._own(PAUSED, False, owner)

    @property
    def paused(self) -> bool:
        return any(each.reason.startswith(PAUSED) for each in self.breaker.reasons)

    def _own(self, kind: str, stands: bool, owner: str = "", detail: str = "") -> None:
        """A reason that this source has by itself."""
        reason = f"{kind}:{owner or self.name}"
        if stands:
            self.breaker.trigger(Trigger(reason, self.around.version(), detail), self._now())
        elif self.breaker.restore(Restore(reason, self.around.version())):
            self._poke()

    def _blocked(self) -> bool:
        """Whether nothing may be sent, new or again."""
        reasons = len(self.breaker.reasons)
        return reasons > (1 if f"{WINDOW_FULL}:{self.name}" in self.breaker else 0)

    def _connection_changed(self) -> None:
        connection = self.connection
        self._own(DISCONNECTED, not connection.connected and not connection.failed, detail=connection.error)
        if connection.failed and not self.ended:
            self.error = ConnectionError(connection.error)
        self._poke()

    def lost(self, error: BaseException) -> None:
        self.connection.lost(error)

    # -- pulling ---------------------------------------------------------------------------------------------
    def _limit(self) -> int:
        """Events that a pull may bring now; 0: none."""
        room = self.options.max_unsettled - self.unsettled if self._counts_tokens else BATCH
        self._own(WINDOW_FULL, room <= 0)
        if room <= 0 or self._blocked() or self._held or not self.connection.connected:
            return 0
        if self._ramp:
            return 0 if self.unsettled else min(self._ramp, room)
        return min(BATCH, room)

    async def _pump(self) -> None:
        while not self._stopping:
            if self._send_waiting():
                await asyncio.sleep(0)
                continue
            limit = self._limit()
            if not limit or self._pulled or (self._ramp and self._waiting):
                await self._until_poked()
                continue
            self._pulling = True
            try:
                events = await self.source.pull(limit)
            except OSError as error:
                self.lost(error)
                continue
            finally:
                self._pulling = False
            if events is None:
                self.ended = True
                break
            if events:
                self._pulled = events
                self._send_waiting()
            await asyncio.sleep(0)
        while self._pulled and not self.paused and not self._send_waiting():
            await self._until_poked()
        self.later(self._finish)
        while not self._ended:  # what is tried again
            if not self._send_waiting():
                await self._until_poked()

    def _send_waiting(self) -> bool:
        """Send what waits to be sent, if that is allowed. Whether something was sent."""
        if self._held or self._blocked():
            return False
        if self._again:
            count = min(len(self._again), self._ramp or BATCH)
            self._send_again([self._again.popleft() for _ in range(count)])
            return True
        if self._pulled:
            events, self._pulled = self._pulled, []
            self._send_new(events)
            return True
        return False

    def _send_new(self, events: list[Event]) -> None:
        now_ns = self.around.now_ns()
        path = f"{self.name}.out"
        self.count("out", len(events))
        bad = [each for each in events if each.path == "err"]
        if not self._counts_tokens:
            for event in events:
                event.ingest_ns = event.ingest_ns or now_ns
                event.path = event.path or path
            self._route(events, bad)
            return
        since = self._now()
        make = self._token
        remembers = self.source.remembers and not self.source.owns_policy
        tokens = []
        for event in events:
            event.ingest_ns = event.ingest_ns or now_ns
            event.path = event.path or path
            token = make(self, event.id, None, since)
            if remembers:
                token.key = Event(
                    copied(event.value), dict(event.meta), event.id,
                    ingest_ns=event.ingest_ns, attempt=event.attempt, path=event.path,
                )  # fmt: skip
            event.token = token
            tokens.append(token)
        self.unsettled += len(tokens)
        self._sent.append((since, tokens))
        self._forget()
        self._route(events, bad)

    def _route(self, events: list[Event], bad: list[Event]) -> None:
        """Events that the codec could not read (path "err") go another way."""
        if not bad:
            self.emit(events)
            return
        self.emit([each for each in events if each.path != "err"])
        self.count("unreadable", len(bad))
        for event in bad:
            event.path = f"{self.name}.err"
        if self.outputs.get("err"):
            self.emit(bad, "err")
        else:
            for event in bad:
                if event.token is not None:
                    event.token.settle(REJECT, str(event.meta.get("error", "")))

    def _send_again(self, kept: list[Event]) -> None:
        self.count("again", len(kept))
        since = self._now()
        events = []
        tokens = []
        for each in kept:
            each.attempt += 1
            token = self._token(self, each, None, since)
            event = Event(
                copied(each.value), dict(each.meta), each.id,
                ingest_ns=each.ingest_ns, attempt=each.attempt, path=each.path, token=token,
            )  # fmt: skip
            tokens.append(token)
            events.append(event)
        self._sent.append((since, tokens))
        self.emit(events)

    async def _until_poked(self) -> None:
        self._pump_waiter = asyncio.get_running_loop().create_future()
        await self._pump_waiter

    def _poke(self) -> None:
        waiter, self._pump_waiter = self._pump_waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _flush(self) -> bool:
        if self.paused:  # Rule 2
            return False
        moved = super()._flush()
        if not self._held:
            self._poke()
        return moved

    # -- settlement ------------------------------------------------------------------------------------------
    def on_settled(self, tokens: list[Token]) -> None:
        worst = OK
        if self.source.owns_policy:
            for token in tokens:
                status = token.status
                worst = max(worst, status)
                self.count(STATUSES[status])
            self._settled += tokens
        else:
            good = [each for each in tokens if each.status <= DISCARD]
            if good:
                self.count(STATUSES[OK], len(good))
                self._settled += good
            if len(good) < len(tokens):
                for token in tokens:
                    if token.status > DISCARD:
                        worst = max(worst, token.status)
                        self._failed(token)
        self.settling = len(self._settled) + len(self._letters)
        if self._ramp:
            self._ramp = 1 if worst == RETRY else self._ramp * 2 if self._ramp < BATCH else 0
        self._settler.set()
        self._forget()

    def _failed(self, token: Token) -> None:
        self.count(STATUSES[token.status])
        if not self.source.remembers:
            token.key = token.key.id if isinstance(token.key, Event) else token.key
            self.count("dropped")
            self._settled.append(token)
            return
        event: Event = token.key
        most = self.options.max_deliveries
        if token.status == REJECT or (most is not None and event.attempt >= most):
            self._letters.append(token)
            return
        options = self.options
        delay = min(options.retry_delay * 2 ** min(event.attempt - 1, 60), options.retry_delay_most)
        self._waiting += 1

        def due() -> None:
            self._waiting -= 1
            self._again.append(event)
            self._poke()

        self.after(delay, due)

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
                for token in tokens:
                    if isinstance(token.key, Event):
                        token.key = token.key.id
                await self.source.settled(tokens)
            except Exception as error:  # noqa: BLE001 - what it is does not matter: they are handed over again
                log.warning("%s: %s: settling: %s: %s", self.around.flow, self.name, type(error).__name__, error)
                self.count("settle_errors")
                self._settled = tokens + self._settled
                self._letters = letters + self._letters
                await asyncio.sleep(wait)
                wait = min(wait * 2, AGAIN_MOST)
            else:
                wait = AGAIN
                self.unsettled -= len(tokens)
                self.settling = len(self._settled) + len(self._letters)
                self._poke()
                self.around.changed()

    async def _write_letters(self, tokens: Sequence[Token]) -> None:
        self.count("dead", len(tokens))
        pairs = [(token.key, token.reason) for token in tokens]
        if self.around.letters is not None:
            await self.around.letters(self.name, pairs)
            return
        for event, reason in pairs:
            log.error("%s: %s: %r is given up (%s): %s", self.around.flow, self.name, event.id, reason, repr(event.value)[:200])

    # -- what is under way -----------------------------------------------------------------------------------
    def _forget(self) -> None:
        """Take settled tokens out of the list of what was sent; its length stays in proportion to what is unsettled."""
        sent = self._sent
        while sent and not any(each.pending > 0 for each in sent[0][1]):
            sent.popleft()
        if len(sent) > self._compacted:
            left = [(when, [each for each in tokens if each.pending > 0]) for when, tokens in sent]
            self._sent = deque(each for each in left if each[1])
            self._compacted = max(64, 2 * len(self._sent))

    def oldest(self) -> float | None:
        """Seconds since the oldest event was sent that is not settled."""
        self._forget()
        return self._now() - self._sent[0][0] if self._sent else None

    # -- the end ---------------------------------------------------------------------------------------------
    def drain(self) -> None:
        """Pull nothing more. What is under way is waited for elsewhere."""
        self._stopping = True
        self.source.interrupt()
        self._poke()

    def _finish(self) -> None:
        self.emit_signal(Signal.DRAIN)
        self.draining = True
        self.finished.set()
        self.around.changed()

    @property
    def kept(self) -> int:
        """Events that a pull brought and that were not sent."""
        return len(self._pulled)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
