"""``SettlementReporter``: passes settled tokens to a source, and dead letters to their queue.

Rule 1: There is one call of ``Source.settled`` at a time. Tokens that are settled meanwhile are passed in the next one.
Rule 2: Dead letters are stored before the source is notified.
Rule 3: If a call fails, the same tokens are passed again after a delay, or when the connector has reconnected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from tidelog.flows.api.cancellation import from_outside
from tidelog.flows.api.connector import Source
from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.tokens import Token
from tidelog.flows.runtime.connection import ConnectorConnection
from tidelog.flows.runtime.node import FlowNode
from tidelog.flows.runtime.retries import RetryQueue
from tidelog.operating.tasks import set_within
from tidelog.transport.backoff import Backoff, Delays

BACKOFF: Final = Backoff(first=1.0, most=30.0)

log = logging.getLogger("tidelog.flows")


class SettlementReporter:
    """The settled tokens of one source that have not been reported."""

    def __init__(
        self, node: FlowNode, source: Source, connection: ConnectorConnection, retries: RetryQueue, *,
        copies: bool, skip: bool, reported: Callable[[int], None],
    ) -> None:  # fmt: skip
        self.reporting = False  # ``Source.settled`` is in progress
        self.failing_since: float | None = None  # event loop time since which the source does not accept tokens
        self.reconnected = asyncio.Event()
        self.changed = asyncio.Event()  # there are tokens to report
        self._node = node
        self._source = source
        self._connection = connection
        self._retries = retries
        self._copies = copies  # the keys of tokens are copies of events
        self._skip = skip  # failed events are logged, but do not become dead letters
        self._reported = reported  # called with the number of tokens that were reported
        self._settled: list[Token] = []
        self._failed: list[Token] = []

    def add(self, tokens: Sequence[Token]) -> None:
        self._settled += tokens

    def fail(self, token: Token) -> None:
        """Add a token whose event is given up."""
        self._failed.append(token)

    def clear(self) -> None:
        self._settled, self._failed = [], []

    async def run(self) -> None:
        """Report tokens until the task is cancelled."""
        delays = Delays(BACKOFF)
        while True:
            if not self._settled and not self._failed:
                self.changed.clear()
                await self.changed.wait()
                continue
            tokens, self._settled = self._settled, []
            failed, self._failed = self._failed, []
            try:
                if failed:
                    await self._give_up(failed)
                    tokens += failed
                    failed = []
                if self._copies:
                    for token in tokens:
                        if isinstance(token.key, Event):
                            self._retries.settled(token.key)
                            token.key = token.key.id
                await self._report(tokens)
            except Exception as error:  # noqa: BLE001 - the tokens are passed again after any error
                await self._failing(error, tokens, failed, delays.next())
            else:
                delays.reset()
                self.failing_since = None
                self._reported(len(tokens))

    async def _failing(self, error: Exception, tokens: list[Token], failed: list[Token], wait: float) -> None:
        node = self._node
        log.warning("%s: %s: settling: %s: %s", node.context.flow, node.name, type(error).__name__, error)
        node.count("settle_errors")
        self._settled = tokens + self._settled
        self._failed = failed + self._failed
        if self.failing_since is None:
            self.failing_since = now()
        self.reconnected.clear()
        await set_within(self.reconnected, wait)

    async def _report(self, tokens: Sequence[Token]) -> None:
        connects = self._connection.connects
        self.reporting = True
        try:
            await self._source.settled(tokens)
        except OSError as error:  # there may be no pull that would detect the lost connection
            self._connection.lost(error, connects)
            raise
        except asyncio.CancelledError:
            if from_outside():
                raise
            raise RuntimeError("it was cancelled from inside") from None
        finally:
            self.reporting = False

    async def _give_up(self, tokens: Sequence[Token]) -> None:
        context, name = self._node.context, self._node.name
        write = context.dead_letters
        letters = [(each.key, each.reason) for each in tokens]
        if write is not None and not self._skip and not await write(name, letters):
            raise OSError("the dead letters were not written")
        for token in tokens:
            event = token.key
            if isinstance(event, Event):
                context.given_up.add(name, token.reason, event.id, event.value)
            else:
                context.given_up.add(name, token.reason, event)
        self._node.count("skipped" if self._skip else "dead", len(tokens))
