"""docs/topics.md: its blocks run, one after another, and print what they say; its vectors are those of the hash."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from tidelog.testing import Server
from tidelog.topics import partition_of
from tidelog.topics.partition import canonical

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "topics.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_blocks(tidelog_server: Server, tmp_path: Path) -> None:
    script = "\n".join(code for language, code in BLOCKS if language == "python")
    script = script.replace("6379", str(tidelog_server.port))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TIDELOG_URL": tidelog_server.url}
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == re.findall(r"# prints (.*)$", script, re.MULTILINE)
    for line in [line for language, code in BLOCKS if language == "sh" for line in code.splitlines()]:
        program, *words = line.split()
        command = [sys.executable, "-m", "tidelog.cli", *words]
        if program == "redis-cli":
            if not shutil.which("redis-cli"):
                continue
            command = ["redis-cli", "-e", "-p", str(tidelog_server.port), *words]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.strip(), line


@pytest.mark.parametrize("row", re.findall(r"^\| (.*) \| ([0-9a-f]{8}) \| (\d+) \| (\d+) \|$", TEXT, re.MULTILINE))
def test_the_vectors(row: tuple[str, str, str, str]) -> None:
    names, crc, of_16, of_100 = row
    for name in re.findall(r"`([^`]+)`", names):
        key = eval(name, {"UUID": UUID})
        assert partition_of(key, 2**32) == int(crc, 16), canonical(key)
        assert (partition_of(key, 16), partition_of(key, 100)) == (int(of_16), int(of_100))
