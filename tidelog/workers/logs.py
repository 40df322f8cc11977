"""The fields ``worker``, ``processor`` and ``partition`` of a worker's log records.

Records of tidelog.workers have these attributes, as if they were passed as ``extra``. To add them to the records of
your own functions and of other libraries, add ``LogFields()`` to a handler:

>>> handler.addFilter(LogFields())

This module does not configure the standard logging.
"""

from __future__ import annotations

import logging
from contextvars import Context, ContextVar, Token, copy_context
from typing import Any

NAMES = ("worker", "processor", "partition")

_fields: ContextVar[dict[str, Any]] = ContextVar("tidelog_log_fields", default={})  # noqa: B039 - never changed


class LogFields(logging.Filter):
    """Adds the missing fields to each record; their value is None outside of a worker, processor or partition.

    With concurrent events (ordering "key" and "none"), ``partition`` is None in records of user code.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        known = _fields.get()
        for name in NAMES:
            if name not in record.__dict__:
                record.__dict__[name] = known.get(name)
        return True


def get(name: str) -> logging.Logger:
    """Return the logger of a module; its records have the fields."""
    log = logging.getLogger(name)
    if not any(isinstance(each, LogFields) for each in log.filters):
        log.addFilter(LogFields())
    return log


def enter(**fields: Any) -> Token[dict[str, Any]]:
    """Add fields to the current context; ``leave`` removes them."""
    return _fields.set({**_fields.get(), **fields})


def leave(token: Token[dict[str, Any]]) -> None:
    _fields.reset(token)


def context(**fields: Any) -> Context:
    """Return a copy of the current context with these fields, for a task."""
    copied = copy_context()
    copied.run(enter, **fields)
    return copied
