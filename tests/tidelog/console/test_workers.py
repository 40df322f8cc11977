"""Apps in the console: real workers; pause, resume, reset, timers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from tests.tidelog.console.consolekit import ConsoleBench, Visitor, add_user, audited, benched, visit
from tests.tidelog.rightskit import granted
from tests.tidelog.workers.workerkit import working
from tests.waiting import until
from tidelog.client.steps import run
from tidelog.console import connection
from tidelog.console.application import ConsoleServer
from tidelog.console.errors import UnavailableError
from tidelog.console.programs import some
from tidelog.coordination import programs
from tidelog.testing import Server
from tidelog.topics import Topic
from tidelog.workers import App, DeadLetter, Retry
from tidelog.workers.coordination import declaration
from tidelog.workers.coordination.declaration import AppDeclaration, DeclaredProcessor, DeclaredTimer

pytestmark = pytest.mark.slow


class Order(msgspec.Struct):
    id: int
    customer: str = "ann"


def shop(url: str) -> tuple[App, Topic[Order]]:
    app = App("shop", url, lease=2.0)
    orders = app.topic("orders", Order, partition_by="customer", partitions=2)

    @app.each(orders, ordering="key", on_error=[Retry(1, first=0.01), DeadLetter()])
    async def bill(order: Order) -> None:
        if order.id < 0:
            raise ValueError("<b>negative</b>")

    @app.timer(0.1, on_leader=True)
    async def sweep() -> None:
        raise ValueError

    @app.cron("0 3 * * *", on_leader=True)
    async def nightly() -> None: ...

    return app, orders


def test_pause_resume_and_reset(tidelog_server: Server, tmp_path: Path) -> None:
    add_user(tidelog_server, "ann")
    path = tmp_path / "audit.jsonl"
    app, orders = shop(tidelog_server.url)

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        token = {"X_CSRF_Token": await visitor.csrf()}

        async def shows(text: str, path: str = "/programs?kind=app") -> bool:
            return text in (await visitor.get(path))[1]

        async def post(action: str, **form: str) -> str:
            found = await visitor.post(f"/programs/app/{action}?name=shop", {"processor": "bill"} | form, **token)
            return found[1]

        assert await shows("There are no apps")
        assert (await visitor.get("/programs/app?name=shop"))[0] == 404
        async with working(app, "w1"):
            await until(lambda: shows(">running<"))
            await orders.send_many([Order(1), Order(2, "bob"), Order(-3)])
            await until(lambda: shows("1 in <span", "/programs/app?name=shop"))
            for path in ("/programs/app", "/programs"):  # the live part does not read what the page has just read
                await visitor.get(f"{path}?name=shop")
                url = f"{console.url}{path}/live?name=shop"
                async with visitor.session.get(url, headers={"Accept": "text/event-stream"}) as events:
                    lines = [(await events.content.readline()).decode().strip() for _ in range(4)]
                    assert lines[2:] == ["event: parts", "data: {}"]
            _, text, _ = await visitor.get("/programs/app?name=shop")
            assert "ValueError" in text
            assert "0 3 * * * UTC" in text
            assert "all partitions paused" in await post("pause")
            assert await shows("by ann in the console")
            assert "paused already" in await post("pause")
            assert "key eve in partition" in await post("pause", key="eve")
            assert "all partitions, key eve" in await post("resume")
            assert "nothing to resume" in await post("resume")
            assert "has the partitions 0 to 1" in await post("pause", partition="9")
            assert "stop them first" in await post("preview", to="earliest")
            assert "Effect of the reset" in await post("preview", to="earliest", force="yes", partition="0")
            assert "yesterday" in await post("preview", to="yesterday")
        await orders.close()
        _, text, _ = await visitor.get("/programs?kind=app")
        assert "no workers" in text
        text = await post("preview", to="earliest")
        assert "3 entries" in text
        assert "2 partitions reset to earliest" in await post("reset", to="earliest")
        _, text, _ = await visitor.get("/programs?kind=app")
        assert 'class="failed"' in text  # entries wait, and no worker runs
        assert (await visitor.post("/programs/app/reset?name=shop", {"processor": "none"}, **token))[0] == 404

    visit(tidelog_server, test, audit_file=str(path))
    lines = [line for line in audited(path) if line["target"] == "app shop/bill"]
    assert [(line["action"], line["result"]) for line in lines if line["result"] == "done"] == [
        ("pause", "done"), ("pause", "done"), ("pause", "done"), ("resume", "done"), ("resume", "done"),
        ("reset", "done"),
    ]  # fmt: skip
    assert lines[2]["detail"] == {"key": "eve"}


def test_the_acl_decides(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann", "+@connection", "+get", "%R~tidelog:programs", "%R~app:shop:declaration", "+time")
    app, _ = shop(tidelog_server.url)

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        async with working(app, "w1"):
            await visitor.log_in()
            token = {"X_CSRF_Token": await visitor.csrf()}
            _, text, _ = await visitor.get("/programs?kind=app")
            assert "not readable" in text
            assert "No permissions" in text
            assert (await visitor.get("/programs/app?name=shop"))[0] == 403
            _, text, _ = await visitor.post("/programs/app/pause?name=shop", {"processor": "bill"}, **token)
            assert "No permissions" in text

    visit(tidelog_server, test)


def test_the_rights_of_the_program_suffice(tidelog_server: Server) -> None:
    rows = ("a worker, `tidelog app`", "its dead letters")
    with granted(tidelog_server, *rows, A="shop", T="orders") as user:
        app, orders = shop(user.url)

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            async with working(app, "w1"):
                await orders.send(Order(1))
                await visitor.log_in("limited", "secret")
                token = {"X_CSRF_Token": await visitor.csrf()}
                denied = len(user.denied())  # of the overview
                await until(lambda: _running(visitor))
                for action in ("pause", "resume", "preview"):
                    form = {"processor": "bill", "to": "latest", "force": "yes"}
                    text = (await visitor.post(f"/programs/app/{action}?name=shop", form, **token))[1]
                    assert "permission" not in text.lower()
                assert len(user.denied()) == denied
                await orders.close()

        visit(tidelog_server, test)


def test_a_declaration_can_be_large(tidelog_server: Server) -> None:
    """Anybody with the right can write one. The pages show a part of it, and that it is one."""
    add_user(tidelog_server, "ann")
    processors = tuple(DeclaredProcessor(f"p{at}", "orders", f"shop.p{at}", "key") for at in range(300))
    timers = tuple(DeclaredTimer(f"t{at}", 5.0) for at in range(300))
    forged = AppDeclaration(1, "shop", processors, timers, {f"w{at}": 0 for at in range(5000)})
    topic: Topic[Order] = Topic("orders", Order, partitions=100_000, url=tidelog_server.url)
    with tidelog_server.client() as client:
        client.redis.set("app:shop:declaration", msgspec.json.encode(forged))
        run(client, programs.record("apps", "shop"))
        run(client, topic.agree())
    topic.close_sync()

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        _, text, _ = await visitor.get("/programs/app?name=shop")
        assert text.count("only the first 40 of 100,000 partitions are read") == 100
        assert "Only the first 100 of 300 processors are shown" in text
        assert "Only the first 100 of 300 timers are shown" in text
        _, text, _ = await visitor.get("/programs?kind=app")
        assert "200 more processors" in text

    visit(tidelog_server, test)


def test_a_server_that_is_lost(tidelog_server: Server) -> None:
    """Every page of programs reports it, and shows the programs again afterwards."""
    add_user(tidelog_server, "ann")
    app, _ = shop(tidelog_server.url)
    with tidelog_server.client() as client:
        run(client, declaration.write(app, "w1"))
        for name in ("a", "b", "shop"):
            run(client, programs.record("apps", name))
            run(client, programs.record("flows", name))

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        token = {"X_CSRF_Token": await visitor.csrf()}
        details = ("/programs/app?name=shop", "/programs/job?name=a", "/programs/flow?name=a")
        paths = ("/programs", *details, "/deadletters")
        tidelog_server.kill()
        for path in paths:
            status, text, _ = await visitor.get(path)
            assert (status, "Connect" in text or "no answer" in text) == (503, True), text
        found = await visitor.post("/programs/app/pause?name=shop", {"processor": "bill"}, **token)
        assert found[0] == 503
        tidelog_server.start()
        add_user(tidelog_server, "ann")  # users that were created at run time are not stored
        assert [(await visitor.get(path))[0] for path in paths] == [200, 200, 404, 404, 200]

    visit(tidelog_server, test)


def test_a_server_that_hangs(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live page reports it after one timeout: no time is left for a repetition over another connection."""
    monkeypatch.setattr(connection, "ANSWER_MS", 1000)
    add_user(tidelog_server, "ann")

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        os.kill(tidelog_server.pid, signal.SIGSTOP)
        try:
            for path in ("/overview/live", "/programs/live"):
                status, text, _ = await visitor.get(path, Accept="text/event-stream")
                assert status == 200
                assert re.search(r'event: problem\ndata: "no answer from \S+ within 1 second"\n\n$', text)
        finally:
            os.kill(tidelog_server.pid, signal.SIGCONT)
        assert (await visitor.get("/programs"))[0] == 200

    visit(tidelog_server, test)


