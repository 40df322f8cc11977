"""Converts columns of bytes to typed columns, and finds invalid values.

Rule 1: a value is valid if Arrow's cast accepts it, except for those that ``_refuse`` names.
Rule 2: if all values of a batch are valid, there is one cast. Otherwise the batch is halved until each invalid value is
        alone. A few invalid values are cheap, and the result is the same as with one cast per value.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_FINER: Final = r"(:\d\d\.\d{6})\d+"  # a time with more digits than microseconds
POSSIBLE: Final = (
    "byte", "short", "int", "long", "float", "double", "decimal", "boolean", "string", "binary", "date",
    "timestamp", "timestamp_ntz",
)  # fmt: skip

_KINDS: Final = {
    "int": pa.types.is_integer, "float": pa.types.is_floating, "decimal": pa.types.is_decimal,
    "bool": pa.types.is_boolean, "str": pa.types.is_string, "bytes": pa.types.is_binary, "date": pa.types.is_date32,
    "datetime": pa.types.is_timestamp, "json": pa.types.is_nested, "null": pa.types.is_null,
}  # fmt: skip


def kind_of(kind: pa.DataType) -> str:
    """Return the kind of field (tidelog.codecs.recordtypes) for a column of this type.

    "json" for nested types, "null" for no type; "" if an entry can't contain it.
    """
    return next((what for what, is_kind in _KINDS.items() if is_kind(kind)), "")


def fits(wanted: pa.DataType) -> bool:
    """Return whether a field can have this type."""
    return kind_of(wanted) not in ("", "json", "null")


def convert(array: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Convert a binary column, with null for missing and invalid values. Return the column and the invalid rows."""
    if wanted == pa.binary():
        return array, []
    fitting = _all_fit(array, wanted)
    if fitting is not None:
        return fitting, []
    wrong: list[int] = []
    text = pa.concat_arrays(_cast(array, pa.string(), 0, wrong)) if len(array) else array.cast(pa.string())
    if wanted == pa.string():
        return text, wrong
    # An empty value is null, not invalid.
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
    """Convert the whole column in one cast, which is the usual case; None if a value may be invalid."""
    try:
        text = array.cast(pa.string())
        made = _whole(text, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return made if _refuse(text, wanted) is None else None


def _refuse(text: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    """Return a mask of texts that Arrow accepts and Spark does not: hexadecimal integers. None if there are none."""
    if not pa.types.is_integer(wanted):
        return None
    letters = text.buffers()[2]  # the bytes of all values: searching them is almost free
    if letters is None or not any(letter in letters.to_pybytes() for letter in (b"x", b"X")):
        return None
    mask = pc.fill_null(pc.match_substring(text, "x", ignore_case=True), False)
    return mask if pc.any(mask).as_py() else None


def _cast(array: pa.Array, wanted: pa.DataType, base: int, wrong: list[int]) -> list[pa.Array]:
    """Convert the array in pieces. Appends the invalid rows, counted from ``base``, to ``wrong``."""
    try:
        return [_whole(array, wanted)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(array) == 1:
            wrong.append(base)
            return [pa.nulls(1, wanted)]
        half = len(array) // 2
        return _cast(array[:half], wanted, base, wrong) + _cast(array[half:], wanted, base + half, wrong)


def _whole(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert in one cast. Raises ArrowInvalid if any value is invalid."""
    if pa.types.is_timestamp(wanted):
        return _timestamps(array, wanted)
    if pa.types.is_decimal(wanted):
        return _decimals(array, wanted)
    return array.cast(wanted)


def _timestamps(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Parse ISO 8601; a time without a zone is UTC. For timestamp_ntz, a value with a zone is invalid.

    Spark has microseconds. Further digits, as .NET, Go, and Java write them, are truncated, as in Spark's own cast.
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
    """Round digits beyond the scale half up, as Spark does. Too many digits before the point are invalid."""
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid:
        wide = array.cast(pa.decimal256(76, 38))
        return pc.round(wide, wanted.scale, "half_towards_infinity").cast(wanted)
