"""Batch reads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tidelog import Client, calls
from tidelog.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Load = Callable[..., DataFrame]


def values(frame: DataFrame, column: str = "n") -> list[Any]:
    return [row[0] for row in frame.select(column).collect()]


def fill(client: Client, key: str, numbers: range) -> list[str]:
    """Append an entry for each number, each by its own command; returns their IDs."""
    return [str(client.tappend(key, {"n": number})) for number in numbers]


def test_the_default_row(load: Load, client: Client) -> None:
    first = client.tappend("temps", [("sensor", "01"), ("temperature", "35.6")])
    second = client.tappend("temps", [(b"raw\xff", b"\x00\xff"), ("sensor", "a"), ("sensor", "b")])
    rows = load(subscribe="temps").collect()
    assert [row["_key"] for row in rows] == ["temps", "temps"]
    assert [row["_id"] for row in rows] == [str(first), str(second)]
    assert [row["_ts"].replace(tzinfo=None) for row in rows] == [_local(first.time), _local(second.time)]
    assert rows[0]["fields"] == {"sensor": b"01", "temperature": b"35.6"}
    assert rows[1]["fields"] == {r"raw\xff": b"\x00\xff", "sensor": b"b"}


def _local(moment: datetime) -> datetime:
    """A timestamp as collect() returns it: in this machine's time, without a zone."""
    return moment.astimezone().replace(tzinfo=None)


def test_found_without_register_and_with_it(spark: SparkSession, load: Load, client: Client) -> None:
    from tidelog.spark import register

    client.tappend("a", {"n": 1})
    assert load(subscribe="a").count() == 1
    register(spark)
    assert load(subscribe="a").count() == 1


def test_typed_columns(load: Load, client: Client) -> None:
    fields: dict[str, str | bytes] = {
        "b": "1", "i": "-5", "l": "9000000000", "d": "1.5", "dec": "3.14159", "ok": "true", "s": "ä",
        "raw": b"\xff", "at": "2010-01-31T10:00:00Z", "day": "2010-01-31",
    }  # fmt: skip
    client.tappend("a", fields)
    client.tappend("a", {"other": "1"})
    schema = (
        "_id string, b byte, i int, l long, d double, dec decimal(6,2), ok boolean, s string, raw binary, "
        "at timestamp_ntz, day date"
    )
    full, empty = load(schema.replace("at timestamp_ntz, ", ""), subscribe="a").collect()
    assert full[1:] == (1, -5, 9000000000, 1.5, Decimal("3.14"), True, "ä", b"\xff", date(2010, 1, 31))
    assert empty[1:] == (None,) * 9
    client.tappend("b", {"at": "2010-01-31 10:00:00"})
    assert load("at timestamp_ntz", subscribe="b").collect()[0][0] == datetime(2010, 1, 31, 10)  # noqa: DTZ001
    zoned = load("at timestamp", subscribe="a").collect()[0][0]
    assert zoned == _local(datetime(2010, 1, 31, 10, tzinfo=UTC))


def test_bad_values_by_mode(load: Load, client: Client) -> None:
    for value in ("1", "two", "", "4"):
        client.tappend("a", {"n": value, "s": "x"})
    schema = "n int, s string, _corrupt string"
    rows = load(schema, subscribe="a").collect()
    assert [row["n"] for row in rows] == [1, None, None, 4]
    assert [row["_corrupt"] and json.loads(row["_corrupt"]) for row in rows] == [
        None,
        {"n": "two", "s": "x"},
        None,
        None,
    ]
    assert values(load("n int, s string", subscribe="a", mode="permissive")) == [1, None, None, 4]
    assert values(load("n int", subscribe="a", mode="DROPMALFORMED")) == [1, None, 4]
    with pytest.raises(Exception, match=r"field 'n' is b'two', which is no int \(mode is failfast"):
        load("n int", subscribe="a", mode="failfast").collect()


