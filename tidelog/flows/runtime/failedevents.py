"""``FailedEvents``: applies the option ``on_error`` to the events of a source that were not settled ok."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tidelog.flows.api.connectoroptions import SourceErrorPolicy
from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.tokens import DISCARD, REJECT, STATUSES, Token, Withheld
from tidelog.flows.runtime.node import FlowNode
from tidelog.flows.runtime.retries import RetryQueue
from tidelog.flows.runtime.settlement import SettlementReporter


class FailedEvents:
    """Retries events, reports them, gives them up, or stops their source."""

    def __init__(
        self, node: FlowNode, policy: SourceErrorPolicy, retries: RetryQueue, settlement: SettlementReporter, *,
        retried: bool, escalate: Callable[[str, str], None], due: Callable[[], None],
    ) -> None:  # fmt: skip
        self._node = node
        self._policy = policy
        self._retries = retries
        self._settlement = settlement
        self._retried = retried  # the runtime retries the events of this source
        self._escalate = escalate  # performs the action pause or halt
        self._due = due  # called when retries are due

    def apply(self, tokens: list[Token]) -> None:
        """Process tokens with a status other than OK."""
        most, action = self._policy.max_attempts, self._policy.action
        retried: list[Event] = []
        for token in tokens:
            self._node.count(STATUSES[token.status])
            if token.status == DISCARD:
                self._settlement.add((token,))
            elif not self._retried:
                self._node.count("dropped")
                self._settlement.fail(token)
            elif isinstance(token.reason, Withheld):
                self._retries.withheld += 1
            elif token.status != REJECT and (most is None or token.key.attempt < most):
                retried.append(token.key)
            elif action in ("pause", "halt"):
                self._retries.due.append(token.key)
                self._escalate(action, f"{token.key.id!r}: {token.reason}")
            else:
                self._settlement.fail(token)
        for delay, events in self._retries.add(retried, self._arrival):
            self._node.after(delay, partial(self._ready, events))

    def _arrival(self, event: Event) -> float:
        """Return the event loop time at which an event arrived."""
        age = max(0, self._node.context.now_ns() - event.ingest_ns) / 1e9
        return now() - age

    def _ready(self, events: list[Event]) -> None:
        self._retries.ready(events)
        self._due()
