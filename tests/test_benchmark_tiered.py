"""``benchmarks.tieredreads``, ``tieredspace`` and ``tieredstart`` run; the delay of the object store has an effect."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def run(name: str, *options: str) -> str:
    """Return the output of a benchmark."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=230, check=True, env=env).stdout


def test_reads() -> None:
    pytest.importorskip("s3fs", reason="no s3fs here (pip install -e '.[test]')")
    pytest.importorskip("moto.server", reason="no moto here (pip install -e '.[test]')")
    out = run("tieredreads", "--rows", "20000", "--reads", "100", "--rounds", "1", "--delay", "40")
    times = dict(re.findall(r"^\| (.*?) \| \d+ \| (\d+\.\d\d) \| \S+ \| [\d,]+ \+ [\d,]+ \|", out, re.MULTILINE))
    assert set(times) == {"cached", "not cached", "100 clients"}
    assert float(times["not cached"]) >= 40
    assert float(times["100 clients"]) >= 40
    assert re.search(r"^[\d,]+ nodes were read with [\d,]+ calls to the object store, 0 errors$", out, re.MULTILINE)
    for phase in ("idle", "cached", "not cached", "100 clients"):
        assert re.search(rf"^\| {phase} \| \d[\d,]*( \| \d+\.\d\d){{3}} \|", out, re.MULTILINE)


def test_starts_and_copies() -> None:
    out = run("tieredstart", "--rows", "20000", "--local", "10000", "--rounds", "2")
    assert "entries are in 0.1 MB of objects" in out
    for what in ("start", "full copy to a new replica"):
        row = rf"^\| {what}, s of CPU time( \| \d+\.\d\d\d \([\d.]+-[\d.]+\)){{2}} \| \d+\.\d\d \("
        assert re.search(row, out, re.MULTILINE)


def test_space() -> None:
    out = run("tieredspace", "--entries", "5000")
    ratios = dict(re.findall(r"^\| (sensor|json) \| [\d.]+ \| [\d.]+ \| ([\d.]+) \|", out, re.MULTILINE))
    assert 0.5 < float(ratios["json"]) < float(ratios["sensor"]) < 2
