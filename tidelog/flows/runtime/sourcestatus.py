"""``SourceStatus``: why a source sends nothing, and how old its events are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.flows.api.breaker import BreakerReason
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.signals import CHANNEL_FULL, DISCONNECTED, FAILED, PROBING, STARTING
from tidelog.flows.runtime.connection import ConnectorConnection
from tidelog.flows.runtime.node import FlowNode
from tidelog.flows.runtime.retries import RetryQueue
from tidelog.flows.runtime.settlement import SettlementReporter
from tidelog.flows.runtime.sourcebreaker import SourceBreaker
from tidelog.flows.runtime.sourcewindow import SourceWindow

MOMENT: Final = 1.0  # s after which a source that sends nothing reports a reason for it


class SourceStatus:
    """The status of one source."""

    def __init__(
        self, node: FlowNode, connection: ConnectorConnection, breaker: SourceBreaker, window: SourceWindow,
        retries: RetryQueue, settlement: SettlementReporter,
    ) -> None:  # fmt: skip
        self.started = 0.0  # event loop time
        self.idle: float | None = None  # event loop time since which nothing could be pulled or sent
        self._node = node
        self._connection = connection
        self._breaker = breaker
        self._window = window
        self._retries = retries
        self._settlement = settlement

    def reasons(self, *, drains: bool) -> tuple[BreakerReason, ...]:
        """Return why nothing is sent: the reasons of the breaker, and those for which no entity has sent a message.

        Reasons of the second kind are omitted for a short time, because a channel is often full for a moment.
        """
        found = list(self._breaker.reasons)
        name, connection = self._node.name, self._connection
        if not connection.connects and not connection.failed and not drains:
            found.append(BreakerReason(f"{STARTING}:{name}", self.started, connection.error or "not connected yet"))
        if connection.failed:
            found = [each for each in found if each.reason != f"{DISCONNECTED}:{name}"]
            found.append(BreakerReason(f"{FAILED}:{name}", 0.0, connection.error))
        if not found and self.idle is not None and now() - self.idle > MOMENT:
            found += self._idle_reasons(self.idle)
        full = self._breaker.full
        return tuple(
            each._replace(detail=self._window.full(self._retries.waiting)) if each.reason == full else each
            for each in found
        )

    def _idle_reasons(self, since: float) -> Iterable[BreakerReason]:
        channels = [each for channels in self._node.outputs.values() for each in channels]
        full = [each for each in channels if each.authoritative and each.full]
        if self._window.room <= 0:
            yield BreakerReason(self._breaker.full, since, "")
        elif full:
            for each in full:
                detail = f"{each.events} events wait in its channel"
                yield BreakerReason(f"{CHANNEL_FULL}:{each.consumer.name}", since, detail)
        elif awaited := len(self._window.slow_start.awaited()):
            detail = f"few events are sent first after a pause: {awaited} of them are not settled"
            yield BreakerReason(f"{PROBING}:{self._node.name}", since, detail)

    def oldest(self) -> float | None:
        """Return the age in seconds of the oldest event that is in flight or waits for a retry."""
        if not self._window.unsettled:
            return None
        sent, failing = self._window.in_flight.oldest(), self._settlement.failing_since
        known = [each for each in (sent, failing) if each is not None]
        known += self._retries.oldest()
        return max(0.0, now() - min(known, default=now()))
