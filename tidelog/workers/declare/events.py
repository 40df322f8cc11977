"""``Event``: an entry of a topic on its way through a processor. ``Events``: those of a partition, one after another.

Rule 1: nothing here talks to the server. What an event is asked to do goes to its ``Sink``; what ``Events`` hands out
        comes from its ``Feed``. The runtime implements both.
Rule 2: a record is decoded when somebody asks for it, so an entry that is no record fails where the failure policy and
        middleware see it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from tidelog.client.entries import Entry, StreamId
from tidelog.topics import Topic
from tidelog.topics.partition import Key
from tidelog.transport.call import Call
from tidelog.workers.declare.errors import AppError
from tidelog.workers.declare.policy import is_number

R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
_NOT_YET: Final[Any] = object()  # in place of a record that nobody asked for


@dataclass(frozen=True)
class Take:
    """How a batch is taken: up to ``count`` events, or what has come ``within`` so many seconds of the first one."""

    count: int
    within: float = 0.5  # seconds; 0: what is there

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or isinstance(self.count, bool) or self.count < 1:
            raise AppError(f"Take: count is a whole number from 1: {self.count!r}")
        if not is_number(self.within) or self.within < 0:
            raise AppError(f"Take: within is a number of seconds from 0: {self.within!r}")


class Sink(Protocol):
    """Where an event's methods go. The runtime has one for each processor. Times are in seconds."""

    @property
    def app(self) -> str:
        """The name of the app."""

    @property
    def processor(self) -> str:
        """The name of the processor."""

    @property
    def manual(self) -> bool:
        """Whether the processor acknowledges by itself: ``ack="manual"``."""

    def ack(self, event: Event[Any]) -> None:
        """Acknowledge the event with the next flush."""

    def nack(self, event: Event[Any], delay: float) -> None:
        """Give the event back with the next flush: it is due again in ``delay`` seconds."""

    def touch(self, event: Event[Any], seconds: float) -> None:
        """Keep the event for so much longer."""

    async def send(self, event: Event[Any], topic: Topic[Any], record: Any) -> StreamId | None:
        """Send a record: in a transaction with the acknowledgement (then None), or at once."""

    def kept(self, event: Event[Any]) -> int:
        """How many records the event has sent that wait for the acknowledgement."""

    def drop(self, event: Event[Any], start: int, stop: int) -> None:
        """Of these, throw away those from ``start`` to before ``stop``."""

    async def run(self, call: Call[T]) -> T:
        """Send a call to the server; for middleware that keeps something there."""


class Event(Generic[R]):
    """One entry of a topic, with its record and what the processor may do with it.

    Middleware may give it another ``record``.
    """

    __slots__ = ("attempt", "entry", "epoch", "partition", "sink", "topic", "_record")

    def __init__(
        self, topic: Topic[R], partition: int, entry: Entry, sink: Sink, attempt: int = 1, epoch: int = 0,
        record: R = _NOT_YET,
    ) -> None:  # fmt: skip
        self.topic = topic
        self.partition = partition
        self.entry = entry
        self.sink = sink
        self.attempt = attempt  # which attempt this is, from 1
        self.epoch = epoch  # of the ownership of the partition: never used twice, and grows; 0 with ordering="none"
        self._record = record

    @property
    def app(self) -> str:
        """The name of the app that it is processed by."""
        return self.sink.app

    @property
    def processor(self) -> str:
        """The name of the processor that it is for."""
        return self.sink.processor

    @property
    def id(self) -> StreamId:
        """Its ID in the stream of its partition."""
        return self.entry.id

    @property
    def record(self) -> R:
        """The record. UndecodableError if the entry is none."""
        if self._record is _NOT_YET:
            self._record = self.topic.decode(self.entry, self.partition)
        return self._record

    @record.setter
    def record(self, record: R) -> None:
        self._record = record

    @property
    def key(self) -> Key | None:
        """The record's partition key; None if the topic has none. UndecodableError, CodecError without a usable one."""
        return self.topic.key(self.record)

    def ack(self) -> None:
        """Acknowledge it: it won't come again. Only with ``ack="manual"``; AppError otherwise."""
        self._check("ack")
        self.sink.ack(self)

    def nack(self, delay: float = 0) -> None:
        """Give it back: it comes again, here or elsewhere, in ``delay`` seconds. Only with ``ack="manual"``."""
        self._check("nack")
        self.sink.nack(self, _seconds("nack", "delay", delay))

    def touch(self, seconds: float) -> None:
        """Keep it for so many seconds from now, before it is delivered to somebody else."""
        self.sink.touch(self, _seconds("touch", "seconds", seconds))

    async def send(self, topic: Topic[S], record: S) -> StreamId | None:
        """Send a record to a topic.

        With ``transactional=True`` it leaves together with the acknowledgement of this event, and the result is None.
        Otherwise it is sent at once, as by ``topic.send``, and the result is its ID.
        """
        return await self.sink.send(self, topic, record)

    def __repr__(self) -> str:
        return f"Event({self.topic.stream(self.partition)} {self.id}, attempt {self.attempt})"

    def _check(self, what: str) -> None:
        if not self.sink.manual:
            raise AppError(
                f"event.{what}() is for processors with ack='manual': here the worker acknowledges. Declare"
                " ack='manual', or leave the call out"
            )


