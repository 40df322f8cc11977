"""What the server counts while it runs, and one moment's figures gathered for INFO.

Rule 1: ``Counters`` is written by the connections and the dispatcher, and only they and RESETSTAT write it.
Rule 2: gathering is O(clients), plus one walk over the streams that is reused while it is expensive and fresh.
"""

from __future__ import annotations

import os
import resource
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from commands.session import Session
from respserver.observe.slowlog import Histogram
from storage.keyspace import Keyspace
from storage.stream import Stream

if TYPE_CHECKING:
    from respserver.roles.roles import RoleFigures

MAX_ERROR_CODES = 128  # distinct codes counted; anything beyond can only come from a bug


class Rate:
    """Events a second, averaged over the last 16 samples of a running count."""

    __slots__ = ("_last_at", "_last_count", "_samples")

    def __init__(self) -> None:
        self._last_at = 0  # ms; 0: no sample yet
        self._last_count = 0
        self._samples: deque[float] = deque(maxlen=16)

    def sample(self, now: int, count: int) -> None:
        if self._last_at and now > self._last_at:
            self._samples.append(max(0, count - self._last_count) * 1000.0 / (now - self._last_at))
        self._last_at = now
        self._last_count = count

    @property
    def per_second(self) -> float:
        return sum(self._samples) / len(self._samples) if self._samples else 0.0


class Counters:
    """Running counts since the start or the last RESETSTAT."""

    def __init__(self) -> None:
        self.ops_rate = Rate()
        self.input_rate = Rate()
        self.output_rate = Rate()
        self.reset()

    def reset(self) -> None:
        """CONFIG RESETSTAT."""
        self.connections_received = 0
        self.connections_rejected = 0  # over maxclients, or refused by protected mode
        self.commands_processed = 0
        self.net_input = 0  # bytes
        self.net_output = 0  # bytes
        self.reads = 0  # chunks received
        self.writes = 0  # chunks sent
        self.error_replies = 0
        self.errors: dict[str, int] = {}  # error code -> replies
        self.query_buffer_cuts = 0  # clients closed for an endless command
        self.output_buffer_cuts = 0  # clients closed for not reading
        self.idle_cuts = 0  # clients closed by ``timeout``

    def note_error(self, text: str) -> None:
        """Count an error reply by its code; ``text`` as in CommandError."""
        self.error_replies += 1
        code = text.partition(" ")[0]
        if code in self.errors:
            self.errors[code] += 1
        elif len(self.errors) < MAX_ERROR_CODES:
            self.errors[code] = 1

    def sample(self, now: int) -> None:
        """Feed the rates; called some ten times a second. ``now``: ms since epoch."""
        self.ops_rate.sample(now, self.commands_processed)
        self.input_rate.sample(now, self.net_input)
        self.output_rate.sample(now, self.net_output)


@dataclass(slots=True)
class StreamTotals:
    """Sums over all streams."""

    streams: int = 0
    entries: int = 0
    entries_added: int = 0  # ever, by the streams that exist
    nodes: int = 0
    memory: int = 0  # bytes, estimated by each stream
    groups: int = 0
    pending: int = 0
    expired: int = 0
    deadlettered: int = 0
    redelivered: int = 0


class StreamWalk:
    """Totals of a keyspace. A walk that took long is reused for a while, so it costs at most about 5 % of the time."""

    __slots__ = ("_cost", "_taken_at", "_totals")

    # A walk cheaper than this is made anew each time: its figures are exact.
    CHEAP_SECONDS = 0.005

    def __init__(self) -> None:
        self._totals = StreamTotals()
        self._taken_at = 0.0
        self._cost = 0.0

    def totals(self, ks: Keyspace) -> StreamTotals:
        began = perf_counter()
        if self._cost > self.CHEAP_SECONDS and began - self._taken_at < 20 * self._cost:
            return self._totals
        totals = StreamTotals()
        for value in ks.keys.values():
            if not isinstance(value, Stream):
                continue
            totals.streams += 1
            totals.entries += value.length
            totals.entries_added += value.next_ord
            totals.nodes += value.node_count
            totals.memory += value.memory_bytes()
            for group in value.groups.values():
                totals.groups += 1
                totals.pending += len(group.pending)
                totals.memory += group.pending.memory_bytes()
                totals.expired += group.expired
                totals.deadlettered += group.deadlettered
                totals.redelivered += group.redelivered
        self._totals = totals
        self._taken_at = perf_counter()
        self._cost = self._taken_at - began
        return totals


@dataclass(slots=True)
class ProcessMemory:
    """Bytes of this process."""

    anonymous: int  # its own data: what maxmemory limits; file pages (LMDB's maps) are not in it
    resident: int  # everything that is in memory now
    peak: int  # the most that was ever resident


def process_memory() -> ProcessMemory:
    """From ``/proc/self/status``; where that is missing, the peak stands for all three."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    figures = {"RssAnon": peak, "VmRSS": peak, "VmHWM": peak}
    try:
        with open("/proc/self/status", "rb") as status:
            for line in status:
                name, _, rest = line.partition(b":")
                key = name.decode()
                if key in figures:
                    figures[key] = int(rest.split()[0]) * 1024
    except OSError:
        pass
    return ProcessMemory(figures["RssAnon"], figures["VmRSS"], max(figures["VmHWM"], figures["VmRSS"]))


def system_memory() -> int:
    """Bytes of memory that the machine has; 0 where the system doesn't say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


@dataclass(slots=True)
class Saves:
    """What became of the checkpoints."""

    running: bool = False
    started: int = 0  # unix seconds of the running one
    last: int = 0  # unix seconds of the last good one, or of the start
    last_ok: bool = True
    last_seconds: int = -1  # how long the last one took; -1: none yet
    count: int = 0  # completed since the start


@dataclass(slots=True)
class Figures:
    """One moment of the server, for ``info.render``."""

    now: int  # ms since epoch
    started: int  # ms since epoch
    run_id: str  # 40 hex digits, new with each start
    roles: RoleFigures
    config: Callable[[str], str]  # value of a directive, as CONFIG GET prints it
    keyspace: Keyspace
    sessions: Iterable[Session]
    counters: Counters
    walk: StreamWalk
    saves: Saves = field(default_factory=Saves)
    log: Mapping[str, int | float | str] = field(default_factory=dict)  # Log.stats()
    histograms: Mapping[str, Histogram] = field(default_factory=dict)  # how long each command took
    log_offset: int = 0  # bytes of records ever logged
    write_error: str | None = None  # why writes are refused now
    loading: bool = False
    startup_memory: int = 0  # bytes: process_memory().anonymous when the server was ready and empty
    keys_loaded: int = 0  # found at start-up
    channels: int = 0
    patterns: int = 0
    config_file: str = ""
    executable: str = ""
