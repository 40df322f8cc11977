"""``kafka`` against librdkafka's mock cluster."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import confluent_kafka
import pytest
import trustme
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaTimeoutError

from tests.tidelog.flows.serverkit import in_loop, running
from tests.waiting import until
from tidelog.flows import Flow, FlowFileError
from tidelog.flows.api.connectorcontext import ConnectorContext
from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.connectors.kafka import kafka
from tidelog.flows.declare import warnings
from tidelog.flows.files import read_text
from tidelog.flows.runtime.runningflow import RunningFlow

EXAMPLE = Path(__file__).parents[3] / "examples" / "flows" / "kafka.yaml"


class Cluster:
    """Brokers inside librdkafka, and a client that fills topics and reads what is committed."""

    def __init__(self) -> None:
        self._producer = confluent_kafka.Producer({"test.mock.num.brokers": 1})
        brokers = self._producer.list_topics(timeout=10).brokers.values()
        self.servers = ",".join(f"{each.host}:{each.port}" for each in brokers)

    def fill(self, topic: str, values: list[Any], partition: int = 0) -> None:
        for value in values:
            self._producer.produce(topic, json.dumps(value).encode(), partition=partition)
        assert self._producer.flush(20) == 0

    def consumer(self, group: str) -> Any:
        return confluent_kafka.Consumer(
            {"bootstrap.servers": self.servers, "group.id": group, "auto.offset.reset": "earliest"}
        )

    def committed(self, topic: str, group: str, partition: int = 0) -> int:
        """-1001: nothing is."""
        consumer = self.consumer(group)
        try:
            (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, partition)], timeout=10)
            return int(found.offset)
        finally:
            consumer.close()

    def read(self, topic: str, count: int) -> list[Any]:
        consumer = self.consumer(uuid4().hex)
        try:
            partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            consumer.assign([confluent_kafka.TopicPartition(topic, at, 0) for at in partitions])
            return [json.loads(message.value()) for message in consumer.consume(count, timeout=20)]
        finally:
            consumer.close()


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def topic() -> str:
    return f"orders-{uuid4().hex}"


def reading(cluster: Cluster, topic: str, sink: Any, **options: Any) -> Flow:
    flow = Flow("orders")
    flow.connector("in", "kafka", servers=cluster.servers, topic=topic, group=f"g-{topic}", **options)
    flow.connector("out", sink)
    flow.connect("in -> out")
    return flow


@in_loop
async def test_messages_are_read_and_committed_once_they_are_settled(cluster: Cluster, topic: str) -> None:
    cluster.fill(topic, list(range(1500)))
    seen: list[Any] = []

    async def sink(event: Event) -> None:
        assert event.meta["topic"] == topic
        seen.append(event.value)

    async with running(reading(cluster, topic, sink)) as made:
        await until(lambda: len(seen) == 1500)
        await until(lambda: not made.graph.sources["in"].unsettled)
    assert seen == list(range(1500))
    assert cluster.committed(topic, f"g-{topic}") == 1500


@in_loop
async def test_what_is_not_settled_and_all_behind_it_comes_again(cluster: Cluster, topic: str) -> None:
    cluster.fill(topic, list(range(10)))
    seen: list[int] = []

    async def stuck_at_4(event: Event) -> None:
        if event.value == 4:
            await asyncio.Event().wait()
        seen.append(event.value)

    flow = Flow("orders")
    flow.connector("in", "kafka", servers=cluster.servers, topic=topic, group=f"g-{topic}")
    flow.connector("out", stuck_at_4)
    flow.connect("in -> out")
    async with running(flow):
        await until(lambda: seen == [0, 1, 2, 3])
    first = max(0, cluster.committed(topic, f"g-{topic}"))
    assert first <= 4
    again: list[int] = []

    async def fails_at_4(event: Event) -> None:
        if event.value == 4 and event.attempt == 1:
            raise OSError("once")
        again.append(event.value)

    async with running(reading(cluster, topic, fails_at_4)) as made:
        await until(lambda: len(again) == 10 - first)
        await until(lambda: not made.graph.sources["in"].unsettled)
    assert again == [*(n for n in range(first, 10) if n != 4), 4]
    assert cluster.committed(topic, f"g-{topic}") == 10


@in_loop
async def test_a_gap_holds_the_commit_back(cluster: Cluster, topic: str) -> None:
    cluster.fill(topic, list(range(10)))
    gate = asyncio.Event()
    seen: list[int] = []

    async def sink(event: Event) -> None:
        if event.value == 4 and not gate.is_set():
            raise OSError("not yet")
        seen.append(event.value)

    async with running(reading(cluster, topic, sink)) as made:
        await until(lambda: len(seen) == 9)
        await until(lambda: cluster.committed(topic, f"g-{topic}") == 4)
        gate.set()
        await until(lambda: not made.graph.sources["in"].unsettled)
        await until(lambda: cluster.committed(topic, f"g-{topic}") == 10)


@in_loop
async def test_events_are_written(cluster: Cluster, topic: str) -> None:
    async def source() -> Any:
        for number in range(600):
            yield {"n": number}

    flow = Flow("orders")
    flow.connector("in", source)
    flow.connector("out", "kafka", servers=cluster.servers, topic=topic)
    flow.connect("in -> out")
    cluster.fill(topic, [])
    async with running(flow) as made, asyncio.timeout(20):
        await made.finished()
    assert sorted(each["n"] for each in cluster.read(topic, 600)) == list(range(600))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "topic is missing"),
        ({"topic": "a", "security": "SASL_SSL"}, "SASL"),
        ({"topic": "a", "pattern": "b"}, "exclude each other"),
        ({"pattern": "("}, "is not a regular expression"),
        ({"topic": "a", "transactional_id": ""}, "transactional_id is empty"),
        ({"topic": "a", "start": "x"}, "start"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(FlowFileError, match=text):
        Flow("orders").connector("in", "kafka", **options)


@pytest.mark.parametrize(("source", "other"), [(True, {"group": "g"}), (False, {})])
def test_a_fixed_topic_that_can_not_exist_is_an_error(source: bool, other: dict[str, Any]) -> None:
    flow = Flow("orders")
    flow.connector("null", "null")
    with pytest.raises(FlowFileError, match="topic: 'a b' can't be a topic"):  # noqa: PT012
        flow.connector("peer", "kafka", topic="a b", **other)
        flow.connect("peer -> null" if source else "null -> peer")
        flow.spec()


@in_loop
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_compressed_messages_are_read_and_written(cluster: Cluster, topic: str, compression: str) -> None:
    pytest.importorskip("cramjam")
    values = [{"number": number, "text": "abc" * 100} for number in range(100)]
    go: asyncio.Queue[Event] = asyncio.Queue()

    async def source() -> Any:
        for value in values:
            yield value
        await go.get()

    flow = Flow("orders")
    flow.connector("in", source)
    flow.connector("out", "kafka", servers=cluster.servers, topic=topic, compression=compression)
    flow.connect("in -> out")
    async with running(flow) as made:
        await until(lambda: made.graph.sinks["out"].counts.get("in") == 100 and not made.graph.sources["in"].unsettled)
    written = await asyncio.to_thread(cluster.read, topic, 100)
    assert sorted(written, key=lambda each: int(each["number"])) == values
    # And what another producer has compressed.
    other = f"{topic}-other"
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.servers, "compression.type": compression})
    for value in values:
        producer.produce(other, json.dumps(value).encode(), partition=0)
    assert producer.flush(20) == 0
    seen: list[Any] = []

    async def sink(event: Event) -> None:
        seen.append(event.value)

    async with running(reading(cluster, other, sink)):
        await until(lambda: len(seen) == 100)
    assert seen == values


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    flows = """
flows:
  main:
    connectors:
      in: {type: kafka, topic: a, group: g, %s}
      out: {type: kafka, topic: b, compression: %s, %s}
    connect: [in -> out]
