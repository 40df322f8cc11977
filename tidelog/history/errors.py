"""The error of all reads of history objects."""

from __future__ import annotations


class HistoryError(Exception):
    """The history of a stream can't be read from the object store. The text names the file and, for an object, the
    entries."""


class NoHistoryError(HistoryError):
    """The server has no history of this stream in an object store, or does not say where."""
