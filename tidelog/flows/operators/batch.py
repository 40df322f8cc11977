"""``batch``: combines events into one event, whose value is the list of their values.

Rule 1: A batch has the tokens of exactly its members. A sink that reports an outcome for each item settles each member
        separately.
Rule 2: A batch is emitted when it has ``count`` events, before it exceeds ``bytes``, ``timeout`` after its first event,
        when the flow drains, and when its source waits for the settlement of its members (``max_unsettled``).
Rule 3: After a drain has begun, each batch that arrives is emitted immediately, whatever its size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from tidelog.flows.api.event import Event, EventPredicate, extract
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import RETRY, Settleable, TokenGroup, Withheld, settle_all
from tidelog.options.structs import Struct
from tidelog.options.units import Duration, Size

MOST: Final = 1_000_000  # maximum number of events in a batch


class BatchOperatorOptions(Struct):
    """The options of ``batch``. At least one of the first three is required."""

    count: int | None = None  # Maximum number of events in a batch, from 1 to 1,000,000. The short form: `batch: 100`.
    bytes: Size | None = None
    # Maximum size of the values in a batch. A larger value forms a batch of its own. Strings and bytes count with their
    # own size, other values with that of their JSON.
    timeout: Duration | None = None  # Maximum time from the first event of a batch until it is emitted.
    flush_on_drain: bool = True
    # Whether a drain emits an incomplete batch. `false`: its events are returned to their source, which sends them
    # again after the flow has been restarted.

    def __post_init__(self) -> None:
        if self.count is None and self.bytes is None and self.timeout is None:
            raise ValueError("a batch needs a limit: count, bytes or timeout")
        if self.count is not None and not 1 <= self.count <= MOST:
            raise ValueError(f"count is {self.count}: it must be from 1 to {MOST}")
        if self.bytes is not None and self.bytes < 1:
            raise ValueError(f"bytes is {self.bytes}: it must be at least 1")
        if self.timeout is not None and self.timeout <= 0:
            raise ValueError(f"timeout is {self.timeout}: it must be more than 0")


class Batched(TokenGroup):
    """The token of a batch. ``origins`` are the events of its members, without values."""

    __slots__ = ("origins",)

    def __init__(self, members: Sequence[Settleable], origins: Sequence[Event]) -> None:
        super().__init__(members)
        self.origins = origins

    def fork(self) -> Batched:
        return Batched([member.fork() for member in self.members], self.origins)

    def of(self, members: Sequence[Settleable], numbers: Sequence[int] | None = None) -> Batched:
        return Batched(members, self.origins if numbers is None else [self.origins[each] for each in numbers])


class BatchOperator(Operator):
    """Implements ``batch``."""

    type = "batch"
    short = "count"
    gathers = True
    Options = BatchOperatorOptions

    def __init__(self, options: BatchOperatorOptions) -> None:
        self._count = MOST if options.count is None else options.count
        self._most_bytes = options.bytes
        self._timeout = options.timeout
        self._flush_on_drain = options.flush_on_drain
        self._events: list[Event] = []
        self._bytes = 0
        self._begun = 0.0  # event loop time of the first event
        self._timer: asyncio.TimerHandle | None = None
        self._draining = False

    def process(self, events: list[Event]) -> None:
        made: list[Event] = []
        waited = bool(self._events)
        if self._most_bytes is None:
            start = 0
            while start < len(events):
                end = start + self._count - len(self._events)
                self._events += events[start:end]
                start = end
                if len(self._events) >= self._count:
                    made.append(self._batch())
        else:
            for event in events:
                self._measured(event, self._most_bytes, made)
        if made:
            self.emit(made)
        if self._draining:
            self._drained()
        elif self._events:
            if made or not waited:  # the remaining events have just arrived
                self._begun = asyncio.get_running_loop().time()
            self._set_timer()

    def _measured(self, event: Event, most: int, made: list[Event]) -> None:
        try:
            size = size_of(event.value)
        except Exception as error:  # noqa: BLE001 - values of user functions can be of any type
            self.fail(event, error)
            return
        if self._events and self._bytes + size > most:
            made.append(self._batch())
        self._events.append(event)
        self._bytes += size
        if self._bytes >= most or len(self._events) >= self._count:
            made.append(self._batch())

    def _batch(self) -> Event:
        members, self._events, self._bytes = self._events, [], 0
        tokens = [each.token for each in members if each.token is not None]
        first = members[0]
        batch = Event(
            [each.value for each in members],
            {"batch": {"count": len(members)}},
            ingest_ns=min(each.ingest_ns for each in members),
            attempt=max(each.attempt for each in members),
            path=first.path,
            token=Batched(tokens, members) if len(tokens) == len(members) else TokenGroup(tokens) if tokens else None,
        )
        for each in members:
            each.value = each.token = None
        return batch

    # -- time ------------------------------------------------------------------------------------------------
    def _set_timer(self) -> None:
        if self._timeout is not None and self._timer is None:
            due = self._begun + self._timeout - asyncio.get_running_loop().time()
            self._timer = self.node.after(max(due, 0.0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._events and self._timeout is not None:
            if asyncio.get_running_loop().time() >= self._begun + self._timeout:
                self.release()
            else:  # the batch was emitted, and another one has begun
                self._set_timer()

    def release(self) -> None:
        if self._events:
            self.emit([self._batch()])

    # -- the end ---------------------------------------------------------------------------------------------
    def drain(self) -> None:
        self._draining = True
        self._drained()

    def _drained(self) -> None:
        if self._flush_on_drain:
            self.release()
        else:
            events, self._events, self._bytes = self._events, [], 0
            reason = Withheld(f"{self.node.name}: the flow drained before the batch was complete")
            settle_all(events, RETRY, reason)

    def withdraw(self, wanted: EventPredicate) -> list[Event]:
        found: list[Event] = []
        self._events = extract(self._events, wanted, found)
        if found and self._most_bytes is not None:
            self._bytes = sum(size_of(each.value) for each in self._events)
        return found

    def gathered(self) -> Iterable[Settleable | None]:
        return [each.token for each in self._events]

    def kept(self) -> int:
        return len(self._events)

    def forget(self) -> None:
        self._events = []

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def size_of(value: Any) -> int:
    """Return the size of a value in bytes. Strings and bytes have their own size, other values that of their JSON.
    Raises TypeError if there is no JSON.
    """
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    return len(msgspec.json.encode(value))
