"""Dead letters over HTTP: listed, and sent to where they came from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.tidelog.flows.servicekit import Client, hosted, served
from tests.waiting import until
from tidelog.flows import RejectError
from tidelog.flows.service.host import FlowHost
from tidelog.testing import Server

TEXT = """
flows:
  orders:
    connectors:
      in: {type: stream, key: orders, group: shop, start: earliest}
      out: {type: stream, key: done}
    pipelines: {check: [{python: "MODULE:check"}]}
    connect: [in -> check -> out]
""".replace("MODULE", __name__)

bad = {"1", "2"}  # numbers that never work


def check(order: dict[str, str]) -> dict[str, str]:
    if order["number"] in bad:
        raise RejectError(f"{order['number']} is bad")
    return order


def with_letters(server: Server, test: Callable[[Client, FlowHost], Awaitable[None]]) -> None:
    """Run a test when the orders 1 and 2 of 0 to 3 are dead letters."""
    bad.update(("1", "2"))
    with server.client() as client:
        for number in range(4):
            client.tappend("orders", {"number": str(number)})

        async def main() -> None:
            async with hosted(TEXT, server.url) as host, served(host) as ask:
                await until(lambda: host.flows["orders"].instances[0].graph.sinks["out"].counts.get("ok", 0) == 2)
                await until(lambda: client.tpending("orders", "shop").count == 0)
                await test(ask, host)

        asyncio.run(main())


def test_listed(tidelog_server: Server) -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        found = (await ask("GET", "/v1/dead_letters?flow=orders")).body
        assert (found["topic"], found["open"]) == ("flow.orders.dead", 2)
        assert (await ask("GET", "/v1/flows/orders")).body["dead_letters"] == "flow.orders.dead"
        first = found["letters"][0]
        assert (first["of"], first["source"], first["attempts"]) == ("orders", "orders.in", 1)
        assert first["fields"] == {"number": "1"}
        assert "1 is bad" in first["message"]
        found = (await ask("GET", "/v1/dead_letters?topic=flow.orders.dead&limit=1")).body
        assert (found["open"], len(found["letters"])) == (2, 1)
        assert (await ask("GET", "/v1/dead_letters?topic=nothere")).body["letters"] == []
        assert (await ask("GET", "/v1/dead_letters?flow=nothere")).status == 404

    with_letters(tidelog_server, test)


def test_replayed(tidelog_server: Server) -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        bad.clear()
        letters = (await ask("GET", "/v1/dead_letters?flow=orders")).body["letters"]
        found = await ask("POST", "/v1/dead_letters/replay", {"flow": "orders", "ids": [letters[1]["id"]]})
        assert (found.status, found.body) == (200, {"topic": "flow.orders.dead", "replayed": 1, "refused": []})
        assert (await ask("GET", "/v1/dead_letters?flow=orders")).body["open"] == 1
        found = await ask("POST", "/v1/dead_letters/replay", {"flow": "orders"})
        assert found.body["replayed"] == 1
        await until(lambda: host.flows["orders"].instances[0].graph.sinks["out"].counts.get("ok", 0) == 4)
        assert (await ask("POST", "/v1/dead_letters/replay", {"flow": "orders"})).body["replayed"] == 0

    with_letters(tidelog_server, test)


@pytest.mark.parametrize("ids", ["x", [1], ["x.y"]])
def test_ids_that_are_none(tidelog_server: Server, ids: object) -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        assert (await ask("POST", "/v1/dead_letters/replay", {"flow": "orders", "ids": ids})).status == 422

    with_letters(tidelog_server, test)


def test_no_server(tidelog_server: Server) -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        await asyncio.to_thread(tidelog_server.kill)
        for answer in (
            await ask("GET", "/v1/dead_letters?flow=orders"),
            await ask("POST", "/v1/dead_letters/replay", {"flow": "orders"}),
        ):
            assert answer.status == 503
        await asyncio.to_thread(tidelog_server.start)

    with_letters(tidelog_server, test)
