"""Log lines in redis-server's shape, so that whatever reads Redis's log reads ours::

    4711:M 21 Nov 2026 09:14:00.123 * Ready to accept connections
    ^pid ^role         local time    ^level: . debug  - verbose  * notice  # warning

Rule 1: one event, one line; what a client sent is made printable first, so that nobody can forge a line.
Rule 2: logging never fails: a full disk or a closed pipe must not take the server down with it.
Rule 3: fields follow the text as ``name=value``, for people and for grep.

A file is opened for each line, as Redis does: it may be renamed or removed at any time, and lines are rare.
"""

from __future__ import annotations

import os
import time

LEVELS = {"debug": 0, "verbose": 1, "notice": 2, "warning": 3, "nothing": 4}
_SIGNS = ".-*#"
# strftime would follow the locale
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Logger:
    """Writes lines at or above ``level`` to ``path``, or to standard output where it is empty."""

    __slots__ = ("_pid", "level", "path", "role")

    def __init__(self, path: str = "", level: str = "notice", role: str = "M") -> None:
        self.path = path
        self.level = LEVELS[level]
        self.role = role  # M: leader, S: replica, C: a child or the time before the server runs
        self._pid = os.getpid()

    def set_level(self, level: str) -> None:
        self.level = LEVELS[level]

    def debug(self, text: str, **fields: object) -> None:
        if self.level <= 0:
            self._write(0, text, fields)

    def verbose(self, text: str, **fields: object) -> None:
        if self.level <= 1:
            self._write(1, text, fields)

    def notice(self, text: str, **fields: object) -> None:
        if self.level <= 2:
            self._write(2, text, fields)

    def warning(self, text: str, **fields: object) -> None:
        if self.level <= 3:
            self._write(3, text, fields)

    def trace(self, text: str, exc: BaseException) -> None:
        """A bug of ours: the text, then the traceback line by line."""
        import traceback  # only when there is one

        self.warning(text)
        for block in traceback.format_exception(exc):
            for line in block.rstrip("\n").split("\n"):
                self.warning(line)

    def check(self) -> None:
        """Raise OSError if the log file can't be written: better said at the start than never."""
        if self.path:
            os.close(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644))

    def line(self, level: int, text: str, fields: dict[str, object], now: float) -> str:
        """The line for an event at ``now`` (seconds since epoch), with its line feed."""
        local = time.localtime(now)
        stamp = (
            f"{local.tm_mday:02d} {_MONTHS[local.tm_mon - 1]} {local.tm_year} "
            f"{local.tm_hour:02d}:{local.tm_min:02d}:{local.tm_sec:02d}.{int(now % 1 * 1000):03d}"
        )
        tail = "".join(f" {name}={_printable(str(value), quoted=True)}" for name, value in fields.items())
        return f"{self._pid}:{self.role} {stamp} {_SIGNS[level]} {_printable(text)}{tail}\n"

    def _write(self, level: int, text: str, fields: dict[str, object]) -> None:
        data = self.line(level, text, fields, time.time()).encode("utf-8", "backslashreplace")
        try:
            if not self.path:
                os.write(1, data)
                return
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError:
            pass  # rule 2


def take_over_logging(logger: Logger) -> None:
    """Send what Python's own ``logging`` has to say (asyncio's warnings) to ``logger``, in its shape.

    asyncio has loaded ``logging`` already; nothing else of ours uses it.
    """
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


def _printable(text: str, quoted: bool = False) -> str:
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    if quoted and (not text or " " in text or '"' in text or "=" in text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text
