"""The page at / in a real browser: graphs, rates, reasons, pause and resume by a click, a tap, dead letters."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.browserkit import Page, browsing, require_chromium
from tests.tidelog.flows.servicekit import Client, hosted, served
from tests.tidelog.flows.test_api_dead_letters import TEXT, bad
from tests.waiting import until
from tidelog.flows.service import api
from tidelog.flows.service import page as served_page
from tidelog.flows.service.history import FlowHistory
from tidelog.flows.service.host import FlowHost
from tidelog.flows.service.samples import FlowSample
from tidelog.testing import Server

FLOWS = """
flows:
  main:
    connectors: {in: {type: metronome, interval: 20ms}, out: "null", "seen": {type: "null", authoritative: false}}
    pipelines: {work: [passthrough, passthrough]}
    connect: [in -> work -> out, work -> seen]
  shop:
    instances: 2
    connectors: {in: {type: metronome, interval: 20ms, paused: true}, out: "null"}
    pipelines: {p: []}
    connect: [in -> p -> out]
"""
LOGIN = "getComputedStyle(document.querySelector('#login')).display"
TOKEN = "0123456789abcdef-token"


def shown(test: Callable[[Page, FlowHost], Awaitable[None]], folder: Path, text: str, **options: Any) -> None:
    """Run a test with a browser that shows the page. The browser must have had nothing to complain about."""
    require_chromium()

    async def main() -> None:
        token = options.pop("token", None)
        flow = re.findall(r"^  (\S+):$", text, re.MULTILINE)[:1]
        async with hosted(text, **options) as host, served(host, token) as ask, AsyncExitStack() as opened:
            page = await opened.enter_async_context(browsing("/#".join([ask.url, *flow]), folder))
            await test(page, host)
            assert {re.match(r"\w+://[^/]+|data:", each)[0] for each in page.requests} <= {ask.url, "data:"}  # type: ignore[index]
            assert [each for each in page.complaints if not (token and "401" in each)] == []

    asyncio.run(main())


# -- in a browser --------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_graph_with_rates_and_a_pause_by_a_click(tmp_path: Path) -> None:
    async def test(page: Page, host: FlowHost) -> None:
        await page.until("document.querySelector('#status')?.textContent === 'running'")
        names = await page.run("[...document.querySelectorAll('[data-entity]')].map((each) => each.dataset.entity)")
        assert await page.run(LOGIN) == "none"
        assert sorted(names) == ["in", "out", "seen", "work.0", "work.1"]
        edges = "[...document.querySelectorAll('[data-channel]')]"
        channels = await page.run(f"{edges}.map((each) => each.dataset.channel)")
        assert sorted(channels) == [
            "in.out -> work.0", "work.0.out -> work.1", "work.1.out -> out", "work.1.out -> seen",
        ]  # fmt: skip
        await page.until("/[1-9]\\d*\\/s/.test(document.querySelector('[data-channel]').textContent)")
        await page.click("#steer")
        await page.until("document.querySelector('#status').textContent === 'paused'")
        asked = "fetch('/v1/flows/main').then((answer) => answer.json()).then((flow) => flow.status)"
        assert await page.run(asked) == "paused"
        assert host.flows["main"].status == "paused"
        await page.until("document.querySelector('#reasons').textContent.includes('Reasons for not sending')")
        reasons = await page.run("document.querySelector('#reasons').textContent")
        assert "The flow is paused." in reasons
        assert "paused:api" in reasons
        await page.click("#steer")
        await page.until("document.querySelector('#status').textContent === 'running'")
        assert host.flows["main"].status == "running"

    shown(test, tmp_path, FLOWS)


@pytest.mark.slow
def test_a_tap_on_an_edge(tmp_path: Path) -> None:
    async def test(page: Page, host: FlowHost) -> None:
        (channel,) = [
            each for each in host.flows["main"].instances[0].graph.channels if each.name == "in.out -> work.0"
        ]  # fmt: skip
        await page.click("[data-channel='in.out -> work.0'] text")
        await page.until("document.querySelectorAll('#events pre').length > 2")
        assert len(channel.taps) == 1
        await page.click("#tap .shut")
        await until(lambda: not channel.taps)

    shown(test, tmp_path, FLOWS)


@pytest.mark.slow
def test_instances_and_connectors(tmp_path: Path) -> None:
    async def test(page: Page, host: FlowHost) -> None:
        await page.until("document.querySelectorAll('#names button').length === 3")
        await page.click("#names [data-flow='shop']")
        await page.click("#names [data-flow='shop.1']")
        await page.until("document.querySelector('#name').textContent === 'shop.1'")
        await page.click("[data-entity='in']")
        await page.until("document.querySelector('#steer-connector')?.textContent === 'Resume'")
        await page.click("#steer-connector")
        await until(lambda: not host.flows["shop"].instances[0].graph.sources["in"].breaker.paused)
        assert host.flows["shop"].instances[1].graph.sources["in"].breaker.paused

    shown(test, tmp_path, FLOWS)


@pytest.mark.slow
def test_the_address_names_the_flow(tmp_path: Path) -> None:
    async def test(page: Page, host: FlowHost) -> None:
        title = "document.querySelector('#flow h2')?.textContent"
        await page.until(f"{title} === 'main' && location.hash === '#main'")
        await page.click("#names [data-flow=shop]")
        await page.until(f"{title} === 'shop' && location.hash === '#shop'")
        await page.run("window.before = true, location.reload()")
        await page.until(f"window.before === undefined && {title} === 'shop'")
        await page.run("location.hash = '#shop.1'")
        await page.until(f"{title} === 'shop.1'")
        await page.run("location.hash = '#gone%'")
        await page.until("!document.querySelector('#overview').hidden && location.hash === ''")

    shown(test, tmp_path, FLOWS)


@pytest.mark.slow
def test_a_token_is_asked_for(tmp_path: Path) -> None:
    async def test(page: Page, host: FlowHost) -> None:
        await page.until(f"{LOGIN} !== 'none'")
        assert await page.run("document.activeElement.id") == "token"
        assert await page.run("document.querySelector('#flow').hidden")
        await page.run("document.querySelector('#token').value = 'another-token-that-is-long-enough'")
        await page.click("#login button")
        await page.until("document.querySelector('#problem').textContent.startsWith('This token is not')")
        await page.run(f"document.querySelector('#token').value = '{TOKEN}'")
        await page.click("#login button")
        await page.until("document.querySelector('#status')?.textContent === 'running'")
        await page.until(f"{LOGIN} === 'none'")
        assert await page.run("sessionStorage.getItem('token')") == TOKEN
        await page.click("#forget")
        await page.until("sessionStorage.getItem('token') === null && document.querySelector('#flow').hidden")

    shown(test, tmp_path, FLOWS, token=TOKEN)


@pytest.mark.slow
def test_dead_letters_are_shown_as_text_and_replayed(tmp_path: Path, tidelog_server: Server) -> None:
    odd = "<img src=x onerror=alert(1)>"
    bad.add(odd)
    with tidelog_server.client() as client:
        client.tappend("orders", {"number": odd})

        async def test(page: Page, host: FlowHost) -> None:
            await until(lambda: host.flows["orders"].instances[0].graph.sources["in"].counts.get("reject", 0) == 1)
            await until(lambda: client.redis.exists("flow.orders.dead:0"))
            await page.click("#show-letters")
            await page.until("document.querySelectorAll('#letters li').length === 1")
            assert odd in await page.run("document.querySelector('#letters').textContent")
            assert await page.run("document.querySelectorAll('#letters img').length") == 0
            bad.clear()
            await page.click("#replay-all")
            await until(lambda: client.redis.exists("done"))
            await page.until("document.querySelector('#letters h3').textContent.startsWith('0 ')")

        shown(test, tmp_path, TEXT, server=tidelog_server.url)


STORED = """
flows:
  orders_to_the_search_cluster:
    connectors:
      incoming_orders_of_all_shops: {type: fault, count: 500}
      durable_orders: {type: wal}
      search_cluster_of_the_shops: {type: fault, refuses: 1.0}
    pipelines: {validate_and_enrich_all_orders: [passthrough]}
    connect:
      - incoming_orders_of_all_shops -> validate_and_enrich_all_orders -> durable_orders
      - durable_orders -> search_cluster_of_the_shops
  odd:
    connectors: {in: {type: "null", count: 7}, out: {type: fault, rejects: 1.0}, more: {type: metronome, interval: 1h}}
    connect: [in -> out, more -> out]
