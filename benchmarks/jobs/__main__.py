"""``python -m benchmarks.jobs``: compares jobs with Spark's own methods in the same run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import click

from benchmarks.jobs import engines, idle, late, rates, scaling, shown, survival
from benchmarks.jobs.keyed import WAYS
from benchmarks.jobs.loads import PARTITIONS, Load
from benchmarks.jobs.shown import Goal

SPARKS: Final = WAYS["pandas"]
LEASE: Final = 10.0  # seconds
ALL: Final = tuple(WAYS)


class Size(NamedTuple):
    """How much is measured."""

    keyed: Load
    few: Load
    stateless: Load
    seconds: float  # of latencies
    recovered: int  # keys
    idle: int  # jobs
    idle_seconds: float
    states: tuple[int, ...]  # keys in the state
    batches: tuple[int, ...]  # keys in a batch


FULL: Final = Size(
    Load(500_000, 50_000, 50_000), Load(2_000_000, 5_000, 250_000), Load(5_000_000, 1_000_000, 500_000), 60, 1_000_000,
    200, 60, (100_000, 1_000_000, 10_000_000), (500, 5_000, 50_000),
)  # fmt: skip
TINY: Final = Size(
    Load(8_000, 1_000, 1_000), Load(20_000, 500, 2_500), Load(40_000, 10_000, 5_000), 5, 20_000, 5, 5, (1_000, 10_000),
    (100, 1_000),
)  # fmt: skip


class Asked(NamedTuple):
    """What the command line asks for."""

    size: Size
    runs: int
    ways: tuple[str, ...]
    plot: Path | None
    spark_keys: int  # maximum keys in the state with which Spark's own methods are measured


def keyed(asked: Asked) -> None:
    """Running count by key, a batch has each key once."""
    load = asked.size.keyed
    found = rates.keyed(load, asked.ways, asked.runs)
    shown.rates(f"running count, {load.keys:,} distinct keys a batch", found, {SPARKS: Goal(10, 25)})


def few(asked: Asked) -> None:
    """Running count by key, a batch has each key many times."""
    load = asked.size.few
    found = rates.keyed(load, asked.ways, asked.runs)
    shown.rates(f"running count, {load.batch:,} rows of {load.keys:,} keys a batch", found, {SPARKS: Goal(4, 8)})


def stateless(asked: Asked) -> None:
    """A filter with two outputs, rows a second and core."""
    found = rates.stateless(asked.size.stateless, asked.runs)
    goals = {title: Goal(1.5, 3) for title in rates.STATELESS.values()}
    shown.rates("stateless, two outputs, a core", found, goals, PARTITIONS)


def latency(asked: Asked) -> None:
    """From append to visible output, of running counts."""
    ours = late.measure_ours(asked.size.seconds)
    for way in asked.ways:
        command = [sys.executable, "-m", "benchmarks.jobs.peers", "URL", way, "--follow"]
        theirs = late.measure(command, asked.size.seconds)
        for name, goal in (("p50", Goal(300, 180, least=True)), ("p95", Goal(500, 300, least=True))):
            mine, beside = getattr(ours, name), getattr(theirs, name)
            met = goal.met(mine)
            click.echo(
                f"| append to output, 100 entries/s, {name} | {mine:,.0f} ms | {beside:,.0f} ms, {WAYS[way]} |"
                f" {beside / mine:.1f}x | {goal.floor:g} ms | {goal.goal:g} ms | {met} |"
            )


def recovery(asked: Asked) -> None:
    """A state on an empty disk: from a snapshot, and as many rows replayed."""
    found = survival.recovery(asked.size.recovered)
    figure = f"{found.seconds:.1f} s ({found.empty:.1f} with Spark's start, {found.there:.1f} where the state is there)"
    what = f"recovery of {asked.size.recovered:,} keys, {found.replayed:,} rows replayed"
    shown.row(what, figure, "", found.seconds, Goal(30, 10, least=True), " s")


def takeover(_: Asked) -> None:
    """An engine is killed until another publishes the next epoch."""
    seconds = survival.takeover(LEASE)
    goal = Goal(LEASE + 10, LEASE + 3, least=True)
    shown.row(f"SIGKILL to the next epoch, lease {LEASE:g} s", f"{seconds:.1f} s", "", seconds, goal, " s")


def idling(asked: Asked) -> None:
    """Jobs without news on one engine."""
    found = idle.measure(asked.size.idle, asked.size.idle_seconds)
    what = f"{asked.size.idle} idle jobs"
    shown.row(f"{what}: commands/s", f"{found.commands:.1f}", "", found.commands, Goal(200, 20, least=True))
    shown.row(f"{what}: cores of the engine", f"{found.cores:.2f}", "", found.cores, Goal(0.5, 0.1, least=True))
    click.echo("\n" + ", ".join(f"{name} {rate:.1f}/s" for name, rate in found.by_command.items()), err=True)


def scales(asked: Asked) -> None:
    """Rows a second by keys in the state and by keys in a batch; the plot."""
    size, ways = asked.size, tuple(way for way in asked.ways if way != "group")
    measured = {
        "keys in the state": scaling.by_state(size.states, size.keyed.batch, ways, asked.spark_keys),
        "keys in a batch": scaling.by_keys(size.batches, size.few.batch, ways),
    }
    panels: dict[str, dict[str, list[tuple[int, float]]]] = {title: {} for title in measured}
    for title, figures in measured.items():
        for way, number, rate in figures:
            shown.row(f"{number:,} {title}: {way}", f"{rate:,.0f} rows/s", "", None, None)
            panels[title].setdefault(way, []).append((number, rate))
    if asked.plot is not None:
        shown.plot(panels, asked.plot)


WHAT: Final[dict[str, Callable[[Asked], None]]] = {
    "keyed": keyed, "few": few, "stateless": stateless, "latency": latency, "recovery": recovery,
    "takeover": takeover, "idle": idling, "scaling": scales,
}  # fmt: skip


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("what", type=click.Choice(tuple(WHAT)), nargs=-1)
@click.option("--tiny", is_flag=True, help="Use small sizes, to check that the benchmarks work.")
@click.option("--runs", default=1, show_default=True, help="Number of runs. Rates are their medians.")
@click.option("--way", "ways", type=click.Choice(ALL), multiple=True, default=("pandas", "rows", "built-in"),
              show_default=True, help="Spark's own methods to compare with.")  # fmt: skip
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Of scaling: .svg, .png, .pdf.")
@click.option("--spark-keys", default=100_000, show_default=True, metavar="KEYS",
              help="For scaling: measure Spark's own methods with at most this many keys in the state. A million keys"
                   " take many minutes.")  # fmt: skip
def main(
    what: tuple[str, ...], tiny: bool, runs: int, ways: tuple[str, ...], plot: Path | None, spark_keys: int,
) -> None:  # fmt: skip
    """Measure jobs: the named figures, or all of them, which takes more than an hour."""
    click.echo(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {engines.described()}\n")
    shown.head()
    for name in what or WHAT:
        WHAT[name](Asked(TINY if tiny else FULL, runs, ways, plot, spark_keys))


if __name__ == "__main__":
    main()
