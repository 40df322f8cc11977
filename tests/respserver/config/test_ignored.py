"""Directives of Redis that have no effect: every one is known, and a warning says why it is ignored."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from respserver.config.config import Config
from respserver.config.directives import ALIASES, DIRECTIVES
from respserver.config.ignored import IGNORED


def test_no_directive_is_both_used_and_ignored() -> None:
    assert not set(IGNORED) & (set(DIRECTIVES) | set(ALIASES))


def test_a_warning_for_each_reason_lists_its_directives() -> None:
    lines = "rdbcompression no\nrdbchecksum no\nio-threads 4\nsearch-timeout 1\nREPLICAOF NO ONE\n"
    config = Config.load(["-"], lambda: lines)
    assert config.warnings == [
        "Ignored: rdbcompression, rdbchecksum (tidelog has its own files, always compressed and checked)",
        "Ignored: io-threads (tidelog runs its commands in one thread and leaves placement to the system)",
        "Ignored: search-timeout (there are no scripts, functions or modules)",
    ]
    assert config.value("rdbcompression") == "no"
    assert config.value("rdb-del-sync-files") == "no"
    assert config.replicaof == []


def test_the_redis_conf_of_debian_is_accepted() -> None:
    path = Path("/etc/redis/redis.conf")
    if not os.access(path, os.R_OK):
        pytest.skip("no readable /etc/redis/redis.conf: install redis-server")
    config = Config.load([str(path)])
    warned = " ".join(config.warnings)
    used = {line.split()[0] for line in path.read_text().splitlines() if line and line[0] not in "# \t"}
    assert all(name in warned or name in DIRECTIVES for name in used)


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_every_directive_of_the_installed_redis_is_known(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    server = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        assert any("ready to accept connections" in line.lower() for line in server.stdout)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.sendall(b"CONFIG GET *\r\nQUIT\r\n")
            reply = b"".join(iter(lambda: sock.recv(65536), b""))
    finally:
        server.terminate()
        server.communicate()
    names = re.findall(rb"\$\d+\r\n([^\r]*)\r\n\$\d+\r\n[^\r]*\r\n", reply)
    assert len(names) > 150
    assert [n for n in names if not Config().get([n])] == []
