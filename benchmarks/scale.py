"""The cases of ``scripts/bench --long``: what becomes of the figures when there is much of everything.

    entries      one stream, --base and --entries entries: seeks, appends, memory, start-up
    streams      many streams with a few entries each
    groups       many groups on one stream
    pending      many pending messages in one group
    connections  many clients that say nothing

Rule 1: what is compared is measured in turns, A B A B, on servers that run side by side.
Rule 2: a checkpoint is made before memory is read: what waits for one is bounded by ``checkpoint-size``, not by size.
Rule 3: a target that is missed is said in the table; it does not end the run.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click

from benchmarks import scaleload as load
from benchmarks.entries import SENSOR, pack
from benchmarks.load import ends
from benchmarks.scaleload import Line, percentile
from benchmarks.servers import CORES, Peer

MIB = 1 << 20
HEAD = "| measure | figure | compared with | ratio | asked |\n|---|---|---|---|---|"
SAMPLES = 2000  # seeks and PINGs a round, at most
MOST_OF_REDIS = 10_000_000  # entries
MARKS = 200  # places of which the IDs are asked beforehand
HOUR = 3_600_000  # ms


def short(count: int) -> str:
    for unit, name in ((1_000_000, "M"), (1000, "k")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count:,}"


class Report:
    """The table as it grows, and the same as rows for ``--json``."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def row(
        self, measure: str, figure: float, base: float | None = None, *, form: str = ",.0f",
        most: float | None = None, ratio: float | None = None, least_ratio: float | None = None,
    ) -> None:  # fmt: skip
        """``most``: of the figure; ``ratio``, ``least_ratio``: the most and the least that figure / base may be."""
        found = figure / base if base else None
        asked, met = [], True
        if most is not None:
            asked.append(f"at most {most:{form}}")
            met = figure <= most
        if ratio is not None and found is not None:
            asked.append(f"ratio at most {ratio}")
            met = met and found <= ratio
        if least_ratio is not None and found is not None:
            asked.append(f"ratio at least {least_ratio}")
            met = met and found >= least_ratio
        said = f"{', '.join(asked)}: {'met' if met else 'MISSED'}" if asked else ""
        compared = "" if base is None else f"{base:{form}}"
        click.echo(f"| {measure} | {figure:{form}} | {compared} | {'' if found is None else f'{found:.2f}'} | {said} |")
        self.rows.append({"measure": measure, "figure": figure, "base": base, "ratio": found, "asked": said})


class Run(NamedTuple):
    """What all cases are given."""

    report: Report
    top: Path  # where data directories are made
    keep: bool  # whether filled ones stay, and are used again
    command: list[str]  # of tidelog-server
    ours: bool  # it is the tidelog that is measured (``measured``)
    rounds: int
    requests: int  # of each measurement
    redis: bool  # redis-server, too

    @property
    def samples(self) -> int:
        return min(SAMPLES, self.requests)

    @contextlib.contextmanager
    def server(self, name: str, *more: str) -> Iterator[Peer]:
        """A server that runs; its directory goes with it unless it is to be kept."""
        directory = self.top / name
        directory.mkdir(parents=True, exist_ok=True)
        core = min(CORES) if len(CORES) > 1 else None
        peer = Peer("tidelog", self.command, directory, "everysec", core, ours=self.ours)
        try:
            peer.start("--loglevel", "warning", *more)
            yield peer
        finally:
            peer.stop()
            if not self.keep or name == "evicted":
                shutil.rmtree(directory)


