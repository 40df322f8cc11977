"""Processing lists of a ``redis_list``: elements in flight, and the recovery of lists whose source no longer exists.

    <key>:processing                     a set: the names of the lists
    <key>:processing:<instance>.<name>   one of them
    <the same>:alive                     its source runs: the key expires ALIVE seconds after the last renewal;
                                         ENDED if the source has closed and left something

When a source starts, it moves the elements of its own list back. If a flow or a connector was renamed, or an instance
no longer exists, no source starts under the old name: another source of the same key then moves the elements back, one
by one, each in one step.

Rule 1: A source that has closed counts as gone immediately. A source that does not renew its key counts as gone when
        another source has observed that for ALIVE seconds without interruption. While the server is unreachable or
        refuses writes, no source can renew its key, and the keys expire.
Rule 2: If a source was silent for longer and then continues, its elements are delivered twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final

import redis

from tidelog.flows.api.connectorcontext import ConnectorContext
from tidelog.transport.cancellation import cancel_and_wait
from tidelog.transport.errors import is_temporary

ALIVE: Final = 15.0  # s
EVERY: Final = 5.0  # s between two renewals, and between two checks of the other sources
ENDED: Final = b"ended"
MOVED: Final = 1000  # elements moved at a time
LOST: Final = (redis.ConnectionError, redis.TimeoutError, OSError)

log = logging.getLogger("tidelog.flows")


class ProcessingList:
    """The processing list of one source. Call ``begin`` after connecting and ``end`` before closing."""

    def __init__(self, key: str, name: str, context: ConnectorContext) -> None:
        self._key = key
        self._name = name
        self._context = context
        self._names = f"{key}:processing"
        self._silent: dict[str, float] = {}  # by list of a silent source: the monotonic time since which it is silent
        self._task: asyncio.Task[None] | None = None

    async def begin(self, server: Any) -> None:
        """Call this before the source reads, because recovered elements come first.

        Raises redis.ConnectionError or redis.TimeoutError if the connection is lost.
        """
        if await self._allowed(self._check(server)):
            self._task = asyncio.get_running_loop().create_task(self._watch(server))

    async def end(self, server: Any) -> None:
        """Let other sources recover the remaining elements. It can be called more than once."""
        task, self._task = self._task, None
        if task is None:
            return
        await cancel_and_wait(task)
        try:
            async with asyncio.timeout(1):
                await self._allowed(self._leave(server))
        except LOST as error:
            log.debug("%s: %s: %s", self._context.flow, self._context.name, error)

    async def _leave(self, server: Any) -> None:
        alive = f"{self._name}:alive"
        if await server.exists(self._name):
            await server.set(alive, ENDED)
        else:
            await server.delete(alive)

    async def _watch(self, server: Any) -> None:
        while True:
            await asyncio.sleep(EVERY)
            try:
                if not await self._allowed(self._check(server)):
                    return
            except LOST as error:  # the source gets the error too
                self._silent.clear()
                log.debug("%s: %s: %s", self._context.flow, self._context.name, error)

    async def _check(self, server: Any) -> None:
        """Renew the key, and recover the lists of sources that no longer exist."""
        await server.set(f"{self._name}:alive", "1", px=int(ALIVE * 1000))
        await server.sadd(self._names, self._name)
        others = sorted(each.decode("utf-8", "replace") for each in await server.smembers(self._names))
        others = [name for name in others if name != self._name and name.startswith(f"{self._names}:")]
        silent = {}
        for name in others:
            sign = await server.get(f"{name}:alive")
            since = self._silent.get(name, time.monotonic())
            if sign == ENDED or (sign is None and time.monotonic() - since >= ALIVE):
                await self._adopt(server, name)
            elif sign is None:
                silent[name] = since
        self._silent = silent

    async def _adopt(self, server: Any, name: str) -> None:
        """Move the elements of a list back, the newest first, so that the oldest is at the head afterwards."""
        count = 0
        while True:
            pipe = server.pipeline(transaction=False)
            for _ in range(MOVED):
                pipe.lmove(name, self._key, "RIGHT", "LEFT")
            moved = sum(each is not None for each in await pipe.execute())
            count += moved
            if moved < MOVED:
                break
        if await server.get(f"{name}:alive") == ENDED:
            await server.delete(f"{name}:alive")
        await server.srem(self._names, name)
        if count:
            text = "%s: %s: %d elements of %s were moved back: no source of that name runs any more"
            log.warning(text, self._context.flow, self._context.name, count, name)
            self._context.count("adopted", count)

    async def _allowed(self, work: Any) -> bool:
        """Return whether recovery is possible, now or later. It is not if the user has rights to the lists only."""
        try:
            await work
        except redis.ResponseError as error:
            self._silent.clear()
            if is_temporary(error):
                log.debug("%s: %s: %s", self._context.flow, self._context.name, error)
                return True
            text = "%s: %s: elements of sources that no longer exist can't be recovered from %s: %s"
            log.warning(text, self._context.flow, self._context.name, self._names, error)
            return False
        return True
