"""The files that a sink writes: one, or one for each path that a template names. All calls block.

Rule 1: The events of a path are written in their order. An error of one path does not affect the others.
Rule 2: At most ``max_open`` files are open. The least recently written one is closed, and so are those that were not
        written for IDLE seconds. A closed file is opened again, and appended to, when an event names it.
Rule 3: Directories are only created below the directory that precedes the first placeholder. That one must exist.
"""

from __future__ import annotations

import errno
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.flows.api.connector import Outcome
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import OK, REJECT, RETRY
from tidelog.flows.connectors.files.appending import FileAppender, sync_directory
from tidelog.flows.connectors.files.options import FileOptions
from tidelog.flows.connectors.payload import PayloadOptions, PayloadWriter
from tidelog.flows.connectors.templates import Template

IDLE: Final = 60.0  # s

_NEVER: Final = frozenset((errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP, errno.EINVAL))
_ONE_PATH: Final = frozenset((errno.EACCES, errno.EPERM, errno.ENOENT, errno.EEXIST))
# EEXIST: a directory of the path is a symbolic link that leads nowhere. All others concern the disk or the process.


class FileWriter:
    """Appends events to one file. ``sent``: counts the bytes that were written."""

    def __init__(self, append: FileAppender, options: PayloadOptions, sent: Callable[[int], None]) -> None:
        self._options = options
        self._sent = sent
        self._append = append
        self._writer = PayloadWriter(options)

    def open(self) -> None:
        """Open the file. Raises OSError if it can't be written."""
        self._append.open()
        self._begin()

    def _begin(self) -> None:
        self._writer = PayloadWriter(self._options, begun=not self._append.empty)

    def close(self) -> None:
        self._append.close()

    def write(self, events: Sequence[Event]) -> list[Outcome]:
        """Write a batch. Raises OSError, and RejectError if no event can be encoded."""
        if self._append.prepare(0):
            self._begin()
        pieces, outcomes = self._writer.batch(events)
        data = b"".join(pieces)
        if self._append.prepare(len(data)):
            self._begin()
            pieces, outcomes = self._writer.batch(events)
            data = b"".join(pieces)
        if data:
            self._append.write(data)
            self._sent(len(data))
        return outcomes


class WrittenBatch(NamedTuple):
    """The outcomes of a batch, and the error for which the sink must reconnect."""

    outcomes: list[Outcome]
    error: OSError | None = None


class TemplateFiles:
    """Appends each event to the file that a template names."""

    def __init__(
        self, template: Template, appender: Callable[[Path], FileAppender], options: FileOptions,
        sent: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._template = template
        self._appender = appender
        self._options = options
        self._sent = sent
        self._max_open = options.max_open
        self._base = base_of(template)
        self._open: OrderedDict[str, tuple[FileWriter, float]] = OrderedDict()  # and when it was written, in s

    def open(self) -> None:
        """Raise OSError if the directory does not exist."""
        self.close()
        if not self._base.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such directory", str(self._base))

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1][0].close()

    def write(self, events: Sequence[Event]) -> WrittenBatch:
        outcomes: list[Outcome] = [OK] * len(events)
        paths: dict[str, list[int]] = {}
        for at, event in enumerate(events):
            try:
                paths.setdefault(self._template.fill(event), []).append(at)
            except RejectError as error:
                outcomes[at] = (REJECT, str(error))
        lost: OSError | None = None
        for path, places in paths.items():
            try:
                results: Sequence[Outcome] = self._file(path).write([events[at] for at in places])
            except RejectError as error:
                results = [(REJECT, str(error))] * len(places)
            except OSError as error:
                self._close(path)
                status = REJECT if error.errno in _NEVER else RETRY
                results = [(status, f"{path}: {error.strerror or error}")] * len(places)
                if error.errno not in _NEVER | _ONE_PATH:
                    lost = error
            for at, result in zip(places, results, strict=True):
                outcomes[at] = result
        self._close_idle()
        return WrittenBatch(outcomes, lost)

    def _file(self, path: str) -> FileWriter:
        """Return the open file. Raises OSError if it can't be opened."""
        known = self._open.pop(path, None)
        if known is None:
            while len(self._open) >= self._max_open:
                self._open.popitem(last=False)[1][0].close()
            append = self._appender(Path(path).absolute())
            file = FileWriter(append, self._options, self._sent)
            try:
                file.open()
            except FileNotFoundError:
                self._make_directories(append.path.parent, sync=append.fsync)
                file.open()
        else:
            file = known[0]
        self._open[path] = (file, time.monotonic())
        return file

    def _close(self, path: str) -> None:
        known = self._open.pop(path, None)
        if known is not None:
            known[0].close()

    def _close_idle(self) -> None:
        since = time.monotonic() - IDLE
        while self._open:
            path, (_, written) = next(iter(self._open.items()))
            if written > since:
                break
            self._close(path)

    def _make_directories(self, directory: Path, *, sync: bool) -> None:
        """Create a directory below the base. Raises OSError."""
        missing = []
        while directory != self._base and not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            if sync:
                sync_directory(each.parent)


def base_of(template: Template) -> Path:
    """Return the directory that precedes the first placeholder of a path."""
    return Path(template.prefix[: template.prefix.rfind("/") + 1]).absolute()
