"""Rows to topics: the same partitions and values as tidelog.topics writes, checked before anything is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tests.tidelog.spark.sparkkit import ended
from tests.waiting import eventually
from tidelog import Client
from tidelog.spark.partitioning import by_zlib, partitions_of
from tidelog.testing import Server
from tidelog.topics import Topic, admin, partition_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameWriter

    To = Callable[..., DataFrameWriter]

NAMES = "id long, item string, price double"


class Order(msgspec.Struct):
    id: int
    item: str
    price: float | None = None


class Line(msgspec.Struct):
    item: str
    count: int | None


class Basket(msgspec.Struct):
    id: int
    lines: list[Line]
    tags: dict[str, str]


class Everything(msgspec.Struct):
    key: UUID
    ok: bool
    raw: bytes
    at: datetime
    local: datetime
    day: date
    amount: Decimal
    ratio: float
    whole: float
    hour: time
    span: timedelta
    note: str | None = None


@pytest.fixture
def to(tidelog_server: Server) -> To:
    def to(frame: DataFrame, **options: Any) -> DataFrameWriter:
        options = {"url": tidelog_server.url} | {name: str(value) for name, value in options.items()}
        return frame.write.format("tidelog").mode("append").options(**options)

    return to


@pytest.fixture
def orders(tidelog_server: Server) -> Iterator[Topic[Order]]:
    topic: Topic[Order] = Topic("orders", Order, partition_by="id", partitions=4, url=tidelog_server.url)
    topic.sync.ready()
    yield topic
    topic.sync.close()


def records(client: Client, topic: Topic[Any]) -> list[list[Any]]:
    """The records of each partition."""
    return [
        [topic.decode(entry, at) for entry in client.trange(topic.stream(at))] for at in range(topic.partitions)
    ]  # fmt: skip


def stages(client: Client) -> int:
    return int(client.redis.info("streams")["stages"])


def test_partitions_are_those_of_the_other_clients() -> None:
    keys = ["", "1", "-42", "order-4711", "Müller", "12345678-1234-5678-1234-567812345678"]
    column = pa.array([key.encode() for key in keys])
    for count in (1, 16, 100, 70_000):
        expected = [partition_of(key, count) for key in keys]
        for way in (partitions_of, by_zlib):
            assert way(column, count).tolist() == expected
            assert way(column[2:5], count).tolist() == expected[2:5]
            assert way(column[6:], count).tolist() == []
    assert partitions_of(column, 16).tolist() == [0, 7, 6, 15, 5, 9]  # as the documentation lists them


def test_columns_that_are_broken() -> None:
    partitions = pytest.importorskip("tidelog.arrow._rows").partitions
    offsets, data = np.array([0, 2, 3], np.int32), b"abc"
    assert np.frombuffer(partitions(offsets, data, 0, 2, 7), np.uint32).tolist() == [
        partition_of(b"ab", 7), partition_of(b"c", 7),
    ]  # fmt: skip
    for text, first, rows, count in ((data, 1, 2, 7), (data, -1, 1, 7), (b"ab", 0, 2, 7), (data, 0, 2, 0)):
        with pytest.raises(ValueError, match="column"):
            partitions(offsets, text, first, rows, count)


def test_rows_go_where_records_go(spark: SparkSession, client: Client, to: To, orders: Topic[Order]) -> None:
    rows = [(n % 97, f"item {n}", None if n % 3 == 0 else n / 2) for n in range(25_000)]
    to(spark.createDataFrame(rows, NAMES).coalesce(1), topic="orders").save()
    expected: list[list[Order]] = [[], [], [], []]
    for row in rows:
        expected[partition_of(row[0], 4)].append(Order(*row))
    assert records(client, orders) == expected
    assert stages(client) == 0
    orders.sync.send(Order(5, "later"))
    assert records(client, orders)[partition_of(5, 4)][-1] == Order(5, "later")


def test_many_tasks_write_as_a_whole(spark: SparkSession, client: Client, to: To, orders: Topic[Order]) -> None:
    frame = spark.range(20_000).selectExpr("id", "'tea' as item").repartition(3)
    to(frame, topic="orders").save()
    ids = [[order.id for order in part] for part in records(client, orders)]
    assert Counter(id for part in ids for id in part) == Counter(range(20_000))  # noqa: A001
    assert all(partition_of(id, 4) == at for at, part in enumerate(ids) for id in part)  # noqa: A001
    broken = frame.selectExpr("if(id = 19999, raise_error('as asked for'), id) as id", "item")
    with pytest.raises(Exception, match="as asked for"):
        to(broken, topic="orders").save()
    assert sum(map(len, records(client, orders))) == 20_000


@pytest.mark.parametrize("codec", ["plain", "json", "msgpack", "json+zstd", "msgpack+zstd"])
def test_values_of_each_type(
    spark: SparkSession, client: Client, to: To, tidelog_server: Server, codec: str
) -> None:  # fmt: skip
    topic: Topic[Everything] = Topic("all", Everything, partition_by="key", codec=codec, url=tidelog_server.url)
    at = datetime(2010, 1, 31, 10, 0, 0, 250_000, tzinfo=UTC)
    made = Everything(
        UUID(int=7), True, b"\x00\xff", at, at.replace(tzinfo=None), date(2010, 1, 31), Decimal("3.10"), 1e-7, 4,
        time(10, 30), timedelta(seconds=90),
    )  # fmt: skip
    topic.sync.send(made)
    schema = (
        "key string, ok boolean, raw binary, at timestamp, local timestamp_ntz, day date, amount decimal(6,2), "
        "ratio double, whole int, hour string, span string, note string"
    )
    row = (
        str(made.key).upper(), True, b"\x00\xff", at, made.local, made.day, made.amount, 1e-7, 4, "10:30:00", "PT90S",
        None,
    )  # fmt: skip
    to(spark.createDataFrame([row], schema), topic="all").save()
    mine = records(client, topic)[partition_of(made.key, 16)]
    assert mine == [made, made]
    topic.sync.close()


def test_packed_records_may_be_nested(spark: SparkSession, client: Client, to: To, tidelog_server: Server) -> None:
    rows = [(n, [(f"tea {n}", n), ("jam", None)], {"a": "1", "b": str(n)}) for n in range(50)]
    schema = "id long, lines array<struct<item: string, count: int>>, tags map<string, string>"
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    to(frame, topic="baskets", partitions=2, partitionBy="id", codec="json+zstd").save()
    topic: Topic[Basket] = Topic("baskets", Basket, partition_by="id", codec="json+zstd", url=tidelog_server.url)
    assert topic.sync.ready().fields == {"id": "int", "lines": "json", "tags": "json"}
    expected: list[list[Basket]] = [[], []]
    for id, lines, tags in rows:  # noqa: A001
        expected[partition_of(id, 2)].append(Basket(id, [Line(*line) for line in lines], tags))
    assert records(client, topic) == expected
    topic.sync.close()
    with pytest.raises(Exception, match=r"column lines has a type that topic 'flat' with the codec plain can't hold"):
        to(frame, topic="flat", partitions=2).save()
    assert client.redis.exists("topic:flat") == 0


def test_without_keys_partitions_take_turns(spark: SparkSession, client: Client, to: To) -> None:
    to(spark.range(10_007).coalesce(1), topic="even", partitions=4).save()
    lengths = [client.tlen(f"even:{at}") for at in range(4)]
    assert sum(lengths) == 10_007
    assert max(lengths) - min(lengths) <= 2
    assert admin.settings_of(client, "even").partition_by is None
    for _ in range(3):
        to(spark.range(2), topic="even").save()
    assert sum(client.tlen(f"even:{at}") for at in range(4)) == 10_013


def test_a_topic_is_made_and_columns_are_added(
    spark: SparkSession, client: Client, to: To, tidelog_server: Server
) -> None:
    options = {"topic": "orders", "partitions": 4, "partitionBy": "id"}
    to(spark.createDataFrame([(1, "tea")], "id long, item string"), **options).save()
    to(spark.createDataFrame([(2, "jam", 1.5)], NAMES), **options).save()
    topic: Topic[Order] = Topic("orders", Order, partition_by="id", url=tidelog_server.url)
    facts = topic.sync.ready()
    assert (facts.partitions, facts.codec, facts.partition_by) == (4, "plain", "id")
    assert facts.fields == {"id": "int", "item": "str", "price": "float"}
    assert [order for part in records(client, topic) for order in part] == sorted(
        [Order(1, "tea"), Order(2, "jam", 1.5)], key=lambda order: partition_of(order.id, 4)
    )
    topic.sync.close()


def test_keys_of_a_function_are_in_a_column(
    spark: SparkSession, client: Client, to: To, tidelog_server: Server
) -> None:
    topic: Topic[Order] = Topic(
        "orders", Order, partition_by=lambda order: order.item[:1], partitions=4, url=tidelog_server.url
    )
    topic.sync.ready()
    frame = spark.createDataFrame([(n, f"{n % 7} tea", 1.0) for n in range(40)], NAMES)
    with pytest.raises(Exception, match=r"partitioned by \(function\), which is no field: partitionBy must"):
        to(frame, topic="orders").save()
    to(frame.selectExpr("*", "substr(item, 1, 1) as _key"), topic="orders", partitionBy="_key").save()
    parts = records(client, topic)
    assert sum(map(len, parts)) == 40
    assert all(topic.partition(order) == at for at, part in enumerate(parts) for order in part)
    topic.sync.close()


@pytest.mark.parametrize(
    ("rows", "schema", "options", "message"),
    [
        ([(1, "a")], "id long, item string", {"topic": "none"}, "there is no topic 'none': it is made where"),
        ([(1, "a")], "id long, item string", {"partitions": "8"}, "partitions is 4 on the server, 8 here"),
        ([(1, "a")], "id long, item string", {"partitionBy": "item"}, "partition_by is 'id' on the server, 'item'"),
        ([(1, "a")], "id long, item string", {"codec": "json"}, "codec is 'plain' on the server, 'json' here"),
        ([("1", "a")], "id string, item string", {}, "the type of the field 'id' is 'int' on the server, 'str' here"),
        ([(1, b"a")], "id long, item binary", {}, "the type of the field 'item' is 'str' on the server, 'bytes' here"),
        ([("a",)], "item string", {}, "there is no column id, by which topic 'orders' is partitioned"),
        ([(None, "a")], "id long, item string", {}, "a row's id is null, and its partition depends on that"),
        ([(1, ["a"])], "id long, item array<string>", {}, "column item has a type that topic 'orders' with the codec"),
        ([(1, "a")], "id long, item string", {"key": "a"}, "key and topic contradict each other"),
        ([(1, "a")], "id long, item string", {"maxlen": "5"}, "maxlen is given for a topic, whose retention is set on"),
        ([(1, "a")], "id long, item string", {"topic": "a b"}, "a name has 1 to 200 characters, no spaces"),
        ([(1, "a")], "id long, item string", {"partitions": "100001"}, "partitions must be a whole number from 1"),
        ([(1.5,)], "x double", {"topic": "x", "partitions": "2", "partitionBy": "x"}, "column x is float, and"),
        ([(1,)], "_key int", {"topic": "x", "partitions": "2"}, "topic 'x': there is no column to write"),
    ],
)
def test_what_cannot_be_written(
    spark: SparkSession, client: Client, to: To, orders: Topic[Order], rows: list[Any], schema: str,
    options: dict[str, str], message: str,
) -> None:  # fmt: skip
    before = client.redis.get("topic:orders")
    with pytest.raises(Exception, match=message):
        to(spark.createDataFrame(rows, schema), **({"topic": orders.name} | options)).save()
    assert client.redis.get("topic:orders") == before
    assert client.redis.keys("*:[0-9]") == []
    assert client.redis.exists("topic:x") == 0


def test_options_that_need_a_topic(spark: SparkSession, to: To) -> None:
    with pytest.raises(Exception, match="partitions is given without topic"):
        to(spark.range(1), key="a", partitions=3).save()


def test_what_is_no_uuid(spark: SparkSession, client: Client, to: To, tidelog_server: Server) -> None:
    class Thing(msgspec.Struct):
        key: UUID

    topic: Topic[Thing] = Topic("things", Thing, partition_by="key", partitions=2, url=tidelog_server.url)
    topic.sync.ready()
    with pytest.raises(Exception, match="topic 'things': key is '7', which is no UUID with dashes"):
        to(spark.createDataFrame([("7",)], "key string"), topic="things").save()
    topic.sync.close()


def test_retention(spark: SparkSession, client: Client, to: To, tidelog_server: Server) -> None:
    kept: Topic[Order] = Topic("kept", Order, partitions=2, partition_size=10, overflow="drop", url=tidelog_server.url)
    kept.sync.ready()
    full: Topic[Order] = Topic("full", Order, partition_by="id", partitions=1, hard_limit=30, url=tidelog_server.url)
    full.sync.ready()
    frame = spark.createDataFrame([(n, "tea", None) for n in range(40)], NAMES).coalesce(1)
    to(frame, topic="kept").save()
    eventually(lambda: [client.tlen(f"kept:{at}") for at in range(2)] == [10, 10])
    to(frame, topic="full", txnAppId="app", txnVersion=1).save()
    to(frame, topic="full", txnAppId="app", txnVersion=1).save()  # was published: nothing is refused
    with pytest.raises(Exception, match="topic 'full': partition 0 holds 40 entries, and its hard_limit is 30"):
        to(frame, topic="full", txnAppId="app", txnVersion=2).save()
    with pytest.raises(Exception, match="topic 'full': partition 0 holds 40 entries"):
        to(frame, topic="full").save()
    assert client.tlen("full:0") == 40
    assert stages(client) == 0
    client.ttrim("full:0", count=0)
    to(frame, topic="full", txnAppId="app", txnVersion=2).save()
    assert client.tlen("full:0") == 40
    for topic in (kept, full):
        topic.sync.close()


def test_a_version_counts_for_one_topic(spark: SparkSession, client: Client, to: To) -> None:
    for _ in range(2):
        to(spark.range(10), topic="a", partitions=2, txnAppId="app", txnVersion=1).save()
    assert client.tlen("a:0") + client.tlen("a:1") == 10
    admin.delete(client, "a")
    to(spark.range(10), topic="a", partitions=2, txnAppId="app", txnVersion=1).save()
    assert client.tlen("a:0") + client.tlen("a:1") == 10


def test_a_topic_that_changes_while_a_batch_is_written(
    spark: SparkSession, client: Client, to: To, orders: Topic[Order], tidelog_server: Server
) -> None:
    url = tidelog_server.url

    def slow(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            with Client(url) as meanwhile:
                admin.grow(meanwhile, "orders", 8)
            yield batch

    frame = spark.range(100).coalesce(1).mapInArrow(slow, "id long")
    with pytest.raises(Exception, match=r"topic 'orders' has 8 partitions while the batch was written for its 4"):
        to(frame, topic="orders").save()
    assert client.redis.keys("orders:*") == []
    assert stages(client) == 0


class TestStreaming:
    @pytest.fixture
    def copy(self, spark: SparkSession, tidelog_server: Server, checkpoint: str) -> Callable[..., None]:
        """Write what is in stream ``in`` to topic ``orders``, as one query."""

        def copy(**options: Any) -> None:
            reader = spark.readStream.format("tidelog").schema("id long").option("url", tidelog_server.url)
            frame = reader.option("subscribe", "in").option("startingOffsets", "earliest").load()
            writer = frame.writeStream.format("tidelog").option("url", tidelog_server.url).option("topic", "orders")
            writer = writer.option("checkpointLocation", checkpoint).options(**options)
            ended(writer.trigger(availableNow=True).start())

        return copy

    def add(self, client: Client, *ids: int) -> None:
        client.tmappend("in", ["id"], [(id,) for id in ids])  # noqa: A001

    def there(self, client: Client, partitions: int) -> list[list[int]]:
        return [[int(entry["id"]) for entry in client.trange(f"orders:{at}")] for at in range(partitions)]

    def expected(self, ids: list[int], partitions: int) -> list[list[int]]:
        return [[id for id in ids if partition_of(id, partitions) == at] for at in range(partitions)]  # noqa: A001

    @pytest.mark.parametrize("check", ["offsets", "rows"])
    def test_batches_are_written_once_also_after_the_topic_has_grown(
        self, client: Client, copy: Callable[..., None], checkpoint: str, check: str
    ) -> None:
        self.add(client, *range(100))
        copy(partitions="2", partitionBy="id", fenceCheck=check)
        assert self.there(client, 2) == self.expected(list(range(100)), 2)
        self.add(client, *range(100, 200))
        copy(fenceCheck=check)
        both = self.there(client, 2)
        assert both == self.expected(list(range(200)), 2)
        admin.grow(client, "orders", 4)
        forget_last_commit(Path(checkpoint))
        copy(fenceCheck=check)  # the batch is run again, for four partitions, and was published before
        assert self.there(client, 4) == [*both, [], []]
        self.add(client, *range(200, 300))
        copy(fenceCheck=check)
        new = self.expected(list(range(200, 300)), 4)
        assert self.there(client, 4) == [both[0] + new[0], both[1] + new[1], new[2], new[3]]

    def test_a_query_that_finds_no_topic(self, client: Client, copy: Callable[..., None]) -> None:
        self.add(client, 1)
        with pytest.raises(Exception, match="there is no topic 'orders': it is made where the option partitions says"):
            copy()


def forget_last_commit(checkpoint: Path) -> None:
    """As if Spark had died after the last batch was published and before it wrote that down."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
