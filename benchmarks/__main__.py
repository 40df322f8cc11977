"""``scripts/bench``: run workloads on tidelog and redis-server in turn; print medians, ratios, and what is asked."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import click

from benchmarks import append, cpu, facts, fanout, groups, jetstream, latency, plot, polling, ranges, space, xstreams
from benchmarks.registry import WORKLOADS, Bench, counted
from benchmarks.servers import Installation, installations, on_load_core
from benchmarks.table import THEIRS, Table, is_theirs

# importing one declares its workloads
MODULES = (append, ranges, polling, groups, fanout, space, xstreams, latency, cpu)


class Counts(click.ParamType[tuple[int, ...]]):
    """``1M,10M``, ``200k``, ``5000``."""

    name = "numbers"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(counted(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of counts like 1M,10M or 200k", param, ctx)


class Server(click.ParamType[tuple[str, str]]):
    """``NAME=COMMAND``. ``theirs``: whether it is a peer, which its name shows (``is_theirs``)."""

    name = "name=command"

    def __init__(self, theirs: bool) -> None:
        self.theirs = theirs

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, command = str(value).partition("=")
        if not equals or not re.fullmatch(r"[\w.-]+", name) or not command.strip():
            self.fail(f'{value!r} is not NAME="COMMAND"', param, ctx)
        if name == "tidelog" or is_theirs(name) != self.theirs or name.startswith("nats"):
            rule = "a name that begins with redis or valkey" if self.theirs else f"not tidelog, {', '.join(THEIRS)}"
            self.fail(f"{value!r}: the name must be {rule}", param, ctx)
        return name, command


def listing(quick: bool = False) -> str:
    """Return every workload with its name, its description, and its sizes."""
    width = max(map(len, WORKLOADS))
    made = []
    for one in WORKLOADS.values():
        defaults = one.defaults(quick)
        made.append(f"{one.name:<{width}}  {one.help}" + (f" ({defaults})" if defaults else ""))
    return "\n".join(made)


HELP = f"""Compare tidelog with redis-server: the named workloads, or all of them.

\b
Workloads (in brackets: entries in the stream, requests per run):
{listing()}
\b
replication   a separate program: lag and cost of replicas, copies, failover; see replication --help
--long        a separate program: very long histories; see --long --help

An installed tidelog is measured if there is one, otherwise the checkout; the first lines say which, and whether it is
compiled. scripts/bench installs the checkout, compiled if possible, and measures this installation.

The servers run on one core, the load on another. With --unpinned, servers may use two cores, and rates show what they
gain from the second one. Rounds alternate (A B A B), and the first one does not count. Figures are medians (min-max).
A ratio above 1 means that tidelog is better, also if less is better. The last column shows the floor and the goal of
the row, and whether it meets them. benchmarks/README.md describes the method.

\b
Examples:
  scripts/bench --quick                               a small part of everything, in minutes
  scripts/bench append --only "always, 50 clients"    some rows of a workload
  scripts/bench restart --size 1M,10M
  scripts/bench range --json range.json --plot range.svg
  scripts/bench cpu --only "PING|GET"                 CPU time of the server, not rates
  scripts/bench cpu --unpinned --only JSON            two cores for each server
  scripts/bench append --also compiled="/other/.venv/bin/tidelog-server"
  scripts/bench cpu --peer redis=/other/redis-server --peer valkey=/other/valkey-server
