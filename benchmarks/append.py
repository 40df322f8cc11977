"""Appends: by clients, pipeline, payload and ``appendfsync``; many in one command; and the ceiling."""

from __future__ import annotations

import random
import string
import sys
from collections.abc import Sequence
from functools import cache

from benchmarks.entries import SENSOR, append_words, made_up
from benchmarks.load import redis_benchmark
from benchmarks.registry import Bench, workload
from benchmarks.servers import Installation, Peer, peers_of

PIPELINES = (1, 16, 64)
AT_ONCE = 100  # entries of a TMAPPEND


def requests_for(base: int, clients: int, pipeline: int) -> int:
    """A second or a few: one client that waits for each reply sends a tenth of what 50 do, pipelines more."""
    return max(1, base * (4 if pipeline > 1 else 1) // (10 if clients == 1 else 1))


def append_row(bench: Bench, label: str, peers: Sequence[Peer], clients: int, pipeline: int) -> None:
    """Measure and print a row of single appends of the RCP's sensor entry."""
    count = requests_for(bench.requests, clients, pipeline)

    def measure(peer: Peer, run: int) -> float:
        words = [*append_words(peer, f"{label}, run {run}"), *SENSOR]
        return redis_benchmark(peer.port, words, count, clients, pipeline)

    bench.table.row(label, bench.interleave(label, peers, measure), unit="entries/s")


@workload(
    "append", "appends a second: 1 and 50 clients, pipelines 1, 16, 64, appendfsync always, everysec, no",
    requests=200_000, quick_requests=20_000,
)  # fmt: skip
def append(bench: Bench) -> None:
    """The sensor entry of the RCP, by redis-benchmark."""
    for fsync in ("always", "everysec", "no"):
        cases = [(clients, pipeline) for clients in (50, 1) for pipeline in PIPELINES]
        wanted = [case for case in cases if bench.wants(title(fsync, *case))]
        if wanted:
            with bench.servers(fsync) as peers:
                for clients, pipeline in wanted:
                    append_row(bench, title(fsync, clients, pipeline), peers, clients, pipeline)


@cache
def text(size: int) -> str:
    """Letters and digits without a pattern, always the same."""
    return "".join(random.Random(size).choices(string.ascii_letters + string.digits, k=size))


def title(fsync: str, clients: int, pipeline: int) -> str:
    return f"append, {fsync}, {clients} client{'s' if clients > 1 else ''}, P {pipeline}"


@workload(
    "payload", "appends a second of 100 B, 1 KB, 10 KB; 50 clients, everysec", requests=200_000, quick_requests=20_000
)
def payload(bench: Bench) -> None:
    """One field with letters and digits in random order; a run writes at most 200 MB."""
    for size, name in ((100, "100 B"), (1000, "1 KB"), (10_000, "10 KB")):
        for pipeline in (1, 16):
            label = f"payload, {name}, 50 clients, P {pipeline}"
            if not bench.wants(label):
                continue
            count = min(requests_for(bench.requests, 50, pipeline), 200_000_000 // size)
            with bench.servers() as peers:

                def measure(peer: Peer, run: int, size: int = size, pipeline: int = pipeline, n: int = count) -> float:
                    words = [*append_words(peer, f"k{run}"), "data", text(size)]
                    return redis_benchmark(peer.port, words, n, 50, pipeline)

                bench.table.row(label, bench.interleave(label, peers, measure), unit="entries/s")


@workload(
    "tmappend", f"entries a second by TMAPPEND of {AT_ONCE}, compared with XADD at P 64; everysec", requests=400_000,
    quick_requests=80_000,
)  # fmt: skip
def tmappend(bench: Bench) -> None:
    """Both write the same number of entries. Redis has nothing like it: its fastest is a deep pipeline."""
    values = [str(word) for entry in made_up("sensor", AT_ONCE) for word in entry[1::2]]
    for pipeline in (1, 16):
        label = f"tmappend of {AT_ONCE}, P {pipeline}, compared with XADD at P 64"
        if not bench.wants(label):
            continue
        with bench.servers() as peers:

            def measure(peer: Peer, run: int, pipeline: int = pipeline) -> float:
                key, entries = f"k{run}", bench.requests * 4
                if peer.redis:
                    return redis_benchmark(peer.port, [*append_words(peer, key), *SENSOR], entries, 50, 64)
                words = ["TMAPPEND", key, "FIELDS", "2", "sensor", "temperature", "VALUES", *values]
                return AT_ONCE * redis_benchmark(peer.port, words, entries // AT_ONCE, 50, pipeline)

            bench.table.row(label, bench.interleave(label, peers, measure), unit="entries/s")


@workload(
    "ceiling", "uvloop and hiredis with constant replies, in place of tidelog: the limit; 50 clients, P 1, 16, 64",
    requests=200_000, quick_requests=20_000,
)  # fmt: skip
def ceiling(bench: Bench) -> None:
    """Measure a server that decodes each command and always replies with the same ID, and Redis with appendfsync no."""
    constant = Installation("tidelog", (sys.executable, "-P", "-m", "benchmarks.ceiling"), ours=True)
    installed = [constant, *(one for one in bench.installed if one.redis)]
    for pipeline in PIPELINES:
        label = f"ceiling (no engine, no log), 50 clients, P {pipeline}"
        if not bench.wants(label):
            continue
        with peers_of(installed, "no") as peers:
            for peer in peers:
                peer.start()
            append_row(bench, label, peers, 50, pipeline)
