"""The helper process: it is killed if it hangs, and ends with its server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from respserver.tiering import helperprocess
from respserver.tiering.helperprocess import HelperError, HelperProcess
from tests.waiting import eventually

SERVER = "5e" * 20


def first(target: Path) -> dict[str, Any]:
    return {"url": str(target), "server": SERVER, "seconds": 30, "follows": False, "self": ""}


def test_a_helper_serves_and_ends_when_it_is_killed_or_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = []

    async def run(signal_number: int, pattern: str) -> None:
        helper = await HelperProcess.start(lines.append)
        found = await helper.request(first(tmp_path), 30)
        assert (found["done"], found["failed"]) == (True, 0)
        assert lines[-1] == found
        os.kill(helper.pid, signal_number)
        monkeypatch.setattr(helperprocess, "GRACE", 0.2)
        try:
            with pytest.raises(HelperError, match=pattern):
                await helper.request({"directory": str(tmp_path)}, 0.1)
        finally:
            await helper.ended()  # it is killed, also if it is stopped
        with pytest.raises(ProcessLookupError):
            os.kill(helper.pid, 0)
        monkeypatch.undo()

    asyncio.run(run(signal.SIGSTOP, "the helper process hangs: it was silent for 0.3 s"))
    monkeypatch.setattr(helperprocess, "GRACE", 30)
    asyncio.run(run(signal.SIGKILL, "hangs|ended unexpectedly"))


def test_an_error_ends_the_helper(tmp_path: Path) -> None:
    async def run() -> None:
        helper = await HelperProcess.start(lambda _line: None)
        with pytest.raises(HelperError, match=r"can't create check-.* is no directory: mount it, or create it"):
            await helper.request(first(tmp_path / "none"), 30)
        with pytest.raises(HelperError, match="ended unexpectedly"):
            await helper.request({}, 30)
        await helper.ended()

    asyncio.run(run())


def test_a_system_that_refuses_another_priority(tmp_path: Path) -> None:
    code = """
import os
def refuse(_): raise PermissionError
os.nice = refuse
from persistence.tiering.helper import main
main()
"""
    helper = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with helper:
        assert helper.stdin is not None
        assert helper.stdout is not None
        helper.stdin.write(json.dumps(first(tmp_path)) + "\n")
        helper.stdin.flush()
        assert any("done" in json.loads(line) for line in iter(helper.stdout.readline, ""))


def test_a_helper_ends_with_its_server() -> None:
    code = "from persistence.tiering.helper import main; main()"
    helper = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert helper.stdin is not None
    helper.stdin.close()
    assert eventually(lambda: helper.poll() is not None)
    assert helper.returncode == 0
