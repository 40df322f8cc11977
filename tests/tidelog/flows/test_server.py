"""The server as connectors reach it: URLs, the leader among several, waiting at no cost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tidelog.flows.serverkit import in_loop, running
from tests.waiting import until
from tidelog.flows import Flow
from tidelog.flows.connectors.tidelog import entrywaiter
from tidelog.flows.serveraccess import SourceNotifier, access
from tidelog.testing import Server, free_port, running_server


def test_urls() -> None:
    assert access("redis://a:1").urls == ("redis://a:1",)
    assert access("redis://a:1, redis://b:2").urls == ("redis://a:1", "redis://b:2")
    found = access("redis+sentinel://user:p%40ss@a:1,b:2/orders")
    assert (found.sentinels, found.service) == (("redis://a:1", "redis://b:2"), "orders")
    assert (found.username, found.password) == ("user", "p@ss")
    for wrong in ("http://a", "redis+sentinel://a:1", "redis://a:1,"):
        with pytest.raises(ValueError, match="redis"):
            access(wrong)


@in_loop
async def test_of_several_servers_the_one_that_leads_is_used(tidelog_server: Server) -> None:
    leader = f"{tidelog_server.host} {tidelog_server.port}"
    with running_server(replicaof=leader) as replica, tidelog_server.client() as client:
        client.tappend("orders", {"n": 1})
        seen: list[Any] = []

        async def sink(value: Any) -> None:
            seen.append(value)

        nobody = f"redis://127.0.0.1:{free_port()}"
        flow = Flow("orders", server=f"{nobody},{replica.url},{tidelog_server.url}")
        flow.connector("in", "stream", key="orders", group="shop")
        flow.connector("out", sink)
        flow.connect("in -> out")
        async with running(flow):
            await until(lambda: seen == [{"n": "1"}] and client.tpending("orders", "shop").count == 0)


@in_loop
async def test_many_idle_sources_wait_on_a_few_connections_and_ask_nothing(tidelog_server: Server) -> None:
    count = 60
    seen: list[str] = []

    def flow_of(number: int) -> Flow:
        async def sink(value: Any) -> None:
            seen.append(value["n"])

        flow = Flow(f"f{number}", server=tidelog_server.url)
        flow.connector("in", "stream", key=f"k{number}", group="g")
        flow.connector("out", sink)
        flow.connect("in -> out")
        return flow

    with tidelog_server.client() as client:
        all_of_them = [running(flow_of(number)) for number in range(count)]
        for each in all_of_them:
            await each.__aenter__()
        try:
            await until(lambda: len(client.redis.keys("k*")) == count)
            await until(lambda: 0 < client.redis.info("clients")["blocked_clients"] < 10)
            client.redis.config_resetstat()
            await asyncio.sleep(1)
            stats = client.redis.info("commandstats")
            assert "cmdstat_tread" not in stats
            for number in (3, 40):
                client.tappend(f"k{number}", {"n": str(number)})
            await until(lambda: sorted(seen) == ["3", "40"])
        finally:
            for each in all_of_them:
                await each.__aexit__(None, None, None)
        assert not SourceNotifier._all


@in_loop
async def test_a_cold_source_is_told_what_is_due_again(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that has died: nothing new comes, and yet its entry must be read when it is due."""
    monkeypatch.setattr(entrywaiter, "WARM", 0.0)
    seen: list[Any] = []

    async def sink(value: Any) -> None:
        seen.append(value)

    with tidelog_server.client() as client:
        client.tappend("orders", {"n": 1})
        assert len(client.tread("orders", "0", 1, group="shop", retry=800)) == 1
        flow = Flow("orders", server=tidelog_server.url)
        flow.connector("in", "stream", key="orders", group="shop")
        flow.connector("out", sink)
        flow.connect("in -> out")
        async with running(flow):
            await until(lambda: client.redis.info("clients")["blocked_clients"] >= 1)
            assert not seen
            await until(lambda: seen == [{"n": "1"}] and client.tpending("orders", "shop").count == 0)


@in_loop
async def test_a_source_that_is_cold_hears_of_what_another_of_its_process_gives_back(
    tidelog_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entrywaiter, "WARM", 0.0)
    seen: list[Any] = []

    async def never(_: Any) -> None:
        await asyncio.Event().wait()

    async def sink(value: Any) -> None:
        seen.append(value)

    def flow_of(into: Any) -> Flow:
        flow = Flow("orders", server=tidelog_server.url)
        flow.connector("in", "stream", key="orders", group="shop", retry="1h")
        flow.connector("out", into)
        flow.connect("in -> out")
        return flow

    with tidelog_server.client() as client:
        client.tappend("orders", {"n": 1})
        async with running(flow_of(never)) as one:
            await until(lambda: one.graph.sources["in"].unsettled == 1)
            async with running(flow_of(sink), "orders.2"):
                await until(lambda: client.redis.info("clients")["blocked_clients"] >= 1)
                await one.stop()
                await until(lambda: seen == [{"n": "1"}])
