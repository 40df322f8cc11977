"""Flows of one process: what people asked for is kept on the tidelog server and holds after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.tidelog.flows.servicekit import LONG, MAIN, Client, hosted, served
from tests.waiting import until
from tidelog.flows import FlowFileError
from tidelog.flows.service.desired import Desired, DesiredDocument, DesiredStateError
from tidelog.flows.service.host import BusyError, FlowHost, NoFlowError
from tidelog.testing import Server

TWO = """
flows:
  orders:
    instances: 2
    connectors: {in: "null", out: "null"}
    pipelines: {p: []}
    connect: [in -> p -> out]
  other:
    paused: true
    connectors: {in: "null", out: {type: "null", paused: true}}
    pipelines: {p: []}
    connect: [in -> p -> out]
"""
FLOW = {"connectors": {"in": "null", "out": "null"}, "pipelines": {"p": []}, "connect": ["in -> p -> out"]}
Test = Callable[[FlowHost], Awaitable[None]]


def restarted(server: Server | None, *tests: Test, text: str = TWO) -> None:
    """Run each test with a host of its own, one after the other."""

    async def main() -> None:
        for test in tests:
            async with hosted(text, server.url if server else None) as host:
                await test(host)

    asyncio.run(main())


def statuses(host: FlowHost) -> dict[str, str]:
    return {each.alias: each.status for deployed in host.flows.values() for each in deployed.instances}


# -- kept ----------------------------------------------------------------------------------------------------
def test_what_was_paused_stays_so_after_a_restart(tidelog_server: Server) -> None:
    async def pause(host: FlowHost) -> None:
        await until(lambda: statuses(host) == {"orders.1": "running", "orders.2": "running", "other": "paused"})
        await host.set_status("orders", "paused")
        await host.set_status("orders.2", "running")
        await host.set_status("other", "running")
        await host.set_status("other", "running", "out")
        await host.set_status("other", "paused", "in")

    async def look(host: FlowHost) -> None:
        await until(lambda: statuses(host) == {"orders.1": "paused", "orders.2": "running", "other": "running"})
        graph = host.flows["other"].instances[0].graph
        assert graph.sources["in"].breaker.paused
        assert not graph.sinks["out"].paused
        assert not graph.sources["in"].counts.get("out")
        await host.set_status("orders", "paused")

    async def look_again(host: FlowHost) -> None:
        assert {name: each for name, each in statuses(host).items() if name != "other"} == {
            "orders.1": "paused", "orders.2": "paused",
        }  # fmt: skip

    restarted(tidelog_server, pause, look, look_again)


@pytest.mark.parametrize("text", [b"\xff", b"7", b"[" * 100_000, b'{"wanted": {"orders": {"status": 5}}}', None])
def test_flows_start_where_what_was_asked_for_cannot_be_read(
    tidelog_server: Server, text: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    with tidelog_server.client() as client:
        if text is None:
            client.tappend("flows:default", {"a": "b"})
        else:
            client.redis.set("flows:default", text)

    async def look(host: FlowHost) -> None:
        await until(lambda: statuses(host) == {"orders.1": "running", "orders.2": "running", "other": "paused"})
        assert not host.problem

    restarted(tidelog_server, look)
    assert caplog.text.count("flows start without a desired state") == 1


def test_nothing_is_deployed_before_the_stored_flows_are_known(tidelog_server: Server) -> None:
    """A PUT of a stored flow before that would create the flow again, without its desired state."""

    async def pause(host: FlowHost) -> None:
        await host.deploy("new", FLOW)
        await host.set_status("new", "paused")

    async def main() -> None:
        host = FlowHost(tidelog_server.url)
        try:
            with pytest.raises(BusyError, match="the stored flows are not known yet"):
                await host.deploy("new", FLOW, replace=True)
            await host.start([])
            assert host.flows["new"].by == "api"
            await host.deploy("new", FLOW, replace=True)
            await until(lambda: statuses(host) == {"new": "paused"})
        finally:
            await host.stop()

    restarted(tidelog_server, pause)
    asyncio.run(main())


def test_without_a_server_nothing_is_kept() -> None:
    async def pause(host: FlowHost) -> None:
        await host.set_status("orders", "paused")

    async def look(host: FlowHost) -> None:
        await until(lambda: statuses(host)["orders.1"] == "running")

    restarted(None, pause, look)


def test_flows_that_came_over_http_are_back(tidelog_server: Server) -> None:
    async def deploy(host: FlowHost) -> None:
        for name in ("new", "gone"):
            await host.deploy(name, FLOW)
        await host.set_status("new", "paused")
        await host.deploy("new", {**FLOW, "pipelines": {"p": ["passthrough", "passthrough"]}}, replace=True)
        await host.undeploy("gone")

    async def look(host: FlowHost) -> None:
        assert set(host.flows) == {"orders", "other", "new"}
        assert statuses(host)["new"] == "paused"
        assert len(host.flows["new"].spec.pipelines["p"].operators) == 2
        await host.undeploy("new")

    async def look_again(host: FlowHost) -> None:
        assert set(host.flows) == {"orders", "other"}
        assert host.desired is not None
        kept = await host.desired.read()
        assert kept.deployed == {}
        assert "new" not in kept.wanted

    restarted(tidelog_server, deploy, look, look_again)


def test_a_flow_of_a_file_that_was_replaced_over_http_is_the_files_after_a_restart(tidelog_server: Server) -> None:
    async def replace(host: FlowHost) -> None:
        deployed, reports = await host.deploy("orders", {**FLOW, "queue": 5}, replace=True)
        assert set(reports) == {"orders.1", "orders.2"}
        assert deployed.by == "file"
        assert host.flows["orders"].spec.queue == 5

    async def look(host: FlowHost) -> None:
        assert host.flows["orders"].spec.queue == 128

    restarted(tidelog_server, replace, look)


def test_one_that_can_not_be_used_any_more_holds_up_no_other(tidelog_server: Server) -> None:
    async def main() -> None:
        desired = Desired(tidelog_server.url, "default")
        await desired.change(lambda kept: kept.deployed.update({"bad": {"connect": ["in -> gone"]}, "orders": FLOW}))
        desired.close()

    asyncio.run(main())

    async def look(host: FlowHost) -> None:
        assert set(host.flows) == {"orders", "other"}
        assert host.flows["orders"].by == "file"

    restarted(tidelog_server, look)


def test_nothing_starts_before_the_server_says_what_is_paused(tidelog_server: Server) -> None:
    async def main() -> None:
        async with hosted(MAIN, tidelog_server.url) as host:
            await host.set_status("main", "paused")
        tidelog_server.kill()
        async with hosted(MAIN, tidelog_server.url, wait=False) as host, served(host) as ask:
            await until(lambda: "can't be read from the server" in host.problem)
            assert statuses(host) == {}
            found = await ask("GET", "/v1/ready")
            assert found.status == 503
            assert "the desired state can't be read from the server" in found.body["culprits"][0]
            assert (await ask("PATCH", "/v1/flows/main", {"status": "running"})).status == 409
            assert (await ask("POST", "/v1/flows/new", FLOW)).status == 409
            assert (await ask("GET", "/v1/flows/main")).body["status"] == "initializing"
            assert (await ask("GET", "/v1/status")).status == 503
            await every_get(ask)
            await asyncio.to_thread(tidelog_server.start)
            await until(lambda: statuses(host) == {"main": "paused"})

    asyncio.run(main())


async def every_get(ask: Client) -> None:
    """None of these has a bug where nothing was started yet."""
    paths = ("", "/connectors", "/connectors/in", "/pipelines", "/pipelines/echo", "/graph", "/breaker", "/unsettled")
    for path in paths:
        found = await ask("GET", f"/v1/flows/main{path}")
        assert found.status in (200, 409), (path, found.body)
    assert (await ask("GET", "/metrics")).status == 200


def test_a_pause_that_can_not_be_kept_is_in_force_and_says_so(tidelog_server: Server) -> None:
    async def main() -> None:
        async with hosted(MAIN, tidelog_server.url) as host, served(host) as ask:
            await asyncio.to_thread(tidelog_server.kill)
            found = await ask("PATCH", "/v1/flows/main", {"status": "paused"})
            assert found.status == 503
            assert "it is in effect, but the tidelog server did not store it" in found.body["error"]
            assert statuses(host) == {"main": "paused"}
            await asyncio.to_thread(tidelog_server.start)
            assert (await ask("PATCH", "/v1/flows/main", {"status": "paused"})).status == 200

    asyncio.run(main())


def test_changes_at_the_same_time_are_all_kept(tidelog_server: Server) -> None:
    async def main() -> None:
        several = [Desired(tidelog_server.url, "shop") for _ in range(5)]
        await asyncio.gather(
            *(
                each.change(lambda kept, name=f"f{number}": kept.set(name, name, "paused"))  # type: ignore[misc]
                for number, each in enumerate(several * 3)
            )
        )
        kept = await several[0].read()
        assert set(kept.wanted) == {f"f{number}" for number in range(15)}
        for each in several:
            each.close()

    asyncio.run(main())


def test_a_key_of_somebody_elses_is_left_alone(tidelog_server: Server) -> None:
    with tidelog_server.client() as client:
        client.redis.set("flows:x", "mine")
        client.tappend("flows:y", {"a": "b"})

    async def main() -> None:
        for name in ("x", "y"):
            desired = Desired(tidelog_server.url, name)
            with pytest.raises(DesiredStateError):
                await desired.change(lambda kept: kept.set("a", "a", "paused"))
            desired.close()

    asyncio.run(main())
    with tidelog_server.client() as client:
        assert client.redis.get("flows:x") == b"mine"


def test_what_was_said_of_a_flow_replaces_what_was_said_of_its_instances() -> None:
    kept = DesiredDocument()
    kept.set("a", "a.1", "paused")
    kept.set("a", "a.1", "paused", "in")
    kept.set("a", "a", "running")
    kept.set("b", "b", "paused")
    assert (kept.status("a", "a.1"), kept.status("a", "a.2"), kept.connectors("a", "a.1")) == (
        "running", "running", {"in": "paused"},
    )  # fmt: skip
    kept.set("a", "a", "running", "in")
    assert kept.connectors("a", "a.1") == {"in": "running"}
    kept.forget("a")
    assert set(kept.wanted) == {"b"}

def test_the_process_does_not_end_before_the_deletion_of_its_last_flow_is_stored(tidelog_server: Server) -> None:
    async def delete(host: FlowHost) -> None:
        assert host.desired is not None
        store, storing, stored = host.desired.change, asyncio.Event(), asyncio.Event()

        async def slow(edit: Callable[[DesiredDocument], None]) -> None:
            storing.set()
            await stored.wait()
            await store(edit)

        host.desired.change = slow  # type: ignore[method-assign]
        await host.undeploy("orders", forget=False)
        ended = asyncio.create_task(host.finished())
        deletion = asyncio.create_task(host.undeploy("other"))
        await storing.wait()
        await asyncio.sleep(0)  # what can run has run
        assert not host.flows
        assert not ended.done()
        stored.set()
        assert await deletion
        await ended

    restarted(tidelog_server, delete)


# -- one process ---------------------------------------------------------------------------------------------
def test_errors_of_a_host() -> None:
    async def test(host: FlowHost) -> None:
        with pytest.raises(NoFlowError, match="there is no flow 'x'"):
            await host.undeploy("x")
        with pytest.raises(NoFlowError, match="the flow 'orders' has no connector 'x'"):
            await host.set_status("orders", "paused", "x")
        with pytest.raises(BusyError, match="only the whole flow can be deleted"):
            await host.undeploy("orders.1")
        with pytest.raises(BusyError, match="PUT replaces it"):
            await host.deploy("orders", FLOW)
        with pytest.raises(FlowFileError, match="64 instances are the maximum"):
            await host.deploy("x", {**FLOW, "instances": 65})
        host.draining = True
        with pytest.raises(BusyError, match="is stopping"):
            await host.deploy("x", FLOW)

    restarted(None, test)


def test_all_flows_end_and_the_host_says_so() -> None:
    text = MAIN.replace('in: "null"', 'in: {type: "null", count: 1000}')

    async def main() -> None:
        async with hosted(text) as host, asyncio.timeout(LONG):
            await host.finished()
            assert statuses(host) == {"main": "drained"}
            assert host.flows["main"].instances[0].graph.sinks["out"].counts["ok"] == 1000
            assert await host.drain() == {}

    asyncio.run(main())


def test_a_drain_does_not_wait_for_a_paused_sink_that_is_owed_nothing() -> None:
    async def test(host: FlowHost) -> None:
        async with asyncio.timeout(LONG):
            reports = await host.drain(3600.0)
        assert all(each.complete for each in reports.values())

    restarted(None, test)


def test_a_flow_that_fails_does_not_touch_the_other() -> None:
    async def test(host: FlowHost) -> None:
        def fail() -> None:
            raise RuntimeError("a bug")

        host.flows["orders"].instances[0].graph.operators["p"][0].later(fail)
        await until(lambda: statuses(host)["orders.1"] == "failed")
        assert host.failed == ["orders.1: p.0: RuntimeError: a bug"]
        assert host.flows["orders"].status == "failed"
        sink = host.flows["orders"].instances[1].graph.sinks["out"]
        before = sink.counts.get("ok", 0)
        await until(lambda: sink.counts.get("ok", 0) > before)
        reports = await host.drain()
        assert set(reports) == {"orders.1", "orders.2", "other"}
        assert reports["orders.2"].complete

    restarted(None, test)


def test_a_replacement_that_is_under_way_when_the_process_is_to_stop() -> None:
    """Nothing is begun that nobody would drain."""

    async def test(host: FlowHost) -> None:
        async with host.flows["orders"].lock:
            replacing = asyncio.create_task(host.deploy("orders", FLOW, replace=True))
            await asyncio.sleep(0)  # it waits for the lock
            draining = asyncio.create_task(host.drain(2.0))
            await until(lambda: host.draining)
        assert set(await draining) == {"other"}  # the replacement had drained the other
        with pytest.raises(BusyError, match="is stopping"):
            await replacing
        assert set(statuses(host).values()) == {"drained"}

    restarted(None, test)


def test_two_who_replace_at_the_same_time() -> None:
    async def test(host: FlowHost) -> None:
        found = await asyncio.gather(
            *(host.deploy("orders", {**FLOW, "queue": queue}, replace=True) for queue in (1, 2)), return_exceptions=True
        )
        assert sorted(type(each).__name__ for each in found) == ["BusyError", "tuple"]
        await until(lambda: host.flows["orders"].status == "running")

    restarted(None, test)
