"""What redis-cli does with a whole server: --bigkeys and --memkeys work, --rdb is told why it can't."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw


def cli(server: RunningServer, *options: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("redis-cli")
    if program is None:
        pytest.skip("no redis-cli: its tools are not tested")
    command = [program, "-p", str(server.port), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("option", ["--bigkeys", "--memkeys"])
def test_the_biggest_keys(server: RunningServer, option: str) -> None:
    with Raw(server.port) as c:
        c("TMAPPEND", "long", "FIELDS", 1, "f", "VALUES", *range(50))
        c("TAPPEND", "short", "f", "v")
        c("MSET", "a", "v", "b", "a longer one")
    done = cli(server, option)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stdout + done.stderr
    assert 'Biggest string found \'"b"\'' in done.stdout
    assert 'Biggest stream found \'"long"\'' in done.stdout
    if option == "--bigkeys":
        assert "2 streams with 51 entries" in done.stdout


def test_there_are_no_rdb_files(server: RunningServer, tmp_path: Path) -> None:
    done = cli(server, "--rdb", str(tmp_path / "dump.rdb"))
    assert done.returncode == 1
    assert "There are no RDB files; 'tidelog backup' makes a backup" in done.stdout + done.stderr


def test_use_is_not_counted(server: RunningServer) -> None:
    with Raw(server.port) as c:
        c("SET", "a", "v")
    done = cli(server, "--hotkeys")
    assert done.returncode == 1
    assert "An LFU maxmemory policy is not selected" in done.stdout + done.stderr


def test_latency(server: RunningServer) -> None:
    done = cli(server, "--latency", "-i", "0.2", "--raw")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 4  # lowest, highest, mean, samples
