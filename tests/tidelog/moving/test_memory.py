"""A big stream is moved and compared in memory that does not grow with it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.tidelog.moving.movekit import Peer

ENTRIES = 200_000
BOUND = 24 << 10  # KiB beyond what a small stream takes; the entries have more than that
#: The program, which then tells the most memory that it had.
MEASURED = """
import atexit, re, sys
from tidelog.cli.program import main
def tell():
    print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1], file=sys.stderr)
atexit.register(tell)
main()
"""


def copied(source: Peer, target: Peer) -> tuple[int, int]:
    """Entries copied, and KiB."""
    target.client.flushall()
    command = [sys.executable, "-c", MEASURED, "import", source.url, "--url", target.url, "--json"]
    done = subprocess.run(command, capture_output=True, check=True)
    (report,) = json.loads(done.stdout)["streams"]
    assert report["verdict"] == "same"
    assert report["pending"] == min(22_000, report["length"])
    return report["copied"], int(done.stderr.split()[-1])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the most memory that a process had is read from /proc")
def test_a_big_stream(source: Peer, target: Peer) -> None:
    source.client.xgroup_create("s", "g", "0", mkstream=True)

    def grow(first: int, last: int) -> None:
        for begin in range(first, last, 10_000):
            pipeline = source.client.pipeline(transaction=False)
            for n in range(begin, min(begin + 10_000, last)):
                pipeline.execute_command("XADD", "s", f"{n}-0", "number", n, "text", "x" * 150)
            pipeline.execute()
        source.client.execute_command("XREADGROUP", "GROUP", "g", "ann", "COUNT", 2000, "STREAMS", "s", ">")
        for n in range(18):
            source.client.execute_command("XREADGROUP", "GROUP", "g", f"c{n}", "COUNT", 1000, "STREAMS", "s", ">")

    grow(1, 2001)
    entries, small = copied(source, target)
    assert entries == 2000
    grow(2001, ENTRIES + 1)
    entries, big = copied(source, target)
    assert entries == ENTRIES
    assert big - small < BOUND
