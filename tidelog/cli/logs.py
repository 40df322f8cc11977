"""Logging of ``tidelog worker``: on standard error, as text or as JSON lines.

Rule 1: where the program has configured the root logger itself, it stays as it is.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from tidelog.cli.lines import printable
from tidelog.cli.output import echo
from tidelog.operating.errortexts import traced
from tidelog.operating.redaction import hidden
from tidelog.workers.logs import LogFields

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class _Formatter(logging.Formatter):
    """Its tracebacks are those of ``saying.traced``: an exception whose ``str()`` fails is logged, too."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        return traced(ei[1]).rstrip() if ei[1] is not None else ""


class JsonFormatter(_Formatter):
    """One object a line: time, level, logger, message, error with its traceback, and all ``extra`` fields."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": hidden(record.getMessage()),
        }
        facts |= {
            name: value for name, value in record.__dict__.items() if name not in _STANDARD and value is not None
        }  # fmt: skip
        if record.exc_info:
            facts["error"] = hidden(self.formatException(record.exc_info))
        if record.stack_info:
            facts["stack"] = self.formatStack(record.stack_info)
        return json.dumps(facts, default=str, ensure_ascii=False)


class TextFormatter(_Formatter):
    """What a message quotes may be a peer's: it begins no line of its own, and tells a terminal nothing."""

    def format(self, record: logging.LogRecord) -> str:
        return hidden(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = printable(record.message)
        return super().formatMessage(record)


def text_formatter() -> logging.Formatter:
    return TextFormatter(FORMAT)


def configure(level: str, as_json: bool) -> None:
    """Set up the root logger, unless the program has done that."""
    root = logging.getLogger()
    if root.handlers:
        if as_json:
            echo("the program has configured logging itself: --log-json and --log-level are not used", err=True)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else text_formatter())
    handler.addFilter(LogFields())
    root.addHandler(handler)
    root.setLevel(level.upper())
