"""The history of flows, on the server and in memory; recent warnings, declarations, waiting events, the overview."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidelog.flows.servicekit import Client, flowing, hosted
from tests.waiting import until
from tidelog.client import Client as Server_Client
from tidelog.flows import Event
from tidelog.flows.api.tokens import Token
from tidelog.flows.runtime.latencysamples import EVERY, LONG, WATCHED, LatencySamples
from tidelog.flows.service import samples
from tidelog.flows.service.history import FlowHistory, totals
from tidelog.flows.service.host import FlowHost
from tidelog.flows.service.samples import POINTS, FlowSample
from tidelog.flows.service.warnings import KEPT, RecentWarnings
from tidelog.testing import Server
from tidelog.transport.errors import ReplyError

SHOP = """
flows:
  shop:
    connectors:
      in: {type: stream, key: orders, group: g, on_error: {dead_letter: {}}}
      out: "null"
    pipelines: {p: [{where: "ok == 'yes'"}]}
    connect: [in -> p -> out]
  paused:
    paused: true
    connectors:
      in: {type: metronome, interval: 1ms}
      out: {type: http_client, url: "http://127.0.0.1:1/", auth: {password: geheim, username: u}}
    pipelines: {p: []}
    connect: [in -> p -> out]
"""


# -- samples -------------------------------------------------------------------------------------------------
def test_samples_are_stored_on_the_server_and_charted(tidelog_server: Server, client: Server_Client) -> None:
    async def main() -> None:
        async with hosted(SHOP, tidelog_server.url) as host:
            history = FlowHistory(host, "one")
            for number in range(5):
                client.tappend("orders", {"ok": "yes" if number else "no"})
            await until(lambda: history_events(host) == 5)
            await until(lambda: host.flows["shop"].instances[0].unsettled().count == 0)
            await history.take()
            await history.take()
            (first, second) = history.recent("shop")
            assert (first.events, second.events, first.lag, first.status) == (5, 0, 0, "running")
            assert first.p99_ms is not None
            assert first.p99_ms > 0
            assert history.recent("paused")[0].status == "paused"

            other = FlowHistory(host, "two")  # another process of this name
            await other.take()
            found = await other.chart("shop", 5)
            assert found["stored"]
            columns = found["columns"]
            assert columns["rate"][-1] > 0
            assert columns["lag"] == [0] * len(columns["at"])

    asyncio.run(main())
    key = samples.key_of("default", "shop")
    assert client.tlen(key) == 3
    assert 0 < client.redis.pttl(key) <= samples.KEPT_MS
    assert {dict(entry.pairs)[b"process"] for entry in client.trange(key)} == {b"one", b"two"}


def history_events(host: FlowHost) -> int:
    return sum(node.counts.get("out", 0) for node in host.flows["shop"].instances[0].graph.sources.values())


def test_a_history_that_can_not_be_stored_is_in_memory(tidelog_server: Server, client: Server_Client) -> None:
    client.redis.set(samples.key_of("default", "shop"), "of somebody else")
    client.tappend(samples.key_of("default", "paused"), {"what": "of somebody else"})

    async def main() -> None:
        async with hosted(SHOP, tidelog_server.url) as host:
            history = FlowHistory(host, "one")
            with pytest.raises(ReplyError, match="WRONGTYPE"):
                await history.take()
            found = await history.chart("shop", 1)
            assert not found["stored"]
            assert len(found["columns"]["at"]) == 1
            assert (await history.chart("paused", 60))["columns"]["at"]

    asyncio.run(main())


def test_without_a_server() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        found = await ask("GET", "/v1/flows/main/history?minutes=10")
        assert found.body == {
            "alias": "main", "minutes": 10, "stored": False, "columns": {name: [] for name in samples.COLUMNS},
        }  # fmt: skip
        assert (await ask("GET", "/v1/flows/main/history?minutes=0")).status == 422
        assert (await ask("GET", "/v1/flows/nothing/history")).status == 404

    flowing(test)


SAMPLES = st.builds(
    FlowSample, at=st.integers(1, 100_000), process=st.sampled_from(["a", "b"]), status=st.just("running"),
    seconds=st.floats(0, 20), events=st.integers(0, 100), failed=st.integers(0, 100), unsettled=st.integers(0, 9),
    oldest_ms=st.none() | st.integers(0, 100), lag=st.none() | st.integers(0, 100),
    backlog=st.none() | st.integers(0, 9),
)  # fmt: skip


@given(st.lists(SAMPLES, max_size=50))
def test_a_chart_has_a_limited_number_of_rows(found: list[FlowSample]) -> None:
    columns = samples.chart(sorted(found, key=lambda each: each.at), 0, 100_000, 0.1)
    assert {len(each) for each in columns.values()} == {len(columns["at"])}
    assert len(columns["at"]) <= POINTS + 1
    assert columns["at"] == sorted(columns["at"])  # type: ignore[type-var]
    assert bool(columns["at"]) == bool(found)


def test_rates_of_several_processes_are_added_and_their_lag_is_not() -> None:
    def sample(at: int, process: str, events: int, **more: Any) -> FlowSample:
        return FlowSample(at, process, "running", 10.0, events, **more)

    found = [sample(10_000, "a", 100, lag=7, backlog=1, unsettled=2), sample(10_000, "b", 50, lag=7, backlog=2)]
    columns = samples.chart(found, 0, 20_000, 10.0)
    assert (columns["rate"], columns["lag"], columns["backlog"], columns["unsettled"]) == ([15.0], [7], [3], [2])


# -- latencies -----------------------------------------------------------------------------------------------
class Owner:
    debug = False

    def __init__(self) -> None:
        self.done: list[Token] = []

    def wake(self) -> None: ...


def test_latencies_of_some_events() -> None:
    found, tokens = LatencySamples(), [Token(Owner()) for _ in range(3 * WATCHED)]  # type: ignore[arg-type]
    for at, token in enumerate(tokens):
        found.sent(at * EVERY / 2, token)  # every second one is watched
    for token in tokens[: 2 * 4]:
        token.settle()
    found.settled(1.0)
    assert found.take() == [pytest.approx(1.0 - at * EVERY) for at in range(4)]
    assert found.take() == []
    late = 1.5 * WATCHED * EVERY + LONG
    for step in range(WATCHED):
        found.sent(late + step, Token(Owner()))  # type: ignore[arg-type]
    assert found.take()
    assert min(found.take(), default=LONG) >= LONG


# -- warnings ------------------------------------------------------------------------------------------------
def test_recent_warnings_without_repetitions_and_secrets() -> None:
    log = logging.getLogger("tidelog.flows")
    with RecentWarnings() as found:
        for number in range(2 * KEPT):
            log.warning("a: %s", number)
        for _ in range(3):
            log.error("b.1/in: no answer from http://u:geheim@h/")
        log.info("b.1/in: connected")
        latest = found.of()
        assert len(latest) == KEPT
        assert (latest[0]["text"], latest[0]["times"], latest[0]["level"]) == (
            "b.1/in: no answer from http://***@h/", 3, "error",
        )  # fmt: skip
        assert found.of(["b", "b.1"]) == latest[:1]
    log.warning("after its end")
    assert found.of() == latest


def test_each_failure_counts_once(tmp_path: Path) -> None:
    (tmp_path / "in").write_text('{"n": 1}\n{"n": "x"}\nnot JSON\n{"n": 2}\n')
    text = f"""
