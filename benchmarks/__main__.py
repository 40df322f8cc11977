"""``scripts/bench``: run workloads, print medians with their spread and the ratio, optionally write JSON."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import click

from benchmarks import replication, workloads
from benchmarks.servers import on_load_core
from benchmarks.table import HEAD, ROWS, row


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(sorted(workloads.WORKLOADS)))
@click.option("--runs", default=3, show_default=True, help="Counted runs of each workload and server.")
@click.option("--requests", default=200_000, show_default=True, help="Appends a run.")
@click.option("--size", default=1_000_000, show_default=True, help="Entries in the stream for range, space.")
@click.option("--restart-size", default=5_000_000, show_default=True, help="Entries for restart.")
@click.option("--peer-binary", default=None, help="Another redis-server to compare with.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write them there too.")
def main(
    names: tuple[str, ...], runs: int, requests: int, size: int, restart_size: int, peer_binary: str | None,
    json_file: Path | None,
) -> None:  # fmt: skip
    """Measure tidelog beside redis-server: the workloads named, or all of them.

    \b
    append   redis-benchmark, 50 clients, the RCP's sensor entry; appendfsync always and everysec; pipelines 1, 16, 64
    range    reads at random places, COUNT 1000, 100, 10; nodes cached and cold
    space    bytes an entry, memory and disk
    restart  seconds until the first reply

    The servers run on one core, the load on another. Figures are medians (min-max) of the runs.

    What replicas cost and bring is measured by a program of its own: replication --help
    """
    on_load_core()
    wanted = names or tuple(workloads.WORKLOADS)
    click.echo(f"Python {platform.python_version()}, {platform.machine()}, {runs} runs each, medians (min-max)\n")
    click.echo(HEAD)
    if "append" in wanted:
        for fsync in ("always", "everysec"):
            for pipeline in (1, 16, 64):
                count = requests if pipeline == 1 else requests * 4
                figures = workloads.append(fsync, pipeline, 50, runs, count, peer_binary)
                row(f"append, {fsync}, 50 clients, P {pipeline}, a second", figures)
    if "range" in wanted:
        for cold in (False, True):
            for count in (1000, 100, 10):
                figures = workloads.ranges(count, size, runs, peer_binary, cold)
                row(f"range, COUNT {count}, {'cold' if cold else 'cached'}, entries a second", figures)
    if "space" in wanted:
        for name, figures in workloads.space(size, peer_binary).items():
            row(f"bytes an entry, {name}", figures, less_is_better=True, form=".1f")
    if "restart" in wanted:
        row(
            f"restart with {restart_size:,} entries, seconds", workloads.restart(restart_size, runs, peer_binary),
            less_is_better=True, form=".3f",
        )  # fmt: skip
    if json_file is not None:
        json_file.write_text(json.dumps(ROWS, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["replication"]:
        replication.main(sys.argv[2:], prog_name="scripts/bench replication")
    main(prog_name="scripts/bench")
