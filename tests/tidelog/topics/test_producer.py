"""A producer whose replies are lost: what it did is found out before anything is done again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import redis

from tidelog import Client
from tidelog.testing import Server
from tidelog.topics import Topic, admin, producer
from tidelog.transport.backoff import Backoff


class Order(msgspec.Struct):
    id: int


class Deaf(Client):
    """Loses the reply to the next TPUBLISH."""

    lose = 0

    def together(self, *calls: Any, raise_on_error: bool = True) -> list[Any]:
        replies = super().together(*calls, raise_on_error=raise_on_error)
        if self.lose and calls[0].args[0] == "TPUBLISH":
            self.lose -= 1
            raise redis.ConnectionError("lost")
        return replies


@pytest.fixture
def deaf(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deaf]:
    monkeypatch.setattr(producer, "BACKOFF", Backoff(first=0.0, most=0.0))
    with Deaf(tidelog_server.url) as client:
        yield client


def orders(client: Client, **options: Any) -> Topic[Order]:
    topic: Topic[Order] = Topic("orders", Order, partition_by="id", partitions=1, **options)
    topic.use(sync=client)
    return topic


def batch(first: int) -> list[Order]:
    return [Order(n) for n in range(first, first + 10)]


def test_a_lost_reply_within_a_call(deaf: Deaf) -> None:
    sender = orders(deaf).sync.producer("p")
    deaf.lose = 1
    assert sender.send_many(batch(0)) == (True, 10)
    assert sender.send_many(batch(10)) == (True, 10)
    assert (sender.last(), deaf.tlen("orders:0")) == (2, 20)


@pytest.mark.parametrize("number", [None, 1])
def test_a_call_that_gave_up(deaf: Deaf, monkeypatch: pytest.MonkeyPatch, number: int | None) -> None:
    monkeypatch.setattr(producer, "PATIENCE", -1.0)
    sender = orders(deaf).sync.producer("p")
    deaf.lose = 1
    with pytest.raises(redis.ConnectionError):
        sender.send_many(batch(0), number)
    if number is not None:
        assert sender.send_many(batch(0), number) == (False, 0)  # it is there
    assert sender.last() == 1
    assert sender.send_many(batch(10)) == (True, 10)
    assert deaf.tlen("orders:0") == 20


def test_a_repeated_attempt_does_not_look_at_the_limit(deaf: Deaf) -> None:
    topic = orders(deaf, hard_limit=10)
    topic.sync.ready()
    topic.sender().full.add(0)  # as if another task had filled it
    deaf.tappend("orders:0", {"id": 1})
    deaf.lose = 1
    assert topic.sync.producer("p").send_many(batch(0)) == (True, 10)
    assert deaf.tlen("orders:0") == 11


def test_a_topic_that_is_made_again_has_other_fences(deaf: Deaf) -> None:
    orders(deaf).sync.producer("p").send_many(batch(0), 1)
    admin.delete(deaf, "orders")
    assert orders(deaf).sync.producer("p").send_many(batch(0), 1) == (True, 10)


def test_a_cancelled_call_can_be_repeated(tidelog_server: Server) -> None:
    async def main() -> None:
        topic: Topic[Order] = Topic("orders", Order, partition_by="id", partitions=1, url=tidelog_server.url)
        sender = topic.producer("p")
        for number in range(1, 30):
            task = asyncio.create_task(sender.send_many(batch(0), number))
            for _ in range(number * 3):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await sender.send_many(batch(0), number)
        assert await sender.last() == 29
        await topic.close()

    asyncio.run(main())
    with tidelog_server.client() as client:
        assert client.tlen("orders:0") == 290
