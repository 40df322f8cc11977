"""``retry``: retries failed events, so that neither the source nor the operators above must repeat their work.

Rule 1: A retry waits for its delay, and then until the sinks below have no reason. So an outage costs no attempts.
Rule 2: During a drain, waiting events are sent immediately. Events that fail after that are returned to their source.
"""

from __future__ import annotations

from typing import Final

from tidelog.flows.api.breaker import Breaker
from tidelog.flows.api.event import BATCH, Event, EventPredicate
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.signals import Restore, Trigger
from tidelog.flows.api.tokens import RETRY, Token
from tidelog.flows.operators.copies import RetainedCopies, RetainedCopy
from tidelog.options.limits import AtLeastOne
from tidelog.options.retry import RetryOptions
from tidelog.options.units import Duration

_RETRIED: Final = frozenset((RETRY,))


class RetryOperatorOptions(RetryOptions):
    """The options of ``retry``."""

    attempts: AtLeastOne = 3
    # Number of further attempts after the first one. The short form: `retry: 3`.
    first: Duration = Duration(0.1)  # Delay before the first further attempt.
    most: Duration = Duration(10.0)  # Maximum delay.
    max_copies: AtLeastOne = 10_000
    # Maximum number of events in flight for which a copy is retained.


class RetryOperator(Operator):
    """Implements ``retry``."""

    type = "retry"
    short = "attempts"
    Options = RetryOperatorOptions

    def __init__(self, options: RetryOperatorOptions | None = None) -> None:
        self._options = options or RetryOperatorOptions()
        self._backoff = self._options.backoff
        self._waiting: dict[int, RetainedCopy] = {}  # by id(): copies whose delay has not elapsed
        self._due: list[RetainedCopy] = []  # copies whose delay has elapsed, while a sink below has a reason
        self._below = Breaker()
        self._drains = False
        self.copies = RetainedCopies(self, self._options.max_copies, _RETRIED, self._failed)

    def process(self, events: list[Event]) -> None:
        if not self._drains:
            take = self.copies.take
            events = [take(each) for each in events]
        self.emit(events)

    def kept(self) -> int:
        return len(self._waiting) + len(self._due)

    def withdraw(self, wanted: EventPredicate) -> list[Event]:
        """Return events that wait for a retry."""
        copies = [*self._waiting.values(), *self._due]
        taken = {id(copy): copy.event for copy in copies if wanted(copy.event)}
        for name in taken:
            self._waiting.pop(name, None)
            self.copies.done()
        self._due = [each for each in self._due if id(each) not in taken]
        return list(taken.values())

    def settled(self, tokens: list[Token]) -> None:
        self.copies.settled(tokens)

    def _failed(self, copy: RetainedCopy) -> None:
        if self._drains or copy.tries >= self._options.attempts:
            self.copies.done()
            self.node.count("given_up")
            copy.give_up()
            return
        copy.narrowed()
        copy.tries += 1
        delay = self._backoff.delay(copy.tries, self.node.context.random.random)
        self._waiting[id(copy)] = copy
        self.node.after(delay, lambda: self._wait_is_over(copy))

    def _wait_is_over(self, copy: RetainedCopy) -> None:
        if self._waiting.pop(id(copy), None) is not None:
            self._due.append(copy)
            if not self._below:
                self._send_due()

    def _send_due(self) -> None:
        due, self._due = self._due, []
        for place in range(0, len(due), BATCH):
            events = []
            for copy in due[place : place + BATCH]:
                copy.event.attempt += 1
                events.append(copy.sent(self.node))
            self.node.count("again", len(events))
            self.emit(events)

    def breaker(self, message: Trigger | Restore, port: str) -> bool:
        if port == "out":
            if isinstance(message, Trigger):
                self._below.trigger(message, now())
            elif self._below.restore(message) and not self._below:
                self._send_due()
        return False

    def drain(self) -> None:
        self._drains = True
        self._due += self._waiting.values()
        self._waiting.clear()
        self._send_due()

    def forget(self) -> None:
        self._waiting.clear()
        self._due = []
