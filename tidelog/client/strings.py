"""Calls for strings that programs agree by: set if absent, set if equal, counters; times of keys, and of the server.

Each swap returns the value before it, so that whoever repeats one after a lost reply sees whether the first had come
through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog.transport.call import Call, Name, plain


def get(key: Name) -> Call[bytes | None]:
    """The value of a key, or None."""
    return Call(("GET", key), _maybe)


def mget(*keys: Name) -> Call[list[bytes | None]]:
    """The values of several keys, None for one that isn't there. Without keys nothing is sent."""
    return Call(("MGET", *keys), list) if keys else Call((), lambda _: [])


def set_absent(key: Name, value: bytes, ms: int | None = None) -> Call[bytes | None]:
    """Set a key that isn't there, for ``ms`` milliseconds if given; returns the value before: None if it was set."""
    return Call(("SET", key, value, "NX", "GET", *_px(ms)), _maybe)


def set_equal(key: Name, value: bytes, old: bytes, ms: int | None = None) -> Call[bytes | None]:
    """Set a key whose value is ``old``; returns the value before: ``old`` if it was set."""
    return Call(("SET", key, value, "IFEQ", old, "GET", *_px(ms)), _maybe)


def delete_equal(key: Name, old: bytes) -> Call[bool]:
    """Delete a key whose value is ``old``; whether it was deleted."""
    return Call(("DELEX", key, "IFEQ", old), bool)


def increment(key: Name, amount: int = 1) -> Call[int]:
    """Add to a counter, 0 where there is none; returns the sum."""
    return Call(("INCRBY", key, amount), int)


def remaining_ms(key: Name) -> Call[int]:
    """The milliseconds that are left of a key's time: -1 if it has no end, -2 if there is no such key."""
    return Call(("PTTL", key), int)


def server_time() -> Call[int]:
    """The server's clock, in ms since 1970."""
    return Call(("TIME",), lambda reply: int(reply[0]) * 1000 + int(reply[1]) // 1000)


def _maybe(reply: bytes | None) -> bytes | None:
    return reply


def _px(ms: int | None) -> tuple[str | int, ...]:
    return () if ms is None else ("PX", ms)


def watch_and_get(keys: Sequence[Name]) -> list[Call[Any]]:
    """Return the calls that watch keys and then read their values; none without keys."""
    return [plain("WATCH", *keys), plain("MGET", *keys)] if keys else []
