"""Reads: ranges at random places and of the whole stream, with nodes decoded and not; what history costs a short read.

Replies are received, not parsed: their length is found out before, so the server is measured and not the client.
"""

from __future__ import annotations

import random
from statistics import median, quantiles

from benchmarks.entries import fill, pack, range_word
from benchmarks.load import Request, exchange, latencies, play, random_places
from benchmarks.registry import Bench, CannotError, workload
from benchmarks.servers import Peer

COUNTS = (1000, 100, 10, 1)
WHOLE = 0  # instead of a COUNT
COLD = "1mb"  # node-cache-size where nodes are to come from the store; below what a stream of 1 M entries takes


def range_requests(peer: Peer, count: int, how_many: int) -> list[Request]:
    """Ranges of ``count`` entries at random places, or the whole stream some times."""
    word = range_word(peer)
    if count == WHOLE:
        commands = [pack(word, "s", "-", "+")]
        with peer.connect() as sock:
            return [Request(c, *sized(exchange(sock, c))) for c in commands] * how_many
    commands = [pack(word, "s", place, "+", "COUNT", count) for place in random_places(peer, how_many)]
    with peer.connect() as sock:
        return [Request(c, *sized(exchange(sock, c))) for c in commands]


def sized(answer: tuple[int, list[object]]) -> tuple[int, int]:
    return answer[0], len(answer[1])


@workload(
    "range", "entries a second read by TRANGE: COUNT 1000 to 1 at random positions, and all; nodes cached and cold",
    sizes=(1_000_000,), quick_sizes=(200_000,),
)  # fmt: skip
def ranges(bench: Bench) -> None:
    """One connection, one request at a time."""
    for size in bench.sizes:
        wanted = [
            (how, count, label) for how in ("cached", "cold") for count in (*COUNTS, WHOLE)
            if bench.wants(label := range_title(how, count, size, len(bench.sizes) > 1))
        ]  # fmt: skip
        if not wanted:
            continue
        with bench.servers() as peers:
            for peer in peers:
                fill(peer, size)
                peer.settle()
            made: dict[tuple[str, int], list[Request]] = {}
            for how, count, label in wanted:
                times = max(2, 2_000_000 // size) if count == WHOLE else max(200, min(10_000, 400_000 // count))
                for peer in peers:
                    cached(peer, "1gb" if how == "cached" else COLD)
                    if (peer.name, count) not in made:
                        made[peer.name, count] = range_requests(peer, count, times // 50 + 1 if bench.quick else times)
                requests = {peer.name: made[peer.name, count] for peer in peers}

                def measure(peer: Peer, _: int, requests: dict[str, list[Request]] = requests) -> float:
                    played = requests[peer.name]
                    return sum(request.entries for request in played) / play(peer, played)

                bench.table.row(label, bench.interleave(label, peers, measure), unit="entries/s")


def cached(peer: Peer, size: str) -> None:
    """Give tidelog's decoded nodes so much memory; Redis has its entries in memory anyhow."""
    if not peer.redis:
        with peer.client() as client:
            client.config_set("node-cache-size", size)


def range_title(how: str, count: int, size: int, several: bool) -> str:
    of = f" of {size:,}" if several else ""
    return f"range, all{of}, {how}" if count == WHOLE else f"range, COUNT {count}{of}, {how}"


@workload(
    "seek", "microseconds of TSEEK, and of TRANGE COUNT 1, at random positions of streams of increasing length",
    sizes=(10_000, 100_000, 1_000_000), quick_sizes=(10_000, 100_000),
)  # fmt: skip
def seek(bench: Bench) -> None:
    """One connection; the time includes the round trip. Redis has no TSEEK: it knows no n-th entry."""
    titles = {
        (size, what, which): f"seek, {what}, {size:,} entries, {which}"
        for size in sorted(bench.sizes) for what in ("TRANGE COUNT 1", "TSEEK") for which in ("p50", "p99")
    }  # fmt: skip
    if not bench.wants(*titles.values()):
        return
    places = 300 if bench.quick else 3000
    with bench.servers() as peers:
        filled = 0
        for size in sorted(bench.sizes):
            for peer in peers:
                fill(peer, size - filled)
                peer.settle()
            filled = size
            for what in ("TRANGE COUNT 1", "TSEEK"):
                if not bench.wants(*(titles[size, what, which] for which in ("p50", "p99"))):
                    continue
                requests = {peer.name: seek_requests(peer, what, places) for peer in peers}
                high: dict[str, list[float]] = {}

                def measure(
                    peer: Peer, run: int, high: dict[str, list[float]] = high, made: dict[str, list[Request]] = requests
                ) -> float:
                    if not made[peer.name]:
                        raise CannotError
                    found = latencies(peer, made[peer.name])
                    if run:
                        high.setdefault(peer.name, []).append(quantiles(found, n=100)[98] * 1e6)
                    return median(found) * 1e6

                low = bench.interleave(f"seek, {what}, {size:,}", peers, measure)
                for which, figures in (("p50", low), ("p99", high)):
                    bench.table.row(titles[size, what, which], figures, less_is_better=True, form=".1f", unit="us")


def seek_requests(peer: Peer, what: str, how_many: int) -> list[Request]:
    """Short reads at random places; none where the server can't."""
    if what != "TSEEK":
        return range_requests(peer, 1, how_many)
    if peer.redis:
        return []
    with peer.client() as client:
        length = client.execute_command("TLEN", "s")
    rng, made = random.Random(2), []
    with peer.connect() as sock:
        for place in random_places(peer, how_many):
            command = pack("TSEEK", "s", place, rng.randrange(1, length))
            made.append(Request(command, exchange(sock, command)[0], 1))
    return made
