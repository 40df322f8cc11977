"""From ``--json`` to what people read: ``python -m benchmarks.report FILE.json`` prints the table as Markdown.

Several files make one table: a row that stands in more than one counts as the last file has it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from benchmarks import facts, plot
from benchmarks.table import Table, is_theirs, line


def load(files: tuple[Path, ...]) -> dict[str, Any]:
    """The runs as one.

    Raises:
        click.ClickException: a file is not what ``scripts/bench --json`` writes.
    """
    merged: dict[str, Any] = {"machine": {}, "servers": {}, "names": []}
    rows: dict[str, Any] = {}
    for file in files:
        try:
            found = json.loads(file.read_text())
            merged["machine"] = found["machine"]
            merged["servers"] |= found["servers"]
            merged["names"] += [name for name in found["names"] if name not in merged["names"]]
            rows |= {row["workload"]: row for row in found["rows"]}
        except (ValueError, KeyError, TypeError) as e:
            raise click.ClickException(f"{file} is not what scripts/bench --json writes: {e!r}") from None
    ours, theirs = ([name for name in merged["names"] if is_theirs(name) == their] for their in (False, True))
    merged["names"] = ours + sorted(theirs, key="nats".__eq__)  # nats last, as in a run
    return merged | {"rows": list(rows.values())}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False, path_type=Path), help="Draw it, too (.svg, .png).")
def main(files: tuple[Path, ...], plot_file: Path | None) -> None:
    """Print what scripts/bench --json wrote as a table in Markdown, with the machine it was taken on."""
    found = load(files)
    caption = facts.summary(found["machine"], found["servers"], places=False)
    click.echo(caption.replace("\n", "; ") + f"; {str(found['machine'].get('date', ''))[:10]}.\n")
    click.echo(Table(found["names"]).head())
    for row in found["rows"]:
        click.echo(line(row, found["names"]))
    if plot_file is not None:
        plot.draw(found["rows"], found["names"], plot_file, caption)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.report")
