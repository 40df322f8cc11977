"""The source in a cluster of two groups: each stream is read from the leader that has it, also through changes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.replication.cluster import cluster
from tests.replication.clusters import Groups
from tests.tidelog.client.rediscluster import keys_of_both
from tests.tidelog.spark.sparkkit import QUERY_SECONDS, ended
from tests.waiting import eventually
from tidelog import Client
from tidelog.spark.offsets import Offsets
from tidelog.spark.options import for_source
from tidelog.spark.optionvalues import STREAM, OptionValues
from tidelog.topics import Topic
from tidelog.transport.access import Access
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection
from tidelog.transport.slots import slot_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

A, B = keys_of_both(8)


class Sale(msgspec.Struct):
    n: int


@pytest.fixture
def client(groups: Groups) -> Iterator[Client]:
    with Client(url_of(groups)) as client:
        yield client


def url_of(groups: Groups) -> str:
    return f"redis://127.0.0.1:{groups.nodes[0].port}"


def fill(client: Client, key: str, *numbers: int) -> None:
    client.tmappend(key, ["n"], [(n,) for n in numbers])


def read(spark: SparkSession, groups: Groups, **options: str) -> Counter[int]:
    reader = spark.read.format("tidelog").schema("n long").option("url", url_of(groups)).options(**options)
    return Counter(row["n"] for row in reader.load().collect())


def ranges(groups: Groups) -> list[int]:
    """How many TRANGE each leader has answered."""
    return [int(node.redis.info("commandstats").get("cmdstat_trange", {"calls": 0})["calls"]) for node in groups.nodes]


def test_streams_of_both_groups(spark: SparkSession, groups: Groups, client: Client) -> None:
    fill(client, A[0], *range(500))
    fill(client, B[0], *range(500, 1000))
    before = ranges(groups)
    assert read(spark, groups, subscribe=f"{A[0]},{B[0]}") == Counter(range(1000))
    first, second = (now - then for now, then in zip(ranges(groups), before, strict=True))
    assert first == second == 2, "one to look at the names of an entry, and one by the task"
    assert read(spark, groups, subscribe=f"{A[0]},{B[0]}", minPartitions="6") == Counter(range(1000))
    assert read(spark, groups, subscribe=f"{B[0]},{A[0]}", maxPartitions="1") == Counter(range(1000))
    assert read(spark, groups, subscribe=f"{A[0]},{B[0]}", readFrom="replica") == Counter(range(1000))


def test_a_pattern_matches_streams_of_all_groups(spark: SparkSession, groups: Groups, client: Client) -> None:
    fill(client, A[1], 1)
    fill(client, B[1], 2)
    assert read(spark, groups, subscribePattern=f"{A[1]}|{B[1]}") == Counter([1, 2])


def test_a_topic_on_both_groups(spark: SparkSession, groups: Groups, client: Client) -> None:
    topic: Topic[Sale] = Topic("sales", Sale, partitions=6, partition_by="n")
    assert {slot_of(f"sales:{at}") // 8192 for at in range(6)} == {0, 1}
    topic.use(sync=client)
    topic.sync.send_many([Sale(n) for n in range(300)])
    reader = spark.read.format("tidelog").option("url", url_of(groups)).option("topic", "sales").load()
    assert Counter(int(row["fields"]["n"]) for row in reader.collect()) == Counter(range(300))


class Collected:
    """The rows of a streaming query, by batch: a batch that is repeated replaces the former one."""

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = [row["n"] for row in frame.collect()]

    @property
    def rows(self) -> Counter[int]:
        return Counter(n for rows in self.batches.values() for n in rows)


def stream(spark: SparkSession, url: str, checkpoint: str, into: Callable[..., None], **options: str) -> Any:
    options |= {"url": url, "startingOffsets": "earliest", "fetchOffset.retryIntervalMs": "100"}
    reader = spark.readStream.format("tidelog").schema("n long").options(**options)
    return reader.load().writeStream.foreachBatch(into).option("checkpointLocation", checkpoint)


def test_a_slot_is_assigned_to_the_other_group_during_a_query(
    spark: SparkSession, groups: Groups, client: Client, checkpoint: str
) -> None:
    found = Collected()
    fill(client, B[2], 1)
    query = stream(spark, url_of(groups), checkpoint, found, subscribe=f"{A[2]},{B[2]}").start()
    try:
        eventually(lambda: found.rows == Counter([1]) or query.exception(), seconds=QUERY_SECONDS)
        groups.assign(str(slot_of(A[2])), to="2", at=1)
        fill(client, A[2], 2, 3)
        fill(client, B[2], 4)
        eventually(lambda: found.rows == Counter([1, 2, 3, 4]) or query.exception(), seconds=QUERY_SECONDS)
        assert query.exception() is None
        assert groups.leader(2).say("TLEN", A[2]) == 2
    finally:
        query.stop()


def test_a_leader_is_killed_during_a_query(spark: SparkSession, checkpoint: str) -> None:
    """The replica of the second group takes over, and the query continues."""
    found = Collected()
    with cluster() as servers:
        groups = Groups(servers, replica_acks="insync")
        replica = groups.groups[1].add()
        groups.leader(2)  # waits until both members are in sync
        with Client(url_of(groups)) as client:
            fill(client, A[0], *range(300))
            fill(client, B[0], *range(300, 600))

            def killing(frame: DataFrame, batch: int) -> None:
                if batch == 2:
                    groups.nodes[1].kill()
                found(frame, batch)

            writer = stream(
                spark, url_of(groups), checkpoint, killing, subscribe=f"{A[0]},{B[0]}", maxOffsetsPerTrigger="100"
            )  # fmt: skip
            ended(writer.trigger(availableNow=True).start())
            assert found.rows == Counter(range(600))
        assert groups.groups[1].leader() is replica
        assert replica.say("TLEN", B[0]) == 300


def test_an_idle_query_waits_at_both_leaders(groups: Groups, client: Client) -> None:
    source = for_source(OptionValues({"url": url_of(groups), "subscribe": f"{A[3]},{B[3]}"}), STREAM)
    with closing(Offsets(source)) as offsets:

        def waits() -> bool:
            """Ask as Spark does, and look whether both leaders wait."""
            offsets.lasts()
            lists = [node.redis.client_list() for node in groups.nodes]
            waiting = [{each["name"] for each in clients if each["cmd"] == "twait"} for clients in lists]
            return waiting == [{f"{source.name}-watch"}] * 2

        for key in (A[3], B[3]):
            eventually(waits)
            last = client.tappend(key, {"n": 1})
            eventually(lambda key=key, last=last: offsets.lasts()[key] == last)  # type: ignore[misc]


def test_a_user_who_cannot_read_the_map(spark: SparkSession, groups: Groups) -> None:
    """A pattern needs all groups: keys of the others are not missed without an error."""
    for node in groups.nodes:
        node.say("ACL", "SETUSER", "few", "on", ">few", "~*", "+@all", "-cluster|slots")
    with pytest.raises(Exception, match=r"NOPERM .*cluster\|slots"):
        read(spark, groups, subscribePattern="key:.*", username="few", password="few")


def test_all_groups_are_found_while_leaders_start_again() -> None:
    """A member that starts does not list the slots of its own group, so it seems that there is only one group."""
    with cluster() as servers:
        groups = Groups(servers)
        ended = threading.Event()
        found = set[int]()

        def look() -> None:
            access = Access((url_of(groups),), retries=0)
            while not ended.wait(0.002):
                with closing(LeaderConnection(access, "test")) as connection, suppress(OSError, ReplyError):
                    found.add(len(connection.leaders()))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            for node in groups.nodes:
                node.kill()
                node.start()
                groups.agree()
            eventually(lambda: found)
        finally:
            ended.set()
            thread.join()
        assert found == {2}


def test_leaders_of_groups_that_join() -> None:
    with cluster() as servers:
        alone = Groups(servers, groups=1)
        with closing(LeaderConnection(Access((url_of(alone),)), "test")) as connection:
            assert len(connection.leaders()) == 1
            alone.add()
            assert len(connection.leaders()) == 1
            alone.assign("0-99", to="2")
            assert len(connection.leaders()) == 2
            alone.add()
            alone.assign("100-199", to="3")
            assert len(connection.leaders()) == 3
