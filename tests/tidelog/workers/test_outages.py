"""A server that refuses requests for a while is waited for; one that denies them ends the program, whichever it is."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.refusing import CODES, FULL, Refusing
from tests.tidelog.workers.workerkit import PATIENCE, Order, working
from tests.waiting import until
from tidelog.testing import Server, running_server
from tidelog.workers import App

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("text", [CODES[0], CODES[2], CODES[4], FULL])
def test_a_refusal_that_passes_is_waited_out(
    tidelog_server: Server, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    async def main(refusing: Refusing) -> None:
        app = App("shop", refusing.url, lease=2.0, grace=5.0)
        topic: Any = app.topic("orders", Order, partition_by="key", partitions=2)

        @app.each(topic)
        async def bill(order: Order) -> None:
            seen.append(order.id)

        direct: Any = App("other", tidelog_server.url).topic("orders", Order, partition_by="key", partitions=2)
        asyncio.get_running_loop().call_later(1.0, refusing.serve)
        async with working(app):  # it begins while it is refused
            await direct.send(Order(1))
            await until(lambda: seen == [1])
            before = refusing.refused
            refusing.refuse(text)
            await until(lambda: refusing.refused > before + 3)
            refusing.serve()
            await direct.send(Order(2))
            await until(lambda: 2 in seen)
        await direct.close()

    with Refusing(tidelog_server.port, text) as refusing:
        asyncio.run(main(refusing))
    logger = "tidelog.workers.coordination.connections"
    told = [record.getMessage() for record in caplog.records if record.name == logger]
    told = [each for each in told if "connected again" not in each]
    assert 1 <= sum(text in each for each in told) <= 2, told  # of two outages, which may be one
    assert len(told) <= 4, told  # the connection that was lost first may be one more of each


PROGRAM = """
import msgspec
from tidelog.workers import App

class Order(msgspec.Struct):
    id: int

app = App("shop", {url!r}, lease=1.0, grace=5.0)
orders = app.topic("orders", Order, partitions=1)

@app.each(orders)
async def bill(order: Order) -> None: ...
"""
CRONS = """
from tidelog.workers import App
app = App("shop", {url!r}, lease=1.0, grace=5.0)

@app.timer(interval=60, on_leader=True)
async def sweep() -> None: ...
"""
FLOW = """
flows:
  main:
    connectors:
      beat: {type: metronome, interval: 60s}
      nothing: {type: "null"}
    pipelines:
      same: []
    connect:
      - beat -> same -> nothing
"""


def ended(folder: Path, *command: str) -> tuple[int, str]:
    """A program's status, and the last line that it says."""
    done = subprocess.run(
        [sys.executable, "-m", "tidelog.cli", *command], cwd=folder, capture_output=True, text=True, timeout=PATIENCE,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize("program", ["worker", "crons", "engine", "flow", "topics"])
def test_a_wrong_password_ends_every_program_alike(tmp_path: Path, program: str) -> None:
    if program == "engine" and shutil.which("java") is None:
        pytest.skip("no Java")
    with running_server(requirepass="secret") as server:
        url = f"redis://:wrong@{server.host}:{server.port}"
        (tmp_path / "shopapp.py").write_text((CRONS if program == "crons" else PROGRAM).format(url=url))
        (tmp_path / "flow.yaml").write_text(FLOW)
        status, said = {
            "worker": lambda: ended(tmp_path, "worker", "shopapp:app"),
            "crons": lambda: ended(tmp_path, "worker", "shopapp:app"),
            "engine": lambda: ended(tmp_path, "jobs", "engine", "--url", url, "--state-dir", str(tmp_path / "state")),
            "flow": lambda: ended(tmp_path, "flow", "run", "flow.yaml", "--url", url, "--listen", "none"),
            "topics": lambda: ended(tmp_path, "topics", "list", "--url", url),
        }[program]()
    assert said == "Error: the server replied: WRONGPASS invalid username-password pair or user is disabled."
    assert status == 1


@pytest.mark.parametrize("left_out", ["~app:*", "~orders:*", "~topic:*"])
def test_a_missing_right_ends_a_worker(tmp_path: Path, left_out: str) -> None:
    rights = {"~app:*", "~orders:*", "~topic:*", "&*", "+@all"} - {left_out}
    with running_server() as server:
        with server.client() as client:
            client.redis.execute_command("ACL", "SETUSER", "w", "on", ">pw", *sorted(rights))
        url = f"redis://w:pw@{server.host}:{server.port}"
        (tmp_path / "shopapp.py").write_text(PROGRAM.format(url=url))
        status, said = ended(tmp_path, "worker", "shopapp:app")
    assert said.startswith("Error: the server replied: NOPERM ")
    assert status == 1


def test_a_password_that_changes_ends_a_worker(tmp_path: Path) -> None:
    """At the next connection, which is when the server says so."""
    with running_server() as server:
        with server.client() as client:
            client.redis.execute_command("ACL", "SETUSER", "w", "on", ">secret", "~*", "&*", "+@all")
        url = f"redis://w:secret@{server.host}:{server.port}"
        (tmp_path / "shopapp.py").write_text(PROGRAM.format(url=url))
        made = subprocess.Popen(
            [sys.executable, "-m", "tidelog.cli", "worker", "shopapp:app"], cwd=tmp_path, stderr=subprocess.PIPE,
            text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert made.stderr is not None
        try:
            assert any("leads" in line for line in made.stderr)
            with server.client() as client:
                client.redis.execute_command("ACL", "SETUSER", "w", "resetpass", ">other")
                client.redis.execute_command("CLIENT", "KILL", "USER", "w")
            *_, last = made.stderr.read().splitlines()
            assert made.wait(PATIENCE) == 1
        finally:
            made.kill()
            made.wait()
            made.stderr.close()
        assert "the server replied: WRONGPASS" in last
