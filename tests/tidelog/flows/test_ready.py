"""Health: sources count as sinks do. One that was never connected is not ready, one that has failed is a failure."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.flows.flowkit import Numbers, Taking, flow
from tests.tidelog.flows.servicekit import Client, flowing
from tests.waiting import until
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.service.host import FlowHost
from tidelog.flows.testing.virtualloop import VirtualLoop, simulate
from tidelog.testing import free_port

GONE: dict[str, dict[str, Any]] = {  # what can't be connected: PORT is taken, FREE has no listener
    "http_server": {"port": "PORT"},
    "tcp_server": {"port": "PORT"},
    "udp_server": {"port": "PORT"},
    "websocket_server": {"port": "PORT"},
    "tcp_client": {"port": "FREE"},
    "websocket_client": {"url": "ws://127.0.0.1:FREE/"},
    "redis_pubsub": {"url": "redis://127.0.0.1:FREE", "channel": "c"},
    "redis_list": {"url": "redis://127.0.0.1:FREE", "key": "k"},
    "redis_stream": {"url": "redis://127.0.0.1:FREE", "key": "k"},
    "kafka": {"servers": "127.0.0.1:FREE", "topic": "t", "group": "g"},
    "file": {"path": "/nowhere/at/all"},
}


def text_of(kind: str, taken: int, **more: Any) -> str:
    shown = ", ".join(f"{name}: {given!r}" for name, given in (GONE[kind] | more).items())
    shown = shown.replace("'PORT'", str(taken)).replace("'FREE'", str(free_port())).replace("FREE", str(free_port()))
    return f"""
flows:
  main:
    connectors: {{in: {{type: {kind}, {shown}}}, out: "null"}}
    pipelines: {{echo: []}}
    connect: [in -> echo -> out]
"""


@pytest.fixture
def taken() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as tcp:
        port = tcp.getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.bind(("127.0.0.1", port))
            yield port


@pytest.mark.parametrize("kind", GONE)
def test_a_source_that_cannot_connect_is_not_ready(kind: str, taken: int) -> None:
    if kind == "kafka":
        pytest.importorskip("aiokafka")

    async def test(ask: Client, host: FlowHost) -> None:
        running = host.flows["main"].instances[0]
        await until(lambda: running.graph.connections["in"].error)
        ready = await ask("GET", "/v1/ready")
        assert ready.status == 503
        assert ready.body["culprits"][0].startswith(f"main: in ({kind}) is not connected: ")
        status = await ask("GET", "/v1/status")
        assert status.status == 503
        assert status.body == {"all_running": False, "num_flows": 1, "flows": {"initializing": 1}}
        assert (await ask("GET", "/v1/flows/main")).body["status"] == "initializing"
        assert (await ask("GET", "/v1/flows/main/connectors/in")).body["status"] == "initializing"
        (source,) = (await ask("GET", "/v1/flows/main/breaker")).body["instances"][0]["sources"]
        assert [each["reason"] for each in source["reasons"]] == ["starting:in"]
        assert source["reasons"][0]["detail"] == running.graph.connections["in"].error
        assert (
            'tidelog_flow_status{flow="main",instance="main",status="initializing"} 1.0'
            in (await ask("GET", "/metrics")).body
        )

    flowing(test, text_of(kind, taken))


def test_a_source_that_has_failed_makes_its_flow_failed(taken: int) -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        running = host.flows["main"].instances[0]
        await until(lambda: running.graph.connections["in"].failed)
        ready = await ask("GET", "/v1/ready")
        assert ready.status == 503
        assert ready.body["culprits"][0].startswith("main: failed: in: OSError: ")
        status = await ask("GET", "/v1/status")
        assert status.status == 503
        assert status.body["flows"] == {"failed": 1}
        found = (await ask("GET", "/v1/flows/main")).body
        assert found["status"] == "failed"
        assert found["error"].startswith("in: OSError: ")
        (source,) = (await ask("GET", "/v1/flows/main/breaker")).body["instances"][0]["sources"]
        assert [each["reason"] for each in source["reasons"]] == ["failed:in"]
        assert host.failed[0].startswith("main: in: OSError: ")
        assert (await ask("PATCH", "/v1/flows/main", {"status": "paused"})).status == 200  # it is not over
        assert (await ask("DELETE", "/v1/flows/main")).body["drained"][0]["complete"]

    flowing(test, text_of("http_server", taken, reconnect="none"))


def test_a_taken_port_that_becomes_free(taken: int, tmp_path: Path) -> None:
    path = tmp_path / "late"
    text = f"""
flows:
  main:
    connectors:
      in: {{type: file, path: {str(path)!r}, codec: string, reconnect: {{retry: {{first: 50ms}}}}}}
      more: {{type: metronome, interval: 1h}}
      out: "null"
    connect: [in -> out, more -> out]
