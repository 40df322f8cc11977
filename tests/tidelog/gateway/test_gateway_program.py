"""``tidelog gateway`` as a process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request

from click.testing import CliRunner

from tidelog.cli.program import main
from tidelog.testing import Server


def test_it_serves_until_a_signal(tidelog_server: Server) -> None:
    command = [sys.executable, "-m", "tidelog.cli", "gateway", "--url", tidelog_server.url, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+)\n", process.stdout.readline())
        assert found is not None
        with urllib.request.urlopen(f"{found[1]}/v1/streams/orders", timeout=20) as answer:
            assert answer.read() == b'{"entries":[],"next":"0.0","more":false}\n'
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_what_is_refused() -> None:
    for options, problem in (
        (["--url", "http://x"], "urls must be redis://"),
        (["--listen", "0.0.0.0:1"], "other machines can connect"),
        (["--cors-origin", "nope"], "is not an origin"),
        (["--url", "redis://ann:secret@localhost"], "users of the gateway send their own"),
    ):
        done = CliRunner().invoke(main, ["gateway", *options])
        assert done.exit_code != 0
        assert problem in done.output
        assert "secret" not in done.output
