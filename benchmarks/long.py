"""``scripts/bench --long``: very long histories, and much of everything else. The cases are in ``scale``."""

from __future__ import annotations

import contextlib
import json
import shlex
import tempfile
from pathlib import Path

import click

from benchmarks import facts
from benchmarks.registry import counted
from benchmarks.scale import CASES, HEAD, Report, Run
from benchmarks.servers import OURS, Installation, installations, on_load_core

SIZES = {"entries": 100_000_000, "streams": 100_000, "groups": 10_000, "pending": 1_000_000, "connections": 10_000}


class Size(click.ParamType[int]):
    """A number like 100M, 250k, 5000."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return counted(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a number like 5000, 250k or 100M", param, ctx)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("cases", nargs=-1, type=click.Choice(tuple(CASES)))
@click.option("--entries", type=Size(), default=SIZES["entries"], show_default="100M", help="Of the large stream.")
@click.option("--base", type=Size(), default=1_000_000, show_default="1M", help="Of the one it is compared with.")
@click.option("--streams", type=Size(), default=SIZES["streams"], show_default="100k")
@click.option("--groups", type=Size(), default=SIZES["groups"], show_default="10k")
@click.option("--pending", type=Size(), default=SIZES["pending"], show_default="1M")
@click.option("--connections", type=Size(), default=SIZES["connections"], show_default="10k")
@click.option("--rounds", default=3, show_default=True, help="Counted rounds where servers take turns.")
@click.option("--requests", type=Size(), default=200_000, show_default="200k", help="Appends, and the like, a round.")
@click.option("--tidelog", default=None, help="Another tidelog-server, as a command line.")
@click.option("--redis", "with_redis", is_flag=True, help="Also fill redis-server, with 10M entries at most.")
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), help="Store the data here and reuse it.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures there.")
def main(
    cases: tuple[str, ...], base: int, rounds: int, requests: int, tidelog: str | None, with_redis: bool,
    directory: Path | None, json_file: Path | None, **sizes: int,
) -> None:  # fmt: skip
    """Measure tidelog with large amounts of data: the named cases, or all of them.

    \b
    entries      one long stream: seeks, appends, memory, start-up, compared with a short one
    streams      many streams: memory, appends to random ones, checkpoints, start-up
    groups       many groups on one stream
    pending      many pending messages in one group: redelivery, memory, start-up
    connections  many idle connections

    Filling 100 M entries takes about four minutes and 1 GB of disk; --entries 2M takes seconds. With --directory, the
    filled stream remains there for the next run.
    """
    on_load_core()
    installed = [Installation("tidelog", tuple(shlex.split(tidelog)) if tidelog else OURS, ours=not tidelog)]
    if with_redis:
        installed += [one for one in installations() if one.redis]
    machine, says = facts.machine(), facts.described(installed)
    report = Report()
    click.echo(f"{facts.summary(machine, says)}\n\n{HEAD}")
    with contextlib.ExitStack() as stack:
        top = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidelog-scale-")))
        run = Run(
            report, top.resolve(), directory is not None, list(installed[0].command), installed[0].ours, rounds,
            requests, with_redis,
        )  # fmt: skip
        for name in cases or CASES:
            CASES[name](run, base if name == "entries" else max(sizes[name] // 100, 1), sizes[name])
    if json_file is not None:
        kept = {"machine": machine, "servers": says, "rows": report.rows}
        json_file.write_text(json.dumps(kept, indent=1) + "\n")
