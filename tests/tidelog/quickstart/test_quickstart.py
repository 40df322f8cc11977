"""``tidelog quickstart`` as a process: its data, its page, and its end."""

from __future__ import annotations

import asyncio
import html
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from tests.tidelog.console.consolekit import Visitor
from tests.tidelog.quickstart.quickstartkit import RunningQuickstart, quickstarted
from tests.waiting import eventually
from tidelog import Client
from tidelog.cli.program import main
from tidelog.quickstart import folder, history, ports, shop
from tidelog.quickstart.errors import QuickstartError
from tidelog.quickstart.process import Quickstart, QuickstartOptions
from tidelog.testing import free_port

pytestmark = pytest.mark.slow  # each test starts programs
ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quickstart")


@pytest.fixture(scope="module")
def running(home: Path) -> Iterator[RunningQuickstart]:
    with quickstarted(home) as running:
        yield running


def dead_letters(client: Client) -> list[dict[str, str]]:
    return [entry.text() for entry in client.trange("orders.dead:0")]


def test_the_sample_data(running: RunningQuickstart) -> None:
    with Client(running.url) as client:
        (group,) = client.tgroup_list(history.VIEWS)
        assert (group.name, group.pending) == (history.GROUP.encode(), history.PENDING)
        unread = client.tcount(history.VIEWS, f"({group.offset}", "+")
        assert unread >= history.UNREAD
        first = client.tinfo(history.VIEWS).first
        assert first is not None
        assert client.tinfo(history.VIEWS).last.ms - first.ms > history.DAY * 0.9
        bounded: Any = client.redis.execute_command("TCFG", history.TEMPERATURES)
        assert str(history.RETAINED) in str(bounded)
        eventually(lambda: len(dead_letters(client)) >= 8, "the worker has no dead letters")
        found = dead_letters(client)
        assert {each["dlq:error"].rpartition(".")[2] for each in found} == {"BankError", "ZeroDivisionError"}
        assert all('shop.py", line ' in each["dlq:traceback"] for each in found)
        keys = (history.VIEWS, history.TEMPERATURES, "orders:0", "orders:1", "orders:2", "orders:3")
        before = {key: client.tlen(key) for key in keys}
        assert min(before.values()) > 10
        growing = dict.fromkeys(before, 0)

        def grow() -> bool:
            growing.update({key: client.tlen(key) - count for key, count in before.items()})
            return bool(growing[history.VIEWS] and growing[history.TEMPERATURES] and sum(growing.values()) > 5)

        eventually(grow, "nothing is appended")


def page_of(running: RunningQuickstart) -> str:
    """Return the page that a user sees after the login."""

    async def visit() -> str:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            visitor = Visitor(session, running.console)
            assert "choose “Log in”" in (await visitor.get("/login"))[1]
            status, _, headers = await visitor.log_in("default", "")
            assert (status, headers["Location"]) == (303, "/next-steps")
            _, text, _ = await visitor.get(headers["Location"])
            for link in re.findall(r'<a href="([^"#]+)"', text.partition("<main")[2]):
                status, linked, _ = await visitor.get(html.unescape(link))
                assert (status, 'class="problem"' in linked) == (200, False), link
            return text

    return asyncio.run(visit())


