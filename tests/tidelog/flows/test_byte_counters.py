"""The bytes that connectors receive and send: counters, metrics, history, and the page in a real browser."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.browserkit import Page
from tests.tidelog.flows.byteskit import Reader, running, write
from tests.tidelog.flows.netkit import url_of
from tests.tidelog.flows.serverkit import in_loop
from tests.tidelog.flows.servicekit import hosted
from tests.tidelog.flows.sqlkit import sqlite_peer
from tests.tidelog.flows.test_page import shown
from tests.waiting import until
from tidelog.flows import Flow
from tidelog.flows.connectors.sql.columnvalues import size_of
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.service import samples
from tidelog.flows.service.history import FlowHistory, FlowTotals
from tidelog.flows.service.host import FlowHost
from tidelog.flows.service.metrics import FlowMetrics
from tidelog.flows.service.samples import FlowSample
from tidelog.testing import Server


def received(one: RunningFlow) -> int:
    return one.graph.sources["in"].counts.get("bytes", 0)


def sent(one: RunningFlow) -> int:
    return one.graph.sinks["out"].counts.get("bytes", 0)


def test_files(tmp_path: Path) -> None:
    """Bytes are those in the file: of a template, and before decompression."""
    lines = [{"n": number, "day": "é"} for number in range(1000)]
    one = asyncio.run(write(lines, "file", path=str(tmp_path / "out-{day}.jsonl")))
    (path,) = tmp_path.iterdir()
    assert sent(one) == path.stat().st_size > 10_000

    async def main() -> None:
        reader = Reader("file", path=str(path))
        async with running(reader.flow, started=False) as one:
            await one.finished()
            assert received(one) == path.stat().st_size
        watched = Reader("file", path=str(tmp_path / "*.jsonl"))
        async with running(watched.flow, started=False) as one:
            await one.finished()
            assert received(one) == path.stat().st_size

    asyncio.run(main())


def test_sockets() -> None:
    async def main() -> None:
        reader = Reader("tcp_server", port=0, codec="string")
        async with running(reader.flow) as one:
            host, _, port = str(one.graph.connectors["in"].context.described["address"]).rpartition(":")
            other = await write(["abc", "é"], "tcp_client", host=host, port=int(port), codec="string")
            await until(lambda: reader.values == ["abc", "é"])
            assert received(one) == sent(other) == 7

    asyncio.run(main())


@in_loop
async def test_http_requests_count_as_received_and_responses_as_sent() -> None:
    flow = Flow("http")
    flow.connector("in", "http_server", port=0, answer="response")
    flow.connect("in -> in")
    async with running(flow) as one, aiohttp.ClientSession() as session:
        async with session.post(await url_of(one), data=b'{"a": 1}') as response:
            assert await response.read() == b'{"a":1}'
        assert received(one) == 8
        assert one.graph.sinks["in"].counts["bytes"] == 7
    flow = Flow("http")
    flow.connector("in", "http_server", port=0)
    flow.connector("out", "null")
    flow.connect("in -> out")
    async with running(flow) as one:
        other = await write([{"a": 1}], "http_client", url=await url_of(one))
        assert (received(one), sent(other)) == (7, 7)


def test_streams(tidelog_server: Server) -> None:
    async def main() -> None:
        other = await write([{"text": "x" * 1000}] * 10, "stream", url=tidelog_server.url, key="s")
        assert 10_000 < sent(other) < 11_000
        more: list[dict[str, Any]] = [{"group": "g"}, {"start": "earliest"}]
        for options in more:
            flow = Flow("f")
            flow.connector("in", "stream", url=tidelog_server.url, key="s", **options)
            flow.connector("out", "null")
            flow.connect("in -> out")
            async with running(flow) as one:
                await until(lambda: one.graph.sources["in"].counts.get("out") == 10)
                assert 10_000 < received(one) < 11_000

    asyncio.run(main())


def test_databases(tmp_path: Path) -> None:
    """Text has its length, null 0, and any other value 8 bytes."""
    peer = sqlite_peer(tmp_path / "shop.db")
    peer.run("CREATE TABLE t (n INTEGER, name TEXT)")
    rows = [{"n": 1, "name": "abc"}, {"n": 2, "name": None}]

    async def main() -> None:
        assert sent(await write(rows, "sql", url=peer.url, table="t")) == 19
        reader = Reader("sql", url=peer.url, query="SELECT * FROM t")
        async with running(reader.flow, started=False) as one:
            await one.finished()
            assert (received(one), len(reader.values)) == (19, 2)
        assert sent(await write([{"n": 1}], "sql_query", url=peer.url, query="DELETE FROM t WHERE n = :n")) == 8

    asyncio.run(main())
    assert peer.run("SELECT n FROM t") == [(2,)]
    assert size_of([{"a": [1, "bc"]}, b"xy", None, 1.5]) == 21


FLOW = """
flows:
  main:
    connectors:
      in: {source}
      out: {{type: file, path: "{path}", codec: string}}
      gone: "null"
    connect: [in -> out, in -> gone]
