from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[spark]')")

from tidelog.arrow.values import convert  # noqa: E402
from tidelog.spark.commands import as_text  # noqa: E402 - needs pyarrow

pytestmark = pytest.mark.quick

CASES: list[tuple[Any, dict[bytes, Any]]] = [
    (pa.int8(), {b"127": 127, b"-128": -128, b"128": None}),
    (pa.int16(), {b"32767": 32767, b"32768": None}),
    (pa.int32(), {b"7": 7, b"-7": -7, b"2147483648": None, b"1.5": None, b"0x1F": None, b" 1": None, b"1_0": None}),
    (pa.int64(), {b"9223372036854775807": 2**63 - 1, b"9223372036854775808": None, b"1e3": None}),
    (pa.float32(), {b"0.5": 0.5, b"abc": None}),
    (pa.float64(), {b"1e3": 1000.0, b"-0.25": -0.25, b"1,5": None, b"inf": float("inf")}),
    (pa.decimal128(5, 2), {b"1.5": Decimal("1.50"), b"1.005": Decimal("1.01"), b"1000": None, b"x": None}),
    (pa.bool_(), {b"true": True, b"FALSE": False, b"1": True, b"yes": None}),
    (pa.string(), {b"": "", b"\xc3\xa4": "ä", b"\xff": None}),
    (pa.binary(), {b"": b"", b"\xff": b"\xff"}),
    (pa.date32(), {b"2010-01-31": date(2010, 1, 31), b"2010-02-31": None, b"2010/01/31": None}),
    (
        pa.timestamp("us", "UTC"),
        {
            b"2010-01-31T10:00:00Z": datetime(2010, 1, 31, 10, tzinfo=UTC),
            b"2010-01-31T10:00:00+02:00": datetime(2010, 1, 31, 8, tzinfo=UTC),
            b"2010-01-31 10:00:00.25": datetime(2010, 1, 31, 10, 0, 0, 250_000, tzinfo=UTC),
            b"2010-01-31": datetime(2010, 1, 31, tzinfo=UTC),
            b"2010-01-31T10:00:00.1234567Z": datetime(2010, 1, 31, 10, 0, 0, 123_456, tzinfo=UTC),  # .NET
            b"2010-01-31T10:00:00.0000000-07:00": datetime(2010, 1, 31, 17, tzinfo=UTC),
            b"2010-01-31T10:00:00.999999999+01:00": datetime(2010, 1, 31, 9, 0, 0, 999_999, tzinfo=UTC),  # Go
            b"1610-01-31T10:00:00.12345678": datetime(1610, 1, 31, 10, 0, 0, 123_456, tzinfo=UTC),  # Java
            b"31.1.2010": None,
            b"31.1.2010.1234567": None,
        },
    ),
    (
        pa.timestamp("us"),
        {
            b"2010-01-31 10:00:00": datetime(2010, 1, 31, 10),  # noqa: DTZ001
            b"2010-01-31 10:00:00.123456789": datetime(2010, 1, 31, 10, 0, 0, 123_456),  # noqa: DTZ001
            b"2010-01-31T10:00:00Z": None,
        },
    ),
]


@pytest.mark.parametrize(
    ("wanted", "examples"), CASES, ids=lambda case: str(case) if isinstance(case, pa.DataType) else ""
)
def test_each_value_alone_and_among_others(wanted: Any, examples: dict[bytes, Any]) -> None:
    for raw, expected in examples.items():
        array, wrong = convert(pa.array([raw], pa.binary()), wanted)
        assert array.type == wanted
        assert array.to_pylist() == [expected]
        assert wrong == ([0] if expected is None else [])
    mixed = [*examples, None] * 50
    random.Random(5).shuffle(mixed)
    array, wrong = convert(pa.array(mixed, pa.binary()), wanted)
    assert array.to_pylist() == [None if raw is None else examples[raw] for raw in mixed]
    assert wrong == [i for i, raw in enumerate(mixed) if raw is not None and examples[raw] is None]


@pytest.mark.parametrize(
    "wanted", [pa.int32(), pa.float64(), pa.decimal128(5, 2), pa.bool_(), pa.date32(), pa.timestamp("us")]
)
def test_an_empty_value_is_null_and_not_wrong(wanted: Any) -> None:
    array, wrong = convert(pa.array([b"", None], pa.binary()), wanted)
    assert (array.to_pylist(), wrong) == ([None, None], [])


def test_nothing() -> None:
    for wanted, _ in CASES:
        array, wrong = convert(pa.array([], pa.binary()), wanted)
        assert (len(array), array.type, wrong) == (0, wanted, [])


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_times_are_written_in_utc(unit: str) -> None:
    moment = datetime(2026, 7, 2, 3, 4, 5, tzinfo=UTC)
    for zone in ("UTC", "Europe/Paris", "-07:30"):
        (text,) = as_text(pa.array([moment], pa.timestamp(unit, zone))).to_pylist()
        assert text.endswith(b"Z")
        assert datetime.fromisoformat(text.decode()) == moment
    (text,) = as_text(pa.array([moment.replace(tzinfo=None)], pa.timestamp(unit))).to_pylist()
    assert datetime.fromisoformat(text.decode()) == moment.replace(tzinfo=None)
