"""``SourceWindow``: the events of a source in flight, and how many more may be sent.

Rule 1: An event is in flight until its settlement was reported to the connector, also while it waits for a retry.
Rule 2: At most ``max_unsettled`` events are in flight, and fewer if the connector has less room (``Source.room``).
Rule 3: After a reason that ended by time, the slow start limits the window further.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from tidelog.flows.api.connector import Source
from tidelog.flows.api.event import BATCH
from tidelog.flows.api.tokens import Token, WeakToken
from tidelog.flows.runtime.inflight import InFlight
from tidelog.flows.runtime.slowstart import SlowStart


class SourceWindow:
    """The window of one source. A flow without settlement has an unlimited one."""

    def __init__(self, source: Source, most: int, *, settles: bool, debug: bool) -> None:
        self.unsettled = 0  # events in flight
        self.in_flight = InFlight()
        self.slow_start = SlowStart()
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
        self.in_flight.forget()
        if new:
            self.unsettled += len(tokens)

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
        self.slow_start = SlowStart()
