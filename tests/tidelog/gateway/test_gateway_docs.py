"""The commands of docs/gateway.md, as a reader runs them, on a server and a gateway."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_readme import PRINTED, SHOWN, assert_printed, blocks, run
from tests.tidelog.gateway.gatewaykit import started
from tidelog.testing import free_port, running_server

BLOCKS = [block for block in blocks("docs/gateway.md") if block.language == "sh"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The programs of the reader, on other ports."""
    for name, package in (("curl", "curl"), ("redis-cli", "redis-tools")):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed (Debian: apt-get install {package})")
    programs, port = tmp_path_factory.mktemp("programs"), free_port()
    with running_server() as server:
        shims = {
            "redis-cli": f'exec {shutil.which("redis-cli")} -p {server.port} "$@"',
            "curl": f'for word; do shift; set -- "$@" "$(echo "$word" | sed s/:9897/:{port}/)"; done\n'
                    f'exec {shutil.which("curl")} "$@"',
            "tidelog": f'exec {sys.executable} -m tidelog.cli "$@"',
        }  # fmt: skip
        for name, command in shims.items():
            (programs / name).write_text(f"#!/bin/sh\n{command}\n")
            (programs / name).chmod(0o755)
        found = {
            "PATH": f"{programs}:{os.environ['PATH']}", "TIDELOG_URL": server.url,
            "PYTHONPATH": os.getcwd(), "HOME": str(programs),
        }  # fmt: skip
        with started(server.url, port):
            yield found


def test_the_commands(environment: dict[str, str], tmp_path: Path) -> None:
    for block in BLOCKS:
        for line in block.text.splitlines():
            if line.startswith(("pip install ", "tidelog gateway ")):
                continue
            result = run(["sh", "-c", line], environment, tmp_path)
            if printed := PRINTED.findall(line):
                assert_printed(result.stdout, [each.strip() for each in printed])
            for text in SHOWN.findall(line):
                assert text in result.stdout, line
