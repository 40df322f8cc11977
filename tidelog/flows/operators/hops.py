"""What an operator has sent and wants to hear of again, and how much it may send after a pause.

Rule 1: a batch that leaves is one ``SentBatch``, the key of the hop tokens (``tokens.py``, rule 4) of its events.
Rule 2: an event made of several keeps an outcome for each: its hop is a group of one token for each member.
Rule 3: an event that was recalled from an output (``Withdrawn``) does not affect the rating of that output.
Rule 4: the data kept about a batch does not grow with its age: a time, a count, its output. It does not refer to the
        event that it is the token of: events and tokens are not tracked by the cyclic garbage collector, so they must
        not be part of a reference cycle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from tidelog.flows.api.event import BATCH, Event
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

GATHERED: Final = 0.05  # s until it is looked whether all that is under way waits for more; grows to GATHERED_MOST
GATHERED_MOST: Final = 1.0  # s
RECALLED: Final = 0.1  # s until more is taken back from an output that can't be used; grows to RECALLED_MOST
RECALLED_MOST: Final = 1.0  # s
FEW: Final = 64  # batches: fewer are not worth a look for settled ones among them


def now() -> float:
    """Seconds of the loop's clock."""
    return asyncio.get_running_loop().time()


def mark(node: TokenOwner, event: Event, members: Sequence[Settleable] | None, keys: Callable[[int], Any]) -> int:
    """Put tokens of ``node`` before the event's own: one, or one for each of its members. Returns how many.

    ``members`` is what ``parts`` said of it. ``keys`` gives the key of the token of each member, by number.
    """
    kind = WatchedToken if node.debug else Token
    if members is None:
        event.token = kind(node, keys(0), event.token)
        return 1
    tokens = [kind(node, keys(number), member) for number, member in enumerate(members)]
    event.token = event.token.of(tokens) if isinstance(event.token, TokenGroup) else TokenGroup(tokens)
    return len(members)


def parts(token: Settleable | None) -> Sequence[Settleable] | None:
    """The members of a group that nobody else holds a part of; None: the token has to be taken as one."""
    if isinstance(token, TokenGroup) and token.intact and token.members:
        return token.members
    return None


class SentBatch:
    """A batch that left."""

    __slots__ = ("generation", "left", "since", "way")

    def __init__(self, since: float, generation: int, way: str) -> None:
        self.since = since  # s of the loop's clock
        self.generation = generation  # of the Ramp: which pause it was sent after
        self.way = way  # the port
        self.left = 0  # tokens that have not come back


class ReturnedTokens(NamedTuple):
    """Tokens of one batch that came back together."""

    sent: SentBatch
    size: int  # tokens
    answered: bool  # somebody looked at one of them: not all were discarded on the way, or taken back
    retry: str | None  # the reason of one that is to be tried again; None: there was none
    withdrawn: bool = False  # one of them was taken back


def send(node: TokenOwner, events: Iterable[Event], since: float, generation: int = 0, way: str = "out") -> SentBatch:
    """Mark the events of a batch that is about to leave."""
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
    """What came back, by batch."""
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
                retry = token.reason or "to be tried again"
            answered = answered or token.status != DISCARD
            end += 1
        sent.left -= end - start
        yield ReturnedTokens(sent, end - start, answered, retry, withdrawn)
        start = end


