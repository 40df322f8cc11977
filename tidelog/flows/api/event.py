"""What travels through a flow.

Rule 1: an event belongs to one branch. Whoever holds it may replace ``value`` and change ``meta``; where a port has
        several channels, each one after the first gets a copy, its containers included.
Rule 2: its token says what became of it, and is settled once for each branch (``tokens.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from tidelog.flows.api.tokens import Settleable, quickly_set

BATCH: Final = 512  # events in one batch, at most


@quickly_set
class Event(msgspec.Struct, eq=False, gc=False):
    """An event on its way.

    ``value`` is what the source's codec made of it, or an operator. ``meta`` says more about it: strings to plain
    values. ``id`` is the source's: an entry's ID, an offset. ``ingest_ns`` is when it came in, in ns since 1970,
    ``attempt`` how often it was tried, this time included, ``path`` the port of the connector that it came from.

    Events and their tokens are structures that the collector of circles doesn't look at: it would take half of the
    time. So an event must not be put into its own value or meta, and a connector or operator that keeps events lets go
    of them in ``close`` or ``forget``.
    """

    value: Any
    meta: dict[str, Any] = None  # type: ignore[assignment] # until __post_init__
    id: Any = None
    ingest_ns: int = 0  # 0: the runtime fills it in
    attempt: int = 1
    path: str = ""
    token: Settleable | None = None  # None: nobody wants to know

    if TYPE_CHECKING:

        def __init__(
            self,
            value: Any,
            meta: dict[str, Any] | None = None,
            id: Any = None,  # noqa: A002 - its name everywhere
            *,
            ingest_ns: int = 0,
            attempt: int = 1,
            path: str = "",
            token: Settleable | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.meta is None:
            self.meta = {}  # type: ignore[unreachable] # but for None

    def remembered(self) -> Event:
        """A copy to send it again from. It has no token."""
        return Event(
            copied(self.value), dict(self.meta), self.id, ingest_ns=self.ingest_ns, attempt=self.attempt,
            path=self.path,
        )  # fmt: skip

    def derive(self, value: Any) -> Event:
        """Another event that came of this one: the same token, which the caller has to split (``Token.split``)."""
        return Event(
            value, dict(self.meta), self.id, ingest_ns=self.ingest_ns, attempt=self.attempt, path=self.path,
            token=self.token,
        )  # fmt: skip

    def fork(self, *, counted: bool = True) -> Event:
        """This event for one more branch, with a copy of its value. Its token counts the branch, unless told not to."""
        return Event(
            copied(self.value), dict(self.meta), self.id, ingest_ns=self.ingest_ns, attempt=self.attempt,
            path=self.path, token=self.token.fork() if counted and self.token is not None else None,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Event({self.value!r}, id={self.id!r})"


EventPredicate: TypeAlias = Callable[[Event], bool]


def extract(events: list[Event], wanted: EventPredicate, found: list[Event]) -> list[Event]:
    """Append the events for which ``wanted`` is true to ``found``; return the others."""
    left: list[Event] = []
    for each in events:
        (found if wanted(each) else left).append(each)
    return left


def copied(value: Any) -> Any:
    """A copy of a value as codecs make them: dicts and lists are new, what can't change is shared."""
    kind = type(value)
    if kind is dict:
        return {key: each if type(each) in _PLAIN else copied(each) for key, each in value.items()}
    if kind is list:
        return [each if type(each) in _PLAIN else copied(each) for each in value]
    return bytearray(value) if kind is bytearray else value


_PLAIN: Final = frozenset((str, int, float, bool, bytes, type(None)))
