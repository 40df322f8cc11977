"""``Event``: an entry of a topic that a processor handles. ``Events``: the sequence of events of one partition.

Rule 1: this module does not talk to the server. The methods of an event call its ``EventActions``; ``Events`` reads
        from its ``EventFeed``. The execution package implements both.
Rule 2: a record is decoded on first access, so that an entry that can't be decoded fails inside the middleware, and the
        failure policy applies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from tidelog.client import tracecontext
from tidelog.client.entries import Entry, StreamId
from tidelog.topics import Topic
from tidelog.topics.failureactions import is_number
from tidelog.topics.partition import Key
from tidelog.transport.call import Call
from tidelog.workers.declare.errors import AppError

R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
_NOT_YET: Final[Any] = object()  # placeholder for a record that was not decoded yet


@dataclass(frozen=True)
class Take:
    """The size of a batch: up to ``count`` events, or those that arrive ``within`` this time after the first one."""

    count: int
    within: float = 0.5  # seconds; 0: only events that are already available

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or isinstance(self.count, bool) or self.count < 1:
            raise AppError(f"Take: count must be a whole number from 1: {self.count!r}")
        if not is_number(self.within) or self.within < 0:
            raise AppError(f"Take: within must be a number of seconds from 0: {self.within!r}")


class EventActions(Protocol):
    """The operations behind an event's methods. There is one object per processor and partition. Times are seconds."""

    @property
    def app(self) -> str:
        """The name of the app."""

    @property
    def processor(self) -> str:
        """The name of the processor."""

    @property
    def manual(self) -> bool:
        """Whether the processor acknowledges events itself (``ack="manual"``)."""

    def ack(self, event: Event[Any]) -> None:
        """Acknowledge the event with the next flush."""

    def nack(self, event: Event[Any], delay: float) -> None:
        """Return the event for redelivery: it becomes due after ``delay`` seconds."""

    def touch(self, event: Event[Any], seconds: float) -> None:
        """Extend the deadline of the event to ``seconds`` from now."""

    async def send(self, event: Event[Any], topic: Topic[Any], record: Any) -> StreamId | None:
        """Send a record: in one transaction with the acknowledgement (returns None), or immediately."""

    def sent_count(self, event: Event[Any]) -> int:
        """Return how many records the event has sent that are not committed yet."""

    def discard_sent(self, event: Event[Any], start: int, stop: int) -> None:
        """Discard the records from index ``start`` up to, but not including, ``stop``."""

    async def run(self, call: Call[T]) -> T:
        """Send a call to the server, for middleware that stores data there."""


class Event(Generic[R]):
    """One entry of a topic, with its record and the operations that a processor can perform on it.

    Middleware can replace the ``record``.
    """

    __slots__ = ("actions", "attempt", "entry", "epoch", "partition", "topic", "_record")

    def __init__(
        self, topic: Topic[R], partition: int, entry: Entry, actions: EventActions, attempt: int = 1, epoch: int = 0,
        record: R = _NOT_YET,
    ) -> None:  # fmt: skip
        self.topic = topic
        self.partition = partition
        self.entry = entry
        self.actions = actions
        self.attempt = attempt  # the number of this attempt, from 1
        self.epoch = epoch  # of the ownership of the partition: unique and increasing; 0 with ordering="none"
        self._record = record

    @property
    def app(self) -> str:
        """The name of the app that processes the event."""
        return self.actions.app

    @property
    def processor(self) -> str:
        """The name of the processor that handles the event."""
        return self.actions.processor

    @property
    def id(self) -> StreamId:
        """The ID of the entry in the stream of its partition."""
        return self.entry.id

    @property
    def trace_context(self) -> dict[str, str]:
        """The entry's ``traceparent`` and ``tracestate``, as propagators of OpenTelemetry read them; empty: none."""
        return tracecontext.read(self.entry.flat)

    @property
    def record(self) -> R:
        """The record. Raises UndecodableError if the entry can't be decoded."""
        if self._record is _NOT_YET:
            self._record = self.topic.decode(self.entry, self.partition)
        return self._record

    @record.setter
    def record(self, record: R) -> None:
        self._record = record

    @property
    def key(self) -> Key | None:
        """The record's partition key; None if the topic has none. Raises CodecError if the key is unusable."""
        return self.topic.key(self.record)

    def ack(self) -> None:
        """Acknowledge the event: it is not redelivered. Raises AppError unless ``ack="manual"``."""
        self._check("ack")
        self.actions.ack(self)

    def nack(self, delay: float = 0) -> None:
        """Return the event for redelivery after ``delay`` seconds. Raises AppError unless ``ack="manual"``."""
        self._check("nack")
        self.actions.nack(self, _seconds("nack", "delay", delay))

    def touch(self, seconds: float) -> None:
        """Extend the deadline of the event: it is not redelivered elsewhere for this many seconds from now."""
        self.actions.touch(self, _seconds("touch", "seconds", seconds))

    async def send(self, topic: Topic[S], record: S) -> StreamId | None:
        """Send a record to a topic.

        With ``transactional=True``, the record is sent together with the acknowledgement of this event, and the result
        is None. Otherwise it is sent immediately, as by ``topic.send``, and the result is its ID.
        """
        return await self.actions.send(self, topic, record)

    def __repr__(self) -> str:
        return f"Event({self.topic.stream(self.partition)} {self.id}, attempt {self.attempt})"

    def _check(self, what: str) -> None:
        if not self.actions.manual:
            raise AppError(
                f"event.{what}() requires ack='manual'; otherwise the worker acknowledges events itself. Declare"
                " ack='manual', or remove the call"
            )