"""


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.argument("names", nargs=-1, type=click.Choice(list(WORKLOADS)), metavar="[WORKLOAD]...")
@click.option("--list", "list_only", is_flag=True, help="Print the workloads and what they measure.")
@click.option("--quick", is_flag=True, help="One run with small sizes: shows that it works, not how fast.")
@click.option("--only", metavar="REGEX", help="Only rows whose title matches this expression.")
@click.option("--runs", type=click.IntRange(1), help="Counted runs of each row and server.  [default: 3]")
@click.option("--requests", type=Counts(), metavar="N", help="Requests per run, for all workloads that have them.")
@click.option(
    "--size", type=Counts(), metavar="N[,N...]",
    help="Entries in the stream. range, seek, pending, space and restart use each size, other workloads the first.",
)
@click.option("--tidelog", metavar="COMMAND", help="Start tidelog with this command instead.")
@click.option(
    "--also", multiple=True, type=Server(theirs=False), help="Another tidelog in the same run, in a separate column."
)
@click.option(
    "--peer", "peers", multiple=True, type=Server(theirs=True),
    help="A server to compare with, instead of the installed redis-server; repeatable. NAME is redis or valkey, with a "
    "suffix if you like; floors and goals refer to the one that is called redis.",
)
@click.option("--no-peer", is_flag=True, help="Measure tidelog only.")
@click.option("--nats", is_flag=True, help="Workload cpu: publish, compared with nats-server and JetStream.")
@click.option("--nats-server", metavar="COMMAND", help="For --nats: a nats-server, instead of the installed one.")
@click.option("--unpinned", is_flag=True, help="Servers may use two cores; without it, one core.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures there.")
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False, path_type=Path), help="Draw ratios (.svg, .png).")
def main(
    names: tuple[str, ...], list_only: bool, quick: bool, only: str | None, runs: int | None,
    requests: tuple[int, ...] | None, size: tuple[int, ...] | None, tidelog: str | None,
    also: tuple[tuple[str, str], ...], peers: tuple[tuple[str, str], ...], no_peer: bool, nats: bool,
    nats_server: str | None, unpinned: bool, json_file: Path | None, plot_file: Path | None,
) -> None:  # fmt: skip
    if list_only:
        click.echo(listing(quick))
        return
    if plot_file is not None:
        plot.check()
    pattern = compiled(only)
    installed = selected(tidelog, also, peers, no_peer)

    nats_command = [] if not nats else shlex.split(nats_server) if nats_server else jetstream.installed()
    if nats and names != ("cpu",):
        raise click.UsageError("--nats is for the workload cpu alone: scripts/bench cpu --nats")
    if nats and not nats_command:
        click.echo("NOTE: no nats-server here to compare with (Debian: apt-get install nats-server)", err=True)
        return

    on_load_core()
    machine, says = facts.machine(), facts.described(installed)
    if (busy := os.getloadavg()[0]) > 0.5:
        click.echo(f"NOTE: load average {busy:.1f}: other programs affect the figures", err=True)
    columns = [one.name for one in installed]
    if nats_command:
        columns.append("nats")
        says["nats"] = {"nats_version": jetstream.version(nats_command)}
    table = Table(columns)
    bench = Bench(installed, table, runs or (1 if quick else 3), quick=quick, nats=nats_command, only=pattern)
    bench.unpinned = unpinned
    mode = "two cores for each server" if unpinned else "one core for each server"
    click.echo(facts.summary(machine, says))
    click.echo(f"{mode}; {bench.runs} runs, medians (min-max); above 1 is better\n\n{table.head()}")

    disturbed: dict[str, float] = {}
    try:
        measure(bench, names, size, requests, disturbed)
    finally:  # figures that were measured before an interruption are stored
        if json_file is not None:
            kept = {"machine": machine, "servers": says, "names": table.names, "runs": bench.runs, "quick": quick}
            kept |= {"mode": mode}
            kept |= {"others": disturbed, "rows": table.rows}
            json_file.write_text(json.dumps(kept, indent=1) + "\n")

    if not table.rows:
        titles = "\n".join(sorted(bench.begun))
        raise click.ClickException(f"--only {only!r} leaves no row. There are:\n{titles}")
    if plot_file is not None:
        plot.draw(table.rows, table.names, plot_file, facts.summary(machine, says, places=False))


def selected(
    tidelog: str | None, also: tuple[tuple[str, str], ...], peers: tuple[tuple[str, str], ...], no_peer: bool
) -> list[Installation]:
    """The servers that the options select.

    Raises:
        click.UsageError: two of them have the same name, or --no-peer excludes one of --peer.
    """
    if len({name for name, _ in (*also, *peers)}) < len(also) + len(peers):
        raise click.UsageError("two servers of --also and --peer have the same name")
    if no_peer and peers:
        raise click.UsageError("--no-peer excludes the servers of --peer: leave one of the options out")
    installed = installations(tidelog, also, peers, peer=not no_peer)
    if not no_peer and not installed[-1].redis:
        click.echo("NOTE: no redis-server here to compare with (Debian: apt-get install redis-server)", err=True)
    return installed


def compiled(only: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(only) if only else None
    except re.error as e:
        raise click.BadParameter(f"{only!r}: {e}", param_hint="--only") from None


def measure(
    bench: Bench, names: tuple[str, ...], size: tuple[int, ...] | None, requests: tuple[int, ...] | None,
    disturbed: dict[str, float],
) -> None:  # fmt: skip
    """Run the named workloads, or all. ``disturbed`` receives the share of a core that others used during each."""
    others = facts.Others()
    for one in WORKLOADS.values():
        if names and one.name not in names:
            continue
        bench.sizes = size or (one.quick_sizes if bench.quick else one.sizes)
        bench.requests = (requests or (one.quick_requests if bench.quick else one.requests,))[0]
        one.run(bench)
        disturbed[one.name] = round(others.share(), 2)
        click.echo(f"  others on this machine meanwhile: {disturbed[one.name]:.2f} of a core", err=True)


def run() -> None:
    """One of three programs."""
    if sys.argv[1:2] == ["replication"]:
        from benchmarks import replication

        replication.main(sys.argv[2:], prog_name="scripts/bench replication")
    elif sys.argv[1:2] == ["--long"]:
        from benchmarks import long

        long.main(sys.argv[2:], prog_name="scripts/bench --long")
    main(prog_name="scripts/bench")


if __name__ == "__main__":
    run()
