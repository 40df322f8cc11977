"""What filters leave to read: never less than they let through."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from tidelog.client.entries import Info, StreamId
from tidelog.spark.filters import ALL, MS_MAX, Bounds, Narrowed, narrowed

pytestmark = pytest.mark.quick

AT = datetime(2026, 1, 1, 0, 0, 0, 1500, tzinfo=UTC)
MS = 1767225600001
TS, ID = ("_ts",), ("_id",)


def info(first: int, last: int) -> Info:
    return Info(2, StreamId(first, 0), StreamId(last, 0), 2, 0, StreamId(0, 0), 1, 0, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([], ALL), ([EqualTo(TS, AT)], Bounds(MS, MS)), ([GreaterThan(TS, AT)], Bounds(MS)),
        ([GreaterThanOrEqual(TS, AT), LessThan(TS, AT)], Bounds(MS, MS)), ([LessThanOrEqual(TS, AT)], Bounds(0, MS)),
        ([In(TS, (AT, AT.replace(year=2027)))], Bounds(MS, MS + 365 * 86_400_000)), ([In(TS, (AT, None))], ALL),
        ([Not(EqualTo(TS, AT))], ALL), ([IsNotNull(TS)], ALL), ([EqualTo(("_ts", "x"), AT)], ALL),
        ([EqualTo(("n",), AT)], ALL), ([EqualTo(TS, "2026")], ALL), ([EqualTo(TS, None)], ALL),
        ([LessThan(TS, datetime(1960, 1, 1, tzinfo=UTC))], Bounds(0, -1)),
        ([GreaterThan(TS, datetime(1960, 1, 1, tzinfo=UTC))], Bounds(0, MS_MAX)),
    ],
)  # fmt: skip
def test_times(filters: list[Any], bounds: Bounds) -> None:
    assert narrowed(filters) == Narrowed(times=bounds)


@pytest.mark.parametrize(
    ("filters", "first", "last", "bounds"),
    [
        ([GreaterThan(ID, "1234.5")], 1000, 2000, Bounds(1234)),
        ([LessThan(ID, "1234.5")], 1000, 2000, Bounds(0, 1234)),
        ([EqualTo(ID, "1234.5")], 1000, 2000, Bounds(1234, 1234)),
        ([In(ID, ("1234.5", "1500.0"))], 1000, 2000, Bounds(1234, 1500)),
        ([GreaterThan(ID, "1234.5")], 999, 2000, ALL),  # "999.0" is above "1234.5", as strings
        ([LessThan(ID, "1234.5")], 1000, 10_000, ALL), ([GreaterThan(ID, "1234.5")], 10_000, 20_000, ALL),
        ([GreaterThan(ID, "1234")], 1000, 2000, ALL), ([GreaterThan(ID, "01234.5")], 1000, 2000, ALL),
        ([GreaterThan(ID, "x")], 1000, 2000, ALL), ([In(ID, ())], 1000, 2000, ALL),
        ([GreaterThan(ID, "18446744073709551616.0")], MS_MAX - 1, MS_MAX, ALL),
    ],
)  # fmt: skip
def test_ids_are_compared_as_strings(filters: list[Any], first: int, last: int, bounds: Bounds) -> None:
    assert narrowed(filters).of(info(first, last)) == bounds


def test_keys() -> None:
    some = narrowed([In(("_key",), ("a", "b"))])
    assert [some.reads(key) for key in ("a", "b", "c")] == [True, True, False]
    assert not any(narrowed([EqualTo(("_key",), "a"), EqualTo(("_key",), "b")]).reads(key) for key in "ab")
    assert narrowed([]).reads("any")
