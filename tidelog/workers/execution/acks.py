"""``Acks``: acknowledgements of one partition, sent by many.

They leave when there are COUNT of them, after AGE seconds, when the consumer has nothing to do, and before the
partition is released. TACK may be repeated, so after a lost connection they are sent again, as long as the partition is
held. What is not held any more is not acknowledged: it is somebody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import redis

from tidelog.transport.asyncconnection import LostError
from tidelog.transport.call import Call
from tidelog.workers import logs
from tidelog.workers.coordination.connections import Line
from tidelog.workers.execution.buffers import Buffer
from tidelog.workers.execution.stats import Stats

log = logs.get(__name__)
COUNT: Final = 500
AGE: Final = 0.05  # seconds


class Acks:
    """Of one partition. ``held()`` says whether it is still ours."""

    def __init__(self, line: Line, buffer: Buffer, group: str, held: Callable[[], bool], stats: Stats) -> None:
        self._line = line
        self._buffer = buffer
        self._group = group
        self._held = held
        self._stats = stats
        self._ids: list[bytes] = []
        self._sending: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, entry_id: bytes) -> None:
        """Acknowledge this one soon."""
        ids = self._ids
        ids.append(entry_id)
        if len(ids) >= COUNT:
            self.soon()
        elif self._timer is None:
            self._timer = self._loop.call_later(AGE, self.soon)

    def add_all(self, ids: list[bytes]) -> None:
        self._ids += ids
        if len(self._ids) >= COUNT:
            self.soon()
        elif self._timer is None:
            self._timer = self._loop.call_later(AGE, self.soon)

    def soon(self) -> None:
        """Send what there is, without waiting for it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ids and self._sending is None:
            self._sending = self._loop.create_task(self._send())

    async def flush(self) -> None:
        """Send what there is, and return when the server has it, or when the partition is not ours any more."""
        while self._ids or self._sending is not None:
            self.soon()
            if self._sending is not None:
                await asyncio.wait([self._sending])

    def drop(self) -> None:
        """The partition is lost: acknowledge nothing more."""
        self._ids.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self) -> None:
        try:
            while self._ids:
                channel = await self._line.channel()
                if not self._held():
                    self._ids.clear()
                    return
                ids, self._ids = self._ids, []
                try:
                    (reply,) = await channel.send([Call(("TACK", self._buffer.stream, self._group, *ids), int)])
                except LostError:
                    self._ids = ids + self._ids
                    continue
                if isinstance(reply, redis.ResponseError):  # they come again when their retry time is over
                    log.error("group %s: %d acknowledgements of %s are refused: %s", self._group, len(ids),
                              self._buffer.stream, reply)  # fmt: skip
                else:
                    self._stats.acknowledged += len(ids)
                self._buffer.forget(ids)
        finally:
            self._sending = None
