"""Counters of the running server, and the stats of its parts for INFO and ROLE."""

from __future__ import annotations

import os
import resource
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from respserver.observe.stalls import RecentStalls
from respserver.observe.traffic import Traffic

MAX_ERROR_CODES = 128  # maximum number of counted error codes; only a bug can produce more


class SampledRate:
    """Events per second: the mean of the last 16 samples of a counter."""

    __slots__ = ("_last_at", "_last_count", "_samples")

    def __init__(self) -> None:
        self._last_at = 0  # ms (monotonic); 0: no sample yet
        self._last_count = 0
        self._samples: deque[float] = deque(maxlen=16)

    def sample(self, mono: int, count: int) -> None:
        if self._last_at and mono > self._last_at:
            self._samples.append(max(0, count - self._last_count) * 1000.0 / (mono - self._last_at))
        self._last_at = mono
        self._last_count = count

    @property
    def per_second(self) -> float:
        return sum(self._samples) / len(self._samples) if self._samples else 0.0


@dataclass
class TrackingStats:
    """Statistics of CLIENT TRACKING."""

    clients: int = 0  # number of clients that have enabled it
    keys: int = 0  # number of keys that clients may have cached
    items: int = 0  # number of pairs of a key and a client
    prefixes: int = 0
    bytes: int = 0  # memory size


class Counters:
    """Counts since startup or the last CONFIG RESETSTAT."""

    def __init__(self) -> None:
        self.ops_rate = SampledRate()
        self.input_rate = SampledRate()
        self.output_rate = SampledRate()
        self.traffic = Traffic()
        self.stalls = RecentStalls()
        self.reset()

    def reset(self) -> None:
        """Set all counts to zero (CONFIG RESETSTAT)."""
        self.connections_received = 0
        self.connections_rejected = 0  # because of maxclients or protected mode
        self.traffic.reset()
        self.stalls.reset()
        self.error_replies = 0
        self.errors: dict[str, int] = {}  # error code -> replies
        self.query_buffer_cuts = 0  # clients closed because of client-query-buffer-limit
        self.output_buffer_cuts = 0  # clients closed because of client-output-buffer-limit
        self.idle_cuts = 0  # clients closed because of ``timeout``

    def note_error(self, text: str) -> None:
        """Count an error reply by its code; ``text`` as in CommandError."""
        self.error_replies += 1
        code = text.partition(" ")[0]
        if code in self.errors:
            self.errors[code] += 1
        elif len(self.errors) < MAX_ERROR_CODES:
            self.errors[code] = 1

    def sample(self, mono: int) -> None:
        """Add a sample to each rate. Called ``hz`` times a second. ``mono``: ms, monotonic."""
        self.ops_rate.sample(mono, self.traffic.commands)
        self.input_rate.sample(mono, self.traffic.bytes_in)
        self.output_rate.sample(mono, self.traffic.bytes_out)


@dataclass(slots=True)
class Saves:
    """Statistics of the checkpoints."""

    running: bool = False
    started: int = 0  # Unix time in seconds at which the running one started
    last: int = 0  # Unix time in seconds of the last successful one, or of startup
    last_ok: bool = True
    last_seconds: int = -1  # duration of the last one; -1: none yet
    count: int = 0  # number of checkpoints completed since startup


@dataclass(slots=True)
class ScrubStats:
    """The scrub, for INFO."""

    running: bool = False
    percent: float = 0.0  # of the pass that runs
    rate: int = 0  # bytes per second; 0: off
    passes: int = 0  # number of passes ever completed on this data directory
    last_end: int = 0  # Unix time in seconds of the end of the last pass; 0: none yet
    damaged: int = 0  # number of entries (most are nodes) and pages that are damaged now
    repaired: int = 0  # number of entries that were damaged and are sound again
    fetched: int = 0  # number of nodes that were replaced by a copy since the start
    irreparable: int = 0  # number of damaged entries for which the last attempt found no good copy


@dataclass(slots=True)
class HistoryReadStats:
    """Reads of nodes that are only in the object store, for INFO. The totals are those since the start."""

    hits: int = 0  # nodes that were in the disk cache
    misses: int = 0  # ... that were not
    fetched: int = 0  # nodes that were read from objects
    errors: int = 0  # sections of objects that could not be read
    cached: int = 0  # bytes in the disk cache
    lost: int = 0  # objects that are missing or damaged
    error: str = ""  # why an object is missing or damaged, or why the last read failed
    waiting: int = 0  # reads for which commands wait


