"""A buffer for events that connections have received and the source has not pulled.

It is bounded in events and bytes, so that peers are not read faster than the flow processes events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from tidelog.flows.api.event import Event


class ReceiveBuffer:
    """The buffer of one source. ``wait`` is its ``Source.wait``."""

    def __init__(self, most_events: int, most_bytes: int, wait: Callable[[Awaitable[object]], Awaitable[bool]]) -> None:
        self.bytes = 0
        self._most_events = most_events
        self._most_bytes = most_bytes
        self._wait = wait
        self._items: deque[tuple[Event, int]] = deque()
        self._came = asyncio.Event()
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def full(self) -> bool:
        return len(self._items) >= self._most_events or self.bytes >= self._most_bytes

    async def put(self, events: list[Event], size: int) -> None:
        """Wait for room, and add the events of one message of ``size`` bytes."""
        while self.full:
            self._room.clear()
            await self._room.wait()
        for number, event in enumerate(events):
            self._items.append((event, 0 if number else size))
        if events:
            self.bytes += size
            self._came.set()

    async def take(self, limit: int) -> list[Event]:
        """Implement ``pull``: return at most ``limit`` events, or none after an interruption."""
        if not self._items:
            self._came.clear()
            await self._wait(self._came.wait())
        taken: list[Event] = []
        while self._items and len(taken) < limit:
            event, size = self._items.popleft()
            self.bytes -= size
            taken.append(event)
        if not self.full:
            self._room.set()
        return taken
