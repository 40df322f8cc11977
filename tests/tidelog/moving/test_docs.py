"""docs/moving.md: its commands run in their order and print what it says; its options are those of the program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidelog.moving.movekit import Peer
from tidelog.cli.moving import export_command, import_command
from tidelog.testing import Server

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "moving.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_tutorial_runs(source: Peer, tidelog_server: Server, tmp_path: Path) -> None:
    if shutil.which("redis-cli") is None:
        pytest.skip("no redis-cli here (Debian: apt-get install redis-tools)")
    program = tmp_path / "tidelog"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tidelog.cli "$@"\n')
    program.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    variables = os.environ | {"REDIS": source.url, "TIDELOG_URL": tidelog_server.url, "PATH": path}
    printed: list[str] = []
    for kind, block in BLOCKS:
        if kind == "sh":
            done = subprocess.run(
                ["sh", "-e", "-c", block], env=variables, cwd=ROOT, capture_output=True, text=True, timeout=60
            )  # fmt: skip
            assert done.returncode == 0, (block, done.stdout, done.stderr)
            assert "ERR" not in done.stdout, (block, done.stdout)
            printed.append(done.stdout)
        else:
            assert kind == "output"
            assert printed[-1].startswith(block)
    verdicts = [line for text in printed for line in text.splitlines() if "->" in line]
    assert len(verdicts) == 3
    assert all(line.endswith("the same at both ends") for line in verdicts)
    words = printed[3].split()
    assert words[words.index("milk") - 2] == "1700000000002-0"  # ann's
    assert [word for word in words if word in ("bread", "salt")] == ["bread", "salt"]
    assert words[-1] == "4"
    assert printed[4].split()[-1] == "5"


def test_every_option_that_is_named_is_there() -> None:
    """Those for files are in queries.md."""
    text = TEXT + (ROOT / "docs" / "queries.md").read_text().partition("## Files for")[2]
    options = {name for command in (import_command, export_command) for each in command.params for name in each.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert named <= options
    assert options - named <= {"redis_url", "what"}


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
