"""Rows of figures: as a table that grows line by line, and as data for ``--json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import click

from benchmarks.targets import TARGETS

Figures = dict[str, list[float]]  # server -> one figure a run
LONG = {"redis": "redis-server"}  # what a column is called where that isn't the server's name


def ratio(ours: Sequence[float], theirs: Sequence[float], less_is_better: bool) -> float | None:
    """How many times better ours are: above 1 is better, whichever way the figures go."""
    if not ours or not theirs:
        return None
    above, below = median(ours), median(theirs)
    if less_is_better:
        above, below = below, above
    return above / below if below else None


def cell(values: Sequence[float] | None, form: str) -> str:
    """The median, with min-max where there is more than one."""
    if not values:
        return "-"
    middle = f"{median(values):{form}}"
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}}-{max(values):{form}})"


class Table:
    """Columns: a server each, then each one's ratio to redis-server, then what is asked of the first one."""

    def __init__(self, names: Sequence[str], targets: bool = True) -> None:
        self.names = list(names)
        self.targets = targets
        self.rows: list[dict[str, object]] = []
        self.redis = "redis" if "redis" in self.names else None

    def head(self) -> str:
        titles = ["workload", *(LONG.get(name, name) for name in self.names)]
        if self.redis:
            titles += [f"{name}/redis" for name in self.names if name != self.redis]
            titles += ["floor / goal"] if self.targets else []
        return f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|"

    def row(
        self, title: str, figures: Figures, less_is_better: bool = False, form: str = ",.0f", unit: str = "",
        note: str = "",
    ) -> None:  # fmt: skip
        """Print one line and keep it. ``title`` is what targets are found by; ``unit`` and ``note`` are for readers."""
        made: dict[str, object] = {
            "workload": title, "unit": unit, "less_is_better": less_is_better, "form": form, "note": note,
            "figures": {name: list(values) for name, values in figures.items()},
        }  # fmt: skip
        if self.redis:
            theirs = figures.get(self.redis, ())
            made["ratios"] = {
                name: ratio(values, theirs, less_is_better) for name, values in figures.items() if name != self.redis
            }
        if title in TARGETS:
            made["floor"], made["goal"] = TARGETS[title]
        self.rows.append(made)
        click.echo(line(made, self.names, self.targets))
        if note:
            click.echo(f"  {note}", err=True)


def line(made: Mapping[str, object], names: Sequence[str], targets: bool = True) -> str:
    """A kept row as a line of Markdown."""
    figures, ratios = made["figures"], made.get("ratios")
    assert isinstance(figures, dict)
    title = f"{made['workload']}{', ' if made['unit'] else ''}{made['unit']}"
    cells = [f"{title} (less is better)" if made["less_is_better"] else title]
    cells += [cell(figures.get(name), str(made["form"])) for name in names]
    if isinstance(ratios, dict):
        shown = [ratios.get(name) for name in names if name != "redis"]
        cells += ["-" if value is None else f"{value:.2f}" for value in shown]
        if targets:
            target, first = TARGETS.get(str(made["workload"])), shown[0]
            asked = "" if target is None else str(target)
            cells.append(asked if target is None or first is None else f"{asked}: {target.verdict(first)}")
    return f"| {' | '.join(cells)} |"
