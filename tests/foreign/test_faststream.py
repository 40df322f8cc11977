"""FastStream's Redis broker: stream subscribers with and without groups, acknowledgement, claims, a crash."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest
import redis

from tests.foreign.servers import Target, becomes, pending

pytest.importorskip("faststream", reason="no FastStream here (pip install 'tidelog[foreign]')")

from faststream import AckPolicy, FastStream
from faststream.redis import RedisBroker, RedisStreamMessage, StreamSub, TestApp

QUICKLY = 20  # ms that a blocking read waits: FastStream reads again and again


def broker_of(target: Target, **options: Any) -> RedisBroker:
    return RedisBroker(target.url, log_level=logging.DEBUG, **options)


def test_consumers_of_a_group_share_and_groups_repeat(target: Target) -> None:
    async def play() -> None:
        broker = broker_of(target)
        got: dict[str, list[int]] = {"a1": [], "a2": [], "a3": [], "b1": []}

        def listen(group: str, consumer: str) -> None:
            @broker.subscriber(
                stream=StreamSub("orders", group=group, consumer=consumer, max_records=3, polling_interval=QUICKLY)
            )
            async def handle(number: int) -> None:
                got[consumer].append(number)
                await asyncio.sleep(0)

        for consumer in got:
            listen(consumer[0], consumer)
        async with broker:
            await broker.start()
            for number in range(60):
                await broker.publish(number, stream="orders")
            await becomes(lambda: sum(map(len, got.values())) == 120)
            await becomes(lambda: pending(target.port, "orders", "a") == pending(target.port, "orders", "b") == 0)
        assert got["b1"] == list(range(60))
        assert Counter(got["a1"] + got["a2"] + got["a3"]) == dict.fromkeys(range(60), 1)

    asyncio.run(play())
    with redis.Redis(port=target.port, decode_responses=True) as client:
        groups = {group["name"]: group for group in client.xinfo_groups("orders")}
        assert (groups["a"]["consumers"], groups["a"]["lag"]) == (3, 0)
        assert (groups["b"]["consumers"], groups["b"]["lag"]) == (1, 0)
        assert [consumer["name"] for consumer in client.xinfo_consumers("orders", "a")] == ["a1", "a2", "a3"]


def test_publishing_caps_a_stream(target: Target) -> None:
    async def play() -> None:
        async with broker_of(target) as broker:
            for number in range(1500):
                await broker.publish("x" * 100 + str(number), stream="capped", maxlen=10)

    asyncio.run(play())
    with redis.Redis(port=target.port) as client:
        assert 10 <= client.xlen("capped") < 1000  # maxlen is approximate: whole nodes go
        [(_, fields)] = client.xrevrange("capped", count=1)
        assert b"1499" in fields[b"__data__"]


def test_reading_without_a_group_begins_where_it_is_told(target: Target) -> None:
    async def play() -> None:
        broker = broker_of(target)
        everything: list[str] = []
        news: list[str] = []
        batches: list[list[str]] = []

        @broker.subscriber(stream=StreamSub("log", last_id="0", polling_interval=QUICKLY))
        async def all_of_it(text: str) -> None:
            everything.append(text)

        @broker.subscriber(stream=StreamSub("log", polling_interval=QUICKLY))
        async def only_new(text: str) -> None:
            news.append(text)

        @broker.subscriber(stream=StreamSub("log", last_id="0", batch=True, max_records=4, polling_interval=QUICKLY))
        async def in_batches(texts: list[str]) -> None:
            batches.append(texts)

        async with broker:
            for number in range(8):
                await broker.publish(f"old {number}", stream="log")
            await broker.start()
            await becomes(lambda: len(everything) == 8 and len(batches) == 2)
            number = 0
            while not news:  # `$` is where the first read finds the end: it may come after some of these
                await broker.publish(f"new {number}", stream="log")
                number += 1
                await asyncio.sleep(0.02)
            await becomes(lambda: everything[-1] == news[-1] == batches[-1][-1] == f"new {number - 1}")
        assert [len(batch) for batch in batches[:2]] == [4, 4]
        assert everything == [text for batch in batches for text in batch]
        assert everything[: 8 + number] == [f"old {n}" for n in range(8)] + [f"new {n}" for n in range(number)]
        assert news == everything[-len(news) :]
        assert all(text.startswith("new") for text in news)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        (AckPolicy.ACK_FIRST, 0),
        (AckPolicy.ACK, 0),
        (AckPolicy.REJECT_ON_ERROR, 1),  # of streams, FastStream leaves what it rejects pending
        (AckPolicy.NACK_ON_ERROR, 1),
        (AckPolicy.MANUAL, 2),
    ],
    ids=lambda value: value.value if isinstance(value, AckPolicy) else None,
)
def test_ack_policies(target: Target, policy: AckPolicy, left: int) -> None:
    async def play() -> None:
        broker = broker_of(target)
        seen: list[str] = []

        @broker.subscriber(
            stream=StreamSub("jobs", group="g", consumer="c", polling_interval=QUICKLY), ack_policy=policy
        )
        async def handle(text: str) -> None:
            seen.append(text)
            if text == "bad":
                raise ValueError(text)

        async with broker:
            await broker.start()
            for text in ("good", "bad"):
                await broker.publish(text, stream="jobs")
            await becomes(lambda: seen == ["good", "bad"])
            await becomes(lambda: pending(target.port, "jobs", "g") == left)

    asyncio.run(play())


def test_acknowledging_and_deleting_by_hand(target: Target) -> None:
    async def play() -> None:
        broker = broker_of(target)
        counts: list[int] = []

        @broker.subscriber(
            stream=StreamSub("jobs", group="g", consumer="c", polling_interval=QUICKLY), ack_policy=AckPolicy.MANUAL
        )
        async def handle(text: str, message: RedisStreamMessage) -> None:
            counts.append(await message.get_delivery_count())
            await message.ack()
            await message.delete()

        async with broker:
            await broker.start()
            for number in range(5):
                await broker.publish(f"{number}", stream="jobs")
            await becomes(lambda: len(counts) == 5)
        assert counts == [1] * 5

    asyncio.run(play())
    assert pending(target.port, "jobs", "g") == 0
    with redis.Redis(port=target.port) as client:
        assert client.xlen("jobs") == 0


def test_another_consumer_claims_what_a_dead_one_left(target: Target) -> None:
    """min_idle_time: XAUTOCLAIM, one message at a time, from where the last one ended."""

    async def play() -> None:
        first, second = broker_of(target), broker_of(target)
        seen: list[int] = []
        again: list[tuple[int, int]] = []

        @first.subscriber(
            stream=StreamSub("jobs", group="g", consumer="first", polling_interval=QUICKLY),
            ack_policy=AckPolicy.MANUAL,
        )
        async def dies(number: int) -> None:
            seen.append(number)

        @second.subscriber(
            stream=StreamSub("jobs", group="g", consumer="second", min_idle_time=1, polling_interval=QUICKLY)
        )
        async def works(number: int, message: RedisStreamMessage) -> None:
            again.append((number, await message.get_delivery_count()))

        async with first:
            await first.start()
            for number in range(10):
                await first.publish(number, stream="jobs")
            await becomes(lambda: len(seen) == 10)
        assert pending(target.port, "jobs", "g") == 10
        async with second:
            await second.start()
            await becomes(lambda: pending(target.port, "jobs", "g") == 0)
        assert again == [(number, 2) for number in range(10)]

    asyncio.run(play())


def test_claiming_while_reading(ours: Target) -> None:
    """claim_min_idle_time: XREADGROUP CLAIM of Redis 8.4, so only here."""

    async def play() -> None:
        first, second = broker_of(ours), broker_of(ours)
        seen: list[int] = []
        got: list[tuple[int, Any]] = []

        @first.subscriber(
            stream=StreamSub("jobs", group="g", consumer="first", polling_interval=QUICKLY),
            ack_policy=AckPolicy.MANUAL,
        )
        async def dies(number: int) -> None:
            seen.append(number)

        @second.subscriber(
            stream=StreamSub("jobs", group="g", consumer="second", claim_min_idle_time=1, polling_interval=QUICKLY)
        )
        async def works(number: int, message: RedisStreamMessage) -> None:
            got.append((number, message.raw_message["delivery_counts"]))

        async with first:
            await first.start()
            for number in range(3):
                await first.publish(number, stream="jobs")
            await becomes(lambda: len(seen) == 3)
        async with second:
            await second.start()
            await becomes(lambda: len(got) == 3)
            await second.publish(3, stream="jobs")
            await becomes(lambda: len(got) == 4 and pending(ours.port, "jobs", "g") == 0)
        assert got == [(0, [1]), (1, [1]), (2, [1]), (3, [0])]

    asyncio.run(play())


def test_one_message_and_iteration(target: Target) -> None:
    async def play() -> None:
        broker = broker_of(target)
        grouped = broker.subscriber(stream=StreamSub("jobs", group="g", consumer="c"))
        plain = broker.subscriber(stream=StreamSub("jobs", last_id="0"))
        async with broker:
            await broker.start()
            for number in range(3):
                await broker.publish(
                    {"n": number}, stream="jobs", headers={"kind": "test"}, correlation_id=f"c{number}"
                )
            message = await grouped.get_one(timeout=5)
            assert message is not None
            assert (await message.decode(), message.headers["kind"], message.correlation_id) == ({"n": 0}, "test", "c0")
            await message.ack()
            rest = []
            async for other in grouped:
                rest.append(await other.decode())
                await other.ack()
                if len(rest) == 2:
                    break
            assert rest == [{"n": 1}, {"n": 2}]
            assert await grouped.get_one(timeout=0.01) is None
            first = await plain.get_one(timeout=5)
            assert first is not None
            assert await first.decode() == {"n": 0}

    asyncio.run(play())


def test_replies_over_a_channel(target: Target) -> None:
    async def play() -> None:
        broker = broker_of(target)

        @broker.subscriber(stream=StreamSub("double", group="g", consumer="c", polling_interval=QUICKLY))
        @broker.publisher(stream="doubled")
        async def double(number: int) -> int:
            return number * 2

        async with broker:
            await broker.start()
            reply = await broker.request(21, stream="double", timeout=10)
            assert await reply.decode() == 42
        with redis.Redis(port=target.port) as client:
            assert client.xlen("doubled") == 1

    asyncio.run(play())


def test_a_server_killed_beneath_it(target: Target) -> None:
    """What was published before the crash and after it arrives; what was handled before is not handled again."""

    async def play() -> None:
        broker = broker_of(target)
        seen: list[int] = []

        @broker.subscriber(
            stream=StreamSub("jobs", group="g", consumer="c", polling_interval=QUICKLY), ack_policy=AckPolicy.ACK
        )
        async def handle(number: int) -> None:
            seen.append(number)

        app = FastStream(broker)
        async with TestApp(app):
            for number in range(20):
                await broker.publish(number, stream="jobs")
            await becomes(lambda: len(seen) == 20 and pending(target.port, "jobs", "g") == 0)
            target.kill()
            await asyncio.to_thread(target.start)
            published = 20
            while published < 40:
                try:
                    await broker.publish(published, stream="jobs")
                    published += 1
                except (redis.ConnectionError, redis.TimeoutError):
                    await asyncio.sleep(0.01)
            await becomes(lambda: len(seen) >= 40 and pending(target.port, "jobs", "g") == 0)
        assert seen == list(range(40))

    asyncio.run(play())
