"""``scripts/bench --long`` runs: every case with tiny sizes. No figure is judged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.long import SIZES, Size
from benchmarks.scale import CASES, Report

ROOT = Path(__file__).resolve().parent.parent
TINY = {"entries": "3k", "streams": "200", "groups": "100", "pending": "2k", "connections": "50"}


def run(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "benchmarks", "--long", *map(str, arguments)]
    env = os.environ | {"TIDELOG_BENCH_ROOT": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_case(case: str, tmp_path: Path) -> None:
    """``entries`` runs twice: what was filled is kept and used again."""
    if shutil.which("redis-benchmark") is None:
        pytest.skip("no redis-benchmark here to make the load (Debian: apt-get install redis-tools)")
    file, data = tmp_path / "found.json", tmp_path / "data"
    options = [f"--{case}", TINY[case], "--base", "1k", "--rounds", "1", "--requests", "200", "--json", str(file)]
    if case == "entries":
        options += ["--directory", str(data)]
        assert "fill to 3 k entries" in run(case, *options)
    out = run(case, *options)
    found = json.loads(file.read_text())
    assert found["machine"]
    assert found["servers"]["tidelog"]["from"] == f"the checkout {ROOT}"
    assert found["rows"]
    for row in found["rows"]:
        assert f"| {row['measure']} | " in out
    if case == "entries":
        assert "fill to" not in out
        assert sorted(path.name for path in data.iterdir()) == ["entries-1000", "entries-3000"]


def test_every_case_has_a_size_of_its_own() -> None:
    assert list(SIZES) == list(CASES) == list(TINY)
    assert [Size().convert(size, None, None) for size in TINY.values()] == [3000, 200, 100, 2000, 50]


@pytest.mark.parametrize(
    ("figure", "base", "asked", "said"),
    [
        (5.0, None, {"most": 5}, "at most 5: met"),
        (6.0, None, {"most": 5}, "at most 5: MISSED"),
        (3.0, 2.0, {"ratio": 1.5}, "ratio at most 1.5: met"),
        (4.0, 2.0, {"ratio": 1.5}, "ratio at most 1.5: MISSED"),
        (1.7, 2.0, {"least_ratio": 0.9}, "ratio at least 0.9: MISSED"),
        (1.7, 2.0, {}, ""),
    ],
)
def test_targets(figure: float, base: float | None, asked: dict[str, float], said: str) -> None:
    report = Report()
    report.row("something", figure, base, **asked)  # type: ignore[arg-type]
    assert report.rows[0]["asked"] == said