class Feed(Protocol):
    """Where ``Events`` come from. The runtime has one for each call of a processor."""

    async def next(self, count: int, within: float) -> list[Event[Any]]:
        """Wait for an event; then up to ``count`` of them, within so many seconds of the first one.

        Empty: there will be no more for this call, since the partition is given up or the worker goes down.
        """

    def finished(self, events: list[Event[Any]]) -> None:
        """The processor is through with these. With ``ack="after"`` they are acknowledged."""


class Events(Generic[R]):
    """The events of one partition, for a processor of Runnel's form. Iterate by one of ``records``, ``events`` and
    ``batches``; they end when the partition goes to another worker, or when this one goes down.

    An event counts as done when the next one is asked for. With ``ack="manual"`` the processor says it by
    ``event.ack()``. A processor that returns before the end is started again, and that counts as an error, unless it
    has called ``done()``.
    """

    __slots__ = ("partition", "topic", "ended", "feed", "in_hand", "is_done")

    def __init__(self, topic: Topic[R], partition: int, feed: Feed) -> None:
        self.topic = topic
        self.partition = partition
        self.in_hand: list[Event[R]] = []  # handed out, and not done yet: what a failure is about
        self.is_done = False  # the processor has said so
        self.ended = False  # the feed has: a return is no error
        self.feed = feed

    async def records(self) -> AsyncIterator[R]:
        """Their records, one at a time."""
        while events := await self.take(1, 0):
            yield events[0].record

    async def events(self) -> AsyncIterator[Event[R]]:
        """One at a time."""
        while events := await self.take(1, 0):
            yield events[0]

    def __aiter__(self) -> AsyncIterator[Event[R]]:
        return self.events()

    async def batches(self, take: Take) -> AsyncIterator[list[Event[R]]]:
        """Many at a time. A failure is one of the whole batch."""
        while events := await self.take(take.count, take.within):
            yield events

    def done(self) -> None:
        """Say that a return is meant: what is in hand is done, and the processor is not started again."""
        self.is_done = True

    async def take(self, count: int, within: float) -> list[Event[R]]:
        """What is in hand is done; the next ones. Empty at the end."""
        self.settle()
        if self.is_done:
            return []
        given = await self.feed.next(count, within)
        self.ended = not given
        if not self.in_hand:  # middleware may have changed what it passes on: then the feed has set it
            self.in_hand = given
        return given

    def settle(self) -> None:
        """What is in hand is done."""
        if self.in_hand:
            finished, self.in_hand = self.in_hand, []
            self.feed.finished(finished)


def _seconds(method: str, name: str, value: float) -> float:
    if not is_number(value) or value < 0:
        raise AppError(f"event.{method}(): {name} is a number of seconds from 0: {value!r}")
    return value
