"""``gelf``: joins messages in Graylog's format that were split into several datagrams. Other datagrams pass unchanged.

     0      2          10     11      12
    +------+-----------+------+-------+------
    | 1e0f | id        | seq  | count | part of the message
    +------+-----------+------+-------+------

seq is 0 .. count - 1, and count is at most 128. All parts must arrive within 5 s. If messages are compressed, add
``decompress`` after this preprocessor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidelog.flows.interceptors.base import BadMessage
from tidelog.options.structs import Struct

MAGIC: Final = b"\x1e\x0f"
PARTS: Final = 128  # maximum number of parts of a message
HEADER: Final = 12  # bytes
WAIT: Final = 5.0  # s in which all parts of a message must arrive
OPEN: Final = 1024  # maximum number of incomplete messages; beyond it, the oldest is dropped


@dataclass
class _Open:
    since: float  # s
    count: int
    size: int = 0  # bytes
    parts: dict[int, bytes] = field(default_factory=dict)


class GelfChunks:
    """Joins the parts of messages. Memory is limited to OPEN messages and to 64 messages of the maximum size."""

    Options = Struct

    def __init__(self, _: Struct, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._open: dict[bytes, _Open] = {}  # oldest first
        self._size = 0  # bytes of all parts

    def feed(self, data: bytes) -> list[bytes]:
        if data[:2] != MAGIC:
            return [data]
        if len(data) < HEADER:
            return [BadMessage.of(data, "a part of a GELF message is shorter than its header")]
        key, seq, count = data[2:10], data[10], data[11]
        if not 1 <= count <= PARTS or seq >= count:
            text = f"part {seq} of {count} of a GELF message: a message has 1 to {PARTS} parts, numbered from 0"
            return [BadMessage.of(data, text)]
        now = self._clock()
        for late in [each for each, one in self._open.items() if now - one.since > WAIT]:
            self._drop(late)
        one = self._open.get(key)
        if one is None:
            while len(self._open) >= OPEN:
                self._drop(next(iter(self._open)))
            one = self._open[key] = _Open(now, count)
        if one.count != count:
            self._drop(key)
            return [BadMessage.of(data, f"part {seq} of {count} of a GELF message whose first part said {one.count}")]
        if seq not in one.parts:
            one.parts[seq] = data[HEADER:]
            one.size += len(data) - HEADER
            self._size += len(data) - HEADER
        if one.size > self._most:
            self._drop(key)
            return [BadMessage.of(data, f"a GELF message of more than {self._most} bytes")]
        if len(one.parts) < count:
            while self._size > 64 * self._most:
                self._drop(next(iter(self._open)))
            return []
        self._drop(key)
        return [b"".join(one.parts[each] for each in range(count))]

    def _drop(self, key: bytes) -> None:
        self._size -= self._open.pop(key).size

    def end(self) -> list[bytes]:
        """Return nothing: parts are kept until the others arrive in later datagrams."""
        return []
