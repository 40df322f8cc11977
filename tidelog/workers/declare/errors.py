"""What a program declares or does wrong."""

from __future__ import annotations


class EarlyReturnError(RuntimeError):
    """A processor of Runnel's form returned while there were events to come, and had not called ``events.done()``."""


class AppError(ValueError):
    """A declaration that makes no sense, or a call that is not allowed here. The text names it and the way out."""
