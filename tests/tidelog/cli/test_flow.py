"""tidelog flow: files checked, run, drawn; a process that runs flows looked at and steered."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("aiohttp", reason="no aiohttp here (pip install 'tidelog[flows]')")

from tests.tidelog.flows.servicekit import hosted
from tidelog.cli.collector import GENERATIONS
from tidelog.cli.flow import flow_commands
from tidelog.cli.program import main
from tidelog.client import Client as TidelogClient
from tidelog.client.entries import StreamId
from tidelog.client.steps import run as run_steps
from tidelog.flows.service.api import FlowApiServer
from tidelog.testing import Server
from tidelog.topics import deadletters

ROOT = Path(__file__).parents[3]
Run = Callable[..., Result]
TEXT = """
flows:
  orders:
    instances: 2
    connectors:
      in: {type: "null", value: {a: 1}}
      out: "null"
      seen: {type: "null", authoritative: false}
    pipelines: {enrich: [passthrough, passthrough]}
    connect: [in -> enrich -> out, enrich.err -> seen]
"""
ENDS = TEXT.replace("value: {a: 1}", "count: 100")
TOKEN = "0123456789abcdef-token"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDELOG_URL", raising=False)
    (tmp_path / "flows.yaml").write_text(TEXT)
    (tmp_path / "ends.yaml").write_text(ENDS)
    (tmp_path / "bad.yaml").write_text(TEXT.replace("connect:", "conect:").replace("instances: 2", "instances: x"))
    (tmp_path / "shopflows.py").write_text(
        "import gc\nfrom tidelog.flows import Flow\n"
        "async def made():\n    yield {'a': 1}\n"
        "async def taken(value):\n    print(value)\n"
        "orders = Flow('orders')\n"
        "orders.connector('in', made)\norders.connector('out', taken)\norders.connect('in -> out')\n"
        "async def thresholds():\n    yield gc.get_threshold()\n"
        "paced = Flow('paced')\n"
        "paced.connector('in', thresholds)\npaced.connector('out', taken)\npaced.connect('in -> out')\n"
        "broken = Flow('broken')\nbroken.connector('in', made)\n"
    )
    thresholds = gc.get_threshold()

    def run(*args: object, ok: bool = True, code: int | None = None) -> Result:
        result = CliRunner().invoke(main, ["flow", *map(str, args)])
        assert (result.exit_code == 0) is ok, result.output
        assert code is None or result.exit_code == code, result.output
        return result

    yield run
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.fixture
def api() -> Iterator[str]:
    """The URL of a process with the flow orders; it is a thread."""
    url = ""
    ready, end = threading.Event(), threading.Event()

    async def serve() -> None:
        nonlocal url
        async with hosted(TEXT) as host:
            server = FlowApiServer(host, "127.0.0.1:0", TOKEN)
            await server.start()
            url = server.url
            ready.set()
            await asyncio.to_thread(end.wait)
            await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(20)
    try:
        yield url
    finally:
        end.set()
        thread.join(20)


@pytest.fixture
def ask(run: Run, api: str, tmp_path: Path) -> Run:
    (tmp_path / "token").write_text(f"{TOKEN}\n")

    def ask(*args: object, ok: bool = True, code: int | None = None) -> Result:
        return run(*args, "--api", api, "--token-file", tmp_path / "token", ok=ok, code=code)

    return ask


# -- files ---------------------------------------------------------------------------------------------------
def test_check(run: Run) -> None:
    assert run("check", "flows.yaml").output.splitlines() == [
        "orders: 3 connectors, 1 pipeline, 2 operators, 2 instances", "1 flow: no errors",
    ]  # fmt: skip
    found = run("check", "bad.yaml", "nothere.yaml", ok=False, code=1).output.splitlines()
    assert found[0] == "nothere.yaml: No such file or directory"
    assert "bad.yaml:4: flows.orders.instances: Expected `int`, got `str`" in found
    assert "bad.yaml:10: flows.orders.conect: unknown key 'conect'; did you mean 'connect'?" in found
    assert found[-1].endswith("problems; nothing was started")
    assert "there is already a flow 'orders': flows.yaml:3" in run("check", "flows.yaml", "ends.yaml", ok=False).output


def test_check_of_a_flow_in_python(run: Run) -> None:
    assert "orders: 2 connectors" in run("check", "shopflows:orders").output
    assert "broken.connectors.in: the connector 'in' is not connected" in run(
        "check", "shopflows:broken", ok=False
    ).output  # fmt: skip
    assert "shopflows has no 'gone'" in run("check", "shopflows:gone", ok=False).output


def test_functions_that_a_file_names_are_found_in_the_current_folder(run: Run, tmp_path: Path) -> None:
    """As the installed program, which has its own folder first in sys.path: -P leaves the current one out, too."""
    (tmp_path / "ownshop.py").write_text("def bill(order):\n    return {'billed': order['a']}\n")
    (tmp_path / "calls.yaml").write_text(ENDS.replace("[passthrough, passthrough]", "[python: 'ownshop:bill']"))
    for command in ("check", "run", "graph"):
        more = ["--listen", "none"] if command == "run" else []
        done = subprocess.run(
            [sys.executable, "-P", "-m", "tidelog.cli", "flow", command, "calls.yaml", *more], capture_output=True,
            text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_graph_of_a_file(run: Run) -> None:
    output = run("graph", "flows.yaml").output
    assert output.startswith("%% orders\nflowchart LR\n")
    for line in (
        '    n_in(["in<br>null"])', '    subgraph n_pipeline_5f_enrich["enrich"]', "    n_in --> n_enrich_2e_0",
        "    n_enrich_2e_0 --> n_enrich_2e_1", "    n_enrich_2e_1 --> n_out", "    n_enrich_2e_0 -.->|err| n_seen",
    ):  # fmt: skip
        assert line in output.splitlines()


def test_run_ends_with_its_flows(run: Run) -> None:
    result = run("run", "ends.yaml", "--listen", "127.0.0.1:0")
    assert "listening on http://127.0.0.1:" in result.output
    assert run("run", "shopflows:orders", "--listen", "none").output == "{'a': 1}\n"


def test_run_looks_for_circles_as_often_as_a_worker_does(run: Run) -> None:
    assert run("run", "shopflows:paced", "--listen", "none").output == f"{GENERATIONS}\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "there is no flow to run: name a file with a flow, or use --stay"),
        (("ends.yaml", "--listen", "0.0.0.0:0"), "if other hosts can connect, a token is required"),
        (("ends.yaml", "--listen", "9898"), "it must be HOST:PORT, such as 127.0.0.1:9898"),
        (("ends.yaml", "--token-file", "nothere"), "the token can't be read from nothere"),
        (("bad.yaml",), "nothing was started"),
    ],
)
def test_what_does_not_run(run: Run, args: tuple[str, ...], said: str) -> None:
    assert said in run("run", *args, ok=False).output


@pytest.mark.parametrize("url", ["localhost:6379", "http://user:secret@a:1", "redis+sentinel://a:1", "redis://a:1,"])
def test_a_server_whose_url_is_none(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for args in (("check", "ends.yaml"), ("run", "ends.yaml"), ("check", "shopflows:orders"), ("run", "--stay")):
        said = run(*args, "--url", url, ok=False, code=1).output
        assert "redis://HOST:PORT" in said or "redis+sentinel://HOST:PORT" in said
        assert "secret" not in said
    monkeypatch.setenv("TIDELOG_URL", url)
    assert "server: " in run("check", "ends.yaml", ok=False, code=1).output
    monkeypatch.delenv("TIDELOG_URL")
    (tmp_path / "own.yaml").write_text(f"\nserver: {url}\n{TEXT}")
    assert run("check", "own.yaml", ok=False, code=1).output.startswith("own.yaml:2: server: ")


def test_a_port_that_is_taken(run: Run, api: str) -> None:
    said = run("run", "ends.yaml", "--listen", api.removeprefix("http://"), ok=False).output
    assert "can't be used" in said
    assert "--listen HOST:PORT" in said


# -- what runs -----------------------------------------------------------------------------------------------
def test_list_and_status(ask: Run) -> None:
    assert ask("list").output.splitlines()[1].split()[:3] == ["orders", "running", "2"]
    assert json.loads(ask("list", "--json").output)[0]["alias"] == "orders"
    output = ask("status").output
    assert "flow          orders\nstatus        running\ninstances     orders.1 running, orders.2 running\n" in output
    assert "reason for not sending" not in output
    assert re.search(r"\nin/s +[\d,]+\nout/s +[\d,]+\ndead letters  0\n", output)
    head, *rows = [line for line in output.splitlines() if line.startswith(("connector", "in ", "out ", "seen "))]
    assert re.split(" {2,}", head)[3:] == ["connectivity", "in", "out", "in/s", "out/s", "given up", "error"]
    cells = {row.split()[0]: row.split()[4:] for row in rows}
    assert cells["seen"] == ["-", "0", "-", "0", "-"]
    assert [each == "-" for each in cells["in"]] == [False, True, False, True, False]
    found = json.loads(ask("status", "orders.2", "--json").output)["flows"][0]
    assert [each["alias"] for each in found["flow"]["instances"]] == ["orders.2"]
    assert (found["in_rate"] > 0, found["out_rate"] > 0, found["dead_letters"]) == (True, True, {})
    once = json.loads(ask("status", "orders", "--json", "--interval", 0).output)["flows"][0]
    assert (once["in_rate"], once["out_rate"]) == (None, None)


def test_pause_resume_drain(ask: Run) -> None:
    assert ask("pause", "orders").output == "orders: paused\n"
    assert "paused:api" in ask("status", "orders").output
    assert ask("pause", "orders.1", "out").output == "orders.1 out: paused\n"
    assert ask("resume", "orders.1", "out").output == "orders.1 out: running\n"
    assert ask("resume", "orders").output == "orders: running\n"
    output = ask("drain", "orders", "--timeout", 20).output
    assert [line.partition(":")[0] for line in output.splitlines()] == ["orders.1", "orders.2"]
    assert "nothing is left" in output
    assert ask("status").output == "no flows\n"
    assert ask("list").output == "no flows\n"


def test_a_drain_that_abandons_says_so(ask: Run) -> None:
    ask("pause", "orders", "out")
    result = ask("drain", "orders", "--timeout", 0.2, ok=False, code=1)
    assert "abandoned: " in result.output
    assert " of in" in result.output


def test_graph_of_what_runs(ask: Run) -> None:
    assert "    n_enrich_2e_1 --> n_out" in ask("graph", "orders").output


def test_errors_of_what_is_asked(run: Run, ask: Run, api: str) -> None:
    assert "there is no flow 'nope'" in ask("pause", "nope", ok=False).output
    assert "there is no flow 'nope'" in ask("graph", "nope", ok=False).output
    assert "the flow 'orders' has no connector 'nope'" in ask("pause", "orders", "nope", ok=False).output
    assert "a token is required" in run("list", "--api", api, ok=False).output
    assert "no answer from http://127.0.0.1:1: " in run("list", "--api", "http://127.0.0.1:1", ok=False).output
    assert "is not a URL such as http://127.0.0.1:9898" in run("list", "--api", "x", ok=False).output
    assert "nothere" in run("list", "--token-file", "nothere", ok=False).output


# -- the state on the server, without a process --------------------------------------------------------------
def test_a_flow_without_a_process(run: Run, tidelog_server: Server, tmp_path: Path) -> None:
    client = TidelogClient(tidelog_server.url)
    for number in range(5):
        client.tappend("orders", {"n": str(number)})
    (tmp_path / "stream.yaml").write_text(
        "name: shop\nflows:\n  orders:\n    connectors:\n"
        "      in: {type: stream, key: orders, group: g}\n      clock: {type: metronome, interval: 1h}\n"
        "      out: 'null'\n      gone: {type: exit, what: flow}\n"
        "    connect: [in -> out, in -> gone, clock -> out]\n"
    )
    server = ("--url", tidelog_server.url, "--name", "shop")
    away = ("--api", "http://127.0.0.1:1", *server)
    run("run", "stream.yaml", "--url", tidelog_server.url, "--listen", "none")
    assert run("list", *away).output.splitlines()[1].split()[:2] == ["orders", "stopped"]
    position = str(client.tinfo("orders").last)
    table = run("status", "orders", *away).output
    assert table.splitlines()[-2].split() == ["in", "orders", "g", position, "0", "-", "0"]
    client.tappend("orders", {"n": "5"})
    (flow,) = json.loads(run("status", "orders", "--json", *away).output)["flows"]
    assert (flow["groups"][0]["lag"], flow["groups"][0]["lag_ms"] < 60_000) == (1, True)
    client.tgroup_setid("orders", "g", client.tinfo("orders").last)
    position = str(client.tinfo("orders").last)
    assert json.loads(run("status", "--json", *away).output)["flows"][0]["groups"][0]["lag"] == 0
    preview = run("reset", "orders", "--to", "earliest", "--dry-run", *server).output
    assert preview.splitlines()[1].split() == ["in", "orders", "g", position, "0", "6", "0", "0"]
    assert "clock: not reset" in preview
    assert "Aborted!" in run("reset", "orders", "--to", "earliest", *server, ok=False).output
    assert client.tgroup_list("orders")[0].offset == client.tinfo("orders").last
    assert "orders: 1 group reset" in run("reset", "orders", "--to", "earliest", "--yes", *server).output
    assert client.tgroup_list("orders")[0].offset == StreamId(0, 0)
    assert " 0 " in run("reset", "orders", "--to", "latest", "--yes", *server).output
    assert client.tgroup_list("orders")[0].offset == client.tinfo("orders").last
    assert "paused after the next start" in run("pause", "orders", *away).output
    run_steps(client, deadletters.ready("flow.orders.dead"))
    client.tappend("flow.orders.dead:0", {"n": "1"})
    output = run("status", "orders", *away).output
    assert "in/s          -\nout/s         -\ndead letters  1 in flow.orders.dead; see: tidelog dlq list\n" in output
    assert "desired       paused" in run("status", "orders", *away).output
    assert "there is no flow 'nope'" in run("reset", "nope", "--to", "latest", "--yes", *server, ok=False).output
    assert "'--to': must be earliest, latest, an ID" in run("reset", "orders", "--to", "x", *server, ok=False).output


def test_help_teaches(run: Run) -> None:
    text = run("--help").output
    for name in flow_commands.commands:
        assert f"tidelog flow {name} " in text, name
    assert "flow" in CliRunner().invoke(main, ["--help"]).output
