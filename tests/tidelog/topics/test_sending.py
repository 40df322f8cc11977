"""Records to a real server: where they go, in which order, and what happens to those that can't."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from tests.tidelog.topics.topickit import Order, orders, run, sent
from tidelog import Client
from tidelog.testing import Server
from tidelog.topics import (
    CodecError,
    Topic,
    partition_of,
)


class TestSending:
    def test_records_go_where_their_key_belongs_in_order(self, tidelog_server: Server, client: Client) -> None:
        topic = orders(tidelog_server)
        records = [Order(n % 37, f"item {n}", n / 2 if n % 3 else None) for n in range(5000)]

        async def use(topic: Topic[Order]) -> None:
            for record in records[:20]:
                await topic.send(record)
            assert await topic.send_many(records[20:3000]) == 2980

        run(use, topic)
        assert topic.sync.send_many(iter(records[3000:4990])) == 1990
        for record in records[4990:]:
            topic.sync.send(record)
        for at, there in enumerate(sent(client, topic)):
            assert there == [record for record in records if partition_of(record.id, 4) == at]
        topic.sync.close()

    def test_tasks_that_send_at_once_keep_the_order_in_which_they_called(
        self, tidelog_server: Server, client: Client
    ) -> None:
        topic = orders(tidelog_server)
        records = [Order(n % 5, f"{n}") for n in range(3000)]
        ids = run(lambda topic: asyncio.gather(*[topic.send(record) for record in records]), topic)
        for at, there in enumerate(sent(client, topic)):
            mine = [number for number, record in enumerate(records) if partition_of(record.id, 4) == at]
            assert there == [records[number] for number in mine]
            assert [ids[number] for number in mine] == sorted(ids[number] for number in mine)

    def test_an_async_iterable(self, tidelog_server: Server, client: Client) -> None:
        async def records() -> AsyncIterator[Order]:
            for number in range(10_000):
                yield Order(number, "x")

        topic = orders(tidelog_server)
        assert run(lambda topic: topic.send_many(records()), topic) == 10_000
        assert sum(map(len, sent(client, topic))) == 10_000

    def test_without_a_key_partitions_take_turns(self, tidelog_server: Server, client: Client) -> None:
        topic = orders(tidelog_server, partition_by=None)
        topic.sync.send_many(Order(n, "x") for n in range(8))
        assert [len(there) for there in sent(client, topic)] == [2, 2, 2, 2]

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_many_that_are_not_alike_stay_in_order(
        self, tidelog_server: Server, client: Client, asynchronous: bool
    ) -> None:
        more = [{"more": "x" * n} for n in range(900)]
        records = [{"key": f"{n % 11}", "n": f"{n}"} | (more[n % 900] if n // 700 % 2 else {}) for n in range(20_000)]
        topic: Topic[dict[str, str]] = Topic("mixed", partition_by="key", partitions=3, url=tidelog_server.url)
        if asynchronous:
            assert run(lambda topic: topic.send_many(iter(records)), topic) == 20_000  # type: ignore[arg-type]
        else:
            assert topic.sync.send_many(iter(records)) == 20_000
        for at in range(3):
            there = [topic.decode(entry, at) for entry in client.trange(topic.stream(at))]
            assert there == [record for record in records if partition_of(record["key"], 3) == at]
        topic.sync.close()

    def test_large_records_leave_in_small_windows(self, tidelog_server: Server, client: Client) -> None:
        held: list[int] = []

        def records() -> Iterator[dict[str, str]]:
            for number in range(60):
                held.append(sum(client.tlen(f"large:{at}") for at in range(2)))
                yield {"n": str(number), "text": "x" * 1_000_000}

        topic: Topic[dict[str, str]] = Topic("large", partitions=2, url=tidelog_server.url)
        assert topic.sync.send_many(records()) == 60
        assert sum(client.tlen(f"large:{at}") for at in range(2)) == 60
        assert held[45] > 0  # 16 were held before their size was known, then some 8 MB at a time
        topic.sync.close()

    def test_records_that_are_suddenly_large_leave_in_small_commands(
        self, tidelog_server: Server, client: Client
    ) -> None:
        topic = orders(tidelog_server, partitions=1)
        records = [Order(n, "small") for n in range(600)] + [Order(n, "x" * (1 << 20)) for n in range(20)]
        client.redis.config_set("client-query-buffer-limit", "8mb")
        try:
            assert topic.sync.send_many(records) == len(records)
        finally:
            client.redis.config_set("client-query-buffer-limit", "1gb")
            topic.sync.close()
        assert sent(client, topic, 1) == [records]

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_a_wrong_record_among_many(self, tidelog_server: Server, client: Client, asynchronous: bool) -> None:
        topic = orders(tidelog_server)
        records = [Order(n, "x") for n in range(20_000)]
        records[17_000] = Order("17000", "x")  # type: ignore[arg-type]

        def send() -> None:
            if asynchronous:
                run(lambda topic: topic.send_many(records), topic)
            else:
                topic.sync.send_many(records)

        with pytest.raises(CodecError, match="the field 'id' is int, not str '17000'"):
            send()
        assert sum(map(len, sent(client, topic))) == 16_384  # the windows before it
        topic.sync.close()

    def test_a_window_that_is_refused_ends_it(self, tidelog_server: Server, client: Client) -> None:
        topic = orders(tidelog_server)
        topic.sync.ready()
        client.redis.set(topic.stream(partition_of(16_000, 4)), "not a stream")
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            topic.sync.send_many(Order(16_000 if 16_000 <= n < 16_100 else 3, "x") for n in range(50_000))
        assert client.tlen(topic.stream(partition_of(3, 4))) < 20_000
        topic.sync.close()

    def test_sending_many_can_be_cancelled(self, tidelog_server: Server, client: Client) -> None:
        async def use(topic: Topic[Order]) -> None:
            task = asyncio.create_task(topic.send_many(Order(n, "x") for n in range(10_000_000)))
            while not client.tlen(topic.stream(0)):  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await topic.send_many([Order(1, "after")]) == 1

        topic = orders(tidelog_server)
        run(use, topic)
        assert sent(client, topic)[partition_of(1, 4)][-1] == Order(1, "after")

    def test_a_function_makes_the_key(self, tidelog_server: Server, client: Client) -> None:
        topic = orders(tidelog_server, partition_by=lambda order: order.item[0])
        topic.sync.send_many([Order(1, "tea"), Order(2, "toast"), Order(3, "milk")])
        assert Order(2, "toast") in sent(client, topic)[partition_of("t", 4)]
        wrong = orders(tidelog_server, partition_by=lambda order: order.price)
        with pytest.raises(CodecError, match=r"partition_by: a partition key is str, .* not float"):
            wrong.sync.send(Order(1, "tea", 2.5))

    def test_a_cancelled_task_does_not_stop_the_others(self, tidelog_server: Server, client: Client) -> None:
        async def use(topic: Topic[Order]) -> None:
            await topic.ready()
            tasks = [asyncio.create_task(topic.send(Order(n, "x"))) for n in range(50)]
            await asyncio.sleep(0)
            tasks[7].cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert [n for n, result in enumerate(done) if isinstance(result, BaseException)] == [7]

        topic = orders(tidelog_server)
        run(use, topic)
        assert sum(map(len, sent(client, topic))) in (49, 50)

    def test_a_refused_record_does_not_fail_its_neighbours(self, tidelog_server: Server, client: Client) -> None:
        async def use(topic: Topic[Order]) -> None:
            await topic.ready()
            client.redis.set(topic.stream(partition_of(1, 4)), "not a stream")
            others = [n for n in range(20) if partition_of(n, 4) != partition_of(1, 4)]
            results = await asyncio.gather(*[topic.send(Order(n, "x")) for n in (1, *others)], return_exceptions=True)
            kinds = [type(result) for result in results]
            assert kinds[0] is redis.ResponseError
            assert "WRONGTYPE" in str(results[0])
            assert redis.ResponseError not in kinds[1:]

        run(use, orders(tidelog_server))

    def test_the_connection_comes_back(self, tidelog_server: Server, client: Client) -> None:
        async def use(topic: Topic[Order]) -> None:
            await topic.send(Order(1, "before"))
            await asyncio.to_thread(tidelog_server.kill)
            with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
                await topic.send(Order(1, "lost"))
            await asyncio.to_thread(tidelog_server.start)
            await topic.send(Order(1, "after"))

        topic = orders(tidelog_server)
        run(use, topic)
        assert [order.item for order in sent(client, topic)[partition_of(1, 4)]] == ["before", "after"]
