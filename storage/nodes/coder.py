"""Encodes and decodes the rows of coded nodes (see ``coded``). Decodes in C if ``_coded`` was compiled, otherwise in
Python. Encoding requires ``_coded``.
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Any, Final

from xxhash import xxh3_64_intdigest

from storage.nodes import codedrows

try:
    from storage.nodes import _coded

    CODES = True  # whether sealed nodes are coded if that makes them smaller
except ImportError:  # installed without a C compiler, or run from a checkout
    CODES = False

VERSION: Final = 2
HEAD: Final = 28  # bytes of the header before the checksum
BODY: Final = 32  # offset of the body
SUM: Final = Struct("<I")
LOWER: Final = (1 << 32) - 1
SMALL: Final = 4  # bytes per entry; zstd would need more, so it is not tried


def encode(base: int, ms: array[int], seq: array[int], ends: array[int], wire: bytes | bytearray) -> bytes | None:
    """Return entries as the blob of a coded node; None if they are not suitable."""
    if not CODES:
        return None
    if base or ms.typecode != "Q":
        ms = array("Q", [base + one for one in ms])
    if seq.typecode != "Q":
        seq = array("Q", seq)
    blob: bytes | None = _coded.encode(wire, ends, ms, seq)
    return None if blob is None else _summed(blob)


def encode_list(listed: list[Any]) -> tuple[bytes, int] | None:
    """Return the entries of an append list as encode() does, and the size of the largest one."""
    found: tuple[bytes, int] | None = _coded.encode_list(listed) if CODES else None
    return None if found is None else (_summed(found[0]), found[1])


def _summed(blob: bytes) -> bytes:
    return b"".join((blob[:HEAD], SUM.pack(checksum(blob)), blob[BODY:]))


def checksum(blob: bytes) -> int:
    """Return the checksum of a coded node."""
    whole: int = xxh3_64_intdigest(memoryview(blob)[BODY:], xxh3_64_intdigest(blob[:HEAD]))
    return whole & LOWER


def find(blob: bytes, ms: int, seq: int) -> int:
    """Return the index of the first entry with at least this ID; the number of entries if there is none.

    Like all functions below, it raises CorruptError if the blob is damaged.
    """
    found: int = _coded.find(blob, ms, seq) if CODES else codedrows.find(blob, ms, seq)
    return found


def read(blob: bytes, lo: int, hi: int) -> bytes:
    """Return the wire form of entries lo to hi - 1."""
    wire: bytes = _coded.read(blob, lo, hi) if CODES else codedrows.read(blob, lo, hi)
    return wire


def parts(blob: bytes, lo: int, hi: int) -> tuple[bytes, array[int]]:
    """Return the wire form of entries lo to hi - 1, and the end of each entry in it."""
    wire, ends = _coded.parts(blob, lo, hi) if CODES else codedrows.parts(blob, lo, hi)
    return wire, array("I", ends)


def times(blob: bytes, lo: int, hi: int) -> tuple[array[int], array[int]]:
    """Return the ms and the sequence numbers of entries lo to hi - 1."""
    ms, seq = _coded.times(blob, lo, hi) if CODES else codedrows.times(blob, lo, hi)
    return array("Q", ms), array("Q", seq)


def columns(blob: bytes, count: int, base: int) -> tuple[array[int], array[int]]:
    """Return the ms (minus ``base``, that of the first) and seq of all entries, as columns of a Node."""
    if not CODES:
        times_, seqs = times(blob, 0, count)
        offsets = [one - base for one in times_]
        highest = max(seqs)
        numbers = array("B" if highest < 1 << 8 else "I" if highest < 1 << 32 else "Q", seqs)
        return array("Q" if offsets[-1] >> 32 else "I", offsets), numbers
    first, second = _coded.columns(blob)
    widths = len(first) // count, len(second) // count
    return array("I" if widths[0] == 4 else "Q", first), array(
        "B" if widths[1] == 1 else "I" if widths[1] == 4 else "Q", second
    )


def raws(blob: bytes, lo: int, hi: int) -> list[bytes]:
    """Return the IDs of entries lo to hi - 1 as 16 bytes each, big-endian."""
    if CODES:
        found: list[bytes] = _coded.raws(blob, lo, hi)
        return found
    ms, seq = times(blob, lo, hi)
    return [one.to_bytes(8, "big") + other.to_bytes(8, "big") for one, other in zip(ms, seq, strict=True)]
