"""A sink and a feed in memory, for what happens to events before any server is asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from tidelog import AsyncClient, Entry, StreamId
from tidelog.topics import Topic
from tidelog.transport.call import Call
from tidelog.workers import App, Event

T = TypeVar("T")


class Order(msgspec.Struct):
    id: int
    item: str = "tea"


def made(**options: Any) -> tuple[App, Topic[Order]]:
    app = App("shop", **options)
    return app, app.topic("orders", Order, partition_by="id", partitions=4)


class MemoryActions:
    """Notes what events are asked to do. ``client``: where calls of middleware go."""

    app = "shop"
    processor = "it"

    def __init__(self, manual: bool = False, client: AsyncClient | None = None) -> None:
        self.manual = manual
        self.client = client
        self.notes: list[tuple[Any, ...]] = []

    def ack(self, event: Event[Any]) -> None:
        self.notes.append(("ack", event.id))

    def nack(self, event: Event[Any], delay: float) -> None:
        self.notes.append(("nack", event.id, delay))

    def touch(self, event: Event[Any], seconds: float) -> None:
        self.notes.append(("touch", event.id, seconds))

    async def send(self, event: Event[Any], topic: Topic[Any], record: Any) -> StreamId | None:
        self.notes.append(("send", event.id, topic.name, record))
        return None

    def sent_count(self, event: Event[Any]) -> int:
        return 0

    def discard_sent(self, event: Event[Any], start: int, stop: int) -> None:
        self.notes.append(("drop", event.id, start, stop))

    async def run(self, call: Call[T]) -> T:
        assert self.client is not None
        return await self.client.run(call)


def event_of(topic: Topic[Any], number: int, actions: MemoryActions | None = None, **fields: str) -> Event[Any]:
    """An event with the ID ``number.0`` whose entry has these fields, or ``id=number``."""
    flat = [word.encode() for pair in (fields or {"id": str(number), "item": "tea"}).items() for word in pair]
    return Event(topic, 2, Entry(StreamId(number), flat), actions or MemoryActions(), epoch=7)


class MemoryFeed:
    """Hands out given events, then ends; notes which are finished."""

    def __init__(self, events: Iterable[Event[Any]]) -> None:
        self.left = deque(events)
        self.done: list[int] = []  # numbers
        self.asked: list[tuple[int, float]] = []

    async def next(self, count: int, within: float) -> list[Event[Any]]:
        self.asked.append((count, within))
        return [self.left.popleft() for _ in range(min(count, len(self.left)))]

    def finished(self, events: list[Event[Any]]) -> None:
        self.done += [event.id.ms for event in events]