def test_entries_of_many_shapes_in_one_batch(load: Load, client: Client) -> None:
    expected = []
    for number in range(300):
        fields = {f"f{i}": f"{number}" for i in range(1 + number % 5)}
        client.tappend("a", fields)
        expected.append({name: value.encode() for name, value in fields.items()})
    assert values(load(subscribe="a"), "fields") == expected
    assert values(load("f3 int", subscribe="a"), "f3") == [n if n % 5 >= 3 else None for n in range(300)]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("n array<int>", "column n can't be array<int>; an entry's field can be byte"),
        ("fields map<string,int>", "column fields can't be map<string,int>; under this name there is map<string,bin"),
    ],
)
def test_schemas_that_entries_cannot_fill(load: Load, schema: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        load(schema, subscribe="a").collect()


def test_a_field_may_have_one_of_our_names(load: Load, client: Client) -> None:
    client.tappend("a", {"_id": "7", "_ts": "1.5", "fields": "x", "n": "1"})
    row = load("_id int, _ts double, fields string, n int not null", subscribe="a").collect()[0]
    assert tuple(row) == (7, 1.5, "x", 1)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("_ts long", "column _ts is bigint, and entries of stream 'a' have no such field: _ts is timestamp"),
        ("_ID string", "column _ID is string, and entries of stream 'a' have no such field: _id is string"),
        ("fields string, sensor string", "column fields is string, .* no such field: fields is map<string,binary>"),
        ("Sensor string", "column Sensor is string, .* no such field, but sensor: names of fields are told apart by"),
    ],
)
def test_columns_that_would_be_null_by_mistake(load: Load, client: Client, schema: str, message: str) -> None:
    client.tappend("a", {"sensor": "1", "n": "2"})
    with pytest.raises(Exception, match=message):
        load(schema, subscribe="a").collect()


def test_columns_that_are_null_for_a_reason(load: Load, client: Client) -> None:
    client.tappend("a", {"sensor": "1", "Other": "2"})
    row = load("none string, sensor string, Other string, other_ string", subscribe="a").collect()[0]
    assert tuple(row) == (None, "1", "2", None)
    client.tappend("b", {"sensor": "1", "SENSOR": "2"})
    assert load("sensor string, _key string", subscribe="a,b").count() == 2


def test_names_that_are_not_text(load: Load, client: Client) -> None:
    names = [b"raw\xff", b"raw\xfe", b"raw\\xff", "ä".encode()]
    client.tappend("a", [(name, b"%d" % number) for number, name in enumerate(names)])
    row = load("fields map<string, binary>, `raw\\xff` int, n int, _corrupt string", subscribe="a").collect()[0]
    expected = {r"raw\xff": b"0", r"raw\xfe": b"1", r"raw\x5cxff": b"2", "ä": b"3"}
    assert row["fields"] == expected
    assert row[r"raw\xff"] == 0
    corrupt = load("`ä` boolean, _corrupt string", subscribe="a").collect()[0]["_corrupt"]
    assert json.loads(corrupt) == {name: value.decode() for name, value in expected.items()}


def test_wrong_options_fail_at_load(load: Load) -> None:
    with pytest.raises(Exception, match="unknown option: starting"):
        load(subscribe="a", starting="earliest")
    with pytest.raises(Exception, match="mode must be one of"):
        load(subscribe="a", mode="strict")
    with pytest.raises(Exception, match="one of subscribe, subscribePattern, assign"):
        load()
    with pytest.raises(Exception, match="maxOffsetsPerTrigger is for stream reads only"):
        load(subscribe="a", maxOffsetsPerTrigger=1).count()
    with pytest.raises(Exception, match="mode must be one of"):  # with a schema, Spark makes the source when it reads
        load("n int", subscribe="a", mode="strict").count()


def test_starting_and_ending(load: Load, client: Client) -> None:
    ids = fill(client, "a", range(6))
    begin, end = {"a": ids[2]}, {"a": ids[4]}
    assert values(load("n int", subscribe="a", startingOffsets=json.dumps(begin))) == [2, 3, 4, 5]
    assert values(load("n int", subscribe="a", endingOffsets=json.dumps(end))) == [0, 1, 2, 3]
    both = {"startingOffsets": json.dumps(begin), "endingOffsets": json.dumps(end)}
    assert values(load("n int", subscribe="a", **both)) == [2, 3]
    assert values(load("n int", subscribe="a", startingOffsets=json.dumps(end), endingOffsets=json.dumps(begin))) == []


