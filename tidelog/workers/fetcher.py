"""``Fetcher``: reads entries into the buffers of one processor's partitions.

    hot      a TREAD returned as many entries as were asked for, or TWAIT named the stream: it is read next
    waiting  all others with room: one TWAIT for them together, on a line of its own

Rule 1: all TREADs of a round leave as one pipeline. A partition without room is not in it.
Rule 2: what is read under a lease that is over is missing at the new owner, whom it would make go on behind it. So that
        is looked at last of all before a TREAD leaves: a process that was paused sees its TWAIT answered first.
Rule 3: TWAIT delivers nothing. A wait whose partitions are out of date is ended (CLIENT UNBLOCK) where it lacks one,
        and otherwise left alone: what it names and is not ours is passed over.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import redis

from tidelog.client import calls
from tidelog.client.calls import Call, Value
from tidelog.client.client import NoGroupError
from tidelog.workers import logs
from tidelog.workers.buffers import Buffer, Row
from tidelog.workers.channel import Channel, LostError, plain
from tidelog.workers.link import Line, Link

log = logs.get(__name__)
WAIT_MS: Final = 60_000  # of one TWAIT
REFUSED: Final = 1.0  # seconds until a stream that could not be read is tried again


class Fetcher:
    """For one processor in one worker. ``reads``: the line that TREADs and TACKs share, so that they keep their order.

    ``start``: where a group that does not exist yet begins, as TREAD takes it.
    """

    def __init__(self, link: Link, reads: Line, group: str, retry_ms: int, start: str) -> None:
        self._reads = reads
        self._waits = link.line(self._opened)
        self._group = group
        self._options: tuple[Value, ...] = ("GROUP", group, 0, "RETRY", retry_ms, 0)
        self._start = start
        self._buffers: dict[str, Buffer] = {}  # by stream
        self._hot: dict[str, Buffer] = {}
        self._wake = asyncio.Event()
        self._waiting: asyncio.Task[list[str]] | None = None
        self._awaited: frozenset[str] = frozenset()  # the streams that it waits for
        self._client_id = 0  # of the connection that waits

    def add(self, buffer: Buffer) -> None:
        """Read this one too, now."""
        buffer.open = True
        self._buffers[buffer.stream] = self._hot[buffer.stream] = buffer
        self._wake.set()

    def remove(self, buffer: Buffer) -> None:
        """Read it no more."""
        buffer.open = False
        self._buffers.pop(buffer.stream, None)
        self._hot.pop(buffer.stream, None)

    def roomy(self) -> None:
        """A buffer has room again."""
        self._wake.set()

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            while True:
                self._wake.clear()
                wanted = [buffer for buffer in self._hot.values() if buffer.room and buffer.ours()]
                if wanted:
                    await self._read(wanted)
                else:
                    await self._wait()
        finally:
            if self._waiting is not None:
                self._waiting.cancel()
            self._waits.close()

    async def _read(self, wanted: list[Buffer]) -> None:
        try:
            channel = await self._reads.channel()
        except LostError:
            return
        wanted = [buffer for buffer in wanted if buffer.ours()]
        asked = [buffer.room for buffer in wanted]
        made = [
            Call(("TREAD", buffer.stream, self._start, room, *self._options), _rows)
            for buffer, room in zip(wanted, asked, strict=True)
        ]
        for buffer in wanted:
            buffer.quiet.clear()
        try:
            replies = await channel.send(made)
            now = time.monotonic()
            for buffer, room, rows in zip(wanted, asked, replies, strict=True):
                if isinstance(rows, redis.ResponseError):
                    await self._refused(buffer.stream, rows)
                elif buffer.take_in(rows, now) < room:
                    self._hot.pop(buffer.stream, None)
        except LostError:
            pass  # they stay hot
        finally:
            for buffer in wanted:
                buffer.read_ended()

    async def _refused(self, stream: str, error: redis.ResponseError) -> None:
        log.error("group %s can't read %s: %s; trying again every %g s", self._group, stream, error, REFUSED)
        await asyncio.sleep(REFUSED)

    # -- waiting ---------------------------------------------------------------------------------------------
    async def _wait(self) -> None:
        """Until a stream has something, or the buffers have changed."""
        streams = frozenset(
            stream for stream, buffer in self._buffers.items() if stream not in self._hot and buffer.room
        )
        if self._waiting is not None and not streams <= self._awaited:
            await self._unblock(self._waiting)
        if self._waiting is None and streams:
            self._awaited = streams
            self._waiting = asyncio.create_task(self._next(sorted(streams)))
        woken = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait(
                {woken} if self._waiting is None else {woken, self._waiting}, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            woken.cancel()
        self._take()

    def _take(self) -> None:
        """What the wait has found, if it has ended."""
        waiting = self._waiting
        if waiting is None or not waiting.done():
            return
        self._waiting = None
        for stream in waiting.result():
            buffer = self._buffers.get(stream)
            if buffer is not None:
                self._hot[stream] = buffer

    async def _unblock(self, waiting: asyncio.Task[list[str]]) -> None:
        while not waiting.done():
            try:
                await self._reads.send([plain("CLIENT", "UNBLOCK", self._client_id)])
            except LostError:
                continue
            await asyncio.wait({waiting}, timeout=0.1)  # it may not have been blocked yet
        self._take()

    async def _next(self, streams: list[str]) -> list[str]:
        """Those of the streams that have something for the group; none if the wait was ended."""
        while True:
            try:
                (found,) = await self._waits.send([calls.twait_group(self._group, streams, block=WAIT_MS)])
            except LostError:
                continue
            if isinstance(found, NoGroupError):
                return streams  # the next TREAD makes it again
            if isinstance(found, redis.ResponseError):
                log.error("group %s can't wait for %s ...: %s", self._group, streams[0], found)
                await asyncio.sleep(REFUSED)
                return streams
            return [stream.decode() for stream in found]

    async def _opened(self, channel: Channel) -> None:
        (self._client_id,) = await channel.send([plain("CLIENT", "ID")])


def _rows(reply: Any) -> list[Row | None]:
    found: list[Row | None] = reply
    return found
