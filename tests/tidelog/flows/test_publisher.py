"""The status of a flow process on its server, and the desired state that it follows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
import pytest

from tests.tidelog.flows.servicekit import hosted
from tests.waiting import until
from tidelog.client import Client
from tidelog.client.steps import run
from tidelog.coordination import programs
from tidelog.flows.service import flowstatus, publisher
from tidelog.flows.service.desired import DesiredDocument, changing, decoded, key_of
from tidelog.flows.service.flowstatus import FlowProcessStatus
from tidelog.flows.service.host import FlowHost
from tidelog.flows.service.publisher import FlowPublisher
from tidelog.testing import Server

FLOWS = """
flows:
  main:
    connectors: {in: {type: stream, key: jobs, group: g}, out: {type: stream, key: done}}
    pipelines: {p: [passthrough]}
    connect: [in -> p -> out]
  two:
    instances: 2
    connectors: {in: {type: metronome, interval: 20ms, paused: true}, out: "null"}
    pipelines: {p: []}
    connect: [in -> p -> out]
"""


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "FOLLOW", 0.02)
    monkeypatch.setattr(publisher, "WRITE", 0.02)


@asynccontextmanager
async def published(server: Server, text: str = FLOWS) -> AsyncIterator[FlowHost]:
    async with hosted(text, server.url) as host, FlowPublisher(host):
        yield host


def statuses(client: Client) -> list[FlowProcessStatus]:
    return run(client, flowstatus.read("default", desired(client).processes))


def desired(client: Client) -> DesiredDocument:
    raw: Any = client.redis.get(key_of("default"))
    return decoded(key_of("default"), raw)


def shown(server: Server, test: Callable[[Client, FlowHost], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        with server.client() as client:
            async with published(server) as host:
                await test(client, host)

    asyncio.run(main())


def test_the_status_of_a_process_is_on_its_server(tidelog_server: Server) -> None:
    async def test(client: Client, host: FlowHost) -> None:
        client.tmappend("jobs", ["n"], [(n,) for n in range(10)])
        main = lambda: next((flow for each in statuses(client) for flow in each.flows if flow.alias == "main"), None)  # noqa: E731
        await until(lambda: (found := main()) and found.total("sink", "ok") == 10 and not found.unsettled)
        found = main()
        assert found is not None
        assert found.status == "running"
        assert found.dead_letters == "flow.main.dead"
        assert found.graph is not None
        assert [(each.start, each.to, each.events) for each in found.graph.channels] == [
            ("in", "p.0", 10), ("p.0", "out", 10),
        ]  # fmt: skip
        assert list(run(client, programs.read()).flows) == ["default"]
        (key,) = client.redis.keys("flows:default:process:*")
        assert 0 < client.redis.pttl(key) <= publisher.KEPT_MS
        text = client.redis.get(key)
        await asyncio.sleep(0.2)  # ten turns in which nothing happens
        assert client.redis.get(key) == text

    shown(tidelog_server, test)
    with tidelog_server.client() as client:
        assert client.redis.keys("flows:default:process:*") == []
        assert desired(client).processes == {}


def test_a_process_follows_the_desired_state(tidelog_server: Server) -> None:
    async def test(client: Client, host: FlowHost) -> None:
        def status(alias: str) -> str:
            return next(each.status for flow in host.flows.values() for each in flow.instances if each.alias == alias)

        def want(name: str, alias: str, to: str, connector: str | None = None) -> None:
            run(client, changing("default", lambda document: document.set(name, alias, to, connector)))

        want("main", "main", "paused")
        await until(lambda: status("main") == "paused")
        await until(lambda: [each.flows[0].status for each in statuses(client)] == ["paused"])
        want("main", "main", "running")
        await until(lambda: status("main") == "running")
        want("two", "two.2", "paused")
        await until(lambda: status("two.2") == "paused")
        assert status("two.1") == "running"
        want("main", "main", "paused", "in")
        source = host.flows["main"].instances[0].graph.sources["in"]
        await until(lambda: any(each.reason == "paused:in" for each in source.breaker.reasons))
        want("main", "main", "running", "in")
        await until(lambda: not source.breaker.reasons)
        source.pause("in")  # as on_error does
        want("main", "main", "paused")
        await until(lambda: len(source.breaker.reasons) == 2)
        want("main", "main", "running")
        await until(lambda: len(source.breaker.reasons) == 1)
        assert [each.reason for each in source.breaker.reasons] == ["paused:in"]
        source.resume("in")
        # what this process changes itself stays
        steps: tuple[Literal["paused", "running"], ...] = ("paused", "running", "paused")
        for step in steps:
            await host.set_status("main", step)
        await asyncio.sleep(0.1)
        assert status("main") == "paused"

    shown(tidelog_server, test)


def test_two_processes_of_a_name(tidelog_server: Server) -> None:
    async def test(client: Client, host: FlowHost) -> None:
        async with published(tidelog_server) as other:
            await until(lambda: len(statuses(client)) == 2)
            await host.set_status("main", "paused")
            await until(lambda: other.flows["main"].status == "paused")
        await until(lambda: len(statuses(client)) == 1)

    shown(tidelog_server, test)


def test_large_flows_are_shortened(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flowstatus, "SIZE", 1500)

    async def test(client: Client, host: FlowHost) -> None:
        await until(lambda: statuses(client))
        (found,) = statuses(client)
        assert [(each.alias, each.graph is None) for each in found.flows] == [("main", False), ("two", True)]

    shown(tidelog_server, test)


def test_flows_run_if_the_status_is_denied(tidelog_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with tidelog_server.client() as client:
        client.redis.execute_command(
            "ACL", "SETUSER", "limited", "reset", "on", ">secret", "+@all", "~flows:default", "~jobs", "~done"
        )
        client.redis.execute_command("ACL", "LOG", "RESET")
        url = tidelog_server.url.replace("redis://", "redis://limited:secret@")

        async def main() -> None:
            async with hosted(FLOWS, url) as host, FlowPublisher(host):
                client.tappend("jobs", {"n": 1})
                await until(lambda: client.tlen("done") == 1)
                await until(lambda: "can't show and control" in caplog.text)
                await asyncio.sleep(0.2)
                assert host.flows["main"].status == "running"

        with caplog.at_level(logging.WARNING):
            asyncio.run(main())
        assert caplog.text.count("can't show and control") == 1
        denied = client.redis.execute_command("ACL", "LOG")
        assert len(denied) <= 3


@pytest.mark.parametrize("value", [b"", b"garbage", b"[]", b'{"version":2}', b'{"version":1,"flows":[{"alias":3}]}'])
def test_invalid_statuses_are_ignored(tidelog_server: Server, value: bytes) -> None:
    with tidelog_server.client() as client:
        client.redis.set(flowstatus.key_of("default", "x"), value)
        assert run(client, flowstatus.read("default", {"x": 1, "missing": 2})) == []
    assert flowstatus.decoded(msgspec.json.encode(FlowProcessStatus(1, "x"))) == FlowProcessStatus(1, "x")
