"""Jobs in the console: a real engine's supervisor and driver, with tasks in threads instead of Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[jobs]')")

from tests.tidelog.console.consolekit import (
    ConsoleBench,
    Visitor,
    add_user,
    audited,
    benched,
    visit,
)
from tests.tidelog.jobs.driverkit import append, close_drivers, copy, driver, made, numbers
from tests.tidelog.jobs.enginekit import Diarist, change, fold, supervised
from tests.tidelog.rightskit import granted
from tests.waiting import until
from tidelog.client import Client
from tidelog.console.application import ConsoleServer
from tidelog.coordination import Claim
from tidelog.jobs import keys
from tidelog.jobs.registry import registry
from tidelog.jobs.registry.registry import JobSpec
from tidelog.jobs.registry.status import StepReport
from tidelog.jobs.snapshots.catalog import JobSnapshots, PartitionSnapshots, SnapshotInfo
from tidelog.testing import Server

pytestmark = pytest.mark.slow
SPEC = JobSpec("copy", "shop.jobs:copy", inputs=("in",), outputs=("out",), dead_letters=("in.dead",), partitions=2,
               state="int")  # fmt: skip
EVIL = "Traceback\n<img src=x onerror=alert(1)>\nValueError: <b>poison</b>"


class Copier(Diarist):
    """Publishes epochs of the job that copies ``in`` to ``out``. The entry 13 makes it fail."""

    def __init__(self, server: Server, spec: JobSpec, claim: Claim) -> None:
        super().__init__(server.url, "e1", spec, claim)
        self._driver = driver(server, copy(server), spec.generation, start=spec.start or None)

    def prepare(self) -> StepReport:
        return StepReport()

    def step(self) -> StepReport:
        if any(entry["n"] == b"13" for entry in self.client.trange("in:0")):
            raise ValueError(EVIL)
        outcome = self._driver.step()
        facts = {"keys": 7, "bytes": 4096}
        return StepReport(outcome.epoch, outcome.more, outcome.rows_in, outcome.rows_out, facts=facts)

    def write(self, what: str) -> None: ...


def prepared(server: Server, client: Client) -> dict[str, Any]:
    """Topics and a registered job; options of ``supervised`` for its engine."""
    made(numbers("in", server), numbers("out", server))
    change(client, registry.add(SPEC))
    snapshot = SnapshotInfo("000000000001-x", 1, 1_700_000_000_000, 2048, 900)
    partitions = {"0": PartitionSnapshots((snapshot,)), "1": PartitionSnapshots((), {}, "the bucket <i>is</i> gone", 1)}
    client.redis.set(keys.snapshots("copy"), msgspec.json.encode(JobSnapshots(1, partitions)))
    return {"make": lambda spec, claim: Copier(server, spec, claim)}


def test_pause_resume_and_reset(tidelog_server: Server, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    rows = ("an engine of jobs, `tidelog jobs`",)
    with (
        granted(tidelog_server, *rows, J="copy", T=["in", "out", "in.dead"]) as user,
        tidelog_server.client() as client,
    ):
        options = prepared(tidelog_server, client)

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            await visitor.log_in("limited", "secret")
            token = {"X_CSRF_Token": await visitor.csrf()}
            denied = len(user.denied())  # of the overview

            async def page() -> str:
                return (await visitor.get("/programs/job?name=copy"))[1]

            async def shows(text: str) -> bool:
                return text in await page()

            async def post(action: str, **form: str) -> str:
                return (await visitor.post(f"/programs/job/{action}?name=copy", form, **token))[1]

            assert "no engine" in (await visitor.get("/programs?kind=job"))[1]
            async with supervised(tidelog_server.url, **options):
                append(client, 1, 2, 3)
                await until(lambda: client.tlen("out:0") == 3)
                await until(lambda: shows("7 keys"))
                text = await page()
                for expected in ("e1", "shop.jobs:copy", ">running<", "epoch 1", "bucket &lt;i&gt;is&lt;/i&gt; gone"):
                    assert expected in text
                assert "is paused" in await post("pause")
                await until(lambda: shows(">paused<"))
                assert "paused already" in await post("pause")
                append(client, 13)
                assert "is resumed" in await post("resume")
                await until(lambda: shows(">failing<"))
                text = await page()
                assert "&lt;b&gt;poison&lt;/b&gt;" in text
                assert "<b>poison" not in text
                assert 'class="failed"' in (await visitor.get("/programs?kind=job"))[1]
                text = await post("preview", to="earliest")
                assert "3 entries" in text
                assert "yesterday" in await post("preview", to="yesterday")
                assert "Generation 2 starts from latest" in await post("reset", to="latest")
                await until(lambda: client.redis.exists(keys.status("copy")))
            assert fold(client).specs["copy"].generation == 2
            assert (await visitor.get("/programs/job?name=none"))[0] == 404
            assert len(user.denied()) == denied

        visit(tidelog_server, test, audit_file=str(path))
    close_drivers()
    lines = [(line["action"], line["result"]) for line in audited(path) if line["target"] == "job copy"]
    assert lines == [("pause", "done"), ("pause", "done"), ("resume", "done"), ("reset", "done")]


def test_a_topic_that_has_grown_is_read_whole_after_a_reset(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")
    with tidelog_server.client() as client:
        made(numbers("in", tidelog_server, partitions=4))
        change(client, registry.add(SPEC))
        for at in range(4):
            append(client, at, stream=f"in:{at}")

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            await visitor.log_in()
            form = {"csrf": await visitor.csrf(), "to": "earliest"}
            assert "Generation 2" in (await visitor.post("/programs/job/reset?name=copy", form))[1]

        visit(tidelog_server, test)
        found = fold(client).specs["copy"]
        assert (found.partitions, found.start, found.revision) == (4, "earliest", 2)
        assert found.dead_letters == SPEC.dead_letters


def test_the_console_needs_no_pyarrow() -> None:
    code = "import sys, tidelog.console.application; print({'pyarrow', 'numpy', 'pyspark'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleBench]:
    with benched(tmp_path_factory.mktemp("console")) as bench, bench.client() as client:
        stack = AsyncExitStack()
        options = prepared(bench.server, client)

        async def start() -> None:
            await stack.enter_async_context(supervised(bench.server.url, **options))

        bench.run(start())
        append(client, 1, 2, 3)
        yield bench
        bench.run(stack.aclose())
        close_drivers()


def test_in_a_browser(bench: ConsoleBench) -> None:
    live = "document.querySelector('#live')?.dataset.state === 'live'"

    async def test() -> None:
        page = await bench.log_in(path="/programs?kind=job")
        await page.until("document.querySelector('#part-lists').textContent.includes('running')")
        await page.click("tbody th a")
        await page.until(f"location.pathname === '/programs/job' && {live}")
        await bench.inspect("/programs?kind=job", "/programs/job?name=copy", ready=live)
        await page.click("details.operate summary")
        await page.click("details form button")
        await page.until("document.querySelector('#result').textContent.includes('is paused')")
        await page.until("document.querySelector('#part-state .state')?.textContent === 'paused'")
        await page.click("details form button + button")
        await page.until("document.querySelector('#part-state .state')?.textContent === 'running'")
        await page.fill("details [name=to]", "earliest")
        await page.click("details form:nth-of-type(2) button")
        await page.until("document.querySelector('details .danger')?.textContent.includes('Reset copy to earliest')")
        await page.click("details .danger")
        await page.until("document.querySelector('#result').textContent.includes('Generation 2')")
        await page.until("document.querySelector('#part-tiles').textContent.includes('generation 2')")

    bench.run(test())
    bench.check()
