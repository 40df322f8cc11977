"""``StreamTail``: follows a stream for all its readers with one connection to the server.

    evicted from memory |  floor       batches in memory        position  | not appended yet
    readers read ranges |  readers take events from memory                | readers wait
    on their own        |                                                 |

Rule 1: the batches have all entries after ``floor`` up to ``position``. A reader at an ID in between, or at ``floor``,
        takes the entries after its ID from them. A reader before ``floor`` reads ranges from the server until it is
        there. There are no gaps and no duplicates, because each reader compares IDs with its own.
Rule 2: the memory of the batches is at most RETAINED, plus the last read. Batches are dropped after about FRESH s.
        Readers share the bytes of the events, so thousands of readers that do not read need little memory.
Rule 3: a tail belongs to a user. The server checks the rights of the user with each read. The tail logs in again every
        VERIFIED seconds, so a user with a new password loses access.
Rule 4: a lost connection is opened again until the server answers. The readers wait in the meantime.
Rule 5: a tail ends LINGER seconds after its last reader, so that a page that reloads finds it.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import Final

from tidelog.client import calls
from tidelog.client.entries import Batch, StreamId
from tidelog.gateway.errors import ProblemError, ServerUnavailableError, unavailable
from tidelog.gateway.frames import PART, FrameBatch, frames_of
from tidelog.gateway.limits import UseLimit
from tidelog.gateway.users import VERIFIED, GatewayUser, replies_of, result_of
from tidelog.operating.errortexts import FailureLog
from tidelog.operating.tasks import BackgroundTasks
from tidelog.transport.asyncconnection import AsyncConnection, LostError
from tidelog.transport.backoff import Backoff, Delays

RETAINED: Final = 256 << 10  # bytes of events
FRESH: Final = 30.0  # s
BATCH: Final = 128 << 10  # bytes of entries of a read, as the server sends them
ENTRIES: Final = 1000  # of a read
BLOCK_MS: Final = 15_000
LINGER: Final = 5.0  # s
WOKEN: Final = 500  # readers; they take about 15 ms
BACKOFF: Final = Backoff(first=0.05, most=2.0, jitter=0.3)

log = logging.getLogger("tidelog.gateway")


class StreamTail:
    """The newest entries of a stream as events. ``problem``: why the tail has ended."""

    def __init__(self, user: GatewayUser, key: bytes, failures: FailureLog) -> None:
        self._user = user
        self._key = key
        self._batches: deque[FrameBatch] = deque()
        self._bytes = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._failures = failures
        self.floor = StreamId(0, 0)
        self.position: StreamId | None = None  # None until the server has answered
        self.problem: ProblemError | None = None
        self.readers = 0
        self.unused = 0.0  # monotonic: when the last reader left

    # -- for readers -----------------------------------------------------------------------------------------
    def covers(self, after: StreamId) -> bool:
        """Return whether ``take`` has all entries after an ID."""
        return self.position is not None and after >= self.floor

    def take(self, after: StreamId) -> tuple[bytes, StreamId] | None:
        """Return the next events after an ID that ``covers`` accepts, and the last ID; None if there are none yet.

        Batches are joined up to about PART bytes. A larger one is returned alone, as the bytes that all readers share.
        """
        following: list[FrameBatch] = []
        for batch in reversed(self._batches):
            if batch.last <= after:
                break
            following.append(batch)
        found: list[bytes] = []
        size, last = 0, after
        for batch in reversed(following):
            whole = batch.ids[0] > after
            data = batch.data if whole else b"".join(batch.frames[bisect_right(batch.ids, after) :])
            if found and size + len(data) > PART:
                break
            found.append(data)
            size, last = size + len(data), batch.last
        if not found:
            return None
        return found[0] if len(found) == 1 else b"".join(found), last

    async def wait(self, after: StreamId | None, seconds: float) -> None:
        """Wait for entries after an ID, None: for the first answer of the server, or until the tail ends."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self.problem is None and not self._has(after) and loop.time() < until:
            future: asyncio.Future[None] = loop.create_future()
            timer = loop.call_at(until, _wake, future)
            self._waiting.add(future)
            try:
                await future
            finally:
                timer.cancel()
                self._waiting.discard(future)

    def _has(self, after: StreamId | None) -> bool:
        return self.position is not None and (after is None or after < self.position)

    # -- the connection --------------------------------------------------------------------------------------
    async def follow(self) -> None:
        """Read the stream until the tail ends."""
        try:
            await self._follow()
        except ProblemError as problem:
            self.end(problem)
        except Exception as error:
            log.exception("following a stream failed")
            self.end(ProblemError(500, "internal", f"Internal error: {type(error).__name__}."))
            raise

    def end(self, problem: ProblemError) -> None:
        """End the tail with the reason for its readers."""
        self.problem = self.problem or problem
        self._wake_all()

    async def _follow(self) -> None:
        delays = Delays(BACKOFF)
        while True:
            connection = None
            try:
                connection = await self._user.open()
                await self._read(connection, delays)
            except (LostError, ServerUnavailableError) as error:
                self._failures.warn(f"streams can't be followed: {error}", "follow")
            finally:
                if connection is not None:
                    connection.close()
            await asyncio.sleep(delays.next())

    async def _read(self, connection: AsyncConnection, delays: Delays) -> None:
        if self.position is None:
            info = calls.tread(self._key, "0", 0, with_info=True)
            first: Batch = result_of((await replies_of(connection, [info]))[0])
            self.position = self.floor = first.info.last if first.info is not None else StreamId(0, 0)
            self._wake_all()
        verified = monotonic()
        while True:
            read = calls.tread(
                self._key, self.position, ENTRIES, max_bytes=BATCH, block=BLOCK_MS, with_info=True
            )  # fmt: skip
            login = []
            if monotonic() - verified >= VERIFIED:
                login, verified = self._user.authentication, monotonic()
            replies = list(map(result_of, await replies_of(connection, [*login, read])))
            delays.reset()
            self._failures.succeeded()
            self._publish(replies[-1])

    def _publish(self, batch: Batch) -> None:
        found = frames_of(batch, self.position or self.floor)
        if found is None:
            return
        parts = found.parts()
        self._batches.extend(parts)
        self._bytes += sum(len(each.data) for each in parts)
        self.position = found.last
        while self._bytes > RETAINED and len(self._batches) > len(parts):
            self._drop_oldest()
        self._wake_all()

    def drop_old(self) -> None:
        """Drop the batches that are older than FRESH. Entries that are deleted do not stay in memory."""
        until = monotonic() - FRESH
        while self._batches and self._batches[0].read_at <= until:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._batches.popleft()
        self._bytes -= len(oldest.data)
        self.floor = oldest.last

    def _wake_all(self) -> None:
        self._wake_some(list(self._waiting))

    def _wake_some(self, futures: list[asyncio.Future[None]]) -> None:
        """Wake readers, WOKEN at a time: each writes to its client, and other requests are served in between."""
        for future in futures[:WOKEN]:
            _wake(future)
        if len(futures) > WOKEN:
            asyncio.get_running_loop().call_soon(self._wake_some, futures[WOKEN:])


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class StreamTails:
    """The tails of all streams that are followed. ``streams`` limits them."""

    def __init__(self, streams: UseLimit) -> None:
        self._streams = streams
        self._tails: dict[tuple[GatewayUser, bytes], StreamTail] = {}
        self._failures = FailureLog(log)  # of all tails: an outage is logged once
        self._closed = False
        self._ends: dict[StreamTail, ExitStack] = {}
        self._tasks = BackgroundTasks()

    @contextmanager
    def joined(self, user: GatewayUser, key: bytes) -> Iterator[StreamTail]:
        """Use the tail of a stream until the context ends. Raises ProblemError if too many streams are followed."""
        tail = self._tails.get((user, key))
        if tail is None or tail.problem is not None:
            tail = self._begin(user, key)
        tail.readers += 1
        try:
            yield tail
        finally:
            tail.readers -= 1
            tail.unused = monotonic()

    @property
    def count(self) -> int:
        """The number of streams that are followed; a stream counts once for each user."""
        return len(self._tails)

    def sweep(self) -> None:
        """End the tails without readers, and drop old batches of the others."""
        now = monotonic()
        for at, tail in list(self._tails.items()):
            if not tail.readers and (now - tail.unused >= LINGER or tail.problem is not None):
                self._end(at, unavailable("Nobody reads this stream."))
            else:
                tail.drop_old()

    def close(self) -> None:
        """End all tails. No further ones begin."""
        self._closed = True
        for at in list(self._tails):
            self._end(at, unavailable("The gateway is shutting down.", "closing"))

    def _begin(self, user: GatewayUser, key: bytes) -> StreamTail:
        if self._closed:
            raise unavailable("The gateway is shutting down.", "closing")
        at = user, key
        if at in self._tails:
            self._end(at, unavailable("The stream is followed again."))
        with ExitStack() as stack:
            stack.enter_context(self._streams.taken(user.name))
            stack.enter_context(user.held())
            tail = self._tails[at] = StreamTail(user, key, self._failures)
            task = self._tasks.spawn(tail.follow())
            stack.callback(task.cancel)
            self._ends[tail] = stack.pop_all()
        return tail

    def _end(self, at: tuple[GatewayUser, bytes], reason: ProblemError) -> None:
        tail = self._tails.pop(at)
        tail.end(reason)
        self._ends.pop(tail).close()
