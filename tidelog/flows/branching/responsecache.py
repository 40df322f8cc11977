"""The responses that ``branch`` has received: in memory, or on a server of Redis or tidelog.

Rule 1: A response is stored encoded (MessagePack), so no event shares its objects.
Rule 2: The memory has limits for the number, size, and age of the responses.
Rule 3: A server that does not reply is the same as one that has no response: the request is sent. So a cache is never
        the reason for an outage.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis

from tidelog.client.asyncclient import AsyncClient

OVERHEAD: Final = 300  # bytes of an entry in addition to its key and its response
PATIENCE: Final = 1.0  # s: the timeout of a command
PAUSE: Final = 5.0  # s without commands after a failure

log = logging.getLogger("tidelog.flows")


class MemoryCache:
    """Responses in memory. ``now`` returns the time in seconds."""

    def __init__(self, entries: int, size: int, ttl: float, now: Callable[[], float]) -> None:
        self._most = entries
        self._most_size = size
        self._ttl = ttl
        self._now = now
        self._found: OrderedDict[str, tuple[float, bytes]] = (
            OrderedDict()
        )  # (expiry, response), least recently used first
        self.size = 0  # bytes

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: str) -> bytes | None:
        entry = self._found.get(key)
        if entry is None:
            return None
        if entry[0] <= self._now():
            self._remove(key)
            return None
        self._found.move_to_end(key)
        return entry[1]

    def put(self, key: str, response: bytes) -> None:
        if key in self._found:
            self._remove(key)
        size = _size(key, response)
        if size > self._most_size:
            return
        self._found[key] = (self._now() + self._ttl, response)
        self.size += size
        while len(self._found) > self._most or self.size > self._most_size:
            self._remove(next(iter(self._found)))

    def _remove(self, key: str) -> None:
        _, response = self._found.pop(key)
        self.size -= _size(key, response)


def _size(key: str, response: bytes) -> int:
    return len(key) + len(response) + OVERHEAD


class ServerCache:
    """Responses on a server. ``failed`` is called with the text of each failure."""

    def __init__(self, url: str, prefix: str, ttl: float, failed: Callable[[str], None]) -> None:
        self._url = url
        self._prefix = prefix
        self._ttl = max(1, round(ttl * 1000))  # ms
        self._failed = failed
        self._client: Any = None
        self._pause_until = 0.0  # event loop time

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the response for each key, or None."""
        found = await self._reply(lambda client: client.mget([self._prefix + each for each in keys]))
        return [None] * len(keys) if found is None else found

    async def put(self, responses: Sequence[tuple[str, bytes]]) -> None:
        async def send(client: Any) -> None:
            pipe = client.pipeline(transaction=False)
            for key, response in responses:
                pipe.set(self._prefix + key, response, px=self._ttl)
            await pipe.execute()

        await self._reply(send)

    async def _reply(self, command: Callable[[Any], Any]) -> Any:
        loop = asyncio.get_running_loop()
        if loop.time() < self._pause_until:
            return None
        try:
            async with asyncio.timeout(PATIENCE):
                if self._client is None:
                    self._client = AsyncClient(self._url, decode_responses=False, socket_timeout=PATIENCE).redis
                return await command(self._client)
        except (redis.RedisError, OSError) as error:  # includes TimeoutError
            self._pause_until = loop.time() + PAUSE
            self._failed(str(error) or f"no reply within {PATIENCE:g} s")
            await self.close()
            return None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
