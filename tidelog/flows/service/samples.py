"""The figures of a flow in one interval, as entries of a stream, and combined for a chart.

    flows:NAME:history:FLOW    process, status, seconds, events, failed, unsettled, oldest_ms, lag, backlog, p50_ms, ...

Each process with the name NAME appends an entry per interval. Unknown figures are missing.

Rule: entries of several processes are added, except for the lag of consumer groups, which all of them share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from tidelog.client import calls
from tidelog.client.entries import Entry
from tidelog.client.steps import Steps, checked
from tidelog.transport.call import Call

KEPT: Final = 8640  # entries: a day of one process
KEPT_MS: Final = 7 * 86_400_000  # after the last entry
POINTS: Final = 120  # of a chart, at most
COLUMNS: Final = (
    "at", "rate", "failed", "bytes_in", "bytes_out", "unsettled", "oldest_ms", "lag", "backlog", "p50_ms", "p99_ms",
)  # fmt: skip


class FlowSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """The figures of a flow of one process. ``events`` and ``failed``: in the interval of ``seconds``."""

    at: int  # end of the interval, ms since 1970
    process: str
    status: str
    seconds: float
    events: int = 0  # that its sources have sent
    failed: int = 0
    unsettled: int = 0
    oldest_ms: int | None = None  # age of the oldest unsettled event
    lag: int | None = None  # of its consumer groups on the tidelog server, in entries
    backlog: int | None = None  # events of other sources that were not pulled
    p50_ms: float | None = None  # from sending to settlement
    p99_ms: float | None = None
    bytes_in: int = 0  # in the interval: that its sources have received
    bytes_out: int = 0  # that its sinks have sent


def key_of(name: str, flow: str) -> str:
    """Return the key of the history of a flow. ``name``: of the desired state."""
    return f"flows:{name}:history:{flow}"


def write(name: str, samples: Mapping[str, FlowSample], *, expiry: bool) -> Steps[None]:
    """Append samples by flow. ``expiry``: renew the expiry time of the streams."""
    steps: list[Call[Any]] = []
    for flow, sample in samples.items():
        fields = {key: str(each) for key, each in msgspec.structs.asdict(sample).items() if each is not None}
        del fields["at"]  # is in the ID
        steps.append(calls.tappev(key_of(name, flow), fields, count=KEPT))
        if expiry:
            steps.append(Call(("PEXPIRE", key_of(name, flow), KEPT_MS), int))
    checked((yield steps))


def read(name: str, flow: str, since: int) -> Steps[list[FlowSample]]:
    """Return the samples of all processes since a time in ms, oldest first."""
    (entries,) = yield [calls.trange(key_of(name, flow), str(since), "+", KEPT)]
    if isinstance(entries, Exception):
        if "no such key" in str(entries):
            return []
        raise entries
    return [found for entry in entries if (found := _sample(entry)) is not None]


def _sample(entry: Entry) -> FlowSample | None:
    """Return a sample; None for an entry of somebody else."""
    try:
        fields = {name.decode(): value.decode() for name, value in entry.pairs}
        return msgspec.convert({**fields, "at": entry.id.ms}, FlowSample, strict=False)
    except (ValueError, msgspec.ValidationError):
        return None


def chart(samples: Iterable[FlowSample], since: int, until: int, every: float) -> dict[str, list[float | int | None]]:
    """Return samples as columns with at most POINTS rows, oldest first. ``every``: seconds between two samples.

    ``rate`` and ``failed`` are events per second, ``bytes_in`` and ``bytes_out`` bytes per second. Rows without samples
    are omitted.
    """
    step = max(1000 * every, (until - since) / POINTS)
    rows: dict[int, dict[str, list[FlowSample]]] = {}
    for each in samples:
        if each.at > since:
            rows.setdefault(int((each.at - since - 1) // step), {}).setdefault(each.process, []).append(each)
    columns: dict[str, list[float | int | None]] = {name: [] for name in COLUMNS}
    for number, found in sorted(rows.items()):
        for name, value in _row(list(found.values())).items():
            columns[name].append(value)
        columns["at"].append(min(until, round(since + (number + 1) * step)))
    return columns


def _row(processes: list[list[FlowSample]]) -> dict[str, float | int | None]:
    """Return the figures of one row of a chart. ``processes``: the samples of each process, oldest first."""
    last = [each[-1] for each in processes]
    every = [sample for each in processes for sample in each]
    return {
        "rate": sum(_per_second(each, "events") for each in processes),
        "failed": sum(_per_second(each, "failed") for each in processes),
        "bytes_in": sum(_per_second(each, "bytes_in") for each in processes),
        "bytes_out": sum(_per_second(each, "bytes_out") for each in processes),
        "unsettled": sum(each.unsettled for each in last),
        "oldest_ms": max((each.oldest_ms for each in last if each.oldest_ms is not None), default=None),
        "lag": max((each.lag for each in last if each.lag is not None), default=None),
        "backlog": _sum(each.backlog for each in last),
        "p50_ms": max((each.p50_ms for each in every if each.p50_ms is not None), default=None),
        "p99_ms": max((each.p99_ms for each in every if each.p99_ms is not None), default=None),
    }


def _per_second(samples: list[FlowSample], counter: str) -> float:
    seconds = sum(each.seconds for each in samples)
    return round(sum(getattr(each, counter) for each in samples) / seconds, 3) if seconds else 0.0


def _sum(values: Iterable[int | None]) -> int | None:
    known = [each for each in values if each is not None]
    return sum(known) if known else None
