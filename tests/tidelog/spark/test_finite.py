"""NaN and infinity on their way into topics: JSON would make null of them."""

from __future__ import annotations

import math
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[spark]')")

from tidelog.codecs import codec_for  # noqa: E402 - needs pyarrow
from tidelog.spark.commands import RowError  # noqa: E402
from tidelog.spark.finite import check_finite  # noqa: E402
from tidelog.spark.partitioning import TopicEntries  # noqa: E402

pytestmark = pytest.mark.quick

FLOAT = pa.float64()
SHAPES: list[tuple[Any, Any]] = [
    (FLOAT, lambda value: value),
    (pa.float32(), lambda value: value),
    (pa.list_(FLOAT), lambda value: [0.5, value]),
    (pa.struct([("a", pa.int64()), ("b", FLOAT)]), lambda value: {"a": 1, "b": value}),
    (pa.map_(pa.string(), FLOAT), lambda value: [("k", value)]),
    (pa.list_(pa.struct([("x", pa.list_(FLOAT))])), lambda value: [{"x": [value]}]),
]


def entries(codec: str) -> TopicEntries:
    return TopicEntries("t", 1, ["id", "value"], None, False, codec)


def batch(kind: Any, *values: Any) -> Any:
    return pa.record_batch({"id": pa.array(range(len(values))), "value": pa.array(values, kind)})


@pytest.mark.parametrize(("kind", "shape"), SHAPES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_has_none_of_them(kind: Any, shape: Any, value: float) -> None:
    rows = batch(kind, shape(1.5), None, shape(value))
    for codec in ("json", "json+zstd"):
        with pytest.raises(RowError, match=r"value of a row is (nan|inf|-inf): JSON has no NaN and no infinity"):
            list(entries(codec).parts(rows))
        assert list(entries(codec).parts(rows.slice(0, 2)))  # a slice shares the buffers of all rows
    (part,) = entries("msgpack").parts(rows)
    assert part.rows == 3


def test_other_columns_are_not_looked_at() -> None:
    check_finite(batch(FLOAT, math.nan), ["id"], "json")
    check_finite(batch(FLOAT, math.nan), ["value"], "msgpack")
    check_finite(batch(FLOAT), ["value"], "json")


def test_the_plain_form_has_them() -> None:
    (part,) = entries("plain").parts(batch(FLOAT, math.nan, math.inf))
    assert part.values == b"$1\r\n0\r\n$3\r\nnan\r\n$1\r\n1\r\n$3\r\ninf\r\n"
    codec = codec_for(dict[str, float], "plain")
    assert codec.encode({"a": math.inf}) == (("a",), (math.inf,))


@pytest.mark.parametrize(
    ("kind", "good", "wrong"),
    [
        ("uuid", "12345678-1234-5678-1234-567812345678", "1234"), ("time", "10:00:00", "10 o'clock"),
        ("timedelta", "PT5S", "5 s"), ("decimal", "1.10", "1,10"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("codec", ["plain", "json"])
def test_texts_are_what_the_topic_says(kind: str, good: str, wrong: str, codec: str) -> None:
    made = TopicEntries("t", 1, ["id", "value"], None, False, codec, {"id": "int", "value": kind})
    assert list(made.parts(batch(pa.string(), good, None, good)))
    with pytest.raises(RowError, match=f"topic 't': value of a row is {wrong!r}, which is no {kind}"):
        list(made.parts(batch(pa.string(), good, wrong)))
    any_text = TopicEntries("t", 1, ["id", "value"], None, False, codec, {"id": "int", "value": "str"})
    assert list(any_text.parts(batch(pa.string(), wrong)))
