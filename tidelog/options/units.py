"""Durations and sizes in options, as numbers or as text with a unit."""

from __future__ import annotations

import re
from typing import Final, Self, TypeVar

N = TypeVar("N", bound=float)

LONGEST: Final = 100 * 366 * 86400.0  # s: a hundred years
WRITTEN: Final = 60  # characters of a duration or a size

_DURATION: Final = re.compile(r"\s*+(\d++(?:\.\d++)?)\s*+(ns|us|ms|s|m|h|d)\s*+", re.ASCII)  # one part of it
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE: Final = re.compile(r"(\d+)\s*(b|kb|mb|gb)?", re.IGNORECASE)
_BYTES: Final = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


class Duration(float):
    """Seconds, written as ``200ms``, ``5s``, ``1m30s``, or as a number of seconds."""

    @classmethod
    def read(cls, value: object) -> Self:
        """Parse an option. Raises ValueError if it is not a duration."""
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= LONGEST:
            return cls(value)
        if isinstance(value, str) and len(value) <= WRITTEN:
            seconds, at = 0.0, 0
            while found := _DURATION.match(value, at):
                seconds += float(found[1]) * _SECONDS[found[2]]
                at = found.end()
            if 0 < at == len(value) and seconds <= LONGEST:
                return cls(seconds)
        raise ValueError(f"{excerpt(value)} is not a duration such as 200ms, 5s or 1m30s")


class PositiveDuration(Duration):
    """A duration of more than 0 s."""

    @classmethod
    def read(cls, value: object) -> Self:
        return _positive(super().read(value))


class Interval(Duration):
    """A duration of at least a millisecond."""

    @classmethod
    def read(cls, value: object) -> Self:
        seconds = super().read(value)
        if seconds < 1e-3:
            raise ValueError(f"{excerpt(value)} is too short: it must be at least 1ms")
        return seconds


class Size(int):
    """Bytes, written as ``64KB``, ``1MB``, or as a number of bytes."""

    @classmethod
    def read(cls, value: object) -> Self:
        """Parse an option. Raises ValueError if it is not a size."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(value)
        if isinstance(value, str) and len(value) <= WRITTEN and (found := _SIZE.fullmatch(value.strip())):
            return cls(int(found[1]) * _BYTES[(found[2] or "").lower()])
        raise ValueError(f"{excerpt(value)} is not a size such as 64KB or 1MB")


class PositiveSize(Size):
    """A size of at least 1 byte."""

    @classmethod
    def read(cls, value: object) -> Self:
        return _positive(super().read(value))


def _positive(value: N) -> N:
    if not value:
        raise ValueError("it is 0: it must be more than 0")
    return value


def excerpt(value: object) -> str:
    """Return the start of a value, for an error text."""
    shown = repr(value[:WRITTEN] if isinstance(value, str) else value)
    return shown if len(shown) <= 2 * WRITTEN else f"{shown[:WRITTEN]}..."
