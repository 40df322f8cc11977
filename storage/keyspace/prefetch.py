"""What appends to many streams are about to touch is brought into the processor's caches beforehand, for several at
once: in C, where that was compiled (see ``_prefetch.c``).
"""

from __future__ import annotations

from typing import Any, Final

from storage.keyspace.values import Value

try:
    from storage.keyspace import _prefetch

    FETCHES = True
except ImportError:  # installed without a C compiler, or a checkout
    FETCHES = False

MANY: Final = 4096  # keys: what fewer of them touch is in the caches most of the time
AT_ONCE: Final = 64  # keys, or records


def fetch(keys: dict[bytes, Value], commands: list[list[bytes]], at: int, stop: int) -> None:
    """Fetch what commands from ``at`` to ``stop`` - 1 will touch, AT_ONCE at most. Their first argument is a key."""
    if FETCHES and len(keys) >= MANY:
        _prefetch.fetch(keys, commands, at, stop)


def appends(keys: dict[bytes, Value], batch: bytes, at: int) -> tuple[list[Any], int]:
    """The APPEND records of a batch that follow one another from ``at`` on, AT_ONCE at most: key, ms, seq and wire of
    each, and the offset after them. None if there is none that is whole. Their streams are fetched."""
    found: tuple[list[Any], int] = _prefetch.appends(keys, batch, at) if FETCHES else ([], at)
    return found
