"""``Fetcher``: reads entries into the buffers of one processor's partitions.

The hot streams are read in rounds (``GroupReader``). One TWAIT waits for all other streams with room, on a separate
connection.

Rule 1: a partition without room is not read.
Rule 2: if a former owner reads entries, the new owner misses them and continues with later ones, which breaks the order
        of a key. So a round is one transaction that watches the claims (``ClaimWatch``).
Rule 3: TWAIT delivers nothing. A wait that lacks a partition is ended (CLIENT UNBLOCK). A wait for partitions that this
        worker does not own any more continues, and their names are ignored.
Rule 4: if the reply of a TREAD was lost, the entries that it may have delivered become due before anything else is
        read, because they would otherwise follow newer entries. This does not apply to partitions without an owner,
        where another worker may have received them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis

from tidelog.client import calls
from tidelog.client.steps import arun
from tidelog.coordination import Claim
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.topics.groupreader import GroupReader
from tidelog.transport.asyncconnection import AsyncConnection, LostError
from tidelog.transport.call import Call, plain
from tidelog.transport.errors import NoGroupError, is_denied
from tidelog.workers import logs
from tidelog.workers.coordination.connections import WorkerConnection, WorkerConnector
from tidelog.workers.execution.buffers import Buffer
from tidelog.workers.execution.claim_watch import ClaimWatch
from tidelog.workers.execution.stats import Stats

log = logs.get(__name__)
WAIT_MS: Final = 60_000  # of one TWAIT
REFUSED: Final = 1.0  # seconds until a stream that could not be read is retried


class Fetcher(GroupReader[Buffer]):
    """Reads for one processor in one worker. ``reads``: the connection of TREADs and TACKs, which keeps their order."""

    def __init__(
        self, connector: WorkerConnector, reads: WorkerConnection, group: str, stats: Stats,
        taken: Callable[[Claim], None], owned: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(stats)
        self._reads = reads
        self._waits = connector.connection(self._opened)
        self._group = group
        self._owned = owned  # whether all pending messages are this worker's
        self._unseen: set[Buffer] = set()  # buffers whose entries may have been delivered in a lost reply
        self._claims = ClaimWatch(taken, any_epoch=True)
        self._refusing: set[str] = set()  # streams that can't be read currently
        self._trouble: dict[str, FailureLog] = {}  # by stream
        self._wake = asyncio.Event()
        self._waiting: asyncio.Task[list[str]] | None = None
        self._awaited: frozenset[str] = frozenset()  # the streams of the current TWAIT
        self._client_id = 0  # of the connection for TWAIT

    def add(self, buffer: Buffer) -> None:
        """Start reading into this buffer."""
        buffer.open = True
        self.streams[buffer.stream] = self.hot[buffer.stream] = buffer
        self._wake.set()

    def remove(self, buffer: Buffer) -> None:
        """Stop reading into this buffer."""
        buffer.open = False
        self.streams.pop(buffer.stream, None)
        self.hot.pop(buffer.stream, None)
        self._unseen.discard(buffer)

    def room_available(self) -> None:
        """Continue, because a buffer has room again."""
        self._wake.set()

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            while True:
                self._wake.clear()
                wanted = [(buffer, room) for buffer in self.hot.values() if buffer.active and (room := buffer.room)]
                if wanted:
                    await self._read_into(wanted)
                else:
                    await self._wait()
        finally:
            if self._waiting is not None:
                self._waiting.cancel()
            self._waits.close()

    async def _read_into(self, wanted: list[tuple[Buffer, int]]) -> None:
        try:
            for buffer in self._unseen.intersection(buffer for buffer, _ in wanted):
                await self._make_due(buffer)
            channel = await self._reads.channel()
            await self._claims.watch(channel, [buffer.claim for buffer in self.streams.values()])
        except LostError:
            return
        wanted = [(buffer, room) for buffer, _ in wanted if buffer.active and (room := buffer.room)]
        try:
            for buffer, rows in await self.read(wanted):
                if self._trouble:
                    self._trouble.pop(buffer.stream, None)
                buffer.add_rows(rows)
        except LostError:  # the streams stay hot
            if self._owned:
                self._unseen.update(buffer for buffer, _ in wanted)

    async def send(self, reads: Sequence[Call[Any]]) -> Sequence[Any] | None:
        """See ``GroupReader.send``. Nothing is executed if a claim has changed. Raises LostError."""
        done = await self._claims.execute(reads, alone=True)
        found: Sequence[Any] | None = [done] * len(reads) if isinstance(done, Exception) else done
        return found

    async def _make_due(self, buffer: Buffer) -> None:
        """Make pending messages due that are not in flight. Raises LostError."""
        try:
            await arun(self._reads, buffer.make_due())
        except redis.ResponseError as error:
            log.warning("group %s: %s may be out of order: %s", self._group, buffer.stream, text_of(error))
        self._unseen.discard(buffer)

    def refused(self, stream: Buffer, error: Exception) -> None:
        """See ``GroupReader.refused``: log that a stream can't be read, and retry later; other streams continue."""
        if is_denied(error):
            raise error
        text = f"group {self._group} can't read {stream.stream}: {text_of(error)}; trying again every {REFUSED:g} s"
        self._trouble.setdefault(stream.stream, FailureLog(log)).warn(text)
        self._refusing.add(stream.stream)
        asyncio.get_running_loop().call_later(REFUSED, self._try_again, stream)

    def _try_again(self, buffer: Buffer) -> None:
        self._refusing.discard(buffer.stream)
        if self.streams.get(buffer.stream) is buffer:
            self.hot[buffer.stream] = buffer
            self._wake.set()

    # -- waiting ---------------------------------------------------------------------------------------------
    async def _wait(self) -> None:
        """Wait until a stream has entries, or the buffers have changed."""
        streams = frozenset(
            stream
            for stream, buffer in self.streams.items()
            if stream not in self.hot and stream not in self._refusing and buffer.room
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
        """Process the result of the wait if it has ended."""
        waiting = self._waiting
        if waiting is None or not waiting.done():
            return
        self._waiting = None
        self.heat(stream for stream in waiting.result() if stream not in self._refusing)

    async def _unblock(self, waiting: asyncio.Task[list[str]]) -> None:
        while not waiting.done():
            try:
                await self._reads.send([plain("CLIENT", "UNBLOCK", self._client_id)])
            except LostError:
                continue
            await asyncio.wait({waiting}, timeout=0.1)  # it may not have blocked yet
        self._take()

    async def _next(self, streams: list[str]) -> list[str]:
        """Return the streams that have entries for the group; none if the wait was unblocked."""
        while True:
            try:
                (found,) = await self._waits.send([calls.twait_group(self._group, streams, block=WAIT_MS)])
            except LostError:
                continue
            if isinstance(found, NoGroupError):
                return streams  # the next TREAD creates the group again
            if isinstance(found, redis.ResponseError):
                if is_denied(found):
                    raise found
                log.error("group %s can't wait for %s ...: %s", self._group, streams[0], text_of(found))
                await asyncio.sleep(REFUSED)
                return streams
            return [stream.decode() for stream in found]

    async def _opened(self, channel: AsyncConnection) -> None:
        (self._client_id,) = await channel.send([plain("CLIENT", "ID")])
