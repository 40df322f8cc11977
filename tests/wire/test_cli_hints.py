"""What redis-cli makes of COMMAND DOCS: hints, completion and HELP for tidelog's own commands."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import termios
import time

import pytest

from respserver.testing import RunningServer


def type_in(port: int, typed: bytes, until: bytes) -> str:
    """What an interactive redis-cli shows, colours taken out, after ``typed``; waits for ``until``."""
    cli = shutil.which("redis-cli")
    if cli is None:
        pytest.skip("no redis-cli: its hints are not tested")
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", HOME="/nonexistent")
        os.execv(cli, [cli, "-p", str(port)])
    shown = b""
    try:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        deadline = time.monotonic() + 10
        sent = False
        while until not in re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown):
            ready, _, _ = select.select([fd], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                break
            try:
                shown += os.read(fd, 1 << 16)
            except OSError:  # redis-cli is gone
                break
            if not sent and b"> " in shown:
                os.write(fd, typed)
                sent = True
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(fd)
    return re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (b"TAPPEND ", "key field value [field value ...]"),
        (b"trange s ", "start-id end-id [COUNT count]"),
        (b"CLIENT SETNAME ", "connection-name"),
        (b"TAPPE\t", "TAPPEND"),
    ],
)
def test_redis_cli_hints_and_completes(server: RunningServer, typed: bytes, shown: str) -> None:
    assert shown in type_in(server.port, typed, shown.encode())


def test_redis_cli_help_and_plain_calls(server: RunningServer) -> None:
    assert "TAPPEND key field value" in type_in(server.port, b"HELP TAPPEND\r", b"group:")
    cli = shutil.which("redis-cli")
    assert cli is not None
    for flags in ([], ["-3"]):
        argv = [cli, "-p", str(server.port), *flags, "COMMAND", "DOCS", "tappend"]
        done = subprocess.run(argv, capture_output=True, timeout=10, check=True)
        assert b"tappend" in done.stdout
