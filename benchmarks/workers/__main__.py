"""``python -m benchmarks.workers``: compares workers with other libraries in the same run."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import click

from benchmarks.workers import beside, quiet, rates
from benchmarks.workers.modes import MODES

WHAT = (*MODES, "send_many", "quiet", "beside")


@click.command()
@click.argument("what", type=click.Choice(WHAT), nargs=-1)
@click.option("--runs", default=3, show_default=True, help="Medians are of so many.")
@click.option("--events", default=200_000, show_default=True)
@click.option("--keys", default=10_000, show_default=True)
@click.option("--partitions", default=16, show_default=True)
@click.option("--take", default=100, show_default=True, help="Events of a batch.")
@click.option("--profile", type=click.Path(path_type=Path), help="Write what cProfile sees of the worker there.")
def main(
    what: tuple[str, ...], runs: int, events: int, keys: int, partitions: int, take: int, profile: Path | None
) -> None:
    """Events a second of one worker, by mode; records a second of send_many; what four quiet workers cost, and how long
    an event takes; and FastStream, taskiq-redis, arq and streaq, which are installed into .bench. All by default.
    """
    click.echo(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {events:,} events, {partitions} partitions")
    load = rates.Load(events, keys, partitions, take)
    best = 0.0
    for name in what or WHAT:
        if name == "send_many":
            click.echo(f"{name:14} {statistics.median(rates.sending(load) for _ in range(runs)):>9,.0f} records/s")
        elif name == "quiet":
            found = quiet.measure()
            click.echo(f"{name:14} {found.commands:>9.2f} commands/s of 4 workers with 16 partitions")
            click.echo(f"{name:14} {found.p50:.2f} ms p50, {found.p99:.2f} ms p99 from send to handler")
        elif name == "beside":
            for peer in beside.measure(runs):
                ratio = f"   tidelog: {best / peer.events:,.0f} times as many" if best else ""
                click.echo(f"{peer.name:14} {peer.events:>9,.0f} events/s   {peer.version}{ratio}")
        else:
            rate = rates.middle([rates.measure(name, load, profile) for _ in range(runs)])
            best = rate.events if name == "each" else best
            click.echo(
                f"{name:14} {rate.events:>9,.0f} events/s   worker {rate.worker * 1e6:6.1f} us/event,"
                f" server {rate.server * 1e6:6.1f} us/event   acknowledged {rate.acknowledged:,},"
                f" repeated {rate.repeated:,}"
            )


if __name__ == "__main__":
    main()
