"""Waits for entries without polling, and holds the connections of a source of streams.

    warm   for WARM seconds after the last entry: a TWAIT on its own connection, which reports an entry at once
    cold   after that: in ``SourceNotifier``, together with all other sources of the process; in a cluster of several
           groups, as before, but with fewer and longer TWAITs

A TWAIT delivers no entries, so a TWAIT in progress is not cancelled when the source is interrupted. The next wait
continues it.

Rule 1: No entry is missed. A wait is for entries after certain IDs, or for entries that a group has not read, so it
        does not matter when the wait begins.
Rule 2: ``SourceNotifier`` does not report entries that are due for redelivery. The source asks the server once when the
        next entry is due, and reads again at that time, or after COLD seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import redis

from tidelog.client import calls, strings
from tidelog.client.entries import StreamId
from tidelog.client.steps import Steps, arun
from tidelog.flows.serveraccess import SourceNotifier, channel
from tidelog.operating.tasks import set_within
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import AsyncConnection
from tidelog.transport.call import Call
from tidelog.transport.errors import NoGroupError

T = TypeVar("T")
WARM: Final = 2.0  # s
COLD: Final = 60.0  # s
LONG: Final = 15.0  # s: a TWAIT in a cluster of several groups after WARM
SOON: Final = 0.01  # s added to the time at which entries become due


class EntryWaiter:
    """Waits for entries for one source. ``group``: None if the source has no group."""

    def __init__(self, where: Access, name: str, group: str | None) -> None:
        self._where = where
        self._name = name
        self._group = group
        self.channel: AsyncConnection | None = None  # reads and acknowledges; never blocked
        self._waits: AsyncConnection | None = None  # for TWAIT
        self._wait: asyncio.Future[list[Any]] | None = None  # a TWAIT in progress
        self._awaited: tuple[str, ...] = ()  # its streams
        self._notifier: SourceNotifier | None = None
        self._watched: str = ""  # the name in SourceNotifier
        self._watching: Mapping[str, StreamId] | None = None
        self._rung = asyncio.Event()
        self._interrupted = False
        self._due = False  # ``ring`` was called
        self._has_entries = False
        self._last = -WARM  # loop time of the last entry

    async def open(self) -> None:
        """Open the connection. Raises OSError if the server can't be reached."""
        self.channel = await channel(self._where, self._name)
        if self._notifier is None:
            self._notifier = SourceNotifier.of(self._where)
            self._watched = self._notifier.name()

    async def close(self) -> None:
        for each in (self.channel, self._waits):
            if each is not None:
                each.close()
        self.channel = self._waits = self._wait = None
        self._forget()
        notifier, self._notifier = self._notifier, None
        if notifier is not None:
            await notifier.release()
        self._rung.set()

    @property
    def bytes_received(self) -> int:
        """The number of bytes of replies since the connection was opened."""
        return 0 if self.channel is None else self.channel.bytes_received

    async def send(self, made: Sequence[Call[Any]]) -> list[Any]:
        """Send the calls and return their results.

        Raises ConnectionError if the connection is lost or the server rejects a call.
        """
        if self.channel is None:
            raise ConnectionError("not connected")
        replies = await self.channel.send(made)
        for reply in replies:
            if isinstance(reply, redis.ResponseError):
                raise ConnectionError(f"the server refuses: {reply}")
        return replies

    async def run(self, steps: Steps[T]) -> T:
        """Drive an operation. Raises ConnectionError if the connection is lost, and the operation's own errors."""
        if self.channel is None:
            raise ConnectionError("not connected")
        return await arun(self.channel, steps)

    def interrupt(self) -> None:
        """Make ``until`` return. The next one returns all streams: a group may be reset while its source is paused."""
        self._interrupted = self._due = True
        self._rung.set()

    def ring(self) -> None:
        """Make ``until`` return all streams, because entries are due for redelivery."""
        self._due = True
        self._rung.set()

    def found(self) -> None:
        """Record that an entry was read."""
        self._last = asyncio.get_running_loop().time()
        self._forget()

    def notify_due(self, streams: Sequence[str]) -> None:
        """Notify the other sources of this process that entries are due for redelivery."""
        if self._notifier is not None:
            self._notifier.notify_due(streams)

    async def until(self, streams: Mapping[str, StreamId] | None, due_in: float | None) -> list[str]:
        """Wait until a stream may have entries. Returns those streams, or none if ``interrupt`` was called.

        ``streams``: the IDs after which entries are new. ``due_in``: seconds until entries are due for redelivery.
        Raises ConnectionError if the connection is lost.
        """
        if self._interrupted:
            self._interrupted = False
            return []
        keys = tuple(streams or ())
        if self.warm():
            return await self._warm(keys, streams or {})
        return await self._cold(keys, streams or {}, due_in)

    def warm(self) -> bool:
        """Return whether the next wait is on its own connection. In that case ``until`` needs no ``due_in``."""
        return self._recent or (self.channel is not None and self.channel.several_groups)

    @property
    def _recent(self) -> bool:
        return asyncio.get_running_loop().time() - self._last < WARM

    async def _warm(self, keys: tuple[str, ...], streams: Mapping[str, StreamId]) -> list[str]:
        wait = self._wait
        if wait is None or self._awaited != keys:
            if self._waits is None or self._waits.lost is not None:
                self._waits = await channel(self._where, f"{self._name}:wait")
            block = int((WARM if self._recent else LONG) * 1000)
            call = (
                calls.twait_group(self._group, keys, block=block)
                if self._group is not None
                else calls.twait(streams, block=block)
            )
            wait = self._wait = self._waits.send([call])
            self._awaited = keys
            wait.add_done_callback(self._ended)
        while not wait.done():
            if self._due and not self._interrupted:  # a pause may arrive while the connection is opened
                self._due = False
                return list(keys)  # the TWAIT continues, for the next call
            if await self._ring(None):
                return []
        self._wait = None
        (reply,) = wait.result()
        if isinstance(reply, NoGroupError):
            return list(keys)
        if isinstance(reply, redis.ResponseError):
            raise ConnectionError(f"the server refuses: {reply}")
        return [each.decode() for each in reply] or list(keys)

    async def _cold(self, keys: tuple[str, ...], streams: Mapping[str, StreamId], due_in: float | None) -> list[str]:
        if self._waits is not None:
            self._waits.close()
            self._waits = self._wait = None
        if self._notifier is None:
            raise ConnectionError("not connected")
        if not self._has_entries and self._watching != streams:  # otherwise the earlier watch is still active
            self._watching = dict(streams)
            self._notifier.watch(self._watched, streams, self._notified)
        if not self._has_entries and not self._due:
            seconds = COLD if due_in is None else min(COLD, max(0.0, due_in) + SOON)
            if await self._ring(seconds):
                return []
        self._has_entries = False
        self._due = False
        return list(keys)

    def _ended(self, wait: asyncio.Future[list[Any]]) -> None:
        if not wait.cancelled():
            wait.exception()  # if nobody waits any more, asyncio would log that it was never retrieved
        self._rung.set()

    def _notified(self) -> None:  # called once: this ends the watch
        self._has_entries = True
        self._watching = None
        self._rung.set()

    def _forget(self) -> None:
        if self._watching is not None and self._notifier is not None:
            self._notifier.forget(self._watched)
        self._watching = None
        self._has_entries = False

    async def _ring(self, seconds: float | None) -> bool:
        """Wait for a notification. Returns whether it was an interruption."""
        self._rung.clear()
        if not self._interrupted and not await set_within(self._rung, seconds):
            return False
        if self.channel is None:
            raise ConnectionError("closed")
        interrupted, self._interrupted = self._interrupted, False
        return interrupted

    async def due_in(self, keys: Sequence[str]) -> float | None:
        """Return the seconds until entries of the group are due for redelivery; None: no entry is pending."""
        if self._group is None:
            return None
        if self.channel is None:
            raise ConnectionError("not connected")
        *found, now = await self.channel.send(
            [*(calls.tpending(key, self._group) for key in keys), strings.server_time()]
        )
        if isinstance(now, Exception):
            raise ConnectionError(f"the server refuses: {now}")
        times = [each.next_due for each in found if not isinstance(each, Exception) and each.next_due is not None]
        return (min(times) - now) / 1000 if times else None
