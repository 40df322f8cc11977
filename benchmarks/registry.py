"""How a workload is declared, and what it is given to measure with.

A workload is a function that starts servers, measures, and hands rows to the table::

    @workload("restart", "seconds until the first reply", sizes=(1_000_000,), quick_sizes=(100_000,))
    def restart(bench: Bench) -> None:
        ...

Rule 1: runs are interleaved: one of each server, then the next one of each (A B A B); the first round warms up.
Rule 2: a row that ``--only`` rules out is not measured: workloads ask ``bench.wants(title)`` before they begin.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import click

from benchmarks.servers import Installation, Peer, peers_of
from benchmarks.table import Table


class Named(Protocol):
    """A server of a row: the name of its column."""

    @property
    def name(self) -> str: ...


AnyPeer = TypeVar("AnyPeer", bound=Named)


class CannotError(Exception):
    """No figure can be had from this server for this row."""


@dataclass
class Bench:
    """One invocation of ``scripts/bench``, as a workload sees it."""

    installed: Sequence[Installation]
    table: Table
    runs: int = 3
    requests: int = 200_000  # unpipelined ones of 50 clients, a run; other cases take a multiple
    sizes: Sequence[int] = (1_000_000,)  # entries in the stream
    quick: bool = False
    unpinned: bool = False  # servers may use two cores
    nats: Sequence[str] = ()  # the command of nats-server; with it, ``cpu`` has only the rows that it is compared in
    only: re.Pattern[str] | None = None
    begun: set[str] = field(default_factory=set)  # titles of all rows that there could be

    def wants(self, *titles: str) -> bool:
        """Whether one of the rows is to be measured."""
        self.begun |= set(titles)
        return self.only is None or any(self.only.search(title) for title in titles)

    @contextlib.contextmanager
    def servers(self, fsync: str = "everysec", *options: str, x: bool = False) -> Iterator[list[Peer]]:
        """All servers, running on empty directories. ``options`` are tidelog's only. ``x``: it gets X commands, too."""
        with self.stopped(fsync) as peers:
            for peer in peers:
                peer.x = peer.redis or x
                peer.start(*(() if peer.redis else options))
            yield peers

    @contextlib.contextmanager
    def stopped(self, fsync: str = "everysec") -> Iterator[list[Peer]]:
        """All servers, not started."""
        with peers_of(self.installed, fsync, self.unpinned) as peers:
            yield peers

    def interleave(
        self, what: str, peers: Sequence[AnyPeer], measure: Callable[[AnyPeer, int], float], warm_up: bool = True
    ) -> dict[str, list[float]]:
        """Figures of ``runs`` rounds. ``measure`` gets the server and the number of the round, 0 being the warm-up."""
        found: dict[str, list[float]] = {}
        rounds = range(0 if warm_up else 1, self.runs + 1)
        left_out: set[str] = set()
        with click.progressbar(length=len(rounds) * len(peers), label=f"  {what}", file=sys.stderr) as bar:
            for run in rounds:
                for peer in peers:
                    if peer.name not in left_out:
                        try:
                            figure = measure(peer, run)
                        except CannotError:
                            left_out.add(peer.name)
                        else:
                            if run:
                                found.setdefault(peer.name, []).append(figure)
                    bar.update(1)
        return found


@dataclass(frozen=True)
class Workload:
    """A workload as declared. Sizes are entries in the stream, requests those of a run; empty where it has none."""

    name: str
    help: str
    run: Callable[[Bench], None]
    sizes: tuple[int, ...]
    quick_sizes: tuple[int, ...]
    requests: int
    quick_requests: int

    def defaults(self, quick: bool) -> str:
        """The sizes, for people."""
        sizes, requests = (self.quick_sizes, self.quick_requests) if quick else (self.sizes, self.requests)
        parts = [f"size {','.join(short(size) for size in sizes)}"] if sizes else []
        parts += [f"requests {short(requests)}"] if requests else []
        return ", ".join(parts)


WORKLOADS: dict[str, Workload] = {}


def workload(
    name: str, help_line: str, *, sizes: tuple[int, ...] = (), quick_sizes: tuple[int, ...] = (), requests: int = 0,
    quick_requests: int = 0,
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:  # fmt: skip
    """Declare a workload: its name, what it measures in a line, its sizes, and those of ``--quick``."""

    def declare(run: Callable[[Bench], None]) -> Callable[[Bench], None]:
        WORKLOADS[name] = Workload(name, help_line, run, sizes, quick_sizes, requests, quick_requests)
        return run

    return declare


def short(number: int) -> str:
    """10M, 200k, 500."""
    for unit, letter in ((1_000_000, "M"), (1000, "k")):
        if number >= unit and number % unit == 0:
            return f"{number // unit}{letter}"
    return str(number)


def counted(text: str) -> int:
    """The inverse of ``short``.

    Raises:
        ValueError: not a positive number.
    """
    match = re.fullmatch(r"([\d_]+)([kKmM]?)", text.strip())
    number = int(match[1]) * {"": 1, "k": 1000, "m": 1_000_000}[match[2].lower()] if match else 0
    if number <= 0:
        raise ValueError(text)
    return number
