"""The time of a request while the server is half busy: p50, p99, p99.9.

All servers get the same rate: half of the highest rate of the slowest one, which is measured first. CLIENTS connections
have one request at a time each (``openloop`` has the rules). Keys are chosen at random.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import count, cycle
from statistics import median
from typing import Any

from benchmarks.entries import Replies, Words, append_words, fill, made_up, pack
from benchmarks.groups import create, ids_of, read_command
from benchmarks.openloop import Load, Requests, Times, percentiles
from benchmarks.registry import Bench, workload
from benchmarks.servers import Peer

CLIENTS = 50
KEYS = 1000  # streams


class Delivery(Requests):
    """An append by one connection; its reply is the entry at another one, which is blocked on the stream."""

    def __init__(self, peer: Peer, key: str) -> None:
        if peer.x:
            super().__init__(peer.connect(), lambda _: pack("XREAD", "BLOCK", 0, "STREAMS", key, self._seen))
        else:
            super().__init__(peer.connect(), lambda _: pack("TREAD", key, self._seen, 10, "BLOCK", 0))
        self._writer = peer.connect()
        self._entries = cycle([pack(*append_words(peer, key), *entry) for entry in made_up("sensor", 100)])
        self._writer.sendall(next(self._entries))
        self._seen = self._id()
        super().send(0.0)

    def _id(self) -> bytes:
        return self._writer.recv(256).split(b"\r\n")[1]

    def send(self, due: float) -> None:
        """Append; the reader is blocked."""
        self.due = due
        self._writer.sendall(next(self._entries))

    def receive(self) -> bool:
        """Receive the entry, and let the reader block again."""
        if not super().receive():
            return False
        self._seen = self._id()
        super().send(self.due)
        return True

    def close(self) -> None:
        """Close both connections."""
        super().close()
        self._writer.close()


def appends(kind: str, _: int, peer: Peer, number: int) -> Requests:
    """Append entries of a kind to random keys."""
    rng = random.Random(number)
    own = entries(kind)[number::CLIENTS]
    made = cycle([pack(*append_words(peer, f"{kind}:{rng.randrange(KEYS)}"), *entry) for entry in own])
    return Requests(peer.connect(), lambda _: next(made))


@cache
def entries(kind: str) -> list[Words]:
    """Return the whole pool."""
    return list(made_up(kind))


def reads(_: int, peer: Peer, number: int) -> Requests:
    """Read the newest ten entries of random streams."""
    rng = random.Random(number)
    word = "XREVRANGE" if peer.x else "TREVRANGE"
    made = cycle([pack(word, f"long:{rng.randrange(KEYS)}", "+", "-", "COUNT", 10) for _ in range(1000)])
    return Requests(peer.connect(), lambda _: next(made))


def blocked(_: int, peer: Peer, number: int) -> Requests:
    """Deliver an entry to a reader that is blocked on a stream of its own."""
    return Delivery(peer, f"blocked:{number}")


def group_reads(run: int, peer: Peer, number: int) -> Requests:
    """Read an entry of a long stream for a group, and acknowledge the one before: two commands. All clients share the
    group, which is another one in each run."""
    group = f"run {run}"
    read = read_command(peer, group, 1, pending=True, consumer=f"consumer {number}")

    def request(last: Any) -> bytes:
        done = pack("PING") if last is None else pack("XACK" if peer.x else "TACK", "s", group, *ids_of(peer, last))
        return done + read

    return Requests(peer.connect(), request, replies=2)


def fill_streams(peer: Peer, length: int) -> None:
    """Append the entries that ``reads`` reads, ``length`` per stream."""
    with peer.connect() as sock:
        for key in range(KEYS):
            words = append_words(peer, f"long:{key}")
            sock.sendall(b"".join(pack(*words, *entry) for entry in made_up("sensor", length)))
            Replies(sock, peer.name).take(length, at_most=0)


def load(make: Callable[[int, Peer, int], Requests], peer: Peer, run: int) -> Load:
    """Return the connections of a run. ``make``: see CASES."""
    if make is group_reads and peer.x:
        create(peer, f"run {run}")
    return Load([make(run, peer, number) for number in range(CLIENTS)])


# each gets the number of the run, the server, and the number of the connection
CASES: dict[str, Callable[[int, Peer, int], Requests]] = {
    "append, sensor": partial(appends, "sensor"),
    "append, JSON of 250 B": partial(appends, "json"),
    "newest 10": reads,
    "delivery to a blocked reader": blocked,
    "group read of 1 and ack": group_reads,
}


@workload(
    "latency", "p50, p99, p99.9 of appends, reads, deliveries, and group reads, at half of the highest rate",
    sizes=(1_000_000,), quick_sizes=(100_000,), requests=200_000, quick_requests=5000,
)  # fmt: skip
def latency(bench: Bench) -> None:
    """The figures are medians of the runs."""
    for name, make in CASES.items():
        if not bench.wants(*[title(name, percentile) for percentile in Times._fields]):
            continue
        with bench.servers() as peers:
            for peer in peers:
                if make is group_reads:
                    fill(peer, bench.sizes[0])
                elif make is reads:
                    fill_streams(peer, max(1, bench.sizes[0] // KEYS))
            measure(bench, name, make, peers)


def measure(bench: Bench, name: str, make: Callable[[int, Peer, int], Requests], peers: Sequence[Peer]) -> None:
    """Print the rows of one kind of requests."""
    runs, found = count(), dict[str, list[Times]]()

    def highest(peer: Peer, _: int) -> float:
        with load(make, peer, next(runs)) as made:
            return made.highest(bench.requests // 4)

    highest_rates = bench.interleave(f"{name}, highest rate", peers, highest)
    rate = min(map(median, highest_rates.values())) / 2

    def at_rate(peer: Peer, run: int) -> float:
        with load(make, peer, next(runs)) as made:
            times = percentiles(made.at_rate(rate, bench.requests))
        if run:
            found.setdefault(peer.name, []).append(times)
        return times.p50

    bench.interleave(f"{name}, {rate:,.0f} per second", peers, at_rate)
    for percentile in Times._fields:
        figures = {server: [getattr(times, percentile) for times in every] for server, every in found.items()}
        note = f"{rate:,.0f} requests per second"
        bench.table.row(title(name, percentile), figures, less_is_better=True, unit="us", note=note)


def title(name: str, percentile: str) -> str:
    return f"latency, {name}, {percentile}"