def test_a_loss_while_several_programs_are_read_is_reported_as_one() -> None:
    ended = []

    async def read(name: str) -> None:
        if name == "lost":
            raise UnavailableError("no answer")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(name)

    with pytest.raises(UnavailableError):
        asyncio.run(some(["a", "lost", "b"], read))
    assert ended == ["a", "b"]


async def _running(visitor: Visitor) -> bool:
    return ">running<" in (await visitor.get("/programs/app?name=shop"))[1]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleBench]:
    with benched(tmp_path_factory.mktemp("console")) as bench:
        app, orders = shop(bench.server.url)
        stack = AsyncExitStack()

        async def start() -> None:
            await stack.enter_async_context(working(app, "w1"))
            await orders.send_many([Order(1), Order(-2)])

        async def stop() -> None:
            await orders.close()
            await stack.aclose()

        bench.run(start())
        yield bench
        bench.run(stop())


def test_in_a_browser(bench: ConsoleBench) -> None:
    live = "document.querySelector('#live')?.dataset.state === 'live'"

    async def test() -> None:
        page = await bench.log_in(path="/")
        await page.press("g")
        await page.press("p")
        await page.until(f"location.pathname === '/programs' && {live}")
        await bench.inspect("/programs", "/programs/app?name=shop", ready=live)
        await page.until("document.querySelector('#part-processor-bill').textContent.includes('running')")
        await page.click("details.operate summary")
        await page.click("details form button")
        await page.until("document.querySelector('[id^=result]').textContent.includes('all partitions paused')")
        await page.until("document.querySelector('#part-processor-bill .state.wait')?.textContent === 'paused'")
        await page.click("details form button + button")
        await page.until("document.querySelector('#part-processor-bill .state.good')?.textContent === 'running'")
        await page.fill("details [name=to]", "earliest")
        await page.click("details [name=force]")
        await page.click("details form:nth-of-type(2) button")
        await page.until("document.querySelector('details .danger')?.textContent.includes('Reset bill to earliest')")
        await page.click("details .danger")
        await page.until("document.querySelector('details').textContent.includes('2 partitions reset to earliest')")
        assert await page.run("document.querySelectorAll('main img, main script').length") == 0
        await page.go(f"{bench.console.url}/programs")
        await page.fill("#open-name", "shop")
        await page.press("Enter")
        await page.until("location.pathname === '/programs/app'")

    bench.run(test())
    bench.check()
