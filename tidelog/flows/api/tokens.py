"""What became of an event: tokens, and how they are settled.

Rule 1: a token's ``pending`` counts its branches. ``fork`` and ``split`` add to it, ``settle`` takes one off. At zero
        its owner is told, once, with the worst status of all branches.
Rule 2: statuses are ordered by what is still owed: ``retry`` is the worst, because some branch has not got the event
        and may get it; then ``reject`` (a branch never will), ``discard`` (meant not to), ``ok``.
Rule 3: an event made of several has a ``TokenGroup``: exactly the tokens of its members, never a range of IDs.
Rule 4: an operator that wants to see the settlement puts a token of its own before the event's:
        ``Token(self.node, key, parent)``. What it was told it passes on to ``parent``, now or later, changed or not.
        So contraflow passes the operators that care, in reverse, and costs the others nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

T = TypeVar("T")

OK: Final = 0
DISCARD: Final = 1  # meant: filtered, sampled, overflowed
REJECT: Final = 2  # will never work
RETRY: Final = 3  # may work another time

STATUSES: Final = ("ok", "discard", "reject", "retry")


class Withheld(str):
    """The reason of what is given back because the flow drains: its source doesn't send it again before it is started
    anew.
    """

    __slots__ = ()


class Withdrawn(str):
    """The reason of what an operator took back from one of its outputs before anything was done with it there.

    Its status is RETRY. ``by`` is the operator's entity: it sends the event another way. Entities before that one pass
    it on as it is: nothing has failed.
    """

    by: object

    def __new__(cls, text: str, by: object) -> Withdrawn:
        made = super().__new__(cls, text)
        made.by = by
        return made


class SettledTwiceError(AssertionError):
    """A branch was settled that had been settled before: a bug of the entity that did it. The text names the token."""


class LostTokenError(AssertionError):
    """A token was collected before it was settled: an entity let go of an event. Noticed in debug mode."""


class TokenOwner(Protocol):
    """Who is told. ``done`` is its contraflow channel."""

    done: list[Token]
    debug: bool

    def wake(self) -> None: ...
    def settled_twice(self, token: Token | TokenGroup) -> None: ...
    def lost_unsettled(self, text: str) -> None: ...


class Settleable(Protocol):
    """What an event's token can do."""

    def settle(self, status: int = OK, reason: str = "") -> None: ...
    def fork(self) -> Settleable: ...
    def split(self, more: int) -> None: ...


class TokenCarrier(Protocol):
    """An event, as far as tokens are concerned."""

    @property
    def token(self) -> Settleable | None: ...


def quickly_set(kind: type[T]) -> type[T]:
    """A structure of msgspec with gc=False whose fields are set by Python itself: in 3 ns instead of 15.

    What msgspec does besides is to show the object to the collector of circles, and such a one never is. It works only
    once the class is made.
    """
    kind.__delattr__ = object.__delattr__  # type: ignore[method-assign]
    kind.__setattr__ = object.__setattr__  # type: ignore[method-assign]
    return kind


@quickly_set
class Token(msgspec.Struct, eq=False, gc=False):
    """One event of a source, or of an operator that wants to see what becomes of it.

    A structure of msgspec that the collector of circles doesn't look at, because one is made for each event: with a
    class with slots settlement takes three times as long.
    """

    owner: TokenOwner
    key: Any = None  # the owner's: it says which event this was
    parent: Settleable | None = None  # None: a source's
    pending: int = 1  # branches that have not been settled
    status: int = OK
    reason: str = ""  # of the worst status

    def settle(self, status: int = OK, reason: str = "") -> None:
        """End one branch."""
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
        """One more branch."""
        self.pending += 1
        return self

    def split(self, more: int) -> None:
        """So many more events of the same branch."""
        self.pending += more

    def __repr__(self) -> str:
        return f"<token {self.key!r}: {self.pending} pending, {STATUSES[self.status]}>"


class WatchedToken(Token, eq=False, gc=True, weakref=True):
    """A token of a flow in debug mode: that it is collected unsettled is noticed."""

    def __del__(self) -> None:
        if self.pending > 0:
            self.owner.lost_unsettled(repr(self))


class WeakToken:
    """A token that is looked at and not kept: of a flow in debug mode, or it would never be collected."""

    __slots__ = ("_token",)

    def __init__(self, token: Token) -> None:
        self._token = weakref.ref(token)

    @property
    def pending(self) -> int:
        token = self._token()
        return 0 if token is None else token.pending

    @property
    def identity(self) -> int:
        """The token's id(), as long as it is pending."""
        return id(self._token())

    @property
    def status(self) -> int:
        token = self._token()
        return OK if token is None else token.status


class TokenGroup:
    """The token of an event that was made of several: of a batch, of a window.

    It belongs to one branch: ``fork`` makes another group of the same members.
    """

    __slots__ = ("_split", "members", "pending", "reason", "status")

    def __init__(self, members: Sequence[Settleable]) -> None:
        self.members = members
        self._split = False
        self.pending = 1
        self.status = OK
        self.reason = ""

    def settle(self, status: int = OK, reason: str = "") -> None:
        """End one part of this branch. With the last part, all members get the worst status."""
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
        """End this branch with a status and a reason for each member, in their order.

        Raises ValueError where there are more or fewer outcomes than members, or where the event was split.
        """
        each = list(outcomes)
        if len(each) != len(self.members):
            raise ValueError(f"{len(each)} outcomes for a group of {len(self.members)}")
        if self.pending <= 0:
            self._twice()
            return
        if not self.intact:
            raise ValueError("an event that was split can't be settled item by item")
        self.pending = 0
        for member, (status, reason) in zip(self.members, each, strict=True):
            member.settle(status, reason)

    def fork(self) -> TokenGroup:
        """A group of the same members for one more branch."""
        return TokenGroup([member.fork() for member in self.members])

    def of(self, members: Sequence[Settleable], numbers: Sequence[int] | None = None) -> TokenGroup:  # noqa: ARG002
        """A group of other tokens in the place of these, or of those of the members with these numbers."""
        return TokenGroup(members)

    def split(self, more: int) -> None:
        self.pending += more
        self._split = True

    @property
    def intact(self) -> bool:
        """Whether the event is still the whole of its members: it was neither split nor settled."""
        return self.pending == 1 and not self._split

    def apart(self) -> Sequence[Settleable] | None:
        """The members, for whoever asks to settle one by one. None: the event was split, they share a fate."""
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
    """Who will be told of a token: the owners of its members, where it has some."""
    if isinstance(token, TokenGroup):
        for member in token.members:
            yield from owners(member)
    elif isinstance(token, Token):
        yield token.owner


def owned(token: Settleable | None, owner: TokenOwner) -> Iterable[Token]:
    """The tokens of one entity behind a token: among its members, and before those of operators."""
    while isinstance(token, Token):
        if token.owner is owner:
            yield token
            return
        token = token.parent
    if isinstance(token, TokenGroup):
        for member in token.members:
            yield from owned(member, owner)


def settle_all(events: Iterable[TokenCarrier], status: int = OK, reason: str = "") -> None:
    """Settle events that share a fate: what ``token.settle`` does for each, without a call for each."""
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
