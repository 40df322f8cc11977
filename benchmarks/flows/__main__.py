"""``python -m benchmarks.flows``: figures of flows, with floors and goals."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import click

from benchmarks.flows import beside, hanging, idle, streams, through
from benchmarks.jobs import shown
from benchmarks.jobs.shown import Goal


class Asked(NamedTuple):
    """What the command line asks for."""

    runs: int
    events: int  # through a flow in this process; a fifth of them through one between streams


def null(asked: Asked) -> None:
    """With settlement and without, in turn, so that both see the same machine."""
    for way, title in (("functions", "two Python functions"), ("classes", "two classes of Operator")):
        _through(asked, way, f"null -> {title} -> null", Goal(150, 400))


def jmespath(asked: Asked) -> None:
    """JMESPath instead of Python."""
    _through(asked, "jmespath", "null -> where -> select -> null, JMESPath", Goal(50, 120))


def mapping(asked: Asked) -> None:
    """Three fields that functions and arithmetic compute, in turn with Benthos."""
    _through(asked, "map", "null -> where -> map of three fields -> null", Goal(50, 120))
    ours, theirs = [], []
    for _ in range(asked.runs):
        ours.append(1 / through.rate(asked.events, "map").core - 1 / through.rate(asked.events, "none").core)
        theirs.append(beside.benthos())
    us, other = 1e6 * statistics.median(ours), 1e6 * statistics.median(theirs)
    peer = f"{other:.2f} us, Benthos {beside.BENTHOS_VERSION}"
    shown.row("where and map alone, beside", f"{us:.2f} us of a core per event", peer, other / us, None)


def route(asked: Asked) -> None:
    """In turn with ``where``, which has the same condition."""
    _added(asked, "route", "null -> route -> select -> null, more time than with where")


def templates(asked: Asked) -> None:
    """In turn with ``where``, and a sink without a template."""
    _added(asked, "templates", "null -> select -> a sink with a template, more time than with where instead of it")


def _added(asked: Asked, way: str, title: str) -> None:
    """The time of a way in comparison with ``where``, in pairs."""
    pairs = [(through.rate(asked.events, way), through.rate(asked.events, "jmespath")) for _ in range(asked.runs)]
    cost = 100 * (statistics.median(where.core / other.core for other, where in pairs) - 1)
    shown.row(title, f"{cost:.1f} % of the time on a core", "", cost, Goal(10, 5, least=True), " %")


def _through(asked: Asked, way: str, title: str, goal: Goal) -> None:
    on, off = [], []
    for _ in range(asked.runs):
        on.append(through.rate(asked.events, way))
        off.append(through.rate(asked.events, way, settle=False))
    for what, found in ((title, on), (f"{title}, settlement off", off)):
        clock, core = _medians(found)
        shown.row(what, f"{clock:,.0f} events/s, {core:,.0f} on a core", "", clock / 1e3, goal, " k")
    cost = 100 * (1 - _medians(on)[1] / _medians(off)[1])
    shown.row("cost of settlement", f"{cost:.0f} % of the time on a core", "", cost, Goal(40, 20, least=True), " %")


def _medians(found: Sequence[through.Rate]) -> tuple[float, float]:
    """(of the clock, of a core)"""
    return statistics.median(each.clock for each in found), statistics.median(each.core for each in found)


def stream(asked: Asked) -> None:
    """Between two streams of a server, beside FastStream between two of redis-server."""
    ours = 0.0
    for operator, how in ((streams.total, "a function"), (streams.Totals, "a class of Operator")):
        for codec in streams.CODECS:
            found = [streams.rate(asked.events // 5, codec, operator) for _ in range(asked.runs)]
            clock = statistics.median(each.clock for each in found)
            core = statistics.median(each.core for each in found)
            serving = statistics.median(each.server for each in found)
            server = "compiled" if all(each.compiled for each in found) else "interpreted"
            title = f"stream -> {how} -> stream, at least once, {codec}, server {server}"
            figure = f"{clock:,.0f} events/s; on a core {core:,.0f}, the server {serving:,.0f}"
            shown.row(title, figure, "", clock / 1e3, Goal(40, 100), " k")
            ours = ours or clock
    other = beside.faststream(asked.runs)
    title = f"{other.name} {other.version}, redis-server"
    shown.row(
        "the same with a function, json, beside", f"{ours:,.0f} events/s", f"{other.events:,.0f} events/s, {title}",
        ours / other.events, Goal(2, 10), "x",
    )  # fmt: skip


def idle_flows(asked: Asked) -> None:  # noqa: ARG001 - a row's form
    """One run: it takes its time."""
    found = idle.measure()
    title = f"{found.flows:,} idle flows of {found.tasks:,} tasks"
    shown.row(title, f"{found.cores:.4f} cores", "", found.cores, Goal(0.1, 0.02, least=True), " cores")


def hang(asked: Asked) -> None:  # noqa: ARG001 - a row's form
    """One run of each: nothing in it is chance."""
    for timeout, how in ((None, "never answers"), (hanging.TIMEOUT, f"answers nothing within {hanging.TIMEOUT:g} s")):
        found = hanging.measure(timeout)
        figure = f"{found.first:.2f} MB, in the second half hour {found.second:.2f}; {found.again:,} sent again"
        title = f"memory while a sink {how} for an hour"
        shown.row(title, figure, "", found.growth, Goal(1.05, 1.01, least=True), "x")


ROWS: Final[dict[str, Callable[[Asked], None]]] = {
    "null": null, "jmespath": jmespath, "map": mapping, "route": route, "templates": templates, "stream": stream,
    "idle": idle_flows, "hang": hang,
}  # fmt: skip


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("what", type=click.Choice(list(ROWS)), nargs=-1)
@click.option("--runs", default=5, show_default=True, help="Medians are of so many.")
@click.option("--events", default=1_000_000, show_default=True, help="Between streams a fifth of it.")
def main(what: tuple[str, ...], runs: int, events: int) -> None:
    """Figures of flows: each by its name, all by default. FastStream is installed into .bench."""
    click.echo(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {events:,} events\n")
    shown.head()
    for name in what or ROWS:
        ROWS[name](Asked(runs, events))


if __name__ == "__main__":
    main()
