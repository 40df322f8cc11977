"""``Acks``: the acknowledgements of one partition, sent in groups.

They are sent when there are COUNT of them, after AGE seconds, when the consumer is idle, and before the partition is
released. TACK is idempotent, so after a lost connection they are sent again while the partition is held. If it is not
held any more, they are dropped, because another worker owns the entries.
"""

from __future__ import annotations

import asyncio
from typing import Final

import redis

from tidelog.transport.asyncconnection import LostError
from tidelog.workers import logs
from tidelog.workers.coordination.connections import WorkerConnection
from tidelog.workers.execution.buffers import Buffer
from tidelog.workers.execution.stats import Stats

log = logs.get(__name__)
COUNT: Final = 500
AGE: Final = 0.05  # seconds


class Acks:
    """The acknowledgements of one partition."""

    def __init__(self, connection: WorkerConnection, buffer: Buffer, stats: Stats) -> None:
        self._connection = connection
        self._buffer = buffer
        self._stats = stats
        self._ids: list[bytes] = []
        self._sending: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, entry_id: bytes) -> None:
        """Acknowledge this entry soon."""
        ids = self._ids
        ids.append(entry_id)
        if self._timer is None or len(ids) >= COUNT:
            self._added()

    def add_all(self, ids: list[bytes]) -> None:
        """Acknowledge these entries soon."""
        self._ids += ids
        self._added()

    def _added(self) -> None:
        if len(self._ids) >= COUNT:
            self.soon()
        elif self._timer is None:
            self._timer = self._loop.call_later(AGE, self.soon)

    def soon(self) -> None:
        """Send the acknowledgements without waiting for the reply."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ids and self._sending is None:
            self._sending = self._loop.create_task(self._send())

    async def flush(self) -> None:
        """Send the acknowledgements; return when the server has them, or when the partition is lost."""
        while self._ids or self._sending is not None:
            self.soon()
            if self._sending is not None:
                await asyncio.wait([self._sending])

    def drop(self) -> None:
        """Send nothing more, because the partition is lost."""
        self._ids.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self) -> None:
        try:
            while self._ids:
                channel = await self._connection.channel()
                if not self._buffer.active:
                    self._ids.clear()
                    return
                ids, self._ids = self._ids, []
                try:
                    (reply,) = await channel.send([self._buffer.ack(ids)])
                except LostError:
                    self._ids = ids + self._ids
                    continue
                if isinstance(reply, redis.ResponseError):  # the entries are redelivered after their retry time
                    log.error(
                        "group %s: the server rejects %d acknowledgements of %s: %s", self._buffer.group, len(ids),
                        self._buffer.stream, reply,
                    )  # fmt: skip
                else:
                    self._stats.acknowledged += len(ids)
                self._buffer.forget(ids)
        finally:
            self._sending = None
