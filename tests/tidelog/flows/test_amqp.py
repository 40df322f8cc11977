"""amqp with RabbitMQ: confirms, redelivery, kills, a suspended broker, TLS, wrong credentials."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.tidelog.flows.amqpkit import SECRET, Rabbit, rabbit
from tests.tidelog.flows.conformancekit import UNWRITABLE, VALUES, made
from tests.tidelog.flows.netkit import changing, feed, running, seen
from tests.tidelog.flows.serverkit import in_loop
from tests.waiting import until
from tidelog.flows import Event, Flow, FlowFileError, RejectError
from tidelog.flows.api.connector import Sink, Source
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.files import read_text
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.testing import check_sink, check_source

pytestmark = pytest.mark.long  # RabbitMQ takes up to 14 s to start on a busy machine
EXAMPLE = Path(__file__).parents[3] / "examples" / "flows" / "amqp.yaml"
SOON = {"reconnect": {"retry": {"first": 0.02, "most": 0.1}}}


@pytest.fixture(scope="module")
def peer() -> Iterator[Rabbit]:
    with rabbit() as found:
        yield found


@pytest.fixture
def queue() -> str:
    return f"q-{uuid4().hex}"


def reading(url: str, queue: str, *operators: Any, **options: Any) -> tuple[Flow, Any]:
    flow = Flow("read")
    flow.connector("in", "amqp", url=url, queue=queue, **{"declare": True, **SOON, **options})
    out = seen(flow)
    flow.pipeline("work", *operators)
    flow.connect("in -> work -> seen")
    return flow, out


def writing(url: str, key: str, **options: Any) -> tuple[Flow, Any]:
    flow = Flow("write")
    flow.connector("out", "amqp", url=url, routing_key=key, **{**SOON, **options})
    source = feed(flow, remembers=True)
    flow.connect("in -> out")
    return flow, source


def events(*values: Any) -> list[Event]:
    return [Event(each, {"n": "1"}, number) for number, each in enumerate(values)]


async def connected(one: RunningFlow) -> None:
    await until(lambda: one.status == "running")


def error_of(one: RunningFlow, name: str) -> str:
    return one.graph.connections[name].error


@in_loop
async def test_both_ways(peer: Rabbit, queue: str) -> None:
    reader, out = reading(peer.url, queue)
    writer, source = writing(peer.url, "{queue}", headers={"n": "{meta.n}"})
    async with running(reader) as one, running(writer) as two:
        await connected(one)
        await connected(two)
        values = [{"queue": queue, "n": number} for number in range(1000)]
        source.give(*events(*values, {"queue": "x" * 256}, {"n": 1}))
        await until(lambda: len(out.events) == len(values) and len(source.outcomes) == len(values) + 2)
        assert out.values == values
        meta = out.events[0].meta
        assert (meta["routing_key"], meta["exchange"], meta["redelivered"]) == (queue, "", False)
        assert meta["headers"]["n"] == "1"
        assert meta["content_type"] == "application/json"
        assert two.graph.sinks["out"].counts["rejected"] == 2


@in_loop
async def test_unsettled_messages_are_delivered_again(peer: Rabbit, queue: str) -> None:
    reader, out = reading(peer.url, queue)
    async with running(reader) as one:
        await connected(one)
    flow = Flow("failing")
    flow.connector("in", "amqp", url=peer.url, queue=queue, prefetch=10, **SOON)
    flow.connector("out", "script", act="hangs")
    flow.connect("in -> out")
    writer, source = writing(peer.url, queue)
    async with running(writer):
        source.give(*events(*range(30)))
        await until(lambda: len(source.outcomes) == 30)
        failing = RunningFlow(flow.spec(), FlowContext("failing"))
        await failing.start()
        await until(lambda: len(failing.graph.connectors["in"]._open) == 10)  # type: ignore[attr-defined]
        await failing.stop()
        async with running(reader):
            await until(lambda: sorted(set(out.values)) == list(range(30)))
    assert sum(each.meta["redelivered"] for each in out.events) == 10


@in_loop
async def test_rejected_messages_are_acknowledged(peer: Rabbit, queue: str) -> None:
    def judge(event: Event) -> None:
        if event.value == "bad":
            raise RejectError("it is bad")

    reader, out = reading(peer.url, queue, changing(judge), on_error="skip", prefetch=1)
    writer, source = writing(peer.url, queue)
    async with running(reader) as one, running(writer):
        await connected(one)
        source.give(*events("a", "bad", "b", "bad", "c"))
        await until(lambda: out.values == ["a", "b", "c"])


@in_loop
async def test_messages_without_a_queue_are_retried(peer: Rabbit, queue: str) -> None:
    writer, source = writing(peer.url, queue)
    async with running(writer) as one:
        await connected(one)
        source.give(*events("kept"))
        await until(lambda: one.graph.sinks["out"].counts.get("retried", 0) > 0)
        reader, out = reading(peer.url, queue)
        async with running(reader):
            await until(lambda: out.values == ["kept"])


@in_loop
async def test_a_queue_that_is_missing_or_deleted(peer: Rabbit, queue: str) -> None:
    import aio_pika

    reader, _ = reading(peer.url, queue, declare=False)
    one = RunningFlow(reader.spec(), FlowContext("read"))
    await one.start()
    await until(lambda: "NOT_FOUND" in error_of(one, "in"))
    connection = await aio_pika.connect(peer.url)
    channel = await connection.channel()
    made = await channel.declare_queue(queue, durable=True)
    await connected(one)
    await made.delete(if_unused=False)
    await until(lambda: "cancelled the consumer" in error_of(one, "in") or "NOT_FOUND" in error_of(one, "in"))
    await connection.close()
    await one.stop()


@in_loop
async def test_tls_and_wrong_credentials(peer: Rabbit, queue: str) -> None:
    reader, out = reading(peer.tls_url, queue, tls={"ca": peer.ca})
    writer, source = writing(peer.tls_url, queue, tls={"ca": peer.ca})
    async with running(reader) as one, running(writer):
        await connected(one)
        source.give(*events("secret"))
        await until(lambda: out.values == ["secret"])
    wrong = peer.url.replace(SECRET, "wrong-Pass")
    for url, text in ((peer.tls_url, "CERTIFICATE_VERIFY_FAILED"), (wrong, "ACCESS_REFUSED")):
        reader, _ = reading(url, queue)
        one = RunningFlow(reader.spec(), FlowContext("read"))
        await one.start()
        await until(lambda: text in error_of(one, "in"))  # noqa: B023 - it is awaited here
        assert "Pass" not in error_of(one, "in")
        await one.stop()


@in_loop
async def test_the_broker_is_killed_and_suspended(peer: Rabbit, queue: str) -> None:
    reader, out = reading(peer.url, queue, request_timeout="3s")
    writer, source = writing(peer.url, queue, request_timeout="3s")
    async with running(reader) as one, running(writer) as two:
        await connected(one)
        await connected(two)
        source.give(*(Event(n, None, n) for n in range(50)))
        await until(lambda: len(source.outcomes) == 50)
        with peer.server.stopped():
            source.give(*(Event(n, None, n) for n in range(50, 100)))
            await until(lambda: error_of(two, "out") != "")
        await until(lambda: len(source.outcomes) == 100)
        source.give(*(Event(n, None, n) for n in range(100, 150)))
        await asyncio.to_thread(peer.server.kill)
        await asyncio.to_thread(peer.server.start)
        await until(lambda: len(source.outcomes) == 150)
        await until(lambda: set(out.values) == set(range(150)))


def test_the_conformance_kit(peer: Rabbit, queue: str) -> None:
    import aio_pika

    async def produce(_: Source, count: int) -> None:
        connection = await aio_pika.connect(peer.url)
        channel = await connection.channel()
        for number in range(count):
            await channel.default_exchange.publish(aio_pika.Message(b'{"n": %d}' % number), queue)
        await connection.close()

    async def written(_: Sink) -> list[Any]:
        connection = await aio_pika.connect(peer.url)
        channel = await connection.channel()
        found = await channel.get_queue(f"{queue}.out")
        values = []
        while (message := await found.get(fail=False, no_ack=True)) is not None:
            values.append(json.loads(message.body))
        await connection.close()
        return values

    async def create() -> None:
        connection = await aio_pika.connect(peer.url)
        await (await connection.channel()).declare_queue(f"{queue}.out", durable=True)
        await connection.close()

    check_source(made("amqp", url=peer.url, queue=queue, declare=True), produce=produce, redelivers=True)
    asyncio.run(create())
    make = made("amqp", url=peer.url, routing_key=f"{queue}.out")
    check_sink(make, VALUES, invalid=UNWRITABLE, written=written)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "mqtt://x", "queue": "q"}, "url: it must begin with amqp://, amqps://"),
        ({}, "queue is missing"),
        ({"queue": "q", "prefetch": 0}, "prefetch: Expected"),
        ({"queue": "q", "tls": {}}, "tls: url must begin with amqps://"),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    flow = Flow("f")
    flow.connector("out", "null")

    def declare() -> None:
        flow.connector("in", "amqp", **options)
        flow.connect("in -> out")
        flow.spec()

    with pytest.raises(FlowFileError, match=text):
        declare()


@in_loop
async def test_the_example(peer: Rabbit) -> None:
    spec = read_text(EXAMPLE.read_text(), variables={"BROKER": peer.url}).flows["bills"]
    reader, out = reading(peer.url, "bills.large")
    writer, source = writing(peer.url, "orders")
    one = RunningFlow(spec, FlowContext("bills"))
    await one.start()
    async with running(reader) as made, running(writer):
        await connected(made)
        await connected(one)
        source.give(*events({"amount": 5}, {"amount": 5000}))
        await until(lambda: out.values == [{"amount": 5000}])
    await one.stop()
