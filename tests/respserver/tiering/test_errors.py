"""Errors of tiering in INFO."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from respserver.testing import start_in_thread
from respserver.tiering.helperprocess import HelperError, HelperProcess
from tests.respserver.tiering.test_tiering import add, await_copy, fields, tiered
from tests.waiting import eventually
from tests.wire.rawclient import Raw


def test_an_error_has_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(on_line: Callable[[dict[str, Any]], None]) -> HelperProcess:
        raise HelperError("<Error>\r\n  <Code>NoSuchBucket</Code>\n" + "x" * 5000)

    monkeypatch.setattr(HelperProcess, "start", start)
    with start_in_thread(tier_url=str(tmp_path)) as server, Raw(server.port) as client:
        eventually(lambda: b"tier_errors:0\r\n" not in client("INFO", "persistence"))
        lines = client("INFO", "persistence").decode().split("\r\n")
        (error,) = [line for line in lines if line.startswith("tier_last_error:")]
        assert error.startswith("tier_last_error:<Error> <Code>NoSuchBucket</Code> xxx")
        assert len(error) < 1100
        assert all(":" in line for line in lines if line and not line.startswith("#"))


def mount(*options: str) -> bool:
    """Run ``mount``; return whether it has succeeded."""
    program = shutil.which("mount")
    return program is not None and subprocess.run([program, *options], capture_output=True, check=False).returncode == 0


def test_a_directory_that_is_read_only(tmp_path: Path) -> None:
    """At the start, and later. Writes go on, and the copies continue when it can be written again."""
    target = tmp_path / "target"
    target.mkdir()
    if not mount("--bind", str(target), str(target)):
        pytest.skip("mounts are not permitted here")
    try:
        assert mount("-o", "remount,bind,ro", str(target))
        with tiered(target) as server, Raw(server.port) as client:
            for what in ("can't create check-", "can't write objects/"):
                entries = add(client, 50)
                eventually(lambda: fields(client)["tier_last_status"] == "err")
                error = fields(client)["tier_last_error"]
                assert error.startswith(what)
                assert f"Read-only file system: '{target}/" in error
                assert not isinstance(client("XADD", "a", "*", "f", "v"), str)
                assert mount("-o", "remount,bind,rw", str(target))
                await_copy(target, entries)
                eventually(lambda: fields(client)["tier_last_status"] == "ok")
                assert mount("-o", "remount,bind,ro", str(target))
    finally:
        subprocess.run(["umount", str(target)], check=True)
