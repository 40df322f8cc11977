"""``Link``: the server of a worker, wherever it leads now; ``Line``: a connection to it that is made again when lost.

A worker has several lines, so that a large reply or a wait does not hold up what is small and urgent. Each is made when
it is first needed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import redis

from tidelog.client.steps import checked
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import AsyncConnection, LostError, connect_to_leader
from tidelog.transport.call import Call
from tidelog.transport.errors import is_denied, message_of
from tidelog.workers import logs

log = logs.get(__name__)
FIRST: Final = 0.05  # seconds until the second attempt to connect
MOST: Final = 2.0  # seconds between two attempts at most
OVER: Final = 3 * MOST  # seconds after the last refusal of an outage

Opened = Callable[[AsyncConnection], Awaitable[None]]


class Link:
    """Where the server is. ``name`` is the name of the connections in CLIENT LIST."""

    def __init__(self, access: Access, name: str) -> None:
        self.access = access
        self.name = name
        self._away = FailureLog(log, OVER)  # that the server does not answer
        self.denied: asyncio.Future[None] | None = None  # gets redis.ResponseError once the server denies this program

    def line(self, opened: Opened | None = None) -> Line:
        """A new line. ``opened`` is called with each new connection before anything else is sent on it."""
        return Line(self, opened)

    async def connect(self) -> AsyncConnection:
        """A connection to the leader. Tried again until there is one; redis.ResponseError for a wrong password."""
        delay = FIRST
        while True:
            try:
                made = await connect_to_leader(self.access, self.name)
            except (OSError, TimeoutError) as error:  # LostError and UnreachableError among them
                self._say(error, "it answers")
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                delay = min(MOST, delay * 2)
            except redis.ResponseError as error:
                self.deny(error)
                raise
            else:
                if self._away.well():
                    log.info("%s: connected again", self.access.places)
                return made

    def refused(self, channel: AsyncConnection) -> None:
        """The server refuses requests for a while."""
        if channel.lost is not None:
            self._say(channel.lost, "it is served")

    def _say(self, error: BaseException, until: str) -> None:
        """One line in the log for an outage, of all lines together; one more for what the server says itself."""
        text = text_of(error)
        text = text if text.startswith(self.access.places) else f"{self.access.places}: {text}"
        self._away.warn(f"{text}; trying again until {until}", "refused" if _refusal(error) else "lost")

    def deny(self, error: BaseException) -> None:
        """Note that the server denies what this program can't do without."""
        if is_denied(error) and self.denied is not None and not self.denied.done():
            self.denied.set_exception(redis.ResponseError(message_of(error)))


def _refusal(error: BaseException) -> bool:
    return isinstance(error, LostError) and error.refusal


class Line:
    """A connection that is made again when it is lost. What was under way then gets LostError."""

    def __init__(self, link: Link, opened: Opened | None = None) -> None:
        self.link = link
        self._opened = opened
        self._channel: AsyncConnection | None = None
        self._making = asyncio.Lock()
        self._refusals = 0  # connections in a row that were given up because the server could not serve requests
        self._refused_at = 0.0  # when the last one was, on the event loop's clock
        self._closed = False

    async def channel(self) -> AsyncConnection:
        """The connection; it is made if there is none. LostError after ``close``."""
        found = self._channel
        if found is not None and found.lost is None:
            return found
        async with self._making:
            while self._channel is None or self._channel.lost is not None:
                await self._pause()
                self._check_open()
                made = await self.link.connect()
                try:
                    if self._opened is not None:
                        await self._opened(made)
                    self._check_open()
                except LostError:
                    made.close()
                    self._channel = made
                    continue
                except BaseException:
                    made.close()
                    raise
                self._channel = made
            return self._channel

    def _check_open(self) -> None:
        if self._closed:
            raise LostError("closed")

    async def _pause(self) -> None:
        """Connecting again does not help a server that loads, or whose memory is full: it gets time."""
        if self._channel is None or not self._channel.refused:
            return
        self.link.refused(self._channel)
        now, before = asyncio.get_running_loop().time(), self._refused_at
        self._refusals = self._refusals + 1 if now < before + 2 * MOST else 1
        self._refused_at = now
        await asyncio.sleep(min(MOST, FIRST * 2.0 ** min(self._refusals - 1, 10)) * random.uniform(0.5, 1.0))

    async def send(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """What the calls read from their replies, an error in the place of one. LostError if the server is lost."""
        return await (await self.channel()).send(calls)

    async def ask(self, *calls: Call[Any]) -> list[Any]:
        """As ``send``; the first error is raised, and a lost server asked again: for what may be done twice."""
        while True:
            try:
                return checked(await self.send(calls))
            except LostError:
                if self._closed:
                    raise

    async def together(self, *calls: Call[Any], raise_on_error: bool = True) -> list[Any]:
        """As ``send``, in the form of AsyncClient: for ``steps.arun``. Calls may be empty."""
        return await (await self.channel()).together(*calls, raise_on_error=raise_on_error)

    def close(self) -> None:
        """Close the connection for good."""
        self._closed = True
        if self._channel is not None:
            self._channel.close()
