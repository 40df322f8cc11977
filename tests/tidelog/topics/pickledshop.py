"""A topic at module level, as programs declare theirs, and what another process does with one."""

from __future__ import annotations

import msgspec

from tidelog.topics import Topic


class Order(msgspec.Struct):
    id: int
    item: str


def by_item(order: Order) -> str:
    return order.item


def send(topic: Topic[Order], first: int) -> int:
    """Send two orders; returns the partition of the second."""
    topic.sync.send(Order(first, "tea"))
    order = Order(first + 1, "milk")
    topic.sync.send(order)
    topic.sync.close()
    return topic.partition(order)
