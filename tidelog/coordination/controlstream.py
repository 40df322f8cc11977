"""The control stream, in which cooperating processes notify each other of changes.

    app:shop:control:  kind joined, processor bill, worker w3

Rule 1: a message is only a hint to read the documents and claims, which are authoritative. A lost, late or duplicate
        message is harmless.
Rule 2: the stream is read from the last ID that was read, never from "now", so that no message is missed between two
        reads or while a connection is re-established. If the stream ends before that ID, as after a failover that lost
        messages, it is read from its end, and all listeners are notified.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import redis

from tidelog.client import calls
from tidelog.client.entries import Entry, Missing, StreamId
from tidelog.client.steps import CallSender, checked
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.transport.backoff import Backoff, Delays
from tidelog.transport.call import Call
from tidelog.transport.cancellation import cancel_and_wait
from tidelog.transport.errors import is_denied

log = logging.getLogger(__name__)
KEPT: Final = 1000  # messages
WAIT_MS: Final = 30_000  # of one blocking read
AT_ONCE: Final = 100  # messages of one read
BACKOFF: Final = Backoff(first=0.1, most=2.0)

OnChange = Callable[[bool], None]


def notify(key: str, fields: Mapping[str, str]) -> Call[Any]:
    """Return the call that appends a message to the control stream ``key``."""
    return calls.tappev(key, fields, count=KEPT)


class ControlStream:
    """Follows the control stream ``key`` for all its listeners in this process.

    ``subject`` is the field that names what a message concerns. ``link`` is used for blocking reads, so it should not
    be shared.
    """

    def __init__(self, key: str, subject: str, link: CallSender) -> None:
        self.key = key
        self.last: StreamId | None = None  # the ID of the last message that was read; None before the first read
        self._subject = subject.encode()
        self._link = link
        self._trouble = FailureLog(log)
        self._listeners: dict[object, tuple[str, OnChange]] = {}
        self._runner: asyncio.Task[None] | None = None

    def subscribe(self, subject: str, callback: OnChange) -> Callable[[], None]:
        """Call ``callback`` when something may have changed for a subject; returns a function that unsubscribes.

        ``subject`` is empty for changes that concern everything. ``callback(True)`` means that the connection was lost
        meanwhile, so claims must be compared with the server.
        """
        token = object()
        self._listeners[token] = (subject, callback)

        def unsubscribe() -> None:
            self._listeners.pop(token, None)

        return unsubscribe

    async def begin(self) -> None:
        """Record the end of the stream. Must be called before documents are read for the first time."""
        if self.last is None:
            self.last = await self._end()

    async def _end(self) -> StreamId:
        try:
            (batch,) = checked(await self._link.together(calls.tread(self.key, "0", 0, with_info=True)))
        except redis.ResponseError as error:
            if is_denied(error):
                raise
            self._trouble.warn(f"{self.key}: {text_of(error)}; changes are noticed later")
            return StreamId(0)  # the whole stream is read when that is possible again
        last: StreamId = batch.info.last
        return last

    def feed(self, items: Sequence[Entry | Missing]) -> None:
        """Process messages that were read after ``last``."""
        concerned: set[str] = set()
        for item in items:
            if isinstance(item, Entry):
                self.last = item.id
                concerned.add(item.get(self._subject, b"").decode(errors="replace"))
            else:
                concerned.update(self._subjects())
        self._notify(concerned, lost=False)

    def start(self) -> None:
        """Start following the stream."""
        self._runner = asyncio.create_task(self.run(), name=self.key)

    async def stop(self) -> None:
        """Stop following the stream."""
        await cancel_and_wait(self._runner)

    async def run(self) -> None:
        """Follow the stream until cancelled."""
        delays, lost = Delays(BACKOFF), False
        while True:
            try:
                await self.begin()
                if lost:
                    self.last = min(self.last or StreamId(0), await self._end())
                    lost = False
                    self._notify(self._subjects(), lost=True)
                read = calls.tread(self.key, self.last or "0", AT_ONCE, block=WAIT_MS)
                async with asyncio.timeout(WAIT_MS / 1000 * 2):  # detects a peer that vanished
                    (batch,) = checked(await self._link.together(read))
                self.feed(batch)
            except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError, OSError) as error:
                if isinstance(error, redis.ResponseError):
                    self._trouble.warn(f"{self.key}: {text_of(error)}; changes are noticed later")
                else:
                    log.info("%s: %s", self.key, error)
                lost = True
                await asyncio.sleep(delays.next())
                continue
            except Exception:
                log.exception("%s: unexpected error; the stream is read again", self.key)
                lost = True
                await asyncio.sleep(delays.next())
                continue
            delays.reset()
            self._trouble.succeeded()

    def _subjects(self) -> set[str]:
        return {subject for subject, _ in self._listeners.values()}

    def _notify(self, concerned: set[str], lost: bool) -> None:
        for subject, callback in tuple(self._listeners.values()):
            if subject in concerned:
                try:
                    callback(lost)
                except Exception:  # the other listeners must be notified
                    log.exception("%s: a listener of %r failed", self.key, subject)
