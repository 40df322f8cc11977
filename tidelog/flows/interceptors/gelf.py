"""``gelf``: messages of Graylog's format that come in several datagrams. What comes in one passes as it is.

     0      2          10     11      12
    +------+-----------+------+-------+------
    | 1e0f | id        | seq  | count | part of the message
    +------+-----------+------+-------+------

seq is 0 .. count - 1, count at most 128. All parts must come within 5 s. A whole message may be compressed: put
``decompress`` behind this.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidelog.flows.interceptors.base import Bad, NoOptions

MAGIC: Final = b"\x1e\x0f"
PARTS: Final = 128  # of one message
HEADER: Final = 12  # bytes
WAIT: Final = 5.0  # s for all parts of a message
OPEN: Final = 1024  # messages of which parts are missing; with one more the oldest is dropped


@dataclass
class _Open:
    since: float  # s
    count: int
    size: int = 0  # bytes
    parts: dict[int, bytes] = field(default_factory=dict)


class Gelf:
    """Its memory is limited by OPEN, and by 64 messages of the greatest size."""

    Options = NoOptions

    def __init__(self, options: NoOptions, most: int, clock: Callable[[], float] = time.monotonic) -> None:  # noqa: ARG002
        self._most = most
        self._clock = clock
        self._open: dict[bytes, _Open] = {}  # oldest first
        self._size = 0  # bytes of all parts

    def feed(self, data: bytes) -> list[bytes]:
        if data[:2] != MAGIC:
            return [data]
        if len(data) < HEADER:
            return [Bad.of(data, "a part of a GELF message that is shorter than its header")]
        key, seq, count = data[2:10], data[10], data[11]
        if not 1 <= count <= PARTS or seq >= count:
            return [Bad.of(data, f"part {seq} of {count} of a GELF message: there are 1 to {PARTS}, the first is 0")]
        now = self._clock()
        self._expire(now)
        one = self._open.get(key)
        if one is None:
            self._room()
            one = self._open[key] = _Open(now, count)
        if one.count != count:
            self._drop(key)
            return [Bad.of(data, f"part {seq} of {count} of a GELF message that began as {one.count} parts")]
        if seq not in one.parts:
            one.parts[seq] = data[HEADER:]
            one.size += len(data) - HEADER
            self._size += len(data) - HEADER
        if one.size > self._most:
            self._drop(key)
            return [Bad.of(data, f"a GELF message of more than {self._most} bytes")]
        if len(one.parts) < count:
            while self._size > 64 * self._most:
                self._drop(next(iter(self._open)))
            return []
        self._drop(key)
        return [b"".join(one.parts[each] for each in range(count))]

    def _expire(self, now: float) -> None:
        for key in [key for key, one in self._open.items() if now - one.since > WAIT]:
            self._drop(key)

    def _room(self) -> None:
        while len(self._open) >= OPEN:
            self._drop(next(iter(self._open)))

    def _drop(self, key: bytes) -> None:
        self._size -= self._open.pop(key).size

    def end(self) -> list[bytes]:
        """A datagram's end: parts of messages stay until the others come."""
        return []
