"""The cost of ``cluster-enabled``: ``python -m benchmarks.clustermode [--rounds R] [--seconds S] [--only NAME ...]``.

Measures the server's CPU time per command in pipelines of 1 and 16, relative to a server without cluster mode: of a
single server, and of a server group of one member that owns half of the slots. Two servers take turns. The table has
medians of the ratios of the pairs, with minimum and maximum.
"""

from __future__ import annotations

import argparse
import itertools
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import redis

from commands.slots import SLOTS, slot_of
from tidelog.testing import Server, running_server

DEPTHS = (1, 16)
KEYS = 100


def packed(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def names(kind: bytes) -> list[bytes]:
    """Return names of keys in the first half of the slots. Each has a hash tag."""
    found = (b"{%b:%d}" % (kind, at) for at in itertools.count())
    return list(itertools.islice((name for name in found if slot_of(name) < SLOTS // 2), KEYS))


def commands() -> dict[str, tuple[list[bytes], int]]:
    """Return by name: calls, each with another key, and the number of line ends in each reply."""
    keys, streams = names(b"k"), names(b"s")
    short = names(b"short")
    return {
        "GET": ([packed(b"GET", key) for key in keys], 2),
        "SET": ([packed(b"SET", key, b"value") for key in keys], 1),
        "XADD": ([packed(b"XADD", key, b"MAXLEN", b"~", b"1000", b"*", b"field", b"value") for key in streams], 2),
        "TAPPEND": ([packed(b"TAPPEND", key, b"field", b"value") for key in streams], 2),
        "DEL": ([packed(b"DEL", key + b"none") for key in keys], 1),
        "EXISTS": ([packed(b"EXISTS", key) for key in keys], 1),
        "MGET of three": ([packed(b"MGET", key, key + b"b", key + b"c") for key in keys], 5),
        "MSET of three": ([packed(b"MSET", key, b"v", key + b"b", b"v", key + b"c", b"v") for key in keys], 1),
        "XREAD of one": ([packed(b"XREAD", b"COUNT", b"1", b"STREAMS", key, b"0") for key in short], 12),
        "XREAD of one, no news": ([packed(b"XREAD", b"STREAMS", key, b"9-9") for key in short], 1),
    }


class Side:
    """A server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.sock = socket.create_connection(("127.0.0.1", server.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for key in names(b"k"):
            self.call(packed(b"MSET", key, b"value", key + b"b", b"value"), 1)
        for key in names(b"short"):
            self.call(packed(b"XADD", key, b"1-1", b"field", b"value"), 2)

    def call(self, data: bytes, lines: int) -> None:
        self.sock.sendall(data)
        while lines > 0:
            reply = self.sock.recv(1 << 18)
            if reply[:1] == b"-":
                raise RuntimeError(reply.decode())
            lines -= reply.count(b"\n")

    def cpu(self) -> float:
        """Return the CPU time of the server's main thread, in seconds."""
        pid = self.server.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

    def measured(self, calls: list[bytes], lines: int, depth: int, seconds: float) -> float:
        """Return the CPU time per command in microseconds."""
        batches = [b"".join(calls[(at + i) % len(calls)] for i in range(depth)) for at in range(0, len(calls), depth)]
        began, until, count = self.cpu(), time.perf_counter() + seconds, 0
        while time.perf_counter() < until:
            for batch in batches:
                self.call(batch, lines * depth)
            count += depth * len(batches)
        return (self.cpu() - began) / count * 1e6


def sides(stack: ExitStack) -> dict[str, tuple[Side, Side]]:
    """Start the servers. Return pairs: without and with cluster mode."""
    top = stack.enter_context(tempfile.TemporaryDirectory())

    def start(**config: str) -> Side:
        return Side(ready(stack.enter_context(running_server(appendfsync="no", **config))))

    def group(name: str, **config: str) -> Server:
        options = {"group": name, "coordinator": f"file://{top}/coordinator", "min-in-sync": "1", "replica-acks": "0"}
        return stack.enter_context(running_server(appendfsync="no", **options, **config))

    half = ready(group("1", **{"cluster-enabled": "yes"}))
    ready(group("2", **{"cluster-enabled": "yes"}))
    assign(half, f"{SLOTS // 2}-{SLOTS - 1}", "2")
    return {
        "all slots": (start(), start(**{"cluster-enabled": "yes"})),
        "half of the slots": (Side(ready(group("3"))), Side(half)),
    }


def attempts(server: Server, *words: str) -> Iterator[object]:
    """Yield replies and errors to a command."""
    with redis.Redis(port=server.port) as client:
        for _ in range(500):
            try:
                yield client.execute_command(*words)
            except redis.RedisError as error:
                yield error
            time.sleep(0.02)
    raise RuntimeError(f"the server does not accept {words}")


def ready(server: Server) -> Server:
    """Wait until a server leads."""
    for reply in attempts(server, "ROLE"):
        if isinstance(reply, list) and reply[0] == b"master":
            break
    return server


def assign(server: Server, ranges: str, group: str) -> None:
    """Give slots to another group, once it has joined."""
    for reply in attempts(server, "TCLUSTER", "ASSIGN", ranges, "TO", group):
        if reply == b"OK":
            break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    with ExitStack() as stack:
        pairs = sides(stack)
        for name, (calls, lines) in commands().items():
            if given.only and name not in given.only:
                continue
            for (what, pair), depth in itertools.product(pairs.items(), DEPTHS):
                found = [
                    tuple(side.measured(calls, lines, depth, given.seconds) for side in pair)
                    for _ in range(given.rounds)
                ]
                shares = sorted(with_it / without for without, with_it in found)
                print(
                    f"{name}, P {depth}, {what}: {median(each[0] for each in found):.2f} us without,"
                    f" {median(each[1] for each in found):.2f} with: {median(shares):.3f}"
                    f" ({shares[0]:.3f}-{shares[-1]:.3f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
