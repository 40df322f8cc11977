"""The base of the Redis connectors: a connection, and a blocking read that continues after an interruption."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import redis

from tidelog.client.asyncclient import AsyncClient
from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.tokens import RETRY
from tidelog.flows.connectors.ongoingread import OngoingRead
from tidelog.transport.access import Access

BLOCK_MS: Final = 5_000  # for one blocking command
ANSWER: Final = 10.0  # s for a reply, in addition to the time that a command blocks
LOST: Final = (redis.ConnectionError, redis.TimeoutError)


def client(url: str) -> AsyncClient:
    """Return a client that sends each command once and returns bytes. The connectors use its ``redis``.

    In a cluster, it has connections to the leaders of several groups, which only ``AsyncClient.close`` closes.
    """
    return AsyncClient(url, decode_responses=False, socket_timeout=BLOCK_MS / 1000 + ANSWER)


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
    """A connector with one connection."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._client: AsyncClient | None = None
        self._read: OngoingRead[Any] = OngoingRead(self.wait)

    async def connect(self) -> None:
        self._client = client(self._url)
        await checked_reply(self._client.redis.ping())

    async def close(self) -> None:
        await self._read.cancel()
        found, self._client = self._client, None
        if found is not None:
            await found.close()

    def server(self) -> Any:
        if self._client is None:
            raise ConnectionError("not connected")
        return self._client.redis

    async def blocking(self, command: Callable[[], Awaitable[Any]]) -> Any:
        """Return the reply of a blocking command. Return None if it is empty, or if the pull was interrupted."""
        return await self._read.result(lambda: checked_reply(command()))

    async def sent(self, pipe: Any, indexes: Sequence[Sequence[int]], outcomes: list[Outcome]) -> list[Outcome]:
        """Execute a pipeline, and put the errors of its commands into outcomes. indexes: of the events, by command."""
        try:
            replies = await pipe.execute(raise_on_error=False)
        except LOST as error:
            raise ConnectionError(str(error)) from error
        for events, reply in zip(indexes, replies, strict=False):
            if isinstance(reply, Exception):
                for at in events:
                    outcomes[at] = (RETRY, str(reply))
        return outcomes
