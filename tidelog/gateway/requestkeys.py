"""``RequestKeys``: the entries for which this gateway has used each ``Idempotency-Key``.

The server compares nothing: it remembers the ID of each entry of a request, so it would append the entries by which a
repetition is longer than the first request. The gateway therefore refuses a repetition with other entries before it is
sent. After another gateway has served the first request, ``appending`` detects the difference afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

import msgspec

from tidelog.gateway.entryjson import Flat
from tidelog.gateway.errors import ProblemError

REMEMBERED: Final = 100.0  # s, the default of stream-idmp-duration
KEYS: Final = 10_000  # keys that are remembered; about 2 MiB


class RequestKeys:
    """The newest keys. ``clock`` returns seconds that only increase."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._known: dict[bytes, tuple[float, bytes]] = {}  # by user, stream, and key: the time, digest of the entries

    @contextmanager
    def used(self, user: str, stream: bytes, key: str, entries: list[Flat]) -> Iterator[None]:
        """Remember the entries unless the request in the context fails. Raises ProblemError if the key had others."""
        name, digest, now = _digest((user, stream, key)), _digest(entries), self._clock()
        known = self._known.get(name)
        if known is not None and now - known[0] < REMEMBERED:
            if known[1] != digest:
                raise reused(key)
            yield
            return
        self._known.pop(name, None)
        if len(self._known) >= KEYS:
            del self._known[next(iter(self._known))]
        made = self._known[name] = now, digest
        try:
            yield
        except ProblemError as problem:  # with 503, the entries may have been appended
            if problem.status != 503 and self._known.get(name) is made:
                del self._known[name]
            raise


def reused(key: str) -> ProblemError:
    """Return the error of a request whose key belongs to other entries."""
    text = f"Idempotency-Key {key!r} was used for a request with other entries. Use a new key."
    return ProblemError(422, "key-reused", text)


def _digest(value: object) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(value)).digest()
