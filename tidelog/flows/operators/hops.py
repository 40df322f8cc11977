"""Hop tokens: the batches that an operator has sent and whose settlement it needs to know; and limits on what it sends.

Rule 1: A batch that is sent is one ``SentBatch``, the key of the hop tokens (``api.tokens``, rule 4) of its events.
Rule 2: An event that consists of several members has an outcome for each: its hop is a group with one token per member.
Rule 3: An event that was recalled from an output (``Withdrawn``) does not affect the rating of that output.
Rule 4: The data about a batch does not grow with its age: a time, a count, its output. It does not refer to the event
        whose token it belongs to: the cyclic garbage collector does not track events and tokens, so they must not be
        part of a reference cycle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tidelog.flows.api.event import BATCH, Event
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import (
    DISCARD,
    OK,
    RETRY,
    Settleable,
    Token,
    TokenGroup,
    TokenOwner,
    WatchedToken,
    Withdrawn,
)
from tidelog.transport.backoff import Backoff, Delays

RECALLED: Final = Backoff(first=0.1, most=1.0)  # until events are recalled again from the same output
FEW: Final = 64  # batches; below this number, settled batches are not removed


def mark(node: TokenOwner, event: Event, members: Sequence[Settleable] | None, keys: Callable[[int], Any]) -> int:
    """Put tokens of ``node`` in front of the event's token: one, or one for each member. Return their number.

    ``members``: the result of ``parts``. ``keys`` returns the key of a member's token, by number.
    """
    kind = WatchedToken if node.debug else Token
    if members is None:
        event.token = kind(node, keys(0), event.token)
        return 1
    tokens = [kind(node, keys(number), member) for number, member in enumerate(members)]
    event.token = event.token.of(tokens) if isinstance(event.token, TokenGroup) else TokenGroup(tokens)
    return len(members)


def parts(token: Settleable | None) -> Sequence[Settleable] | None:
    """Return the members of a group of which no other branch holds a part. Return None if the token must be taken as
    one.
    """
    if isinstance(token, TokenGroup) and token.intact and token.members:
        return token.members
    return None


class SentBatch:
    """A batch in flight."""

    __slots__ = ("generation", "left", "since", "way")

    def __init__(self, since: float, generation: int, way: str) -> None:
        self.since = since  # event loop time
        self.generation = generation  # generation of the SendWindow
        self.way = way  # the port
        self.left = 0  # number of unsettled tokens


class ReturnedTokens(NamedTuple):
    """Tokens of one batch that were settled together."""

    sent: SentBatch
    size: int  # tokens
    answered: bool  # not all were discarded or recalled before a sink or operator processed them
    retry: str | None  # the reason of a token that must be retried; None: there is none
    withdrawn: bool = False  # one of them was recalled


def send(node: TokenOwner, events: Iterable[Event], since: float, generation: int = 0, way: str = "out") -> SentBatch:
    """Put tokens in front of those of a batch that is about to be sent."""
    sent = SentBatch(since, generation, way)
    kind = WatchedToken if node.debug else Token
    count = 0
    for event in events:
        token = event.token
        if isinstance(token, TokenGroup):
            count += mark(node, event, parts(token), lambda _: sent)
        else:
            event.token = kind(node, sent, token)
            count += 1
    sent.left = count
    return sent


def runs(tokens: Sequence[Token]) -> Iterable[ReturnedTokens]:
    """Group settled tokens by their batch."""
    start, size = 0, len(tokens)
    while start < size:
        sent: SentBatch = tokens[start].key
        answered = False
        retry = None
        withdrawn = False
        end = start
        while end < size and tokens[end].key is sent:
            token = tokens[end]
            if token.status == RETRY:
                if isinstance(token.reason, Withdrawn):
                    withdrawn = True
                    end += 1
                    continue
                retry = token.reason or "retry"
            answered = answered or token.status != DISCARD
            end += 1
        sent.left -= end - start
        assert sent.left >= 0, "a token of the batch was settled twice"  # noqa: S101 - rule 1 of tokens
        yield ReturnedTokens(sent, end - start, answered, retry, withdrawn)
        start = end


class SendWindow:
    """Limits the events in flight after a pause: first one event, then two, four, and so on, each time all of them
    succeeded.

    Events that were sent before the pause say nothing about the state after it, and are not waited for.
    """

    def __init__(self, most: int | None = None) -> None:
        self.generation = 0
        self.limit = 0  # maximum number of events in flight; 0: ``most``
        self.most = most  # None: unlimited
        self.in_flight = 0  # events of this generation
        self.earlier = 0  # events of earlier generations

    def begin(self) -> None:
        self.generation += 1
        self.earlier += self.in_flight
        self.in_flight = 0
        self.limit = 1

    def room(self, wanted: int) -> int:
        """Return the number of events, out of ``wanted``, that may be sent now."""
        room = wanted
        if self.most is not None:
            room = min(room, self.most - self.in_flight - self.earlier)
            if self.limit and not self.in_flight:
                room = max(room, 1)  # a probe, even if events from before the pause are never settled
        if self.limit:
            room = min(room, self.limit - self.in_flight)
        return max(room, 0)

    def counts(self, sent: SentBatch) -> bool:
        """Return whether the unsettled events of this batch count."""
        return not self.limit or sent.generation == self.generation

    @property
    def counted(self) -> int:
        """The number of events in flight that count."""
        return self.in_flight + (0 if self.limit else self.earlier)

    def sent(self, sent: SentBatch) -> None:
        self.in_flight += sent.left

    def back(self, run: ReturnedTokens) -> None:
        if run.sent.generation != self.generation:
            self.earlier -= run.size
            return
        self.in_flight -= run.size
        if self.limit and run.retry is None and not (self.in_flight or run.withdrawn):
            self.limit = self.limit * 2 if self.limit * 2 < BATCH else 0


def unmarked(node: TokenOwner, event: Event) -> list[Token]:
    """Undo ``mark``: restore the original token of the event. Return the tokens of ``node`` that it had.

    Return an empty list and change nothing if they do not belong to this event only, or a part of it was settled.
    """
    token = event.token
    tokens = list(token.members) if isinstance(token, TokenGroup) and token.intact else [token]
    own = [each for each in tokens if isinstance(each, Token) and each.owner is node]
    if len(own) < len(tokens) or any(each.pending != 1 or each.status != OK for each in own):
        return []
    if isinstance(token, TokenGroup):
        event.token = token.of([each.parent for each in own if each.parent is not None])
    else:
        event.token = own[0].parent
    for each in own:
        each.pending = 0
    return own


class Recall:
    """Recalls events that were sent to outputs that can't be used: immediately, and again while further events appear
    there, such as those that an operator was processing.
    """

    def __init__(
        self, operator: Operator, lost: Callable[[], Iterable[str]], take: Callable[[str, list[Event]], None]
    ) -> None:
        self._operator = operator
        self._lost = lost  # returns ports that can't be used and whose events in flight can be sent to another one
        self._take = take  # receives the events that were recalled from a port
        self._known: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._delays = Delays(RECALLED)

    def look(self) -> None:
        """Update the recalled ports after a change."""
        lost = set(self._lost())
        new = lost - self._known
        self._known = lost
        if new:
            self._delays.reset()
            self._recall(new)
        if self._known and self._timer is None:
            self._timer = self._operator.node.after(self._delays.next(), self._again)

    def _again(self) -> None:
        self._timer = None
        self._known = set(self._lost())
        self._recall(self._known)
        self.look()

    def _recall(self, ports: Iterable[str]) -> None:
        for port in sorted(ports):
            events = self._operator.node.recall(port)
            if events:
                self._operator.node.count("recalled", len(events))
                self._take(port, events)


def stalled(full: Iterable[tuple[str, SendWindow]], tokens: Mapping[int, Token]) -> set[int]:
    """Return the id() of those gathered tokens for which an operator waits, and for nothing else.

    full: ports that get no stored events until events are settled, with their windows. tokens: gathered ones, by id().
    """
    found: set[int] = set()
    for port, window in full:
        waits = {one for one, token in tokens.items() if token.key.way == port and window.counts(token.key)}
        if waits and len(waits) >= window.counted:
            found |= waits
    return found


class OverdueWatch:
    """Reports each batch once that is in flight for longer than ``timeout``."""

    def __init__(self, operator: Operator, timeout: float, late: Callable[[SentBatch], None]) -> None:
        self._operator = operator
        self._timeout = timeout  # s
        self._late = late
        self._sent: deque[SentBatch] = deque()  # in order; may contain settled batches
        self._timer: asyncio.TimerHandle | None = None
        self._most = FEW  # number of batches above which settled ones are removed

    def watch(self, sent: SentBatch) -> None:
        self._sent.append(sent)
        if len(self._sent) > self._most:
            self._sent = deque(each for each in self._sent if each.left > 0)
            self._most = max(FEW, 2 * len(self._sent))
        if self._timer is None:
            self._timer = self._operator.node.after(self._timeout, self._look)

    def _look(self) -> None:
        self._timer = None
        clock = now()
        waiting = self._sent
        while waiting:
            first = waiting[0]
            if first.left > 0:
                wait = first.since + self._timeout - clock
                if wait > 1e-6:
                    self._timer = self._operator.node.after(wait, self._look)
                    return
                waiting.popleft()
                self._late(first)
            else:
                waiting.popleft()
