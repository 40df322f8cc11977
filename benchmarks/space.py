"""Space and starts: bytes per entry in memory and on disk, by kind of entry; seconds until the first reply."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import click

from benchmarks.entries import KINDS, fill, length_word
from benchmarks.registry import Bench, workload
from benchmarks.servers import Peer

RETURNED = 2.5  # seconds after which a server has returned to the system what a checkpoint freed


@workload(
    "space", "bytes per entry in memory and on disk: sensor entries, and half as many JSON log lines, random bytes",
    sizes=(5_000_000,), quick_sizes=(100_000,),
)  # fmt: skip
def space(bench: Bench) -> None:
    """Settled: tidelog's nodes are in its store, Redis's AOF has been rewritten. Memory is the process's own pages.

    What doesn't grow with the entries (buffers, memory that was freed and not given back) is divided by them as well.
    """
    for size in bench.sizes:
        for kind in KINDS:
            of = f"space of {size:,}, {kind}" if len(bench.sizes) > 1 else f"space, {kind}"
            titles = f"{of}, memory", f"{of}, disk"
            if not bench.wants(*titles):
                continue
            count = size if kind == "sensor" else size // 2
            memory, disk = {}, {}
            with bench.servers() as peers:
                for peer in peers:
                    empty_memory, empty_disk = peer.memory(), peer.disk()
                    fill(peer, count, kind=kind)
                    peer.settle()
                    time.sleep(RETURNED)
                    memory[peer.name] = [(peer.memory() - empty_memory) / count]
                    disk[peer.name] = [(peer.disk() - empty_disk) / count]
            for title, figures in zip(titles, (memory, disk), strict=True):
                if bench.wants(title):
                    bench.table.row(title, figures, less_is_better=True, form=".1f", unit="bytes per entry")


RESTARTS = {  # how a server ended, and what it therefore finds
    "as it stopped": "stopped by SIGTERM: tidelog its store, Redis its AOF as it had grown",
    "killed": "stopped by SIGKILL: the log as it lies",
    "Redis from RDB": "tidelog its store, Redis an RDB file and no AOF",
}


@workload(
    "restart", "seconds from start to first reply: after SIGTERM, after SIGKILL, and with Redis loading an RDB",
    sizes=(1_000_000, 5_000_000, 10_000_000), quick_sizes=(200_000,),
)  # fmt: skip
def restart(bench: Bench) -> None:
    """Sensor entries in one stream; every start is checked to have all of them."""
    for size in bench.sizes:
        titles = {how: f"restart, {size:,} entries, {how}" for how in RESTARTS}
        if not bench.wants(*titles.values()):
            continue
        with bench.servers() as peers:
            for peer in peers:
                fill(peer, size)
                peer.written()
                peer.kill()
            for how in ("killed", "as it stopped", "Redis from RDB"):
                if not bench.wants(titles[how]):
                    continue
                for peer in peers:
                    leave(peer, how)

                def measure(peer: Peer, _: int, how: str = how, size: int = size) -> float:
                    return started(peer, how, size)

                figures = bench.interleave(titles[how], peers, measure, warm_up=False)
                bench.table.row(titles[how], figures, less_is_better=True, form=".3f", unit="s", note=RESTARTS[how])


def leave(peer: Peer, how: str) -> None:
    """Stop a server with its data in the form that the start is to find; keep a copy, since a start may change it."""
    if how != "killed":
        peer.start()
        if how == "Redis from RDB" and peer.redis:
            with peer.client() as client:
                client.config_set("appendonly", "no")
                client.save()
        peer.stop()
    copy(peer.directory, kept(peer))


def started(peer: Peer, how: str, size: int) -> float:
    """Start from the copy, and count."""
    copy(kept(peer), peer.directory)
    seconds = peer.start(*(("--appendonly", "no") if how == "Redis from RDB" and peer.redis else ()))
    with peer.client() as client:
        length = client.execute_command(length_word(peer), "s")
    if length != size:
        raise click.ClickException(f"{peer.name} came back with {length} of {size} entries")
    peer.kill()
    return seconds


def kept(peer: Peer) -> Path:
    return peer.directory.with_name(f"{peer.directory.name}, kept")


def copy(source: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(source, to)
