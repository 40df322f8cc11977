"""Errors in an app's declarations and in the use of its objects."""

from __future__ import annotations


class EarlyReturnError(RuntimeError):
    """An ``app.processor`` function returned while more events could come, without ``events.done()``."""


class AppError(ValueError):
    """An invalid declaration, or a call that is not allowed in this context. The text suggests a solution."""
