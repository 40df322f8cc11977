"""``RetryQueue``: the events of a source that the runtime sends again after they failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from tidelog.flows.api.event import Event
from tidelog.transport.backoff import Backoff


class RetryQueue:
    """The retries of one source. Events wait for their delay first, and then for the breaker, as new events do."""

    def __init__(self, backoff: Backoff, random: Callable[[], float]) -> None:
        self.due: deque[Event] = deque()  # can be sent again
        self.delayed = 0  # events whose delay has not elapsed
        self.withheld = 0  # events that are not sent again, because the flow drains
        self._backoff = backoff
        self._random = random
        self._first: dict[int, float] = {}  # by id() of an unsettled event that failed: the time of its first attempt

    @property
    def waiting(self) -> int:
        """The number of events that will be sent again."""
        return self.delayed + len(self.due)

    def add(self, events: Iterable[Event], arrived: Callable[[Event], float]) -> list[tuple[float, list[Event]]]:
        """Record failed events. Return them with their delays in s; the caller passes each list to ``ready`` then."""
        found: dict[int, list[Event]] = {}
        for event in events:
            if id(event) not in self._first:
                self._first[id(event)] = arrived(event)
            found.setdefault(event.attempt, []).append(event)
            self.delayed += 1
        return [(self._backoff.delay(attempt, self._random), some) for attempt, some in found.items()]

    def ready(self, events: list[Event]) -> None:
        """Queue events whose delay has elapsed."""
        self.delayed -= len(events)
        self.due += events

    def take(self, most: int) -> list[Event]:
        """Remove and return up to ``most`` events that are due."""
        due = self.due
        return [due.popleft() for _ in range(min(len(due), most))]

    def settled(self, event: Event) -> None:
        """Forget an event that is settled."""
        if self._first:
            self._first.pop(id(event), None)

    def oldest(self) -> Iterable[float]:
        """Return the times of the first attempts of all unsettled events that failed."""
        return self._first.values()

    def clear(self) -> None:
        self.due.clear()
        self._first.clear()
