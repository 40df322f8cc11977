"""Copies of events in flight, for operators that send events again after they failed.

Rule 1: A copy is created before the event is sent, so the entities below may change the event.
Rule 2: If an event consists of several members, members that succeeded are settled, and only the others are sent again.
        If the value is a list with an item for each member, only their items are sent.
Rule 3: The number of copies is limited. When it is reached, further events are sent without a copy, and their source is
        responsible for retries. (Waiting could take forever, for example if a batch below is never completed.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidelog.flows.api.event import Event, copied
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import RETRY, Settleable, Token, TokenGroup, TokenOwner, WatchedToken, Withdrawn
from tidelog.flows.operators.hops import SentBatch, mark, parts


class RetainedCopy:
    """An event in flight, with the outcomes of its members so far."""

    __slots__ = ("event", "failed", "left", "members", "tries")

    def __init__(self, event: Event, members: list[Settleable] | None) -> None:
        self.event = event  # not sent; it has the token that it arrived with
        self.members = members  # None: a single event
        self.left = 1 if members is None else len(members)
        self.failed: dict[int, tuple[int, str]] = {}  # by number of the member: status, reason
        self.tries = 0  # number of times that it was sent again

    def sent(self, node: TokenOwner) -> Event:
        """Return the event to send, with tokens of ``node``."""
        event = self.event.derive(copied(self.event.value))
        mark(node, event, self.members, lambda number: (self, number))
        self.failed = {}
        return event

    def reason(self) -> str:
        return max(self.failed.values())[1]

    def narrowed(self) -> None:
        """Retain only the members that failed."""
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
        """Settle the members that failed."""
        tokens = [self.event.token] if self.members is None else self.members
        for number, (status, reason) in self.failed.items():
            token = tokens[number]
            if token is not None:
                token.settle(status, reason)


class RecallableEvent(SentBatch):
    """An event in flight with a copy of its original form, which is sent to another output if it is recalled."""

    __slots__ = ("_back", "_copy")

    def __init__(self, event: Event, since: float, generation: int, way: str) -> None:
        super().__init__(since, generation, way)
        members = parts(event.token)
        self._copy = RetainedCopy(event, None if members is None else list(members))
        self._back: list[Settleable | None] = []  # the original tokens that were returned unused

    def sent(self, node: TokenOwner) -> Event:
        """Return the event to send."""
        event = self._copy.event.derive(copied(self._copy.event.value))
        self.left = mark(node, event, self._copy.members, lambda _: self)
        return event

    def back(self, token: Token) -> None:
        self._back.append(token.parent)

    def returned(self) -> Event | None:
        """Return the event with its recalled members after all members were returned. Return None if there are none."""
        if not self._back:
            return None
        copy = self._copy
        if copy.members is not None:
            numbers = {id(member): number for number, member in enumerate(copy.members)}
            copy.failed = {numbers[id(each)]: (RETRY, "") for each in self._back}
        copy.narrowed()
        return copy.event


class RecallableBatch(SentBatch):
    """A batch of plain events in flight. The token of each event identifies the event that was recalled."""

    __slots__ = ("_by", "_events")

    def __init__(self, events: list[Event], since: float, generation: int, way: str) -> None:
        super().__init__(since, generation, way)
        self._events = events
        self._by: dict[int, Event] | None = None  # by id() of the event's original token

    @staticmethod
    def fits(events: Iterable[Event]) -> bool:
        """Return whether all events have a token of their own."""
        for each in events:
            token = each.token
            if not isinstance(token, Token) or token.pending != 1:
                return False
        return True

    def sent(self, node: TokenOwner) -> list[Event]:
        """Return the events to send."""
        kind = WatchedToken if node.debug else Token
        events = []
        for each in self._events:
            event = each.remembered()
            event.token = kind(node, self, each.token)
            events.append(event)
        self.left = len(events)
        return events

    def event(self, token: Token) -> Event:
        """Return the original event of a token that was returned unused."""
        if self._by is None:
            self._by = {id(each.token): each for each in self._events}
        return self._by[id(token.parent)]


class RetainedCopies:
    """The copies of one operator. ``failed`` is called with a copy if all its members are settled, and some failed."""

    def __init__(
        self, operator: Operator, most: int, statuses: frozenset[int], failed: Callable[[RetainedCopy], None]
    ) -> None:
        self._operator = operator
        self._most = most
        self._statuses = statuses  # the statuses that count as failures
        self._failed = failed
        self.count = 0

    def take(self, event: Event) -> Event:
        """Return the event to send for an event that arrived."""
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
            if isinstance(reason, Withdrawn):  # recalled by this operator, or by one above
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
        """Release a copy that failed."""
        self.count -= 1
