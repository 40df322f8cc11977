"""Numbers of INCRBYFLOAT and INCREX as Redis computes them on x86: 64 bits of mantissa, at most 17 decimals.

Python's floats have 53 bits, so 3.0e3 + 5.1 would be 3005.09999999999990905. This module rounds exact fractions
instead. A number is a Fraction, or None if it is infinite.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Final

_MANTISSA: Final = 64  # bits
_LOWEST: Final = -16445  # the exponent of the smallest number, as a power of two
_HIGHEST: Final = 16384  # numbers of at least this power of two are infinite
_DECIMAL_RANGE: Final = 5000  # a power of ten beyond the range of numbers, in both directions
_LONGEST: Final = 5 * 1024  # bytes of a number; a number of this length or more is refused
_DECIMALS: Final = 17

LARGEST: Final = Fraction((1 << _MANTISSA) - 1) * (1 << (_HIGHEST - _MANTISSA))  # the largest number

_NUMBER: Final = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INFINITE: Final = re.compile(rb"[+-]?inf(?:inity)?", re.IGNORECASE)


def parse(raw: bytes) -> Fraction | None:
    """Parse a number. Raises ValueError if ``raw`` is not a number, is too large, or would be rounded to 0. Unlike in
    Redis, hexadecimal numbers are refused."""
    if len(raw) >= _LONGEST:
        raise ValueError("too long")
    if _INFINITE.fullmatch(raw):
        return None
    if not _NUMBER.fullmatch(raw):
        raise ValueError("not a number")
    try:
        exact = Decimal(raw.decode("ascii"))
    except InvalidOperation:  # an exponent with many digits
        raise ValueError("out of range") from None
    if not exact:
        return Fraction(0)
    if not -_DECIMAL_RANGE < exact.adjusted() < _DECIMAL_RANGE:
        raise ValueError("out of range")
    number = _rounded(Fraction(exact))
    if not number:  # infinite or 0
        raise ValueError("out of range")
    return number


def add(a: Fraction | None, b: Fraction | None) -> Fraction | None:
    """Return the rounded sum; None if it is infinite or not a number."""
    return None if a is None or b is None else _rounded(a + b)


def text(number: Fraction) -> bytes:
    """Return the number with up to 17 decimals, without trailing zeros."""
    scaled = round(number * 10**_DECIMALS)
    digits = str(Decimal(abs(scaled))).rjust(_DECIMALS + 1, "0")  # str(int) has a limit on the number of digits
    whole, decimals = digits[:-_DECIMALS], digits[-_DECIMALS:].rstrip("0")
    sign = "-" if number < 0 and (decimals or whole != "0") else ""
    return f"{sign}{whole}.{decimals}".rstrip(".").encode()


def _rounded(number: Fraction) -> Fraction | None:
    """Round to the nearest representable number, ties to even; None for infinity."""
    if not number:
        return number
    size = abs(number)
    # the power of two of the highest bit, or the next one
    power = size.numerator.bit_length() - size.denominator.bit_length()
    if size < _two_to(power):
        power -= 1
    unit = _two_to(max(power - _MANTISSA + 1, _LOWEST))
    nearest = round(number / unit) * unit
    return nearest if abs(nearest) < _two_to(_HIGHEST) else None


def _two_to(power: int) -> Fraction:
    return Fraction(1 << power) if power >= 0 else Fraction(1, 1 << -power)
