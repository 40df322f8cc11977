"""``Content-Encoding`` of requests, undone within a limit."""

from __future__ import annotations

import zlib
from typing import Final

PORTION: Final = 4096  # bytes unpacked at a time: zlib copies what follows a member, and there may be thousands
KNOWN: Final = frozenset(("", "identity", "gzip", "x-gzip", "deflate"))


class ContentTooLongError(ValueError):
    """Unpacked it would be longer than allowed."""


def decompressed(data: bytes, encoding: str, most: int) -> bytes:
    """What was packed. encoding: one of KNOWN. TooLongError; ValueError: it is broken."""
    if encoding in ("", "identity"):
        return data
    if encoding == "deflate":
        bits = zlib.MAX_WBITS if data[:1] and data[0] & 15 == 8 else -zlib.MAX_WBITS  # some send it without its frame
    else:
        bits = zlib.MAX_WBITS | 16
    parts = []
    size = 0
    one = None  # a member that has begun
    for at in range(0, len(data), PORTION):
        left = data[at : at + PORTION]
        while left:
            one = one or zlib.decompressobj(bits)
            try:
                part = one.decompress(left, most - size + 1)
            except zlib.error as error:
                raise ValueError(f"not {encoding}: {error}") from error
            size += len(part)
            if size > most:
                raise ContentTooLongError(f"longer than {most} bytes when unpacked")
            parts.append(part)
            left = one.unused_data if one.eof else one.unconsumed_tail
            one = None if one.eof else one
    if one is not None:
        raise ValueError(f"not {encoding}: it ends too early")
    return b"".join(parts)
