"""Executes GETs, SETs, INCRs, and DECRs of different keys that arrived together (in C, see ``_strings.c``).

Rule 1: the state, the records, and the replies are those of separate calls.
Rule 2: a call that needs more than an existing string is left to the caller, like all calls after it. It may create or
expire a key, need an event or a blocked reader, or fail. Nothing is executed if C does not know the attributes of a
String, which is so if ``values`` is not compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from storage.keyspace.keyspace import Keyspace
from storage.keyspace.values import String

_PROBE: Final = b"probe of an attribute"
_USED: Final = 0x123456789ABCDE

_c_functions: tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]] | None = None
try:
    from storage.keyspace import _strings

    _clean, _dirty = String(_PROBE, _USED), String(_PROBE, _USED)
    _dirty.dirty = True
    if _strings.learn(_clean, _dirty, _PROBE, _USED):
        _c_functions = _strings.get, _strings.set_, _strings.add
except ImportError:  # installed without a C compiler, or run from a checkout
    pass
_get: Final[Callable[..., Any] | None] = None if _c_functions is None else _c_functions[0]
_set: Final[Callable[..., Any] | None] = None if _c_functions is None else _c_functions[1]
_add: Final[Callable[..., Any] | None] = None if _c_functions is None else _c_functions[2]
AVAILABLE: Final = _c_functions is not None


def get(
    ks: Keyspace, calls: list[Any], at: int, stop: int, now: int, null: bytes, longest: int, most: int
) -> tuple[bytes, int] | None:  # fmt: skip
    """Execute the GETs in ``calls`` from ``at`` to at most ``stop`` - 1. ``null``: the reply for a missing key.

    Returns the replies, joined, and their number; None if the first call is left to the caller. ``longest``: bytes of a
    value. ``most``: bytes of replies after which the rest is left.
    """
    if _get is None or ks.event_classes:
        return None
    replies: bytes
    done: int
    hits: int
    replies, done, hits = _get(ks.keys, ks.expires, calls, at, stop, now, not ks.no_touch, null, longest, most)
    if not done:
        return None
    ks.hits += hits
    ks.misses += done - hits
    return replies, done


def set_(ks: Keyspace, calls: list[Any], at: int, stop: int, now: int) -> int:
    """Execute the SETs without options in ``calls`` from ``at`` to at most ``stop`` - 1. Return their number."""
    changes = ks.changes
    if _set is None or ks.event_classes or ks.tracked or changes.held:
        return 0
    records: bytes
    done: int
    grown: int
    records, done, grown = _set(
        ks.keys, ks.expires, calls, at, stop, now, ks.waiting, ks.watchers, changes.strings
    )  # fmt: skip
    if done:
        ks.strings_replaced(records, done, grown)
    return done


def add(ks: Keyspace, calls: list[Any], at: int, stop: int, now: int, amount: int) -> tuple[bytes, int] | None:
    """Execute the calls from ``at`` to at most ``stop`` - 1, each of which adds ``amount`` to the number of its key.

    Returns the replies, joined, and their number; None if the first call is left to the caller.
    """
    changes = ks.changes
    if _add is None or ks.event_classes or ks.tracked or changes.held:
        return None
    records: bytes
    replies: bytes
    done: int
    grown: int
    records, replies, done, grown = _add(
        ks.keys, ks.expires, calls, at, stop, now, ks.waiting, ks.watchers, changes.strings, amount
    )  # fmt: skip
    if not done:
        return None
    ks.strings_replaced(records, done, grown)
    return replies, done