"""


@pytest.mark.slow
def test_what_a_wal_holds_is_not_settled_and_names_are_not_cut(tmp_path: Path, tidelog_server: Server) -> None:
    async def test(page: Page, host: FlowHost) -> None:
        await page.until("$('where').textContent === '500 stored in durable_orders and not sent yet'")
        await page.until("document.querySelector(\"[data-kind=source][data-entity=durable_orders] .more\")"
                         ".textContent === '500 stored'")  # fmt: skip
        for width in (1280, 390):
            await page.size(width, 844)
            await page.until(f"innerWidth === {width} && document.querySelector('svg.flow')?.clientWidth <= {width}")
            titles = "[...document.querySelectorAll('svg.flow .title, svg.flow .sub')].map((each) => each.textContent)"
            await page.until(f"{titles}.includes('incoming_orders_of_all_shops')")
            shown_names = await page.run(titles)
            assert {"search_cluster_of_the_shops", "validate_and_enrich_all_orders.0"} <= set(shown_names)
            assert not any("…" in each for each in shown_names)
            assert await page.run(
                "[...document.querySelectorAll('#summary, #list .name')].every("
                "(each) => each.scrollWidth <= each.clientWidth)"
            )
        await page.run("location.hash = '#odd'")
        await page.until("$('dead').textContent === '7'")
        assert await page.run("$('dead').previousSibling.textContent") == "Open dead letters"
        await page.until("document.querySelector('[data-entity=in] .more').textContent === '7 given up'")

    shown(test, tmp_path, STORED, server=tidelog_server.url)


EVIL = "<script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"
ODD = f"""
flows:
  odd:
    connectors:
      in: {{type: metronome, interval: 20ms, value: {json.dumps(EVIL)}}}
      out: {{type: fault, rejects: 1.0}}
    pipelines: {{p: [passthrough]}}
    connect: [in -> p -> out]
