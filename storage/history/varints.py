"""Columns of unsigned numbers as varints (LEB128): seven bits in each byte, lowest first; the last byte is below 128.

A number has at most 64 bits. Each has exactly one valid encoding, the shortest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from resp.errors import CorruptError
from storage.model.ids import MASK64

_MOST_BYTES: Final = 10


def encode(numbers: Iterable[int]) -> bytes:
    """Return the column of some numbers, each from 0 to 2**64 - 1."""
    column = bytearray()
    for number in numbers:
        while number > 127:
            column.append(number & 127 | 128)
            number >>= 7
        column.append(number)
    return bytes(column)


def decode(column: bytes, count: int) -> list[int]:
    """Return the numbers of a column. Raises CorruptError if it does not contain exactly ``count`` numbers."""
    if len(column) == count and column.isascii():  # no byte above 127: each is a number
        return list(column)
    numbers: list[int] = []
    number = shift = 0
    for byte in column:
        if byte < 128 and not shift:  # most of them
            numbers.append(byte)
            continue
        number |= (byte & 127) << shift
        if byte > 127:
            shift += 7
            if shift >= 7 * _MOST_BYTES:
                raise CorruptError("a number in a column is too long")
            continue
        if number > MASK64 or (shift and not byte):
            raise CorruptError("a number in a column is not encoded as specified")
        numbers.append(number)
        number = shift = 0
    if shift or len(numbers) != count:
        raise CorruptError(f"a column contains {len(numbers)} numbers, not {count}")
    return numbers
