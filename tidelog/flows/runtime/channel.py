"""A channel: the way of events from one port to one entity, bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from tidelog.flows.api.event import Event, EventPredicate, extract
from tidelog.flows.api.signals import Restore, Signal, Trigger

Tap: TypeAlias = Callable[[list[Event]], None]  # sees each batch as it leaves; must not change or keep it


class ChannelEnd(Protocol):
    """The entity at an end of a channel."""

    name: str
    kind: str

    def wake(self) -> None: ...
    def contra(self, message: Trigger | Restore, channel: EventChannel) -> None: ...


class EventChannel:
    """Batches in order. The producer puts, the consumer takes; each wakes the other when that matters."""

    __slots__ = (
        "authoritative", "capacity", "consumer", "drained", "dropped", "items", "passed", "port", "producer", "taps",
    )  # fmt: skip

    def __init__(
        self, producer: ChannelEnd, port: str, consumer: ChannelEnd, capacity: int, authoritative: bool = True
    ) -> None:
        self.producer = producer
        self.port = port  # of the producer
        self.consumer = consumer
        self.capacity = capacity  # batches
        self.authoritative = authoritative  # False: what finds it full is dropped, and its end does not count
        self.items: deque[list[Event] | Signal] = deque()
        self.passed = 0  # events that ever went in
        self.dropped = 0  # events that found it full
        self.drained = False  # DRAIN was taken from it
        self.taps: tuple[Tap, ...] = ()

    @property
    def full(self) -> bool:
        return len(self.items) >= self.capacity

    @property
    def events(self) -> int:
        """Events that wait in it."""
        return sum(len(each) for each in self.items if not isinstance(each, Signal))

    @property
    def name(self) -> str:
        return f"{self.producer.name}.{self.port} -> {self.consumer.name}"

    def put(self, item: list[Event] | Signal) -> None:
        """The caller has looked whether it is full."""
        self.items.append(item)
        if not isinstance(item, Signal):
            self.passed += len(item)
            for tap in self.taps:
                tap(item)
        self.consumer.wake()

    def take(self) -> list[Event] | Signal:
        was_full = len(self.items) >= self.capacity
        item = self.items.popleft()
        if was_full:
            self.producer.wake()
        return item

    def withdraw(self, wanted: EventPredicate) -> list[Event]:
        """Take events out that nobody has taken yet."""
        was_full = self.full
        found: list[Event] = []
        left: deque[list[Event] | Signal] = deque()
        for item in self.items:
            if isinstance(item, Signal):
                left.append(item)
            elif some := extract(item, wanted, found):
                left.append(some)
        self.items = left
        if was_full and not self.full:
            self.producer.wake()
        return found
