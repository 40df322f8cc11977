"""``Fetcher``: reads entries into the buffers of one processor's partitions.

    hot      a TREAD returned as many entries as requested, or TWAIT named the stream: it is read next
    waiting  all other streams with room: one TWAIT for all of them, on a separate connection

Rule 1: all TREADs of a round are sent as one pipeline. A partition without room is not included.
Rule 2: if a former owner reads entries, the new owner misses them and continues with later ones, which breaks the order
        of a key. Checking the lease before a TREAD is not enough, because the process can be paused between the check
        and the send. So a round is one transaction that watches the claims: MULTI TREAD ... EXEC WATCH MGET, the last
        two for the next round. This has no measurable effect on events/s.
Rule 3: TWAIT delivers nothing. A wait that lacks a partition is ended (CLIENT UNBLOCK). A wait for partitions that this
        worker does not own any more continues, and their names are ignored.
Rule 4: if the reply of a TREAD was lost, the entries that it may have delivered become due before anything else is
        read, because they would otherwise follow newer entries. This does not apply to partitions without an owner,
        where another worker may have received them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis

from tidelog.client import calls
from tidelog.client.steps import checked
from tidelog.client.strings import watch_and_get
from tidelog.coordination import Claim
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.transport.asyncconnection import AsyncConnection, LostError
from tidelog.transport.call import Call, Value, plain, queued
from tidelog.transport.errors import NoGroupError, is_denied
from tidelog.workers import logs
from tidelog.workers.coordination.connections import WorkerConnection, WorkerConnector
from tidelog.workers.execution.buffers import Buffer, Row

log = logs.get(__name__)
PAGE: Final = 1000  # pending messages per page
WAIT_MS: Final = 60_000  # of one TWAIT
REFUSED: Final = 1.0  # seconds until a stream that could not be read is retried


class Fetcher:
    """Reads for one processor in one worker. ``reads``: the connection of TREADs and TACKs, which keeps their order.

    ``start``: the position of a new group, in the form of TREAD.
    """

    def __init__(
        self, connector: WorkerConnector, reads: WorkerConnection, group: str, retry_ms: int, start: str,
        taken: Callable[[Claim], None], owned: bool = True,
    ) -> None:  # fmt: skip
        self._reads = reads
        self._waits = connector.connection(self._opened)
        self._group = group
        self._options: tuple[Value, ...] = ("GROUP", group, 0, "RETRY", retry_ms, 0)
        self._start = start
        self._owned = owned  # whether all pending messages are this worker's
        self._unseen: set[Buffer] = set()  # buffers whose entries may have been delivered in a lost reply
        self.buffers: dict[str, Buffer] = {}  # by stream
        self.hot: dict[str, Buffer] = {}
        self._taken = taken  # called with a claim that another worker has taken
        self._channel: AsyncConnection | None = None  # the one with the WATCHes
        self._watched: dict[str, Claim] = {}  # by key
        self._refusing: set[str] = set()  # streams that can't be read currently
        self._trouble: dict[str, FailureLog] = {}  # by stream
        self._wake = asyncio.Event()
        self._waiting: asyncio.Task[list[str]] | None = None
        self._awaited: frozenset[str] = frozenset()  # the streams of the current TWAIT
        self._client_id = 0  # of the connection for TWAIT

    def add(self, buffer: Buffer) -> None:
        """Start reading into this buffer."""
        buffer.open = True
        self.buffers[buffer.stream] = self.hot[buffer.stream] = buffer
        self._wake.set()

    def remove(self, buffer: Buffer) -> None:
        """Stop reading into this buffer."""
        buffer.open = False
        self.buffers.pop(buffer.stream, None)
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
                wanted = [buffer for buffer in self.hot.values() if buffer.room and buffer.claim.held]
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
            for buffer in self._unseen.intersection(wanted):
                await self._make_due(buffer)
            channel = await self._reads.channel()
            await self._watch(channel)
        except LostError:
            return
        wanted = [buffer for buffer in wanted if buffer.room and buffer.claim.held]
        asked = [buffer.room for buffer in wanted]
        for buffer in wanted:
            buffer.not_reading.clear()
        try:
            replies = await self._round(channel, wanted, asked)
            if replies is None:
                return  # the streams stay hot
            now = time.monotonic()
            for buffer, room, rows in zip(wanted, asked, replies, strict=True):
                if isinstance(rows, Exception):
                    self._refused(buffer, rows)
                    continue
                if self._trouble:
                    self._trouble.pop(buffer.stream, None)
                if buffer.add_rows(rows, now) < room:
                    self.hot.pop(buffer.stream, None)
        except LostError:  # the streams stay hot
            if self._owned:
                self._unseen.update(wanted)
        finally:
            for buffer in wanted:
                buffer.read_finished()

    async def _round(self, channel: AsyncConnection, wanted: list[Buffer], asked: list[int]) -> Sequence[Any] | None:
        """Return the reply of TREAD or an error for each buffer; None, without reading, if a claim has changed."""
        reads = [
            Call(("TREAD", buffer.stream, self._start, room, *self._options), _rows)
            for buffer, room in zip(wanted, asked, strict=True)
        ]
        keys = list(self._watched)
        if not keys or not reads:  # partitions without an owner
            return await channel.send(reads)
        *_, done, _, values = await channel.send(
            [plain("MULTI"), *map(queued, reads), plain("EXEC"), *watch_and_get(keys)]
        )
        self._compare(keys, values)
        return [done] * len(reads) if isinstance(done, Exception) else done

    async def _watch(self, channel: AsyncConnection) -> None:
        """Watch the claims of all partitions that are read. Raises LostError."""
        if channel is not self._channel:
            self._channel = channel
            self._watched.clear()
        claims = {buffer.claim.key: buffer.claim for buffer in self.buffers.values() if buffer.claim.key}
        new = [key for key, claim in claims.items() if self._watched.get(key) is not claim]
        self._watched = claims
        if new:
            _, values = await channel.send(watch_and_get(new))
            self._compare(new, values)

    def _compare(self, keys: list[str], values: Any) -> None:
        """Check that the claims are this worker's, under any epoch: another task of it may have reclaimed them."""
        for key, value in zip(keys, checked([values])[0], strict=True):
            claim = self._watched[key]
            if (value or b"").rpartition(b"|")[0] != claim.value.rpartition(b"|")[0]:
                del self._watched[key]
                self._taken(claim)

    async def _make_due(self, buffer: Buffer) -> None:
        """Make pending messages due that are not in flight. Raises LostError."""
        start = "-"
        while True:
            (page,) = await self._reads.send([calls.tpending_range(buffer.stream, self._group, start, "+", PAGE)])
            if isinstance(page, redis.ResponseError) or not page or not buffer.claim.held:
                break
            ids = [message.id for message in page if b"%d.%d" % (message.id.ms, message.id.seq) not in buffer.in_flight]
            if ids:
                await self._reads.send([calls.tnack(buffer.stream, self._group, *ids)])
            last = page[-1].id
            start = f"{last.ms}.{last.seq + 1}"
        self._unseen.discard(buffer)

    def _refused(self, buffer: Buffer, error: Exception) -> None:
        """Log that a stream can't be read, and retry later; other streams continue."""
        if is_denied(error):
            raise error
        stream = buffer.stream
        text = f"group {self._group} can't read {stream}: {text_of(error)}; trying again every {REFUSED:g} s"
        self._trouble.setdefault(stream, FailureLog(log)).warn(text)
        self.hot.pop(stream, None)
        self._refusing.add(stream)
        asyncio.get_running_loop().call_later(REFUSED, self._try_again, buffer)

    def _try_again(self, buffer: Buffer) -> None:
        self._refusing.discard(buffer.stream)
        if self.buffers.get(buffer.stream) is buffer:
            self.hot[buffer.stream] = buffer
            self._wake.set()

    # -- waiting ---------------------------------------------------------------------------------------------
    async def _wait(self) -> None:
        """Wait until a stream has entries, or the buffers have changed."""
        streams = frozenset(
            stream
            for stream, buffer in self.buffers.items()
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
        for stream in waiting.result():
            buffer = self.buffers.get(stream)
            if buffer is not None and stream not in self._refusing:
                self.hot[stream] = buffer

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


def _rows(reply: Any) -> list[Row | None]:
    found: list[Row | None] = reply
    return found
