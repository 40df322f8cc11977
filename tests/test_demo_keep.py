"""What ``scripts/demo --keep`` leaves running, and the commands that it prints."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.tidelog.console.consolekit import Visitor
from tests.tidelog.quickstart.quickstartkit import is_running
from tests.waiting import eventually
from tidelog import Client
from tidelog.testing import free_port, running_server

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow  # it starts programs


async def log_in(address: str) -> int:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        return (await Visitor(session, address).log_in("default", ""))[0]


def test_the_console_and_the_end(tmp_path: Path) -> None:
    if shutil.which("redis-cli") is None:
        pytest.skip("redis-cli is not installed (Debian: apt-get install redis-tools)")
    directory, port = tmp_path / "data", free_port()
    with running_server(directory) as server, server.client() as client:
        client.tappend("machine", {"cpu": 1})
    code = f"from pathlib import Path; from scripts.demo_keep import keep; keep(Path({str(directory)!r}), {port})"
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT, timeout=100
    ).stdout
    done = re.search(r"kill (\d+); redis-cli .*", output)
    assert done is not None
    with Client(f"redis://127.0.0.1:{port}") as client:
        assert client.tlen("machine") == 1
        pid = client.redis.info("server")["process_id"]
    address = re.search(r"http://127\.0\.0\.1:\d+", output)
    assert address is not None
    assert asyncio.run(log_in(address[0])) == 303
    subprocess.run(["sh", "-ec", done[0]], check=True, timeout=60)
    eventually(lambda: not is_running(pid) and not is_running(int(done[1])), "programs are left")
    assert list(tmp_path.iterdir()) == []
