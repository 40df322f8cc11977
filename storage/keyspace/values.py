"""The values of keys: streams and strings."""

from __future__ import annotations

from typing import TypeAlias

from storage.streams.stream import Stream


class String:
    """A string value. ``value`` is replaced, or overwritten if nothing else refers to it (``_strings.c``)."""

    __slots__ = ("dirty", "used", "value")

    def __init__(self, value: bytes, used: int = 0) -> None:
        self.value = value
        self.used = used  # ms since epoch of the last command that used it
        self.dirty = False  # if set, ``Changes.strings`` has its key


Value: TypeAlias = Stream | String
