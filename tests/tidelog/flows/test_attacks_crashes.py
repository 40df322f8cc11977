"""Connections that break, members that go and readers that die at the worst moment: nothing is lost by it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.conftest import RedisServer
from tests.tidelog.flows.serverkit import in_loop, running
from tests.waiting import until
from tidelog.flows import Flow
from tidelog.flows.api.connector import Sink
from tidelog.flows.api.event import Event


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return f"redis://127.0.0.1:{redis_server.port}"


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with redis.Redis.from_url(url) as client:
        yield client


def reading(kind: str, sink: Any, **options: Any) -> Flow:
    flow = Flow("orders")
    flow.connector("in", kind, reconnect={"retry": {"first": "10ms"}}, **options)
    flow.connector("out", sink)
    flow.connect("in -> out")
    return flow


@in_loop
async def test_an_element_is_not_lost_where_an_equal_one_was_acknowledged_twice(
    url: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Any] = []
    execute = redis.asyncio.client.Pipeline.execute

    async def execute_and_lose(self: Any, *args: Any, **options: Any) -> Any:
        removes = any(b"LREM" in str(each[0][0]).encode() for each in self.command_stack)
        replies = await execute(self, *args, **options)
        if removes and not lost:
            lost.append(replies)
            raise redis.ConnectionError("the reply is lost")
        return replies

    monkeypatch.setattr(redis.asyncio.client.Pipeline, "execute", execute_and_lose)
    seen: list[Event] = []

    gate = asyncio.Event()

    class Two(Sink):
        concurrency = 2

        async def write(self, events: list[Event]) -> None:
            seen.extend(events)
            await (gate if len(seen) == 1 else asyncio.Event()).wait()

    flow = Flow("orders")
    flow.connector("in", "redis_list", url=url, key="jobs", reconnect={"retry": {"first": "10ms"}})
    flow.connector("out", Two)
    flow.connect("in -> out")
    async with running(flow) as made:
        for count in (1, 2):
            client.rpush("jobs", '"equal"')
            await until(lambda: len(seen) == count)  # noqa: B023
        gate.set()
        await until(lambda: lost and made.graph.connections["in"].connects == 2 and len(seen) == 2)
        await until(lambda: made.graph.sources["in"].unsettled == 1)
        assert client.llen("jobs") + client.llen("jobs:processing:orders.in") == 1
    assert client.lrange("jobs:processing:orders.in", 0, -1) == [b'"equal"']


@in_loop
async def test_what_an_earlier_process_had_under_way_comes_back_in_its_order(url: str, client: Any) -> None:
    seen: list[Any] = []

    async def sink(value: Any) -> None:
        seen.append(value)

    client.rpush("jobs:processing:orders.in", 1, 2, 1, 3)
    client.rpush("jobs", 4)
    async with running(reading("redis_list", sink, url=url, key="jobs")):
        await until(lambda: len(seen) == 5)
    assert seen == [1, 2, 1, 3, 4]


@in_loop
async def test_all_that_a_consumer_had_before_is_read_again_at_once(url: str, client: Any) -> None:
    client.xgroup_create("s", "g", "0", mkstream=True)
    for number in range(1500):
        client.xadd("s", {"n": number})
    client.xreadgroup("g", "me", {"s": ">"}, count=1400)
    seen: list[Any] = []

    async def sink(value: Any) -> None:
        seen.append(int(value["n"]))

    async with running(reading("redis_stream", sink, url=url, key="s", group="g", consumer="me", claim="1h")):
        await until(lambda: len(seen) >= 1500)
    assert seen == list(range(1500))


@in_loop
async def test_an_idle_source_keeps_its_connection(url: str, client: Any) -> None:
    async def sink(value: Any) -> None:
        pass

    def blocked() -> int:
        found: int = client.info("commandstats").get("cmdstat_blmove", {}).get("calls", 0)
        return found

    before = blocked()
    async with running(reading("redis_list", sink, url=url, key="jobs")) as made:
        await until(lambda: blocked() >= before + 2)  # the first one has ended with nothing
        assert made.graph.connections["in"].connects == 1


@in_loop
async def test_what_was_settled_before_a_rebalance_does_not_count_after_it() -> None:
    pytest.importorskip("aiokafka")
    from aiokafka import TopicPartition

    from tidelog.flows.api.connectorcontext import ConnectorContext
    from tidelog.flows.api.flowcontext import FlowContext
    from tidelog.flows.connectors.kafka.kafka import KafkaConnector, KafkaOptions

    class Message:
        key = None
        headers = ()

        def __init__(self, offset: int) -> None:
            self.offset = offset
            self.value = b"1\n2\n"

    class Settled:
        def __init__(self, key: str) -> None:
            self.key = key

    given: list[Any] = ["separate"]
    kafka = KafkaConnector(KafkaOptions(topic="t", group="g", preprocessors=given))
    kafka.context = ConnectorContext("in", FlowContext("orders"))
    at = TopicPartition("t", 0)
    one: Any = Settled("t/0/0")
    assert len(kafka._events(at, Message(0))) == 2
    await kafka.settled([one])
    await kafka.revoked([at])
    assert len(kafka._events(at, Message(0))) == 2  # it is this member's again: the message came once more
    await kafka.settled([one])  # of one of the first two events
    await kafka.settled([one])
    assert kafka._partitions[at].prefix.position == 0  # one of the second two is under way
    await kafka.settled([one])
    assert kafka._partitions[at].prefix.position == 1


@in_loop
async def test_a_file_that_is_written_anew_with_the_same_beginning_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    header = "names\n" + "x" * 300 + "\n"
    path.write_text(header + "1\n2\n")
    seen: list[str] = []

    async def sink(value: str) -> None:
        seen.append(value)

    options: dict[str, Any] = {"path": str(path), "tail": True, "codec": "string", "poll": "10ms"}
    async with running(reading("file", sink, **options)):
        await until(lambda: len(seen) == 4)
        path.write_text(header + "3\n4\n5\n6\n")
        await until(lambda: "6" in seen)
    assert seen[4:] == [*header.split(), "3", "4", "5", "6"]
