"""``python -m benchmarks.tieredspace``: bytes per entry in history objects, relative to the server's store.

One stream of each kind (``entries``) moves from the store to objects in a directory (``tier-free yes``). Compares the
size of the objects with that of the same nodes in the store, without its pages. Load on the machine has no effect.
"""

from __future__ import annotations

import tempfile

import click

from benchmarks.entries import fill
from benchmarks.servers import THIS, peers_of
from benchmarks.tiered import KEY, move, options

REFERENCE = 108  # bytes that take the place of a node in the store
TARGETS = {"sensor": (1.5, 1.0), "json": (1.0, 0.9)}  # the floor and the goal of the ratio


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--entries", type=click.IntRange(5000), default=500_000, show_default=True, help="Entries of each kind.")
def main(entries: int) -> None:
    """Compare the space of entries in history objects with their space in the server's store."""
    click.echo("| bytes per entry | objects | store | objects / store | floor / goal |\n|---|---|---|---|---|")
    for kind, (floor, goal) in TARGETS.items():
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as objects, peers_of([THIS], "everysec") as (peer,):
            peer.start(*options(objects, interval=1))
            fill(peer, entries, KEY, kind)
            found = move(peer, entries)
        copied, nodes = found["tier_bytes"] / found["tier_entries"], found["tier_freed_nodes"]
        stored = (found["tier_freed_bytes"] + nodes * REFERENCE) / found["tier_entries"]
        click.echo(f"| {kind} | {copied:.2f} | {stored:.2f} | {copied / stored:.2f} | {floor} / {goal} |")


if __name__ == "__main__":
    main()
