"""``ObjectQueue``: finds the objects of a source, and reads the events of one object after the other.

Rule 1: Objects are read in the order of their modification times, and then of their paths.
Rule 2: ``position`` is the first unsettled event. Objects before it are settled.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tidelog.flows.api.event import Event
from tidelog.flows.connectors.objects.content import ObjectContent, content_of
from tidelog.flows.connectors.objects.options import ObjectStoreOptions
from tidelog.flows.connectors.objects.positions import ObjectPositions, UnreadObject
from tidelog.flows.connectors.objects.stores import ObjectStorage
from tidelog.flows.connectors.pathpatterns import path_pattern, reaches
from tidelog.flows.connectors.settledprefix import SettledPrefix

log = logging.getLogger("tidelog.flows")


class _Position(NamedTuple):
    number: int  # of the object, in the order of reading
    events: int  # that are settled
    ended: bool  # the whole object is settled


class ObjectQueue:
    """The objects of one source. ``found``: events that were read."""

    def __init__(self, options: ObjectStoreOptions, received: Callable[[int], None]) -> None:
        self._options = options
        self._received = received
        self._pattern = path_pattern(options.match)
        self._positions: ObjectPositions | None = None
        self._content: ObjectContent | None = None
        self._object: UnreadObject | None = None  # the one that is being read
        self._events = 0  # of it that were read
        self._skip = 0  # of its events, which are settled or were read before
        self._objects = 0  # that were taken
        self._taken: deque[tuple[int, UnreadObject]] = deque()  # that are not settled
        self._prefix: SettledPrefix[_Position] = SettledPrefix(_Position(0, 0, ended=True))
        self._stored = self._prefix.position
        self._number = 0  # of an event
        self._opened = False
        self._saving = asyncio.Lock()
        self._missing = False  # the missing directory was logged
        self._ignored = False  # an object of an unknown format was logged
        self.found: deque[Event] = deque()

    async def open(self) -> None:
        """Open the position. Raises OSError, and ValueError if it is not valid."""
        if self._positions is None:
            path = None if self._options.position is None else Path(self._options.position)
            self._positions = await asyncio.to_thread(partial(ObjectPositions, path, again=self._opened))
            self._opened = True

    async def close(self) -> None:
        """Store the position, and release all resources until ``open``."""
        content, self._content = self._content, None
        if content is not None:
            content.close()
            self._skip = max(self._skip, self._events)
        if self._options.position is None:
            return  # the position is in memory
        try:
            await self.save()
        finally:
            async with self._saving:
                positions, self._positions = self._positions, None
                if positions is not None:
                    await asyncio.to_thread(positions.close)

    @property
    def unsettled(self) -> int:
        """The number of events after the position that were returned by ``take``."""
        return len(self._prefix) - len(self.found)

    def take(self, limit: int) -> list[Event]:
        return [self.found.popleft() for _ in range(min(limit, len(self.found)))]

    # -- finding objects -------------------------------------------------------------------------------------
    async def search(self, store: ObjectStorage) -> None:
        """Find new objects. Raises OSError."""
        root = self._options.directory
        visited = set()
        left = [root]
        while left:
            directory = left.pop()
            try:
                objects, directories = await store.entries(directory)
            except FileNotFoundError:
                if directory != root:
                    continue  # it was just deleted
                if not self._missing:
                    self._missing = True
                    log.warning("%s: there is no such bucket or directory; waiting for it", self._options.url)
                return
            below = directory[len(root) :]
            visited.add(directory)
            fitting = [each for each in objects if self._pattern.fullmatch(below + each.name)]
            known = [each for each in fitting if self._options.kind(each.name) is not None]
            if len(known) < len(fitting) and not self._ignored:
                self._ignored = True
                other = next(each.name for each in fitting if each not in known)
                log.warning("%s: %s%s: the format is unknown; use the option format", self._options.url, below, other)
            if self._positions is not None:
                await asyncio.to_thread(self._positions.merge, directory, known)
            names = sorted(directories, reverse=True)
            left += [f"{directory}{each}/" for each in names if reaches(self._options.match, f"{below}{each}/")]
        self._missing = False
        if self._positions is not None:
            await asyncio.to_thread(self._positions.retain, visited)

    # -- reading ---------------------------------------------------------------------------------------------
    async def fill(self, store: ObjectStorage) -> bool:
        """Read events. Return False if there is no unread object. Raises OSError."""
        if self._object is None:
            await self._take()
        one = self._object
        if one is None:
            return False
        if self._content is None:
            kind = self._options.kind(one.name)
            assert kind is not None  # noqa: S101 - others are not stored
            self._content = content_of(self._options, kind, store, one.path, one.size, self._received)
            self._events = 0
        try:
            events = await self._content.more()
        except FileNotFoundError:
            log.warning("%s: the object was deleted before it was read", self._url(one))
            events, self._content.ended = [], True
        for event in events:
            self._add(one, event)
        if self._content.ended:
            content, self._content, self._object = self._content, None, None
            content.close()
            self._number += 1
            if self._prefix.add(self._number, _Position(self._objects, self._events, ended=True), 0):
                await self.save()
        return True

    async def _take(self) -> None:
        """Take the next object. It is not lost if this call is cancelled."""
        if self._positions is None:
            return
        work = asyncio.ensure_future(asyncio.to_thread(self._positions.take))
        try:
            await asyncio.shield(work)
        finally:
            if not work.done():
                await asyncio.wait((work,))
            if work.exception() is None and (one := work.result()) is not None:
                self._object = one
                self._skip = one.settled
                self._objects += 1
                self._taken.append((self._objects, one))

    def _add(self, one: UnreadObject, event: Event) -> None:
        self._events += 1
        if self._events <= self._skip:
            return
        self._number += 1
        event.id = self._number
        event.meta["object"] = self._url(one)
        event.meta["number"] = self._events
        self._prefix.add(self._number, _Position(self._objects, self._events, ended=False))
        self.found.append(event)

    def _url(self, one: UnreadObject) -> str:
        return f"{self._options.scheme}://{one.path}"

    # -- settling --------------------------------------------------------------------------------------------
    async def settled(self, numbers: Iterable[int]) -> None:
        self._prefix.settle_all(numbers)
        await self.save()

    async def save(self) -> None:
        """Store the position if it has changed. Raises OSError."""
        async with self._saving:
            position = self._prefix.position
            if position == self._stored or self._positions is None:
                return
            done, partly = [], None
            for number, one in self._taken:
                if number < position.number or (number == position.number and position.ended):
                    done.append(one)
                elif number == position.number:
                    partly = one
            await asyncio.to_thread(self._positions.settle, done, partly, position.events)
            for _ in done:
                self._taken.popleft()
            self._stored = position
