"""``python -m benchmarks.tieredreads``: short reads of entries that are only in an object store.

The server has sensor readings in a bucket of ``delayedstore``, which answers each request after ``--delay`` ms, and no
sealed node in its own store (``tier-free yes``). Its memory caches no decoded nodes, so ``cached`` is the disk cache.
All reads are ``TRANGE KEY from + COUNT 10`` at random positions:

cached        one client, all nodes in the disk cache
not cached    one client. The files of the cache are deleted before each read
100 clients   each reads once, at the same time, in rounds. The files are deleted before each round

Meanwhile, another process sends a PING each millisecond. ``idle`` shows the PINGs without reads, so what the machine
causes. Nothing is pinned: the server, its process that reads objects, the store, and the load share the cores.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import selectors
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from statistics import quantiles

import click
import hiredis

from benchmarks import facts
from benchmarks.delayedstore import Share, delayed_store, share
from benchmarks.entries import pack
from benchmarks.servers import THIS, Peer, peers_of
from benchmarks.stalls import Pings, probe, running
from benchmarks.tiered import KEY, fill_and_move, options, persistence

CLIENTS = 100
COUNT = 10  # entries of a read
TOGETHER = f"{CLIENTS} clients"
UNCACHED = 25  # reads of one client in a round
BATCH = 1000  # entries with the same time: those of one command
SECONDS = 5.0  # without reads
#: Floors and goals of p50 and p99, and of the longest PING, ms
TARGETS = {"cached": "1.5, 10 / 0.5, 2", "not cached": "30, 80 / 25, 40"}
PING_TARGET = "10 / 2"

Spans = list[tuple[str, float, float]]  # a phase, and the times by time.monotonic() between which it ran


class Reader:
    """A connection that reads at random positions."""

    def __init__(self, peer: Peer, positions: Callable[[], str]) -> None:
        self.sock = peer.connect()
        self._positions = positions
        self._decoder = hiredis.Reader()
        self._began = 0.0

    def send(self) -> None:
        command = pack("TRANGE", KEY, self._positions(), "+", "COUNT", COUNT)
        self._began = time.perf_counter()
        self.sock.sendall(command)

    def receive(self) -> float | None:
        """Receive what has arrived. Return the seconds of the read at its end. Raises click.ClickException."""
        self._decoder.feed(self.sock.recv(1 << 16))
        reply = self._decoder.gets()
        if reply is False:
            return None
        took = time.perf_counter() - self._began
        if isinstance(reply, hiredis.ReplyError) or len(reply) != COUNT:
            raise click.ClickException(f"a read returned {reply}")
        return took


def positions(peer: Peer) -> Callable[[], str]:
    """Return a function that returns random positions in the entries that are in the object store."""
    with peer.client() as client:
        first, last = (
            int(bytes(client.execute_command(*words)[0][0]).split(b".")[0])
            for words in (("TRANGE", KEY, "-", "+", "COUNT", 1), ("TREVRANGE", KEY, "+", "-", "COUNT", 1))
        )
    rng = random.Random(1)
    end = first + int(0.98 * (last - first))  # the last nodes are local
    return lambda: f"{rng.randint(first, end)}.{rng.randrange(BATCH)}"


def empty_cache(peer: Peer) -> None:
    """Delete the files of the disk cache."""
    for path in (peer.directory / "tier-cache").iterdir():
        with suppress(FileNotFoundError):
            path.unlink()


def wait_for_reads(peer: Peer, delay: float) -> None:
    """Wait until nothing more is read ahead. ``delay``: of a call to the store, in seconds."""
    before = -1
    while (nodes := persistence(peer)["tier_fetched_nodes"]) != before:
        before = nodes
        time.sleep(delay + 0.03)


def read_all(peer: Peer) -> None:
    """Read all entries. All nodes are then in the disk cache, and all objects in the memory of the store."""
    with peer.client() as client:
        after = "-"
        while entries := client.xrange(KEY, after, "+", 10 * BATCH):
            after = f"({entries[-1][0].decode()}"


def one_client(reader: Reader, count: int) -> list[float]:
    """Return the seconds of reads, one after another."""
    found: list[float] = []
    while len(found) < count:
        reader.send()
        while (took := reader.receive()) is None:
            pass
        found.append(took)
    return found


def together(readers: Sequence[Reader]) -> list[float]:
    """Return the seconds of a read of each client, all at the same time."""
    found: list[float] = []
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader.sock, selectors.EVENT_READ, reader)
        for reader in readers:
            reader.send()
        while len(found) < len(readers):
            for key, _ in selector.select():
                if (took := key.data.receive()) is not None:
                    found.append(took)
    return found


def p50_and_p99(seconds: Sequence[float]) -> str:
    cuts = quantiles(seconds, n=100, method="inclusive")
    return f"{cuts[49] * 1000:.2f} | {cuts[98] * 1000:.2f}"


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def process_that_reads(peer: Peer) -> int:
    """Return its process ID."""
    children = Path(f"/proc/{peer.pid}/task/{peer.pid}/children").read_text().split()
    return next(pid for pid in map(int, children) if b"tiering.reader" in Path(f"/proc/{pid}/cmdline").read_bytes())


class Result:
    """Seconds by phase: of reads, of PINGs, and of CPU time."""

    def __init__(self) -> None:
        self.reads: dict[str, list[float]] = {"cached": [], "not cached": [], TOGETHER: []}
        self.pings: dict[str, list[float]] = {"idle": [], **{name: [] for name in self.reads}}
        self.cpu = {name: [0.0, 0.0] for name in self.pings}  # of the server, of its process that reads objects
        self.proxy = Share([], 0.0)


def measure(peer: Peer, reads: int, rounds: int, delay: float) -> Result:
    """Measure all phases."""
    result = Result()
    spans: Spans = []
    pings: SimpleQueue[Pings] = multiprocessing.SimpleQueue()
    where = positions(peer)
    readers = [Reader(peer, where) for _ in range(CLIENTS)]
    with ThreadPoolExecutor(1) as receiver, running(probe, peer.port, pings):
        received = receiver.submit(pings.get)

        def phase(name: str, run: Callable[[], list[float]]) -> None:
            before = cpu(peer.pid), cpu(process)
            began = time.monotonic()
            result.reads[name] += run()
            spans.append((name, began, time.monotonic()))
            result.cpu[name][0] += cpu(peer.pid) - before[0]
            if name != "cached":
                wait_for_reads(peer, delay)
            result.cpu[name][1] += cpu(process) - before[1]

        time.sleep(0.5)  # the process has started
        began, used = time.monotonic(), cpu(peer.pid)
        time.sleep(SECONDS)
        spans.append(("idle", began, time.monotonic()))
        result.cpu["idle"][0] = cpu(peer.pid) - used
        read_all(peer)
        process = process_that_reads(peer)
        share()
        phase("cached", lambda: one_client(readers[0], reads))
        for _ in range(rounds):
            for _ in range(UNCACHED):
                empty_cache(peer)
                phase("not cached", lambda: one_client(readers[0], 1))
            empty_cache(peer)
            phase(TOGETHER, lambda: together(readers))
        result.proxy = share()
    for reader in readers:
        reader.sock.close()
    for sent, took in received.result():
        for name, start, end in spans:
            if start <= sent < end:
                result.pings[name].append(took)
    return result


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rows", type=click.IntRange(20_000), default=2_000_000, show_default=True, help="Entries.")
@click.option("--delay", type=click.FloatRange(0), default=20.0, show_default=True, help="ms per call to the store.")
@click.option("--reads", type=click.IntRange(100), default=5000, show_default=True, help="Cached reads.")
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True,
              help=f"Rounds of {CLIENTS} clients, each after {UNCACHED} reads of one client.")
def main(rows: int, delay: float, reads: int, rounds: int) -> None:
    """Measure short reads of entries that are only in an object store, and PINGs meanwhile."""
    rows = rows // BATCH * BATCH
    click.echo(facts.summary(facts.machine(), facts.described([THIS])))
    with delayed_store(delay / 1000) as url, peers_of([THIS], "everysec", unpinned=True) as (peer,):
        peer.start(*options(url, interval=1), "--node-cache-size", "0")
        before = fill_and_move(peer, rows, "the server")
        moved, size, nodes = (before[f"tier_{name}"] for name in ("entries", "bytes", "freed_nodes"))
        click.echo(f"{moved:,} of {rows:,} entries are in {size / 1e6:,.1f} MB of objects; {delay:g} ms per call")
        click.echo(f"{nodes:,} nodes left the store\n")
        others = facts.Others()
        result = measure(peer, reads, rounds, delay / 1000)
        after = persistence(peer)
        busy = os.getloadavg()[0]
    show(result)
    nodes, errors = (after[name] - before[name] for name in ("tier_fetched_nodes", "tier_fetch_errors"))
    late, seconds = result.proxy
    click.echo(f"\n{nodes:,} nodes were read with {len(late):,} calls to the object store, {errors} errors")
    lateness = f"{p50_and_p99(late).replace(' | ', ' / ')} / {max(late) * 1000:.2f}"
    click.echo(f"its responses were late by p50 / p99 / most, ms: {lateness}; it used {seconds:.1f} s of CPU time")
    click.echo(f"other programs used {others.share():.2f} of a core, load average {busy:.1f}")


def show(result: Result) -> None:
    """Print the tables."""
    click.echo("CPU time per read: of the server without PINGs, and of its process that reads objects, also ahead\n")
    click.echo(f"| TRANGE COUNT 10 | reads | p50, ms | p99, ms | CPU time, us | floor / goal |\n{'|---' * 6}|")
    for name, times in result.reads.items():
        server, process = result.cpu[name]
        server -= len(result.pings[name]) * result.cpu["idle"][0] / len(result.pings["idle"])
        used = " + ".join(f"{seconds / len(times) * 1e6:,.0f}" for seconds in (server, process))
        click.echo(f"| {name} | {len(times):,} | {p50_and_p99(times)} | {used} | {TARGETS.get(name, '')} |")
    click.echo(f"\n| PINGs meanwhile | PINGs | p50, ms | p99, ms | longest, ms | floor / goal |\n{'|---' * 6}|")
    for name, times in result.pings.items():
        target = PING_TARGET if name == TOGETHER else ""
        click.echo(f"| {name} | {len(times):,} | {p50_and_p99(times)} | {max(times) * 1000:.2f} | {target} |")


if __name__ == "__main__":
    main()