def test_starting_and_ending_by_time(load: Load, client: Client) -> None:
    import time

    fill(client, "a", range(3))
    time.sleep(0.003)  # so that the next IDs have a later millisecond
    middle = int(time.time() * 1000)
    fill(client, "a", range(3, 6))
    fill(client, "b", range(10, 12))
    assert sorted(values(load("n int", subscribe="a,b", startingTimestamp=middle))) == [3, 4, 5, 10, 11]
    assert values(load("n int", subscribe="a,b", endingTimestamp=middle)) == [0, 1, 2]
    per_key = json.dumps({"a": middle, "b": 0})
    assert sorted(values(load("n int", subscribe="a,b", startingOffsetsByTimestamp=per_key))) == [3, 4, 5, 10, 11]
    assert values(load("n int", subscribe="a,b", endingOffsetsByTimestamp=per_key)) == [0, 1, 2]
    late = {"subscribe": "a", "startingTimestamp": middle + 10**9}
    with pytest.raises(Exception, match=rf"startingTimestamp is {middle + 10**9}, and stream 'a' has no entry from"):
        load("n int", **late).collect()
    assert values(load("n int", startingOffsetsByTimestampStrategy="latest", **late)) == []


def test_patterns_and_missing_keys(load: Load, client: Client) -> None:
    fill(client, "t:1", range(2))
    fill(client, "t:2", range(2, 4))
    fill(client, "u:1", range(4, 6))
    client.redis.set("t:3", "no stream")
    client.tappend(b"t:\xff", {"n": 7})
    assert sorted(values(load("n int", subscribePattern="t:.*"))) == [0, 1, 2, 3]
    assert values(load("n int", subscribePattern="nothing")) == []
    with pytest.raises(Exception, match=r"assign names what is no stream here: 'nothing' \(failOnMissing=false reads"):
        load("n int", assign='["nothing", "t:1"]').collect()
    assert values(load("n int", assign='["nothing", "t:1"]', failOnMissing="false")) == [0, 1]
    with pytest.raises(Exception, match=r"WRONGTYPE .*stream 't:3'"):
        load("n int", subscribe="t:3").collect()


def test_at_least_so_many_partitions(load: Load, client: Client) -> None:
    client.tmappend("a", ["n"], [(n,) for n in range(1000)])
    fill(client, "b", range(1000, 1003))
    whole = load("n int", subscribe="a,b")
    assert whole.rdd.getNumPartitions() == 2
    pieces = load("n int", subscribe="a,b", minPartitions=7)
    assert pieces.rdd.getNumPartitions() >= 7
    assert Counter(values(pieces)) == Counter(range(1003))
    more_than_entries = load("n int", subscribe="b", minPartitions=9)
    assert more_than_entries.rdd.getNumPartitions() == 3
    assert sorted(values(more_than_entries)) == [1000, 1001, 1002]


def test_at_most_so_many_partitions(load: Load, client: Client) -> None:
    """A task reads several streams, each from its beginning to its end."""
    number = 450
    for start in range(0, number, 50):
        client.together(*[calls.tappend(f"s:{n}", {"n": n}) for n in range(start, start + 50)])
    client.tmappend("s:0", ["n"], [(n,) for n in range(1000, 1100)])
    assert load("_key string, n int", subscribePattern="s:.*").rdd.getNumPartitions() == 200
    few = load("_key string, n int", subscribePattern="s:.*", maxPartitions=4)
    assert few.rdd.getNumPartitions() == 4
    assert Counter(values(few)) == Counter([*range(number), *range(1000, 1100)])
    sizes = sorted(few.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect())
    assert sizes[-1] - sizes[0] <= 2
    assert [row.n for row in few.collect() if row._key == "s:0"] == [0, *range(1000, 1100)]
    more = load("n int", subscribePattern="s:.*", maxPartitions=4, maxRecordsPerPartition=50)
    assert more.rdd.getNumPartitions() >= 11
    assert Counter(values(more)) == Counter([*range(number), *range(1000, 1100)])
    assert load("n int", subscribePattern="s:.*", minPartitions=250).rdd.getNumPartitions() == 250


def test_at_most_so_many_entries_in_a_partition(load: Load, client: Client) -> None:
    client.tmappend("a", ["n"], [(n,) for n in range(1000)])
    fill(client, "b", range(1000, 1003))
    frame = load("n int", subscribe="a,b", maxRecordsPerPartition=100)
    assert frame.rdd.getNumPartitions() == 11
    assert Counter(values(frame)) == Counter(range(1003))
    assert load("n int", subscribe="a,b", maxRecordsPerPartition=100, minPartitions=20).rdd.getNumPartitions() >= 20
    assert load("n int", subscribe="a,b", maxRecordsPerPartition=5000).rdd.getNumPartitions() == 2