"""


@pytest.mark.slow
def test_what_events_and_options_hold_is_text(tmp_path: Path) -> None:
    async def test(page: Page, host: FlowHost) -> None:
        await page.click("[data-channel^='in.out'] text")
        await page.until("document.querySelectorAll('#events pre').length > 2")
        assert await page.run("document.querySelector('#events pre').textContent") == EVIL
        await page.click("[data-entity='in']")
        await page.until("document.querySelector('#part-options')?.textContent.includes('<script>')")
        assert await page.run("document.querySelectorAll('main script, main img').length") == 0
        assert await page.run("document.title") == "odd · tidelog flows"

    shown(test, tmp_path, ODD)


SHAPES = """
flows:
  shapes:
    connectors:
      in: {type: metronome, interval: 50ms}
      other: {type: metronome, interval: 50ms}
      one: "null"
      two: "null"
      three: {type: "null", authoritative: false}
      four: "null"
    pipelines: {a: [passthrough, passthrough], b: [passthrough]}
    connect: [in -> a -> one, a -> two, a -> b -> three, in -> four, b -> four, other -> b, a.err -> two]
"""
BOXES = """[...document.querySelectorAll('.node')].map((each) => {
  const box = each.querySelector('.body').getBoundingClientRect();
  return [each.dataset.kind + ' ' + each.dataset.entity, box.left, box.top, box.right, box.bottom];
})"""
FREE = """[...document.querySelectorAll('.edge')].every((edge) => {
  const line = edge.querySelector('.line'), to = line.getScreenCTM(), length = line.getTotalLength();
  const boxes = [...document.querySelectorAll('.node .body')].map((each) => each.getBoundingClientRect());
  const points = Array.from({length: 60}, (_, place) => line.getPointAtLength(length * place / 59).matrixTransform(to));
  const inside = (at, box) =>
    at.x > box.left + 2 && at.x < box.right - 2 && at.y > box.top + 2 && at.y < box.bottom - 2;
  return !points.some((point) => boxes.some((box) => inside(point, box)));
})"""
WIDE = "document.documentElement.scrollWidth <= innerWidth"


@pytest.mark.slow
def test_the_graph_leads_right_where_there_is_room_and_down_where_not(tmp_path: Path) -> None:
    async def test(page: Page, host: FlowHost) -> None:
        for width, height, axis in ((1280, 800, 0), (390, 844, 1)):
            await page.size(width, height)
            await page.until(f"innerWidth === {width} && document.querySelector('svg.flow')?.clientWidth <= {width}")
            await page.until("$('graph').firstElementChild.clientWidth <= $('graph').clientWidth")
            found = f"{BOXES}.find((each) => each[0] === "
            await page.until(f"{found} 'sink one')[{axis + 1}] > {found} 'operator a.1')[{axis + 3}]")
            boxes = {name: box for name, *box in await page.run(BOXES)}
            assert len(boxes) == 9
            for one, other in itertools.combinations(boxes.values(), 2):  # none upon another
                assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
            for before, after in (
                ("source in", "operator a.0"), ("operator a.0", "operator a.1"), ("operator a.1", "operator b.0"),
                ("source other", "operator b.0"), ("operator b.0", "sink four"), ("operator a.0", "sink two"),
            ):  # fmt: skip
                assert boxes[before][axis + 2] < boxes[after][axis]
            assert await page.run(FREE)  # no line through a box
            assert await page.run(WIDE)

    shown(test, tmp_path, SHAPES)


LONG_NAME = "a-name-that-somebody-has-made-as-long-as-a-name-can-possibly-be"
MANY = "flows:" + "".join(
    f"""
  {name}:
    connectors: {{in: {{type: metronome, interval: 1s}}, {name}: "null"}}
    pipelines: {{p: [passthrough]}}
    connect: [in -> p -> {name}]