def test_the_commands_of_the_page(running: RunningQuickstart, home: Path, tmp_path: Path) -> None:
    """Each command that users copy works, except those that start programs, which other tests do."""
    if shutil.which("redis-cli") is None:
        pytest.skip("redis-cli is not installed (Debian: apt-get install redis-tools)")
    text = page_of(running)
    found = re.findall(r'<pre [^>]*id="step-(\w+)">(.*?)</pre>', text, re.DOTALL)
    steps = {name: html.unescape(code) for name, code in found}
    assert list(steps) == ["tail", "reset", "replay", "python", "redis", "worker", "server", "delete"]
    shim = tmp_path / "tidelog"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m tidelog.cli "$@"\n')
    shim.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment["TIDELOG_URL"] = "redis://127.0.0.1:1"  # of another server, which the commands must not use

    def shell(code: str, *command: str) -> str:
        done = subprocess.run(
            [*(command or ("sh", "-ec")), code], env=environment, cwd=home, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with Client(running.url) as client:

        def failed(error: str) -> bool:
            return any(error in each["dlq:error"] for each in dead_letters(client))

        eventually(lambda: len(dead_letters(client)) >= 8, "the worker has no dead letters")
        tail = steps["tail"].replace("-n 3", "-n 3 --limit 3")
        assert shell(tail).count("page=") == 3
        shell(steps["reset"])
        (group,) = client.tgroup_list(history.VIEWS)
        assert client.tcount(history.VIEWS, f"({group.offset}", "+") < 50
        assert "BankError" in shell(steps["replay"])
        # A bank that answers again accepts the payment. The order with the bug returns.
        eventually(lambda: failed("ZeroDivisionError") and (not failed("BankError") or not shell(steps["replay"])))
        assert "my program" in shell(steps["python"], sys.executable, "-c")
        assert "from redis-cli" in shell(steps["redis"]).replace("\n", " ")
        status, start = steps["worker"].rsplit("\n", 1)
        assert "bill" in shell(status)
        assert start == "tidelog worker tidelog.quickstart.shop:app"
        command, option, directory = steps["delete"].split()
        assert (command, option) == ("rm", "-r")
        assert (Path(directory) / folder.MARKER).samefile(home / "tidelog-quickstart" / folder.MARKER)


def test_ctrl_c_ends_all_programs_and_a_second_start_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with quickstarted(tmp_path, "--dir", "mine") as first:
        assert len(first.children) == 2
        with Client(first.url) as client:
            client.tappend("greetings", {"text": "hello"})
            created = client.redis.get(history.MARK)
            views = client.tinfo(history.VIEWS).entries_added
        assert first.stop(signal.SIGINT) == 0
        assert first.output.endswith("The data remains in mine. To delete it: rm -r mine\n")
    with quickstarted(tmp_path, "--dir", "mine") as second:
        with Client(second.url) as client:
            assert client.tlen("greetings") == 1
            assert client.redis.get(history.MARK) == created
            assert client.tinfo(history.VIEWS).entries_added < views + 1000
            monkeypatch.chdir(tmp_path)
            refused = CliRunner().invoke(main, ["quickstart", "--dir", "mine"])
            assert (refused.exit_code, refused.output) == (
                1, "Error: another quickstart uses mine: stop it, or use another --dir\n",
            )  # fmt: skip
        second.process.kill()  # SIGKILL: the programs notice it
        second.process.wait()
        eventually(second.is_gone, "programs outlive quickstart")


def test_a_temporary_directory_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >{tmp_path}/opened\n')
    browser.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("BROWSER", str(browser))
    with quickstarted(tmp_path, "--temporary", "--open") as running:
        assert list(tmp_path.glob("tidelog-quickstart-*/data"))
        eventually(lambda: (tmp_path / "opened").exists() and (tmp_path / "opened").read_text())
        assert (tmp_path / "opened").read_text() == f"{running.console}\n"
        page_of(running)
        assert running.stop(signal.SIGTERM) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["browser", "opened", "output"]


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/data").write_text("not of quickstart")
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for options, text in (
            (["--dir", "full"], "full has files that quickstart did not create: use --dir with a new directory"),
            (["--dir", "file"], "file can't be used: File exists; use another --dir"),
            (["--port", str(port)], f"port {port} is in use: choose another --port"),
            (["--console-port", str(port)], f"port {port} is in use: choose another --console-port"),
            (["--temporary", "--dir", "x"], "exclude each other"),
        ):
            done = CliRunner().invoke(main, ["quickstart", *options])
            assert done.exit_code in (1, 2)
            assert text in done.output
    assert sorted(os.listdir(tmp_path / "full")) == ["data"]


def test_the_missing_extra() -> None:
    blocked = "import sys; sys.modules['aiohttp'] = None; from tidelog.cli.program import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", blocked, "quickstart"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: tidelog quickstart needs 'aiohttp': pip install 'tidelog[console]'\n"


def test_a_port_that_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        assert not ports.is_free(port)
        assert port < ports.choose(None, port, "--port") < port + ports.TRIED
        with pytest.raises(QuickstartError, match="--port"):
            ports.choose(port, 1, "--port")
    if socket.has_dualstack_ipv6():
        with socket.create_server(("::1", free_port()), family=socket.AF_INET6) as taken:
            assert not ports.is_free(taken.getsockname()[1])


def test_another_program_takes_the_port_while_the_server_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        offered = [taken.getsockname()[1], free_port()]
        remaining = iter(offered)
        monkeypatch.setattr(ports, "choose", lambda *_: next(remaining))

        async def started(directory: Path, lock: int) -> str:
            quickstart = Quickstart(QuickstartOptions(directory), directory, lock, lambda _: None)
            async with AsyncExitStack() as stack:
                return (await quickstart._start_server(stack))[1]

        with folder.opened(tmp_path) as (directory, lock):
            assert asyncio.run(started(directory, lock)) == f"redis://127.0.0.1:{offered[1]}"


def test_the_values_are_the_same_each_time() -> None:
    now = 1_800_000_000_000
    assert list(history.views_of_a_day(now)) == list(history.views_of_a_day(now))
    days = [ms for ms, _ in history.views_of_a_day(now)]
    assert days == sorted(days)
    assert now - history.DAY <= days[0] < days[-1] < now
    assert shop.OUTAGE < shop.OUTAGE_EVERY


def test_it_ends_if_the_server_does(running: RunningQuickstart) -> None:
    with Client(running.url) as client:
        server = client.redis.info("server")["process_id"]
    assert server in running.children
    os.kill(server, signal.SIGKILL)
    assert running.process.wait(60) == 1
    assert "Error: the server has ended with status -9. tidelog-quickstart/server.log ends with" in running.output