def test_filters_are_pushed_down(spark: SparkSession, load: Load, client: Client) -> None:
    """One entry a partition: the number of partitions is what is read. Where nothing is, Spark has an empty one."""
    import time

    ids = []
    for number in range(6):
        ids.append(str(client.tappend("a", {"n": number})))
        time.sleep(0.003)  # so that IDs and times differ by more than a millisecond
    fill(client, "b", range(10, 13))
    schema, keys = "_key string, _id string, _ts timestamp, n int", "a,b"
    frames = {
        "false": load(schema, subscribe=keys), "true": load(schema, subscribe=keys, maxRecordsPerPartition=1),
    }  # fmt: skip
    at = [f"timestamp_millis({entry.split('.')[0]})" for entry in ids]
    cases = [
        ("_key = 'a'", [0, 1, 2, 3, 4, 5], 6), ("_key in ('b', 'c')", [10, 11, 12], 3),
        (f"_key = 'a' and _ts >= {at[4]}", [4, 5], 2), (f"_key = 'a' and _ts > {at[1]} and _ts < {at[4]}", [2, 3], 4),
        (f"_key = 'a' and _ts = {at[3]}", [3], 1), (f"_id = '{ids[2]}'", [2], 1),
        (f"_key = 'a' and _id > '{ids[2]}' and _id <= '{ids[4]}'", [3, 4], 3),
        (f"_key = 'a' and _id in ('{ids[1]}', '{ids[2]}')", [1, 2], 2), (f"_ts < {at[0]}", [], 1),
        ("_ts < timestamp'1960-01-01'", [], 1), ("_id > '2'", [], 9), ("_id = 'x'", [], 9), ("n = 11", [11], 9),
        (f"not (_ts > {at[5]}) and _key = 'a'", [0, 1, 2, 3, 4, 5], 6), ("_key = 'none'", [], 1),
    ]  # fmt: skip
    for pushed, frame in frames.items():
        spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
        try:
            for condition, expected, read in cases:
                found = frame.where(condition)
                assert sorted(values(found)) == expected, condition
                if pushed == "true":
                    assert found.rdd.getNumPartitions() == read, condition
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_tables_and_views(spark: SparkSession, client: Client, tidelog_server: Server) -> None:
    fill(client, "a", range(3))
    options = f"USING tidelog OPTIONS (url '{tidelog_server.url}', subscribe 'a')"
    with pytest.raises(Exception, match=r"CREATE TABLE is not possible.*CREATE TEMPORARY VIEW name USING tidelog"):
        spark.sql(f"CREATE TABLE seen {options}")
    spark.sql(f"CREATE TEMPORARY VIEW seen (n int) {options}")
    assert [row["n"] for row in spark.sql("SELECT n FROM seen").collect()] == [0, 1, 2]


def test_many_pages_in_several_tasks(load: Load, client: Client) -> None:
    for start in range(0, 200_000, 20_000):
        client.tmappend("a", ["n", "s"], [(n, "x") for n in range(start, start + 20_000)])
    frame = load("n long, s string", subscribe="a", minPartitions=4)
    total = frame.selectExpr("count(*)", "sum(n)", "count(distinct n)", "count(s)").collect()[0]
    assert tuple(total) == (200_000, 19_999_900_000, 200_000, 200_000)


def test_data_loss(load: Load, client: Client) -> None:
    ids = fill(client, "a", range(6))
    client.ttrim("a", count=3)
    begin = json.dumps({"a": ids[1]})
    with pytest.raises(Exception, match=f"'a': entries up to {ids[2]} were evicted.*{ids[3]}.*failOnDataLoss=false"):
        load("n int", subscribe="a", startingOffsets=begin).collect()
    assert values(load("n int", subscribe="a", startingOffsets=begin, failOnDataLoss="false")) == [3, 4, 5]
    assert values(load("n int", subscribe="a")) == [3, 4, 5]  # earliest is the first entry there
    assert values(load("n int", subscribe="a", startingTimestamp=0)) == [3, 4, 5]
    for wanted in ("99999999999999", "99999999999999-7"):
        message = f"names ID {wanted}, which the stream never reached; what begins with ID {wanted} was wanted"
        with pytest.raises(Exception, match=message):
            load("n int", subscribe="a", startingOffsets=json.dumps({"a": wanted})).collect()


def test_no_server_answers(load: Load, tidelog_server: Server) -> None:
    tidelog_server.stop()
    options = {"fetchOffset.numRetries": 1, "fetchOffset.retryIntervalMs": 10, "connectTimeoutMs": 500}
    with pytest.raises(Exception, match=r"no answer from .* in 2 attempts"):
        load("n int", subscribe="a", **options).collect()
