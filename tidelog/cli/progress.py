"""A progress bar with a rate, or a line, on standard error if it is a terminal.

Rule: each command that can take longer than a second shows its progress, and nothing of it reaches a pipe or a file.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from tidelog.operating.tables import size
from tidelog.operating.terminal import safe

EVERY = 0.1  # seconds between two updates of the bar
WIDTH = 30  # characters of the bar


def standard_error() -> TextIO:
    """Return the stream for progress."""
    return sys.stderr


class Progress:
    """The progress bar, as a context manager. Calling ``show`` for each row is cheap."""

    def __init__(self, total: int | None = None) -> None:
        self.total = total  # bytes in total; None if unknown
        self._what = ""
        self.started = time.monotonic()
        self._next = 0.0
        self._stream = standard_error()
        self.visible = self._stream.isatty()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def show(self, rows: int, position: int) -> None:
        """Update the bar, at most once every EVERY seconds. ``position`` is the number of bytes read."""
        if self._due():
            self._draw(position, f"{rows:,} rows  {rows / max(self.seconds, 1e-9):,.0f}/s")

    def show_bytes(self, what: str, done: int, total: int) -> None:
        """Update the bar by a number of bytes. A new ``what`` restarts the time."""
        self._show(what, done, total, size)

    def show_entries(self, what: str, done: int, total: int) -> None:
        """Update the bar by a number of entries. A new ``what`` restarts the time."""
        self._show(what, done, total, "{:,}".format)

    def _show(self, what: str, done: int, total: int, shown: Callable[[int], str]) -> None:
        if what != self._what:
            self._what, self.started, self._next = what, time.monotonic(), 0.0
        if self._due():
            self.total = total
            self._draw(done, f"{what} {shown(done)}  {shown(int(done / max(self.seconds, 1e-9)))}/s")

    def show_count(self, what: str, done: int) -> None:
        """Show a number of which the total is not known."""
        self.show_text(f"{what} {done:,}")

    def counting(self, what: str) -> Callable[[int], None]:
        """Return a function that shows the sum of the numbers with which it is called."""
        total = 0

        def count(number: int) -> None:
            nonlocal total
            total += number
            self.show_count(what, total)

        return count

    def show_text(self, text: str) -> None:
        """Show a line without a bar."""
        if self._due():
            self.total = None
            self._draw(0, text)

    def _due(self) -> bool:
        if not self.visible or time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + EVERY
        return True

    def _draw(self, position: int, text: str) -> None:
        bar = ""
        if self.total:
            share = min(1.0, position / self.total)
            bar = f"{share:4.0%} {'█' * round(share * WIDTH):░<{WIDTH}}  "
        shown = safe(text).replace("\n", " ")  # names can come from a hostile peer
        self._write(f"\r{bar}{shown}\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self.visible = False  # the terminal was closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Remove the bar before other output."""
        if self.visible:
            self._write("\r\x1b[K")


def file_size(file: io.BufferedReader) -> int | None:
    """Return the size of a file for ``Progress``; None if it is not a regular file."""
    try:
        status = os.fstat(file.fileno())
    except OSError:  # it has no file descriptor
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def is_file(stream: TextIO) -> bool:
    """Return whether output goes to a regular file: a bar on the terminal does not mix with it."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # it has no file descriptor
        return False
