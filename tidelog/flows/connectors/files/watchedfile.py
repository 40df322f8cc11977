"""``WatchedFile``: one of the files that a pattern matches, while it is open and while it is closed."""

from __future__ import annotations

import os
from pathlib import Path

from tidelog.flows.api.event import Event
from tidelog.flows.connectors.files.manypositions import FileKey
from tidelog.flows.connectors.files.searching import FileStatus, state_of
from tidelog.flows.connectors.files.tailing import FilePosition, TailedFile
from tidelog.flows.connectors.payload import PayloadOptions, PayloadReader
from tidelog.flows.connectors.settledprefix import SettledPrefix

Messages = list[tuple[int, list[Event]]]  # (size in the file, events) of each message


class WatchedFile:
    """Reads one file. The methods that open, check and close it block."""

    def __init__(self, key: FileKey, path: str, position: FilePosition | None = None) -> None:
        self.key = key
        self.path = path
        self.position = position  # at which reading continues if it is opened; None: the beginning
        self.file: TailedFile | None = None  # None: it is closed
        self.reader: PayloadReader | None = None
        self.at = 0  # the offset after the last message
        self.prefix: SettledPrefix[tuple[TailedFile, int] | None] = SettledPrefix(None)
        self.queued = False  # it may have new data, and waits for being read
        self.state: FileStatus | None = None  # when it was closed
        self.missing: float | None = None  # loop time since which no name of it matches
        self.active = 0.0  # loop time at which it last had new data
        self.ended = False  # it was read to its end, and will not be read further
        self.retry = 0.0  # loop time at which it is opened again after an error
        self.failed = False  # the error was logged

    @property
    def current(self) -> tuple[TailedFile, int] | None:
        """The position after the last message. None: the file is closed."""
        return None if self.file is None else (self.file, self.at)

    def open(self, options: PayloadOptions) -> bool:
        """Open the file. Return False if it is not the one that was read before. Raises OSError."""
        opened = TailedFile(Path(self.path), 0 if self.position is None else self.position.offset)
        same = True
        if opened.key != self.key:
            opened.close()
            raise FileNotFoundError(f"{self.path}: another file has replaced it")
        if self.position is not None and not opened.holds(self.position):
            opened = self._again(opened)
            same = False
        self._begin(opened, options)
        return same

    def restart(self, options: PayloadOptions) -> None:
        """Read the file from its beginning, because it was truncated or rewritten."""
        assert self.file is not None  # noqa: S101 - only called if it is open
        self._begin(self._again(self.file), options)

    def _again(self, file: TailedFile) -> TailedFile:
        opened = TailedFile(file.path, descriptor=os.dup(file.descriptor))
        file.close()
        return opened

    def _begin(self, opened: TailedFile, options: PayloadOptions) -> None:
        self.reader = PayloadReader(options)
        if opened.offset and self.reader.header:
            self.reader.prime(os.pread(opened.descriptor, options.max_bytes + (64 << 10), 0))
        self.file = opened
        self.at = opened.offset

    def grown(self) -> bool:
        """Return whether the open file may have new data, or was rewritten."""
        assert self.file is not None  # noqa: S101
        about = os.fstat(self.file.descriptor)
        return about.st_size != self.file.offset or about.st_mtime_ns != self.file.changed

    def close_at_end(self) -> bool:
        """Close the file if it has no new data, and all of its messages are settled and stored."""
        assert self.file is not None  # noqa: S101
        about = os.fstat(self.file.descriptor)
        if about.st_size != self.file.offset and not self.ended:
            return False
        self.close()
        self.prefix.restart(None)  # releases the bytes that the closed file retains
        self.state = state_of(about)
        return True

    def close(self) -> None:
        """Close the file. An incomplete message is read again when it is opened."""
        if self.file is not None:
            self.position = self.file.stored(self.at)
            self.file.close()
            self.file = self.reader = None
            self.queued = False
            self.state = None
