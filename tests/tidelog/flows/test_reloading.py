"""Reloads of flow files: by the API, by SIGHUP, and by ``tidelog flow reload``."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.flows.servicekit import deployed, hosted, served
from tests.tidelog.flows.test_program import ECHO, ROOT, Process, started
from tests.waiting import eventually, until
from tidelog import Client
from tidelog.flows import Flow, FlowFileError
from tidelog.flows.service.desired import DesiredStateError
from tidelog.flows.service.host import BusyError, DeployedFlow, FlowHost
from tidelog.flows.service.reloading import reload
from tidelog.testing import Server, running_server

FLOW = """
  {name}:
    connectors: {{in: {{type: metronome, interval: 10ms}}, out: "null"}}
    pipelines: {{p: [{operator}]}}
    connect: [in -> p -> out]
"""


def text(**flows: str) -> str:
    """Return flows, each with one operator."""
    return "flows:" + ("".join(FLOW.format(name=name, operator=each) for name, each in flows.items()) or " {}")


def reading(host: FlowHost, content: str) -> None:
    """Let the host read this content at its next reload."""
    host.read_files = lambda: deployed(content, host.server)


def names(host: FlowHost) -> dict[str, int]:
    """Return the identities of the running instances."""
    return {each.alias: id(each) for flow in host.flows.values() for each in flow.instances}


WINDOW = "{window: {time: 1h, aggregates: {n: count}}}"


def test_unchanged_flows_continue_with_what_they_store() -> None:
    async def main() -> None:
        async with hosted(text(a=WINDOW, b="{sample: 1}", c="{sample: 1}")) as host:
            before = names(host)
            window = host.flows["a"].instances[0].graph.operators["p"][0].operator
            await until(lambda: window.kept() > 3)
            kept = window.kept()
            reading(host, text(d="{sample: 1}", a=WINDOW, b="{sample: 0.5}"))
            report = await reload(host)
            assert (report.started, report.replaced, report.removed) == (["d"], ["b"], ["c"])
            assert (report.unchanged, report.failed, sorted(report.drained)) == (["a"], {}, ["b", "c"])
            assert report.complete
            now = names(host)
            assert now["a"] == before["a"]
            assert now["b"] != before["b"]
            assert sorted(now) == ["a", "b", "d"]
            assert window.kept() >= kept
            assert host.flows["a"].instances[0].graph.connections["in"].connects == 1
            await until(lambda: host.flows["d"].status == "running")
            assert str(report) == "started: d; replaced: b; removed: c; unchanged: a"
            again = await reload(host)
            assert (again.unchanged, again.drained) == (["d", "a", "b"], {})

    asyncio.run(main())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (text(a=WINDOW, b="{where: '('}"), "b.pipelines.p"),
        (text(a=WINDOW).replace("metronome", "metronom"), "did you mean 'metronome'"),
        ("flows: [", "not valid YAML"),
        ("flows: {}\ntests: {t: {flow: a}}", "there is no flow 'a'"),
    ],
)
def test_invalid_files_change_nothing(content: str, reason: str) -> None:
    async def main() -> None:
        async with hosted(text(a="{sample: 1}", b="{sample: 1}")) as host, served(host) as ask:
            before = names(host)
            reading(host, content)
            with pytest.raises(FlowFileError, match=reason.replace("(", r"\(")):
                await reload(host)
            asked = await ask("POST", "/v1/reload")
            assert asked.status == 422
            assert asked.body["error"].startswith("nothing was changed: ")
            assert reason in asked.body["problems"][0]
            assert names(host) == before
            assert {each.status for each in host.flows.values()} == {"running"}

    asyncio.run(main())


def test_flows_from_other_origins() -> None:
    async def main() -> None:
        flow = Flow("python")
        flow.connector("in", "null")
        flow.connector("out", "null")
        flow.connect("in -> out")
        async with hosted(text(a="{sample: 1}")) as host:
            for given in ("web", "both"):
                await host.deploy(given, deployed(text(x="{sample: 1}"))[0].given or {})
            host.flows["python"] = DeployedFlow(flow.spec(), "python")
            await host.add(host.flows["python"])
            before = names(host)
            reading(host, text(a="{sample: 1}", both="{sample: 1}"))
            report = await reload(host)
            assert (report.replaced, sorted(report.unchanged)) == (["both"], ["a", "python", "web"])
            assert host.flows["both"].by == "file"
            assert {name: names(host)[name] for name in ("a", "python", "web")} == {
                name: before[name] for name in ("a", "python", "web")
            }
            reading(host, text(python="{sample: 1}"))
            with pytest.raises(FlowFileError, match="python: there is already a flow with this name, from Python"):
                await reload(host)
            # a flow of a file that was replaced or deleted over HTTP is that of the file again
            await host.deploy("a", deployed(text(a="{sample: 0.5}"))[0].given or {}, replace=True)
            reading(host, text(a="{sample: 1}"))
            assert (await reload(host)).replaced == ["a"]
            await host.undeploy("a")
            assert (await reload(host)).started == ["a"]

    asyncio.run(main())


def test_the_order_of_keys_is_no_change_but_a_type_is() -> None:
    async def main() -> None:
        async with hosted(text(a="{sample: {probability: 1, seed: 1}}")) as host:
            reading(host, text(a="{sample: {seed: 1, probability: 1}}"))
            assert (await reload(host)).unchanged == ["a"]
            reading(host, text(a="{sample: {seed: 1, probability: 1.0}}"))
            assert (await reload(host)).replaced == ["a"]

    asyncio.run(main())


def test_instances_are_added_and_removed_while_the_others_continue(tidelog_server: Server) -> None:
    def content(count: int) -> str:
        return text(a=WINDOW).replace("  a:\n", f"  a:\n    instances: {count}\n")

    async def main() -> None:
        async with hosted(content(2), tidelog_server.url) as host:
            flow, two = host.flows["a"], names(host)
            await host.set_status("a.2", "paused")
            reading(host, content(4))
            report = await reload(host)
            assert (report.rescaled, report.drained) == (["a"], {})
            await until(lambda: [each.status for each in flow.instances] == ["running", "paused", "running", "running"])
            assert {name: names(host)[name] for name in two} == two
            assert host.flows["a"] is flow
            assert flow.aliases == ["a.1", "a.2", "a.3", "a.4"]
            reading(host, content(2))
            report = await reload(host)
            assert (report.rescaled, sorted(report.drained)) == (["a"], ["a.3", "a.4"])
            assert names(host) == two
            assert len(flow.letters) == 2
            assert not flow.ended
            reading(host, content(1))
            assert (await reload(host)).replaced == ["a"]
            await host.undeploy("a")

    asyncio.run(main())


def test_a_flow_that_can_not_be_built_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidelog.flows.connectors.builtin.metronome import MetronomeSource

    async def main() -> None:
        async with hosted(text(a="{sample: 1}")) as host:
            before = names(host)

            def broken(self: object, options: object) -> None:
                raise RuntimeError("broken")

            monkeypatch.setattr(MetronomeSource, "__init__", broken)
            reading(host, text(a="{sample: 0.5}", b="{sample: 1}"))
            with pytest.raises(FlowFileError, match="a: RuntimeError: broken\nb: RuntimeError: broken"):
                await reload(host)
            assert names(host) == before

    asyncio.run(main())


def test_when_a_reload_is_not_possible() -> None:
    async def main() -> None:
        async with hosted(text(a="{sample: 1}")) as host, served(host, "a token of some length") as ask:
            assert (await ask("POST", "/v1/reload")).status == 409
            with pytest.raises(BusyError, match="started without flow files"):
                await reload(host)
            assert (await ask("POST", "/v1/reload", headers={"Authorization": "Bearer x"})).status == 401
            assert (await ask("POST", "/v1/reload", headers={"Origin": "http://evil.example"})).status == 403
            reading(host, text(a="{sample: 0.5}"))
            assert (await ask("POST", "/v1/reload")).body["replaced"] == ["a"]
            host.problem = "the stored flows are not known yet"
            with pytest.raises(BusyError, match="not known yet"):
                await reload(host)
            host.problem = ""
            await host.drain()
            with pytest.raises(BusyError, match="is stopping"):
                await reload(host)

    asyncio.run(main())


def test_reloads_are_executed_one_after_another() -> None:
    async def main() -> None:
        async with hosted(text(a="{sample: 1}")) as host, served(host) as ask:
            reading(host, text(a="{sample: 0.5}", b="{sample: 1}"))
            first, *others = await asyncio.gather(*(ask("POST", "/v1/reload") for _ in range(5)))
            found = [each.body for each in (first, *others)]
            assert sorted(len(each["replaced"]) for each in found) == [0, 0, 0, 0, 1]
            assert sorted(len(each["started"]) for each in found) == [0, 0, 0, 0, 1]

    asyncio.run(main())


def test_the_process_does_not_end_when_all_flows_are_replaced_by_others() -> None:
    async def main() -> None:
        async with hosted(text(a="{sample: 1}")) as host:
            finished = asyncio.create_task(host.finished())
            reading(host, text(b="{sample: 1}"))
            await reload(host)
            await until(lambda: host.flows["b"].status == "running")
            assert not finished.done()
            finished.cancel()

    asyncio.run(main())


def test_what_was_paused_stays_paused_and_an_unreachable_server_changes_nothing() -> None:
    async def main() -> None:
        with running_server() as server:
            content = text(a="{sample: 1}", b="{sample: 1}")
            async with hosted(content, server.url) as host:
                await host.set_status("a", "paused")
                await host.set_status("b", "paused", "in")
                reading(host, text(a="{sample: 0.5}", b="{sample: 0.5}"))
                assert sorted((await reload(host)).replaced) == ["a", "b"]
                assert host.flows["a"].status == "paused"
                sources = host.flows["b"].instances[0].graph.sources
                assert [each.reason for each in sources["in"].reasons()] == ["paused:in"]
                reading(host, text(b="{sample: 0.5}"))  # the desired state of a deleted flow remains
                assert (await reload(host)).removed == ["a"]
                reading(host, content)
                assert (await reload(host)).started == ["a"]
                assert host.flows["a"].status == "paused"
                before = names(host)
                server.kill()
                reading(host, text(a="{sample: 0.1}"))
                with pytest.raises(DesiredStateError):
                    await reload(host)
                assert names(host) == before

    asyncio.run(main())


# -- processes ---------------------------------------------------------------------------------------------------
def test_sighup_reads_the_files_again(tmp_path: Path) -> None:
    path = tmp_path / "flows.yaml"
    with started(tmp_path, ECHO) as process:
        process.type("one")
        eventually(lambda: process.out == ["one"])
        path.write_text(ECHO.replace("echo: []", "echo: [select: \"join('', ['<', @, '>'])\"]"))
        process.process.send_signal(signal.SIGHUP)
        process.said("reload: replaced: main")
        process.type("two")
        eventually(lambda: process.out == ["one", "<two>"])
        path.write_text("flows: [")
        process.process.send_signal(signal.SIGHUP)
        process.said("reload: 1 problem; nothing was changed")
        assert any("not valid YAML" in line for line in process.err)
        path.write_text("listen: 127.0.0.1:1\n" + ECHO)
        process.process.send_signal(signal.SIGHUP)
        process.said("listen has changed: restart the process to apply it")
        path.write_text("flows: {}")
        process.process.send_signal(signal.SIGHUP)
        process.said("there is no flow in the files")
        process.type("three")
        eventually(lambda: process.out[-1] == "<three>")
        process.process.terminate()
        assert process.end() == 0


def test_the_command(tmp_path: Path) -> None:
    def tidelog(port: int) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "tidelog.cli", "flow", "reload", "--api", f"http://127.0.0.1:{port}"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30)

    with started(tmp_path, ECHO) as process:
        done = tidelog(process.port)
        assert (done.returncode, done.stdout) == (0, "reload: unchanged: main\n")
        (tmp_path / "flows.yaml").write_text(ECHO.replace("echo: []", "echo: [where: '(']"))
        done = tidelog(process.port)
        assert done.returncode == 1
        assert "nothing was changed: flows.yaml:5: flows.main.pipelines.echo[0]" in done.stderr


def test_a_closed_terminal_drains(tmp_path: Path) -> None:
    (tmp_path / "flows.yaml").write_text(ECHO)
    main, other = pty.openpty()
    words = [sys.executable, "-m", "tidelog.cli", "flow", "run", "flows.yaml", "--listen", "none"]
    code = f"import os, fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv({words[0]!r}, {words!r})"
    with (tmp_path / "err").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=tmp_path, stdin=other, stdout=other, stderr=errors,
            env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True,
        )  # fmt: skip
    os.close(other)
    try:
        os.write(main, b"one\n")
        found = b""
        while found.count(b"one") < 2:  # the echo of the terminal, and that of the flow
            found += os.read(main, 1000)
        process.send_signal(signal.SIGHUP)
        eventually(lambda: b"reload: unchanged: main" in (tmp_path / "err").read_bytes())
        os.close(main)
        process.wait(20)
        assert b"draining; a second signal" in (tmp_path / "err").read_bytes()
    finally:
        process.kill()
        process.wait()


def test_the_example(tmp_path: Path) -> None:
    example = (ROOT / "examples" / "flows" / "reload.yaml").read_text()

    def add(client: Client, *celsius: int) -> None:
        rows = [[json.dumps({"station": "Rome", "celsius": each})] for each in celsius]
        client.tmappend("readings", ["data"], rows)

    with (
        running_server() as server, server.client() as client,
        started(tmp_path, example, "--url", server.url) as process,
    ):  # fmt: skip
        add(client, 20, 31)
        eventually(lambda: client.tlen("alarms") == 1)
        (tmp_path / "flows.yaml").write_text(example.replace("celsius > `30`", "celsius > `35`"))
        process.process.send_signal(signal.SIGHUP)
        process.said("reload: replaced: alarms; unchanged: means")
        add(client, 33)  # completes the window that was begun before the reload, and is no alarm any more
        eventually(lambda: client.tlen("means") == 1)
        (entry,) = client.trange("means")
        assert json.loads(entry["data"])["aggregates"] == {"celsius": 28.0}
        add(client, 36)
        eventually(lambda: client.tlen("alarms") == 2)


# -- traffic -------------------------------------------------------------------------------------------------------
STREAMS = """
flows:
  move:
    connectors:
      in: {type: stream, key: orders, group: shop, codec: json, retry: 1s}
      out: {type: stream, key: out, codec: json}
    pipelines: {p: [{select: "{n: n, way: `%d`}"}, {batch: {count: 7, timeout: 5ms}}, unbatch]}
    connect: [in -> p -> out]
  other:
    connectors: {in: {type: metronome, interval: 1s}, out: "null"}
    connect: [in -> out]
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server(appendfsync="always") as server:
        yield server


