"""The base of the Redis connectors: a connection, and blocking reads that continue after an interruption.

Rule 1: A blocking command in progress is not cancelled when a pull is interrupted: the next pull returns its result.
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

BLOCK_MS: Final = 5_000  # for one blocking command
ANSWER: Final = 10.0  # s for a reply, in addition to the time that a command blocks
LOST: Final = (redis.ConnectionError, redis.TimeoutError)


def client(url: str) -> Any:
    """Return a client that sends each command once and returns bytes."""
    return AsyncClient(url, decode_responses=False, socket_timeout=BLOCK_MS / 1000 + ANSWER).redis


def check_url(url: str) -> None:
    """Raise ValueError if the URL is not valid."""
    Access.of(url)


async def checked_reply(work: Awaitable[Any]) -> Any:
    """Return a reply. Raises ConnectionError, which is retried, if the connection is lost or the server rejects it."""
    try:
        return await work
    except LOST as error:
        raise ConnectionError(str(error)) from error
    except redis.ResponseError as error:
        raise ConnectionError(f"the server refuses: {error}") from error


class RedisConnector(Source, Sink):
    """A connector with a connection and a blocking read that continues after an interruption."""

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
        """Return the reply of the blocking command in progress, or of a new one from ``make``.

        Returns None if the pull was interrupted, or if the reply is empty.
        """
        if self._under_way is None:
            self._under_way = asyncio.ensure_future(checked_reply(make()))
        task = self._under_way
        try:
            await self.wait(asyncio.shield(task))
        finally:
            if task.done():
                self._under_way = None
        return task.result() if task.done() else None

    async def sent(self, pipe: Any, indexes: Sequence[int], outcomes: list[Outcome]) -> list[Outcome]:
        """Execute a pipeline with one command for each index, and put its errors into the outcomes at these indexes."""
        try:
            replies = await pipe.execute(raise_on_error=False)
        except LOST as error:
            raise ConnectionError(str(error)) from error
        for at, reply in zip(indexes, replies, strict=False):
            if isinstance(reply, Exception):
                outcomes[at] = (RETRY, str(reply))
        return outcomes
