"""``ConnectorConnection``: opens the connection of a connector, and reopens it after it is lost. The source and the
sink of a connector share it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from tidelog.flows.api.cancellation import from_outside
from tidelog.flows.api.connectoroptions import ReconnectRetryOptions
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.operating.errortexts import summary_of
from tidelog.operating.redaction import redacted
from tidelog.transport.backoff import Backoff, Delays
from tidelog.transport.cancellation import cancel_and_wait

CLOSING: Final = 10.0  # s: the timeout of closing a connector

log = logging.getLogger("tidelog.flows")


class Connectable(Protocol):
    """The methods of a connector that are used here."""

    async def connect(self) -> None: ...
    async def close(self) -> None: ...


class ConnectorConnection:
    """The connection of one connector. ``on_change`` is called whenever ``connected`` or ``failed`` has changed."""

    def __init__(
        self, name: str, connector: Connectable, retry: ReconnectRetryOptions | None, context: FlowContext
    ) -> None:
        self.name = name
        self.connector = connector
        self.connected = False
        self.failed = False  # it is not reconnected any more
        self.error = ""  # the last error
        self.connects = 0
        self.on_change: list[Callable[[], None]] = []
        self._context = context
        self._retry = retry
        self._delays = Delays(Backoff() if retry is None else retry.backoff, context.random.random)
        self._lost: asyncio.Event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        name = f"{self._context.flow}/{self.name}/connect"
        self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    def lost(self, error: BaseException, connects: int | None = None) -> None:
        """Report that the connection was lost. Can be called several times.

        ``connects``: the value of ``self.connects`` when the failed operation began. If the connector has reconnected
        since, the report does not apply to the new connection.
        """
        if self.connected and connects in (None, self.connects):
            self._failed(error)
            self.connected = False
            self._changed()
            self._lost.set()

    async def end(self) -> None:
        """Stop reconnecting, and close the connection."""
        task, self._task = self._task, None
        await cancel_and_wait(task)  # ``connect`` of a Redis connector can lose a cancellation
        self.connected = False
        await self._close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._lost.clear()
            try:
                await self.connector.connect()
            except Exception as error:  # noqa: BLE001 - retried after any error
                self._failed(error)
            except asyncio.CancelledError:
                if from_outside():
                    raise
                self._failed(ConnectionError("connecting was cancelled from inside"))
            else:
                since = loop.time()
                self.connected = True
                self.connects += 1
                self._changed()
                await self._lost.wait()
                if self._retry is not None and loop.time() - since >= self._retry.min_uptime:
                    self._delays.reset()
            await self._close()
            if self._retry is None or self._delays.exhausted:
                self.failed = True
                self._changed()
                return
            await asyncio.sleep(self._delays.next())

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(CLOSING):
                await self.connector.close()
        except Exception as error:  # noqa: BLE001 - the connection is lost in any case
            log.debug("%s: %s: closing: %s", self._context.flow, self.name, error)

    def _failed(self, error: BaseException) -> None:
        text = redacted(summary_of(error))
        if text != self.error:  # logged once, and not at each attempt
            log.warning("%s: %s: %s", self._context.flow, self.name, text)
        self.error = text

    def _changed(self) -> None:
        for call in self.on_change:
            call()
