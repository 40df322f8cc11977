"""``nats`` with a real nats-server: core and JetStream, refused messages, a server that is killed or stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock
from uuid import uuid4

import pytest
import trustme

from tests.tidelog.flows import brokerkit
from tests.tidelog.flows.brokerkit import SOON, connected, error_of, events
from tests.tidelog.flows.natskit import SECRET, NatsPeer, nats_peer
from tests.tidelog.flows.netkit import feed, running
from tests.tidelog.flows.serverkit import in_loop
from tests.waiting import until
from tidelog.flows import Event, Flow
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.connectors.nats.nats import NatsConnector, NatsOptions
from tidelog.flows.files import read_text
from tidelog.flows.runtime.runningflow import RunningFlow

EXAMPLE = Path(__file__).parents[3] / "examples" / "flows" / "nats.yaml"


@pytest.fixture(scope="module")
def peer() -> Iterator[NatsPeer]:
    with nats_peer() as made:
        yield made


@pytest.fixture
def name(peer: NatsPeer) -> str:
    """The name of a stream with the subjects NAME and NAME.*."""
    name = uuid4().hex
    peer.stream(name, name, f"{name}.*", max_msg_size=5000)
    return name


def reading(url: str, subject: str, **options: Any) -> tuple[Flow, Any]:
    return brokerkit.reading("nats", url=url, subject=subject, **options)


def writing(url: str, subject: str, **options: Any) -> tuple[Flow, Any]:
    return brokerkit.writing("nats", url=url, subject=subject, **options)


@in_loop
async def test_core_messages_reach_a_source(peer: NatsPeer) -> None:
    name = uuid4().hex
    reader, out = reading(peer.url, f"{name}.*", queue="g")
    writer, source = writing(peer.url, name + ".{n}", headers={"number": "{meta.number}"})
    async with running(reader) as made, running(writer):
        await connected(made)
        source.give(*events(*({"n": number} for number in range(1000))))
        await until(lambda: len(out.values) == 1000 and len(source.outcomes) == 1000)
    assert [each["n"] for each in out.values] == list(range(1000))
    assert out.events[5].meta == {"subject": f"{name}.5", "headers": {"number": "5"}}


@in_loop
async def test_jetstream_sends_unsettled_messages_again(peer: NatsPeer) -> None:
    name = uuid4().hex
    await peer._stream(name, [name], {})
    writer, source = writing(peer.url, name, jetstream=True, headers={"Nats-Msg-Id": "{meta.number}"})
    async with running(writer):
        source.give(*events(*range(5)))
        source.give(Event(0, {"number": "0"}, "repeated"))
        await until(lambda: len(source.outcomes) == 6)
    flow = Flow("read")
    flow.connector("in", "nats", url=peer.url, subject=name, jetstream=True, durable="d")
    written: list[int] = []

    async def stuck(event: Event) -> None:
        written.append(event.value)
        if event.value == 3:
            await asyncio.Event().wait()

    flow.connector("stuck", stuck)
    flow.connect("in -> stuck")
    async with running(flow):
        await until(lambda: 3 in written)
    reader, out = reading(peer.url, name, jetstream=True, durable="d")
    async with running(reader) as made:
        await until(lambda: 3 in out.values and 4 in out.values)
        connector: Any = made.graph.connectors["in"]
        await until(lambda: not connector._held)
    assert out.events[-1].meta["stream"] == name
    assert next(each for each in out.events if each.value == 3).meta["delivered"] == 2
    reader, out = reading(peer.url, name, jetstream=True, durable="d")
    async with running(reader) as made:
        await connected(made)
        writer, source = writing(peer.url, name, jetstream=True)
        async with running(writer):
            source.give(*events("new"))
            await until(lambda: out.values)
    assert out.values == ["new"]


@in_loop
async def test_the_deadline_of_messages_in_flight_is_extended(peer: NatsPeer) -> None:
    name = uuid4().hex
    await peer._stream(name, [name], {})
    flow = Flow("read")
    flow.connector("in", "nats", url=peer.url, subject=name, jetstream=True, durable="d", ack_wait="1s")
    written: list[int] = []
    release = asyncio.Event()

    async def slow(event: Event) -> None:
        written.append(event.value)
        await release.wait()

    flow.connector("slow", slow)
    flow.connect("in -> slow")
    writer, source = writing(peer.url, name, jetstream=True)
    async with running(flow) as made, running(writer):
        source.give(*events(1))
        await until(lambda: written)
        await asyncio.sleep(1.5)  # longer than ack_wait
        release.set()
        connector: Any = made.graph.connectors["in"]
        await until(lambda: not connector._held)
        assert written == [1]


@in_loop
async def test_a_refused_message_does_not_affect_the_others(peer: NatsPeer) -> None:
    name = uuid4().hex
    await peer._stream(name, [name], {"max_msg_size": 5000})
    good = {"subject": name}
    values = [good, {"subject": f"{name}.*"}, {"subject": name, "x": "x" * 30_000}, {"n": 1}, good]
    for jetstream in (False, True):
        writer, source = writing(peer.url, "{subject}", jetstream=jetstream, request_timeout="1s")
        extra = {"subject": "forbidden"} if not jetstream else {"subject": uuid4().hex}
        large = {"subject": name, "x": "x" * (10_000 if jetstream else 1)}
        async with running(writer):
            source.give(*events(*values, extra, large))
            await arrived(source, 7)
        found = [source.outcomes[number][0] for number in range(7)]
        assert found == ["ok", "reject", "reject", "reject", "ok", "retry", "reject" if jetstream else "ok"]
        reason = source.outcomes[5][1].lower()
        assert ("no response from stream" if jetstream else "permissions violation") in reason


async def arrived(source: Any, count: int) -> None:
    await until(lambda: len(source.outcomes) == count)


# -- faults --------------------------------------------------------------------------------------------------
@in_loop
async def test_no_message_is_lost_if_the_server_is_killed(peer: NatsPeer) -> None:
    name = uuid4().hex
    await peer._stream(name, [name], {})
    reader, out = reading(peer.url, name, jetstream=True, durable="d")
    flow = Flow("write")
    flow.connector("out", "nats", url=peer.url, subject=name, jetstream=True, request_timeout="1s", **SOON)
    source = feed(flow, remembers=True, on_error={"retry": {"first": "20ms"}})
    flow.connect("in -> out")
    async with running(reader), running(flow) as made:
        source.give(*events(*range(10)))
        await until(lambda: len(out.values) == 10)
        await asyncio.to_thread(peer.server.kill)
        await until(lambda: not made.graph.sinks["out"].connection.connected)
        source.give(*(Event(number, None, number) for number in range(10, 60)))
        await asyncio.to_thread(peer.server.start)
        await arrived(source, 60)
        await until(lambda: set(out.values) == set(range(60)))
    assert {status for status, _ in source.outcomes.values()} == {"ok"}


@in_loop
async def test_a_stopped_server_is_a_timeout(peer: NatsPeer) -> None:
    name = uuid4().hex
    await peer._stream(name, [name], {})
    reader, out = reading(peer.url, name, jetstream=True, durable="d", request_timeout="1s")
    writers = [writing(peer.url, name, jetstream=jetstream, request_timeout="1s") for jetstream in (False, True)]
    async with running(reader) as made, running(writers[0][0]) as one, running(writers[1][0]) as two:
        for each in (made, one, two):
            await connected(each)
        with peer.server.stopped():
            for _, source in writers:
                source.give(Event(1, None, "late"))
                await arrived(source, 1)
                assert source.outcomes["late"][0] == "retry"
            await until(lambda: not made.graph.sources["in"].connection.connected)
        for number, (_, source) in enumerate(writers):
            await brokerkit.resent(source, f"next {number}", out)


@in_loop
async def test_wrong_credentials_are_reported_without_the_password(peer: NatsPeer, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    flow, _ = reading(peer.url.replace(SECRET, SECRET + "-wrong"), "x")
    async with running(flow) as made:
        error = await error_of(made)
    assert "Authorization Violation" in error
    assert SECRET not in error + caplog.text
    flow, _ = reading(peer.url, "forbidden")
    async with running(flow) as made:
        assert "permissions violation" in (await error_of(made)).lower()
    flow, _ = reading(peer.url, "no.stream", jetstream=True, durable="d")
    async with running(flow) as made:
        assert "stream" in await error_of(made)


@in_loop
async def test_a_denied_subscription_is_reported_after_the_flush(peer: NatsPeer, monkeypatch: Any) -> None:
    """The client calls the callback for errors in a task. This can run after the flush has returned."""
    monkeypatch.setattr("nats.aio.client.Client.flush", AsyncMock())
    flow, _ = reading(peer.url, "forbidden")
    async with running(flow) as made:
        assert "permissions violation" in (await error_of(made)).lower()


@in_loop
async def test_tls_verifies_the_server(tmp_path: Path) -> None:
    with nats_peer(tls=True) as peer:
        reader, out = reading(peer.url, "x", tls={"ca": peer.ca})
        writer, source = writing(peer.url, "x", tls={"ca": peer.ca})
        async with running(reader) as made, running(writer):
            await connected(made)
            source.give(*events(1))
            await until(lambda: out.values == [1])
        trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
        reader, _ = reading(peer.url, "x", tls={"ca": str(tmp_path / "other.pem")})
        async with running(reader) as made:
            assert "CERTIFICATE_VERIFY_FAILED" in await error_of(made)


@in_loop
async def test_a_peer_that_is_no_server() -> None:
    async with brokerkit.garbage_server(b"\xff\x00HTTP/1.1 400 Bad Request\r\n\r\n" * 10) as port:
        flow, _ = reading(f"nats://127.0.0.1:{port}", "t", request_timeout="300ms")
        async with running(flow) as made:
            assert await error_of(made)


# -- options, the example ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "http://x"}, "url: it must begin with nats://, tls://"),
        ({"url": "nats://a,tls://b"}, "the same scheme"),
        ({"subject": ""}, "subject is missing"),
        ({"durable": "d"}, "jetstream is missing"),
        ({"jetstream": True, "queue": "q"}, "remove queue"),
        ({"jetstream": True}, "durable is missing"),
        ({"ack_wait": "1ms"}, "at least 1s"),
        ({"subject": "{x"}, "a single '{'"),
        ({"subject": "a b"}, "subject: 'a b': it has a space"),
        ({"subject": "a..b"}, "an empty part"),
        ({"subject": "a.>.b"}, "that is not a whole part"),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    assert text in brokerkit.refused("nats", **{"subject": "s", **options})


@pytest.mark.parametrize("subject", ["a.*", ">", "a b", "a..b"])
def test_a_fixed_subject_that_no_event_can_have_is_an_error(subject: str) -> None:
    assert f"subject: {subject!r}: a sink's subject" in brokerkit.refused_sink("nats", subject=subject)


@pytest.mark.parametrize("subject", [">", "*", "a.*.b.>", "a.b"])
def test_filters(subject: str) -> None:
    assert NatsConnector.option_errors(NatsOptions(subject=subject), source=True) == []


@in_loop
async def test_the_example(peer: NatsPeer) -> None:
    await peer._stream("ORDERS", ["orders.*"], {})
    spec = read_text(EXAMPLE.read_text(), variables={"NATS": peer.url}).flows["regions"]
    reader, out = reading(peer.url, "regions.*")
    writer, source = writing(peer.url, "orders.new", jetstream=True)
    one = RunningFlow(spec, FlowContext("regions"))
    await one.start()
    async with running(reader) as made, running(writer):
        await connected(made)
        await connected(one)
        source.give(*events({"id": 1, "region": "north"}, {"id": 2}))
        await until(lambda: len(out.values) == 2)
    assert sorted(each.meta["subject"] for each in out.events) == ["regions.north", "regions.unknown"]
    await one.stop()
