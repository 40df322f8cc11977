"""The audit log: one JSON line for each login, logout and change.

    {"time":"2026-11-27T09:12:03.512+00:00","user":"ann","address":"127.0.0.1","action":"append","target":"orders",
     "result":"done","detail":{"id":"1795770723512.0"}}

``result`` is ``done``, or the error message. A line never has a password or a payload. The line is written after the
server has replied; if it can't be written, the console logs an error.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from typing import Any, Final

from tidelog.console.errors import ConsoleError

DONE: Final = "done"
log = logging.getLogger("tidelog.console")


class AuditLog:
    """Writes the lines to a file, which can be rotated, or without a file to the log ``tidelog.console.audit``."""

    def __init__(self, path: str | None = None) -> None:
        """Open the file. Raises ConsoleError."""
        self._handler: WatchedFileHandler | None = None
        self._log = logging.getLogger("tidelog.console.audit")
        if path is not None:
            try:
                self._handler = _AuditFile(path, encoding="utf-8")
            except OSError as error:
                raise ConsoleError(f"the audit log {path} can't be written: {error.strerror or error}") from None

    def write(self, user: str, address: str, action: str, target: str = "", result: str = DONE, **detail: Any) -> None:
        """Write a line. target: the key or group that is changed. detail: further values, without payloads."""
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "user": user, "address": address, "action": action, "target": target, "result": result,
        }  # fmt: skip
        if detail:
            line["detail"] = detail
        text = json.dumps(line, ensure_ascii=True, separators=(",", ":"), default=str)
        if self._handler is None:
            self._log.info("%s", text)
        else:
            self._handler.emit(logging.LogRecord("audit", logging.INFO, "", 0, text, None, None))

    def close(self) -> None:
        if self._handler is not None:
            self._handler.close()


class _AuditFile(WatchedFileHandler):
    """Reports lines that can't be written."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        log.error("the audit log can't be written; the line is: %s", record.getMessage(), exc_info=True)  # noqa: LOG014 - called in one