def values(client: Client) -> list[Any]:
    return [json.loads(entry["data"]) for page in client.pages("out") for entry in page]


def moved(client: Client, count: int) -> bool:
    return client.tlen("out") >= count and client.tpending("orders", "shop").count == 0


def longer(client: Client, before: int) -> bool:
    return client.tlen("out") > before


def reloaded(process: Process, times: int) -> bool:
    return sum("reload: replaced: move" in line for line in list(process.err)) == times


def fill(client: Client, start: int, end: int) -> None:
    client.tmappend("orders", ["data"], [[json.dumps({"n": n})] for n in range(start, end)])


def test_no_event_is_lost_or_doubled_when_a_flow_is_reloaded_under_traffic(tmp_path: Path, server: Server) -> None:
    count, step = 12_000, 1_000
    path = tmp_path / "flows.yaml"
    with server.client() as client, started(tmp_path, STREAMS % 0, "--url", server.url) as process:
        for way in range(1, count // step):
            fill(client, (way - 1) * step, way * step)
            path.write_text(STREAMS % way)
            process.process.send_signal(signal.SIGHUP)
            eventually(partial(reloaded, process, way))
        fill(client, count - step, count)
        eventually(lambda: moved(client, count))
        found = values(client)
        assert Counter(each["n"] for each in found) == Counter(range(count))
        assert len({each["way"] for each in found}) > 3
        assert "unchanged: other" in process.err[-1]
        process.process.terminate()
        assert process.end() == 0


def test_a_process_that_is_killed_during_reloads_loses_nothing(tmp_path: Path, server: Server) -> None:
    count, kills = 9_000, 3
    path = tmp_path / "flows.yaml"
    with server.client() as client:
        for kill in range(kills):
            with started(tmp_path, STREAMS % kill, "--url", server.url) as process:
                fill(client, kill * count // kills, (kill + 1) * count // kills)
                eventually(partial(longer, client, client.tlen("out") if kill else 0))
                path.write_text(STREAMS % (kill + 100))
                process.process.send_signal(signal.SIGHUP)
                time.sleep(0.01 * kill)  # at different times of the reload
                process.process.kill()
                process.process.wait()
        with started(tmp_path, STREAMS % 200, "--url", server.url) as process:
            eventually(lambda: moved(client, count))
            found = Counter(each["n"] for each in values(client))
            assert set(found) == set(range(count))
            assert found.total() - count <= kills * 10_000
            process.process.terminate()
            assert process.end() == 0


def test_a_signal_before_its_handler_is_delayed() -> None:
    code = """
import asyncio, os, signal
from tidelog.operating.signals import handling, held, release
async def main():
    seen = asyncio.Event()
    with handling((signal.SIGHUP,), lambda _: seen.set()):
        release(signal.SIGHUP)
        await seen.wait()
with held(signal.SIGHUP):
    os.kill(os.getpid(), signal.SIGHUP)
    asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
