"""docs/workers-schedule.md: its program runs; what it says of keys and times is so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec

from tidelog.testing import Server
from tidelog.workers.coordination import timers

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "workers-schedule.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_program(tidelog_server: Server, tmp_path: Path) -> None:
    (script,) = [code for language, code in BLOCKS if language == "python"]
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script.replace("6379", str(tidelog_server.port))], cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["tea", "milk"]


def test_the_last_run() -> None:
    (text,) = [code for language, code in BLOCKS if language == "json"]
    shown = msgspec.json.decode(text, type=timers.TimerRun)
    assert msgspec.json.decode(text) == msgspec.to_builtins(shown)


def test_the_times() -> None:
    assert (timers.LATE, timers.LEASES) == (60, 3)


def test_links_lead_somewhere() -> None:
    for path, _, anchor in (target.partition("#") for target in re.findall(r"\]\(([^)]+)\)", TEXT)):
        text = (ROOT / "docs" / path).read_text()
        headings = {title.lower().replace(" ", "-") for title in re.findall(r"^##+ (.*)$", text, re.MULTILINE)}
        assert not anchor or anchor in headings, anchor
