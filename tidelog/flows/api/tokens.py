"""Tokens report the outcome of an event to its source.

Rule 1: A token's ``pending`` counts its branches. ``fork`` and ``split`` increase it, ``settle`` decreases it. At zero,
        the owner is notified once, with the worst status of all branches.
Rule 2: ``retry`` is the worst status, followed by ``reject``, ``discard`` and ``ok``.
Rule 3: An event that was composed of several events has a ``TokenGroup`` with exactly their tokens, never a range of
        IDs.
Rule 4: An operator that needs the settlement puts its own token before the event's: ``Token(self.node, key, parent)``.
        It forwards the settlement to ``parent``, immediately or later, unchanged or not.

Decision: ``retry`` is worse than ``reject``. Suppose that of two sinks one rejects an event permanently and the other
has not received it yet. Settled as a reject, the event would become a dead letter and the second sink would never
receive it. After a retry, the event is rejected again by the first sink and delivered to the second one, and the reject
remains.

Decision: a token points directly to its source, so operators without a token of their own, such as filters, cost
nothing in contraflow, and no message for each event and operator is needed. Only ``retry``, ``roundrobin``,
``backpressure`` and the like insert hop tokens (Rule 4).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

T = TypeVar("T")

OK: Final = 0
DISCARD: Final = 1  # intended: filtered, sampled, overflowed
REJECT: Final = 2  # permanent failure
RETRY: Final = 3  # can succeed later

STATUSES: Final = ("ok", "discard", "reject", "retry")


class Withheld(str):
    """The reason of events that are returned because the flow drains. The source does not send them again in this run.
    """

    __slots__ = ()


class Withdrawn(str):
    """The reason of events that an operator recalled from one of its outputs before they were processed there.

    The status is RETRY. ``by`` is the entity of the operator, which sends the event to another output. Entities before
    that one forward the settlement unchanged, because nothing has failed.
    """

    by: object

    def __new__(cls, text: str, by: object) -> Withdrawn:
        made = super().__new__(cls, text)
        made.by = by
        return made


class SettledTwiceError(AssertionError):
    """A branch was settled twice. This is a bug of the entity that settled it. The text contains the token."""


class LostTokenError(AssertionError):
    """A token was garbage-collected before it was settled, because an entity dropped an event. Detected in debug mode.
    """


class TokenOwner(Protocol):
    """The entity that is notified. ``done`` is its contraflow channel."""

    done: list[Token]
    debug: bool

    def wake(self) -> None: ...
    def settled_twice(self, token: Token | TokenGroup) -> None: ...
    def lost_unsettled(self, text: str) -> None: ...


class Settleable(Protocol):
    """The operations on the token of an event."""

    def settle(self, status: int = OK, reason: str = "") -> None: ...
    def fork(self) -> Settleable: ...
    def split(self, more: int) -> None: ...


class TokenCarrier(Protocol):
    """An object with a token, such as an event."""

    @property
    def token(self) -> Settleable | None: ...


def quickly_set(kind: type[T]) -> type[T]:
    """Decorate a msgspec struct with gc=False so that Python itself sets its fields, in 3 ns instead of 15.

    The setter of msgspec also tracks the object for the garbage collector, which such an object never needs. The
    decorator only works on a completed class.
    """
    kind.__delattr__ = object.__delattr__  # type: ignore[method-assign]
    kind.__setattr__ = object.__setattr__  # type: ignore[method-assign]
    return kind


@quickly_set
class Token(msgspec.Struct, eq=False, gc=False):
    """The settlement of one event of a source, or of an operator that needs to know the outcome."""

    owner: TokenOwner
    key: Any = None  # identifies the event for the owner
    parent: Settleable | None = None  # None: the owner is a source
    pending: int = 1  # branches that have not been settled
    status: int = OK
    reason: str = ""  # of the worst status

    def settle(self, status: int = OK, reason: str = "") -> None:
        """Settle one branch."""
        if self.pending <= 0:
            self.owner.settled_twice(self)
            return
        if status > self.status:
            self.status = status
            self.reason = reason
        self.pending -= 1
        if not self.pending:
            owner = self.owner
            owner.done.append(self)
            owner.wake()

    def fork(self) -> Token:
        """Add one branch."""
        self.pending += 1
        return self

    def split(self, more: int) -> None:
        """Add ``more`` events to this branch."""
        self.pending += more

    def __repr__(self) -> str:
        return f"<token {self.key!r}: {self.pending} pending, {STATUSES[self.status]}>"


class WatchedToken(Token, eq=False, gc=True, weakref=True):
    """A token in debug mode. If it is collected unsettled, its owner is notified."""

    def __del__(self) -> None:
        if self.pending > 0:
            self.owner.lost_unsettled(repr(self))


class WeakToken:
    """A weak reference to a token, used in debug mode, in which a strong reference would prevent its collection."""

    __slots__ = ("_token",)

    def __init__(self, token: Token) -> None:
        self._token = weakref.ref(token)

    @property
    def pending(self) -> int:
        token = self._token()
        return 0 if token is None else token.pending

    @property
    def identity(self) -> int:
        """The token's id() while it is pending."""
        return id(self._token())

    @property
    def status(self) -> int:
        token = self._token()
        return OK if token is None else token.status


