"""Decodes coded nodes in Python: for servers that were installed without a C compiler, and for tests of ``_coded.c``.

See ``coded`` for the format. Invalid blobs raise CorruptError; entry numbers out of range raise IndexError.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import Final

from resp.errors import CorruptError

HEADER: Final = Struct("<2sBBIIQQI")
HEAD: Final = Struct("<BBBBQ")
TEXTS: Final = Struct("<HI")
NUMBERS: Final = Struct("<BBq")
TAIL: Final = bytes(8)
MOST_COLUMNS: Final = 64
MOST_TEXTS: Final = 2048  # maximum texts of all columns together
MOST_ENTRIES: Final = 65536
MOST_BITS: Final = 56  # maximum bits of a field
MOST_BASE: Final = 10**18


class Texts:
    """A column of a few repeated texts."""

    __slots__ = ("bits", "texts")

    def __init__(self, bits: int, texts: list[bytes]) -> None:
        self.bits = bits
        self.texts = texts

    def value(self, code: int) -> bytes:
        if code >= len(self.texts):
            raise CorruptError("a coded node has a code that stands for nothing")
        return self.texts[code]


class Numbers:
    """A column of decimals that all have the same number of digits after the point."""

    __slots__ = ("base", "bits", "decimals", "minus", "pad")

    def __init__(self, bits: int, minus: int, decimals: int, pad: int, base: int) -> None:
        self.bits = bits
        self.minus = minus  # 1: code 0 is minus zero, and numbers start at code 1
        self.decimals = decimals
        self.pad = pad  # minimum number of digits before the point
        self.base = base

    def value(self, code: int) -> bytes:
        minus_zero = self.minus and not code
        number = 0 if minus_zero else self.base + code - self.minus
        digits = b"%0*d" % (self.pad + self.decimals, abs(number))
        sign = b"-" if number < 0 or minus_zero else b""
        if not self.decimals:
            return sign + digits
        return b"%b%b.%b" % (sign, digits[: -self.decimals], digits[-self.decimals :])


class Rows:
    """An opened blob."""

    __slots__ = ("base", "columns", "count", "counted", "ms", "seqs", "rows", "wire")

    def __init__(self, blob: bytes) -> None:
        try:
            self._open(blob)
        except (StructError, IndexError) as error:
            raise CorruptError("a coded node is cut short") from error

    def _open(self, blob: bytes) -> None:
        _, _, how, self.count, self.wire, self.base, first_seq, _ = HEADER.unpack_from(blob)
        ms_bits, seq_bits, columns, zero, seq_base = HEAD.unpack_from(blob, HEADER.size)
        self.counted = not how & 1
        if how > 1 or zero or not 0 < self.count <= MOST_ENTRIES:
            raise CorruptError("a coded node has an impossible header")
        if ms_bits > MOST_BITS or seq_bits > MOST_BITS or not 0 < columns <= MOST_COLUMNS:
            raise CorruptError("a coded node has impossible columns")
        if self.base >> 63 or seq_base >> 63 or (self.counted and (first_seq >> 63 or seq_bits)):
            raise CorruptError("a coded node has impossible IDs")
        self.columns: list[Texts | Numbers] = []
        at = HEADER.size + HEAD.size
        for _ in range(columns):
            at = self._open_column(blob, at)
        widths = [ms_bits, seq_bits, *(column.bits for column in self.columns)]
        bits = sum(widths)
        size = (self.count * bits + 7) // 8
        if len(blob) - at != size + len(TAIL):
            raise CorruptError("a coded node has not as many rows as entries")
        packed = int.from_bytes(blob[at : at + size], "little")
        self.rows: list[list[int]] = []  # the codes of each entry
        for _ in range(self.count):
            row, whole = packed & (1 << bits) - 1, []
            packed >>= bits
            for width in widths:
                whole.append(row & (1 << width) - 1)
                row >>= width
            self.rows.append(whole)
        self.ms = [row[0] for row in self.rows]  # minus the ms of the first entry
        if self.ms[0] or (not self.counted and seq_base + self.rows[0][1] != first_seq):
            raise CorruptError("a coded node begins with another entry")
        self.seqs: list[int] = []
        for at, ms in enumerate(self.ms):
            if not self.counted:
                self.seqs.append(seq_base + self.rows[at][1])
            elif at and ms == self.ms[at - 1]:
                self.seqs.append(self.seqs[-1] + 1)
            else:
                self.seqs.append(0 if at else first_seq)

    def _open_column(self, blob: bytes, at: int) -> int:
        """Add the column at ``at`` and return the offset of its end."""
        kind, bits = blob[at], blob[at + 1]
        at += 2
        if bits > MOST_BITS or kind > 2:
            raise CorruptError("a coded node has impossible columns")
        if kind:
            decimals, pad, base = NUMBERS.unpack_from(blob, at)
            if decimals > 18 or not 0 < pad <= 18 or abs(base) > MOST_BASE:
                raise CorruptError("a coded node has impossible columns")
            self.columns.append(Numbers(bits, kind - 1, decimals, pad, base))
            return at + NUMBERS.size
        count, size = TEXTS.unpack_from(blob, at)
        at += TEXTS.size
        known = sum(len(column.texts) for column in self.columns if isinstance(column, Texts))
        sizes = blob[at : at + count]
        at += count
        if not count or known + count > MOST_TEXTS or sum(sizes) != size or at + size > len(blob):
            raise CorruptError("a coded node has impossible columns")
        texts = []
        for length in sizes:
            texts.append(blob[at : at + length])
            at += length
        self.columns.append(Texts(bits, texts))
        return at

    def entries(self, lo: int, hi: int) -> list[bytes]:
        self.check(lo, hi)
        head = b"*%d" % (len(self.columns) + 1)
        made = []
        for at in range(lo, hi):
            words = [b"%d.%d" % (self.base + self.ms[at], self.seqs[at])]
            words += [column.value(code) for column, code in zip(self.columns, self.rows[at][2:], strict=True)]
            made.append(b"\r\n".join([head, *(b"$%d\r\n%b" % (len(word), word) for word in words), b""]))
        size = sum(map(len, made))
        if size > self.wire or (hi - lo == self.count and size != self.wire):
            raise CorruptError("a coded node has not as many bytes as it says")
        return made

    def check(self, lo: int, hi: int) -> None:
        if not 0 <= lo <= hi <= self.count:
            raise IndexError("no such entries")
        if any(self.ms[at] < self.ms[at - 1] for at in range(lo + 1, hi)):
            raise CorruptError("a coded node has IDs that do not ascend")


def find(blob: bytes, ms: int, seq: int, /) -> int:
    """Return the index of the first entry with at least this ID; the number of entries if there is none."""
    rows = Rows(blob)
    if ms < rows.base:
        return 0
    ms -= rows.base
    at = bisect_left(rows.ms, ms)
    if not seq or at == rows.count or rows.ms[at] != ms:
        return at
    return bisect_left(rows.seqs, seq, at, bisect_left(rows.ms, ms + 1, at))


def parts(blob: bytes, lo: int, hi: int, /) -> tuple[bytes, bytes]:
    """Return the wire form of entries lo to hi - 1, and the end of each as an array of u32, as bytes."""
    entries, ends, size = Rows(blob).entries(lo, hi), array("I"), 0
    for entry in entries:
        size += len(entry)
        ends.append(size)
    return b"".join(entries), ends.tobytes()


def read(blob: bytes, lo: int, hi: int, /) -> bytes:
    """Return the wire form of entries lo to hi - 1."""
    return b"".join(Rows(blob).entries(lo, hi))


def times(blob: bytes, lo: int, hi: int, /) -> tuple[bytes, bytes]:
    """Return the ms and the sequence numbers of entries lo to hi - 1, as arrays of u64, as bytes."""
    rows = Rows(blob)
    rows.check(lo, hi)
    return array("Q", [rows.base + ms for ms in rows.ms[lo:hi]]).tobytes(), array("Q", rows.seqs[lo:hi]).tobytes()
