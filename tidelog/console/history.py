"""The samples of the plots: a bounded stream on the server.

A sample is an entry of the stream KEY with one field for each number of NUMBERS that the server has, and ``run``, the
start of the server's run ID. Counters are stored as they are. The rate between two samples is therefore exact, even if
other samples lie between them.

Rule 1: the stream has about SAMPLES entries, a day at INTERVAL.
Rule 2: the cost of reading does not depend on the time that is displayed: one XRANGE ... COUNT 1 per point.
Rule 3: several consoles can record. A sample is appended only if the newest one is older than most of INTERVAL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.console.infotext import ServerInfo
from tidelog.transport.call import Call, plain

KEY: Final = "tidelog:console:history"
INTERVAL: Final = 5.0  # s between two samples
SAMPLES: Final = 17_280  # 24 h
POINTS: Final = 180  # of a plot
DIGITS: Final = 18  # of a number of a sample, at most
GAP: Final = 3  # steps between two samples that a line connects, at most


@dataclass(frozen=True)
class SampledNumber:
    """A number of the samples, and the fields of INFO whose sum it is."""

    fields: tuple[str, ...]
    counter: bool = False  # it only increases; the plot shows its rate per second


NUMBERS: Final[Mapping[str, SampledNumber]] = {
    "commands": SampledNumber(("total_commands_processed",), counter=True),
    "appended": SampledNumber(("stream_entries_added",), counter=True),
    "in": SampledNumber(("total_net_input_bytes",), counter=True),
    "out": SampledNumber(("total_net_output_bytes",), counter=True),
    "memory": SampledNumber(("used_memory",)),
    "rss": SampledNumber(("used_memory_rss",)),
    "disk": SampledNumber(("log_journal_bytes", "log_store_bytes", "log_tail_bytes", "aof_current_size")),
    "clients": SampledNumber(("connected_clients",)),
    "pending": SampledNumber(("group_pending",)),
    "sync": SampledNumber(("log_last_sync_us",)),
}


@dataclass(frozen=True)
class Sample:
    """The numbers of the server at one time."""

    ms: int  # since 1970
    run: str
    numbers: Mapping[str, int]


def sample_of(info: ServerInfo, ms: int) -> Sample:
    """Return the numbers that INFO has now."""
    found = {name: info.total(*each.fields) for name, each in NUMBERS.items()}
    return Sample(ms, info.word("run_id")[:12], {name: value for name, value in found.items() if value is not None})


def append_call(sample: Sample) -> Call[Any]:
    """Return the call that appends a sample and evicts the oldest ones."""
    fields = [word for name, value in sample.numbers.items() for word in (name, value)]
    return plain("XADD", KEY, "MAXLEN", "~", SAMPLES, "*", "run", sample.run, *fields)


def newest_call() -> Call[int | None]:
    """Return the call for the time of the newest sample, None if there is none."""
    return Call(("XREVRANGE", KEY, "+", "-", "COUNT", 1), lambda reply: _read(reply[0]).ms if reply else None)


def step_of(span_ms: int) -> int:
    """Return the time between two points of a plot, in ms."""
    return max(int(INTERVAL * 1000), span_ms // POINTS)


def range_calls(now: int, span_ms: int) -> list[Call[Any]]:
    """Return one call for each point of the last ``span_ms``: its first sample, None if there is none."""
    step = step_of(span_ms)
    first = (now - span_ms) // step * step
    return [
        Call(
            ("XRANGE", KEY, at, at + step - 1, "COUNT", 1),
            lambda reply: _read(reply[0]) if reply else None,
        )
        for at in range(first, now + 1, step)
    ]  # fmt: skip


def rates(before: Sample | None, sample: Sample) -> dict[str, float | None]:
    """Return the value of each number at a point: rates of counters, since the sample before."""
    found: dict[str, float | None] = {}
    for name, value in sample.numbers.items():
        if not NUMBERS[name].counter:
            found[name] = float(value)
            continue
        found[name] = None
        if before is not None and before.run == sample.run and name in before.numbers and sample.ms > before.ms:
            found[name] = max(0.0, 1000 * (value - before.numbers[name]) / (sample.ms - before.ms))
    return found


def points(samples: Sequence[Sample | None], step: int) -> dict[str, list[float | None]]:
    """Return the columns of the plots: ``time`` in s since 1970, and each number that a sample has.

    Where no sample was recorded for several steps, the plots have a gap.
    """
    columns: dict[str, list[float | None]] = {name: [] for name in ("time", *NUMBERS)}
    before: Sample | None = None
    for sample in samples:
        if sample is None:
            continue
        if before is not None and sample.ms - before.ms > GAP * step:
            _add(columns, before.ms / 1000 + 1, {})
            before = None
        _add(columns, sample.ms / 1000, rates(before, sample))
        before = sample
    return {name: column for name, column in columns.items() if name == "time" or any(v is not None for v in column)}


def _add(columns: dict[str, list[float | None]], at: float, values: Mapping[str, float | None]) -> None:
    columns["time"].append(at)
    for name in NUMBERS:
        columns[name].append(values.get(name))


def _number(word: bytes) -> int | None:
    """Return a number of a sample; None for anything else, which every user who may append to the stream can write."""
    return int(word) if word.isdigit() and len(word) <= DIGITS else None


def _read(entry: Any) -> Sample:
    entry_id, words = entry
    fields = dict(zip(words[::2], words[1::2], strict=True))
    numbers = {name: value for name in NUMBERS if (value := _number(fields.get(name.encode(), b""))) is not None}
    return Sample(int(entry_id.partition(b"-")[0]), fields.get(b"run", b"").decode("ascii", "replace"), numbers)
