"""Functions of numbers."""

from __future__ import annotations

import math

from tidelog.flows.expressions.declare import INTEGER, NUMBER, SCALAR, STRING, Kind, function, number

_PLACES = Kind("a whole number", INTEGER.types, lambda given: max(-400, min(400, INTEGER.convert(given))))  # type: ignore[misc]


@function(NUMBER, _PLACES, example="round(12.345, 1)", result=12.3)
def round_(number: float, places: int | None = None) -> float:
    """Rounds to this many decimal places, by default to a whole number. A number that is exactly between two results is
    rounded to the even one: ``round(2.5)`` is 2.
    """
    return round(number, places)


@function(NUMBER, NUMBER, example="pow(2, 10)", result=1024)
def pow_(base: float, exponent: float) -> float:
    """Raises a number to a power."""
    whole = isinstance(base, int) and isinstance(exponent, int) and exponent >= 0
    if whole and abs(base) > 1 and exponent > 64:
        raise ValueError("the result has more than 64 bits")
    found = base**exponent if whole else math.pow(base, exponent)
    return number(found)


@function(NUMBER, example="sqrt(2.25)", result=1.5)
def sqrt(number: float) -> float:
    """Returns the square root."""
    return math.sqrt(number)


@function(NUMBER, NUMBER, example="log(1000, 10)", result=3.0)
def log(number: float, base: float | None = None) -> float:
    """Returns the logarithm to a base, by default the natural one."""
    if base == 10:
        return math.log10(number)
    return math.log(number) if base is None else math.log(number, base)


@function(NUMBER, example="exp(0)", result=1.0)
def exp(number: float) -> float:
    """Returns e raised to a power."""
    return math.exp(number)


@function(SCALAR, example="to_integer('42')", result=42)
def to_integer(value: str | float) -> int:
    """Converts a string of digits to a whole number, and removes the decimal places of a number. Unlike ``to_number``,
    it fails for other strings.
    """
    if isinstance(value, str) and len(value) > 20:
        raise ValueError(f"a string of {len(value)} characters has more than 64 bits")
    return int(number(int(value)))


@function(STRING, INTEGER, example="parse_integer('ff', 16)", result=255)
def parse_integer(string: str, base: int | None = None) -> int:
    """Converts the digits of a number in a base from 2 to 36, by default 10."""
    if len(string) > 70:
        raise ValueError(f"a string of {len(string)} characters has more than 64 bits")
    return int(number(int(string, 10 if base is None else base)))


_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@function(SCALAR, example="to_boolean('yes')", result=True)
def to_boolean(value: str | float) -> bool:
    """Converts the strings true, yes, on, 1, and false, no, off, 0, in any case. A number is false if it is 0."""
    if isinstance(value, str):
        if (found := _WORDS.get(value.strip().lower())) is None:
            raise ValueError(f"{value!r:.100} is not one of {', '.join(_WORDS)}")
        return found
    return bool(value)


@function(NUMBER, NUMBER, NUMBER, example="clamp(120, 0, 100)", result=100)
def clamp(number: float, least: float, most: float) -> float:
    """Returns the number, or the limit that it exceeds."""
    if least > most:
        raise ValueError(f"the limits {least} and {most} are in the wrong order")
    return max(least, min(most, number))
