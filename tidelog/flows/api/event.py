"""``Event``: what passes through a flow.

Rule 1: An event belongs to one branch. Its current holder may replace ``value`` and change ``meta``. If a port has
        several channels, each channel after the first gets a copy, including copies of the containers in it.
Rule 2: The token of an event reports its outcome. It is settled once for each branch (``tokens``).

Decision: events and tokens are msgspec structs without cyclic garbage collection, because one of each is created for
each event. With slotted classes, settlement takes three times as long, and the passes of the collector take half of the
total time. In return, neither may be part of a reference cycle: an event must not be put into its own value or meta,
and a connector or operator that stores events releases them in ``close`` or ``forget``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from tidelog.flows.api.tokens import Settleable, quickly_set

BATCH: Final = 512  # maximum number of events in a batch


@quickly_set
class Event(msgspec.Struct, eq=False, gc=False):
    """A value with metadata.

    ``value`` is produced by the source's codec or by an operator. ``meta`` maps strings to plain values. ``id`` is
    assigned by the source, for example an entry's ID or an offset. ``ingest_ns`` is the time of arrival in ns since
    1970. ``attempt`` is the number of the current attempt, from 1. ``path`` is the port of the connector that produced
    the event.
    """

    value: Any
    meta: dict[str, Any] = None  # type: ignore[assignment] # until __post_init__
    id: Any = None
    ingest_ns: int = 0  # 0: the runtime fills it in
    attempt: int = 1
    path: str = ""
    token: Settleable | None = None  # None: the outcome is not reported

    if TYPE_CHECKING:

        def __init__(
            self,
            value: Any,
            meta: dict[str, Any] | None = None,
            id: Any = None,  # noqa: A002 - the same name as in connectors
            ingest_ns: int = 0,
            attempt: int = 1,
            path: str = "",
            token: Settleable | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.meta is None:
            self.meta = {}  # type: ignore[unreachable] # but for None

    def remembered(self) -> Event:
        """Return a copy without a token, from which the event can be sent again."""
        return Event(copied(self.value), dict(self.meta), self.id, self.ingest_ns, self.attempt, self.path)

    def derive(self, value: Any) -> Event:
        """Return an event with another value and the same token. The caller must split the token (``Token.split``)."""
        return Event(value, dict(self.meta), self.id, self.ingest_ns, self.attempt, self.path, self.token)

    def fork(self, *, counted: bool = True) -> Event:
        """Return a copy for one more branch. Its token counts the branch if ``counted`` is true."""
        event = self.remembered()
        event.token = self.token.fork() if counted and self.token is not None else None
        return event

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
    """Return a copy of a value that a codec produced: dicts and lists are copied, immutable values are shared."""
    kind = type(value)
    if kind is dict:
        return {key: each if type(each) in _PLAIN else copied(each) for key, each in value.items()}
    if kind is list:
        return [each if type(each) in _PLAIN else copied(each) for each in value]
    return bytearray(value) if kind is bytearray else value


_PLAIN: Final = frozenset((str, int, float, bool, bytes, type(None)))
