"""Decompresses request bodies (``Content-Encoding``), up to a size limit."""

from __future__ import annotations

import zlib
from typing import Final

PORTION: Final = 4096  # bytes decompressed at a time: zlib copies the rest after a member, and there can be thousands
KNOWN: Final = frozenset(("", "identity", "gzip", "x-gzip", "deflate"))


class ContentTooLongError(ValueError):
    """The decompressed body exceeds the limit."""


def decompressed(data: bytes, encoding: str, most: int) -> bytes:
    """Return the decompressed body. encoding: one of KNOWN.

    Raises ContentTooLongError if it is longer than ``most``, and ValueError if it is not valid.
    """
    if encoding in ("", "identity"):
        return data
    if encoding == "deflate":
        bits = zlib.MAX_WBITS if data[:1] and data[0] & 15 == 8 else -zlib.MAX_WBITS  # some clients omit the header
    else:
        bits = zlib.MAX_WBITS | 16
    parts = []
    size = 0
    one = None  # the current member
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
                raise ContentTooLongError(f"longer than {most} bytes when decompressed")
            parts.append(part)
            left = one.unused_data if one.eof else one.unconsumed_tail
            one = None if one.eof else one
    if one is not None:
        raise ValueError(f"not {encoding}: it ends too early")
    return b"".join(parts)
