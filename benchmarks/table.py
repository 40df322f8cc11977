"""The table that benchmarks print, and the rows for ``--json``."""

from __future__ import annotations

from statistics import median

import click

from benchmarks.workloads import Figures

ROWS: list[dict[str, object]] = []
HEAD = "| workload | tidelog | redis-server | tidelog/redis |\n|---|---|---|---|"


def row(name: str, figures: Figures, less_is_better: bool = False, form: str = ",.0f") -> None:
    """Print one line: tidelog's median (min-max), redis-server's, and tidelog/redis."""
    ours, theirs = figures.get("tidelog", []), figures.get("redis", [])
    cells = []
    for values in (ours, theirs):
        if values:
            cells.append(f"{median(values):{form}} ({min(values):{form}}-{max(values):{form}})")
        else:
            cells.append("not run")
    ratio = median(ours) / median(theirs) if ours and theirs and median(theirs) else None
    shown = "" if ratio is None else f"{ratio:.2f}"
    better = " (less is better)" if less_is_better else ""
    click.echo(f"| {name}{better} | {cells[0]} | {cells[1]} | {shown} |")
    ROWS.append({"workload": name, "tidelog": ours, "redis": theirs, "ratio": ratio, "less_is_better": less_is_better})
