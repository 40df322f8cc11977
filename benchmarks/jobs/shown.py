"""Rows of the table, with ratios, floors and goals; the plot of how figures change with keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks.plot import COLOURS, SOFT, check

HEAD = "| what | tidelog | peer | ratio | floor | goal | |\n|---|---|---|---|---|---|---|"


class Goal(NamedTuple):
    """What a figure must be at least, and should be. ``least``: less is better."""

    floor: float
    goal: float
    least: bool = False

    def met(self, value: float) -> str:
        reached = [value <= each if self.least else value >= each for each in (self.floor, self.goal)]
        return "goal" if reached[1] else "floor" if reached[0] else "MISSED"


def head() -> None:
    click.echo(HEAD)


def row(what: str, ours: str, peer: str, value: float | None, goal: Goal | None, unit: str = "") -> None:
    """One line. value: what the goal is about: the ratio where there is a peer, else the figure itself."""
    ratio = "" if value is None or not peer else f"{value:.1f}x"
    ends = ("", "", "") if goal is None or value is None else (
        f"{goal.floor:g}{unit}", f"{goal.goal:g}{unit}", goal.met(value)
    )  # fmt: skip
    click.echo(f"| {what} | {ours} | {peer} | {ratio} | {' | '.join(ends)} |")


def rates(what: str, found: Mapping[str, float], goals: Mapping[str, Goal], cores: int = 1) -> None:
    """Print our rate, the first in ``found``, with each of the others."""
    (_, ours), *others = found.items()
    for title, rate in others:
        peer = f"{rate / cores:,.0f} rows/s, {title}"
        row(what, f"{ours / cores:,.0f} rows/s", peer, ours / rate, goals.get(title), "x")


def plot(panels: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]], file: Path) -> None:
    """Rows a second over a number of keys: a panel for each title, a line for each way."""
    check()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ways = list(dict.fromkeys(way for lines in panels.values() for way in lines))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 4), layout="constrained", squeeze=False)
    for axis, (title, lines) in zip(axes[0], panels.items(), strict=True):
        for way, points in lines.items():
            colour = COLOURS[ways.index(way) % len(COLOURS)]
            axis.plot(*zip(*points, strict=True), marker="o", label=way, color=colour)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel(title)
        axis.set_ylabel("rows/s")
        axis.grid(color=SOFT, alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
