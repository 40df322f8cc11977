"""What became of an event: tokens, and how they are settled.

Rule 1: a token's ``pending`` counts its branches. ``fork`` and ``split`` add to it, ``settle`` takes one off. At zero its
        owner is told, once, with the worst status of all branches.
Rule 2: statuses are ordered by what is still owed: ``retry`` is the worst, because some branch has not got the event and
        may get it; then ``reject`` (a branch never will), ``discard`` (meant not to), ``ok``.
Rule 3: an event made of several has a ``Group``: exactly the tokens of its members, never a range of IDs.
Rule 4: an operator that wants to see the settlement puts a token of its own before the event's: ``Token(self, key, parent)``.
        What it was told it passes on to ``parent``, now or later, changed or not. So contraflow passes the operators that
        care, in reverse, and costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from tidelog.flows.event import Event

OK: Final = 0
DISCARD: Final = 1  # meant: filtered, sampled, overflowed
REJECT: Final = 2  # will never work
RETRY: Final = 3  # may work another time

STATUSES: Final = ("ok", "discard", "reject", "retry")


class SettledTwiceError(AssertionError):
    """A branch was settled that had been settled before: a bug of the entity that did it. The text names the token."""


class Owner(Protocol):
    """Who is told. ``done`` is its contraflow channel."""

    done: list[Token]
    debug: bool

    def wake(self) -> None: ...
    def settled_twice(self, token: Token | Group) -> None: ...


class Unsettled(Protocol):
    """What an event's token can do."""

    def settle(self, status: int = OK, reason: str = "") -> None: ...
    def fork(self) -> Unsettled: ...
    def split(self, more: int) -> None: ...


class Token:
    """One event of a source, or of an operator that wants to see what becomes of it."""

    __slots__ = ("key", "owner", "parent", "pending", "reason", "since", "status")

    def __init__(self, owner: Owner, key: Any = None, parent: Unsettled | None = None, since: float = 0.0) -> None:
        self.owner = owner
        self.key = key  # the owner's: it says which event this was
        self.parent = parent  # None: a source's
        self.pending = 1  # branches that have not been settled
        self.status = OK
        self.reason = ""  # of the worst status
        self.since = since  # s of the loop's clock: when it was made; 0: nobody asks

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


class WatchedToken(Token):
    """A token of a flow in debug mode: that it is collected unsettled is noticed."""

    __slots__ = ()

    def __del__(self) -> None:
        if self.pending > 0:
            lost = getattr(self.owner, "lost_unsettled", None)
            if lost is not None:
                lost(repr(self))


class Group:
    """The token of an event that was made of several: of a batch, of a window.

    It belongs to one branch: ``fork`` makes another group of the same members.
    """

    __slots__ = ("members", "pending", "reason", "status")

    def __init__(self, members: Sequence[Unsettled]) -> None:
        self.members = members
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
        if self.pending != 1:
            if self.pending <= 0:
                self._twice()
                return
            raise ValueError("an event that was split can't be settled item by item")
        self.pending = 0
        for member, (status, reason) in zip(self.members, each, strict=True):
            if self.status > status:  # a part of it ended worse before
                status, reason = self.status, self.reason
            member.settle(status, reason)

    def fork(self) -> Group:
        """A group of the same members for one more branch."""
        return Group([member.fork() for member in self.members])

    def split(self, more: int) -> None:
        self.pending += more

    def _twice(self) -> None:
        for owner in owners(self):
            owner.settled_twice(self)
            return

    def __repr__(self) -> str:
        return f"<group of {len(self.members)}: {self.pending} pending, {STATUSES[self.status]}>"


def owners(token: Unsettled) -> Iterable[Owner]:
    """Who will be told of a token: the owners of its members, where it has some."""
    if isinstance(token, Group):
        for member in token.members:
            yield from owners(member)
    elif isinstance(token, Token):
        yield token.owner


def settle_all(events: Iterable[Event], status: int = OK, reason: str = "") -> None:
    """Settle events that share a fate: what ``token.settle`` does for each, without a call for each."""
    told: Owner | None = None
    for event in events:
        token = event.token
        if type(token) is Token and token.pending == 1:
            token.pending = 0
            if status > token.status:
                token.status = status
                token.reason = reason
            owner = token.owner
            owner.done.append(token)
            if owner is not told:
                told = owner
                owner.wake()
        elif token is not None:
            token.settle(status, reason)
