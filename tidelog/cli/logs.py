"""Logging of the CLI on standard error, as text or as JSON lines.

Rule 1: a root logger that the user's program has configured is not changed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from tidelog.cli.lines import printable
from tidelog.operating.errortexts import traceback_of
from tidelog.operating.redaction import redacted
from tidelog.operating.terminal import echo
from tidelog.workers.logs import LogFields

F = TypeVar("F", bound=Callable[..., Any])
FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class _Formatter(logging.Formatter):
    """Formats tracebacks with ``traced``, so that exceptions whose ``str()`` fails are logged, too."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        return traceback_of(ei[1]).rstrip() if ei[1] is not None else ""


class JsonFormatter(_Formatter):
    """Writes one JSON object per line: time, level, logger, message, traceback, and all ``extra`` fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        fields |= {
            name: value for name, value in record.__dict__.items() if name not in _STANDARD and value is not None
        }  # fmt: skip
        if record.exc_info:
            fields["error"] = redacted(self.formatException(record.exc_info))
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        return json.dumps(fields, default=str, ensure_ascii=False)


class TextFormatter(_Formatter):
    """Escapes line ends and control characters, because a message can quote text from a peer."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = printable(record.message)
        return super().formatMessage(record)


def text_formatter() -> logging.Formatter:
    return TextFormatter(FORMAT)


def logging_options(level: str) -> Callable[[F], F]:
    """Add --log-level and --log-json to a command, which gets them as ``log_level`` and ``log_json``."""
    least = click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default=level,
                         show_default=True, help="Log messages of this level and above.")  # fmt: skip
    as_json = click.option("--log-json", is_flag=True, help="Log JSON lines.")
    return lambda command: least(as_json(command))


def configure(level: str, as_json: bool) -> None:
    """Configure the root logger, unless the user's program has configured it."""
    root = logging.getLogger()
    if root.handlers:
        if as_json:
            echo("the program configures logging itself: --log-json and --log-level have no effect", err=True)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else text_formatter())
    handler.addFilter(LogFields())
    root.addHandler(handler)
    root.setLevel(level.upper())
