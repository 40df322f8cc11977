"""Flows in the console: real flows, their graph, pause, resume, and reset."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from tests.tidelog.console.consolekit import ConsoleBench, Visitor, add_user, audited, benched, visit
from tests.tidelog.flows.servicekit import hosted
from tests.waiting import until
from tidelog.console.application import ConsoleServer
from tidelog.flows.service import flowstatus, publisher
from tidelog.flows.service.flowstatus import FlowProcessStatus, PublishedEntity, PublishedFlow, PublishedGraph
from tidelog.flows.service.publisher import FlowPublisher
from tidelog.testing import Server

pytestmark = pytest.mark.slow
FLOWS = """
flows:
  main:
    connectors: {in: {type: stream, key: jobs, group: shop}, out: {type: stream, key: done}}
    pipelines: {work: [passthrough]}
    connect: [in -> work -> out]
"""
LOST = """
  lost:
    connectors: {in: {type: stream, key: jobs, group: lost}, out: {type: stream, key: k, url: "redis://127.0.0.1:1"}}
    pipelines: {p: []}
    connect: [in -> p -> out]
"""
EVIL = "<img src=x onerror=\"document.title='run'\">"
PATH = "/programs/flow?process=default&name=main"


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "FOLLOW", 0.05)
    monkeypatch.setattr(publisher, "WRITE", 0.1)


@pytest.mark.usefixtures("fast")
def test_pause_resume_and_reset(tidelog_server: Server, tmp_path: Path) -> None:
    """A process with a flow, and no process."""
    add_user(tidelog_server, "ann")
    path = tmp_path / "audit.jsonl"

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        token = {"X_CSRF_Token": await visitor.csrf()}

        async def shows(text: str, path: str = PATH) -> bool:
            return text in (await visitor.get(path))[1]

        async def post(action: str, **form: str) -> str:
            return (await visitor.post(PATH.replace("flow?", f"flow/{action}?"), form, **token))[1]

        async with hosted(FLOWS, tidelog_server.url) as host, FlowPublisher(host):
            await until(lambda: shows(">running<", "/programs?kind=flow"))
            with tidelog_server.client() as client:
                client.tmappend("jobs", ["n"], [(n,) for n in range(5)])
                await until(lambda: client.tlen("done") == 5)
                assert "main will be paused within seconds" in await post("pause")
                await until(lambda: shows("paused:api"))
                assert "5 entries" in await post("preview", to="earliest")
                assert "1 group reset to earliest" in await post("reset", to="earliest")
                assert "main will be running within seconds" in await post("resume")
                await until(lambda: client.tlen("done") == 10)
                assert "in will be paused" in await post("pause", connector="in")
                await until(lambda: shows("paused:in"))
                assert (await visitor.post(PATH.replace("flow?", "flow/pause?"), {"connector": "x"}, **token))[0] == 404
                assert "yesterday" in await post("preview", to="yesterday")
        assert await shows("no process runs it")
        assert "after the next start" in await post("pause")
        assert (await visitor.get("/programs/flow?name=none"))[0] == 404

    visit(tidelog_server, test, audit_file=str(path))
    lines = [line for line in audited(path) if line["target"] == "flow default/main"]
    assert [(line["action"], line["result"]) for line in lines] == [
        (action, "done") for action in ("pause", "reset", "resume", "pause", "pause")
    ]
    assert lines[3]["detail"] == {"connector": "in"}


def test_forged_and_damaged_statuses(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")
    graph = PublishedGraph((PublishedEntity(EVIL, "source", EVIL),))
    flow = PublishedFlow(EVIL, EVIL, EVIL, graph=graph, where={EVIL: 1})
    with tidelog_server.client() as client:
        client.redis.set("tidelog:programs", b'{"version":1,"flows":{"a":1,"b":1,"c":1}}')
        for name, text in (("a", b'{"processes":{"p":1}}'), ("b", b"garbage"), ("c", b"{}")):
            client.redis.set(f"flows:{name}", text)
        client.redis.set(flowstatus.key_of("a", "p"), msgspec.json.encode(FlowProcessStatus(1, EVIL, 1, 1, (flow,))))

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            await visitor.log_in()
            _, text, _ = await visitor.get("/programs?kind=flow")
            assert "does not contain the desired state" in text
            assert EVIL not in text
            assert "onerror" in text
            status, text, _ = await visitor.get(f"/programs/flow?process=a&name={quote(EVIL)}")
            assert status == 200
            assert EVIL not in text
            assert (await visitor.get("/programs/flow?process=b&name=x"))[0] == 409

        visit(tidelog_server, test)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleBench]:
    with pytest.MonkeyPatch.context() as patch, benched(tmp_path_factory.mktemp("console")) as bench:
        patch.setattr(publisher, "FOLLOW", 0.1)
        patch.setattr(publisher, "WRITE", 0.2)
        stack = AsyncExitStack()

        async def start() -> None:
            host = await stack.enter_async_context(hosted(FLOWS + LOST, bench.server.url))
            await stack.enter_async_context(FlowPublisher(host))

        bench.run(start())
        with bench.client() as client:
            client.tmappend("jobs", ["n"], [(n,) for n in range(5)])
        yield bench
        bench.run(stack.aclose())


def test_in_a_browser(bench: ConsoleBench) -> None:
    live = "document.querySelector('#live')?.dataset.state === 'live'"
    boxes = "[...document.querySelectorAll('#graph [data-entity]')].map((each) => each.dataset.entity).join()"

    async def test() -> None:
        page = await bench.log_in(path="/programs?kind=flow")
        await page.until("document.querySelectorAll('tbody tr').length === 2")
        await page.until("document.querySelector('tr.failed .state.bad') !== null")  # lost
        await page.click("tbody tr:nth-child(2) th a")
        await page.until(f"location.pathname === '/programs/flow' && {boxes} === 'in,out,work.0'")
        await bench.inspect("/programs?kind=flow", ready=live)
        await bench.inspect(PATH, ready=f"{live} && {boxes}")
        assert await page.run("document.querySelector('#graph [role=img]').getAttribute('aria-label')")
        with bench.client() as client:
            client.tmappend("jobs", ["n"], [(n,) for n in range(100)])
        await page.until("document.querySelector('#graph [data-entity=out]').textContent.includes('105 ok')")
        await page.click("details.operate summary")
        await page.click("details form button")
        await page.until("document.querySelector('#part-state .state')?.textContent === 'paused'")
        await page.until("document.querySelector('#graph [data-entity=in]').textContent.includes('paused')")
        await page.fill("details [name=to]", "earliest")
        await page.click("details form:nth-of-type(2) button")
        await page.until("document.querySelector('details .danger')?.textContent.includes('Reset main to earliest')")
        await page.click("details .danger")
        await page.until("document.querySelector('#result').textContent.includes('1 group reset to earliest')")
        await page.click("details form button + button")
        await page.until("document.querySelector('#part-state .state')?.textContent === 'running'")
        await page.until("document.querySelector('#graph [data-entity=out]').textContent.includes('210 ok')")

    bench.run(test())
    bench.check()
