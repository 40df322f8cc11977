"""What the server counts while it runs, and what its parts tell of themselves to INFO and ROLE.

Rule 1: ``Counters`` is written by the connections and the dispatcher, and only they and RESETSTAT write it.
"""

from __future__ import annotations

import os
import resource
import sys
from collections import deque
from dataclasses import dataclass, field

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
class Saves:
    """What became of the checkpoints."""

    running: bool = False
    started: int = 0  # unix seconds of the running one
    last: int = 0  # unix seconds of the last good one, or of the start
    last_ok: bool = True
    last_seconds: int = -1  # how long the last one took; -1: none yet
    count: int = 0  # completed since the start


@dataclass(slots=True)
class ReplicaStats:
    """One connected replica, as INFO and ROLE tell of it."""

    host: str
    port: int
    state: str  # wait_bgsave, send_bulk, online
    offset: int  # log offset that it acknowledged
    lag: int  # seconds since it last said so


@dataclass(slots=True)
class RoleStats:
    """What INFO replication and ROLE tell. Times in seconds, sizes in bytes."""

    leader: bool = True
    replicas: list[ReplicaStats] = field(default_factory=list)
    good_replicas: int = 0  # of those, how many count for min-replicas-to-write
    failover: str = "no-failover"  # waiting-for-sync, failover-in-progress
    id: str = ""
    previous_id: str = "0" * 40
    previous_offset: int = -1  # log offset up to which the previous ID is good; -1: there is none
    backlog_active: bool = False
    backlog_first: int = 0  # oldest log offset from which a replica can go on
    # of a replica
    host: str = ""
    port: int = 0
    state: str = ""  # connect, connecting, sync, connected: as ROLE says it
    last_io: int = -1  # since the leader was last heard; -1 never
    syncing: bool = False
    sync_total: int = 0  # bytes of the copy under way; an estimate
    sync_read: int = 0
    sync_last_io: int = -1
    down_since: int = -1  # since the link was lost; -1: it is up
    # totals since start
    full_syncs: int = 0
    partial_syncs: int = 0
    refused_partial: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


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
