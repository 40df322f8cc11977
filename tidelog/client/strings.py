"""Calls for the strings with which programs coordinate: set if absent, set if equal, counters, and times.

Each conditional SET returns the previous value. A caller that repeats one after a lost reply can therefore see whether
the first attempt was executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog.transport.call import Call, Name, plain


def get(key: Name) -> Call[bytes | None]:
    """Return the value of a key, or None."""
    return Call(("GET", key), _maybe)


def mget(*keys: Name) -> Call[list[bytes | None]]:
    """Return the values of several keys, None for a missing one. Without keys, nothing is sent."""
    return Call(("MGET", *keys), list) if keys else Call((), lambda _: [])


def set_absent(key: Name, value: bytes, ms: int | None = None) -> Call[bytes | None]:
    """Set a missing key, for ``ms`` milliseconds if given. Returns the previous value: None if the key was set."""
    return Call(("SET", key, value, "NX", "GET", *_px(ms)), _maybe)


def set_equal(key: Name, value: bytes, old: bytes, ms: int | None = None) -> Call[bytes | None]:
    """Set a key whose value is ``old``. Returns the previous value: ``old`` if the key was set."""
    return Call(("SET", key, value, "IFEQ", old, "GET", *_px(ms)), _maybe)


def delete_equal(key: Name, old: bytes) -> Call[bool]:
    """Delete a key whose value is ``old``. Returns whether it was deleted."""
    return Call(("DELEX", key, "IFEQ", old), bool)


def increment(key: Name, amount: int = 1) -> Call[int]:
    """Add to a counter, which starts at 0. Returns the sum."""
    return Call(("INCRBY", key, amount), int)


def remaining_ms(key: Name) -> Call[int]:
    """Return a key's remaining time to live in ms: -1 if it does not expire, -2 if there is no such key."""
    return Call(("PTTL", key), int)


def server_time() -> Call[int]:
    """Return the server's time, in ms since 1970."""
    return Call(("TIME",), lambda reply: int(reply[0]) * 1000 + int(reply[1]) // 1000)


def _maybe(reply: bytes | None) -> bytes | None:
    return reply


def _px(ms: int | None) -> tuple[str | int, ...]:
    return () if ms is None else ("PX", ms)


def watch_and_get(keys: Sequence[Name]) -> list[Call[Any]]:
    """Return the calls that watch keys and then read their values; none without keys."""
    return [plain("WATCH", *keys), plain("MGET", *keys)] if keys else []