"""

    async def test(ask: Client, host: FlowHost) -> None:
        running = host.flows["main"].instances[0]
        await until(lambda: running.graph.connections["in"].error)
        assert running.status == "initializing"
        path.write_text("a\n")
        await until(lambda: running.status == "running")
        assert (await ask("GET", "/v1/ready")).status == 200

    flowing(test, text)


def test_what_is_under_way_of_a_flow_that_has_failed_is_settled() -> None:
    """One of two sources fails for good: the other one goes on, and a drain finishes both."""

    class Lost(Numbers):
        async def connect(self) -> None:
            if self.given:
                raise ConnectionRefusedError("no more")

    async def story(loop: VirtualLoop) -> None:
        first, second = Lost(10, ends=False), Numbers(10, ends=False)
        sink = Taking()
        running = flow(
            loop, {"in": first, "more": second, "out": sink}, {}, "in out", "more out",
            options={"in": {"reconnect": "none"}},
        )  # fmt: skip
        await running.start()
        await asyncio.sleep(1)
        assert not running.error
        running.graph.sources["in"].lost(ConnectionResetError("it is gone"))
        await asyncio.sleep(1)
        assert running.status == "failed"
        assert "it is gone" in running.error
        assert not running.ended
        second.count = 20
        second.interrupt()
        await asyncio.sleep(1)
        assert len(sink.values) == 30
        report = await running.drain(10)
        assert report.complete
        assert running.ended

    simulate(story)


def test_a_sink_that_has_failed_and_holds_up_a_source() -> None:
    async def story(loop: VirtualLoop) -> None:
        for authoritative in (True, False):
            given = {"out": {"reconnect": "none", "authoritative": authoritative}}
            running = flow(loop, {"in": Numbers(3, ends=False), "out": Taking()}, {}, "in out", options=given)
            await running.start()
            await asyncio.sleep(1)
            running.graph.sinks["out"].lost(ConnectionResetError("it is gone"))
            await asyncio.sleep(1)
            assert running.status == ("failed" if authoritative else "running")
            await running.stop()

    simulate(story)


# -- why nothing moves -----------------------------------------------------------------------------------------
def reasons(running: RunningFlow) -> dict[str, str]:
    return {each.reason: each.detail for each in running.reasons()["in"]}


def test_a_full_window_says_why() -> None:
    async def story(loop: VirtualLoop) -> None:
        async def hangs(events: Any) -> None:
            await asyncio.Event().wait()

        running = flow(
            loop, {"in": Numbers(100), "out": Taking(hangs)}, {}, "in out", options={"in": {"max_unsettled": 10}}
        )
        await running.start()
        await asyncio.sleep(5)
        assert reasons(running) == {"window_full:in": "10 events are not settled, max_unsettled is 10; 10 at out"}
        await running.stop()

    simulate(story)


def test_a_full_channel_is_a_reason_when_it_lasts() -> None:
    class One(Numbers):
        async def pull(self, limit: int) -> Any:
            return await super().pull(1)

    async def story(loop: VirtualLoop) -> None:
        async def hangs(events: Any) -> None:
            await asyncio.Event().wait()

        running = flow(loop, {"in": One(100), "out": Taking(hangs)}, {}, "in out", queue=4)
        await running.start()
        await asyncio.sleep(0.5)
        assert reasons(running) == {}
        await asyncio.sleep(5)
        assert reasons(running) == {"channel_full:out": "4 events wait in its channel"}
        await running.stop()

    simulate(story)


def test_a_source_that_waits_for_what_it_sent_first_after_a_pause_says_so() -> None:
    async def story(loop: VirtualLoop) -> None:
        async def hangs(events: Any) -> None:
            await asyncio.Event().wait()

        running = flow(loop, {"in": Numbers(100), "out": Taking(hangs)}, {}, "in out")
        node = running.graph.sinks["out"]
        node.trigger("unavailable")
        await running.start()
        await asyncio.sleep(1)
        node.restore("unavailable", probe=True)
        await asyncio.sleep(5)
        (found,) = reasons(running)
        assert found in ("probing:in", "unavailable:out")
        await running.stop()

    simulate(story)


def test_an_event_that_waits_to_be_tried_again_has_an_age() -> None:
    async def story(loop: VirtualLoop) -> None:
        async def fails(events: Any) -> None:
            raise RuntimeError("not yet")

        source = Numbers(1, ends=False, owns_policy=False)
        running = flow(
            loop, {"in": source, "out": Taking(fails)}, {}, "in out",
            options={"in": {"on_error": {"retry": {"first": 100.0, "most": 100.0}}}, "out": {}},
        )  # fmt: skip
        await running.start()
        for seconds in (10, 20, 50):
            await asyncio.sleep(seconds)
            unsettled = running.unsettled()
            assert unsettled.count == 1
            assert unsettled.oldest == pytest.approx(loop.time(), abs=2)
        await asyncio.sleep(200)  # tried again meanwhile: it is as old as it was
        assert running.unsettled().oldest == pytest.approx(loop.time(), abs=2)
        await running.stop()

    simulate(story)
