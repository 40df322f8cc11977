"""What connectors of Redis have in common: a connection, and blocking reads that outlive an interruption.

Rule 1: a blocking command that is under way when a pull is interrupted is left alone: the next pull takes what it
        brings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final

import redis

from tidelog.client.asyncclient import AsyncClient
from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.tokens import RETRY
from tidelog.transport.access import Access

BLOCK_MS: Final = 5_000  # of one blocking command
ANSWER: Final = 10.0  # s for a reply, besides the time that a command blocks
LOST: Final = (redis.ConnectionError, redis.TimeoutError)


def client(url: str) -> Any:
    """A client that sends a command once, and returns bytes."""
    return AsyncClient(url, decode_responses=False, socket_timeout=BLOCK_MS / 1000 + ANSWER).redis


def check_url(url: str) -> None:
    """Raises ValueError if it can't be used."""
    Access.of(url)


async def checked_reply(work: Awaitable[Any]) -> Any:
    """A reply. ConnectionError: the server is lost, or refuses; both are tried again."""
    try:
        return await work
    except LOST as error:
        raise ConnectionError(str(error)) from error
    except redis.ResponseError as error:
        raise ConnectionError(f"the server refuses: {error}") from error


class RedisConnector(Source, Sink):
    """What the three have in common: a connection, and a blocking read that outlives an interruption."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._client: Any = None
        self._under_way: asyncio.Task[Any] | None = None

    async def connect(self) -> None:
        self._client = client(self._url)
        await checked_reply(self._client.ping())

    async def close(self) -> None:
        task, self._under_way = self._under_way, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        found, self._client = self._client, None
        if found is not None:
            await found.aclose()

    def server(self) -> Any:
        if self._client is None:
            raise ConnectionError("not connected")
        return self._client

    async def blocking(self, make: Any) -> Any:
        """The reply of a blocking command, of ``make`` if none is under way. None: interrupted, or nothing came."""
        if self._under_way is None:
            self._under_way = asyncio.ensure_future(checked_reply(make()))
        task = self._under_way
        try:
            await self.wait(asyncio.shield(task))
        finally:
            if task.done():
                self._under_way = None
        return task.result() if task.done() else None

    async def sent(self, pipe: Any, places: Sequence[int], outcomes: list[Outcome]) -> list[Outcome]:
        """Run a pipeline of one command for each place; its errors are put into the outcomes."""
        try:
            replies = await pipe.execute(raise_on_error=False)
        except LOST as error:
            raise ConnectionError(str(error)) from error
        for at, reply in zip(places, replies, strict=False):
            if isinstance(reply, Exception):
                outcomes[at] = (RETRY, str(reply))
        return outcomes
