"""``file``: a file that is read, once or as it grows; a file that is written.

Rule 1: what is settled from the beginning without a gap is kept in a file beside it (``position``); reading goes on
        there after a crash. So each message is settled at least once, whatever happens to the process.
Rule 2: no more than ``max_unsettled`` messages lie behind the first one that is not settled.
Rule 3: where the first preprocessor does not cut messages (a compressed stream) the position is the file's beginning
        until all of it is settled. Where none cuts, the file is one message.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import Token
from tidelog.flows.connectors.files import tailing
from tidelog.flows.connectors.files.appending import FileAppender
from tidelog.flows.connectors.files.tailing import TailedFile
from tidelog.flows.connectors.payload import LinePayloadOptions, PayloadReader, PayloadWriter
from tidelog.flows.connectors.settledprefix import SettledPrefix
from tidelog.options.units import Duration, Size

CHUNK: Final = 64 << 10  # bytes read at once
PATTERN: Final = re.compile(r"[*?]|\[[^]]+\]")  # as of the shell

log = logging.getLogger("tidelog.flows")


class FileOptions(LinePayloadOptions, kw_only=True):
    """Options of ``file``."""

    path: str
    # as a source
    tail: bool = False  # go on at the end of the file, and with the file that takes its place
    start: Literal["beginning", "end"] = "beginning"  # where no position is kept yet
    position: str | None = None  # a file for what is settled; null: with tail it is <path>.position, else there is none
    poll: Duration = Duration(0.25)  # between looks at a file that had nothing new
    linger: Duration = Duration(2)  # a rotated file must have had nothing new for so long
    # as a sink
    mode: Literal["append", "truncate"] = "append"
    rotate_bytes: Size | None = None  # a batch that would make it longer goes to a new file
    rotate_every: Duration | None = None  # a new file for each period, counted from 1970 in UTC
    keep: int | None = None  # rotated files; null: all
    fsync: bool = False  # each batch is on disk before it is settled

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path or "\0" in self.path:
            raise ValueError(f"path is {self.path!r}: it must name a file")
        if self.tail and not PayloadReader(self).cuts_first:
            raise ValueError("tail needs a preprocessor that cuts messages in the first place, as separate")
        if self.keep is not None and self.keep < 0:
            raise ValueError(f"keep is {self.keep}: it must be 0 or more")
        for name in ("poll", "rotate_bytes", "rotate_every"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ValueError(f"{name} is 0: it must be more")


class FileConnector(Source, Sink):
    """Each half is there where it is connected."""

    type = "file"
    Options = FileOptions

    @classmethod
    def option_errors(cls, options: FileOptions, *, source: bool) -> list[str]:
        if source and PATTERN.search(options.path) and not Path(options.path).exists():
            return [f"path is {options.path!r}: a source reads one file, patterns are not supported; name the file"]
        return []

    @classmethod
    def option_warnings(cls, options: FileOptions, *, source: bool) -> list[str]:
        path = Path(options.path).absolute()
        if not path.parent.is_dir():
            return [f"path is {options.path!r}: there is no directory {path.parent}"]
        if path.exists() and not path.is_file() and (source or path.is_dir()):
            return [f"path is {options.path!r}: it is no regular file"]
        if source and not options.tail and not path.exists():
            return [f"path is {options.path!r}: there is no such file"]
        if source and path.exists() and not os.access(path, os.R_OK):
            return [f"path is {options.path!r}: this user may not read it"]
        return []

    def __init__(self, options: FileOptions) -> None:
        super().__init__()
        self._options = options
        self._path = Path(options.path).absolute()
        kept = options.position or (f"{self._path}.position" if options.tail else None)
        self._kept = None if kept is None else Path(kept)
        # source
        self._reading = PayloadReader(options)
        self._file: TailedFile | None = None
        self._begun = False
        self._ended = False
        self._prefix: SettledPrefix[tuple[TailedFile, int] | None] = SettledPrefix(None)
        self._written: tuple[TailedFile, int] | None = None  # the position on disk
        self._keeping = asyncio.Lock()
        self._found: deque[Event] = deque()
        self._number = 0  # of a message
        self._at = 0  # offset behind the last message in the file
        self._whole = bytearray()  # of a file that is one message
        self._done: dict[tuple[int, int], bytes] = {}  # files that were read: their first bytes
        self._missed = False  # a log line says that there is no file
        self._rotated: float | None = None  # s of the loop's clock: when the rotated file had something new last
        # sink
        self._writing = PayloadWriter(options)
        self._append: FileAppender | None = None

    async def connect(self) -> None:
        self.context.described["path"] = str(self._path)
        if self.context.source is not None:
            await asyncio.to_thread(self._open_source)
        if self.context.sink is not None:
            await asyncio.to_thread(self._open_sink)

    async def close(self) -> None:
        if self._append is not None:
            self._append.close()
        if self._file is not None:
            self._file.close()

    # -- source ----------------------------------------------------------------------------------------------
    def _open_source(self) -> None:
        if self._begun:
            if self._file is not None:
                self._file.reopen(self._path)
            return
        stored = None if self._kept is None else tailing.load(self._kept)
        if stored is not None:
            self._file = tailing.resume(self._path, stored)
        else:
            try:
                self._file = TailedFile(self._path)
            except FileNotFoundError:
                if not self._options.tail:
                    raise
            if self._file is not None and self._options.start == "end":
                self._file.offset = self._file.path.stat().st_size
        self._begun = True
        if self._file is not None:
            self._begin(self._file)
            self._prefix.restart((self._file, self._at))
            if self._kept is not None and stored is None:  # rotated now, and killed, it must be found again
                tailing.save(self._kept, self._file.stored(self._at))

    def _begin(self, file: TailedFile) -> None:
        """Read this file from now on, from where its offset is."""
        self._file = file
        self._at = file.offset
        self._done[file.key] = file.head
        if len(self._done) > 1000:
            del self._done[next(iter(self._done))]
        self._reading = PayloadReader(self._options)
        if file.offset and self._reading.header:
            with file.path.open("rb") as beginning:
                self._reading.prime(beginning.read(self._options.max_bytes + CHUNK))

    @property
    def room(self) -> int:
        """Rule 2. Messages that were read and not pulled don't count."""
        waiting = self._number + 1 - self._found[0].id if self._found else 0
        return self._options.max_unsettled - (len(self._prefix) - waiting)

    async def pull(self, limit: int) -> list[Event] | None:
        if not self._found:
            if self._ended:
                await self._keep()
                return None
            if self._file is None:
                await self._wait_for_file()
            else:
                data = await asyncio.to_thread(self._file.read, CHUNK)
                if data:
                    self._rotated = None
                    self._take(self._file, data)
                elif self._options.tail:
                    await self._end_for_now(self._file)
                else:
                    self._end_of(self._file)
                    self._ended = True
        return [self._found.popleft() for _ in range(min(limit, len(self._found)))]

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
        if self._kept is not None:
            await asyncio.to_thread(tailing.save, self._kept, file.stored(0))

    async def _sleep(self) -> None:
        await self.wait(asyncio.sleep(self._options.poll))

    async def _end_for_now(self, file: TailedFile) -> None:
        """There is nothing new in it. Is it still the one to read?"""
        if await asyncio.to_thread(file.replaced):
            self.context.count("truncated")
            self._end_of(file)
            await self._go_on(file.path, file)
            return
        following = await asyncio.to_thread(self._following, file)
        if following is None:
            self._rotated = None
            await self._sleep()
            return
        now = asyncio.get_running_loop().time()
        if self._rotated is None:
            self._rotated = now
        if now - self._rotated < self._options.linger:  # its writer may not have noticed yet
            await self._sleep()
            return
        self._rotated = None
        self.context.count("rotated")
        self._end_of(file)
        await self._go_on(following, file)

    def _following(self, file: TailedFile) -> Path | None:
        try:
            about = self._path.stat()
            if (about.st_dev, about.st_ino) == file.key:
                return None
        except FileNotFoundError:
            pass  # the new one is not there yet, but it may have been rotated as well
        self._done[file.key] = file.head
        return tailing.following(self._path, file.changed, self._done)

    async def _go_on(self, path: Path, before: TailedFile) -> None:
        try:
            file = await asyncio.to_thread(TailedFile, path)
        except FileNotFoundError:
            return  # moved on in this moment: looked for again
        self._begin(file)
        self._add([], (file, 0))
        before.close()

    def _take(self, file: TailedFile, data: bytes) -> None:
        reading = self._reading
        meta = {"path": str(file.path)}
        if reading.cuts_first:
            try:
                for size, events in reading.cut(data, meta):
                    self._at += size
                    self._add(events, (file, self._at))
            except ValueError as error:
                self._broken(file, str(error))
        elif reading.cuts:
            try:
                self._add(reading.feed(data, meta), (file, 0))
            except ValueError as error:
                self._broken(file, str(error))
        elif len(self._whole) <= self._options.max_bytes:
            self._whole += data
        if reading.broken:
            self._broken(file, reading.broken)

    def _broken(self, file: TailedFile, error: str) -> None:
        """Nobody knows where the next message begins: the rest of the file is passed over."""
        self.context.count("broken")
        event = Event(b"", {"path": str(file.path), "error": f"from byte {self._at} on: {error}"}, path="err")
        self._reading.end()
        file.offset = file.path.stat().st_size
        self._at = file.offset
        self._add([event], (file, self._at))

    def _end_of(self, file: TailedFile) -> None:
        meta = {"path": str(file.path)}
        reading = self._reading
        if reading.cuts_first:
            for size, events in reading.cut_end(meta):
                self._at += size
                self._add(events, (file, self._at))
        else:
            events = []
            if not reading.cuts:
                try:
                    events = reading.feed(bytes(self._whole), meta)
                except ValueError as error:
                    self._broken(file, str(error))
                self._whole.clear()
            self._add(events + reading.end(meta), (file, file.offset))

    def _add(self, events: list[Event], after: tuple[TailedFile, int]) -> None:
        self._number += 1
        for event in events:
            event.id = self._number
            event.meta["offset"] = after[1]
        self._prefix.add(self._number, after, len(events))
        self._found += events

    async def settled(self, tokens: Sequence[Token]) -> None:
        self._prefix.settle_all(token.key for token in tokens)
        await self._keep()

    async def _keep(self) -> None:
        """Have the position on disk."""
        async with self._keeping:
            position = self._prefix.position
            if self._kept is not None and position is not None and position != self._written:
                file, offset = position
                await asyncio.to_thread(tailing.save, self._kept, file.stored(offset))
                self._written = position

    # -- sink ------------------------------------------------------------------------------------------------
    def _open_sink(self) -> None:
        options = self._options
        if self._append is None:
            self._append = FileAppender(
                self._path,
                truncate=options.mode == "truncate",
                lines=bool(options.postprocessors) and options.postprocessors[-1] == "separate",
                fsync=options.fsync,
                bytes_most=options.rotate_bytes,
                every=options.rotate_every,
                keep=options.keep,
            )
        self._append.open()
        self._writing = PayloadWriter(options, begun=not self._append.empty)

    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        work = asyncio.ensure_future(asyncio.to_thread(self._write, events))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:  # a thread can't be stopped: the next write must not begin before it ends
            await asyncio.gather(work, return_exceptions=True)
            raise

    def _write(self, events: list[Event]) -> Sequence[Outcome]:
        append: Any = self._append
        if append.prepare(0):
            self._writing = PayloadWriter(self._options, begun=not append.empty)
        pieces, outcomes = self._writing.batch(events)
        data = b"".join(pieces)
        if append.prepare(len(data)):
            self._writing = PayloadWriter(self._options, begun=not append.empty)
            pieces, outcomes = self._writing.batch(events)
            data = b"".join(pieces)
        if data:
            append.write(data)
        return outcomes
