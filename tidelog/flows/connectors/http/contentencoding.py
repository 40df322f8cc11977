"""Decompresses request bodies (``Content-Encoding``), up to a size limit."""

from __future__ import annotations

from typing import Final

from tidelog.flows.interceptors.compression import DecompressOptions, Gunzip, Inflate

_DECOMPRESS: Final = {"gzip": Gunzip, "x-gzip": Gunzip, "deflate": Inflate}
KNOWN: Final = frozenset(("", "identity", *_DECOMPRESS))


def decompressed(data: bytes, encoding: str, most: int) -> bytes:
    """Return the decompressed body. encoding: one of KNOWN.

    Raises DecompressedTooLongError if it is longer than ``most``, and ValueError if it is not valid.
    """
    kind = _DECOMPRESS.get(encoding)
    return data if kind is None else kind(DecompressOptions(), most).message(data)
