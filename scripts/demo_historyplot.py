"""The picture of scripts/demo_history.py."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

from scripts.demo_historyrows import Total
from scripts.demo_historywatch import Phase, Sample

COLORS: Final = {"San Francisco": "tab:orange", "Seattle": "tab:blue"}
MARKS: Final = "x+"
MONTHS: Final = "JFMAMJJASOND"


def plot(
    samples: Sequence[Sample], phases: Sequence[Phase], results: Mapping[str, Sequence[Total]], path: Path
) -> None:  # fmt: skip
    """Plot the CPU time over time, the CPU time of the server in each phase, and the results of each query."""
    figure = plt.figure(figsize=(12, 9), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(1, 1), width_ratios=(1, 1))
    rows = phases[-1].rows
    title = f"{rows / 1e6:,.1f} M rows: queries on history objects hardly use the server"
    figure.suptitle(title, fontsize=14, fontweight="bold")
    _timeline(figure.add_subplot(grid[0, :]), samples, phases)
    _server(figure.add_subplot(grid[1, 0]), phases)
    _results(figure.add_subplot(grid[1, 1]), results)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _timeline(axes: Axes, samples: Sequence[Sample], phases: Sequence[Phase]) -> None:
    at = [sample.at for sample in samples]
    axes.fill_between(at, [sample.server for sample in samples], step="pre", color="tab:red", zorder=3,
                      label="the server")  # fmt: skip
    for values, color, label in (
        ([sample.copier for sample in samples], "tab:purple", "its helper processes: copy entries, read them back"),
        ([sample.others for sample in samples], "0.55", "its users: the loader, Spark, DuckDB"),
    ):
        axes.step(at, values, where="pre", color=color, label=label)
    for number, phase in enumerate(phases, 1):
        axes.axvspan(phase.began, phase.ended, color="0.9" if number % 2 else "0.95", zorder=0)
        axes.annotate(str(number), ((phase.began + phase.ended) / 2, 0.97), xycoords=("data", "axes fraction"),
                      va="top", ha="center", fontweight="bold")  # fmt: skip
    top = max(1.0, *(max(sample[1:]) for sample in samples))
    axes.set(xlabel="seconds", ylabel="CPU cores in use", ylim=(0, 1.6 * top), xlim=(phases[0].began, phases[-1].ended))
    axes.legend(loc="upper right", bbox_to_anchor=(1, 0.9))


def _server(axes: Axes, phases: Sequence[Phase]) -> None:
    """Draw a bar for each phase: the CPU time of the server."""
    used = [phase.server for phase in phases]
    axes.barh(range(len(phases)), used, height=0.3, color="tab:red")
    for at, phase in enumerate(phases):
        rate = phase.rows / phase.seconds
        text = f"{at + 1}. {phase.name}: {phase.seconds:.0f} s, {rate:,.0f} rows/s"
        axes.text(0, at - 0.25, text, fontweight="bold")
        axes.text(phase.server, at, f" {phase.server:,.2f} CPU s", va="center")
    axes.set(title="CPU time of the server", xlabel="CPU seconds", yticks=(), ylim=(len(phases) - 0.5, -0.6),
             xlim=(0, 1.25 * max(used)))  # fmt: skip


def _results(axes: Axes, results: Mapping[str, Sequence[Total]]) -> None:
    for number, (name, totals) in enumerate(results.items()):
        for city, color in COLORS.items():
            mine = [total for total in totals if total.city == city]
            style = {"linewidth": 5, "alpha": 0.35} if number == 0 else {"linewidth": 0, "marker": MARKS[number - 1]}
            axes.plot([total.month for total in mine], [total.tenths / total.rows / 10 for total in mine], color=color,
                      label=f"{city}, {name}", **style)  # fmt: skip
    axes.set(title="The results are the same", ylabel="mean temperature, °F", xticks=range(1, 13), xticklabels=MONTHS)
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.2 * (high - low), high)  # space for the legend
    axes.legend(loc="lower center", fontsize=7, ncols=len(results), columnspacing=1)
