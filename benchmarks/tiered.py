"""Servers whose entries are only in an object store (``tier-free yes``), for the benchmarks ``tiered...``."""

from __future__ import annotations

import time
from typing import Any

import click

from benchmarks.scaleload import fill
from benchmarks.servers import Peer

KEY = "s"
LEFT = 2000  # entries that stay local: the last node in the store, and the active one, have fewer


def options(url: str, *, interval: int = 3600) -> list[str]:
    """Return the options of a server that moves all sealed nodes to ``url``, with a pass per ``interval`` seconds."""
    return ["--tier-url", url, "--tier-after", "0", "--tier-free", "yes", "--tier-interval", str(interval)]


def persistence(peer: Peer) -> dict[str, Any]:
    """Return the section of INFO that has the fields of the object store."""
    with peer.client() as client:
        found: dict[str, Any] = client.info("persistence")
        return found


def fill_and_move(peer: Peer, rows: int, label: str) -> dict[str, Any]:
    """Append sensor readings, and ``move`` them. ``rows``: a multiple of 1000. Raises click.ClickException."""
    fill(peer.port, KEY, rows, label)
    return move(peer, rows)


def move(peer: Peer, rows: int) -> dict[str, Any]:
    """Return INFO when all of ``rows`` entries that can leave the store have left it. No pass follows.

    The server runs with a short interval.

    Raises:
        click.ClickException: a pass fails.
    """
    peer.settle()  # passes copy what is in the store
    before: tuple[int, int] = (-1, -1)
    while True:
        found = next_pass(peer)
        now = found["tier_entries"], found["tier_freed_nodes"]
        if now == before and now[0] >= rows - LEFT:
            break
        before = now
    with peer.client() as client:
        client.config_set("tier-interval", 3600)
    return found


def next_pass(peer: Peer) -> dict[str, Any]:
    """Wait until another pass has ended, and return INFO. Raises click.ClickException if it fails."""
    passes = persistence(peer)["tier_passes"]
    while (found := persistence(peer))["tier_passes"] == passes:
        if found["tier_last_status"] != "ok":
            raise click.ClickException(f"the entries are not copied: {found['tier_last_error']}")
        time.sleep(0.2)
    return found
