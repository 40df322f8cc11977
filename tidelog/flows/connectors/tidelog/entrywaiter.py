"""Waits for entries without polling, and holds the connections of a source of streams.

    warm   for WARM seconds after the last entry: a TWAIT on a connection of its own, which reports an entry at once
    cold   after that: in ``EntryNotifier``, together with all other sources of the process

A TWAIT delivers no entries, so a TWAIT in progress is not cancelled when the source is interrupted. The next wait
continues it.

Rule 1: No entry is missed. A wait is for entries after certain IDs, or for entries that a group has not read, so it
        does not matter when the wait begins.
Rule 2: ``EntryNotifier`` does not report entries that are due for redelivery. The source asks the server once when the
        next entry is due, and reads again at that time, or after COLD seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import redis

from tidelog.client import calls, strings
from tidelog.client.entries import StreamId
from tidelog.flows.serveraccess import EntryNotifier, channel
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import Channel
from tidelog.transport.call import Call
from tidelog.transport.errors import NoGroupError

WARM: Final = 2.0  # s
COLD: Final = 60.0  # s
SOON: Final = 0.01  # s after the time at which entries are due, so that they are


class EntryWaiter:
    """For one source. ``group``: None without one."""

    def __init__(self, where: Access, name: str, group: str | None) -> None:
        self._where = where
        self._name = name
        self._group = group
        self.channel: Channel | None = None  # reads and acknowledges; never blocked
        self._waits: Channel | None = None  # for TWAIT
        self._wait: asyncio.Future[list[Any]] | None = None  # a TWAIT under way
        self._awaited: tuple[str, ...] = ()  # its streams
        self._news: EntryNotifier | None = None
        self._watched: str = ""  # the name in News
        self._watching: Mapping[str, StreamId] | None = None
        self._rung = asyncio.Event()
        self._interrupted = False
        self._due = False  # ``ring`` was called
        self._has_news = False
        self._last = -WARM  # loop's clock: when there was an entry

    async def open(self) -> None:
        """OSError: no server."""
        self.channel = await channel(self._where, self._name)
        if self._news is None:
            self._news = EntryNotifier.of(self._where)
            self._watched = self._news.name()

    async def close(self) -> None:
        for each in (self.channel, self._waits):
            if each is not None:
                each.close()
        self.channel = self._waits = self._wait = None
        self._forget()
        news, self._news = self._news, None
        if news is not None:
            await news.release()
        self._rung.set()

    async def ask(self, made: Sequence[Call[Any]]) -> list[Any]:
        """What the calls read. ConnectionError: the server is lost, or refuses one."""
        if self.channel is None:
            raise ConnectionError("not connected")
        replies = await self.channel.send(made)
        for reply in replies:
            if isinstance(reply, redis.ResponseError):
                raise ConnectionError(f"the server refuses: {reply}")
        return replies

    def interrupt(self) -> None:
        """Make ``until`` return."""
        self._interrupted = True
        self._rung.set()

    def ring(self) -> None:
        """Make ``until`` return all streams: entries are due again."""
        self._due = True
        self._rung.set()

    def found(self) -> None:
        """There was an entry."""
        self._last = asyncio.get_running_loop().time()
        self._forget()

    def given_back(self, streams: Sequence[str]) -> None:
        """Tell the other sources of this process that entries are due again."""
        if self._news is not None:
            self._news.given_back(streams)

    async def until(self, streams: Mapping[str, StreamId] | None, due_in: float | None) -> list[str]:
        """Wait until a stream may have entries; returns which may, none where ``interrupt`` was called.

        ``streams``: the IDs after which entries are new. ``due_in``: seconds until entries are due again.
        ConnectionError: the server is lost.
        """
        if self._interrupted:
            self._interrupted = False
            return []
        keys = tuple(streams or ())
        if self.warm():
            return await self._warm(keys, streams or {})
        return await self._cold(keys, streams or {}, due_in)

    def warm(self) -> bool:
        """Whether the next wait will be on a connection of its own: ``until`` needs no ``due_in`` then."""
        return asyncio.get_running_loop().time() - self._last < WARM

    async def _warm(self, keys: tuple[str, ...], streams: Mapping[str, StreamId]) -> list[str]:
        wait = self._wait
        if wait is None or self._awaited != keys:
            if self._waits is None or self._waits.lost is not None:
                self._waits = await channel(self._where, f"{self._name}:wait")
            block = int(WARM * 1000)
            call = (
                calls.twait_group(self._group, keys, block=block)
                if self._group is not None
                else calls.twait(streams, block=block)
            )
            wait = self._wait = self._waits.send([call])
            self._awaited = keys
            wait.add_done_callback(self._ended)
        while not wait.done():
            if self._due:
                self._due = False
                return list(keys)  # the wait goes on, for the next time
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
        if self._news is None:
            raise ConnectionError("not connected")
        if not self._has_news and self._watching != streams:  # else it is watched still: nobody has been told
            self._watching = dict(streams)
            self._news.watch(self._watched, streams, self._told)
        if not self._has_news and not self._due:
            seconds = COLD if due_in is None else min(COLD, max(0.0, due_in) + SOON)
            if await self._ring(seconds):
                return []
        self._has_news = False
        self._due = False
        return list(keys)

    def _ended(self, wait: asyncio.Future[list[Any]]) -> None:
        if not wait.cancelled():
            wait.exception()  # it may have been left alone: asyncio is not to complain
        self._rung.set()

    def _told(self) -> None:  # once: it is watched no more
        self._has_news = True
        self._watching = None
        self._rung.set()

    def _forget(self) -> None:
        if self._watching is not None and self._news is not None:
            self._news.forget(self._watched)
        self._watching = None
        self._has_news = False

    async def _ring(self, seconds: float | None) -> bool:
        """Wait for something to happen. Whether it was an interruption."""
        self._rung.clear()
        if not self._interrupted:
            try:
                async with asyncio.timeout(seconds):
                    await self._rung.wait()
            except TimeoutError:
                return False
        if self.channel is None:
            raise ConnectionError("closed")
        interrupted, self._interrupted = self._interrupted, False
        return interrupted

    async def due_in(self, keys: Sequence[str]) -> float | None:
        """Seconds until the group has entries that are due again; None: nothing is pending."""
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
