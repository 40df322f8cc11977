"""The server and the console that a demo leaves running."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path

import redis

from scripts.demo_output import say, title
from tidelog import Client
from tidelog.quickstart import ports

STARTS_WITHIN = 60.0  # s


def keep(directory: Path, port: int) -> None:
    """Start a server on the data of a demo, and a console, as processes that outlive it, and print how to use them."""
    log, console_log = (directory.with_suffix(suffix) for suffix in (".log", ".console.log"))
    server = _start(["_tidelog_server", "--port", str(port), "--dir", str(directory)], log)
    url = f"redis://127.0.0.1:{port}"
    with Client(url, retry=None) as client:
        while True:
            try:
                client.redis.ping()
                break
            except redis.ConnectionError:
                _check(server, log)
                time.sleep(0.05)
    address = f"{ports.HOST}:{ports.choose(None, 9899, '--listen')}"
    console = _start(["tidelog.cli", "console", "--url", url, "--listen", address], console_log)
    deadline = time.monotonic() + STARTS_WITHIN
    while "listening on" not in console_log.read_text():
        _check(console, console_log)
        if time.monotonic() > deadline:
            sys.exit(f"the console is not ready after {STARTS_WITHIN:g} s; see {console_log}")
        time.sleep(0.05)
    title("The server and a console stay up (--keep). Open the console and log in as default, without a password:")
    say(f"http://{address}")
    title("Or try:")
    say(f"redis-cli -p {port} TRANGE sf_temps - + COUNT 3")
    say(f"redis-cli -p {port} TINFO machine")
    say(f"{Path(sys.executable).parent}/tidelog info --url {url}")
    title("When you are done:")
    files = shlex.join(map(str, (directory, log, console_log)))
    say(f"kill {console.pid}; redis-cli -p {port} SHUTDOWN; rm -r {files}")


def _start(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("w") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", *words], stdout=output, stderr=output, start_new_session=True
        )  # fmt: skip


def _check(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.poll() is not None:
        sys.exit(log.read_text())
