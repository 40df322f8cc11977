"""``EventChannel``: the bounded queue from a port to an entity."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from tidelog.flows.api.event import Event, EventPredicate, extract
from tidelog.flows.api.signals import Restore, Signal, Trigger

Tap: TypeAlias = Callable[[list[Event]], None]  # called with each batch that is put; must not change or retain it


class ChannelEnd(Protocol):
    """The entity at an end of a channel."""

    name: str
    kind: str

    def wake(self) -> None: ...
    def contra(self, message: Trigger | Restore, channel: EventChannel) -> None: ...


class EventChannel:
    """A queue of batches and signals, in order. The producer and the consumer wake each other when necessary."""

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
        self.authoritative = authoritative  # False: a full channel drops events; see ConnectorOptions
        self.items: deque[list[Event] | Signal] = deque()
        self.passed = 0  # total number of events that were put
        self.dropped = 0  # events that were dropped because the channel was full
        self.drained = False  # DRAIN was taken
        self.taps: tuple[Tap, ...] = ()

    @property
    def full(self) -> bool:
        return len(self.items) >= self.capacity

    @property
    def events(self) -> int:
        """The number of waiting events."""
        return sum(len(each) for each in self.items if not isinstance(each, Signal))

    @property
    def name(self) -> str:
        return f"{self.producer.name}.{self.port} -> {self.consumer.name}"

    def put(self, item: list[Event] | Signal) -> None:
        """Append an item. The caller has checked whether the channel is full."""
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
        """Remove and return events that were not taken yet."""
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
