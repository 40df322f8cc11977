"""Records that are sent later: the server delays them, and they join the partition of their key."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.waiting import eventually
from tidelog import Client, StreamId
from tidelog.testing import Server
from tidelog.topics import CodecError, Topic, TopicError, TopicFullError, admin, partition_of


class Order(msgspec.Struct):
    id: int
    item: str = "tea"


def orders(server: Server, **options: Any) -> Topic[Order]:
    return Topic("orders", Order, **{"partition_by": "id", "partitions": 4, "url": server.url, **options})


def arrived(client: Client, topic: Topic[Any], partitions: int = 4) -> list[list[int]]:
    """The ids of the records in each partition."""
    return [[topic.decode(entry, at).id for entry in client.trange(f"{topic.name}:{at}")] for at in range(partitions)]


def number_of(client: Client, topic: Topic[Any], partitions: int = 4) -> int:
    return sum(map(len, arrived(client, topic, partitions)))


def test_delayed_records_are_in_the_partition_of_their_key(tidelog_server: Server, client: Client) -> None:
    topic = orders(tidelog_server)
    token = topic.sync.send(Order(7), delay=timedelta(hours=1))
    topic.sync.send(Order(7), at=datetime(2040, 1, 1, tzinfo=UTC))
    found = client.tdelay_list(f"orders:{partition_of(7, 4)}").entries
    assert [each.fields for each in found] == [{b"id": b"7", b"item": b"tea"}] * 2
    assert (found[0].token, found[1].due) == (str(token), 2_208_988_800_000)
    assert arrived(client, topic) == [[], [], [], []]
    assert admin.waiting(client, "orders") == 2
    assert client.tdelay_cancel(f"orders:{partition_of(7, 4)}", str(token))
    assert admin.waiting(client, "orders") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delay": 1, "at": datetime.now(UTC)}, "delay and at exclude each other"),
        ({"delay": -1}, "delay is from 0 seconds"),
        ({"delay": float("nan")}, "delay is from 0 seconds"),
        ({"delay": timedelta(days=40_000)}, "to 100 years"),
        ({"delay": True}, "delay is seconds or a timedelta: True"),
        ({"delay": "5"}, "delay is seconds or a timedelta: '5'"),
        ({"at": datetime(2040, 1, 1)}, "at is a datetime with its zone"),  # noqa: DTZ001
        ({"at": 5}, "at is a datetime with its zone"),
    ],
)
def test_a_delay_that_makes_no_sense(
    tidelog_server: Server, client: Client, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TopicError, match=f"topic 'orders': .*{message}"):
        orders(tidelog_server).sync.send(Order(7), **options)
    assert client.redis.keys("*") == []


def test_records_are_checked_when_they_are_sent(tidelog_server: Server, client: Client) -> None:
    with pytest.raises(CodecError):
        orders(tidelog_server).sync.send(Order("x"), delay=1)  # type: ignore[arg-type]
    assert admin.waiting(client, "orders") == 0


def test_the_hard_limit_holds_when_a_record_is_sent(tidelog_server: Server, client: Client) -> None:
    topic = orders(tidelog_server, hard_limit=2)
    at = partition_of(7, 4)
    for _ in range(2):
        topic.sync.send(Order(7))
    with pytest.raises(TopicFullError, match=f"partition {at} holds 2"):
        topic.sync.send(Order(7), delay=1)
    with pytest.raises(TopicFullError, match=f"partition {at} holds 2"):
        topic.sync.send_many([Order(8), Order(7)], delay=1)
    assert admin.waiting(client, "orders") == 0
    client.ttrim(f"orders:{at}", count=0)
    topic.sync.send(Order(7), delay=0)
    topic.sync.send_many([Order(7), Order(7)], delay=0)
    eventually(lambda: len(arrived(client, topic)[at]) == 3)  # the limit is that of sends


def test_each_record_arrives_once_in_its_partition(tidelog_server: Server, client: Client) -> None:
    topic = orders(tidelog_server)
    assert topic.sync.send_many((Order(number) for number in range(1000)), delay=0.1) == 1000
    for number in range(1000, 1010):
        topic.sync.send(Order(number), delay=0)
    topic.sync.send(Order(7), delay=3600)
    eventually(lambda: number_of(client, topic) == 1010)
    found = arrived(client, topic)
    assert sorted(n for part in found for n in part) == list(range(1010))
    assert all(partition_of(n, 4) == at for at, part in enumerate(found) for n in part)
    assert admin.waiting(client, "orders") == 1


def test_without_keys_partitions_take_turns(tidelog_server: Server, client: Client) -> None:
    topic = orders(tidelog_server, partition_by=None)
    for number in range(8):
        topic.sync.send(Order(number), delay=0)
    topic.sync.send_many([Order(number) for number in range(8)], delay=0)
    eventually(lambda: [len(part) for part in arrived(client, topic)] == [4, 4, 4, 4])


def test_records_arrive_in_the_order_of_their_times(tidelog_server: Server, client: Client) -> None:
    topic = orders(tidelog_server, partitions=1)
    began = datetime.now(UTC) + timedelta(seconds=1)
    for number in range(20):
        topic.sync.send(Order(number), at=began - timedelta(milliseconds=number))
    eventually(lambda: arrived(client, topic, 1) == [list(range(20))[::-1]])


def test_the_policy_of_the_topic_applies(tidelog_server: Server, client: Client) -> None:
    topic = orders(tidelog_server, partition_size=3, overflow="drop", partitions=1)
    for number in range(5):
        topic.sync.send(Order(number), delay=0)
    eventually(lambda: arrived(client, topic, 1) == [[2, 3, 4]])


def test_from_asyncio(tidelog_server: Server, client: Client) -> None:
    async def send() -> StreamId:
        topic = orders(tidelog_server, partitions=1)
        try:
            assert await topic.send_many([Order(8), Order(9)], delay=5000) == 2
            return await topic.send(Order(7), delay=6000)
        finally:
            await topic.close()

    sent = asyncio.run(send())
    found = client.tdelay_list("orders:0").entries
    assert found[2].token == str(sent)
    assert [each.fields[b"id"] for each in found] == [b"8", b"9", b"7"]


def test_a_kill_loses_and_repeats_nothing(tidelog_server: Server, client: Client) -> None:
    topic = orders(tidelog_server)
    topic.sync.send_many((Order(number) for number in range(300)), delay=0.3)
    tidelog_server.kill()
    tidelog_server.start()
    eventually(lambda: number_of(client, topic) == 300)
    assert sorted(n for part in arrived(client, topic) for n in part) == list(range(300))


def test_a_topic_is_deleted_with_its_delayed_records(tidelog_server: Server, client: Client) -> None:
    orders(tidelog_server).sync.send(Order(7), delay=3600)
    admin.delete(client, "orders")
    assert client.redis.keys("orders*") == []


def test_fields_of_delayed_records_are_not_lacking(tidelog_server: Server, client: Client) -> None:
    topic = orders(tidelog_server)
    settings = topic.sync.ready()
    assert admin.newest_fields(client, "orders", settings) is None
    topic.sync.send(Order(7), delay=3600)
    assert admin.newest_fields(client, "orders", settings) == {"id", "item"}


@pytest.mark.parametrize("name", ["topic", "topic:orders", "app", "app:shop:owner:bill"])
def test_names_whose_streams_would_be_other_things(name: str) -> None:
    with pytest.raises(TopicError, match="is not 'topic' or 'app'"):
        Topic(name, Order)
