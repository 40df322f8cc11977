"""Connectors over HTTP together: a proxy, a write that is given up, another event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp import web

from tests.tidelog.flows.netkit import feed, peer, running, seen, url_of
from tests.waiting import until
from tidelog.flows import Event, Flow, op


async def _proxy() -> None:
    """http_server -> http_client -> http_server: what the peer says is the answer."""

    async def answer(request: web.Request) -> web.Response:
        given = await request.json()
        if given == "bad":
            return web.Response(status=400)
        return web.json_response({"path": request.path, "given": given}, status=201, headers={"X-A": "b"})

    async with peer(answer) as behind:
        flow = Flow("proxy")
        flow.connector("front", "http_server", port=0)
        flow.connector("back", "http_client", url=behind + "/to/{meta.headers.x-name}")
        flow.connect("front -> back", "back -> front")
        async with running(flow) as one, aiohttp.ClientSession() as session:
            url = await url_of(one, "front")
            for number in range(20):
                async with session.post(url, json=number, headers={"X-Name": "a b"}) as response:
                    assert (response.status, response.headers["X-A"]) == (201, "b")
                    assert await response.json() == {"path": "/to/a b", "given": number}
            for value, headers in (("bad", {"X-Name": "a"}), ("good", {})):
                async with session.post(url, json=value, headers=headers) as response:
                    assert response.status == 422


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_proxy(loop: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.run(_proxy())


def test_a_write_that_is_given_up_settles_its_events_once() -> None:
    async def scenario() -> None:
        go = asyncio.Event()

        async def answer(request: web.Request) -> web.Response:
            if await request.json() % 3 == 0:
                await go.wait()
            return web.json_response(1)

        async with peer(answer) as url:
            flow = Flow("late")
            flow.connector("out", "http_client", url=url, timeout="200ms", concurrency=10, target_latency="1m")
            source, sink = feed(flow), seen(flow)
            flow.connect("in -> out", "out -> seen")
            async with running(flow) as one:
                source.give(*(Event(number, None, number) for number in range(9)))
                await until(lambda: len(source.outcomes) == 9)
                go.set()
                connector: Any = one.graph.connectors["out"]
                await until(lambda: connector.limit.in_flight == 0)
                source.give(Event(10, None, 10))
                await until(lambda: 10 in source.outcomes)
                assert one.unsettled().count == 0
        assert source.outcomes[0][0] == "retry"
        assert len(sink.events) == sum(each[0] == "ok" for each in source.outcomes.values())

    asyncio.run(scenario())


def test_a_batch_is_one_request_and_one_answer_for_all() -> None:
    async def scenario() -> None:
        bodies: list[bytes] = []

        async def answer(request: web.Request) -> web.Response:
            bodies.append(await request.read())
            return web.Response(status=200 if len(bodies) > 1 else 503)

        async with peer(answer) as url:
            flow = Flow("lines")
            flow.connector("out", "http_client", url=url, codec="jsonl")
            flow.pipeline("gather", op("batch", count=3))
            source = feed(flow, remembers=True, on_error={"retry": {"first": "10ms"}})
            flow.connect("in -> gather -> out")
            async with running(flow):
                source.give(*(Event(number, None, number) for number in range(3)))
                await until(lambda: len(source.outcomes) == 3)
        assert bodies == [b"0\n1\n2\n"] * 2

    asyncio.run(scenario())


def test_a_drain_waits_for_requests_under_way() -> None:
    async def scenario() -> None:
        go = asyncio.Event()
        got: list[int] = []

        async def answer(request: web.Request) -> web.Response:
            got.append(await request.json())
            await go.wait()
            return web.Response()

        async with peer(answer) as url:
            flow = Flow("drains")
            flow.connector("out", "http_client", url=url)
            source = feed(flow)
            flow.connect("in -> out")
            async with running(flow) as one:
                source.give(*(Event(number, None, number) for number in range(5)))
                await until(lambda: got)
                draining = asyncio.ensure_future(one.drain(10))
                await until(lambda: one.status == "draining")
                go.set()
                report = await draining
        assert report.complete
        assert len(source.outcomes) == 5

    asyncio.run(scenario())
