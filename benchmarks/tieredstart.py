"""``python -m benchmarks.tieredstart``: starts and full copies of a server whose entries are in an object store.

One server has ``--rows`` sensor readings in a directory as its object store, and none of them in its own store
(``tier-free yes``). The other one has ``--local`` readings, all in its own store. Both are stopped and started in
turns, and copied to new replicas in turns. Servers run on the first core, replicas on the last.

A million rows need about 25 MB of disk space during the run, and are loaded and moved in five to ten seconds.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click

from benchmarks import facts
from benchmarks.replication import copied, replica_of
from benchmarks.scaleload import fill
from benchmarks.servers import THIS, Peer, on_load_core, peers_of
from benchmarks.tiered import KEY, fill_and_move, options, persistence

ROW_BYTES = 25  # disk space of a row in the log, the store, and the objects
OTHER_BYTES = 2_000_000_000  # disk space for all others, and for the files of the log
MB = 1e6
FLOOR, GOAL = 1.5, 1.1


class Taken(NamedTuple):
    """What a start or a copy took."""

    seconds: float
    cpu: float  # seconds, of all servers that take part


def restarted(peer: Peer, rows: int, more: list[str]) -> Taken:
    """Stop the server, start it, and return what it took until it answers. Raises click.ClickException."""
    peer.stop()
    taken = Taken(peer.start(*more), peer.cpu_seconds())
    with peer.client() as client:
        found = client.execute_command("TLEN", KEY)
    if found != rows:
        raise click.ClickException(f"{peer.name}: {found:,} of {rows:,} entries after a start")
    return taken


def copied_to_new(peer: Peer, rows: int, more: list[str]) -> tuple[Taken, int]:
    """Return what a full copy to a new replica took, and the bytes that were sent. Raises click.ClickException."""
    with replica_of(peer, follow=False, member=more) as replica:
        before = peer.cpu_seconds() + replica.cpu_seconds()
        seconds, size = copied(peer, replica, rows)
        return Taken(seconds, peer.cpu_seconds() + replica.cpu_seconds() - before), size


def show(what: str, tiered: list[Taken], local: list[Taken]) -> None:
    for at, unit in enumerate(("s", "s of CPU time")):
        ratios = [one[at] / other[at] for one, other in zip(tiered, local, strict=True)]
        spread = f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        figures = [[taken[at] for taken in side] for side in (tiered, local)]
        cells = [f"{median(each):.3f} ({min(each):.3f}-{max(each):.3f})" for each in figures]
        click.echo(f"| {what}, {unit} | {' | '.join(cells)} | {spread} | {FLOOR} / {GOAL} |")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rows", type=click.IntRange(10_000), default=100_000_000, show_default=True, help="Tiered entries.")
@click.option("--local", type=click.IntRange(10_000), default=1_000_000, show_default=True, help="Local entries.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Starts and copies.")
def main(rows: int, local: int, rounds: int) -> None:
    """Measure starts and full copies of a server with tiered entries, relative to one with fewer local entries."""
    rows, local = rows // 1000 * 1000, local // 1000 * 1000
    on_load_core()
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < ROW_BYTES * rows + OTHER_BYTES:
        raise click.ClickException(f"{free / 1e9:.1f} GB of disk space are too few: set TMPDIR, or --rows to less")
    installed = [THIS._replace(name="tiered"), THIS._replace(name="local")]
    click.echo(facts.summary(facts.machine(), facts.described(installed[:1])))
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as objects, peers_of(installed, "everysec") as peers:
        large, small = peers
        large.start(*options(objects, interval=1))
        small.start()
        fill(small.port, KEY, local, "local")
        small.settle()
        found = fill_and_move(large, rows, "tiered")
        size = sum(path.stat().st_size for path in Path(objects, "objects").iterdir())
        click.echo(f"{found['tier_entries']:,} of {rows:,} entries are in {size / MB:,.1f} MB of objects")
        click.echo(f"{found['tier_freed_nodes']:,} nodes of {found['tier_freed_bytes'] / MB:,.1f} MB left the store\n")
        click.echo(f"| | {rows:,} tiered | {local:,} local | ratio | floor / goal |\n|---|---|---|---|---|")
        measure(large, small, rows, local, rounds, objects)


def measure(large: Peer, small: Peer, rows: int, local: int, rounds: int, objects: str) -> None:
    sides = (large, rows, options(objects)), (small, local, list[str]())
    starts = [[restarted(*side) for side in sides] for _ in range(rounds + 1)][1:]  # the first one warms up
    show("start", [one for one, _ in starts], [other for _, other in starts])
    memory = [peer.memory() / MB for peer in (large, small)]
    copies = [[copied_to_new(*side) for side in sides] for _ in range(rounds + 1)][1:]
    show("full copy to a new replica", *([pair[at][0] for pair in copies] for at in (0, 1)))
    sent = [size / MB for _, size in copies[-1]]
    click.echo(f"| MB that a full copy sends | {sent[0]:.1f} | {sent[1]:.1f} | {sent[0] / sent[1]:.2f} | |")
    click.echo(f"| MB of memory after a start | {memory[0]:.0f} | {memory[1]:.0f} | {memory[0] / memory[1]:.2f} | |")
    if persistence(large)["tier_fetched_nodes"]:
        click.echo("NOTE: entries were read from the object store", err=True)


if __name__ == "__main__":
    main()
