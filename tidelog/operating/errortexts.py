"""Texts of exceptions, for logs, dead letters and statuses.

Rule 1: nothing here raises, even if the exception's own code fails. An error whose ``str()`` fails is handled like any
        other error.
"""

from __future__ import annotations

import logging
import math
import time
import traceback
from typing import Final

from tidelog.transport.errors import message_of

LONGEST: Final = 10_000  # characters of a text for logs
REMEMBERED: Final = 1000  # keys whose report is not repeated
KINDS: Final = 20  # kinds of failures that are logged until the next success


def text_of(error: BaseException) -> str:
    """Return the ``str()`` of an exception, or the server's message for an error reply."""
    try:
        text = message_of(error)
        return text if type(text) is str else str.__str__(text)
    except BaseException as failed:  # noqa: BLE001 - it is the exception's own code
        return f"<str() of this {type(error).__name__} raises {type(failed).__name__}>"


def summary_of(error: BaseException) -> str:
    """Return the class of an exception and its message, with bounded length."""
    text = text_of(error)[:LONGEST]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception, including its causes."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as failed:  # noqa: BLE001 - as above
        where = traceback.format_tb(error.__traceback__)
        return "".join(where) + f"{summary_of(error)}\n<its causes can't be shown: {type(failed).__name__}>\n"


class UnreadableDocuments:
    """Reports documents on the server that can't be decoded, each once until its content changes."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._reported: dict[str, str] = {}  # by key

    def report(self, key: str, why: BaseException | str) -> None:
        """Log that a document is ignored, with the reason."""
        text = f"{quoted(key)} can't be read, and is ignored: {why if isinstance(why, str) else text_of(why)}"
        if self._reported.get(key) != text:
            if len(self._reported) >= REMEMBERED:
                self._reported.clear()
            self._reported[key] = text
            self._log.error("%s", text[:LONGEST])


def quoted(text: str) -> str:
    """Return a name from the server, quoted, with control characters escaped."""
    return repr(text)[:LONGEST]


class FailureLog:
    """Logs a repeated failure once, and again only after a success and ``quiet`` seconds without a failure."""

    def __init__(self, log: logging.Logger, quiet: float = 0.0) -> None:
        self._log = log
        self._quiet = quiet
        self._failed_at = -math.inf  # monotonic
        self._kinds: set[str] = set()  # kinds that were logged
        self._logged = False  # whether a failure was logged since the last success

    def warn(self, text: str, kind: str = "") -> None:
        """Record a failure. Each ``kind`` is logged once; by default, the kind is the text."""
        now, kind = time.monotonic(), kind or text
        if not self._logged and now > self._failed_at + self._quiet:
            self._kinds.clear()
        self._failed_at = now
        new = kind not in self._kinds and len(self._kinds) < KINDS
        self._log.log(logging.WARNING if new else logging.DEBUG, "%s", text)
        if new:
            self._kinds.add(kind)
            self._logged = True

    def succeeded(self) -> bool:
        """Record a success; returns whether a failure was logged since the last success."""
        logged, self._logged = self._logged, False
        return logged
