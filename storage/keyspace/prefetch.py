"""Loads the memory that commands of many keys will touch into the processor's caches (in C, see ``_prefetch.c``).

Decision: with 100,000 streams, nearly every object that an append touches is a cache miss. Prefetching for a pipeline,
or for 64 records of a replay, lets the waits overlap. With fewer than 4096 keys, it would only cost time.
Decision: the C code reads the table of the dict directly. Otherwise it waits for slot, entry, and key of one key after
another. GETs of a million strings at a pipeline of 16 took twice as much CPU time.
"""

from __future__ import annotations

from typing import Any, Final

from storage.keyspace.values import Value

try:
    from storage.keyspace import _prefetch

    FETCHES = True
except ImportError:  # installed without a C compiler, or run from a checkout
    FETCHES = False

MANY: Final = 4096  # keys; with fewer, most objects are in the caches
AT_ONCE: Final = 64  # keys or records


def fetch(keys: dict[bytes, Value], commands: list[list[bytes]], at: int, stop: int) -> None:
    """Prefetch for at most AT_ONCE commands from ``at`` to ``stop`` - 1, whose first argument is a key."""
    if FETCHES and len(keys) >= MANY:
        _prefetch.fetch(keys, commands, at, stop)


def appends(keys: dict[bytes, Value], batch: bytes, at: int) -> tuple[list[Any], int]:
    """Parse at most AT_ONCE consecutive APPEND records from ``at`` on, and prefetch their streams.

    Returns key, ms, seq, and wire form of each, and the offset after them. The list is empty if there is no complete
    record.
    """
    found: tuple[list[Any], int] = _prefetch.appends(keys, batch, at) if FETCHES else ([], at)
    return found
