"""``FileWatch``: reads all files that a pattern matches, and those that appear later.

Rule 1: A file is identified as ``tailing`` does it, never by its name. So a file that is renamed is not read again, and
        one that is deleted and created again is, also if it has the same inode.
Rule 2: At most ``max_open`` files are open. A file is closed for another one when it has no new data and all of its
        messages are settled and stored.
Rule 3: At most ``max_unsettled`` messages are read after the first unsettled message of their file, in all files
        together.
Rule 4: A file that no longer matches, because it was renamed or deleted, is read to its end, until it has had no new
        data for ``linger`` seconds.
Rule 5: Searches take at most a twentieth of the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

from tidelog.flows.api.connectorcontext import ConnectorContext
from tidelog.flows.api.event import Event
from tidelog.flows.connectors.files.manypositions import FileKey, ManyPositions, PathPosition
from tidelog.flows.connectors.files.options import FileOptions
from tidelog.flows.connectors.files.searching import FileSearch, FoundFile, FoundFiles
from tidelog.flows.connectors.files.tailing import TailedFile
from tidelog.flows.connectors.files.watchedfile import Messages, WatchedFile

CHUNK: Final = 64 << 10  # bytes read at a time
RETRY: Final = 5.0  # s until a file that could not be opened is opened again

log = logging.getLogger("tidelog.flows")


class FileWatch:
    """The files of one source. ``found``: events that were read."""

    def __init__(self, options: FileOptions, context: ConnectorContext) -> None:
        self._options = options
        self._context = context
        self._search = FileSearch(str(Path(options.path).absolute()))
        self._positions: ManyPositions | None = None
        self._files: dict[FileKey, WatchedFile] = {}
        self._open: set[WatchedFile] = set()
        self._ready: deque[WatchedFile] = deque()  # open, and may have new data
        self._unopened: deque[WatchedFile] = deque()  # closed, and may have new data
        self._owners: dict[int, tuple[WatchedFile, int]] = {}  # the file of a message, and its unsettled events
        self._dirty: set[WatchedFile] = set()  # whose position has changed
        self._gone: set[FileKey] = set()  # whose position must be removed
        self._saving = asyncio.Lock()
        self._number = 0  # of a message
        self._pending = 0  # messages after the first unsettled one of their file
        self._next_poll = 0.0  # loop time
        self._next_search = 0.0  # loop time
        self._loaded = False
        self._searched = False
        self._blocked = False  # no file can be opened until others are settled
        self.found: deque[Event] = deque()

    # -- life cycle ------------------------------------------------------------------------------------------
    async def open(self) -> None:
        """Open the positions. Raises OSError, and ValueError if they are not valid."""
        if self._positions is not None:
            return
        path = None if self._options.position is None else Path(self._options.position)
        self._positions = await asyncio.to_thread(ManyPositions, path)
        if not self._loaded:
            self._loaded = True
            for key, position in (await asyncio.to_thread(self._positions.load)).items():
                self._files[key] = WatchedFile(key, "", position)

    async def close(self) -> None:
        """Store the positions and close all files."""
        try:
            await self.save()
        finally:
            async with self._saving:
                positions = self._positions
                if positions is not None and self._options.position is not None:
                    self._positions = None
                    await asyncio.to_thread(positions.close)
                for file in self._open:
                    await asyncio.to_thread(file.close)
                    if not file.ended:
                        self._unopened.append(file)
                self._open.clear()
                self._ready.clear()

    @property
    def room(self) -> int:
        """Implement Rule 3. Messages that were read and not pulled do not count."""
        return 0 if self._blocked else self._options.max_unsettled - (self._pending - len(self.found))

    # -- reading ---------------------------------------------------------------------------------------------
    async def fill(self) -> bool | None:
        """Read events. Return False if there is no new data at the moment, or None if the source has ended."""
        if not self._ready or asyncio.get_running_loop().time() >= self._next_poll:
            await self._poll()
        if self._unopened:
            await self._open_next()
        if self._ready:
            file = self._ready.popleft()
            if file.queued:  # it was not closed meanwhile
                file.queued = False
                await self._read(file)
            return True
        if self._options.tail or self._unopened or not self._searched:
            return False
        await self.save()
        return None

    async def _read(self, file: WatchedFile) -> None:
        opened = file.file
        assert opened is not None  # noqa: S101 - closed files are not ready
        try:
            data = await asyncio.to_thread(opened.read, CHUNK)
            if data:
                self._context.received(len(data))
                file.active = asyncio.get_running_loop().time()
                self._queue(file)
                self._take(file, opened, data)
            elif await asyncio.to_thread(opened.replaced):
                self._context.count("truncated")
                self._end_of(file, opened)
                async with self._saving:
                    await asyncio.to_thread(file.restart, self._options)
                self._queue(file)
            elif not self._options.tail:
                self._end_of(file, opened)
                file.ended = True
        except OSError as error:
            await self._failed(file, error)

    def _queue(self, file: WatchedFile) -> None:
        if not file.queued:
            file.queued = True
            self._ready.append(file)

    def _take(self, file: WatchedFile, opened: TailedFile, data: bytes) -> None:
        reader = file.reader
        assert reader is not None  # noqa: S101 - of an open file
        try:
            self._add(file, opened, reader.split(data, {"path": file.path}))
        except ValueError as error:
            reader.broken = str(error)
        if reader.broken:  # the beginning of the next message is unknown
            self._context.count("broken")
            meta = {"path": file.path, "error": f"from byte {file.at} on: {reader.broken}"}
            reader.end()
            opened.offset = opened.path.stat().st_size
            self._add(file, opened, [(opened.offset - file.at, [Event(b"", meta, path="err")])])

    def _end_of(self, file: WatchedFile, opened: TailedFile) -> None:
        assert file.reader is not None  # noqa: S101
        self._add(file, opened, file.reader.split_end({"path": file.path}))

    def _add(self, file: WatchedFile, opened: TailedFile, messages: Messages) -> None:
        for size, events in messages:
            self._number += 1
            file.at += size
            for event in events:
                event.id = self._number
                event.meta["offset"] = file.at
            before = len(file.prefix)
            if file.prefix.add(self._number, (opened, file.at), len(events)):
                self._dirty.add(file)
            self._pending += len(file.prefix) - before
            if events:
                self._owners[self._number] = (file, len(events))
            self.found += events

    async def _failed(self, file: WatchedFile, error: OSError) -> None:
        """Close a file that can't be read, and try again later. The other files are not affected."""
        self._context.count("errors")
        if not file.failed:
            file.failed = True
            log.warning("%s: %s; retrying", file.path, error.strerror or error)
        file.retry = asyncio.get_running_loop().time() + RETRY
        self._open.discard(file)
        try:
            async with self._saving:
                await asyncio.to_thread(file.close)
        except OSError:
            file.file = file.reader = None
            file.queued = False

    # -- open and closed files -------------------------------------------------------------------------------
    async def _open_next(self) -> None:
        """Implement Rule 2."""
        self._blocked = False
        while self._unopened:
            if len(self._open) >= self._options.max_open and not await self._close_one():
                self._blocked = not self._ready and bool(self._owners)  # a settlement will change it
                return
            file = self._unopened.popleft()
            if file.file is not None or self._files.get(file.key) is not file:
                continue
            try:
                same = await asyncio.to_thread(file.open, self._options)
            except FileNotFoundError:
                continue  # it was renamed or deleted: the next search finds out
            except OSError as error:
                await self._failed(file, error)
                continue
            file.failed = False
            if not same:
                self._context.count("truncated")
            file.active = asyncio.get_running_loop().time()
            self._number += 1
            before = len(file.prefix)
            file.prefix.add(self._number, file.current, 0)
            self._pending += len(file.prefix) - before
            self._open.add(file)
            self._queue(file)
            return

    async def _close_one(self) -> bool:
        """Close the file whose last data is the oldest, if this is possible."""
        await self.save()
        for file in sorted(self._open, key=lambda each: each.active):
            waits = file.reader is not None and file.reader.waits is not None
            if len(file.prefix) or file.queued or file in self._dirty or (waits and not file.ended):
                continue
            if await asyncio.to_thread(file.close_at_end):
                self._open.discard(file)
                return True
        return False

    async def _poll(self) -> None:
        """Check the open files, and search if it is time."""
        now = asyncio.get_running_loop().time()
        self._next_poll = now + self._options.poll
        idle = [each for each in self._open if not (each.ended or each.queued)]
        grown = set(await asyncio.to_thread(lambda: [each for each in idle if each.grown()]))
        for file in grown:
            self._queue(file)
        for file in idle:
            if file not in grown and file.file is not None and file.reader is not None:
                waits = file.reader.waits
                if waits is not None and now - file.active >= waits:
                    self._add(file, file.file, file.reader.split_idle({"path": file.path}))
                if file.missing is not None and now - max(file.active, file.missing) >= self._options.linger:
                    self._end_of(file, file.file)
                    file.ended = True
        if now >= self._next_search and (self._options.tail or not self._searched):
            found = await asyncio.to_thread(partial(self._search.find, self._files))
            now = asyncio.get_running_loop().time()
            await self._merge(found, now)
            self._next_search = now + max(self._options.poll, 20 * found.took)
        await self._forget_gone(now)

    async def _merge(self, found: FoundFiles, now: float) -> None:
        assert self._positions is not None  # noqa: S101 - set by open
        files = sorted(found.files.items(), key=lambda each: (each[1].state.modified, each[1].path))
        if not self._positions.begun:
            latest = self._options.start == "latest"
            ends = await asyncio.to_thread(_ends, files) if latest else {}
            await asyncio.to_thread(self._positions.begin, ends.values())
            self._files.update((key, WatchedFile(key, *each)) for key, each in ends.items())
        waiting = set(self._unopened)
        for key, one in files:
            file = self._files.get(key)
            if file is None:
                file = self._files[key] = WatchedFile(key, one.path)
            self._update(file, one, now)
            changed = file.file is None and file.state != one.state and now >= file.retry
            if changed and file not in waiting and not (file.ended and not one.matches):
                self._unopened.append(file)
        for key, file in self._files.items():
            if key not in found.files and file.missing is None:
                file.missing = now
        self._searched = True
        self._context.described["files"] = sum(each.missing is None for each in self._files.values())

    def _update(self, file: WatchedFile, one: FoundFile, now: float) -> None:
        file.path = one.path
        if one.matches:
            file.missing = None
            file.ended = file.ended and not self._options.tail  # it was renamed back
        elif file.missing is None:
            file.missing = now

    async def _forget_gone(self, now: float) -> None:
        """Forget files that do not match any more, and whose messages are settled."""
        for key, file in list(self._files.items()):
            if file.missing is None or len(file.prefix) or now - file.missing < self._options.linger:
                continue
            if file.file is not None:
                if not file.ended:
                    continue
                self._open.discard(file)
                async with self._saving:
                    await asyncio.to_thread(file.close)
            del self._files[key]
            self._dirty.discard(file)
            self._gone.add(key)
        if self._gone:
            await self.save()

    # -- settling --------------------------------------------------------------------------------------------
    async def settled(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            owner = self._owners.pop(number, None)
            if owner is None:
                continue
            file, events = owner
            if events > 1:
                self._owners[number] = (file, events - 1)
            before = len(file.prefix)
            if file.prefix.settle(number):
                self._dirty.add(file)
                self._pending -= before - len(file.prefix)
        self._blocked = False
        await self.save()

    async def save(self) -> None:
        """Store the positions that have changed. Raises OSError."""
        async with self._saving:
            if self._positions is None or not (self._dirty or self._gone):
                return
            dirty, gone = list(self._dirty), set(self._gone)
            settled = [(each, each.prefix.position) for each in dirty]
            await asyncio.to_thread(self._store, settled, gone)
            for file, position in settled:
                if file.prefix.position == position:
                    self._dirty.discard(file)
            self._gone -= gone

    def _store(self, settled: list[tuple[WatchedFile, tuple[TailedFile, int] | None]], gone: set[FileKey]) -> None:
        assert self._positions is not None  # noqa: S101 - save has checked it
        rows = [(file.path, one[0].stored(one[1])) for file, one in settled if one is not None]
        self._positions.save(rows, gone)


def _ends(files: list[tuple[FileKey, FoundFile]]) -> dict[FileKey, PathPosition]:
    """Return the paths of files, and the positions of their ends."""
    ends = {}
    for key, one in files:
        try:
            opened = TailedFile(Path(one.path), one.state.size)
        except OSError:
            continue
        ends[key] = (one.path, opened.stored(one.state.size))
        opened.close()
    return ends
