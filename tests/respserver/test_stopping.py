"""A shutdown that takes long says what it waits for, and one that hangs ends the process."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from respserver.observe.logs import Logger
from respserver.runtime import stopping
from respserver.runtime.stopping import StopWatch
from respserver.testing import start_in_thread
from tests.waiting import eventually
from tidelog.client.client import Client
from tidelog.testing import Server

ROOT = Path(__file__).parents[2]
# A server with a short limit, whose shutdown hangs.
HANGS = """
import asyncio, sys, threading, time
from respserver.runtime import stopping
stopping.LONGEST = 0.5
from respserver.roles.roles import Roles
async def waits(self): await asyncio.Event().wait()
async def blocks(self): time.sleep(1000)
if {how!r} == "a thread":
    threading.Thread(target=time.sleep, args=(1000,)).start()
else:
    Roles.finish = waits if {how!r} == "a task" else blocks
from _tidelog_server import main
sys.exit(main())
"""


# A process that gets SIGTERM before it has read its configuration.
EARLY = """
import os, signal, sys
import _tidelog_server
sys.path.insert(0, str(_tidelog_server.parts()))
from respserver.config.config import Config
def load(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(3)
Config.load = load
sys.exit(_tidelog_server.main())
"""


@pytest.mark.parametrize(("action", "status"), [((), 0), (("--verify",), -signal.SIGTERM)])
def test_sigterm_before_the_configuration_is_read(action: tuple[str, ...], status: int) -> None:
    """A server ends as during its recovery. An action has not succeeded."""
    assert subprocess.run([sys.executable, "-c", EARLY, *action], cwd=ROOT).returncode == status


class Lines(Logger):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def warning(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "LONGEST", 0.2)
    monkeypatch.setattr(stopping, "REPORT", 0.1)
    monkeypatch.setattr(stopping, "CHECK", 0.01)


@pytest.mark.parametrize(
    ("how", "what", "shown"),
    [
        ("a task", "its connections to other servers", "< _serve (program.py:"),
        ("the event loop", "its connections to other servers", "Thread MainThread: blocks ("),
        ("a thread", "the end of its threads", "Thread Thread-"),
    ],
)
def test_a_shutdown_that_hangs_ends_the_process(tmp_path: Path, how: str, what: str, shown: str) -> None:
    server = Server(tmp_path, {"appendfsync": "no"}, [sys.executable, "-c", HANGS.format(how=how)])
    server.start()
    with server.client() as client:
        client.tappend("s", {"n": 1})
    pid = server.pid
    server._process.terminate()  # type: ignore[union-attr]
    assert server.wait(20) == 1
    said = "\n".join(server.output)
    assert f"The server ends here: the shutdown has waited for {what}" in said
    assert shown in said
    assert str(pid) in said
    plain = Server(tmp_path, {})
    plain.start()
    with plain.client() as client:
        assert client.tlen("s") == 1
    plain.stop()


@pytest.mark.usefixtures("hurried")
def test_a_stage_without_a_limit_is_reported_and_does_not_end() -> None:
    async def story() -> None:
        done: list[str] = []
        logger = Lines()
        watch = StopWatch(logger, lambda: done.append("sync"), done.append)
        watch.stage("a checkpoint", None)
        await asyncio.to_thread(eventually, lambda: any("story (" in line for line in logger.lines))
        assert logger.lines[0].startswith("The shutdown has waited for a checkpoint for")
        assert any(line.startswith("Thread MainThread: ") for line in logger.lines)
        assert not done
        watch.stage("the scrub", 0.05)
        await asyncio.to_thread(eventually, lambda: len(done) == 2)
        assert done[0] == "sync"  # before the end
        assert done[1].startswith("the shutdown has waited for the scrub for")

    asyncio.run(story())


def test_no_periodic_work_begins_while_the_parts_are_closed(tmp_path: Path) -> None:
    """A step of the scrub, or a checkpoint, would use files that are being closed."""
    with start_in_thread(tmp_path) as running:
        server, begun = running.server, list[str]()
        server.on_stage = lambda what, _: server._guarded(lambda: begun.append(what))
        running.stop()
    assert begun
    assert "the scrub" not in begun
    assert "its log and its files" not in begun


def test_a_bug_while_leaving_does_not_keep_the_log_open(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with start_in_thread(tmp_path, appendfsync="no") as running:
        server = running.server
        with Client(f"redis://127.0.0.1:{running.port}") as client:
            client.tappend("s", {"n": 1})

        async def fails() -> None:
            raise KeyError("bug")

        server.roles.let_catch_up = fails  # type: ignore[method-assign]
        disk = server.data.disk
    assert disk._closed
    assert "Bug while leaving the other servers" in capfd.readouterr().out


@pytest.mark.parametrize("copying", [False, True])
def test_a_copy_that_is_opened_may_take_long(tmp_path: Path, copying: bool) -> None:
    """Its size has no limit, and nothing can interrupt the thread."""
    stages: dict[str, float | None] = {}
    with start_in_thread(tmp_path) as running:
        server = running.server
        server.on_stage = stages.__setitem__
        running.call(lambda: server.gates.load(copying))
    assert stages["its connections to other servers"] == (stopping.COPY_SECONDS if copying else 0)
    assert stages["the scrub"] == 0
