"""``python -m benchmarks.stalls``: the longest PING during mixed load and background work.

Rule 1: the server runs on the first core; everything else runs on the last. A process of its own, with a real-time
priority if the system permits it, sends a PING each millisecond. The longest PING includes what the kernel or the host
ran on the server's core meanwhile. The phase ``idle``, without load, shows how long that is.
Rule 2: the requests of the load are due at a fixed rate (``openloop``). They append to streams that are at their limit,
so that each append evicts, read the newest entries, set, and get.
Rule 3: the phases repeat. ``load`` has no background work; ``checkpoint`` is BGSAVE, or BGREWRITEAOF for Redis;
``backup`` is ``tidelog backup``, or BGSAVE for Redis; ``replica`` is a new replica, until it is in sync. All of them
have the load.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import cycle
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from random import Random

import click

from benchmarks import facts
from benchmarks.entries import Words, fill, made_up, pack
from benchmarks.openloop import Load, Requests, percentiles
from benchmarks.replication import replica_of
from benchmarks.servers import Peer, environment, installations, on_load_core, peers_of

CLIENTS = 20
KEYS = 1000
LIMIT = 1000  # entries of a stream
STORED = 2_000_000  # entries of one more stream, so that copies and backups take seconds
SLICE = 0.5  # seconds of load between two checks whether it should end

Pings = list[tuple[float, float]]  # when it was sent, by time.monotonic(), and the seconds that it took


def probe(port: int, found: SimpleQueue[Pings], ended: Event) -> None:
    """Send a PING each millisecond until ``ended``."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    pings: Pings = []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        while not ended.is_set():
            began = time.monotonic()
            sock.sendall(b"*1\r\n$4\r\nPING\r\n")
            sock.recv(64)
            pings.append((began, time.monotonic() - began))
            time.sleep(0.001)
    found.put(pings)


def requests(peer: Peer, number: int) -> Requests:
    """Return the requests of a connection: half of them append and evict, the others read, set, and get."""
    rng = Random(number)
    entries = cycle(made_up("json", 1000))

    def append() -> Words:
        key = f"stream:{rng.randrange(KEYS)}"
        if peer.redis:
            return ("XADD", key, "MAXLEN", "~", LIMIT, "*", *next(entries))
        return ("TAPPEV", key, "COUNT", LIMIT, *next(entries))

    def read() -> Words:
        return ("XREVRANGE" if peer.redis else "TREVRANGE", f"stream:{rng.randrange(KEYS)}", "+", "-", "COUNT", 10)

    def store() -> Words:
        return ("SET", f"string:{rng.randrange(KEYS)}", f"{rng.random():.6f}")

    def get() -> Words:
        return ("GET", f"string:{rng.randrange(KEYS)}")

    kinds = (append, append, append, read, store, get)
    made = cycle([pack(*rng.choice(kinds)()) for _ in range(5000)])
    return Requests(peer.connect(), lambda _: next(made))


def send(peer: Peer, rate: float, ended: Event) -> None:
    """Send requests at a rate until ``ended``."""
    os.nice(5)  # a backup and a replica share the core with it, and it never sleeps
    with Load([requests(peer, number) for number in range(CLIENTS)]) as load:
        while not ended.is_set():
            load.at_rate(rate, max(2, int(rate * SLICE)))


@contextmanager
def running(target: Callable[..., None], *arguments: object) -> Iterator[None]:
    """Run a function in a process, with an event as its last argument, which is set at the end."""
    ended = multiprocessing.Event()
    process = multiprocessing.Process(target=target, args=(*arguments, ended))
    process.start()
    try:
        yield
    finally:
        ended.set()
        process.join()
        if process.exitcode:
            raise click.ClickException(f"{target.__name__} has failed: exit code {process.exitcode}")