"""
PROGRAM = """
        type: subprocess
        args: [sh, -c, "while :; do echo 123456789; sleep 0.01; done"]
        codec: string
        stop_timeout: 0s
"""


def test_metrics_and_history(tmp_path: Path, tidelog_server: Server) -> None:
    (tmp_path / "in").write_text("123456789\n" * 3)
    source = f'{{type: file, path: "{tmp_path / "in"}", tail: true, codec: string}}'

    async def main() -> None:
        async with hosted(FLOW.format(source=source, path=tmp_path / "out"), tidelog_server.url) as host:
            (one,) = host.flows["main"].instances
            await until(lambda: sent(one) == 30)
            history = FlowHistory(host, "p")
            await history.take()
            await history.take()
            first, second = history.recent("main")
            assert (first.bytes_in, first.bytes_out) == (30, 30)
            assert (second.bytes_in, second.bytes_out) == (0, 0)
            columns = (await history.chart("main", 5))["columns"]
            assert columns["bytes_out"][-1] > 0
            found = {
                (each.labels["entity"], each.labels["kind"]): each.value
                for family in text_string_to_metric_families(FlowMetrics(host).text().decode())
                for each in family.samples
                if each.name == "tidelog_flow_bytes_total"
            }
            assert found == {("in", "source"): 30, ("out", "sink"): 30}

    asyncio.run(main())


def test_rates_are_those_of_all_processes_and_of_flows_that_were_replaced() -> None:
    given = [FlowSample(10_000, each, "running", 10.0, bytes_in=500, bytes_out=100) for each in ("a", "b")]
    columns = samples.chart(given, 0, 20_000, 10.0)
    assert (columns["bytes_in"], columns["bytes_out"]) == ([100.0], [20.0])
    assert FlowTotals(5, 1, 100, 70).since(FlowTotals(3, 2, 200, 70)) == FlowTotals(2, 1, 100, 0)


@pytest.mark.slow
def test_the_page(tmp_path: Path) -> None:
    async def test(page: Page, _: FlowHost) -> None:
        for name in ("bytes-in", "bytes-out"):
            await page.until(f"/^[1-9].* B\\/s$/.test(document.querySelector('#{name}').textContent)")
        assert "since the start" in await page.run("document.querySelector('#bytes-in').title")
        for name, text in (("in", "bytes in"), ("out", "bytes out")):
            await page.click(f'[data-entity="{name}"]')
            shown = "[...document.querySelectorAll('#part-counts div')].map((each) => each.textContent)"
            found = await page.until(f"{shown}.find((each) => each.startsWith('{text}') && each.includes('B/s)'))")
            assert found.removeprefix(text)[0].isdigit()
        await page.click('[data-entity="gone"]')
        await page.until("document.querySelector('#part-about').textContent.includes('null sink')")
        assert await page.run(f"{shown}.filter((each) => each.startsWith('bytes'))") == []
        for width in (400, 800):
            await page.size(width, 800)
            assert await page.run("document.documentElement.scrollWidth") <= width
            wide = "[...document.querySelectorAll('.facts dd')].every((each) => each.scrollWidth <= each.clientWidth)"
            assert await page.run(wide)

    shown(test, tmp_path, FLOW.format(source=PROGRAM, path=tmp_path / "out"))
