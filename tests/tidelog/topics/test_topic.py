"""Topics on a real server: facts, retention, sending exactly once."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest
import redis

from tests.tidelog.topics.topickit import Order, orders, run, sent
from tidelog import Client, StaleEpochError
from tidelog.client import calls, steps
from tidelog.testing import Server
from tidelog.topics import (
    Topic,
    TopicError,
    TopicFullError,
    TopicMismatchError,
    admin,
    partition_of,
)


class TestFacts:
    def test_the_first_to_come_writes_them_and_others_compare(self, tidelog_server: Server, client: Client) -> None:
        orders(tidelog_server, partition_size=100).sync.ready()
        assert json.loads(client.redis.get("topic:orders") or b"") == {
            "version": 1, "partitions": 4, "hash": "crc32", "partition_by": "id", "codec": "plain",
            "fields": {"id": "int", "item": "str", "price": "float"}, "servers": None, "id": ANY, "letters_of": [],
            "retention": {
                "partition_size": 100, "max_age_ms": None, "overflow": None, "hard_limit": None, "tier_after": None,
            },
        }  # fmt: skip
        assert orders(tidelog_server, partitions=None).sync.ready().partitions == 4
        assert orders(tidelog_server, overflow="protect").sync.ready().retention.partition_size == 100

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"partitions": 8}, "partitions is 4 on the server, 8 here"),
            ({"partition_by": "item"}, "partition_by is 'id' on the server, 'item' here"),
            ({"partition_by": lambda order: order.id}, r"partition_by is 'id' on the server, '\(function\)' here"),
            ({"codec": "json"}, "codec is 'plain' on the server, 'json' here"),
            ({"partition_size": 7}, "partition_size is None on the server, 7 here"),
            ({"max_age": 60, "overflow": "drop"}, "max_age_ms is None .* 60000 here; overflow is None .* 'drop' here"),
        ],
    )
    def test_another_declaration_is_refused_before_anything_is_sent(
        self, tidelog_server: Server, client: Client, options: dict[str, Any], message: str
    ) -> None:
        orders(tidelog_server).sync.ready()
        before = client.redis.get("topic:orders")
        other = orders(tidelog_server, **options)
        with pytest.raises(TopicMismatchError, match=f"topic 'orders': .*{message}.* tidelog topics") as caught:
            other.sync.send(Order(1, "tea"))
        assert client.redis.get("topic:orders") == before
        assert client.redis.keys("orders:*") == []
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    def test_a_field_may_be_added_but_not_change_its_type(self, tidelog_server: Server) -> None:
        class Newer(msgspec.Struct):
            id: int
            item: str
            gift: bool = False

        class Other(msgspec.Struct):
            id: str
            item: str

        orders(tidelog_server).sync.ready()
        newer: Topic[Any] = Topic("orders", Newer, partition_by="id", url=tidelog_server.url)
        assert newer.sync.ready().fields == {"id": "int", "item": "str", "price": "float", "gift": "bool"}
        assert orders(tidelog_server).sync.ready().fields["gift"] == "bool"
        with pytest.raises(TopicMismatchError, match="the type of the field 'id' is 'int' on the server, 'str' here"):
            Topic("orders", Other, partition_by="id", url=tidelog_server.url).sync.ready()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("not JSON", "does not have the settings of a topic"),
            ('{"version": 1}', "does not have the settings of a topic"),
            ('{"version": 2}', "settings of version 2, this program supports 1: it is too old"),
            ("[" * 100_000, "does not have the settings of a topic"),
            (
                '{"version": 1, "partitions": 2000000000, "partition_by": "id", "codec": "plain"}',
                "partitions must be a whole number from 1 to 100,000: 2000000000",
            ),
        ],
    )
    def test_what_is_not_facts_is_not_overwritten(
        self, tidelog_server: Server, client: Client, text: str, message: str
    ) -> None:
        client.redis.set("topic:orders", text)
        with pytest.raises(TopicError, match=message):
            orders(tidelog_server).sync.ready()
        assert client.redis.get("topic:orders") == text.encode()

    def test_many_that_come_at_once_agree(self, tidelog_server: Server) -> None:
        refused: list[int] = []

        def declare(partitions: int) -> None:
            topic = orders(tidelog_server, partitions=partitions)
            try:
                topic.sync.ready()
            except TopicMismatchError:
                refused.append(partitions)
            topic.sync.close()

        threads = [threading.Thread(target=declare, args=(n % 2 + 1,)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refused in ([1] * 10, [2] * 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partitions": 0}, "partitions must be a whole number from 1 to 100,000: 0"),
        ({"partitions": "4"}, "partitions must be a whole number"),
        ({"partition_by": "sku"}, r"Order has no field 'sku' \(it has id, item, price\)"),
        ({"partition_by": "price"}, "the field 'price' may be None, and a partition key is str, int, bytes or UUID"),
        ({"partition_by": 3}, "partition_by is the name of a field or a function, not 3"),
        ({"partition_size": 0}, "partition_size must be a whole number from 1: 0"),
        ({"max_age": -1}, "max_age must be positive"),
        ({"max_age": "1h"}, "max_age is seconds or a timedelta: '1h'"),
        ({"overflow": "block"}, "overflow must be 'protect' or 'drop': 'block'"),
        ({"overflow": "drop"}, "overflow='drop' needs partition_size or max_age"),
        ({"overflow": "drop", "partition_size": 5, "hard_limit": 9}, "hard_limit is for overflow='protect'"),
        ({"partition_size": 10, "hard_limit": 5}, r"hard_limit \(5\) is below partition_size \(10\)"),
    ],
)
def test_declarations_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TopicError, match=message):
        Topic("orders", Order, **options)


@pytest.mark.parametrize("name", ["", "a b", "topic", "a*", "a\n", "x" * 201, 5])
def test_names_that_cannot_be_used(name: Any) -> None:
    with pytest.raises(TopicError, match="a name has 1 to 200 characters"):
        Topic(name, Order)


def test_without_a_server() -> None:
    topic: Topic[Order] = Topic("orders", Order, partition_by="id")
    with pytest.raises(TopicError, match=r"has no server: Topic\(..., url='redis://...'\), or topic.use\(client\)"):
        topic.sync.send(Order(1, "tea"))
    with pytest.raises(TopicError, match="the number of partitions is known after ready"):
        topic.partition(Order(1, "tea"))
    assert Topic("orders", Order, partitions=3).place(2).key == "orders:2"


class TestHardLimit:
    def test_a_full_partition_refuses_and_opens_again(self, tidelog_server: Server, client: Client) -> None:
        topic = orders(tidelog_server, partitions=1, hard_limit=5)
        for number in range(5):
            topic.sync.send(Order(number, "x"))
        message = "partition 0 holds 5 entries, and its hard_limit is 5"
        with pytest.raises(TopicFullError, match=message) as caught:
            topic.sync.send(Order(5, "x"))
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        with pytest.raises(TopicFullError, match=message):
            topic.sync.send_many([Order(5, "x")])
        with pytest.raises(TopicFullError, match=message):
            topic.sync.producer("p").send_many([Order(5, "x")])
        assert client.tlen("orders:0") == 5
        client.ttrim("orders:0", count=1)
        topic.sync.send(Order(5, "x"))
        assert client.tlen("orders:0") == 2


class TestProducer:
    def test_a_batch_counts_once(self, tidelog_server: Server, client: Client) -> None:
        topic = orders(tidelog_server)
        batches = [[Order(n, f"{batch}") for n in range(batch * 10, batch * 10 + 10)] for batch in range(5)]
        producer = topic.sync.producer("import")
        assert producer.last() == 0
        for number, batch in enumerate(batches[:3], 1):
            assert producer.send_many(batch, number) == (True, 10)
        again = orders(tidelog_server).sync.producer("import")  # after a restart
        published = [again.send_many(batch, number).now for number, batch in enumerate(batches, 1)]
        assert published == [False] * 3 + [True] * 2
        assert again.last() == 5
        assert sorted(order.id for there in sent(client, topic) for order in there) == list(range(50))

    def test_a_topic_that_grows_between_two_attempts(
        self, tidelog_server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tidelog.topics.topic.CHECKED", 0.0)  # seconds pass between all calls
        orders(tidelog_server).sync.ready()
        topic = orders(tidelog_server, partitions=None)
        producer = topic.sync.producer("import")
        records = [Order(n, "x") for n in range(9000)]
        publishing = producer.publishing(iter(records), 1)

        def lost(made: Sequence[calls.Call[Any]]) -> list[Any]:
            if made[0].args[0] == "TPUBLISH":
                raise redis.ConnectionError("no answer")
            return client.together(*made, raise_on_error=False)

        with pytest.raises(redis.ConnectionError):
            steps.drive(lost, publishing())
        admin.grow(client, "orders", 8)
        assert steps.run(client, publishing()).entries == 9000
        for at, there in enumerate(sent(client, topic, 8)):
            assert there == [record for record in records if partition_of(record.id, 8) == at]
        topic.sync.close()

    def test_numbers_of_its_own(self, tidelog_server: Server, client: Client) -> None:
        topic = orders(tidelog_server)
        producer = topic.sync.producer("p")
        assert [producer.send_many([Order(n, "x")]).now for n in range(3)] == [True] * 3
        assert producer.last() == 3
        assert producer.send_many([]) == (False, 0)
        assert sum(map(len, sent(client, topic))) == 3

    def test_two_programs_of_one_name(self, tidelog_server: Server, client: Client) -> None:
        one, other = (orders(tidelog_server).sync.producer("p") for _ in range(2))
        assert one.last() == other.last() == 0
        one.send_many([Order(1, "one")])
        with pytest.raises(redis.ResponseError, match="CONFLICT"):
            other.send_many([Order(2, "other")])
        one.send_many([Order(3, "one")])
        with pytest.raises(StaleEpochError):
            other.send_many([Order(2, "other")])
        assert sorted(o.id for there in sent(client, orders(tidelog_server)) for o in there) == [1, 3]

    @pytest.mark.slow
    def test_killed_servers_lose_and_double_nothing(self, tidelog_server: Server, client: Client) -> None:
        topic = orders(tidelog_server)
        stop = threading.Event()

        def disturb() -> None:
            while not stop.wait(0.15):
                tidelog_server.kill()
                tidelog_server.start()

        async def use(topic: Topic[Order]) -> None:
            producer = topic.producer("p")
            await topic.ready()
            disturber.start()
            for number in range(40):
                records = [Order(n, "x") for n in range(number * 50, number * 50 + 50)]
                assert (await producer.send_many(records)).entries in (0, 50)  # 0: the reply was lost

        disturber = threading.Thread(target=disturb)
        try:
            run(use, topic)
        finally:
            stop.set()
            disturber.join()
        assert sorted(o.id for there in sent(client, topic) for o in there) == list(range(2000))
        assert client.run(calls.tfence(f"producer:orders:{topic.settings.id}:p")) == 40

    @pytest.mark.parametrize("number", [0, -1, True, "1"])
    def test_numbers_that_are_none(self, tidelog_server: Server, number: Any) -> None:
        with pytest.raises(TopicError, match="a batch's number is a whole number from 1"):
            orders(tidelog_server).sync.producer("p").send_many([Order(1, "x")], number)

    @pytest.mark.parametrize("name", ["", "a b"])
    def test_names_that_are_none(self, tidelog_server: Server, name: str) -> None:
        with pytest.raises(TopicError, match="the name of a producer"):
            orders(tidelog_server).producer(name)


class TestAdmin:
    def test_grow(self, tidelog_server: Server, client: Client) -> None:
        topic = orders(tidelog_server)
        topic.sync.send_many(Order(n, "x") for n in range(40))
        client.tread("orders:0", "0", 1, group="g")
        with pytest.raises(TopicError, match="has 4 partitions: it can grow to a multiple of that, not to 6"):
            admin.grow(client, "orders", 6)
        with pytest.raises(TopicError, match=r"is not idle: .* entries of orders:0 are not finished"):
            admin.grow(client, "orders", 8)
        client.tread("orders:0", "0", 1000, group="g")
        assert admin.grow(client, "orders", 8).partitions == 8
        with pytest.raises(TopicMismatchError):
            orders(tidelog_server).sync.ready()
        grown = orders(tidelog_server, partitions=None)
        grown.sync.send(Order(7, "after"))
        assert sent(client, grown, 8)[partition_of(7, 8)][-1] == Order(7, "after")

    def test_running_programs_notice(
        self, tidelog_server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tidelog.topics.topic.CHECKED", 0.0)
        strict, follower = orders(tidelog_server), orders(tidelog_server, partitions=None)
        for topic in (strict, follower):
            topic.sync.send(Order(5, "before"))
        admin.grow(client, "orders", 8)
        with pytest.raises(TopicMismatchError):
            strict.sync.send(Order(5, "after"))

        def records() -> Iterator[Order]:
            yield from (Order(5, "after") for _ in range(9000))
            admin.grow(client, "orders", 16)
            yield from (Order(5, "later") for _ in range(9000))

        assert follower.sync.send_many(records()) == 18_000
        assert client.tlen(f"orders:{partition_of(5, 8)}") >= 8192
        assert client.tlen(f"orders:{partition_of(5, 16)}") > 0
        assert [partition_of(5, n) for n in (4, 8, 16)] == [2, 6, 14]

    def test_a_topic_that_does_not_exist(self, client: Client) -> None:
        for use in (admin.settings_of, admin.delete):
            with pytest.raises(TopicError, match="there is no topic 'nope'"):
                use(client, "nope")

    def test_delete_leaves_nothing(self, tidelog_server: Server, client: Client) -> None:
        orders(tidelog_server).sync.send_many(Order(n, "x") for n in range(40))
        client.redis.set("other", "stays")
        assert admin.delete(client, "orders") == 4
        assert client.redis.keys() == [b"other"]