def resident(peer: Peer) -> int:
    """Bytes of memory of the process, mapped pages of the store included, which the system may take back any time."""
    assert peer.process is not None
    status = Path(f"/proc/{peer.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def restart(peer: Peer) -> float:
    """Stop in good order, start; seconds to the first reply."""
    peer.stop()
    return peer.start("--loglevel", "warning")


def checkpoint(report: Report, peer: Peer, subject: str, most: float | None = None) -> None:
    """Make a checkpoint; report what others wait meanwhile (``most``: milliseconds, at most) and how long it takes."""
    longest, took = load.checkpoint(peer.port)
    report.row(f"{subject}: ms of the longest PING while a checkpoint runs", longest * 1000, form=".1f", most=most)
    report.row(f"{subject}: seconds of that checkpoint", took, form=".2f")


# -- entries -----------------------------------------------------------------------------------------------------
def entries(run: Run, base: int, size: int) -> None:
    """One stream of ``size`` entries, compared with one of ``base``."""
    report, name = run.report, short(size)
    with run.server(f"entries-{base}") as small, run.server(f"entries-{size}") as large:

        def memory(when: str) -> None:
            figures = (peer.memory() / MIB for peer in (large, small))
            report.row(f"{name} entries: MiB of memory, {when}", *figures, most=1024)

        for peer, count in ((small, base), (large, size)):
            with Line(peer.port) as line:
                there = line.ask("TLEN", "s")
                if there < count:
                    rate = load.fill(peer.port, "s", count - there, short(count))
                    report.row(f"fill to {short(count)} entries by TMAPPEND, entries a second", rate)
                line.settle()

        report.row(f"{name} entries: bytes on disk an entry", large.disk() / size, small.disk() / base, form=".1f")
        memory("just filled")

        starts = [(restart(large), restart(small)) for _ in range(run.rounds)]
        report.row(
            f"{name} entries: seconds to start", median(s[0] for s in starts), median(s[1] for s in starts),
            form=".2f", most=5,
        )  # fmt: skip
        memory("after a start")

        for peer in (small, large):
            load.drop_files(peer.directory / "store")
        _seeks(run, small, large, f"{name} entries, read from the disk:")
        for peer in (small, large):
            load.cache_files(peer.directory / "store")
        _seeks(run, small, large, f"{name} entries, in the system's cache:", 1.5)
        memory("after the seeks")
        report.row(f"{name} entries: MiB resident with mapped pages of the store", resident(large) / MIB)

        _appends(run, small, large, name)
        checkpoint(report, large, f"{name} entries")
        if run.redis:
            _redis(run, min(size, MOST_OF_REDIS))

        large.stop()
        shutil.copytree(large.directory, run.top / "evicted")  # it may be kept
        small.stop()
        with run.server("evicted") as peer:
            _evict(run, peer, size, name)


def _redis(run: Run, size: int) -> None:
    """The same in redis-server, as far as memory allows: what its memory and its start grow to."""
    report, name = run.report, f"redis-server with {short(size)} entries:"
    with tempfile.TemporaryDirectory(dir=run.top) as top:
        peer = Peer("redis", ["redis-server"], Path(top), "everysec", min(CORES) if len(CORES) > 1 else None)
        try:
            peer.start()
            load.fill_redis(peer.port, "s", size)
            peer.settle()
            report.row(f"{name} MiB of memory", peer.memory() / MIB)
            peer.stop()
            report.row(f"{name} seconds to start", peer.start(), form=".2f")

            first, last = ends(peer)
            with Line(peer.port) as line:
                rng = random.Random(7)
                seeks = [pack("XRANGE", "s", rng.randint(first, last), "+", "COUNT", 1) for _ in range(run.samples)]
                report.row(f"{name} XRANGE COUNT 1, us at p99", percentile(line.timed(seeks), 99) * 1e6)
        finally:
            peer.kill()


def _evict(run: Run, peer: Peer, size: int, name: str) -> None:
    """Nine tenths go at once, then the rest with its key; each time, what others wait."""
    report = run.report
    evict, delete = ("TAPPEV", "s", "COUNT", size // 10), ("DEL", "s")
    for words, what in (evict, "nine tenths evicted"), (delete, "all deleted"):
        with Line(peer.port) as line, load.Pings(peer.port) as pings:
            line.ask(*words)
            time.sleep(0.05)
        report.row(f"{name} entries, {what} at once: ms of the longest PING", pings.longest * 1000, form=".1f",
                   most=50)  # fmt: skip
        checkpoint(report, peer, f"{name} entries, {what}", most=50)


def _seeks(run: Run, small: Peer, large: Peer, name: str, most: float | None = None) -> None:
    """TSEEK and TRANGE at random places, in turns. ``most``: the ratio asked of the 99th percentile."""
    rng = random.Random(7)
    for word in ("TSEEK", "TRANGE COUNT 1"):
        found: dict[Peer, list[float]] = {small: [], large: []}
        for number in range(run.rounds + 1):
            for peer in (small, large):
                with Line(peer.port) as line:
                    seconds = line.timed(_places(line, word, rng, run.samples))
                if number:  # the first round fills caches
                    found[peer] += seconds
        for percent, ratio in ((50, None), (99, most)):
            figure, base = (percentile(found[peer], percent) * 1e6 for peer in (large, small))
            run.report.row(f"{name} {word} at random places, us at p{percent}", figure, base, form=".0f", ratio=ratio)


def _places(line: Line, word: str, rng: random.Random, samples: int) -> list[bytes]:
    """Commands that look at entries all over the stream."""
    length = line.ask("TLEN", "s")
    if word == "TSEEK":
        return [pack("TSEEK", "s", 0, rng.randrange(1, length)) for _ in range(samples)]
    # Times between neighbouring places: the stream may have been filled in several runs, with hours between them.
    places = [1 + (length - 1) * n // MARKS for n in range(MARKS + 1)]
    marks = [int(line.ask("TSEEK", "s", 0, place).split(b".")[0]) for place in places]
    made = []
    for _ in range(samples):
        at = rng.randrange(MARKS)
        made.append(pack("TRANGE", "s", rng.randint(marks[at], marks[at + 1]), "+", "COUNT", 1))
    return made


def _appends(run: Run, small: Peer, large: Peer, name: str) -> None:
    rates: dict[Peer, list[float]] = {small: [], large: []}
    for number in range(run.rounds + 1):
        for peer in (small, large):
            rate = load.append_rate(peer.port, "s", run.requests)
            if number:
                rates[peer].append(rate)
    title = f"{name} entries: appends a second (50 clients, P 16)"
    run.report.row(title, median(rates[large]), median(rates[small]), least_ratio=0.9)


# -- streams -----------------------------------------------------------------------------------------------------
def streams(run: Run, base: int, size: int) -> None:
    """``size`` streams of few entries, compared with ``base``."""
    report, name = run.report, short(size)
    with run.server(f"streams-{base}") as small, run.server(f"streams-{size}") as large:
        rng = random.Random(3)
        rates = {}
        for peer, count in ((small, base), (large, size)):
            empty = peer.memory()
            keys = [f"st:{i}" for i in range(count)]
            load.push(peer.port, [pack("TAPPEND", key, *SENSOR) for key in keys], f"making {short(count)}")
            if peer is large:
                checkpoint(report, peer, f"{name} new streams", most=50)
                report.row(f"{name} streams: bytes of memory each", (peer.memory() - empty) / size)
            else:
                load.checkpoint(peer.port)
            chosen = [pack("TAPPEND", rng.choice(keys), *SENSOR) for _ in range(run.requests)]
            rates[peer] = load.push(peer.port, chosen, "appending to random ones", 64)
        report.row(f"{name} streams: appends a second to random ones (1 client, P 64)", rates[large], rates[small])

        checkpoint(report, large, f"{name} changed streams", most=50)
        report.row(f"{name} streams: seconds to start", restart(large), restart(small), form=".2f", most=5)
        report.row(f"{name} streams: bytes of memory each, after a start", (large.memory() - empty) / size)
        with Line(large.port) as line:
            for word in ("INFO", "FLUSHALL"):
                report.row(f"{name} streams: ms of {word}", line.timed([pack(word)])[0] * 1000, form=".1f")


# -- groups ------------------------------------------------------------------------------------------------------
def groups(run: Run, base: int, size: int) -> None:
    """``size`` groups on one stream, compared with ``base``."""
    report, name = run.report, short(size)
    with run.server(f"groups-{base}") as small, run.server(f"groups-{size}") as large:
        empty = 0
        joins, rates = {}, {}
        for peer, count in ((small, base), (large, size)):
            load.fill(peer.port, "s", 100_000, peer.directory.name)
            empty = peer.memory()
            made = [pack("TREAD", "s", 0, 1, "GROUP", f"g{i}", HOUR, "RETRY", HOUR, HOUR) for i in range(count)]
            joins[peer] = load.push(peer.port, made, f"making {short(count)}")
        report.row(f"{name} groups on a stream: bytes of memory each", (large.memory() - empty) / size)
        report.row(f"{name} groups: first reads a second", joins[large], joins[small])
        checkpoint(report, large, f"{name} groups", most=50)

        rng = random.Random(3)
        for peer, count in ((small, base), (large, size)):
            chosen = [pack("TREAD", "s", 0, 1, "GROUP", f"g{rng.randrange(count)}", HOUR) for _ in range(run.requests)]
            rates[peer] = load.push(peer.port, chosen, "reading for random ones", 64)
        report.row(f"{name} groups: reads a second for random ones (1 client, P 64)", rates[large], rates[small])

        report.row(f"{name} groups: seconds to start", restart(large), restart(small), form=".2f", most=5)
        rates = {peer: load.append_rate(peer.port, "s", run.requests) for peer in (small, large)}
        report.row(f"{name} groups: appends a second (50 clients, P 16)", rates[large], rates[small])


# -- pending -----------------------------------------------------------------------------------------------------
def pending(run: Run, base: int, size: int) -> None:
    """``size`` pending messages in one group (whole thousands), compared with ``base``."""
    some = 1000
    base, size = max(base, some), max(size, some)
    report, name = run.report, short(size)
    with run.server(f"pending-{base}") as small, run.server(f"pending-{size}") as large:
        rates: dict[Peer, list[float]] = {}
        empty = 0
        for peer, count in ((small, base), (large, size)):
            load.fill(peer.port, "s", count, short(count))
            with Line(peer.port) as line:
                line.settle()
                empty = peer.memory()
                read = pack("TREAD", "s", 0, some, "GROUP", "g", 0, "RETRY", HOUR, 24 * HOUR)
                rates[peer] = [load.push(peer.port, [read] * (count // some), "delivering", 2) * some]
        report.row(f"{name} pending messages: bytes of memory each", (large.memory() - empty) / size, most=150)
        checkpoint(report, large, f"{name} pending", most=50)
        report.row(f"{name} pending: seconds to start", restart(large), restart(small), form=".2f", most=5)

        for peer, count in ((small, base), (large, size)):
            with Line(peer.port) as line:
                ids = [row[0] for row in line.ask("TPENDING", "s", "g", "-", "+", count)]
            parts = [ids[at : at + some] for at in range(0, count, some)]
            for commands, label in (
                ([pack("TNACK", "s", "g", *part) for part in parts], "giving back"),
                ([read] * len(parts), "delivering again"),
                ([pack("TACK", "s", "g", *part) for part in parts], "acknowledging"),
            ):
                rates[peer].append(load.push(peer.port, commands, label, 2) * some)
            with Line(peer.port) as line:
                left = line.ask("TPENDING", "s", "g")[0]
            if left:
                raise click.ClickException(f"{left} messages are still pending")

        for what, figure, other in zip(
            ("delivered", "given back", "delivered again", "acknowledged"), rates[large], rates[small], strict=True
        ):
            report.row(f"{name} pending: {what} a second, {some} a command", figure, other)


# -- connections -------------------------------------------------------------------------------------------------
def connections(run: Run, base: int, size: int) -> None:  # noqa: ARG001 - compared with none: a case like the others
    """``size`` clients that say nothing, compared with none."""
    report, name = run.report, short(size)
    load.allow_files(size + 200)
    with run.server("connections", "--maxclients", str(size + 100)) as peer:
        ping, found = [pack("PING")] * run.samples, []
        with Line(peer.port) as line:
            line.timed(ping)
            before, alone = peer.memory(), line.timed(ping * run.rounds)
            rate = load.append_rate(peer.port, "a", run.requests)
            socks = load.idle_connections(peer.port, size)
            try:
                report.row(f"{name} idle connections: bytes of memory each", (peer.memory() - before) / size)
                began, used = time.perf_counter(), peer.cpu_seconds()
                time.sleep(run.rounds)
                share = (peer.cpu_seconds() - used) / (time.perf_counter() - began) * 100
                report.row(f"{name} idle connections: % of a core while nobody speaks", share, form=".1f")
                found = line.timed(ping * run.rounds)
                for percent in (50, 99):
                    figure, other = (percentile(values, percent) * 1e6 for values in (found, alone))
                    report.row(f"{name} idle connections: PING, us at p{percent}", figure, other, form=".0f")
                figure = load.append_rate(peer.port, "a", run.requests)
                report.row(f"{name} idle connections: appends a second (50 clients, P 16)", figure, rate)
            finally:
                for sock in socks:
                    sock.close()


Case = Callable[[Run, int, int], None]
CASES: dict[str, Case] = {c.__name__: c for c in (entries, streams, groups, pending, connections)}
