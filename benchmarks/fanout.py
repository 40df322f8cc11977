"""Fan-out: many clients blocked on one stream, one append, and everybody has it.

A closed loop over raw sockets: append one entry when all readers have received the last one and have blocked again,
each after the ID that it has seen. Replies are not parsed, only searched for the entry's end.

The load has a core of its own. The share of that core which it used stands under the row; near 100 % the figure is the
load's and not the server's. The row "server time" does not depend on the load: it is the server's CPU time for a
delivery, including the reader's next blocking read.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import time
from collections.abc import Iterator
from statistics import median, quantiles
from typing import NamedTuple

import click

from benchmarks.entries import SENSOR, append_words, pack
from benchmarks.registry import Bench, workload
from benchmarks.servers import Peer

READERS = (1, 100, 1000)
END = SENSOR[-1].encode() + b"\r\n"  # how every delivery ends
WAIT = 30.0  # seconds for one entry, at most


class Run(NamedTuple):
    """Figures of one closed loop."""

    deliveries: float  # a second
    p50: float  # ms from the append to an entry at a reader, over all deliveries
    p99: float
    server: float  # us of the server's core for a delivery
    busy: float  # share of its core that the load needed


class Readers:
    """Connections that block on stream ``s``, and one that appends to it."""

    def __init__(self, peer: Peer, count: int) -> None:
        self.peer = peer
        self.append = pack(*append_words(peer, "s"), *SENSOR)
        self.writer = peer.connect()
        self.sockets = [peer.connect() for _ in range(count)]
        self.numbers = [sock.fileno() for sock in self.sockets]
        self.epoll = select.epoll()
        for number in self.numbers:
            self.epoll.register(number, select.EPOLLIN)
        self.seen = self._appended()

    def _appended(self) -> bytes:
        """Append without readers; the ID."""
        self.writer.sendall(self.append)
        return self._reply()

    def _reply(self) -> bytes:
        return self.writer.recv(256).split(b"\r\n")[1]

    def block(self) -> None:
        """Let all readers block. What arrived before a PING on another connection has been executed before it, too."""
        if self.peer.x:
            command = pack("XREAD", "BLOCK", 0, "STREAMS", "s", self.seen)
        else:
            command = pack("TREAD", "s", self.seen, 10, "BLOCK", 0)
        write = os.write
        for number in self.numbers:
            write(number, command)
        self.writer.sendall(b"*1\r\n$4\r\nPING\r\n")
        self.writer.recv(64)

    def deliver(self, times: list[float]) -> None:
        """Append, wait until every reader has it; adds the seconds that each took."""
        read, now, poll = os.read, time.perf_counter, self.epoll.poll
        left = len(self.numbers)
        began = now()
        self.writer.sendall(self.append)
        while left:
            ready = poll(WAIT)
            if not ready:
                raise click.ClickException(f"{self.peer.name}: {left} readers got nothing within {WAIT:.0f} seconds")
            for number, _ in ready:
                if read(number, 65536).endswith(END):
                    times.append(now() - began)
                    left -= 1
        self.seen = self._reply()

    def check(self) -> None:
        """All of them are blocked."""
        with self.peer.client() as client:
            blocked = client.info("clients")["blocked_clients"]
        if blocked != len(self.numbers):
            raise click.ClickException(f"{self.peer.name}: {blocked} of {len(self.numbers)} readers are blocked")

    def close(self) -> None:
        self.epoll.close()
        for sock in (self.writer, *self.sockets):
            sock.close()


@contextlib.contextmanager
def readers(peer: Peer, count: int) -> Iterator[Readers]:
    made = Readers(peer, count)
    try:
        yield made
    finally:
        made.close()


def closed_loop(peer: Peer, count: int, rounds: int) -> Run:
    """So many entries to so many readers."""
    times: list[float] = []
    with readers(peer, count) as made:
        made.block()
        made.check()
        cpu, busy, began = peer.cpu_seconds(), time.process_time(), time.perf_counter()
        for _ in range(rounds):
            made.deliver(times)
            made.block()
        took = time.perf_counter() - began
        busy, cpu = time.process_time() - busy, peer.cpu_seconds() - cpu
        made.check()
    slow = quantiles(times, n=100)[98]
    return Run(len(times) / took, median(times) * 1000, slow * 1000, cpu / len(times) * 1e6, busy / took)


def enough_files() -> None:
    """Both ends of every connection need one; servers inherit the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(READERS) + 200
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


ROWS = {  # what a row is called -> attribute, unit, form, less is better
    "deliveries": ("deliveries", "deliveries/s", ",.0f", False),
    "p50": ("p50", "ms from append to delivery", ".3f", True),
    "p99": ("p99", "ms from append to delivery", ".3f", True),
    "server time": ("server", "us per delivery", ".1f", True),
}


@workload(
    "fanout", "an entry to 1, 100, 1000 blocked readers: appends and deliveries a second, p50 and p99 of their latency",
    requests=60_000, quick_requests=10_000,
)  # fmt: skip
def fanout(bench: Bench) -> None:
    """Closed loop, everysec; ``requests`` are deliveries a run."""
    for count in READERS:
        base = f"fanout, {count:,} blocked reader{'s' if count > 1 else ''}"
        titles = {name: f"{base}, {name}" for name in ("appends", *ROWS)}
        if not bench.wants(*titles.values()):
            continue
        enough_files()
        rounds = max(5, min(10_000, bench.requests // count))
        found: dict[str, list[Run]] = {}
        with bench.servers() as peers:

            def measure(
                peer: Peer, run: int, count: int = count, rounds: int = rounds, found: dict[str, list[Run]] = found
            ) -> float:
                made = closed_loop(peer, count, rounds)
                if run:
                    found.setdefault(peer.name, []).append(made)
                return made.deliveries / count

            appends = bench.interleave(base, peers, measure)
        busy = ", ".join(f"{name} {median(run.busy for run in runs):.0%}" for name, runs in found.items())
        bench.table.row(titles["appends"], appends, unit="entries/s", note=f"load's core busy: {busy}")
        for name, (attribute, unit, form, less) in ROWS.items():
            if bench.wants(titles[name]):
                figures = {peer: [getattr(run, attribute) for run in runs] for peer, runs in found.items()}
                bench.table.row(titles[name], figures, less_is_better=less, form=form, unit=unit)
