"""Batch writes: rows become entries, as a whole or not at all."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tidelog import Client
from tidelog.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameWriter

    Load = Callable[..., DataFrame]


@pytest.fixture
def to(tidelog_server: Server) -> Callable[..., DataFrameWriter]:
    def to(frame: DataFrame, **options: Any) -> DataFrameWriter:
        options = {"url": tidelog_server.url} | {name: str(value) for name, value in options.items()}
        return frame.write.format("tidelog").mode("append").options(**options)

    return to


def entries(client: Client, key: str) -> list[dict[str, str]]:
    return [entry.text() for entry in client.trange(key)]


def stages(client: Client) -> int:
    """How many stages the server holds."""
    return int(client.redis.info("streams")["stages"])


def test_values_of_each_type(spark: SparkSession, client: Client, to: Any, load: Load) -> None:
    schema = (
        "b byte, i int, l long, f float, d double, dec decimal(6,2), ok boolean, s string, raw binary, day date, "
        "at timestamp, plain timestamp_ntz"
    )
    at = datetime(2010, 1, 31, 10, 0, 0, 250_000, tzinfo=UTC)
    row = (
        1,
        -5,
        9_000_000_000,
        0.5,
        1e-7,
        Decimal("3.10"),
        True,
        "ä",
        b"\x00\xff",
        date(2010, 1, 31),
        at,
        at.replace(tzinfo=None),
    )
    to(spark.createDataFrame([row], schema), key="a").save()
    (entry,) = client.trange("a")
    assert list(entry.pairs) == [
        (b"b", b"1"), (b"i", b"-5"), (b"l", b"9000000000"), (b"f", b"0.5"), (b"d", b"1e-7"), (b"dec", b"3.10"),
        (b"ok", b"true"), (b"s", "ä".encode()), (b"raw", b"\x00\xff"), (b"day", b"2010-01-31"),
        (b"at", b"2010-01-31T10:00:00.250000Z"), (b"plain", b"2010-01-31T10:00:00.250000"),
    ]  # fmt: skip
    back = load(schema, subscribe="a")
    assert back.collect() == spark.createDataFrame([row], schema).collect()
    assert stages(client) == 0


def test_a_null_is_no_field_and_order_is_kept(spark: SparkSession, client: Client, to: Any) -> None:
    rows = [(n, None if n % 2 == 0 else f"s{n}", None if n % 7 == 0 else 1.5) for n in range(15_000)]
    to(spark.createDataFrame(rows, "n int, s string, d double").coalesce(1), key="a").save()
    expected = [
        {"n": str(n)} | ({"s": s} if s is not None else {}) | ({"d": "1.5"} if d is not None else {})
        for n, s, d in rows
    ]
    assert entries(client, "a") == expected


def test_the_key_of_each_row(spark: SparkSession, client: Client, to: Any) -> None:
    rows = [(f"k{n % 3}", n) for n in range(30)]
    frame = spark.createDataFrame(rows, "_key string, n int").coalesce(1)
    to(frame).save()
    for key in range(3):
        assert entries(client, f"k{key}") == [{"n": str(n)} for n in range(key, 30, 3)]
    to(frame, key="all").save()  # the option overrides the column, like the option topic of Kafka's sink
    assert entries(client, "all") == [{"n": str(n)} for n in range(30)]


def test_a_copy_of_the_default_row(client: Client, to: Any, load: Load) -> None:
    rows = [{b"x": b"1", b"y": b"\xff"}, {b"z": b"3", b"raw\xff": b"4", b"raw\xfe": b"5", b"raw\\xff": b"6"}]
    for row in rows:
        client.tappend("a", list(row.items()))
    to(load(subscribe="a").select("fields"), key="b").save()
    assert [entry.fields for entry in client.trange("b")] == rows
    to(load(r"`raw\xff` string", subscribe="a").dropna(), key="c").save()
    assert [entry.fields for entry in client.trange("c")] == [{b"raw\xff": b"4"}]


@pytest.mark.parametrize(
    ("rows", "schema", "options", "message"),
    [
        ([(1,)], "n int", {}, "key must say which stream"),
        ([(1,)], "_key int", {}, "the column _key must be a string"),
        ([("k",)], "_key string", {}, "there is no column to write"),
        ([([1],)], "n array<int>", {"key": "a"}, "column n is array<int>, which can't be a field"),
        ([(None,)], "n int", {"key": "a"}, "nothing but nulls"),
        ([(None, 1)], "_key string, n int", {}, "a row's _key is null"),
        ([(1,)], "n int", {"key": "a", "subscribe": "a"}, "key is an option of the sink"),
        ([(1,)], "n int", {"key": "a", "minPartitions": "1"}, "minPartitions is an option of the source"),
        ([(1,)], "n int", {"key": "a", "maxlen": "1", "maxage": "1h"}, "maxlen and maxage contradict"),
        ([(1,)], "n int", {"key": "a", "maxlen": "-1"}, "maxlen must be a whole number"),
        ([(1,)], "n int", {"key": "a", "maxage": "old"}, "maxage must be a duration"),
        ([(1,)], "n int", {"key": "a", "txnAppId": "x"}, "txnAppId and txnVersion belong together"),
        ([(1,)], "n int", {"key": "a", "txnAppId": "x", "txnVersion": "x"}, "txnVersion must be a whole number"),
        ([(1,)], "n int", {"key": "a", "fenceCheck": "rows"}, "fenceCheck is given without txnAppId"),
        ([(1,)], "n int", {"key": "a", "fenceCheck": "offsets"}, "fenceCheck can't be offsets for a batch write"),
        ([(1,)], "n int", {"key": "a", "fenceCheck": "x"}, "fenceCheck must be one of auto, offsets, rows, none"),
        ([(1,)], "n int", {"key": "a", "stageTtlMs": "0"}, "stageTtlMs must be a whole number, at least 1000"),
        ([(1,)], "n int", {"key": ""}, "key is empty"),
    ],
)
def test_what_cannot_be_written(
    spark: SparkSession, client: Client, to: Any, rows: list[Any], schema: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        to(spark.createDataFrame(rows, schema), **options).save()
    assert client.tlen("a") == 0


def test_overwriting_is_refused(spark: SparkSession, client: Client, to: Any) -> None:
    client.tappend("a", {"n": 1})
    with pytest.raises(Exception, match="streams are appended to"):
        to(spark.range(3), key="a").mode("overwrite").save()
    assert client.tlen("a") == 1


def test_a_batch_is_there_as_a_whole_or_not_at_all(spark: SparkSession, client: Client, to: Any) -> None:
    to(spark.range(50_000).repartition(3), key="a").save()
    assert Counter(entry["id"] for entry in client.trange("a")) == Counter(b"%d" % n for n in range(50_000))
    (claim,) = client.redis.scan_iter("spark-tidelog-sink:*")
    assert claim.startswith(f"spark-tidelog-sink:jobs:{socket.gethostname()}:".encode())
    broken = spark.range(0, 50_000, 1, 3).selectExpr("if(id = 49999, raise_error('as asked for'), id) as id")
    with pytest.raises(Exception, match="as asked for"):
        to(broken, key="b").save()
    assert client.tlen("b") == 0
    client.redis.set("s", "no stream")
    with pytest.raises(Exception, match=r"WRONGTYPE .*stream 's'"):
        to(spark.range(10), key="s").save()


def test_nothing_to_write(spark: SparkSession, client: Client, to: Any) -> None:
    to(spark.range(0), key="a").save()
    assert client.redis.exists("a") == 0


def test_old_entries_are_evicted(spark: SparkSession, client: Client, to: Any) -> None:
    to(spark.range(100).coalesce(1), key="a", maxlen=10).save()
    assert [entry["id"] for entry in client.trange("a")] == [b"%d" % n for n in range(90, 100)]
    to(spark.range(5).coalesce(1), key="a", maxage="1h").save()
    assert client.tlen("a") == 15


def test_a_version_of_an_application_is_written_once(spark: SparkSession, client: Client, to: Any) -> None:
    for version, length in ((3, 10), (3, 10), (2, 10), (4, 20)):
        to(spark.range(10), key="a", txnAppId="app", txnVersion=version).save()
        assert client.tlen("a") == length
    to(spark.range(10), key="a", txnAppId="other", txnVersion=1).save()
    assert client.tlen("a") == 30
    assert stages(client) == 0


def test_a_version_is_written_again_with_other_rows(spark: SparkSession, client: Client, to: Any) -> None:
    to(spark.range(10), key="a", txnAppId="app", txnVersion=3).save()
    message = "version 3 of application app was published before with 10 rows, now it has 11"
    with pytest.raises(Exception, match=message):
        to(spark.range(11), key="a", txnAppId="app", txnVersion=3).save()
    to(spark.range(11), key="a", txnAppId="app", txnVersion=3, fenceCheck="none").save()
    assert client.tlen("a") == 10
    assert stages(client) == 0


def test_fences_that_were_for_all_streams_of_an_application(spark: SparkSession, client: Client, to: Any) -> None:
    client.tstage("one", 0, "a", ["n"], [(1,)])
    client.tpublish("spark-tidelog-sink:txn:app", 3, "one")
    for version, length in ((2, 1), (3, 1), (4, 11), (4, 11)):
        to(spark.range(10), key="a", txnAppId="app", txnVersion=version).save()
        assert client.tlen("a") == length
    assert stages(client) == 0
