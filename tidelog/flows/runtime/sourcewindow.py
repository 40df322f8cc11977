"""``SourceWindow``: the events of a source in flight, and how many more may be sent.

Rule 1: An event is in flight until its settlement was reported to the connector, also while it waits for a retry.
Rule 2: At most ``max_unsettled`` events are in flight, and fewer if the connector has less room (``Source.room``).
Rule 3: After a reason that ended by time, the slow start limits the window further.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence, Set
from typing import Final

from tidelog.flows.api.connector import Source
from tidelog.flows.api.event import BATCH
from tidelog.flows.api.tokens import RETRY, Token, WeakToken
from tidelog.flows.runtime.latencysamples import LatencySamples
from tidelog.transport.backoff import Backoff, Delays

BACKOFF: Final = Backoff(first=0.1, most=30.0)  # after failures during a slow start
_SOME: Final = 64  # batches; below this number, settled tokens are not removed from the middle


class InFlight:
    """The tokens of a source by age, to find the oldest unsettled one.

    The size is proportional to the number of unsettled tokens, in whatever order they are settled.
    """

    def __init__(self) -> None:
        self._sent: deque[tuple[float, Sequence[Token | WeakToken]]] = deque()  # (event loop time, tokens)
        self._looked = 0  # tokens of the first batch that are known to be settled
        self._most = _SOME  # number of batches above which settled tokens are removed from the middle

    def __len__(self) -> int:
        """The number of batches."""
        return len(self._sent)

    def add(self, when: float, tokens: Sequence[Token | WeakToken]) -> None:
        """Add tokens. The list then belongs to this object."""
        self._sent.append((when, tokens))

    def settled(self, tokens: Sequence[Token]) -> None:
        """Remove settled tokens. ``tokens``: those that were settled last.

        Usually they are the oldest batches. Comparing two lists takes 0.5 ns per token, looking at each token 15 ns.
        """
        sent, begin = self._sent, 0
        while sent and not self._looked:
            batch = sent[0][1]
            end = begin + len(batch)
            if batch != (tokens if len(batch) == len(tokens) else tokens[begin:end]):
                break
            sent.popleft()
            begin = end
        self.forget()

    def forget(self) -> None:
        """Remove settled tokens."""
        sent = self._sent
        while sent:
            tokens = sent[0][1]
            looked = self._looked
            for token in tokens[looked:] if looked else tokens:
                if token.pending > 0:
                    self._looked = looked
                    break
                looked += 1
            else:
                sent.popleft()
                self._looked = 0
                continue
            break
        if len(sent) > self._most:
            left = [(when, [each for each in tokens if each.pending > 0]) for when, tokens in sent]
            self._sent = deque(each for each in left if each[1])
            self._looked = 0
            self._most = max(_SOME, 2 * len(self._sent))

    def oldest(self) -> float | None:
        """Return the event loop time at which the oldest unsettled event was sent."""
        self.forget()
        return self._sent[0][0] if self._sent else None


class SlowStart:
    """Limits a source after a reason that ended by time: one event first, then two, then four, and so on.

    Rule 1: A step begins when all events of the previous one are settled. Other events in flight do not count.
    Rule 2: If an event of a step must be retried, the next step has one event again, after a delay that is doubled each
            time.
    Rule 3: After a step of a whole batch there is no limit any more.
    """

    def __init__(self) -> None:
        self.size = 0  # number of events in the current step; 0: no limit
        self._sent: list[Token | WeakToken] = []  # tokens of the current step
        self._delays = Delays(BACKOFF)
        self._until = 0.0  # event loop time until which nothing is sent

    def begin(self) -> None:
        """Begin a slow start, unless one is in progress."""
        if not self.size:
            self.size = 1
            self._sent = []
            self._delays.reset()
            self._until = 0.0

    def room(self, now: float) -> int:
        """Return the number of events that may be sent now."""
        if not self.size:
            return BATCH
        return 0 if now < self._until else self.size - len(self._sent)

    def awaited(self) -> set[int]:
        """Return the id() of the tokens that must be settled before another event may be sent. Empty if there is room,
        or during a delay.
        """
        if not 0 < self.size <= len(self._sent):
            return set()
        pending = (each for each in self._sent if each.pending > 0)
        return {each.identity if isinstance(each, WeakToken) else id(each) for each in pending}

    def sent(self, tokens: Iterable[Token | WeakToken]) -> None:
        if self.size:
            self._sent += tokens

    def settled(self, now: float) -> float:
        """Update the state after a settlement. Return the delay in seconds if the step has failed."""
        if not self.size or not self._sent or any(each.pending > 0 for each in self._sent):
            return 0.0
        failed = any(each.status == RETRY for each in self._sent)
        self._sent = []
        if not failed:
            self._delays.reset()
            self.size = 0 if self.size >= BATCH else self.size * 2
            return 0.0
        rest = self._delays.next()
        self.size = 1
        self._until = now + rest
        return rest


class SourceWindow:
    """The window of one source. A flow without settlement has an unlimited one."""

    def __init__(self, source: Source, most: int, *, settles: bool, debug: bool) -> None:
        self.unsettled = 0  # events in flight
        self.in_flight = InFlight()
        self.slow_start = SlowStart()
        self.latencies = LatencySamples()
        self._source = source
        self._most = most
        self._settles = settles
        self._debug = debug

    @property
    def room(self) -> int:
        """The number of events that may be pulled before others are settled. 0 or less: none."""
        if not self._settles:
            return BATCH
        room, more = self._most - self.unsettled, self._source.room
        return room if more is None else min(room, more)

    def sent(self, now: float, tokens: list[Token], *, new: bool) -> None:
        """Add the tokens of a batch. new: its events were not in flight before, unlike those of retries."""
        tracked: Sequence[Token | WeakToken] = [WeakToken(each) for each in tokens] if self._debug else tokens
        self.slow_start.sent(tracked)
        self.in_flight.add(now, tracked)
        if new:
            self.unsettled += len(tokens)
            self.latencies.sent(now, tracked[0])

    def reported(self, count: int) -> None:
        """Remove events whose settlement was reported."""
        self.unsettled -= count
        assert self.unsettled >= 0, "more settlements were reported than events were sent"  # noqa: S101 - rule 1 of tokens

    @property
    def waits(self) -> bool:
        """Whether nothing is pulled until events are settled."""
        return self.room <= 0 or bool(self.slow_start.awaited())

    def waits_only_for(self, tokens: Set[int]) -> bool:
        """Return whether nothing is pulled until the tokens with these id() are settled."""
        awaited = self.slow_start.awaited()
        return (self.room <= 0 and len(tokens) >= self.unsettled) or (bool(awaited) and awaited <= tokens)

    def full(self, retries: int) -> str:
        """Return the reason why the window is full. retries: the number of events that wait for a retry."""
        room = self._source.room
        if self.unsettled < self._most and room is not None and room <= 0:
            return f"{self._most:,} events follow the first one that is not settled"
        text = f"{self.unsettled:,} events are not settled, max_unsettled is {self._most:,}"
        return f"{text}; {retries:,} of them wait for a retry" if retries else text

    def forget(self) -> None:
        """Release all tokens."""
        self.in_flight = InFlight()
        self.latencies = LatencySamples()
        self.slow_start = SlowStart()
