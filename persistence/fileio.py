"""Reads and writes that continue until everything is done: one call of the system transfers at most 2 GiB."""

from __future__ import annotations

import os
from collections.abc import Sequence


def write_parts(fd: int, parts: Sequence[bytes], at: int, size: int) -> None:
    """Write parts of ``size`` bytes in total, one after another, from offset ``at`` on. Raises OSError."""
    done = os.pwritev(fd, parts, at)
    if done != size:
        rest = memoryview(b"".join(parts))
        while done < size:
            done += os.pwrite(fd, rest[done:], at + done)


def read_part(fd: int, length: int, at: int) -> bytes:
    """Return ``length`` bytes from offset ``at`` on; fewer if the file ends before. Raises OSError."""
    raw = os.pread(fd, length, at)
    while 0 < len(raw) < length:
        more = os.pread(fd, length - len(raw), at + len(raw))
        if not more:
            break
        raw += more
    return raw
