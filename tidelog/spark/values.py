"""A column of bytes to a column of a type, and which of them did not fit.

Rule 1: what a text must look like is what Arrow's cast accepts, with the exceptions that stand in ``_refuse``.
Rule 2: a batch in which all fit is one cast. Where one doesn't, the batch is halved until the culprits are alone, so
        that a few bad values cost little, and the result is the same as if each had been cast on its own.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

POSSIBLE: Final = (
    "byte", "short", "int", "long", "float", "double", "decimal", "boolean", "string", "binary", "date",
    "timestamp", "timestamp_ntz",
)  # fmt: skip


def fits(wanted: pa.DataType) -> bool:
    """Whether values can be of this type."""
    known = (
        pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_string,
        pa.types.is_binary, pa.types.is_date32, pa.types.is_timestamp,
    )  # fmt: skip
    return any(is_kind(wanted) for is_kind in known)


def convert(array: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, list[int]]:
    """A binary column as ``wanted``, null where a value is missing or did not fit; places of the latter, ascending."""
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
    """The whole column at once, as it nearly always goes; None if something in it needs a closer look."""
    try:
        text = array.cast(pa.string())
        made = _whole(text, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return made if _refuse(text, wanted) is None else None


def _refuse(text: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    """Where a text is one that Arrow would take, and that is no number to anybody else: hexadecimal integers."""
    if not pa.types.is_integer(wanted):
        return None
    letters = text.buffers()[2]  # of all values, one behind the other: a look at them costs next to nothing
    if letters is None or not any(letter in letters.to_pybytes() for letter in (b"x", b"X")):
        return None
    mask = pc.fill_null(pc.match_substring(text, "x", ignore_case=True), False)
    return mask if pc.any(mask).as_py() else None


def _cast(array: pa.Array, wanted: pa.DataType, base: int, wrong: list[int]) -> list[pa.Array]:
    """The array in pieces of the wanted type; appends the places (from ``base``) of what does not fit to ``wrong``."""
    try:
        return [_whole(array, wanted)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(array) == 1:
            wrong.append(base)
            return [pa.nulls(1, wanted)]
        half = len(array) // 2
        return _cast(array[:half], wanted, base, wrong) + _cast(array[half:], wanted, base + half, wrong)


def _whole(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """One cast. ArrowInvalid if one value does not fit."""
    if pa.types.is_timestamp(wanted):
        return _timestamps(array, wanted)
    if pa.types.is_decimal(wanted):
        return _decimals(array, wanted)
    return array.cast(wanted)


def _timestamps(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """ISO 8601 with or without its zone; without one it is UTC. In a column without zones a zone is none of ours."""
    try:
        return array.cast(pa.timestamp("us")).cast(wanted)
    except pa.ArrowInvalid:
        if wanted.tz is None:
            raise
        return array.cast(pa.timestamp("us", "UTC")).cast(wanted)


def _decimals(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Digits beyond the scale are rounded, half up, as Spark does; too many before it don't fit."""
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid:
        wide = array.cast(pa.decimal256(76, 38))
        return pc.round(wide, wanted.scale, "half_towards_infinity").cast(wanted)


def text_or_replaced(words: pa.Array) -> pa.Array:
    """A binary column as text; what isn't UTF-8, with replacement characters."""
    try:
        return words.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([word.decode("utf-8", "replace") for word in words.to_pylist()], pa.string())
