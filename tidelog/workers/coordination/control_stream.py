"""The control stream: workers tell each other that something has changed.

    app:shop:control:  kind joined, processor bill, worker w3

Rule 1: a message is a hint to look, never the news itself: what counts are documents and claims. So a message that is
        lost, late or doubled does no harm.
Rule 2: it is read from the last ID that was seen, never "from now on": nothing is missed between two reads, nor while a
        connection is made again. Only where the stream ends before that ID, as after a failover that lost messages, it
        is read from its end on; everything is looked at then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis

from tidelog.client import calls
from tidelog.client.entries import Entry, Missing, StreamId
from tidelog.client.steps import CallSender, checked
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.transport.call import Call
from tidelog.transport.errors import is_denied
from tidelog.workers import keys, logs
from tidelog.workers.coordination.cancellation import end

log = logs.get(__name__)
KEPT: Final = 1000  # messages
WAIT_MS: Final = 30_000  # of one blocking read
AT_ONCE: Final = 100  # messages of one read
FIRST: Final = 0.1  # seconds until a read that failed is tried again
MOST: Final = 2.0  # seconds between two attempts at most

Told = Callable[[bool], None]


def message(app: str, kind: str, worker: str, processor: str = "", partition: int | None = None) -> Call[Any]:
    """The call that sends a message. ``kind``: joined, settled, left, dead, released, paused or leader."""
    fields = {"kind": kind, "worker": worker, "processor": processor}
    if partition is not None:
        fields["partition"] = str(partition)
    return calls.tappev(keys.control(app), fields, count=KEPT)


class Control:
    """Follows the control stream of an app, for all its listeners in this worker.

    ``link`` is used for reads that block: nothing else should wait behind them. A worker that waits for several streams
    anyway can wait for ``key`` after ``last`` too, and pass what it has read to ``feed``, instead of ``start``.
    """

    def __init__(self, app: str, link: CallSender) -> None:
        self.key = keys.control(app)
        self.last: StreamId | None = None  # the ID of the last message that was seen; None before the first read
        self._link = link
        self._trouble = FailureLog(log)
        self._told: dict[object, tuple[str, Told]] = {}
        self._runner: asyncio.Task[None] | None = None

    def subscribe(self, processor: str, told: Told) -> Callable[[], None]:
        """Call ``told`` when something may have changed that concerns a processor; returns what ends that.

        ``processor`` is empty for what concerns the app. ``told(True)``: the connection was lost meanwhile, so claims
        are to be compared with the server.
        """
        token = object()
        self._told[token] = (processor, told)

        def unsubscribe() -> None:
            self._told.pop(token, None)

        return unsubscribe

    async def begin(self) -> None:
        """Remember where the stream ends. Called before documents are read for the first time."""
        if self.last is None:
            self.last = await self._end()

    async def _end(self) -> StreamId:
        try:
            (batch,) = checked(await self._link.together(calls.tread(self.key, "0", 0, with_info=True)))
        except redis.ResponseError as error:
            if is_denied(error):
                raise
            self._trouble.warn(f"{self.key}: {text_of(error)}; changes are noticed later")
            return StreamId(0)  # all of it is read when it can be
        end: StreamId = batch.info.last
        return end

    def feed(self, items: Sequence[Entry | Missing]) -> None:
        """Pass on what was read after ``last``."""
        concerned: set[str] = set()
        for item in items:
            if isinstance(item, Entry):
                self.last = item.id
                concerned.add(item.get(b"processor", b"").decode(errors="replace"))
            else:
                concerned.update(processor for processor, _ in self._told.values())
        self._tell(concerned, lost=False)

    def start(self) -> None:
        """Follow the stream."""
        self._runner = asyncio.create_task(self.run(), name=self.key)

    async def stop(self) -> None:
        """Follow it no more."""
        await end(self._runner)

    async def run(self) -> None:
        """As ``start``, until cancelled. End the task with ``tasks.end``, or by ``stop`` where ``start`` began it."""
        delay, lost = 0.0, False
        while True:
            try:
                await self.begin()
                if lost:
                    self.last = min(self.last or StreamId(0), await self._end())
                    lost = False
                    self._tell({processor for processor, _ in self._told.values()}, lost=True)
                read = calls.tread(self.key, self.last or "0", AT_ONCE, block=WAIT_MS)
                async with asyncio.timeout(WAIT_MS / 1000 * 2):  # a peer that vanished without a word
                    (batch,) = checked(await self._link.together(read))
            except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError, OSError) as error:
                if isinstance(error, redis.ResponseError):
                    self._trouble.warn(f"{self.key}: {text_of(error)}; changes are noticed later")
                else:
                    log.info("%s: %s", self.key, error)
                lost = True
                delay = min(MOST, delay * 2) or FIRST
                await asyncio.sleep(delay)
                continue
            delay = 0.0
            self._trouble.well()
            self.feed(batch)

    def _tell(self, concerned: set[str], lost: bool) -> None:
        for processor, told in tuple(self._told.values()):
            if processor in concerned:
                told(lost)
