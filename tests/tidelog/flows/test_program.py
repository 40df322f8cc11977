"""tidelog flow run as a process: standard input and output, requests as curl sends them, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import eventually
from tidelog.testing import Server

ROOT = Path(__file__).parents[3]
LONG = 20.0  # s that anything may take
ECHO = """
flows:
  main:
    connectors: {console: {type: stdio}}
    pipelines: {echo: []}
    connect: [console -> echo -> console]
"""
HANGING = """
import asyncio, itertools
from tidelog.flows import Flow

async def numbers():
    for number in range(10):
        yield number
    await asyncio.Event().wait()

async def hang(value):
    await asyncio.Event().wait()

hanging = Flow("hanging", drain_timeout={drain})
hanging.connector("in", numbers)
hanging.connector("out", hang)
hanging.connect("in -> out")
"""


class Process:
    """A process that runs flows; what it says on standard output and error is collected."""

    def __init__(self, folder: Path, *args: str, env: dict[str, str] | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "TIDELOG_URL"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidelog.cli", "flow", "run", *args, "--listen", "127.0.0.1:0"],
            cwd=folder, env=environment | {"PYTHONPATH": str(ROOT)} | (env or {}),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
        self.out: list[str] = []
        self.err: list[str] = []
        self._threads = [
            threading.Thread(target=self._follow, args=each, daemon=True)
            for each in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for each in self._threads:
            each.start()
        self.port = 0

    def ready(self) -> None:
        self.port = int(self.said(r"listening on http://127\.0\.0\.1:(\d+)")[1])

    def _follow(self, file: Any, lines: list[str]) -> None:
        with file:
            lines.extend(line.decode().rstrip("\n") for line in file)

    def type(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())

    def said(self, pattern: str) -> re.Match[str]:
        """Wait for a line on standard error."""
        found: re.Match[str] | None = None

        def look() -> bool:
            nonlocal found
            found = next((match for line in list(self.err) if (match := re.search(pattern, line))), None)
            return found is not None or self.process.poll() is not None

        eventually(look)
        assert found is not None, self.err
        return found

    def curl(self, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
        """As ``curl -s -X METHOD -H'application/json' localhost:PORT/path -d BODY`` does.

        A header without a name is not sent, and a body without a type is a form's.
        """
        lines = [f"{method} {path} HTTP/1.1", f"Host: localhost:{self.port}", "User-Agent: curl/8.5.0", "Accept: */*"]
        if body is not None:
            lines += [f"Content-Length: {len(body)}", "Content-Type: application/x-www-form-urlencoded"]
        with socket.create_connection(("127.0.0.1", self.port), LONG) as connection:
            connection.sendall(("\r\n".join([*lines, "Connection: close", "", ""]) + (body or "")).encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, content = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(content)

    def end(self) -> int:
        code = self.process.wait(LONG)
        for each in self._threads:
            each.join(LONG)
        return code


@contextmanager
def started(folder: Path, text: str, *args: str, env: dict[str, str] | None = None) -> Iterator[Process]:
    """A process with the flows of a text; killed at the end if it still runs."""
    (folder / "flows.yaml").write_text(text)
    process = Process(folder, "flows.yaml", *args, env=env)
    try:
        process.ready()
        yield process
    finally:
        process.process.kill()
        process.end()
        assert process.process.stdin is not None
        process.process.stdin.close()


def running(process: Process, flow: str = "main") -> bool:
    return bool(process.curl("GET", f"/v1/flows/{flow}")[1]["status"] == "running")


# -- standard input and output -------------------------------------------------------------------------------
def test_lines_that_are_typed_while_the_flow_is_paused_come_out_when_it_is_resumed(tmp_path: Path) -> None:
    with started(tmp_path, ECHO) as process:
        eventually(lambda: running(process))
        process.type("one", "two")
        eventually(lambda: process.out == ["one", "two"])
        status, body = process.curl("GET", "/v1/flows/main")
        assert (status, body["alias"], body["status"], body["connectors"]) == (200, "main", "running", ["console"])
        status, body = process.curl("PATCH", "/v1/flows/main", '{"status": "paused"}')
        assert (status, body["alias"], body["status"], body["connectors"]) == (200, "main", "paused", ["console"])
        process.type("three", "four")
        reasons = process.curl("GET", "/v1/flows/main/breaker")[1]["instances"][0]["sources"][0]["reasons"]
        assert [each["reason"] for each in reasons] == ["paused:api"]
        for _ in range(20):  # whatever was read meanwhile is not sent
            assert process.curl("GET", "/v1/flows/main/unsettled")[1]["count"] == 0
        assert process.out == ["one", "two"]
        status, body = process.curl("PATCH", "/v1/flows/main", '{"status": "running"}')
        assert (status, body["status"]) == (200, "running")
        eventually(lambda: process.out == ["one", "two", "three", "four"])


def test_it_ends_at_the_end_of_its_input(tmp_path: Path) -> None:
    with started(tmp_path, ECHO) as process:
        process.type(*(f"line {number}" for number in range(3000)))
        assert process.process.stdin is not None
        process.process.stdin.close()
        assert process.end() == 0
        assert process.out == [f"line {number}" for number in range(3000)]


def test_it_ends_when_nobody_reads_its_output_any_more(tmp_path: Path) -> None:
    """As with ``| head -1``."""
    (tmp_path / "flows.yaml").write_text(ECHO)
    command = [sys.executable, "-m", "tidelog.cli", "flow", "run", "flows.yaml", "--listen", "none"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, bufsize=0,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n")
        assert process.stdout.readline() == b"one\n"
        process.stdout.close()
        process.stdin.write(b"two\n")
        assert process.wait(20) == 1
        assert b"the reader of the output has closed it" in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        for each in (process.stdin, process.stdout, process.stderr):
            if each is not None:
                each.close()


# -- signals -------------------------------------------------------------------------------------------------
def test_a_signal_drains_if_nobody_reads_the_messages(tmp_path: Path) -> None:
    (tmp_path / "flows.yaml").write_text(ECHO)
    command = [sys.executable, "-m", "tidelog.cli", "flow", "run", "flows.yaml", "--listen", "none"]
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, bufsize=0, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=writing,
    )  # fmt: skip
    os.close(writing)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\n")
        assert process.stdout.readline() == b"one\n"
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        for each in (process.stdin, process.stdout):
            if each is not None:
                each.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(tmp_path: Path, number: int) -> None:
    with started(tmp_path, ECHO) as process:
        process.type("one")
        eventually(lambda: process.out == ["one"])
        process.process.send_signal(number)
        assert process.end() == 0
        assert process.err[1:] == [
            "draining; a second signal stops immediately", process.err[-1],
        ]  # fmt: skip
        assert re.fullmatch(r"main: \d+ events settled while draining, \d+\.\d s; nothing is left", process.err[-1])


def test_what_is_not_settled_in_time_is_abandoned_and_said(tmp_path: Path) -> None:
    (tmp_path / "hangflows.py").write_text(HANGING.replace("{drain}", '"300ms"'))
    with started(tmp_path, ECHO, "hangflows:hanging") as process:
        eventually(lambda: process.curl("GET", "/v1/flows/hanging/unsettled")[1]["count"] == 10)
        process.process.terminate()
        assert process.end() == 1
        assert any(re.match(r"hanging: 0 events settled .*; abandoned: 10 of in$", line) for line in process.err)
        assert any(line.endswith("nothing is left") for line in process.err)


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    (tmp_path / "hangflows.py").write_text(HANGING.replace("{drain}", "3600"))
    with started(tmp_path, ECHO, "hangflows:hanging") as process:
        eventually(lambda: process.curl("GET", "/v1/flows/hanging/unsettled")[1]["count"] == 10)
        process.process.terminate()
        process.said("draining")
        eventually(lambda: process.curl("GET", "/v1/flows/hanging")[1]["status"] == "draining")
        assert process.curl("PATCH", "/v1/flows/hanging", '{"status": "paused"}')[0] == 409
        process.process.terminate()
        assert process.end() == 1
        assert process.err[-1] == "stopped immediately: events in flight are not settled"


def test_a_signal_while_nothing_is_started_yet(tmp_path: Path) -> None:
    text = ECHO.replace("flows:", "server: redis://127.0.0.1:1\nflows:", 1)
    with started(tmp_path, text) as process:
        eventually(lambda: process.curl("GET", "/v1/ready")[0] == 503)
        eventually(lambda: "no flow is started yet" in "".join(process.err))
        for path in ("/v1/flows/main", "/v1/flows"):
            assert "not started yet: the desired state can't be read" in str(process.curl("GET", path)[1])
        process.process.terminate()
        assert process.end() == 0


def test_a_flow_that_ends_the_process_says_its_status(tmp_path: Path) -> None:
    text = ECHO.replace("console: {type: stdio}", "console: {type: stdio}, end: {type: exit, code: 3}")
    with started(tmp_path, text.replace("console -> echo -> console", "console -> echo -> end")) as process:
        process.type("one")
        assert process.end() == 3


# -- over HTTP -----------------------------------------------------------------------------------------------
def test_a_process_that_stays_takes_flows_over_http(tmp_path: Path) -> None:
    with started(tmp_path, "flows: {}", "--stay") as process:
        assert process.curl("GET", "/v1/flows") == (200, [])
        flow = '{"connectors": {"in": {"type": "null", "count": 50}, "out": "null"}, "connect": ["in -> out"]}'
        assert process.curl("POST", "/v1/flows/new", flow)[0] == 415
        assert process.curl("PUT", "/v1/flows/new", flow)[0] == 415
        (tmp_path / "new.json").write_text(flow)
        process.process.terminate()
        assert process.end() == 0


# -- with a server -------------------------------------------------------------------------------------------
STREAM = """
flows:
  orders:
    instances: 3
    connectors:
      in: {type: stream, key: orders, group: shop, retry: 2s, start: "0"}
      out: {type: stream, key: done}
    pipelines: {p: []}
    connect: [in -> p -> out]
