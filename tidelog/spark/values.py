"""Columns of bytes to columns of a type, and which values did not fit.

Rule 1: a value fits if Arrow's cast accepts it, except for those that ``_refuse`` names.
Rule 2: if all values of a batch fit, there is one cast. If not, the batch is halved until each value that does not fit
        is alone: a few bad values cost little, and the result is the same as if each value were cast alone.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_FINER: Final = r"(:\d\d\.\d{6})\d+"  # a time with more digits than microseconds have
POSSIBLE: Final = (
    "byte", "short", "int", "long", "float", "double", "decimal", "boolean", "string", "binary", "date",
    "timestamp", "timestamp_ntz",
)  # fmt: skip


def fits(wanted: pa.DataType) -> bool:
    """Whether a field can have this type."""
    known = (
        pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_string,
        pa.types.is_binary, pa.types.is_date32, pa.types.is_timestamp,
    )  # fmt: skip
    return any(is_kind(wanted) for is_kind in known)


def convert(array: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, list[int]]:
    """A binary column as ``wanted``, null where a value is missing or does not fit; and the rows that do not fit."""
    if wanted == pa.binary():
        return array, []
    fitting = _all_fit(array, wanted)
    if fitting is not None:
        return fitting, []
    wrong: list[int] = []
    text = pa.concat_arrays(_cast(array, pa.string(), 0, wrong)) if len(array) else array.cast(pa.string())
    if wanted == pa.string():
        return text, wrong
    # An empty value is null, not wrong.
    text = pc.replace_with_mask(text, pc.fill_null(pc.equal(text, ""), False), pa.scalar(None, pa.string()))
    refused = _refuse(text, wanted)
    if refused is not None:
        wrong += pc.indices_nonzero(refused).to_pylist()
        text = pc.replace_with_mask(text, refused, pa.scalar(None, pa.string()))
    if not len(text):
        return text.cast(wanted), wrong
    made = pa.concat_arrays(_cast(text, wanted, 0, wrong))
    return made, sorted(wrong)


def _all_fit(array: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    """The whole column in one cast, which is the usual case; None if a value may not fit."""
    try:
        text = array.cast(pa.string())
        made = _whole(text, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return made if _refuse(text, wanted) is None else None


def _refuse(text: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    """A mask of texts that Arrow accepts and Spark does not: hexadecimal integers. None if there are none."""
    if not pa.types.is_integer(wanted):
        return None
    letters = text.buffers()[2]  # the bytes of all values: searching them costs next to nothing
    if letters is None or not any(letter in letters.to_pybytes() for letter in (b"x", b"X")):
        return None
    mask = pc.fill_null(pc.match_substring(text, "x", ignore_case=True), False)
    return mask if pc.any(mask).as_py() else None


def _cast(array: pa.Array, wanted: pa.DataType, base: int, wrong: list[int]) -> list[pa.Array]:
    """The array in pieces of the wanted type. Appends the rows that do not fit, counted from ``base``, to ``wrong``."""
    try:
        return [_whole(array, wanted)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(array) == 1:
            wrong.append(base)
            return [pa.nulls(1, wanted)]
        half = len(array) // 2
        return _cast(array[:half], wanted, base, wrong) + _cast(array[half:], wanted, base + half, wrong)


def _whole(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """One cast. ArrowInvalid if any value does not fit."""
    if pa.types.is_timestamp(wanted):
        return _timestamps(array, wanted)
    if pa.types.is_decimal(wanted):
        return _decimals(array, wanted)
    return array.cast(wanted)


def _timestamps(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """ISO 8601; without a zone it is UTC. For timestamp_ntz, a value with a zone does not fit.

    Spark has microseconds: what .NET, Go and Java write beyond them is cut off, as Spark's own cast does.
    """
    try:
        return _micros(array, wanted)
    except pa.ArrowInvalid:
        if not pc.any(pc.match_substring_regex(array, _FINER)).as_py():
            raise
        return _micros(pc.replace_substring_regex(array, _FINER, r"\1"), wanted)


def _micros(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    try:
        return array.cast(pa.timestamp("us")).cast(wanted)
    except pa.ArrowInvalid:
        if wanted.tz is None:
            raise
        return array.cast(pa.timestamp("us", "UTC")).cast(wanted)


def _decimals(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Digits beyond the scale are rounded half up, as Spark does; too many digits before the point don't fit."""
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid:
        wide = array.cast(pa.decimal256(76, 38))
        return pc.round(wide, wanted.scale, "half_towards_infinity").cast(wanted)