"""
    for name in (*(f"flow-{number:02}" for number in range(50)), LONG_NAME)
)


@pytest.mark.slow
def test_many_flows_and_long_names(tmp_path: Path) -> None:
    async def test(page: Page, host: FlowHost) -> None:
        for width, height in ((1280, 800), (390, 844)):
            await page.size(width, height)
            if width < 500:
                await page.click("#menu")
            await page.until("document.querySelectorAll('#names button').length === 52")
            await page.click(f"#names [data-flow='{LONG_NAME}']")
            await page.until(f"document.querySelector('#name').textContent === '{LONG_NAME}' && {BOXES}.length === 3")
            await page.until(WIDE)
            assert await page.run(
                "[...document.querySelectorAll('.node text')].every((text) =>"
                " text.getBBox().width <= text.parentNode.querySelector('.body').getBBox().width - 12)"
            )
        await page.click("#menu")
        await page.run("document.querySelector('#filter').value = '4'")
        await page.run("document.querySelector('#filter').dispatchEvent(new Event('input'))")
        # 04, 14, ... the chosen one, and the overview
        await page.until("document.querySelectorAll('#names button').length === 16")

    shown(test, tmp_path, MANY)


@pytest.mark.slow
def test_by_keyboard(tmp_path: Path) -> None:
    async def test(page: Page, host: FlowHost) -> None:
        await page.until("document.querySelector('[data-channel]') !== null")
        await page.run("document.body.tabIndex = -1, document.body.focus()")  # the element #main is the start otherwise
        await page.press("Tab")
        assert await page.run("document.activeElement.id") == "skip"
        await page.press("Tab")
        assert await page.run("document.activeElement.dataset.flow") == ""  # the overview
        await page.press("ArrowDown")
        assert await page.run("document.activeElement.dataset.flow") == "main"
        await page.press("ArrowDown")
        assert await page.run("document.activeElement.dataset.flow") == "shop"
        for _ in range(16):
            await page.press("Tab")
            if await page.run("Boolean(document.activeElement.dataset.channel)"):
                break
        channel = await page.run("document.activeElement.dataset.channel")
        await page.press("Enter")
        await page.until("document.querySelectorAll('#events pre').length > 0")
        assert await page.run("document.querySelector('#tap h3').textContent") == f"Tap on {channel}"
        await page.press("Escape")
        await page.until("document.querySelector('#tap').hidden")
        before = await page.run("state.samples.length")
        await page.until(f"state.samples.length > {before + 1}")  # numbers change, the focus stays
        assert await page.run("document.activeElement.dataset.channel") == channel

    shown(test, tmp_path, FLOWS)


STUCK = """
flows:
  stuck:
    connectors: {in: {type: metronome, interval: 20ms}, search: {type: fault, refuses: 1.0}}
    pipelines: {p: []}
    connect: [in -> p -> search]
