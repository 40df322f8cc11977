"""Staged entries: in wire form but without IDs. Publishing assigns the IDs.

    staged    *5 CRLF                      CRLF $6 CRLF sensor CRLF $2 CRLF 01 CRLF ...
    written   *5 CRLF $15 CRLF 1486475519747.0 CRLF $6 CRLF sensor CRLF $2 CRLF 01 CRLF ...

The ID is inserted between the first two CRLFs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from storage.model.ids import MASK64

CHUNK_BYTES: Final = 300  # memory of a chunk's objects
LONGEST_ID: Final = 46  # size of an ID as a bulk string without its last CRLF: $41 CRLF and two 20-digit numbers

_LAST_DIGITS: Final = [b"%03d" % n for n in range(1000)]


class StagedChunk:
    """Staged entries for one key."""

    __slots__ = ("bare", "count", "dirty", "key", "largest", "size", "sizes")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.bare: bytes | bytearray = b""  # joined; a bytearray if it has grown and is not full
        self.sizes = array("I")  # size of each entry
        self.largest = 0  # the largest size
        self.count = 0  # number of entries
        self.size = 0  # len(bare), readable without access to ``bare``, which may not be in a processor cache
        self.dirty = True  # changed since the last capture

    @classmethod
    def of(cls, key: bytes, sizes: array[int], bare: bytes) -> StagedChunk:
        """Return a complete chunk of at least one entry."""
        piece = cls(key)
        piece.extend(sizes, bare)
        return piece

    def __len__(self) -> int:
        return self.count

    def extend(self, sizes: array[int], bare: bytes) -> None:
        """Add at least one entry."""
        if not self.sizes:
            self.bare, self.sizes = bare, sizes
        else:
            if isinstance(self.bare, bytes):
                self.bare = bytearray(self.bare)
            self.bare += bare
            self.sizes.extend(sizes)
        self.largest = max(self.largest, max(sizes))
        self.count += len(sizes)
        self.size += len(bare)
        self.dirty = True

    def entries(self) -> list[bytes]:
        """Return each entry without its ID."""
        at, found, bare = 0, [], bytes(self.bare)
        for size in self.sizes:
            found.append(bare[at : at + size])
            at += size
        return found


def bulk_ids(ms: int, seq: int, count: int) -> list[bytes]:
    """Return ms.seq, ms.seq + 1 ... as bulk strings, each after a CRLF and without a final one.

    Raises ValueError if a sequence number would reach 2**64.
    """
    if seq + count - 1 > MASK64:
        raise ValueError("sequence numbers end at 2**64")
    stem = b"%d." % ms
    ids: list[bytes] = []
    while count:
        digits = len(str(seq))
        head = b"\r\n$%d\r\n%b" % (len(stem) + digits, stem)
        thousands, low = divmod(seq, 1000)
        if thousands:
            some = min(count, 1000 - low)
            head = b"%b%d" % (head, thousands)
            ids += [head + digits3 for digits3 in _LAST_DIGITS[low : low + some]]
        else:
            some = min(count, 10**digits - seq)
            ids += [b"%b%d" % (head, number) for number in range(seq, seq + some)]
        seq += some
        count -= some
    return ids


def write(ms: int, seq: int, bares: Sequence[bytes]) -> list[bytes]:
    """Return staged entries with the IDs ms.seq, ms.seq + 1 ..."""
    ids = bulk_ids(ms, seq, len(bares))
    return [bare.replace(b"\r\n", entry_id, 1) for bare, entry_id in zip(bares, ids, strict=True)]
