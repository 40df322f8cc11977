"""Restricts a batch by the filters that Spark pushes down (spark.sql.python.filterPushdown.enabled).

Rule 1: filters only restrict what is read. Spark also applies all of them to the rows, so bounds may be wide: they are
        whole milliseconds.
Rule 2: Spark compares ``_id`` as a string. This is the order of IDs only if their milliseconds have the same number of
        digits, so these bounds apply to a stream only if that is true for its IDs and the bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from tidelog.client.entries import Info

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MS_MAX: Final = (1 << 64) - 1
FROM: Final = (GreaterThan, GreaterThanOrEqual)
TO: Final = (LessThan, LessThanOrEqual)


@dataclass(frozen=True)
class Bounds:
    """First and last millisecond, inclusive."""

    first: int = 0
    last: int = MS_MAX

    def __and__(self, other: Bounds) -> Bounds:
        return Bounds(max(self.first, other.first), min(self.last, other.last))


ALL: Final = Bounds()


@dataclass(frozen=True)
class Narrowed:
    """The remaining range after the filters."""

    keys: frozenset[str] | None = None  # None: all keys
    times: Bounds = ALL
    ids: Bounds = ALL  # bounds by IDs as strings: Rule 2

    def reads(self, key: str) -> bool:
        return self.keys is None or key in self.keys

    def of(self, info: Info) -> Bounds:
        """Return the bounds for a stream."""
        bounds = self.times
        ends = {len(str(end.ms)) for end in (info.first, info.last) if end is not None}
        if self.ids.first and ends == {len(str(self.ids.first))}:
            bounds &= Bounds(first=self.ids.first)
        if self.ids.last < MS_MAX and ends == {len(str(self.ids.last))}:
            bounds &= Bounds(last=self.ids.last)
        return bounds


def narrowed(filters: Iterable[Filter]) -> Narrowed:
    """Return what remains after all of these filters."""
    keys: frozenset[str] | None = None
    bounds = {"_ts": ALL, "_id": ALL}
    for given in filters:
        match given:
            case EqualTo(attribute=("_key",), value=key) | In(attribute=("_key",), value=key):
                some = frozenset(key if isinstance(given, In) else [key])
                keys = some if keys is None else keys & some
            case EqualTo() | In() | GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual():
                (name, *rest) = given.attribute
                if name in bounds and not rest:
                    bounds[name] &= _bounds(name, given)
    return Narrowed(keys, bounds["_ts"], bounds["_id"])


def _bounds(name: str, given: Any) -> Bounds:
    """Return the milliseconds that remain after one filter; ALL if its value cannot be compared."""
    values = given.value if isinstance(given, In) else (given.value,)
    found = [_ms(name, value) for value in values]
    known = [ms for ms in found if ms is not None]
    if not known or len(known) < len(found):
        return ALL
    first = 0 if isinstance(given, TO) else max(0, min(known))
    return Bounds(first, MS_MAX if isinstance(given, FROM) else max(-1, *known))


def _ms(name: str, value: Any) -> int | None:
    if name == "_ts" and isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.astimezone()  # as Python interprets a time without a zone
        return (moment - EPOCH) // timedelta(milliseconds=1)
    found = re.fullmatch(r"(0|[1-9]\d*)\.\d+", value) if name == "_id" and isinstance(value, str) else None
    return int(found[1]) if found and int(found[1]) <= MS_MAX else None
