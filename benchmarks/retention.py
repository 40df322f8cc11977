"""Retention policies: ``python -m benchmarks.retention [--rounds R] [--keys K] [--seconds S]``.

Measures the server's CPU time per append of a JSON record to many streams that are as long as their policy permits, so
that each append exceeds it, relative to appends to streams without a policy. Two servers take turns. A client without
other work sends pipelines of 1, 16, and 64 appends to random streams.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tidelog.testing import Server, running_server

DEPTHS = (1, 16, 64)
RETAINED = 100  # entries of each stream
POLICIES = {"exact": ("COUNT", str(RETAINED), "EXACT"), "groups": ("COUNT", str(RETAINED), "GROUPS", "EXACT")}
VALUE = json.dumps({"id": 48151623, "customer": "customer 4815", "items": ["tea", "milk"], "price": 4.25}).encode()


def packed(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def read(sock: socket.socket, lines: int) -> None:
    """Read replies with this many lines in total."""
    while lines > 0:
        lines -= sock.recv(1 << 18).count(b"\n")


class Side:
    """A server, with or without policies."""

    def __init__(self, server: Server, keys: int, policy: tuple[str, ...]) -> None:
        self.server = server
        self.sock = socket.create_connection(("127.0.0.1", server.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.calls = [packed(b"TAPPEND", b"topic:%d" % key, b"v", VALUE) for key in range(keys)]
        for key in range(keys):
            name = b"topic:%d" % key
            if policy:
                self.sock.sendall(packed(b"TCFG", name, b"RETAIN", *(word.encode() for word in policy)))
                read(self.sock, 1)
            if "GROUPS" in policy:
                self.sock.sendall(packed(b"XGROUP", b"CREATE", name, b"g", b"0", b"MKSTREAM"))
                read(self.sock, 1)
            self.sock.sendall(self.calls[key] * RETAINED)
            read(self.sock, 2 * RETAINED)

    def cpu(self) -> float:
        """Return the CPU time of the server's main thread, in seconds."""
        pid = self.server.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

    def measured(self, depth: int, seconds: float, rng: random.Random) -> float:
        """Return the CPU time per append in microseconds."""
        began, until, count = self.cpu(), time.perf_counter() + seconds, 0
        while time.perf_counter() < until:
            for _ in range(20):
                self.sock.sendall(b"".join(rng.choices(self.calls, k=depth)))
                read(self.sock, 2 * depth)
                count += depth
        return (self.cpu() - began) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--policy", choices=POLICIES, default="exact")
    given = parser.parse_args()
    with running_server(appendfsync="no") as one, running_server(appendfsync="no") as other:
        sides = Side(one, given.keys, ()), Side(other, given.keys, POLICIES[given.policy])
        rng = random.Random(1)
        for depth in DEPTHS:
            pairs = [tuple(side.measured(depth, given.seconds, rng) for side in sides) for _ in range(given.rounds)]
            shares = sorted(without / policy for without, policy in pairs)
            print(
                f"{given.keys} streams, P {depth}: {median(pair[0] for pair in pairs):.2f} us without a policy,"
                f" {median(pair[1] for pair in pairs):.2f} with {given.policy}: {median(shares):.3f}"
                f" ({shares[0]:.3f}-{shares[-1]:.3f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
