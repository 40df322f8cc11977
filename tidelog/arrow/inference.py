"""The columns of a stream or a topic, if a caller does not name them.

Rule 1: a topic whose records are fields has the columns of its settings, so all its readers see the same types.
Rule 2: a stream has the fields that its first and last SAMPLE entries have. The type of a field is the narrowest one
        that reproduces all these values: int64, double, date, timestamp, else string, or binary if one is not UTF-8.
        ``01`` is a string, since a number would lose its zero.
Rule 3: an entry outside the sample can have a value of another type. Reading it then fails, and the error names the
        remedy, because a null would be mistaken for a missing value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa

from tidelog.arrow import values
from tidelog.arrow.columns import OWN, PARTITION
from tidelog.arrow.names import as_text
from tidelog.arrow.pages import MICROSECONDS
from tidelog.client.entries import Entry
from tidelog.codecs.packed import FIELD
from tidelog.topics.sending import PLAIN
from tidelog.topics.settings import TopicSettings

SAMPLE: Final = 100  # entries at each end of a stream
#: The Arrow types of the scalar fields of a topic; any other is text.
KINDS: Final[dict[str, pa.DataType]] = {
    "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "bytes": pa.binary(), "date": pa.date32(),
    "datetime": MICROSECONDS,
}  # fmt: skip
OWN_COLUMNS: Final = (("_key", pa.string()), ("_id", pa.string()), ("_ts", MICROSECONDS))
#: Types by the names that users give them.
TYPES: Final[dict[str, pa.DataType]] = {
    "int": pa.int64(), "long": pa.int64(), "double": pa.float64(), "float": pa.float64(), "bool": pa.bool_(),
    "boolean": pa.bool_(), "string": pa.string(), "str": pa.string(), "binary": pa.binary(), "bytes": pa.binary(),
    "date": pa.date32(), "timestamp": MICROSECONDS,
}  # fmt: skip
_NARROW: Final = (
    (pa.int64(), re.compile(r"-?(0|[1-9]\d*)")),
    (pa.float64(), re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")),
    (pa.date32(), re.compile(r"\d{4}-\d\d-\d\d")),
    (MICROSECONDS, re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*")),
)


def topic_fields(settings: TopicSettings) -> dict[str, pa.DataType]:
    """Return the columns of a topic's fields; none if entries have to be sampled."""
    if settings.codec != PLAIN:
        return {FIELD: pa.string() if settings.codec == "json" else pa.binary()}
    return {name: KINDS.get(kind, pa.string()) for name, kind in settings.fields.items()}


def sampled_fields(entries: Iterable[Entry]) -> dict[str, pa.DataType]:
    """Return the columns of the fields of some entries, in the order in which they first occur."""
    found: dict[bytes, list[bytes]] = {}
    for entry in entries:
        for name, value in entry.pairs:
            found.setdefault(name, []).append(value)
    return {as_text(name): _narrowest(each) for name, each in found.items()}


def schema_of(fields: Mapping[str, pa.DataType], topic: bool) -> pa.Schema:
    """Return the schema with the columns of every stream or topic, and some fields. A field with the name of one of
    these columns is left out."""
    own = [*OWN_COLUMNS, (PARTITION, pa.int32())] if topic else [*OWN_COLUMNS]
    taken = {*OWN, *dict(own)}
    return pa.schema([*own, *((name, kind) for name, kind in fields.items() if name not in taken)])


def named_type(name: str) -> pa.DataType:
    """Return a type by its name, such as ``int``, ``double``, or ``decimal(9,2)``. Raises ValueError."""
    found = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", name.strip().lower())
    if found is not None and int(found[2]) <= int(found[1]) <= 38 and int(found[1]):
        return pa.decimal128(int(found[1]), int(found[2]))
    kind = TYPES.get(name.strip().lower())
    if kind is None:
        raise ValueError(f"{name!r} is not a type; the types are {', '.join(TYPES)}, decimal(digits,scale)")
    return kind


def _narrowest(some: list[bytes]) -> pa.DataType:
    try:
        texts = [value.decode() for value in some if value]
    except UnicodeDecodeError:
        return pa.binary()
    for kind, form in _NARROW:
        if texts and all(form.fullmatch(text) for text in texts):
            _, wrong = values.convert(pa.array(some, pa.binary()), kind)
            if not wrong:
                return kind
    return pa.string()
