"""Connections that break, members that go and readers that die at the worst moment: nothing is lost by it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.tidelog.flows.serverkit import in_loop, running
from tests.waiting import until
from tidelog.flows import Flow
from tidelog.flows.api.connector import Sink
from tidelog.flows.api.event import Event


def reading(kind: str, sink: Any, **options: Any) -> Flow:
    flow = Flow("orders")
    flow.connector("in", kind, reconnect={"retry": {"first": "10ms"}}, **options)
    flow.connector("out", sink)
    flow.connect("in -> out")
    return flow


@in_loop
async def test_an_element_is_not_lost_where_an_equal_one_was_acknowledged_twice(
    redis_url: str, redis_client: Any, monkeypatch: pytest.MonkeyPatch
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
    flow.connector("in", "redis_list", url=redis_url, key="jobs", reconnect={"retry": {"first": "10ms"}})
    flow.connector("out", Two)
    flow.connect("in -> out")
    async with running(flow) as made:
        for count in (1, 2):
            redis_client.rpush("jobs", '"equal"')
            await until(lambda: len(seen) == count)  # noqa: B023
        gate.set()
        await until(lambda: lost and made.graph.connections["in"].connects == 2 and len(seen) == 2)
        await until(lambda: made.graph.sources["in"].unsettled == 1)
        assert redis_client.llen("jobs") + redis_client.llen("jobs:processing:orders.in") == 1
    assert redis_client.lrange("jobs:processing:orders.in", 0, -1) == [b'"equal"']


@in_loop
async def test_what_an_earlier_process_had_under_way_comes_back_in_its_order(redis_url: str, redis_client: Any) -> None:
    seen: list[Any] = []

    async def sink(value: Any) -> None:
        seen.append(value)

    redis_client.rpush("jobs:processing:orders.in", 1, 2, 1, 3)
    redis_client.rpush("jobs", 4)
    async with running(reading("redis_list", sink, url=redis_url, key="jobs")):
        await until(lambda: len(seen) == 5)
    assert seen == [1, 2, 1, 3, 4]


@in_loop
async def test_all_that_a_consumer_had_before_is_read_again_at_once(redis_url: str, redis_client: Any) -> None:
    redis_client.xgroup_create("s", "g", "0", mkstream=True)
    for number in range(1500):
        redis_client.xadd("s", {"n": number})
    redis_client.xreadgroup("g", "me", {"s": ">"}, count=1400)
    seen: list[Any] = []

    async def sink(value: Any) -> None:
        seen.append(int(value["n"]))

    async with running(reading("redis_stream", sink, url=redis_url, key="s", group="g", consumer="me", claim="1h")):
        await until(lambda: len(seen) >= 1500)
    assert seen == list(range(1500))


@in_loop
async def test_an_idle_source_keeps_its_connection(redis_url: str, redis_client: Any) -> None:
    async def sink(value: Any) -> None:
        pass

    def blocked() -> int:
        found: int = redis_client.info("commandstats").get("cmdstat_blmove", {}).get("calls", 0)
        return found

    before = blocked()
    async with running(reading("redis_list", sink, url=redis_url, key="jobs")) as made:
        await until(lambda: blocked() >= before + 2)  # the first one has ended with nothing
        assert made.graph.connections["in"].connects == 1


@in_loop
async def test_what_was_settled_before_a_rebalance_does_not_count_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiokafka")
    from aiokafka import TopicPartition

    from tidelog.flows.api.connectorcontext import ConnectorContext
    from tidelog.flows.api.flowcontext import FlowContext
    from tidelog.flows.connectors.kafka import kafka

    at = TopicPartition("t", 0)
    committed: list[dict[Any, int]] = []

    class Consumer:
        """A consumer whose only partition has one message, which each fetch returns."""

        def __init__(self, **_: Any) -> None: ...
        async def start(self) -> None: ...
        async def stop(self) -> None: ...
        def subscribe(self, topics: list[str], listener: Any) -> None: ...
        def assignment(self) -> set[Any]:
            return {at}

        async def getmany(self, **_: Any) -> dict[Any, list[Any]]:
            return {at: [SimpleNamespace(offset=0, key=None, headers=(), timestamp=0, value=b"1\n2\n")]}

        async def commit(self, offsets: dict[Any, int]) -> None:
            committed.append(dict(offsets))

    monkeypatch.setattr(kafka, "AIOKafkaConsumer", Consumer)
    before: list[Any] = ["separate"]
    connector = kafka.KafkaConnector(kafka.KafkaOptions(topic="t", group="g", preprocessors=before))
    connector.context = ConnectorContext("in", FlowContext("orders"))
    node: Any = SimpleNamespace(room_changed=lambda: None, count=lambda *_: None)
    connector.context.source = node
    await connector.connect()
    one: Any = SimpleNamespace(key="t/0/0")
    assert len(await connector.pull(10) or ()) == 2
    await connector.settled([one])
    await connector.revoked([at])
    assert len(await connector.pull(10) or ()) == 2  # it is this member's again: the message came once more
    await connector.settled([one])  # of one of the first two events
    await connector.settled([one])
    await connector.commit(Consumer())
    assert committed == []  # one of the second two is under way
    await connector.settled([one])
    await until(lambda: committed == [{at: 1}])
    await connector.close()


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