"""
    monkeypatch.setattr(kafka, "has_zstd", lambda: False)
    for compression in ("snappy", "lz4", "zstd"):
        with pytest.raises(FlowFileError, match=f"compression {compression} needs the package 'cramjam': pip install"):
            read_text(flows % ("", compression, ""), variables={})
    (warning,) = warnings(read_text(flows % ("", "gzip", ""), variables={}).flows["main"])
    assert "in: to read messages that are compressed by snappy, lz4 or zstd needs the package 'cramjam'" in warning
    monkeypatch.undo()
    pytest.importorskip("cramjam")
    assert warnings(read_text(flows % ("", "zstd", ""), variables={}).flows["main"]) == []
    with pytest.raises(FlowFileError, match="aiokafka has no option 'fetch_max_byte' here; did you mean 'fetch_max_b"):
        read_text(flows % ("options: {fetch_max_byte: 1}", "none", ""), variables={})


def test_tls_is_made_for_ssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[dict[str, Any]] = []

    def consumer(**given: Any) -> None:
        options.append(given)
        raise ConnectionError

    monkeypatch.setattr(kafka, "AIOKafkaConsumer", consumer)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for tls in (None, {"ca": str(tmp_path / "ca.pem")}, {"verify": False}):
        flow = Flow("orders")
        flow.connector("in", "kafka", topic="t", group="g", security="SSL", tls=tls)
        flow.connector("out", "null")
        flow.connect("in -> out")
        made: Any = flow.spec().connectors["in"].make()
        made.context = ConnectorContext("in", FlowContext("orders"))
        made.context.source = object()
        with pytest.raises(ConnectionError):
            asyncio.run(made.connect())
        context = options.pop()["ssl_context"]
        assert context.check_hostname == (tls is None or "ca" in tls)


@in_loop
async def test_topics_that_match_a_pattern_are_read_also_new_ones(cluster: Cluster, topic: str) -> None:
    cluster.fill(f"{topic}.a", [1, 2])
    cluster.fill(f"other-{topic}.a", [3])
    cluster.fill(f"{topic}.a-not", [4])
    seen: list[Any] = []

    async def sink(event: Event) -> None:
        seen.append((event.value, event.meta["topic"]))

    flow = Flow("orders")
    options = {"metadata_max_age_ms": 200}
    pattern = f"{topic}[.][a-z]"
    flow.connector("in", "kafka", servers=cluster.servers, pattern=pattern, group=f"g-{topic}", options=options)
    flow.connector("out", sink)
    flow.connect("in -> out")
    async with running(flow):
        await until(lambda: len(seen) == 2)
        await asyncio.to_thread(cluster.fill, f"{topic}.b", [5])
        await until(lambda: len(seen) == 3)
    assert seen == [(1, f"{topic}.a"), (2, f"{topic}.a"), (5, f"{topic}.b")]


@in_loop
async def test_the_example_writes_transactions(cluster: Cluster) -> None:
    """The mock cluster accepts transactions, and shows their messages at once."""
    pytest.importorskip("cramjam")
    cluster.fill("regions.north", [])
    cluster.fill("shop.1", [{"id": "1", "region": "north"}, {"id": "2"}])
    spec = read_text(await asyncio.to_thread(EXAMPLE.read_text), variables={"KAFKA": cluster.servers}).flows["regions"]
    made = RunningFlow(spec, FlowContext("regions"))
    await made.start()
    await until(lambda: made.graph.sinks["regions"].counts.get("ok") == 2)
    await made.stop()
    values = await asyncio.to_thread(cluster.read, "regions.north", 1)
    assert values == [{"id": "1", "region": "north"}]


@in_loop
@pytest.mark.interpreted
async def test_a_transaction_that_fails_is_retried_completely(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = AIOKafkaProducer.commit_transaction
    ends: list[str] = []

    async def failing(self: Any) -> None:
        if not ends:
            ends.append("failed")
            raise KafkaTimeoutError
        ends.append("committed")
        await commit(self)

    monkeypatch.setattr(AIOKafkaProducer, "commit_transaction", failing)
    reconnect = {"retry": {"first": "20ms"}}

    async def source() -> Any:
        for number in range(3):
            yield {"n": number}
        yield {"n": "x" * 1_000_000, "more": "x" * 60_000}
        await asyncio.Event().wait()

    flow = Flow("orders")
    flow.connector("in", source)
    flow.connector("out", "kafka", servers=cluster.servers, topic=topic, transactional_id=topic, reconnect=reconnect)
    flow.connect("in -> out")
    async with running(flow) as made:
        await until(lambda: made.graph.sinks["out"].counts.get("ok") == 3)
        await until(lambda: not made.graph.sources["in"].unsettled)
    assert ends[0] == "failed"
    assert "committed" in ends