@dataclass(slots=True)
class TierStats:
    """The copies of the history in an object store, for INFO. The totals are those since the start."""

    on: bool = False  # tier-url is set
    running: bool = False  # a pass is running
    ok: bool = True
    error: str = ""  # of the last pass
    passes: int = 0  # without an error
    errors: int = 0  # passes with an error
    objects: int = 0
    entries: int = 0
    bytes: int = 0  # of objects
    calls: int = 0  # of the object store
    failed: int = 0  # of these calls
    lag: int = -1  # seconds since the start of the last complete pass; -1: there was none
    freed_nodes: int = 0
    freed_bytes: int = 0  # of the store
    deleted_objects: int = 0
    deleted_bytes: int = 0  # of these objects
    waiting_objects: int = 0  # for their deletion
    waiting_bytes: int = 0
    deletion_error: str = ""  # of the last pass
    reads: HistoryReadStats = field(default_factory=HistoryReadStats)


@dataclass(slots=True)
class ReplicaStats:
    """One connected replica, for INFO and ROLE."""

    host: str
    port: int
    state: str  # wait_bgsave, send_bulk, online
    offset: int  # acknowledged log offset
    lag: int  # seconds since its last acknowledgement


@dataclass(slots=True)
class RoleStats:
    """Statistics for INFO replication and ROLE. Times in seconds, sizes in bytes."""

    leader: bool = True
    group: dict[str, str | int] = field(default_factory=dict)  # fields about the server group; {}: none
    replicas: list[ReplicaStats] = field(default_factory=list)
    good_replicas: int = 0  # number of replicas that count for min-replicas-to-write
    failover: str = "no-failover"  # waiting-for-sync, failover-in-progress
    id: str = ""
    previous_id: str = "0" * 40
    previous_offset: int = -1  # log offset up to which the previous ID is valid; -1: none
    backlog_active: bool = False
    backlog_first: int = 0  # the oldest log offset from which a replica can continue
    # with replica-acks, also on a replica
    confirming: bool = False  # replies may be withheld
    confirmed: int = 0  # log offset up to which replies are released
    withheld_clients: int = 0  # number of clients with withheld replies
    withheld_bytes: int = 0  # size of these replies
    withheld_ms: int = 0  # age of the oldest one
    # if this server is a replica
    host: str = ""
    port: int = 0
    state: str = ""  # connect, connecting, sync, connected, refused
    refused: bool = False  # a full copy was refused, because it would replace this server's data with less data
    complete: bool = True  # whether this server has caught up with a leader once
    last_io: int = -1  # since the last message of the leader; -1: never
    syncing: bool = False
    sync_total: int = 0  # estimated bytes of the copy that is being received
    sync_read: int = 0
    sync_reused: int = 0  # bytes of the current or last copy that were in this server's own store
    sync_last_io: int = -1
    down_since: int = -1  # seconds since the link was lost; -1: connected
    # totals since startup
    full_syncs: int = 0
    partial_syncs: int = 0
    refused_partial: int = 0
    truncated: int = 0  # how often this server deleted the end of its log, see ``persistence.rewind``
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(slots=True)
class ProcessMemory:
    """Memory of this process, in bytes."""

    anonymous: int  # the memory that maxmemory limits; without pages of files, such as LMDB's maps
    resident: int  # all pages in memory
    peak: int  # maximum of ``resident``


def process_memory() -> ProcessMemory:
    """Return the sizes from ``/proc/self/status``. On systems without it, all three are the peak."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    sizes = {"RssAnon": peak, "VmRSS": peak, "VmHWM": peak}
    with suppress(OSError), open("/proc/self/status", "rb") as status:
        for line in status:
            name, _, rest = line.partition(b":")
            key = name.decode()
            if key in sizes:
                sizes[key] = int(rest.split()[0]) * 1024
    return ProcessMemory(sizes["RssAnon"], sizes["VmRSS"], max(sizes["VmHWM"], sizes["VmRSS"]))


def system_memory() -> int:
    """Return the memory of the machine in bytes; 0 if the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