def checkpoint(peer: Peer) -> None:
    """Write a checkpoint, or rewrite the AOF."""
    with peer.client() as client:
        client.execute_command("BGREWRITEAOF" if peer.redis else "BGSAVE")
        field = "aof_rewrite_in_progress" if peer.redis else "rdb_bgsave_in_progress"
        while int(client.info("persistence")[field]):
            time.sleep(0.05)


def backup(peer: Peer) -> None:
    """Copy the data of the running server."""
    if peer.redis:
        with peer.client() as client:
            client.execute_command("BGSAVE")
            while int(client.info("persistence")["rdb_bgsave_in_progress"]):
                time.sleep(0.05)
        return
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as directory:
        command = [sys.executable, "-P", "-m", "tidelog.cli", "backup", f"{directory}/copy"]
        command += ["--url", f"redis://127.0.0.1:{peer.port}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment(True))


def replica(peer: Peer) -> None:
    """Let a new replica copy everything."""
    with replica_of(peer):
        pass


BACKGROUND: dict[str, Callable[[Peer], None]] = {"checkpoint": checkpoint, "backup": backup, "replica": replica}


def measure(peer: Peer, rate: float, seconds: float, pause: float) -> dict[str, list[float]]:
    """Return the seconds of the PINGs of each phase. ``pause``: seconds of the phases without background work."""
    spans: list[tuple[str, float, float]] = []

    def phase(name: str, run: Callable[[Peer], None]) -> None:
        began = time.monotonic()
        run(peer)
        spans.append((name, began, time.monotonic()))

    found: SimpleQueue[Pings] = multiprocessing.SimpleQueue()
    label = f"  {peer.name}"
    with ThreadPoolExecutor(1) as receiver, running(probe, peer.port, found):
        received = receiver.submit(found.get)  # before the process ends, which waits until its pings were received
        phase("idle", lambda _: time.sleep(pause))
        end = time.monotonic() + seconds
        with running(send, peer, rate), click.progressbar(length=int(seconds), label=label, file=sys.stderr) as bar:
            while time.monotonic() < end:
                phase("load", lambda _: time.sleep(pause))
                for name, run in BACKGROUND.items():
                    phase(name, run)
                bar.update(int(time.monotonic() - end + seconds) - bar.pos)
    by_phase: dict[str, list[float]] = defaultdict(list)
    for sent, took in received.result():
        for name, began, until in spans:
            if began <= sent < until:
                by_phase[name].append(took)
    return by_phase


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", type=click.FloatRange(0.1), default=600.0, show_default=True, help="Seconds of load.")
@click.option("--rate", type=click.FloatRange(1), default=5000.0, show_default=True, help="Requests per second.")
@click.option("--stored", type=click.IntRange(0), default=STORED, show_default=True, help="Entries that are stored.")
@click.option("--pause", type=click.FloatRange(0.1), default=10.0, show_default=True,
              help="Seconds of the phases idle and load.")
@click.option("--peer/--no-peer", default=True, help="Whether redis-server is measured, too.")
def main(seconds: float, rate: float, stored: int, pause: float, peer: bool) -> None:
    """Measure the longest PING during mixed load, checkpoints, backups, and full copies to new replicas."""
    on_load_core()
    installed = installations(peer=peer)
    click.echo(f"{facts.summary(facts.machine(), facts.described(installed))}\n{rate:,.0f} requests per second\n")
    click.echo("| server, phase | PINGs | p50, ms | p99 | p99.9 | longest |\n|---|---|---|---|---|---|")
    with peers_of(installed, "everysec") as peers:
        for server in peers:
            server.start()
            fill(server, stored)
            for name, times in measure(server, rate, seconds, pause).items():
                cuts = percentiles(times)
                shown = [f"{value:.2f}" for value in (*(each / 1000 for each in cuts), max(times) * 1000)]
                click.echo(f"| {server.name}, {name} | {len(times):,} | {' | '.join(shown)} |")
            server.kill()


if __name__ == "__main__":
    main()
