"""``file``: reads a file once or follows it, and writes a file.

Rule 1: The position up to which all messages are settled is stored in another file (``position``). After a crash,
        reading continues there, so each message is settled at least once.
Rule 2: At most ``max_unsettled`` messages are read beyond the first unsettled one.
Rule 3: If the first preprocessor does not split messages (a compressed stream), the position remains the beginning of
        the file until the whole file is settled. If no preprocessor splits messages, the file is one message.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import Token
from tidelog.flows.connectors.destinations import path_template
from tidelog.flows.connectors.files import tailing
from tidelog.flows.connectors.files.appending import FileAppender
from tidelog.flows.connectors.files.options import FileOptions
from tidelog.flows.connectors.files.searching import FileSearch
from tidelog.flows.connectors.files.tailing import FilePosition, TailedFile
from tidelog.flows.connectors.files.watching import FileWatch
from tidelog.flows.connectors.files.writing import FileWriter, TemplateFiles, WrittenBatch, base_of
from tidelog.flows.connectors.pathpatterns import fixed_directory
from tidelog.flows.connectors.payload import PayloadReader
from tidelog.flows.connectors.positionfile import load_position, save_position
from tidelog.flows.connectors.settledprefix import SettledPrefix
from tidelog.flows.connectors.templates import fixed_text

CHUNK: Final = 64 << 10  # bytes read at a time

log = logging.getLogger("tidelog.flows")


class FileConnector(Source, Sink):
    """Reads a file, or writes one."""

    type = "file"
    Options = FileOptions

    @classmethod
    def option_errors(cls, options: FileOptions, *, source: bool) -> list[str]:
        if source and options.pattern is not None:
            return _pattern_errors(options)
        if not source and options.mode == "truncate" and path_template(options.path).fixed is None:
            return ["mode: truncate can't be used with placeholders in path, because files are closed and opened again"]
        return []

    @classmethod
    def option_warnings(cls, options: FileOptions, *, source: bool) -> list[str]:
        template = path_template(options.path)
        if template.fixed is None:
            base = base_of(template)
            return [] if base.is_dir() else [f"path is {options.path!r}: there is no directory {base}"]
        if source and options.pattern is not None:
            directory = Path(fixed_directory(options.pattern))
            return [] if directory.is_dir() else [f"path is {options.path!r}: there is no directory {directory}"]
        path = Path(template.fixed).absolute()
        if not path.parent.is_dir():
            return [f"path is {options.path!r}: there is no directory {path.parent}"]
        if path.exists() and not path.is_file() and (source or path.is_dir()):
            return [f"path is {options.path!r}: it is not a regular file"]
        if source and not options.tail and not path.exists():
            return [f"path is {options.path!r}: there is no such file"]
        if source and path.exists() and not os.access(path, os.R_OK):
            return [f"path is {options.path!r}: this user has no permission to read it"]
        return []

    def __init__(self, options: FileOptions) -> None:
        super().__init__()
        self._options = options
        self._template = path_template(options.path)
        self._path = Path(self._template.fixed or "").absolute()  # of the only file
        position = options.position or (f"{self._path}.position" if options.tail else None)
        self._position = None if position is None else Path(position)
        self._watch: FileWatch | None = None  # of a pattern
        # source of one file
        self._reader = PayloadReader(options)
        self._file: TailedFile | None = None
        self._begun = False
        self._ended = False
        self._prefix: SettledPrefix[tuple[TailedFile, int] | None] = SettledPrefix(None)
        self._written: tuple[TailedFile, int] | None = None  # the position on disk
        self._saving = asyncio.Lock()
        self._found: deque[Event] = deque()
        self._number = 0  # of a message
        self._at = 0  # the offset after the last message in the file
        self._whole = bytearray()  # the content of a file that is one message
        self._done: dict[tuple[int, int], bytes] = {}  # the first bytes of files that were read
        self._missed = False  # the missing file has been logged
        self._active = 0.0  # loop time at which the file last had new data
        self._rotated: float | None = None  # loop time at which the rotated file last had new data
        # sink
        self._writer: FileWriter | TemplateFiles | None = None

    async def connect(self) -> None:
        self.context.described["path"] = self._template.text if self._template.fixed is None else str(self._path)
        if self.context.source is not None:
            fixed_text(self._options.path)
            if self._watch is None and self._options.pattern is not None and not self._begun:
                self._watch = FileWatch(self._options, self.context)
            if self._watch is not None:
                await self._watch.open()
            else:
                await asyncio.to_thread(self._open_source)
        if self.context.sink is not None:
            await asyncio.to_thread(self._open_sink)

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            self._file.close()
        if self._watch is not None:
            await self._watch.close()

    # -- source ----------------------------------------------------------------------------------------------
    def _open_source(self) -> None:
        if self._begun:
            if self._file is not None:
                self._file.reopen(self._path)
            return
        stored = None if self._position is None else load_position(self._position, FilePosition)
        if stored is not None:
            self._file = tailing.resume(self._path, stored)
        else:
            try:
                self._file = TailedFile(self._path)
            except FileNotFoundError:
                if not self._options.tail:
                    raise
            if self._file is not None and self._options.start == "latest":
                self._file.offset = self._file.path.stat().st_size
        self._begun = True
        if self._file is not None:
            self._begin(self._file)
            self._prefix.restart((self._file, self._at))
            if self._position is not None and stored is None:  # so that the file is found after a rotation and a crash
                save_position(self._position, self._file.stored(self._at))

    def _begin(self, file: TailedFile) -> None:
        """Read this file next, from its offset."""
        self._file = file
        self._at = file.offset
        self._done[file.key] = file.head
        if len(self._done) > 1000:
            del self._done[next(iter(self._done))]
        self._reader = PayloadReader(self._options)
        if file.offset and self._reader.header:
            with file.path.open("rb") as beginning:
                self._reader.prime(beginning.read(self._options.max_bytes + CHUNK))

    @property
    def room(self) -> int:
        """Implement Rule 2. Messages that were read and not pulled do not count."""
        if self._watch is not None:
            return self._watch.room
        waiting = self._number + 1 - self._found[0].id if self._found else 0
        return self._options.max_unsettled - (len(self._prefix) - waiting)

    async def pull(self, limit: int) -> list[Event] | None:
        if self._watch is not None:
            return await self._pull_watched(self._watch, limit)
        if not self._found:
            if self._ended:
                await self._save()
                return None
            if self._file is None:
                await self._wait_for_file()
            else:
                data = await asyncio.to_thread(self._file.read, CHUNK)
                if data:
                    self.context.received(len(data))
                    self._active = asyncio.get_running_loop().time()
                    self._rotated = None
                    self._take(self._file, data)
                elif self._options.tail:
                    await self._end_for_now(self._file)
                else:
                    self._end_of(self._file)
                    self._ended = True
        return [self._found.popleft() for _ in range(min(limit, len(self._found)))]

    async def _pull_watched(self, watch: FileWatch, limit: int) -> list[Event] | None:
        if not watch.found:
            more = await watch.fill()
            if more is None:
                return None
            if not more and not watch.found:
                await self._sleep()
        return [watch.found.popleft() for _ in range(min(limit, len(watch.found)))]

    async def _wait_for_file(self) -> None:
        try:
            file = await asyncio.to_thread(TailedFile, self._path)
        except FileNotFoundError:
            if not self._missed:
                self._missed = True
                log.warning("%s: there is no such file; waiting for it", self._path)
            await self._sleep()
            return
        self._missed = False
        self._begin(file)
        self._prefix.restart((file, 0))
        if self._position is not None:
            await asyncio.to_thread(save_position, self._position, file.stored(0))

    async def _sleep(self) -> None:
        await self.wait(asyncio.sleep(self._options.poll))

    async def _end_for_now(self, file: TailedFile) -> None:
        """Handle the end of the file: wait, or continue with the file that replaces it."""
        if await asyncio.to_thread(file.replaced):
            self.context.count("truncated")
            self._end_of(file)
            await self._read_next(file.path, file)
            return
        waits = self._reader.waits
        if waits is not None and asyncio.get_running_loop().time() - self._active >= waits:
            for size, events in self._reader.split_idle({"path": str(file.path)}):
                self._at += size
                self._add(events, (file, self._at))
        following = await asyncio.to_thread(self._following, file)
        if following is None:
            self._rotated = None
            await self._sleep()
            return
        now = asyncio.get_running_loop().time()
        if self._rotated is None:
            self._rotated = now
        if now - self._rotated < self._options.linger:  # its writer may not have noticed the rotation yet
            await self._sleep()
            return
        self._rotated = None
        self.context.count("rotated")
        self._end_of(file)
        await self._read_next(following, file)

    def _following(self, file: TailedFile) -> Path | None:
        try:
            about = self._path.stat()
            if (about.st_dev, about.st_ino) == file.key:
                return None
        except FileNotFoundError:
            pass  # the new file does not exist yet, but another one may have been rotated meanwhile
        self._done[file.key] = file.head
        return tailing.following(self._path, file.changed, self._done)

    async def _read_next(self, path: Path, before: TailedFile) -> None:
        try:
            file = await asyncio.to_thread(TailedFile, path)
        except FileNotFoundError:
            return  # it was moved just now: the next pull searches again
        self._begin(file)
        self._add([], (file, 0))
        before.close()

    def _take(self, file: TailedFile, data: bytes) -> None:
        reader = self._reader
        meta = {"path": str(file.path)}
        try:
            if reader.splits_first:
                for size, events in reader.split(data, meta):
                    self._at += size
                    self._add(events, (file, self._at))
            elif reader.splits:
                self._add(reader.feed(data, meta), (file, 0))
            elif len(self._whole) <= self._options.max_bytes:
                self._whole += data
        except ValueError as error:
            self._broken(file, str(error))
        if reader.broken:
            self._broken(file, reader.broken)

    def _broken(self, file: TailedFile, error: str) -> None:
        """Skip the rest of the file, because the beginning of the next message is unknown."""
        self.context.count("broken")
        event = Event(b"", {"path": str(file.path), "error": f"from byte {self._at} on: {error}"}, path="err")
        self._reader.end()
        file.offset = file.path.stat().st_size
        self._at = file.offset
        self._add([event], (file, self._at))

    def _end_of(self, file: TailedFile) -> None:
        meta = {"path": str(file.path)}
        reader = self._reader
        if reader.splits_first:
            for size, events in reader.split_end(meta):
                self._at += size
                self._add(events, (file, self._at))
        else:
            events = []
            if not reader.splits:
                try:
                    events = reader.feed(bytes(self._whole), meta)
                except ValueError as error:
                    self._broken(file, str(error))
                self._whole.clear()
            self._add(events + reader.end(meta), (file, file.offset))

    def _add(self, events: list[Event], after: tuple[TailedFile, int]) -> None:
        self._number += 1
        for event in events:
            event.id = self._number
            event.meta["offset"] = after[1]
        self._prefix.add(self._number, after, len(events))
        self._found += events

    async def settled(self, tokens: Sequence[Token]) -> None:
        if self._watch is not None:
            await self._watch.settled(token.key for token in tokens)
            return
        self._prefix.settle_all(token.key for token in tokens)
        await self._save()

    async def _save(self) -> None:
        """Store the position."""
        async with self._saving:
            position = self._prefix.position
            if self._position is not None and position is not None and position != self._written:
                file, offset = position
                await asyncio.to_thread(save_position, self._position, file.stored(offset))
                self._written = position

    # -- sink ------------------------------------------------------------------------------------------------
    def _open_sink(self) -> None:
        if self._writer is None:
            if self._template.fixed is None:
                self._writer = TemplateFiles(self._template, self._appender, self._options, self.context.sent)
            else:
                self._writer = FileWriter(self._appender(self._path), self._options, self.context.sent)
        self._writer.open()

    def _appender(self, path: Path) -> FileAppender:
        options = self._options
        return FileAppender(
            path,
            truncate=options.mode == "truncate",
            lines=bool(options.postprocessors) and options.postprocessors[-1] == "separate",
            fsync=options.fsync,
            bytes_most=options.rotate_bytes,
            every=options.rotate_every,
            keep=options.keep,
        )

    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        work = asyncio.ensure_future(asyncio.to_thread(self._write, events))
        try:
            result = await asyncio.shield(work)
        except asyncio.CancelledError:  # the thread can't be stopped, and the next write must not start before it ends
            await asyncio.gather(work, return_exceptions=True)
            raise
        if result.error is not None:
            self.context.disconnected(result.error)
        return result.outcomes

    def _write(self, events: list[Event]) -> WrittenBatch:
        if self._writer is None:
            raise ConnectionError("not connected")
        found = self._writer.write(events)
        return found if isinstance(found, WrittenBatch) else WrittenBatch(found)


def _pattern_errors(options: FileOptions) -> list[str]:
    found = []
    try:
        matches = FileSearch(options.pattern or "").matches
    except ValueError as error:
        return [f"path: {error}"]
    if options.position is not None and matches(str(Path(options.position).absolute())):
        found.append(f"position is {options.position!r}: it matches path; use another name")
    if not PayloadReader(options).splits_first:
        found.append("a pattern requires that the first preprocessor splits messages, such as separate or multiline")
    if options.tail and options.position is None:
        found.append("position is missing: name a file that stores the positions of the files that the pattern matches")
    return found