class SendWindow:
    """After a pause one event may be under way, then twice as many each time all of them came back well.

    What was sent before the pause says nothing about what is below now, and is not waited for.
    """

    def __init__(self, most: int | None = None) -> None:
        self.generation = 0
        self.limit = 0  # events under way; 0: as many as ``most``
        self.most = most  # None: any number
        self.under_way = 0  # of this generation
        self.earlier = 0  # of those before it

    def begin(self) -> None:
        self.generation += 1
        self.earlier += self.under_way
        self.under_way = 0
        self.limit = 1

    def room(self, wanted: int) -> int:
        """So many of the wanted events may be sent now."""
        room = wanted
        if self.most is not None:
            room = min(room, self.most - self.under_way - self.earlier)
            if self.limit and not self.under_way:
                room = max(room, 1)  # a probe, even if what was sent before the pause never comes back
        if self.limit:
            room = min(room, self.limit - self.under_way)
        return max(room, 0)

    def counts(self, sent: SentBatch) -> bool:
        """Whether what is under way of this batch takes up room."""
        return not self.limit or sent.generation == self.generation

    @property
    def counted(self) -> int:
        """Events under way that take up room."""
        return self.under_way + (0 if self.limit else self.earlier)

    def sent(self, sent: SentBatch) -> None:
        self.under_way += sent.left

    def back(self, run: ReturnedTokens) -> None:
        if run.sent.generation != self.generation:
            self.earlier -= run.size
            return
        self.under_way -= run.size
        if self.limit and run.retry is None and not (self.under_way or run.withdrawn):
            self.limit = self.limit * 2 if self.limit * 2 < BATCH else 0


def unmarked(node: TokenOwner, event: Event) -> list[Token]:
    """Undo ``mark``: the event has the token that it came with. Returns the tokens of ``node`` that it had; none: they
    are not only this event's, or a part of it was settled, and nothing was done.
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
    """Takes back what was sent to outputs that can't be used: at once, and what comes to light there later, such as
    what an operator on the way was busy with.
    """

    def __init__(
        self, operator: Operator, lost: Callable[[], Iterable[str]], take: Callable[[str, list[Event]], None]
    ) -> None:
        self._operator = operator
        self._lost = lost  # ports that can't be used, where something is under way that can go another way
        self._take = take  # is given what was taken back from a port
        self._known: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._wait = RECALLED

    def look(self) -> None:
        """Something has changed."""
        lost = set(self._lost())
        new = lost - self._known
        self._known = lost
        if new:
            self._wait = RECALLED
            self._recall(new)
        if self._known and self._timer is None:
            self._timer = self._operator.node.after(self._wait, self._again)

    def _again(self) -> None:
        self._timer = None
        self._wait = min(self._wait * 2, RECALLED_MOST)
        self._known = set(self._lost())
        self._recall(self._known)
        self.look()

    def _recall(self, ports: Iterable[str]) -> None:
        for port in sorted(ports):
            events = self._operator.node.recall(port)
            if events:
                self._operator.node.count("recalled", len(events))
                self._take(port, events)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class StallDetector:
    """Nothing more is sent until something comes back, and operators below keep all that is under way until more comes:
    has them send it on.
    """

    def __init__(self, operator: Operator, option: str, full: Callable[[], Iterable[tuple[str, SendWindow]]]) -> None:
        self._operator = operator
        self._option = option  # that says how much may be under way
        self._full = full  # ports that get none of what is kept until something comes back; none: nothing is kept
        self._timer: asyncio.TimerHandle | None = None
        self._wait = GATHERED

    def watch(self) -> None:
        """Something is kept."""
        node = self._operator.node
        if self._timer is None and node.context.gatherers and any(True for _ in self._full()):
            self._timer = node.after(self._wait, self._look)

    def _look(self) -> None:
        self._timer = None
        node = self._operator.node
        found = [(each, list(each.gathered(node))) for each in node.context.gatherers]
        tokens = {id(token): token.key for _, gathered in found for token in gathered if token.pending > 0}
        self._wait = min(self._wait * 2, GATHERED_MOST)
        for port, ramp in self._full():
            waits = {one for one, sent in tokens.items() if sent.way == port and ramp.counts(sent)}
            if waits and len(waits) >= ramp.counted:
                for gatherer, gathered in found:
                    if any(id(token) in waits for token in gathered):
                        gatherer.release(node.name, self._option)
                self._wait = GATHERED
        self.watch()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class OverdueWatch:
    """Says once of each batch that it has been under way for longer than ``timeout``."""

    def __init__(self, operator: Operator, timeout: float, late: Callable[[SentBatch], None]) -> None:
        self._operator = operator
        self._timeout = timeout  # s
        self._late = late
        self._sent: deque[SentBatch] = deque()  # in order; settled ones may be among them
        self._timer: asyncio.TimerHandle | None = None
        self._most = FEW  # batches after which settled ones are taken out

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

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
