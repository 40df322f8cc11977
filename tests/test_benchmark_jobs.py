"""Benchmarks of jobs: what they leave behind, and when they say what they have measured."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")
pytest.importorskip("pandas", reason="no pandas here")

from click.testing import CliRunner

from benchmarks.jobs import scaling
from benchmarks.jobs.__main__ import main
from benchmarks.jobs.late import following

PEER = """
import subprocess, sys, tempfile, time
folder = tempfile.mkdtemp(prefix="tidelog-bench-")
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
open(f"{sys.argv[1]}", "w").write(f"{folder} {below.pid}")
print("READY", flush=True)
time.sleep(100)
"""


def test_a_peer_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither files nor processes, though SIGTERM lets it clean up nothing."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    said = tmp_path / "said"
    with following([sys.executable, "-c", PEER, str(said)]):
        folder, below = said.read_text().split()
        assert Path(folder).is_dir()
    assert os.listdir(tmp_path / "tmp") == []
    deadline = time.monotonic() + 10
    while Path(f"/proc/{below}").exists() and "Z" not in Path(f"/proc/{below}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_scaling_says_each_figure_when_it_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes late, or fails, does not take with it what was measured."""

    def figures(*_: object) -> Iterator[tuple[str, int, float]]:
        yield "tidelog", 1000, 5.0
        raise subprocess.CalledProcessError(1, "peer")

    monkeypatch.setattr(scaling, "by_state", figures)
    result = CliRunner().invoke(main, ["scaling", "--tiny"])
    assert isinstance(result.exception, subprocess.CalledProcessError)
    assert "| 1,000 keys in the state: tidelog | 5 rows/s |" in result.output
