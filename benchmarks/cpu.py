"""The server's CPU time per command, compared with Redis: rates hide it on a machine that other programs use.

redis-benchmark, or ``varied``, sends a fixed number of commands; what the server's process spends until it is quiet
again is divided by them. So the journal's thread, checkpoints and a rewrite of the AOF are paid by the commands that
caused them. Rows that are rates (cold ranges, groups) tell the CPU beneath.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from benchmarks.append import requests_for, text
from benchmarks.cputime import Meter, Spent
from benchmarks.entries import SENSOR, Replies, append_words, fill, pack, range_word
from benchmarks.groups import Script
from benchmarks.load import Request, play, redis_benchmark
from benchmarks.publishing import publishing
from benchmarks.ranges import COLD, cached, range_requests
from benchmarks.registry import Bench, workload
from benchmarks.servers import Peer
from benchmarks.table import Figures
from benchmarks.varied import play_json

CLIENTS = 50
PIPELINES = (1, 16)
LIMIT = 10_000  # entries that a stream keeps where there is a limit
AT_MOST = 200_000_000  # bytes of payload a run
BATCH = 1000  # keys a packet
ANY = "k:__rand_int__"  # one of the keys of ``each_key``, chosen by redis-benchmark


class Cost(NamedTuple):
    """Of one run."""

    spent: Spent  # us a command
    rate: float  # commands a second


@dataclass(frozen=True)
class Case:
    """A command, and what there is before it comes. ``words`` gets the number of the run."""

    title: str
    words: Callable[[Peer, int], Sequence[str]]
    prepare: Callable[[Peer, int], None] | None = None  # gets the size
    pipelines: tuple[int, ...] = PIPELINES
    clients: int = CLIENTS
    payload: int = 0  # bytes, where they limit the number of commands
    json: bool = False  # ``payload`` bytes of varied JSON are appended, without ``words``
    random: bool = False  # whether it takes one of ``size`` keys

    def row(self, pipeline: int) -> str:
        return f"cpu, {self.title}, P {pipeline}"

    def requests(self, base: int, pipeline: int) -> int:
        count = requests_for(base, self.clients, pipeline)
        return min(count, AT_MOST // self.payload) if self.payload else count


# -- the cases ---------------------------------------------------------------------------------------------------
def _strings() -> list[Case]:
    def a_number(peer: Peer, _: int) -> None:
        with peer.client() as client:
            client.set("number", 0)

    def a_string(peer: Peer, _: int) -> None:
        with peer.client() as client:
            client.set("string", "xxx")

    def an_old_string(peer: Peer, size: int) -> None:
        strings(peer, size)
        a_string(peer, size)

    return [
        Case("PING", lambda *_: ["PING"]),
        Case("SET", lambda *_: ["SET", "string", "xxx"]),
        Case("GET", lambda *_: ["GET", "string"], a_string),
        Case("INCR", lambda *_: ["INCR", "number"], a_number),
        Case("GET, old keyspace", lambda *_: ["GET", "string"], an_old_string),
        Case("SET, random keys", lambda *_: ["SET", ANY, "xxx"], strings, random=True),
        Case("GET, random keys", lambda *_: ["GET", ANY], strings, random=True),
        Case("INCR, random keys", lambda *_: ["INCR", ANY], strings, random=True),
    ]


def _appends(name: str, size: int) -> list[Case]:
    def one(peer: Peer, run: int) -> list[str]:
        return [*append_words(peer, f"s{run}"), *SENSOR]

    def many(peer: Peer, _: int) -> list[str]:
        return [*append_words(peer, ANY), *SENSOR]

    def limited(peer: Peer, _: int) -> list[str]:
        if peer.x:
            return ["XADD", "s", "MAXLEN", "~", str(LIMIT), "*", *SENSOR]
        return ["TAPPEV", "s", "COUNT", str(LIMIT), *SENSOR]

    def large(bytes_: int) -> Callable[[Peer, int], list[str]]:
        return lambda peer, run: [*append_words(peer, f"s{run}"), "data", text(bytes_)]

    return [
        Case(f"{name}, one key", one),
        Case(f"{name}, {size:,} keys", many, streams, random=True),
        Case(f"{name} and evict", limited, lambda peer, _: fill(peer, LIMIT)),
        Case(f"{name}, 1 KB", large(1000), payload=1000),
        Case(f"{name}, 10 KB", large(10_000), payload=10_000),
        Case(f"{name} JSON, 1 KB", one, payload=1000, json=True),
        Case(f"{name} JSON, 10 KB", one, payload=10_000, json=True),
        Case(f"{name}, old keyspace", one, strings),
        Case(f"{name}, 1 client", one, pipelines=(1,), clients=1),
    ]


def _reads() -> list[Case]:
    def newest(peer: Peer, _: int) -> list[str]:
        return [range_word(peer).replace("RANGE", "REVRANGE"), "s", "+", "-", "COUNT", "10"]

    def oldest(count: int) -> Callable[[Peer, int], list[str]]:
        return lambda peer, _: [range_word(peer), "s", "-", "+", "COUNT", str(count)]

    return [
        Case("newest 10", newest, filled), Case("oldest 10", oldest(10), filled),
        Case("oldest 100", oldest(100), filled),
    ]  # fmt: skip


def filled(peer: Peer, size: int) -> None:
    fill(peer, size)
    peer.settle()


def strings(peer: Peer, size: int) -> None:
    """A number in each key, so that each of SET, GET and INCR finds one. The server has been running for a while."""
    each_key(peer, size, lambda key: pack("SET", key, "100"), lines=1)


def streams(peer: Peer, size: int) -> None:
    """An entry in each stream."""
    each_key(peer, size, lambda key: pack(*append_words(peer, key), *SENSOR))


def each_key(peer: Peer, size: int, command: Callable[[str], bytes], lines: int = 2) -> None:
    """Send a command, whose reply has so many lines, for each of the names that redis-benchmark generates."""
    with peer.connect() as sock:
        waiting = Replies(sock, peer.name, lines)
        for start in range(0, size, BATCH):
            numbers = range(start, min(size, start + BATCH))
            sock.sendall(b"".join([command(f"k:{number:012}") for number in numbers]))
            waiting.take(len(numbers), at_most=BATCH)
        waiting.take(0, at_most=0)
    peer.settle()


# -- measuring ---------------------------------------------------------------------------------------------------
@workload(
    "cpu", "us of the server's CPU per command, user + system: PING, strings, appends, short reads; P 1, 16; everysec",
    sizes=(1_000_000,), quick_sizes=(2000,), requests=200_000, quick_requests=5000,
)  # fmt: skip
def cpu(bench: Bench) -> None:
    """``size`` is the number of keys, and of entries in the stream that is read. With --nats see ``publishing``."""
    if bench.nats:
        publishing(bench)
        return
    size = bench.sizes[0]
    for case in [*_strings(), *_appends("append", size), *_reads()]:
        measured(bench, case, x=False)
    cold(bench)
    groups(bench, x=False)
    for case in _appends("xadd", size):
        measured(bench, case, x=True)
    groups(bench, x=True)


def measured(bench: Bench, case: Case, x: bool) -> None:
    """The rows of a case, on servers of its own."""
    wanted = [pipeline for pipeline in case.pipelines if bench.wants(case.row(pipeline))]
    if not wanted:
        return
    size = bench.sizes[0]
    with bench.servers(x=x) as peers:
        if case.prepare is not None:
            for peer in peers:
                case.prepare(peer, size)
        for pipeline in wanted:
            costs: dict[str, list[Cost]] = {}

            def measure(
                peer: Peer, run: int, pipeline: int = pipeline, costs: dict[str, list[Cost]] = costs
            ) -> float:
                count = case.requests(bench.requests, pipeline)
                words, keys = case.words(peer, run), size if case.random else 0
                meter = Meter(peer.pid)
                if case.json:
                    rate = play_json(peer, f"s{run}", case.payload, count, case.clients, pipeline)
                else:
                    rate = redis_benchmark(peer.port, words, count, case.clients, pipeline, keys)
                spent = each(meter, count_of(count, case.clients, pipeline), bench.quick)
                if run:
                    costs.setdefault(peer.name, []).append(Cost(spent, rate))
                return spent.whole

            cost_row(bench, case.row(pipeline), bench.interleave(case.row(pipeline), peers, measure), costs)


def cost_row(
    bench: Bench, title: str, figures: Figures, costs: Mapping[str, Sequence[Cost]], what: str = "command"
) -> None:
    """A row of CPU; the medians of user and system with it, and the rate as a note."""
    parts = {
        name: (median(cost.spent.user for cost in found), median(cost.spent.system for cost in found))
        for name, found in costs.items()
    }
    rates = ", ".join(f"{name} {median(cost.rate for cost in found):,.0f}" for name, found in costs.items())
    bench.table.row(
        title, figures, less_is_better=True, form=".2f", unit=f"us of CPU a {what}: user + system", parts=parts,
        note=f"{what}s/s: {rates}",
    )  # fmt: skip


def each(meter: Meter, count: int, quick: bool) -> Spent:
    """Microseconds each of ``count`` commands took. ``quick``: without what comes after the last of them."""
    spent = meter.spent() if quick else meter.settled()
    return Spent(spent.user / count * 1e6, spent.system / count * 1e6)


def count_of(requests: int, clients: int, pipeline: int) -> int:
    """What redis_benchmark() makes of a number of requests: whole pipelines, one for each client at least."""
    return -(-max(requests, clients * pipeline) // pipeline) * pipeline


# -- rates -------------------------------------------------------------------------------------------------------
def cold(bench: Bench) -> None:
    """Ranges at random places whose nodes come from the store; one connection, one request at a time."""
    wanted = {count: title for count in (10, 100) if bench.wants(title := f"cpu, cold range of {count}")}
    if not wanted:
        return
    with bench.servers() as peers:
        for peer in peers:
            filled(peer, bench.sizes[0])
            cached(peer, COLD)
        for count, title in wanted.items():
            times = 200 if bench.quick else 10_000
            made: dict[str, list[Request]] = {peer.name: range_requests(peer, count, times) for peer in peers}

            def requests(peer: Peer, _: int, made: dict[str, list[Request]] = made) -> tuple[float, int]:
                played = made[peer.name]
                return sum(request.entries for request in played) / play(peer, played), len(played)

            rate_row(bench, title, peers, requests, "entries/s", "range")


def groups(bench: Bench, x: bool) -> None:
    """One reader: read, wait, acknowledge, wait, as the workload ``group`` has it."""
    name = "xreadgroup" if x else "group read"
    wanted = {count: title for count in (1, 10) if bench.wants(title := f"cpu, {name} of {count} and ack")}
    if not wanted:
        return
    with bench.servers(x=x) as peers:
        for peer in peers:
            filled(peer, bench.sizes[0])
        for count, title in wanted.items():
            times = min(bench.sizes[0] // count, 200 if bench.quick else 10_000)
            scripts = {peer.name: Script(peer, count, times * count, pending=True) for peer in peers}

            def read(
                peer: Peer, run: int, scripts: dict[str, Script] = scripts, times: int = times
            ) -> tuple[float, int]:
                return scripts[peer.name].play(f"g{run}"), times

            rate_row(bench, title, peers, read, "messages/s", "read and ack")


def rate_row(
    bench: Bench, title: str, peers: Sequence[Peer], run_once: Callable[[Peer, int], tuple[float, int]], unit: str,
    what: str,
) -> None:  # fmt: skip
    """A row of rates, with the CPU as a note. ``run_once`` returns the rate, and how many requests were made."""
    costs: dict[str, list[Spent]] = {}

    def measure(peer: Peer, run: int) -> float:
        meter = Meter(peer.pid)
        rate, count = run_once(peer, run)
        spent = each(meter, count, bench.quick)
        if run:
            costs.setdefault(peer.name, []).append(spent)
        return rate

    figures = bench.interleave(title, peers, measure)
    took = ", ".join(
        f"{name} {median(one.user for one in found):.1f} + {median(one.system for one in found):.1f}"
        for name, found in costs.items()
    )
    bench.table.row(title, figures, unit=unit, note=f"us of CPU a {what}, user + system: {took}")
