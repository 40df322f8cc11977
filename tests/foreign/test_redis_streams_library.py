"""redis-streams: consumers in batches, and a monitor that gives an idle consumer's messages to another."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.foreign.servers import Target, pending

pytest.importorskip("redis_streams", reason="no redis-streams here (pip install 'tidelog[foreign]')")

from redis_streams.consumer import Consumer
from redis_streams.monitor import Monitor


@pytest.fixture
def client(target: Target) -> Iterator[Any]:
    with redis.Redis(port=target.port, decode_responses=True) as client:
        yield client


def consumer_of(client: Any, name: str, **options: Any) -> Any:
    return Consumer(client, "s", "g", consumer_id=name, max_wait_time_ms=200, poll_time_ms=10, **options)


def test_batches(client: Any) -> None:
    consumer = consumer_of(client, "one", batch_size=3)
    for number in range(1, 8):
        client.xadd("s", {"n": number}, id=f"{number}-0")
    got: list[Any] = []
    while messages := consumer.get_items():
        assert len(messages) == (3 if len(got) < 6 else 1)
        for message in messages:
            got.append((message.msgid, message.content))
            consumer.remove_item_from_consumer_group(message.msgid)
    assert got == [(f"{number}-0", {"n": f"{number}"}) for number in range(1, 8)]
    assert consumer.get_items() == []


def test_a_monitor_cleans_up(target: Target, client: Any) -> None:
    dead, alive = consumer_of(client, "dead", batch_size=4), consumer_of(client, "alive", batch_size=2)
    for number in range(1, 7):
        client.xadd("s", {"n": number}, id=f"{number}-0")
    assert len(dead.get_items()) == 4
    assert len(alive.get_items()) == 2
    for row in client.xpending_range("s", "g", "-", "+", 10, "alive"):
        alive.remove_item_from_consumer_group(row["message_id"])
    monitor = Monitor(client, "s", "g", batch_size=3, min_wait_time_ms=0)  # four pending are one too many
    monitor.collect_monitoring_data()
    page = io.StringIO()
    monitor.print_monitoring_data(page)
    assert "dead" in page.getvalue()
    assert "too many pending items" in page.getvalue()
    assert [(row["name"], row["pending"]) for row in client.xinfo_consumers("s", "g")] == [("alive", 4)]
    alive.batch_size = 4
    for message in alive.get_items():
        alive.remove_item_from_consumer_group(message.msgid)
    assert pending(target.port, "s", "g") == 0
