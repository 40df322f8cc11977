"""The output of ``tidelog app status``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import msgspec

from tidelog.cli.lines import printable
from tidelog.operating.tables import LAG, counted, duration, lag_cells, table
from tidelog.operating.terminal import echo
from tidelog.operating.throughput import THROUGHPUT, Throughput
from tidelog.workers.operate.status import AppStatus, PartitionStatus, ProcessorStatus, throughput

SHOWN: Final = 64  # partitions per processor; if there are more, those with the most unfinished entries
NAMED: Final = 12  # partitions per member, and parked keys per partition


def print_status(seen: AppStatus, before: AppStatus | None) -> None:
    """Print a status; with ``before``, the previous one, including the rates since then."""
    workers = sorted({name for processor in seen.processors for name in processor.alive})
    echo(f"app {seen.app}: {counted(len(workers), 'worker')}, leader: {printable(seen.leader or 'none')}")
    if not seen.processors:
        return
    found = throughput(before, seen)
    head = ["processor", "topic", "partitions", "ordering", *LAG, *THROUGHPUT, "pending"]
    table(head, [_row(each, found[each.name]) for each in seen.processors])
    for processor in seen.processors:
        echo()
        _print_processor(processor, seen.at)


def _row(processor: ProcessorStatus, found: Throughput) -> list[str]:
    partitions = processor.partitions
    progress, pending = ["-", "-"], "-"
    if partitions:
        progress = lag_cells(sum(each.lag for each in partitions), max(each.lag_ms for each in partitions))
        pending = f"{sum(each.pending for each in partitions):,}"
    return [
        processor.name, processor.topic, f"{len(partitions):,}", processor.ordering, *progress, *found.cells(), pending
    ]  # fmt: skip


def _print_processor(processor: ProcessorStatus, now: int) -> None:
    partitions = processor.partitions
    echo(f"{processor.name}:")
    if not partitions:
        echo("  the topic does not exist yet: nobody has sent records, and no worker has run")
        return
    if processor.halted is not None:
        echo(f"  ALL PARTITIONS ARE PAUSED: {_why(processor.halted)}")
    for each in partitions:
        for key, details in list(each.parked.items())[:NAMED]:
            echo(f"  key {printable(key)} of partition {each.partition} is parked: {_why(details, 'error')}")
        if len(each.parked) > NAMED:
            more = counted(len(each.parked) - NAMED, "more key")
            echo(f"  and {more} of partition {each.partition}; --json lists all")
    _print_members(processor, now)
    _print_partitions(processor)


def _print_members(processor: ProcessorStatus, now: int) -> None:
    rows = []
    for member in processor.members:
        owns = [str(each.partition) for each in processor.partitions if each.owner == member.worker]
        listed = ", ".join(owns[:NAMED]) + (f", ... ({len(owns)})" if len(owns) > NAMED else "")
        age = duration(max(0, now - member.joined)) if member.joined else "-"
        lease = f"expires in {duration(member.lease_ms)}" if member.lease_ms else "DEAD"
        rows.append([f"  {printable(member.worker)}", age, lease, listed or "-"])
    if rows:
        table(["  worker", "joined ago", "lease", "partitions"], rows)
    else:
        echo("  no workers")


def _print_partitions(processor: ProcessorStatus) -> None:
    found = list(processor.partitions)
    if len(found) > SHOWN:
        found.sort(key=lambda each: (-each.unfinished, each.partition))
        found = sorted(found[:SHOWN], key=lambda each: each.partition)
    rows = [
        [
            f"  {each.partition}", _owner(processor, each), *lag_cells(each.lag, each.lag_ms), f"{each.pending:,}",
            f"{len(each.parked):,}", "-" if each.paused is None else _why(each.paused),
        ]
        for each in found
    ]  # fmt: skip
    table(["  partition", "owner", *LAG, "pending", "parked", "paused"], rows)
    if len(found) < len(processor.partitions):
        echo(f"  and {counted(len(processor.partitions) - len(found), 'more partition')}; --json lists all")


def to_json(seen: AppStatus, before: AppStatus | None) -> str:
    """Return a status as one line of JSON; with ``before``, including the rates since then."""
    values = asdict(seen)
    found = throughput(before, seen)
    for processor, read in zip(values["processors"], seen.processors, strict=True):
        del processor["omitted"]  # this status has no limit
        processor |= found[read.name].data()
        for partition, at in zip(processor["partitions"], read.partitions, strict=True):
            partition["offset"] = None if at.offset is None else str(at.offset)
    return msgspec.json.encode(values).decode()


# -- texts ---------------------------------------------------------------------------------------------------
def _owner(processor: ProcessorStatus, partition: PartitionStatus) -> str:
    if processor.ordering == "none":
        return "all"
    owner, assigned = partition.owner, partition.assigned
    shown = printable(owner) if owner else "none"
    return shown if assigned in (owner, None) else f"{shown} -> {printable(assigned or '')}"


def _why(details: Mapping[str, Any], what: str = "reason") -> str:
    reason = str(details.get(what) or "by hand")
    return printable(reason if len(reason) <= 80 else f"{reason[:80]}...")
