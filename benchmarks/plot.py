"""``--plot``: each row's ratio to redis-server on a log axis, with its floor and its goal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from benchmarks.table import is_theirs, judged
from benchmarks.targets import TARGETS

INK, SOFT = "#222222", "#9a9a9a"
COLOURS = ("#0b6e8f", "#d9822b", "#6b4c9a", "#3d8b4f")  # a server each


def check() -> None:
    """Fail now rather than after hours of measuring if no plot can be drawn.

    Raises:
        click.ClickException: no matplotlib here.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise click.ClickException(
            "--plot needs matplotlib, which is not installed here.\n"
            "`pip install 'tidelog[demo]'` brings it, scripts/bench installs it by itself. Or leave --plot out and\n"
            "draw later from what --json keeps: python -m benchmarks.report FILE.json --plot FILE.svg"
        ) from None


def draw(rows: Sequence[Mapping[str, object]], names: Sequence[str], file: Path, caption: str) -> None:
    """Write the plot; the form follows from the file's name (.svg, .png, .pdf)."""
    check()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ours = [name for name in names if not is_theirs(name)]
    shown = [row for row in rows if any(_ratio(row, name) for name in ours)]
    if not shown:
        raise click.ClickException("nothing to plot: no row has a ratio (is there a redis-server?)")
    figure, axes = pyplot.subplots(figsize=(9, 1.4 + 0.27 * len(shown)), layout="constrained")
    axes.set_xscale("log")
    axes.axvline(1, color=INK, linewidth=1)
    for y, row in enumerate(shown):
        target = TARGETS.get(str(row["workload"]))
        if target is not None:
            axes.plot([target.floor, target.goal], [y, y], color=SOFT, linewidth=5, alpha=0.35, solid_capstyle="butt")
            axes.plot([target.floor], [y], marker="|", markersize=11, color=SOFT, markeredgewidth=2)
            axes.plot([target.goal], [y], marker="|", markersize=11, color=SOFT, markeredgewidth=2)
        for at, name in enumerate(ours):
            if value := _ratio(row, name):
                axes.plot([value], [y], marker="o", markersize=6, color=COLOURS[at % len(COLOURS)], linestyle="")
    axes.set_yticks(range(len(shown)), [str(row["workload"]) for row in shown], fontsize=8)
    axes.invert_yaxis()
    axes.margins(y=0.6 / len(shown))
    ticks = [v for v in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if axes.get_xlim()[0] <= v <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.grid(axis="x", color=SOFT, alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    for at, name in enumerate(ours):
        axes.plot([], [], marker="o", color=COLOURS[at % len(COLOURS)], linestyle="", label=name)
    axes.plot([], [], color=SOFT, linewidth=5, alpha=0.35, label="floor to goal")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(ours) + 1, frameon=False, fontsize=8)
    axes.set_xlabel("times redis-server's figure (publish: nats-server's); right of 1 is better")
    axes.set_title(caption, loc="left", fontsize=8, color=INK)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _ratio(row: Mapping[str, object], name: str) -> float | None:
    return judged(row).get(name) or None