"""


def test_three_instances_share_a_group(tmp_path: Path, tidelog_server: Server) -> None:
    with tidelog_server.client() as client, started(tmp_path, STREAM, "--url", tidelog_server.url) as process:
        eventually(lambda: running(process, "orders"))
        for number in range(300):
            client.tappend("orders", {"number": str(number)})
        eventually(lambda: client.tlen("done") >= 300 if client.redis.exists("done") else False)
        eventually(lambda: client.tpending("orders", "shop").count == 0)
        found = [dict(entry.fields)[b"number"] for entry in client.trange("done")]
        assert sorted(map(int, found)) == list(range(300))
        body = process.curl("GET", "/v1/flows/orders")[1]
        assert [each["alias"] for each in body["instances"]] == ["orders.1", "orders.2", "orders.3"]


def test_paused_survives_sigkill_and_pending_entries_come_again(tmp_path: Path, tidelog_server: Server) -> None:
    with tidelog_server.client() as client:
        with started(tmp_path, STREAM, "--url", tidelog_server.url) as process:
            eventually(lambda: running(process, "orders"))
            assert process.curl("PATCH", "/v1/flows/orders", '{"status": "paused"}')[0] == 200
            client.tappend("orders", {"number": "1"})
        with started(tmp_path, STREAM, "--url", tidelog_server.url) as process:
            eventually(lambda: process.curl("GET", "/v1/flows/orders")[1]["status"] == "paused")
            assert not client.redis.exists("done")
            assert process.curl("PATCH", "/v1/flows/orders", '{"status": "running"}')[0] == 200
            eventually(lambda: client.redis.exists("done"))
            eventually(lambda: client.tpending("orders", "shop").count == 0)
