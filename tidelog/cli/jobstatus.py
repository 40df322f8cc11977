"""Prints the status of jobs, for ``tidelog jobs status``."""

from __future__ import annotations

from typing import Any, Final

from tidelog.jobs.registry.overview import JobOverview, JobsOverview
from tidelog.jobs.registry.status import version_text
from tidelog.operating.tables import LAG, counted, duration, lag_cells, print_pairs, size, table
from tidelog.operating.terminal import echo
from tidelog.operating.throughput import THROUGHPUT

SHOWN: Final = 64  # maximum number of partitions shown per job


def print_jobs(seen: JobsOverview) -> None:
    """Print all jobs, one per line."""
    engines = ", ".join(seen.engines) or "none; start one: tidelog jobs engine"
    echo(f"engines: {engines}")
    if not seen.jobs:
        echo("no jobs; add one: tidelog jobs add module:job")
        return
    head = ["job", "status", "engine", "epoch", *LAG, *THROUGHPUT, "keys", "state size", "snapshot",
            "restarts", "last error"]  # fmt: skip
    table(head, [_row(each, seen.at) for each in seen.jobs])


def _row(job: JobOverview, now: int) -> list[str]:
    report, state = job.report, job.state
    if report is not None and report.version != job.spec.version:
        state += " (other code)"
    found = [job.spec.name, state, job.engine or "-", _epoch(job), *_lag(job), *job.throughput.cells()]
    if report is None:
        return [*found, *["-"] * 5]
    return [
        *found, _number(report.facts.get("keys")), _size(report.facts.get("bytes")), _snapshot(job, now),
        f"{report.restarts:,}", _first(report.error) if report.error else "-",
    ]  # fmt: skip


def print_job(job: JobOverview, now: int) -> None:
    """Print all details of one job."""
    spec, report = job.spec, job.report
    facts = {
        "job": f"{spec.name}, a {spec.kind} job, {spec.target}",
        "code": f"version {spec.version} was added" if report is None else version_text(report.version, spec.version),
        "status": job.state,
        "engine": job.engine or "none",
        "generation": f"{spec.generation}" + (f", from {spec.start}" if spec.start else ""),
        "reads": ", ".join(spec.inputs) or "-",
        "writes": ", ".join(spec.outputs) or "-",
        "epoch": _epoch(job),
        "lag": f"{counted(job.lag, 'entry')}, the oldest is {duration(job.lag_ms)} old" if job.lag else "0",
    }
    facts |= job.throughput.pairs()
    if report is not None:
        amounts = f"{report.rows_in:,} in, {report.rows_out:,} out, {counted(report.dead, 'dead letter')}"
        facts["rows"] = f"{amounts} since its start on this engine, {duration(now - report.since)} ago"
        if spec.state:
            facts["keys"] = f"{_number(report.facts.get('keys'))}, {_size(report.facts.get('bytes'))}"
            facts["snapshot"] = _snapshot(job, now)
            if job.snapshots.error:
                facts["snapshots"] = f"FAIL: {job.snapshots.error}"
        if report.recovered:
            facts["recovered"] = f"{counted(report.recovered, 'epoch')} replayed"
        facts["restarts"] = f"{report.restarts:,}"
    print_pairs(facts)
    if job.partitions:
        rows = [
            [f"  {each.partition}", "-" if each.epoch is None else f"{each.epoch:,}",
             *lag_cells(each.lag, each.lag_ms), _recovery(each.recovery)]
            for each in job.partitions[:SHOWN]
        ]  # fmt: skip
        table(["  partition", "epoch", *LAG, "recovery"], rows)
        if len(job.partitions) > SHOWN:
            echo(f"  and {len(job.partitions) - SHOWN:,} more; --json prints all")
    if report is not None and report.error:
        echo(f"last error, {duration(now - report.error_at)} ago:")
        for line in report.error.splitlines():
            echo(f"    {line}")


def _lag(job: JobOverview) -> list[str]:
    return lag_cells(job.lag, job.lag_ms) if job.spec.inputs else ["-", "-"]


def _epoch(job: JobOverview) -> str:
    """Return the last epoch according to the log; for a frame job, according to its engine."""
    last = max((each.epoch for each in job.partitions if each.epoch is not None), default=None)
    if last is None and job.report is not None and job.spec.kind == "frame":
        last = job.report.epoch
    return "-" if last is None else f"{last:,}"


def _recovery(facts: Any) -> str:
    if facts is None:
        return "-"
    if isinstance(facts, dict):
        return ", ".join(f"{name} {value}" for name, value in facts.items())
    return str(facts)


def _snapshot(job: JobOverview, now: int) -> str:
    found = job.snapshots
    shown = f"{duration(max(1, now - found.at))}, epoch {found.epoch:,}" if found.at else "-"
    return f"{shown} FAILS" if found.error else shown


def _number(count: Any) -> str:
    return f"{count:,}" if isinstance(count, int) else "-"


def _size(count: Any) -> str:
    return size(count) if isinstance(count, int) else "-"


def _first(text: str) -> str:
    """Return the most informative line: the last one of a traceback, otherwise the first one."""
    lines = text.splitlines()
    line = lines[-1] if any(each.startswith("Traceback") for each in lines) else lines[0]
    return line if len(line) <= 60 else f"{line[:57]}..."