flows:
  shop:
    connectors:
      in: {{type: file, path: "{tmp_path / "in"}", tail: true, codec: json}}
      out: {{type: script, act: one, id: none}}
      bad: {{type: script, act: reject}}
    pipelines: {{double: [map: {{set: {{twice: "n * 2"}}}}, route: [{{where: "n == 2", port: two}}]]}}
    connect: [in -> double -> out, double.two -> bad]
"""

    async def test(_: Client, host: FlowHost) -> None:
        chosen = host.flows["shop"].instances
        await until(lambda: chosen[0].graph.sources["in"].counts.get("dead") == 3)
        assert totals(chosen).failed == 3  # at the source, at map, and at the sink

    flowing(test, text)


# -- the API -------------------------------------------------------------------------------------------------
def test_the_overview_names_the_reason_and_the_declaration_has_no_secrets(tidelog_server: Server) -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        await until(lambda: host.flows["shop"].status == "running")
        shop, paused = (await ask("GET", "/v1/overview")).body
        assert (shop["alias"], shop["status"], shop["events"], shop["reasons"]) == ("shop", "running", 0, [])
        assert paused["reasons"][0]["reason"] in ("paused:api", "starting:out", "disconnected:out")
        found = (await ask("GET", "/v1/flows/paused/declaration")).body
        assert "geheim" not in found["yaml"]
        assert found["yaml"].startswith("flows:\n  paused:\n    paused: true\n")

    flowing(test, SHOP, server=tidelog_server.url)


def test_events_that_wait() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        first, second = host.flows["main"].instances[0].graph.channels
        first.items.extend([[Event({"n": 1}, id=1), Event({"n": 2}, id=2)], [Event(b"raw", id=3)]])
        second.items.append([Event({"n": 4}, id=4)])
        try:
            found = (await ask("GET", "/v1/flows/main/waiting?limit=3")).body["events"]
            assert [each["id"] for each in found] == [1, 2, 3]
            assert found[0] | {"channel": first.name, "value": {"n": 1}} == found[0]
            of_one = await ask("GET", "/v1/flows/main/waiting", params={"channel": second.name})
            assert [each["id"] for each in of_one.body["events"]] == [4]
            assert (await ask("GET", "/v1/flows/main/waiting?channel=nothing")).status == 404
            assert (await ask("GET", "/v1/flows/main/waiting?limit=x")).status == 422
        finally:
            first.items.clear()
            second.items.clear()

    text = "{flows: {main: {paused: true, connectors: {in: 'null', out: 'null'}, pipelines: {p: [passthrough]}"
    flowing(test, text + ", connect: [in -> p -> out]}}}")


def test_warnings_of_a_flow_over_http(tidelog_server: Server) -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        with host.warnings:
            logging.getLogger("tidelog.flows").warning("shop/in: something")
            logging.getLogger("tidelog.flows").warning("of the process")
            (found,) = (await ask("GET", "/v1/warnings?flow=shop")).body
            assert found["text"] == "shop/in: something"
            assert len((await ask("GET", "/v1/warnings")).body) == 2
            assert (await ask("GET", "/v1/warnings?flow=nothing")).status == 404

    flowing(test, SHOP, server=tidelog_server.url)