"""


@pytest.mark.slow
def test_why_nothing_moves_in_words(tmp_path: Path) -> None:
    async def test(page: Page, host: FlowHost) -> None:
        await page.until("document.querySelector('#reasons').textContent.includes('Reasons for not sending')")
        reasons = await page.run("document.querySelector('#reasons').textContent")
        assert "starting:search" in reasons
        assert "search has not connected yet." in reasons
        assert "refused at random" in reasons
        assert "not connected" in await page.run("document.querySelector('[data-entity=search]').textContent")

    shown(test, tmp_path, STUCK)


@pytest.mark.slow
def test_the_overview_of_all_flows(tmp_path: Path) -> None:
    async def test(page: Page, _: FlowHost) -> None:
        row = "document.querySelector('#overview [data-flow={}]')?.innerText"
        await page.run("location.hash = ''")
        await page.until(f"/Events in\\s+[1-9]/.test({row.format('main')})")
        await page.until(f"{row.format('shop')}.includes('in is paused.')")
        assert await page.run("[...document.querySelectorAll('#overview li')].map((each) => each.dataset.flow)") == [
            "shop", "main",
        ]  # fmt: skip
        await page.size(400, 800)
        assert await page.run("document.documentElement.scrollWidth") == 400
        await page.click("#overview [data-flow=main] button")
        await page.until("document.querySelector('#name').textContent === 'main'")
        assert await page.run("location.hash") == "#main"

    shown(test, tmp_path, FLOWS)


@pytest.mark.slow
def test_history_warnings_and_the_declaration(tmp_path: Path) -> None:
    async def main() -> None:
        async with hosted(FLOWS) as host, AsyncExitStack() as opened:
            history = FlowHistory(host, "p")
            server = api.FlowApiServer(host, "127.0.0.1:0", None, history)
            await server.start()
            opened.push_async_callback(server.stop)
            opened.enter_context(host.warnings)
            logging.getLogger("tidelog.flows").warning("main: something <b>odd</b>")
            history._memory["main"] = deque(
                FlowSample(time.time_ns() // 1_000_000 - 10_000 * at, "p", "running", 10.0, 500, p99_ms=1.5)
                for at in range(300, 0, -1)
            )
            page = await opened.enter_async_context(browsing(server.url + "/#main", tmp_path))
            await page.until("document.querySelector('#status')?.textContent === 'running'")
            for name in ("history", "warnings", "yaml"):
                await page.click(f"#show-{name}")
            await page.until("document.querySelector('[data-chart=rate]')?.textContent.includes('max 50')")
            charts = await page.run("[...document.querySelectorAll('[data-chart]')].map((each) => each.dataset.chart)")
            assert charts == ["rate", "failed", "unsettled", "p99_ms"]
            await page.until("document.querySelector('#warnings')?.textContent.includes('something <b>odd</b>')")
            await page.until("document.querySelector('#yaml')?.textContent.includes('interval: 20ms')")
            await page.size(400, 800)
            assert await page.run("document.documentElement.scrollWidth") == 400
            await page.click("#show-history")
            await page.until("document.querySelector('#history').hidden")
            assert page.complaints == []

    require_chromium()
    asyncio.run(main())


@pytest.mark.slow
def test_there_are_no_flows(tmp_path: Path) -> None:
    async def test(page: Page, host: FlowHost) -> None:
        await page.until("document.querySelector('#blank h2').textContent === 'No flows yet'")
        assert await page.run("document.querySelector('#flow').hidden")

    shown(test, tmp_path, "flows: {}")


@pytest.mark.slow
def test_the_server_goes_and_comes_back(tmp_path: Path) -> None:
    require_chromium()

    async def main() -> None:
        async with hosted(FLOWS) as host:
            first = api.FlowApiServer(host, "127.0.0.1:0")
            await first.start()
            async with browsing(first.url, tmp_path) as page:
                await page.until("document.querySelector('#live').textContent === 'live'")
                await first.stop()
                await page.until("!document.querySelector('#gone').hidden")
                assert "does not reply" in await page.run("document.querySelector('#gone').textContent")
                assert not await page.run("document.querySelector('#overview').hidden")  # as it was
                second = api.FlowApiServer(host, first.url.removeprefix("http://"))
                await second.start()
                try:
                    await page.until("document.querySelector('#gone').hidden")
                    assert await page.run("document.querySelector('#live').textContent") == "live"
                finally:
                    await second.stop()

    asyncio.run(main())


# -- without one ---------------------------------------------------------------------------------------------
def test_the_page_is_one_file_with_a_policy_of_its_own_hashes() -> None:
    async def test(ask: Client) -> None:
        found = await ask("GET", "/", headers={"Authorization": ""})
        assert found.status == 200
        policy = found.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert (await ask("GET", "/", headers={"Origin": "http://evil.example"})).status == 403

    async def main() -> None:
        async with hosted() as host, served(host, TOKEN) as ask:
            await test(ask)

    asyncio.run(main())
    text = served_page.FILE.read_text()
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|\son\w+=\"| style=", text)
