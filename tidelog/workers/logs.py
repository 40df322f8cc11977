"""What log records of a worker say about where they come from: ``worker``, ``processor``, ``partition``.

Records of tidelog.workers have these as attributes, as ``extra`` gives them. For the records of your own functions, and
those of other libraries that they call, add ``LogFields()`` to a handler:

>>> handler.addFilter(LogFields())

Nothing here configures the standard logging.
"""

from __future__ import annotations

import logging
from contextvars import Context, ContextVar, Token, copy_context
from typing import Any

NAMES = ("worker", "processor", "partition")

_fields: ContextVar[dict[str, Any]] = ContextVar("tidelog_log_fields", default={})  # noqa: B039 - never changed


class LogFields(logging.Filter):
    """Adds the fields to each record that has none of that name: None where there is nothing to say.

    With many events at a time (ordering "key" and "none") ``partition`` is None in records of user code.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        known = _fields.get()
        for name in NAMES:
            if name not in record.__dict__:
                record.__dict__[name] = known.get(name)
        return True


def get(name: str) -> logging.Logger:
    """The logger of a module, whose records have the fields."""
    log = logging.getLogger(name)
    if not any(isinstance(each, LogFields) for each in log.filters):
        log.addFilter(LogFields())
    return log


def enter(**fields: Any) -> Token[dict[str, Any]]:
    """Add fields to the running context; ``leave`` undoes that."""
    return _fields.set({**_fields.get(), **fields})


def leave(token: Token[dict[str, Any]]) -> None:
    _fields.reset(token)


def context(**fields: Any) -> Context:
    """A copy of the running context with these fields, for a task."""
    made = copy_context()
    made.run(enter, **fields)
    return made
