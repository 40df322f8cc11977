"""Copies of events that are under way, for operators that send them once more when they failed.

Rule 1: a copy is made before the event leaves, so what is below can do with the event what it wants.
Rule 2: of an event made of several the members that are done are done: their tokens are settled, and only the others go
        once more. If its value is a list of as many, only their values go.
Rule 3: there are at most so many copies. An event that comes when there are as many goes without one: what becomes of
        it is then the affair of whoever sent it. (To wait could be for ever: for a batch below that never gets full.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidelog.flows.api.event import Event, copied
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import RETRY, Settleable, Token, TokenGroup, TokenOwner, WatchedToken, Withdrawn
from tidelog.flows.operators.hops import SentBatch, mark, parts


class RetainedCopy:
    """One event that is under way, and what became of its members as far as that is known."""

    __slots__ = ("event", "failed", "left", "members", "tries")

    def __init__(self, event: Event, members: list[Settleable] | None) -> None:
        self.event = event  # not sent: its token is the one that came from above
        self.members = members  # None: it is one
        self.left = 1 if members is None else len(members)
        self.failed: dict[int, tuple[int, str]] = {}  # by the member's number: status, reason
        self.tries = 0  # how often it was sent again

    def sent(self, node: TokenOwner) -> Event:
        """The event to send, with tokens of ``node``."""
        event = duplicate(self.event)
        mark(node, event, self.members, lambda number: (self, number))
        self.failed = {}
        return event

    def reason(self) -> str:
        return max(self.failed.values())[1]

    def narrowed(self) -> None:
        """Leave only the members that failed."""
        if self.members is not None and len(self.failed) < len(self.members):
            numbers = sorted(self.failed)
            value = self.event.value
            if isinstance(value, list) and len(value) == len(self.members):
                self.event.value = [value[each] for each in numbers]
            self.members = [self.members[each] for each in numbers]
            assert isinstance(self.event.token, TokenGroup)  # noqa: S101 - it has members
            self.event.token = self.event.token.of(self.members, numbers)
        self.left = 1 if self.members is None else len(self.members)

    def give_up(self) -> None:
        """Tell those above what became of the members that failed."""
        tokens = [self.event.token] if self.members is None else self.members
        for number, (status, reason) in self.failed.items():
            token = tokens[number]
            if token is not None:
                token.settle(status, reason)


class RecallableEvent(SentBatch):
    """One event that left, with a copy of it as it came: it goes another way if it is taken back."""

    __slots__ = ("_back", "_copy")

    def __init__(self, event: Event, since: float, generation: int, way: str) -> None:
        super().__init__(since, generation, way)
        members = parts(event.token)
        self._copy = RetainedCopy(event, None if members is None else list(members))
        self._back: list[Settleable | None] = []  # what the tokens were that came back unused

    def sent(self, node: TokenOwner) -> Event:
        """The event to send."""
        event = duplicate(self._copy.event)
        self.left = mark(node, event, self._copy.members, lambda _: self)
        return event

    def back(self, token: Token) -> None:
        self._back.append(token.parent)

    def returned(self) -> Event | None:
        """All of it has come back: the event with the members that were taken back; None: there are none."""
        if not self._back:
            return None
        copy = self._copy
        if copy.members is not None:
            numbers = {id(member): number for number, member in enumerate(copy.members)}
            copy.failed = {numbers[id(each)]: (RETRY, "") for each in self._back}
        copy.narrowed()
        return copy.event


class RecallableBatch(SentBatch):
    """The same of a batch of plain events: each has a token of its own, so that says which event came back."""

    __slots__ = ("_by", "_events")

    def __init__(self, events: list[Event], since: float, generation: int, way: str) -> None:
        super().__init__(since, generation, way)
        self._events = events
        self._by: dict[int, Event] | None = None  # by id() of the token that the event came with

    @staticmethod
    def fits(events: Iterable[Event]) -> bool:
        """Whether all are plain."""
        for each in events:
            token = each.token
            if not isinstance(token, Token) or token.pending != 1:
                return False
        return True

    def sent(self, node: TokenOwner) -> list[Event]:
        """The events to send."""
        kind = WatchedToken if node.debug else Token
        going = [
            Event(
                copied(each.value), dict(each.meta), each.id, ingest_ns=each.ingest_ns, attempt=each.attempt,
                path=each.path, token=kind(node, self, each.token),
            )
            for each in self._events
        ]  # fmt: skip
        self.left = len(going)
        return going

    def event(self, token: Token) -> Event:
        """The event as it came, of which a token came back unused."""
        if self._by is None:
            self._by = {id(each.token): each for each in self._events}
        return self._by[id(token.parent)]


class RetainedCopies:
    """Those of one operator. ``failed`` is called with a copy when all of it is settled, and something failed."""

    def __init__(
        self, operator: Operator, most: int, statuses: frozenset[int], failed: Callable[[RetainedCopy], None]
    ) -> None:
        self._operator = operator
        self._most = most
        self._statuses = statuses  # those that mean failed
        self._failed = failed
        self.count = 0

    def take(self, event: Event) -> Event:
        """An event came: the one to send in its place."""
        if self.count >= self._most:
            self._operator.node.count("without_copy")
            return event
        self.count += 1
        members = parts(event.token)
        return RetainedCopy(event, None if members is None else list(members)).sent(self._operator.node)

    def settled(self, tokens: list[Token]) -> None:
        for token in tokens:
            copy: RetainedCopy
            copy, number = token.key
            reason = token.reason
            if isinstance(reason, Withdrawn):  # by this operator: it goes another way; by one above: that one's affair
                failed = reason.by is self._operator.node
            else:
                failed = token.status in self._statuses
            if failed:
                copy.failed[number] = (token.status, token.reason)
            elif token.parent is not None:
                token.parent.settle(token.status, token.reason)
            copy.left -= 1
            if not copy.left:
                if copy.failed:
                    self._failed(copy)
                else:
                    self.count -= 1

    def done(self) -> None:
        """A copy that failed is not needed any more."""
        self.count -= 1


def duplicate(event: Event, *, copies: bool = True) -> Event:
    """The event once more, with the same token. copies: with a copy of its value."""
    return Event(
        copied(event.value) if copies else event.value, dict(event.meta), event.id,
        ingest_ns=event.ingest_ns, attempt=event.attempt, path=event.path, token=event.token,
    )  # fmt: skip
