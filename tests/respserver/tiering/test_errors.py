"""Errors of tiering in INFO."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from respserver.testing import start_in_thread
from respserver.tiering.helperprocess import HelperError, HelperProcess
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