class TokenGroup:
    """The token of an event that was composed of several events, as in a batch or a window.

    It belongs to one branch. ``fork`` creates another group of the same members.
    """

    __slots__ = ("_split", "members", "pending", "reason", "status")

    def __init__(self, members: Sequence[Settleable]) -> None:
        self.members = members
        self._split = False
        self.pending = 1
        self.status = OK
        self.reason = ""

    def settle(self, status: int = OK, reason: str = "") -> None:
        """Settle one part of this branch. With the last part, all members get the worst status."""
        if self.pending <= 0:
            self._twice()
            return
        if status > self.status:
            self.status = status
            self.reason = reason
        self.pending -= 1
        if not self.pending:
            for member in self.members:
                member.settle(self.status, self.reason)

    def settle_items(self, outcomes: Iterable[tuple[int, str]]) -> None:
        """Settle this branch with a status and a reason for each member, in order.

        Raises ValueError if the number of outcomes differs from the number of members, or if the event was split.
        """
        each = list(outcomes)
        if len(each) != len(self.members):
            raise ValueError(f"{len(each)} outcomes for a group of {len(self.members)}")
        if self.pending <= 0:
            self._twice()
            return
        if not self.intact:
            raise ValueError("an event that was split can't be settled by member")
        self.pending = 0
        for member, (status, reason) in zip(self.members, each, strict=True):
            member.settle(status, reason)

    def fork(self) -> TokenGroup:
        """Return a group of the same members for one more branch."""
        return TokenGroup([member.fork() for member in self.members])

    def of(self, members: Sequence[Settleable], numbers: Sequence[int] | None = None) -> TokenGroup:  # noqa: ARG002
        """Return a group of other tokens that replace all members, or the members with these numbers."""
        return TokenGroup(members)

    def split(self, more: int) -> None:
        self.pending += more
        self._split = True

    @property
    def intact(self) -> bool:
        """Whether the event was neither split nor settled, so that it still represents all of its members."""
        return self.pending == 1 and not self._split

    def apart(self) -> Sequence[Settleable] | None:
        """Return the members, for a caller that settles them one by one. Return None if the event was split."""
        if not self.intact:
            return None
        self.pending = 0
        return self.members

    def _twice(self) -> None:
        for owner in owners(self):
            owner.settled_twice(self)
            return

    def __repr__(self) -> str:
        return f"<group of {len(self.members)}: {self.pending} pending, {STATUSES[self.status]}>"


def owners(token: Settleable) -> Iterable[TokenOwner]:
    """Yield the owners that a token notifies. For a group, these are the owners of its members."""
    if isinstance(token, TokenGroup):
        for member in token.members:
            yield from owners(member)
    elif isinstance(token, Token):
        yield token.owner


def owned(token: Settleable | None, owner: TokenOwner) -> Iterable[Token]:
    """Yield the tokens of one entity among the members and the parents of a token."""
    while isinstance(token, Token):
        if token.owner is owner:
            yield token
            return
        token = token.parent
    if isinstance(token, TokenGroup):
        for member in token.members:
            yield from owned(member, owner)


def settle_all(events: Iterable[TokenCarrier], status: int = OK, reason: str = "") -> None:
    """Settle events with the same outcome, without a call for each token."""
    told: TokenOwner | None = None
    done: list[Token] = []
    for event in events:
        token = event.token
        if type(token) is Token and token.pending == 1:
            token.pending = 0
            if status and status > token.status:
                token.status = status
                token.reason = reason
            if token.owner is not told:
                told = token.owner
                done = told.done  # no owner's task runs before this returns
                told.wake()
            done.append(token)
        elif token is not None:
            token.settle(status, reason)
