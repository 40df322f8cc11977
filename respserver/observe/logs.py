"""Log lines in redis-server's format, so that tools that read its log can read ours::

    4711:M 21 Nov 2026 09:14:00.123 * Ready to accept connections
    ^pid ^role         local time    ^level: . debug  - verbose  * notice  # warning

Rule 1: an event is one line. Unprintable characters are escaped, so that clients can't forge lines.
Rule 2: logging never fails. A full disk or a closed pipe must not end the server.

As in Redis, the file is opened for each line, so it can be renamed or removed at any time. Lines are rare.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

LEVELS = {"debug": 0, "verbose": 1, "notice": 2, "warning": 3, "nothing": 4}
_SIGNS = ".-*#"
# strftime would use the locale
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Logger:
    """Writes lines at or above ``level`` to the file ``path``; to standard output if it is empty."""

    __slots__ = ("_pid", "level", "path", "role")

    def __init__(self, path: str = "", level: str = "notice") -> None:
        self.path = path
        self.level = LEVELS[level]
        self.role = "M"  # M: leader, S: replica
        self._pid = os.getpid()

    def set_level(self, level: str) -> None:
        self.level = LEVELS[level]

    def debug(self, text: str) -> None:
        if self.level <= 0:
            self._write(0, text)

    def verbose(self, text: str) -> None:
        if self.level <= 1:
            self._write(1, text)

    def notice(self, text: str) -> None:
        if self.level <= 2:
            self._write(2, text)

    def warning(self, text: str) -> None:
        if self.level <= 3:
            self._write(3, text)

    def trace(self, text: str, exc: BaseException) -> None:
        """Log a bug: the text, then the traceback, line by line."""
        import traceback  # imported here, because it is rarely needed

        self.warning(text)
        for block in traceback.format_exception(exc):
            for line in block.rstrip("\n").split("\n"):
                self.warning(line)

    def check(self) -> None:
        """Raise OSError if the log file can't be written. Used at startup."""
        if self.path:
            os.close(self._open())

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def line(self, level: int, text: str, now: float) -> str:
        """Return the line for an event, with its line feed. ``now``: seconds since epoch."""
        local = time.localtime(now)
        stamp = (
            f"{local.tm_mday:02d} {_MONTHS[local.tm_mon - 1]} {local.tm_year} "
            f"{local.tm_hour:02d}:{local.tm_min:02d}:{local.tm_sec:02d}.{int(now % 1 * 1000):03d}"
        )
        return f"{self._pid}:{self.role} {stamp} {_SIGNS[level]} {_printable(text)}\n"

    def _write(self, level: int, text: str) -> None:
        data = self.line(level, text, time.time()).encode("utf-8", "backslashreplace")
        with suppress(OSError):  # Rule 2
            if not self.path:
                os.write(1, data)
                return
            with open(self._open(), "wb", buffering=0) as file:
                file.write(data)


def take_over_logging(logger: Logger) -> None:
    """Send the records of Python's ``logging``, which asyncio uses for warnings, to ``logger``."""
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = f"{record.name}: {record.getMessage()}"
            if record.exc_info and record.exc_info[1] is not None:
                logger.trace(text, record.exc_info[1])
            elif record.levelno >= logging.WARNING:
                logger.warning(text)
            else:
                logger.debug(text)

    logging.getLogger().handlers[:] = [Handler()]


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
