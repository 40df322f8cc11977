"""``/metrics`` of a gateway."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.tidelog.gateway.gatewaykit import Caller, Events, visit
from tests.waiting import until
from tidelog.gateway.application import GatewayServer
from tidelog.gateway.errors import GatewayError
from tidelog.testing import Server

STREAM = "/v1/streams/{key}"
Samples = dict[tuple[str, ...], float]


async def scraped(caller: Caller, gateway: GatewayServer) -> Samples:
    """The samples of the gateway: by name, method, path, and status or bound."""
    async with caller.session.get(f"http://127.0.0.1:{gateway.metrics_port}/metrics") as answer:
        assert answer.status == 200
        families = list(text_string_to_metric_families(await answer.text()))
    return {
        (each.name, *(each.labels.get(name, "") for name in ("method", "path")), _last(each.labels)): each.value
        for family in families
        for each in family.samples
        if each.name.startswith("tidelog_gateway_")
    }


def _last(labels: dict[str, str]) -> str:
    return labels.get("status", labels.get("le", ""))


def value(samples: Samples, name: str, method: str = "", path: str = "", last: str = "") -> float:
    return samples.get((f"tidelog_gateway_{name}", method, path, last), -1)


def test_metrics(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        for repeated in (0, 1):
            await caller.append("metrics", {"n": 1}, {"n": 2}, Idempotency_Key="once")
            assert (await caller.post("/v1/streams/metrics?delay=1h", {"fields": {"n": repeated}}))[0] == 202
        await caller.get("/v1/streams/metrics?limit=none")
        await caller.get("/nowhere")
        await caller.call("PATCH", "/v1/streams/metrics")
        reader = Events(caller, "/v1/streams/metrics?after=earliest")
        async with reader.open():
            assert len(await reader.take(2)) == 2
            found = await scraped(caller, gateway)
            assert value(found, "requests_total", "POST", STREAM, "201") == 1
            assert value(found, "requests_total", "POST", STREAM, "200") == 1
            assert value(found, "requests_total", "POST", STREAM, "202") == 2
            assert value(found, "requests_total", "GET", STREAM, "400") == 1
            assert value(found, "requests_total", "GET", "other", "404") == 1
            assert value(found, "requests_total", "other", "other", "405") == 1
            assert value(found, "request_seconds_count", "POST", STREAM) == 4
            assert value(found, "request_seconds_bucket", "POST", STREAM, "+Inf") == 4
            assert value(found, "request_seconds_sum", "POST", STREAM) > 0
            assert value(found, "appended_entries_total") == 4  # the repeated request appended nothing
            assert value(found, "event_bytes_total") > 0
            assert value(found, "slow_readers_total") == 0
            for name in ("readers", "followed_streams", "users"):
                assert value(found, name) == 1
            assert value(found, "group_readers") == value(found, "memory_bytes") == 0

        async def ended() -> Any:
            now = await scraped(caller, gateway)
            return value(now, "readers") == 0 and value(now, "requests_total", "GET", STREAM, "disconnected") == 1

        await until(ended, "the event stream has ended")
        now = await scraped(caller, gateway)
        assert value(now, "request_seconds_count", "GET", STREAM) == 1  # that of the wrong parameter

    visit(tidelog_server, test, metrics=0)


def test_a_port_in_use(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        raise AssertionError("it starts")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(GatewayError, match=f"--metrics {port}: 127.0.0.1:{port} is not available"):
            visit(tidelog_server, test, metrics=port)


def test_a_gateway_without_metrics(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        assert gateway.metrics_port is None
        assert (await caller.get("/metrics"))[0] == 404

    visit(tidelog_server, test)
