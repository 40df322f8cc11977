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
from typing import Annotated, Any, Final

import msgspec

from tidelog.flows.api.event import Event, EventPredicate
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import RETRY, Settleable, TokenGroup, Withheld, settle_all
from tidelog.options.structs import Struct
from tidelog.options.units import PositiveDuration, PositiveSize

MOST: Final = 100_000  # maximum number of events in a batch, which takes about 25 ms to compose


class BatchOperatorOptions(Struct):
    """The options of ``batch``. At least one of the first three is required."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MOST)] | None = None
    # Maximum number of events in a batch, from 1 to 100,000. The short form: `batch: 100`.
    bytes: PositiveSize | None = None
    # Maximum size of the values in a batch. A larger value forms a batch of its own. Strings and bytes count with their
    # own size, other values with that of their JSON.
    timeout: PositiveDuration | None = None  # Maximum time from the first event of a batch until it is emitted.
    flush_on_drain: bool = True
    # Whether a drain emits an incomplete batch. `false`: its events are returned to their source, which sends them
    # again after the flow has been restarted.

    def __post_init__(self) -> None:
        if self.count is None and self.bytes is None and self.timeout is None:
            raise ValueError("a batch needs a limit: count, bytes or timeout")


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
        self._options = options
        self._count = options.count or MOST
        self.buffer = []
        self._bytes = 0
        self._begun = 0.0  # event loop time of the first event
        self._timer: asyncio.TimerHandle | None = None
        self._draining = False

    def process(self, events: list[Event]) -> None:
        made: list[Event] = []
        waited = bool(self.buffer)
        if self._options.bytes is None:
            start = 0
            while start < len(events):
                end = start + self._count - len(self.buffer)
                self.buffer += events[start:end]
                start = end
                if len(self.buffer) >= self._count:
                    made.append(self._batch())
        else:
            for event in events:
                self._measured(event, self._options.bytes, made)
        self.emit(made)
        if self._draining:
            self._drained()
        elif self.buffer:
            if made or not waited:  # the remaining events have just arrived
                self._begun = now()
            self._set_timer()

    def _measured(self, event: Event, most: int, made: list[Event]) -> None:
        try:
            size = size_of(event.value)
        except Exception as error:  # noqa: BLE001 - values of user functions can be of any type
            self.fail(event, error)
            return
        if self.buffer and self._bytes + size > most:
            made.append(self._batch())
        self.buffer.append(event)
        self._bytes += size
        if self._bytes >= most or len(self.buffer) >= self._count:
            made.append(self._batch())

    def _batch(self) -> Event:
        members, self.buffer, self._bytes = self.buffer, [], 0
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
        if self._options.timeout is not None and self._timer is None:
            due = self._begun + self._options.timeout - now()
            self._timer = self.node.after(max(due, 0.0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.buffer and self._options.timeout is not None:
            if now() >= self._begun + self._options.timeout:
                self.release()
            else:  # the batch was emitted, and another one has begun
                self._set_timer()

    def release(self) -> None:
        if self.buffer:
            self.emit([self._batch()])

    # -- the end ---------------------------------------------------------------------------------------------
    def drain(self) -> None:
        self._draining = True
        self._drained()

    def _drained(self) -> None:
        if self._options.flush_on_drain:
            self.release()
        else:
            events, self.buffer, self._bytes = self.buffer, [], 0
            reason = Withheld(f"{self.node.name}: the flow drained before the batch was complete")
            settle_all(events, RETRY, reason)

    def withdraw(self, wanted: EventPredicate) -> list[Event]:
        found = super().withdraw(wanted)
        if found and self._options.bytes is not None:
            self._bytes = sum(size_of(each.value) for each in self.buffer)
        return found

    def gathered(self) -> Iterable[Settleable | None]:
        return [each.token for each in self.buffer]


def size_of(value: Any) -> int:
    """Return the size of a value in bytes. Strings and bytes have their own size, other values that of their JSON.
    Raises TypeError if there is no JSON.
    """
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    return len(msgspec.json.encode(value))
