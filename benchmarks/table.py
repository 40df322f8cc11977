"""Rows of figures: as a table that grows line by line, and as data for ``--json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import click

from benchmarks.targets import TARGETS

Figures = dict[str, list[float]]  # server -> one figure a run
LONG = {"redis": "redis-server", "nats": "nats-server"}  # titles of columns that differ from the server's name
THEIRS = ("redis", "valkey", "nats")  # columns whose names begin so are those of peers: redis, redis8, valkey


def is_theirs(name: str) -> bool:
    """Whether our servers are compared with the one in the column of that name."""
    return name.startswith(THEIRS)


def ratios_key(name: str) -> str:
    """The name under which ``--json`` stores the ratios to that peer."""
    return "ratios" if name == "redis" else f"ratios_{name}"


def ratio(ours: Sequence[float], theirs: Sequence[float], less_is_better: bool) -> float | None:
    """How many times better ours are: above 1 is better, whichever way the figures go."""
    if not ours or not theirs:
        return None
    above, below = median(ours), median(theirs)
    if less_is_better:
        above, below = below, above
    return above / below if below else None


def cell(values: Sequence[float] | None, form: str, parts: Sequence[float] | None = None) -> str:
    """The median, with min-max where there is more than one; then the parts that it is the sum of."""
    if not values:
        return "-"
    middle = f"{median(values):{form}}"
    if len(values) > 1:
        middle += f" ({min(values):{form}}-{max(values):{form}})"
    return f"{middle}: {' + '.join(f'{part:{form}}' for part in parts)}" if parts else middle


class Table:
    """Columns: a server each, then each one's ratio to each peer, then what is asked of the first one."""

    def __init__(self, names: Sequence[str], targets: bool = True) -> None:
        self.names = list(names)
        self.targets = targets
        self.rows: list[dict[str, object]] = []
        self.theirs = [name for name in self.names if is_theirs(name)]

    def head(self) -> str:
        titles = ["workload", *(LONG.get(name, name) for name in self.names)]
        if self.theirs:
            titles += [f"{name}/{other}" for other in self.theirs for name in self.names if not is_theirs(name)]
            titles += ["floor / goal"] if self.targets else []
        return f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|"

    def row(
        self, title: str, figures: Figures, less_is_better: bool = False, form: str = ",.0f", unit: str = "",
        note: str = "", parts: Mapping[str, Sequence[float]] | None = None,
    ) -> None:  # fmt: skip
        """Print one line and keep it. ``title`` is what targets are found by; ``unit`` and ``note`` are for readers.

        ``parts``: for each server what its figure is the sum of.
        """
        made: dict[str, object] = {
            "workload": title, "unit": unit, "less_is_better": less_is_better, "form": form, "note": note,
            "figures": {name: list(values) for name, values in figures.items()},
        }  # fmt: skip
        if parts:
            made["parts"] = {name: list(values) for name, values in parts.items()}
        ours = {name: values for name, values in figures.items() if not is_theirs(name)}
        for other in self.theirs:
            theirs = figures.get(other, ())
            if other == "redis" or theirs:
                made[ratios_key(other)] = {name: ratio(values, theirs, less_is_better) for name, values in ours.items()}
        if title in TARGETS:
            made["floor"], made["goal"] = TARGETS[title][:2]
        self.rows.append(made)
        click.echo(line(made, self.names, self.targets))
        if note:
            click.echo(f"  {note}", err=True)


def line(made: Mapping[str, object], names: Sequence[str], targets: bool = True) -> str:
    """A kept row as a line of Markdown."""
    figures, parts = made["figures"], made.get("parts", {})
    assert isinstance(figures, dict)
    assert isinstance(parts, dict)
    title = f"{made['workload']}{', ' if made['unit'] else ''}{made['unit']}"
    cells = [f"{title} (less is better)" if made["less_is_better"] else title]
    cells += [cell(figures.get(name), str(made["form"]), parts.get(name)) for name in names]
    theirs, ours = ([name for name in names if is_theirs(name) == their] for their in (True, False))
    if theirs:
        shown = [ratios_to(other, made).get(name) for other in theirs for name in ours]
        cells += ["-" if value is None else f"{value:.2f}" for value in shown]
        if targets:
            target, first = TARGETS.get(str(made["workload"])), judged(made).get(ours[0])
            asked = "" if target is None else str(target)
            cells.append(asked if target is None or first is None else f"{asked}: {target.verdict(first)}")
    return f"| {' | '.join(cells)} |"


def ratios_to(other: str, made: Mapping[str, object]) -> dict[str, float | None]:
    """By our servers; empty where that one did not take part in the row."""
    found = made.get(ratios_key(other), {})
    assert isinstance(found, dict)
    return found


def judged(made: Mapping[str, object]) -> dict[str, float | None]:
    """The ratios that the row's target is about."""
    target = TARGETS.get(str(made["workload"]))
    return ratios_to(target.beside if target is not None else "redis", made)
