"""Clients that ask again and again, and streams that are kept short: rates by redis-benchmark, 50 clients."""

from __future__ import annotations

from benchmarks.entries import SENSOR, append_words, fill
from benchmarks.load import redis_benchmark
from benchmarks.registry import Bench, workload
from benchmarks.servers import Peer

CLIENTS = 50


@workload(
    "poll", "reads a second that find no new entry, and one: TREAD compared with XREAD; P 1, 16", sizes=(100_000,),
    quick_sizes=(10_000,), requests=200_000, quick_requests=20_000,
)  # fmt: skip
def poll(bench: Bench) -> None:
    """At the end of a stream, without BLOCK."""
    cases = [
        (news, pipeline, f"poll, {what}, {CLIENTS} clients, P {pipeline}")
        for news, what in enumerate(("no new entries", "one entry")) for pipeline in (1, 16)
    ]  # fmt: skip
    wanted = [case for case in cases if bench.wants(case[2])]
    if not wanted:
        return
    with bench.servers() as peers:
        for peer in peers:
            fill(peer, bench.sizes[0])
        for news, pipeline, title in wanted:

            def measure(peer: Peer, _: int, news: int = news, pipeline: int = pipeline) -> float:
                seen = last_ids(peer)[news]
                words = ["XREAD", "COUNT", "1", "STREAMS", "s", seen] if peer.redis else ["TREAD", "s", seen, "1"]
                count = bench.requests * (4 if pipeline > 1 else 1)
                return redis_benchmark(peer.port, words, count, CLIENTS, pipeline)

            bench.table.row(title, bench.interleave(title, peers, measure), unit="reads/s")


def last_ids(peer: Peer) -> list[str]:
    """The last two IDs of the stream, the newest first."""
    with peer.client() as client:
        word = "XREVRANGE" if peer.redis else "TREVRANGE"
        return [row[0].decode() for row in client.execute_command(word, "s", "+", "-", "COUNT", 2)]


@workload(
    "evict", "appends a second to a stream at its limit: TAPPEV COUNT and XADD MAXLEN ~ and exact; P 1, 16",
    sizes=(1_000_000,), quick_sizes=(100_000,), requests=200_000, quick_requests=20_000,
)  # fmt: skip
def evict(bench: Bench) -> None:
    """TAPPEV is always exact. everysec; ``size`` is the limit, and the stream has reached it before."""
    limit = bench.sizes[0]
    cases = [
        (sign, pipeline, f"evict, compared with MAXLEN {sign}, {CLIENTS} clients, P {pipeline}")
        for sign in ("~", "=") for pipeline in (1, 16)
    ]  # fmt: skip
    wanted = [case for case in cases if bench.wants(case[2])]
    if not wanted:
        return
    with bench.servers() as peers:
        for peer in peers:
            fill(peer, limit)
            peer.settle()
        for sign, pipeline, title in wanted:

            def measure(peer: Peer, _: int, sign: str = sign, pipeline: int = pipeline) -> float:
                if peer.redis:
                    words = ["XADD", "s", "MAXLEN", sign, str(limit), "*", *SENSOR]
                else:
                    words = ["TAPPEV", *append_words(peer, "s")[1:], "COUNT", str(limit), *SENSOR]
                count = bench.requests * (4 if pipeline > 1 else 1)
                return redis_benchmark(peer.port, words, count, CLIENTS, pipeline)

            bench.table.row(title, bench.interleave(title, peers, measure), unit="entries/s")
