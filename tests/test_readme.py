"""Every command block of the README is run, in order, against a started server, as a reader would.

A comment ``# -> text`` says what is printed, ``*`` in it stands for anything; without one it must just not fail.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.replication.sentinels import sentinels
from tidelog.testing import Server, running_server

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXPECTED = re.compile(r"# -> (.*)$", re.MULTILINE)

# What sets up a machine or takes a terminal for itself: scripts/ must exist, the others are what other tests do.
NOT_HERE = ("scripts/", "python3.11 -m venv ", "pip install ", "tidelog-server ", "redis-sentinel ")


@dataclass
class Block:
    language: str
    text: str
    line: int


def blocks() -> list[Block]:
    text = (ROOT / "README.md").read_text()
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 1) for m in FENCE.finditer(text)]


BLOCKS = blocks()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as server:
        yield server


@pytest.fixture(scope="module")
def replica(server: Server) -> Iterator[Server]:
    """What the README starts on port 6380."""
    with running_server(replicaof=f"{server.host} {server.port}") as replica:
        yield replica


@pytest.fixture(scope="module")
def sentinel_port(server: Server, replica: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """What the README starts on port 26379."""
    with sentinels(tmp_path_factory.mktemp("sentinel"), server.port, 1) as watch:
        yield watch.ports[0]


@pytest.fixture(scope="module")
def environment(server: Server, replica: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The reader's programs, turned to these servers."""
    programs = tmp_path_factory.mktemp("programs")
    shims = {"tidelog": f'{sys.executable} -m tidelog.cli "$@"'}
    if redis_cli := shutil.which("redis-cli"):
        shims["redis-cli"] = (
            f'if [ "$1 $2" = "-p 6380" ]; then shift 2; port={replica.port}; else port={server.port}; fi\n'
            f'exec {redis_cli} -e -p "$port" "$@"'
        )
    for name, command in shims.items():
        shim = programs / name
        shim.write_text(f"#!/bin/sh\n{command}\n")
        shim.chmod(0o755)
    return os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TIDELOG_URL": server.url,
    }


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line-{block.line}")
def test_block(
    block: Block, server: Server, environment: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if block.language == "python":
        code = block.text
        if "26379" in code:
            code = code.replace("26379", str(request.getfixturevalue("sentinel_port")))
        code = code.replace("6379", str(server.port))
        result = run([sys.executable, "-W", "error", "-c", code], environment, tmp_path)
        assert_printed(result.stdout.splitlines(), EXPECTED.findall(code))
        return
    assert block.language == "sh"
    for line in block.text.splitlines():
        if line.startswith(NOT_HERE):
            continue
        if line.startswith("redis-cli") and not shutil.which("redis-cli"):
            pytest.skip("redis-cli is not installed (Debian: apt-get install redis-tools)")
        result = run(["sh", "-c", line], environment, tmp_path)
        if expected := EXPECTED.findall(line):
            assert_printed(result.stdout.splitlines(), expected)


def run(command: list[str], environment: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=30, check=False
    )
    assert result.returncode == 0, f"{command[-1]}\n{result.stdout}\n{result.stderr}"
    return result


def assert_printed(lines: list[str], expected: list[str]) -> None:
    assert len(lines) == len(expected), lines
    for line, pattern in zip(lines, expected, strict=True):
        literal = pattern.replace("[", "[[]")
        assert fnmatchcase(line, literal), f"printed {line!r}, the README says {pattern!r}"


def test_every_block_was_found_and_says_its_language() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count("```") == 2 * len(BLOCKS)
    assert {block.language for block in BLOCKS} == {"sh", "python"}


def test_the_scripts_it_names_are_there() -> None:
    named = {line.split()[0] for block in BLOCKS for line in block.text.splitlines() if line.startswith("scripts/")}
    assert {"scripts/demo", "scripts/test"} <= named
    assert all(os.access(ROOT / name, os.X_OK) for name in named)


def test_the_machine_that_builds_runs_its_test_command() -> None:
    assert "exec scripts/test\n" in (ROOT / ".ci/run").read_text()
