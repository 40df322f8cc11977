"""Connections of a worker to the leader. A ``WorkerConnection`` is re-established after a loss.

A worker has several connections, so that large replies and blocking calls do not delay small, urgent calls. Each is
opened on first use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import redis

from tidelog.client.steps import Steps, arun, checked
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import AsyncConnection, LostError, connect_to_leader
from tidelog.transport.backoff import Backoff, Delays
from tidelog.transport.call import Call
from tidelog.transport.errors import is_denied, message_of
from tidelog.workers import logs

log = logs.get(__name__)
BACKOFF: Final = Backoff(first=0.05, most=2.0, jitter=0.5)
OVER: Final = 3 * BACKOFF.most  # seconds after the last refusal until an outage counts as ended

T = TypeVar("T")
Opened = Callable[[AsyncConnection], Awaitable[None]]


class WorkerConnector:
    """Opens connections to the leader. ``name`` is their name in CLIENT LIST."""

    def __init__(self, access: Access, name: str) -> None:
        self.access = access
        self.name = name
        self._away = FailureLog(log, OVER)  # logs that the server is unreachable
        self.denied: asyncio.Future[None] | None = None  # fails with redis.ResponseError if a required call is denied

    @property
    def several_groups(self) -> bool:
        """Whether calls are divided among several groups of a cluster."""
        return False

    def connection(self, opened: Opened | None = None) -> WorkerConnection:
        """Return a new connection. ``opened`` is called for each new channel before anything else is sent on it."""
        return WorkerConnection(self, opened)

    async def connect(self) -> AsyncConnection:
        """Connect to the leader; retries until it succeeds. Raises redis.ResponseError if the password is wrong."""
        delays = Delays(BACKOFF)
        while True:
            try:
                channel = await connect_to_leader(self.access, self.name)
            except (OSError, TimeoutError) as error:  # LostError and UnreachableError among them
                self._log_outage(error, "it answers")
                await asyncio.sleep(delays.next())
            except redis.ResponseError as error:
                self.deny(error)
                raise
            else:
                if self._away.succeeded():
                    log.info("%s: connected again", self.access.places)
                return channel

    def refused(self, channel: AsyncConnection) -> None:
        """Log that the server refuses requests temporarily."""
        if channel.lost is not None:
            self._log_outage(channel.lost, "it accepts requests")

    def _log_outage(self, error: BaseException, until: str) -> None:
        """Log an outage once for all connections, and once more if the server itself reports the cause."""
        text = text_of(error)
        text = text if text.startswith(self.access.places) else f"{self.access.places}: {text}"
        self._away.warn(f"{text}; trying again until {until}", "refused" if _refusal(error) else "lost")

    def deny(self, error: BaseException) -> None:
        """Record that the server denies a call that the worker requires."""
        if is_denied(error) and self.denied is not None and not self.denied.done():
            self.denied.set_exception(redis.ResponseError(message_of(error)))


def _refusal(error: BaseException) -> bool:
    return isinstance(error, LostError) and error.refusal


class WorkerConnection:
    """A connection that is re-established after a loss. Calls that were in flight raise LostError."""

    def __init__(self, connector: WorkerConnector, opened: Opened | None = None) -> None:
        self.connector = connector
        self._opened = opened
        self._channel: AsyncConnection | None = None
        self._making = asyncio.Lock()
        self._refusals = 0  # consecutive connections that were closed because the server could not serve requests
        self._refused_at = 0.0  # loop time of the last one
        self.closed = False

    async def channel(self) -> AsyncConnection:
        """Return the channel, and open it if necessary. Raises LostError after ``close``."""
        found = self._channel
        if found is not None and found.lost is None:
            return found
        async with self._making:
            while self._channel is None or self._channel.lost is not None:
                await self._pause()
                self._check_open()
                channel = await self.connector.connect()
                try:
                    if self._opened is not None:
                        await self._opened(channel)
                    self._check_open()
                except LostError:
                    channel.close()
                    self._channel = channel
                    continue
                except BaseException:
                    channel.close()
                    raise
                self._channel = channel
            return self._channel

    def _check_open(self) -> None:
        if self.closed:
            raise LostError("closed")

    async def _pause(self) -> None:
        """Wait after a refusal: connecting again does not help while a server loads or its memory is full."""
        if self._channel is None or not self._channel.refused:
            return
        self.connector.refused(self._channel)
        now, before = asyncio.get_running_loop().time(), self._refused_at
        self._refusals = self._refusals + 1 if now < before + 2 * BACKOFF.most else 1
        self._refused_at = now
        await asyncio.sleep(BACKOFF.delay(self._refusals))

    async def send(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Return the results of the calls, or errors in their place. Raises LostError if the connection is lost."""
        return await (await self.channel()).send(calls)

    async def ask(self, *calls: Call[Any]) -> list[Any]:
        """Send calls like ``send``, but raise the first error, and retry after a loss. The calls must be idempotent."""
        while True:
            try:
                return checked(await self.send(calls))
            except LostError:
                if self.closed:
                    raise

    async def repeat(self, operation: Callable[[], Steps[T]]) -> T:
        """Drive an operation, and repeat it as a whole after a loss. Raises LostError after ``close``."""
        while True:
            try:
                return await arun(self, operation())
            except LostError:
                if self.closed:
                    raise

    async def together(self, *calls: Call[Any], raise_on_error: bool = True) -> list[Any]:
        """Send calls like ``send``, with AsyncClient's signature, for ``steps.arun``. Calls may be empty."""
        return await (await self.channel()).together(*calls, raise_on_error=raise_on_error)

    async def several_groups(self) -> bool:
        """Return whether the calls are divided among several groups. AsyncClient has this method, too."""
        return self.connector.several_groups

    async def outcomes(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Send calls like ``together``, with errors in the places of results, as ``AsyncClient.outcomes`` does."""
        return await self.together(*calls, raise_on_error=False)

    def close(self) -> None:
        """Close the connection permanently."""
        self.closed = True
        if self._channel is not None:
            self._channel.close()
