"""``mqtt`` with a real Mosquitto: acknowledgements, refused messages, and a broker that is killed or stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trustme

from tests.tidelog.flows import brokerkit
from tests.tidelog.flows.brokerkit import SOON, connected, error_of, events
from tests.tidelog.flows.mqttkit import SECRET, Broker, broker
from tests.tidelog.flows.netkit import feed, running, seen
from tests.tidelog.flows.serverkit import in_loop
from tests.waiting import until
from tidelog.flows import Event, Flow
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.connectors.mqtt.ackorder import AckOrder
from tidelog.flows.connectors.mqtt.mqtt import MqttConnector, MqttOptions
from tidelog.flows.files import read_text
from tidelog.flows.runtime.runningflow import RunningFlow

EXAMPLE = Path(__file__).parents[3] / "examples" / "flows" / "mqtt.yaml"


@pytest.fixture(scope="module")
def peer() -> Iterator[Broker]:
    with broker() as made:
        yield made


@pytest.fixture
def topic() -> str:
    return f"t/{uuid4().hex}"


@pytest.fixture(params=["5.0", "3.1.1"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def reading(url: str, topic: Any, **options: Any) -> tuple[Flow, Any]:
    return brokerkit.reading("mqtt", url=url, topic=topic, **{"client_id": f"c-{topic}", **options})


def writing(url: str, topic: str, **options: Any) -> tuple[Flow, Any]:
    return brokerkit.writing("mqtt", url=url, topic=topic, **options)


@in_loop
async def test_messages_reach_a_source(peer: Broker, topic: str, version: str) -> None:
    reader, out = reading(peer.url, f"{topic}/+", version=version)
    headers = {"headers": {"n": "{meta.number}"}} if version == "5.0" else {}
    writer, source = writing(peer.url, topic + "/{n}", version=version, qos=2, **headers)
    async with running(reader) as made, running(writer):
        await connected(made)
        source.give(*events(*({"n": number} for number in range(100))))
        await until(lambda: len(out.values) == 100 and len(source.outcomes) == 100)
        await until(lambda: not made.graph.sources["in"].unsettled)
    assert sorted(each["n"] for each in out.values) == list(range(100))
    first = min(out.events, key=lambda each: each.value["n"])
    expected = {"topic": f"{topic}/0", "qos": 1} | ({"headers": {"n": "0"}} if version == "5.0" else {})
    assert first.meta == expected


@in_loop
async def test_unsettled_messages_come_again_and_settled_ones_do_not(peer: Broker, topic: str, version: str) -> None:
    flow = Flow("read")
    flow.connector("in", "mqtt", url=peer.url, topic=topic, client_id=f"c-{topic}", version=version)
    written: list[int] = []

    async def stuck(event: Event) -> None:
        written.append(event.value)
        if event.value == 3:
            await asyncio.Event().wait()

    flow.connector("stuck", stuck)
    flow.connect("in -> stuck")
    writer, source = writing(peer.url, topic)
    async with running(flow) as made, running(writer):
        await connected(made)
        for number in range(3):
            source.give(Event(number, None, number))
        connector: Any = made.graph.connectors["in"]
        await until(lambda: len(source.outcomes) == 3 and len(written) == 3 and not len(connector._acks))
        source.give(Event(3, None, 3), Event(4, None, 4))
        await until(lambda: 3 in written)
    reader, out = reading(peer.url, topic, version=version)
    async with running(reader):
        await until(lambda: len(out.values) >= 2)
    assert sorted(out.values) == [3, 4]


def test_acknowledgements_are_in_order() -> None:
    acks = AckOrder()
    for number in range(4):
        acks.add(number, 2 if number == 1 else 1)
    acks.settle(2)
    acks.settle(1)
    acks.settle(7)
    assert list(acks.due()) == []
    acks.settle(0)
    assert list(acks.due()) == [0]
    acks.settle(1)
    assert list(acks.due()) == [1, 2]
    assert len(acks) == 1


@in_loop
async def test_a_refused_message_does_not_affect_the_others(peer: Broker, topic: str) -> None:
    writer, source = writing(peer.url, "{topic}")
    good = {"topic": topic}
    values = [good, {"topic": "forbidden/x"}, {"topic": "a/#"}, {"topic": topic, "text": "x" * 30_000}, {"n": 1}, good]
    async with running(writer):
        source.give(*events(*values))
        await until(lambda: len(source.outcomes) == len(values))
    assert [source.outcomes[number][0] for number in range(len(values))] == [
        "ok", "retry", "reject", "reject", "reject", "ok",
    ]  # fmt: skip
    assert "Not authorized" in source.outcomes[1][1]
    assert "wildcards" in source.outcomes[2][1]
    assert "the broker accepts 20000" in source.outcomes[3][1]


@in_loop
async def test_qos_0_and_garbage(peer: Broker, topic: str) -> None:
    flow = Flow("read")
    flow.connector("in", "mqtt", url=peer.url, topic=[topic, "u/" + topic], qos=0, session="0s")
    good, bad = seen(flow, "good"), seen(flow, "bad")
    flow.connect("in -> good", "in.err -> bad")
    writer, source = writing(peer.url, topic, codec="string", qos=0)
    async with running(flow) as made, running(writer):
        await connected(made)
        source.give(*events("{no json", '{"n": 1}', ""))
        await until(lambda: len(bad.events) == 2 and good.values)
    assert good.values == [{"n": 1}]
    assert [each.value for each in bad.events] == [b"{no json", b""]


@in_loop
async def test_retained_messages(peer: Broker, topic: str) -> None:
    writer, source = writing(peer.url, topic, retain=True)
    async with running(writer):
        source.give(*events(1, 2))
        await until(lambda: len(source.outcomes) == 2)
    reader, out = reading(peer.url, topic)
    async with running(reader):
        await until(lambda: out.values)
    assert out.values == [2]
    assert out.events[0].meta["retain"] is True


# -- faults --------------------------------------------------------------------------------------------------
@in_loop
async def test_no_message_is_lost_if_the_broker_is_killed(peer: Broker, topic: str, version: str) -> None:
    reader, out = reading(peer.url, topic, version=version)
    flow = Flow("write")
    flow.connector("out", "mqtt", url=peer.url, topic=topic, version=version, request_timeout="2s", **SOON)
    source = feed(flow, remembers=True, on_error={"retry": {"first": "20ms"}})
    flow.connect("in -> out")
    async with running(reader) as one, running(flow) as two:
        await connected(one)
        source.give(*events(*range(10)))
        await until(lambda: len(out.values) == 10)
        await asyncio.to_thread(peer.server.kill)
        await until(lambda: not two.graph.sinks["out"].connection.connected)
        source.give(*(Event(number, None, number) for number in range(10, 60)))
        await asyncio.to_thread(peer.server.start)
        await until(lambda: len(source.outcomes) == 60)
        await until(lambda: set(out.values) == set(range(60)))
    assert {status for status, _ in source.outcomes.values()} == {"ok"}


@in_loop
async def test_a_stopped_broker_is_a_timeout(peer: Broker, topic: str) -> None:
    writer, source = writing(peer.url, topic, request_timeout="200ms")
    reader, out = reading(peer.url, topic, keepalive="1s", request_timeout="500ms")
    async with running(writer), running(reader) as made:
        await connected(made)
        source.give(*events(1))
        await until(lambda: len(source.outcomes) == 1)
        with peer.server.stopped():
            source.give(Event(2, None, "late"))
            await until(lambda: "late" in source.outcomes)
            assert source.outcomes["late"] == ("retry", "out: no reply within 0.2 s")
            await until(lambda: not made.graph.sources["in"].connection.connected)
        await brokerkit.resent(source, 3, out)


@in_loop
async def test_wrong_credentials_and_rights_are_reported_without_the_password(peer: Broker, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = peer.url.replace(SECRET, SECRET + "-wrong")
    for version in ("5.0", "3.1.1"):
        async with running(reading(wrong, "t", version=version)[0]) as made:
            await errs(made, "Not authorized")
    assert SECRET not in caplog.text


async def errs(made: RunningFlow, text: str) -> None:
    error = await error_of(made)
    assert text in error
    assert SECRET not in error


@in_loop
async def test_tls_verifies_the_broker(peer: Broker, topic: str, tmp_path: Path) -> None:
    writer, source = writing(peer.tls_url, topic, tls={"ca": peer.ca})
    reader, out = reading(peer.tls_url, topic, tls={"ca": peer.ca})
    async with running(reader) as made, running(writer):
        await connected(made)
        source.give(*events(1))
        await until(lambda: out.values == [1])
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    reader, _ = reading(peer.tls_url, topic, tls={"ca": str(tmp_path / "other.pem")})
    async with running(reader) as made:
        await errs(made, "CERTIFICATE_VERIFY_FAILED")


@in_loop
async def test_a_peer_that_is_no_broker() -> None:
    async with brokerkit.garbage_server(b"\xff\xff\xff\xff\xff" * 100) as port:
        flow, _ = reading(f"mqtt://127.0.0.1:{port}", "t", request_timeout="300ms")
        async with running(flow) as made:
            await errs(made, "")


# -- options, the example ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "amqp://x"}, "url: it must begin with mqtt://, mqtts://"),
        ({"url": "mqtt://u:p@ss@h"}, "must be escaped"),
        ({"url": "mqtt://a,mqtt://b"}, "give one broker"),
        ({"tls": {}}, "tls: url must begin with mqtts://"),
        ({"password": "x"}, "username is missing"),
        ({"topic": ""}, "topic is missing"),
        ({"keepalive": 0}, "keepalive is 0 s"),
        ({"version": "3.1.1", "headers": {"a": "b"}}, "MQTT 3.1.1 has none"),
        ({"qos": 2}, "qos: 2: a source can't"),
        ({"topic": "{x"}, "a single '{'"),
        ({"topic": "a/#/b"}, "topic: 'a/#/b': '+' must be a whole level"),
        ({"topic": ["a/+/#", "a+"]}, "topic: 'a+': '+' must be a whole level"),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    error = brokerkit.refused("mqtt", **{"topic": "t", **options})
    assert text in error
    assert "p@ss" not in error


@pytest.mark.parametrize("topic", ["a/+", "#", "a#b"])
def test_a_fixed_topic_with_a_wildcard_is_an_error_of_a_sink(topic: str) -> None:
    assert f"topic: {topic!r}: a sink writes to one topic" in brokerkit.refused_sink("mqtt", topic=topic)


@pytest.mark.parametrize("topic", ["#", "+", "+/a/#", "$share/g/a/+", "/a"])
def test_filters(topic: str) -> None:
    assert MqttConnector.option_errors(MqttOptions(topic=topic), source=True) == []


@in_loop
async def test_the_example(peer: Broker) -> None:
    given = {"BROKER": peer.url}
    spec = read_text(EXAMPLE.read_text(), variables=given).flows["alarms"]
    reader, out = reading(peer.url, "alarms/+")
    writer, source = writing(peer.url, "sensors/{device}/temperature")
    one = RunningFlow(spec, FlowContext("alarms"))
    await one.start()
    async with running(reader) as made, running(writer):
        await connected(made)
        await connected(one)
        source.give(*events({"device": "a", "celsius": 20}, {"device": "b", "celsius": 95}))
        await until(lambda: out.values)
    assert [(each.meta["topic"], each.value) for each in out.events] == [("alarms/b", {"device": "b", "celsius": 95})]
    await one.stop()
