"""Acknowledgements in the order in which messages were received, as MQTT requires."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator


class AckOrder:
    """The messages that are not acknowledged. A message may have several events."""

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._missing: dict[int, int] = {}  # by number of the message: events that are not settled

    def __len__(self) -> int:
        return len(self._order)

    def add(self, number: int, events: int) -> None:
        self._order.append(number)
        self._missing[number] = events

    def settle(self, number: int) -> None:
        """Settle one event of a message. An unknown number is ignored."""
        if number in self._missing:
            self._missing[number] -= 1

    def due(self) -> Iterator[int]:
        """Yield the messages to acknowledge, each once."""
        while self._order and self._missing[self._order[0]] <= 0:
            number = self._order.popleft()
            del self._missing[number]
            yield number