class EventFeed(Protocol):
    """The source of ``Events``. There is one for each call of an ``app.processor`` function."""

    async def next(self, count: int, within: float) -> list[Event[Any]]:
        """Wait for an event; return it and up to ``count - 1`` more that arrive within this many seconds.

        Returns an empty list if no more events will come because the partition is released or the worker stops.
        """

    def finished(self, events: list[Event[Any]]) -> None:
        """Mark these events as processed. With ``ack="after"`` they are acknowledged."""


class Events(Generic[R]):
    """The events of one partition, for an ``app.processor`` function.

    Iterate over ``records``, ``events`` or ``batches``. The iteration ends when the partition moves to another worker,
    or when this worker stops. An event counts as processed when the function requests the next one; with
    ``ack="manual"``, when it calls ``event.ack()``. If the function returns before the end without a call of
    ``done()``, that is an error, and it is called again.
    """

    __slots__ = ("partition", "topic", "ended", "feed", "in_flight", "is_done")

    def __init__(self, topic: Topic[R], partition: int, feed: EventFeed) -> None:
        self.topic = topic
        self.partition = partition
        self.in_flight: list[Event[R]] = []  # passed to the function and not processed yet: a failure concerns these
        self.is_done = False  # the function has called ``done``
        self.ended = False  # the feed has ended, so a return is not an error
        self.feed = feed

    async def records(self) -> AsyncIterator[R]:
        """Iterate over the records, one at a time."""
        while events := await self.take(1, 0):
            yield events[0].record

    async def events(self) -> AsyncIterator[Event[R]]:
        """Iterate over the events, one at a time."""
        while events := await self.take(1, 0):
            yield events[0]

    def __aiter__(self) -> AsyncIterator[Event[R]]:
        return self.events()

    async def batches(self, take: Take) -> AsyncIterator[list[Event[R]]]:
        """Iterate over batches of events. A failure concerns the whole batch."""
        while events := await self.take(take.count, take.within):
            yield events

    def done(self) -> None:
        """Declare that a return is intended: the events in flight are processed, and no more are wanted."""
        self.is_done = True

    async def take(self, count: int, within: float) -> list[Event[R]]:
        """Mark the events in flight as processed and return the next ones; empty at the end."""
        self.settle()
        if self.is_done:
            return []
        events = await self.feed.next(count, within)
        self.ended = not events
        if not self.in_flight:  # otherwise the feed has set it, because middleware can change what it passes on
            self.in_flight = events
        return events

    def settle(self) -> None:
        """Mark the events in flight as processed."""
        if self.in_flight:
            finished, self.in_flight = self.in_flight, []
            self.feed.finished(finished)


def _seconds(method: str, name: str, value: float) -> float:
    if not is_number(value) or value < 0:
        raise AppError(f"event.{method}(): {name} must be a number of seconds from 0: {value!r}")
    return value
