"""INFO: the sections and fields of Redis, and a section ``streams``.

A field of Redis that has no meaning in tidelog is omitted, unless clients or monitoring need it. In that case it has
the value that is correct for tidelog (``cluster_enabled:0``, ``evicted_keys:0``).
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from commands.admin.connection import REDIS_LEVEL
from commands.declare import all_commands
from respserver import __version__
from respserver.observe.clienttotals import ClientTotals
from respserver.observe.slowlog import Histogram
from respserver.observe.stats import (
    Counters,
    RoleStats,
    Saves,
    ScrubStats,
    TierStats,
    TrackingStats,
    process_memory,
    system_memory,
)
from respserver.observe.streamtotals import StreamWalk
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.memory import memory_bytes, stream_bytes
from storage.nodes import coder
from storage.streams import stream

Fields = Iterator[tuple[str, object]]
COMPILED = not (stream.__file__ or "").endswith(".py")  # either all hot modules are compiled, or none
RESP_PARSER = "compiled" if COMPILED else "hiredis"  # for commands with many arguments, see resp.hiredisparser


@dataclass(slots=True)
class ServerStats:
    """The state of the server from which INFO is rendered."""

    now: int  # ms since epoch
    started: int  # ms since epoch
    run_id: str  # different for each start: 40 hex digits
    roles: RoleStats
    config: Callable[[str], str]  # value of a directive, as CONFIG GET prints it
    keyspace: Keyspace
    clients: ClientTotals
    counters: Counters
    walk: StreamWalk
    saves: Saves = field(default_factory=Saves)
    rewrites: Saves = field(default_factory=Saves)  # checkpoints of BGREWRITEAOF
    rewrite_scheduled: bool = False
    scrub: ScrubStats = field(default_factory=ScrubStats)
    tier: TierStats = field(default_factory=TierStats)
    log: Mapping[str, int | float | str] = field(default_factory=dict)  # Log.stats()
    histograms: Mapping[str, Histogram] = field(default_factory=dict)  # command -> durations
    denials: Mapping[str, int] = field(default_factory=dict)  # auth, command, key, channel -> number of denials
    tracking: TrackingStats = field(default_factory=TrackingStats)
    overheads: int = 0  # memory size of everything that is neither data nor a client's
    log_offset: int = 0  # bytes of records ever logged
    write_error: str | None = None  # the current error for writes, caused by the disk
    loading: bool = False
    cluster: bool = False  # cluster-enabled
    unserved_keys: int = 0  # keys in slots that this leader does not own
    startup_memory: int = 0  # bytes: process_memory().anonymous before data was loaded
    peak_memory: int = 0  # bytes: the maximum of used_memory
    keys_loaded: int = 0  # at startup
    deadlines: int = 0  # number of blocked clients whose wait has a timeout
    channels: int = 0
    shard_channels: int = 0
    patterns: int = 0
    config_file: str = ""
    executable: str = ""


def human(size: float) -> str:
    """Return bytes as Redis prints them: ``895.27K``."""
    if size < 1024:
        return f"{size:.0f}B"
    for unit in "KMGT":
        size /= 1024
        if size < 1024:
            return f"{size:.2f}{unit}"
    return f"{size / 1024:.2f}P"


def _server(s: ServerStats) -> Fields:
    uptime = max(0, s.now - s.started) // 1000
    yield "redis_version", REDIS_LEVEL.decode()
    yield "tidelog_version", __version__
    yield "tidelog_compiled", int(COMPILED)
    yield "tidelog_resp_parser", RESP_PARSER
    yield "tidelog_coded_nodes", int(coder.CODES)
    yield "redis_git_sha1", "00000000"
    yield "redis_git_dirty", 0
    yield "redis_build_id", 0
    yield "redis_mode", "cluster" if s.cluster else "standalone"
    yield "os", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "arch_bits", 64 if sys.maxsize > 2**32 else 32
    yield "multiplexing_api", "asyncio"
    yield "python_version", platform.python_version()
    yield "process_id", os.getpid()
    yield "process_supervised", s.config("supervised")
    yield "run_id", s.run_id
    yield "tcp_port", s.config("port")
    yield "server_time_usec", s.now * 1000
    yield "uptime_in_seconds", uptime
    yield "uptime_in_days", uptime // 86400
    yield "hz", s.config("hz")
    yield "configured_hz", s.config("hz")
    yield "lru_clock", (s.now // 1000) & 0xFFFFFF
    yield "executable", s.executable
    yield "config_file", s.config_file
    yield "io_threads_active", 0


def _clients(s: ServerStats) -> Fields:
    clients = s.clients
    yield "connected_clients", clients.connected
    yield "cluster_connections", 0
    yield "maxclients", s.config("maxclients")
    yield "client_recent_max_input_buffer", clients.largest_in
    yield "client_recent_max_output_buffer", clients.largest_out
    yield "blocked_clients", clients.blocked
    yield "tracking_clients", s.tracking.clients
    yield "pubsub_clients", clients.subscribed
    yield "watching_clients", clients.watching
    yield "clients_in_timeout_table", s.deadlines
    yield "total_watched_keys", clients.watched_keys
    yield "total_blocking_keys", len(s.keyspace.waiting)


def memory_stats(s: ServerStats) -> dict[str, int]:
    """Return bytes by purpose, and the number of ``keys``, for MEMORY STATS and INFO memory."""
    process = process_memory()
    clients, replicas = s.clients.bytes, s.clients.replica_bytes
    ks = s.keyspace
    dataset, cache = memory_bytes(ks), ks.pool.cache.bytes
    used = dataset + cache + clients + s.overheads  # the figure of respserver.runtime.memory
    return {
        "used": used,
        "resident": process.resident,
        "peak": max(s.peak_memory, used),
        "startup": s.startup_memory,
        "clients": clients,
        "replicas": replicas,
        "dataset": dataset,
        "node_cache": cache,
        "not_counted": replicas + int(s.log.get("tail_waiting_bytes", 0)),
        "keys": len(ks.keys),
    }


def _size(name: str, size: int) -> Fields:
    yield name, size
    yield f"{name}_human", human(size)


def _memory(s: ServerStats) -> Fields:
    m = memory_stats(s)
    used, peak = m["used"], m["peak"]
    overhead = max(0, used - m["dataset"])
    yield from _size("used_memory", used)
    yield from _size("used_memory_rss", m["resident"])
    yield from _size("used_memory_peak", peak)
    yield "used_memory_peak_perc", f"{100 * used / peak:.2f}%"
    yield "used_memory_overhead", overhead
    yield "used_memory_startup", m["startup"]
    yield "used_memory_dataset", m["dataset"]
    yield "used_memory_dataset_perc", f"{min(100.0, 100 * m['dataset'] / max(1, used)):.2f}%"
    yield from _size("total_system_memory", system_memory())
    yield "used_memory_lua", 0
    yield "used_memory_scripts", 0
    yield from _size("maxmemory", int(s.config("maxmemory")))
    yield "maxmemory_policy", "noeviction"
    yield "mem_fragmentation_ratio", f"{m['resident'] / max(1, used + m['startup']):.2f}"
    yield "mem_fragmentation_bytes", max(0, m["resident"] - used - m["startup"])
    yield "mem_not_counted_for_evict", m["not_counted"]
    yield "mem_clients_slaves", m["replicas"]
    yield "mem_clients_normal", m["clients"]
    yield "mem_node_cache", m["node_cache"]
    yield "mem_allocator", "python"


def _persistence(s: ServerStats) -> Fields:
    saves, rewrites = s.saves, s.rewrites
    yield "loading", int(s.loading)
    yield "async_loading", 0
    yield "rdb_changes_since_last_save", s.keyspace.changes.count
    yield "rdb_bgsave_in_progress", int(saves.running)
    yield "rdb_last_save_time", saves.last
    yield "rdb_last_bgsave_status", "ok" if saves.last_ok else "err"
    yield "rdb_last_bgsave_time_sec", saves.last_seconds
    yield "rdb_current_bgsave_time_sec", _running_seconds(s, saves)
    yield "rdb_saves", saves.count
    yield "rdb_last_load_keys_expired", 0
    yield "rdb_last_load_keys_loaded", s.keys_loaded
    yield "aof_enabled", 1
    yield "aof_rewrite_in_progress", int(rewrites.running)
    yield "aof_rewrite_scheduled", int(s.rewrite_scheduled)
    yield "aof_last_rewrite_time_sec", rewrites.last_seconds
    yield "aof_current_rewrite_time_sec", _running_seconds(s, rewrites)
    yield "aof_last_bgrewrite_status", "ok" if rewrites.last_ok else "err"
    yield "aof_rewrites", rewrites.count
    yield "aof_last_write_status", "ok" if s.write_error is None else "err"
    scrub = s.scrub
    yield "scrub_running", int(scrub.running)
    yield "scrub_percent", f"{scrub.percent:.2f}"
    yield "scrub_rate", scrub.rate
    yield "scrub_passes", scrub.passes
    yield "scrub_last_end_time", scrub.last_end
    yield "scrub_damaged", scrub.damaged
    yield "scrub_repaired", scrub.repaired
    yield "scrub_fetched", scrub.fetched
    yield "scrub_irreparable", scrub.irreparable
    if s.tier.on:
        yield from _tier(s.tier)
    for name, value in s.log.items():
        yield name if name.startswith("log_") else f"log_{name}", f"{value:.6f}" if isinstance(value, float) else value


def _tier(tier: TierStats) -> Fields:
    yield "tier_running", int(tier.running)
    yield "tier_last_status", "ok" if tier.ok else "err"
    yield "tier_last_error", tier.error
    yield "tier_passes", tier.passes
    yield "tier_errors", tier.errors
    yield "tier_objects", tier.objects
    yield "tier_entries", tier.entries
    yield "tier_bytes", tier.bytes
    yield "tier_calls", tier.calls
    yield "tier_calls_failed", tier.failed
    yield "tier_lag_seconds", tier.lag
    yield "tier_freed_nodes", tier.freed_nodes
    yield "tier_freed_bytes", tier.freed_bytes
    yield "tier_deleted_objects", tier.deleted_objects
    yield "tier_deleted_bytes", tier.deleted_bytes
    yield "tier_waiting_objects", tier.waiting_objects
    yield "tier_waiting_bytes", tier.waiting_bytes
    yield "tier_deletion_error", tier.deletion_error
    yield "tier_cache_hits", tier.reads.hits
    yield "tier_cache_misses", tier.reads.misses
    yield "tier_cache_bytes", tier.reads.cached
    yield "tier_fetched_nodes", tier.reads.fetched
    yield "tier_fetch_errors", tier.reads.errors
    yield "tier_lost_objects", tier.reads.lost
    yield "tier_read_error", tier.reads.error
    yield "tier_waiting_reads", tier.reads.waiting


def _running_seconds(s: ServerStats, saves: Saves) -> int:
    return max(0, s.now // 1000 - saves.started) if saves.running else -1


def _stats(s: ServerStats) -> Fields:
    c, ks = s.counters, s.keyspace
    yield "total_connections_received", c.connections_received
    yield "total_commands_processed", c.traffic.commands
    yield "instantaneous_ops_per_sec", round(c.ops_rate.per_second)
    yield "total_net_input_bytes", c.traffic.bytes_in
    yield "total_net_output_bytes", c.traffic.bytes_out
    yield "total_net_repl_input_bytes", s.roles.bytes_in
    yield "total_net_repl_output_bytes", s.roles.bytes_out
    yield "instantaneous_input_kbps", f"{c.input_rate.per_second / 1024:.2f}"
    yield "instantaneous_output_kbps", f"{c.output_rate.per_second / 1024:.2f}"
    yield "rejected_connections", c.connections_rejected
    yield "client_query_buffer_limit_disconnections", c.query_buffer_cuts
    yield "client_output_buffer_limit_disconnections", c.output_buffer_cuts
    yield "client_idle_disconnections", c.idle_cuts
    yield "sync_full", s.roles.full_syncs
    yield "sync_partial_ok", s.roles.partial_syncs
    yield "sync_partial_err", s.roles.refused_partial
    yield "sync_truncated", s.roles.truncated
    yield "expired_keys", ks.expired_keys
    yield "evicted_keys", 0
    yield "evicted_clients", 0
    yield "keyspace_hits", ks.hits
    yield "keyspace_misses", ks.misses
    yield "pubsub_channels", s.channels
    yield "pubsub_patterns", s.patterns
    yield "pubsubshard_channels", s.shard_channels
    yield "latest_fork_usec", 0
    yield "total_forks", 0
    yield "migrate_cached_sockets", 0
    yield "tracking_total_keys", s.tracking.keys
    yield "tracking_total_items", s.tracking.items
    yield "tracking_total_prefixes", s.tracking.prefixes
    yield "total_error_replies", c.error_replies
    for reason, count in s.denials.items():  # Redis calls the reason "command" cmd
        yield f"acl_access_denied_{'cmd' if reason == 'command' else reason}", count
    yield "total_reads_processed", c.traffic.reads
    yield "total_writes_processed", c.traffic.writes


def _replication(s: ServerStats) -> Fields:
    # Sentinel parses these lines: names, order and values are Redis's
    r = s.roles
    yield "role", "master" if r.leader else "slave"
    if not r.leader:
        yield from _following(s)
    yield "connected_slaves", len(r.replicas)
    if int(s.config("min-replicas-to-write")) and int(s.config("min-replicas-max-lag")):
        yield "min_slaves_good_slaves", r.good_replicas
    for number, one in enumerate(r.replicas):
        said = f"ip={one.host},port={one.port},state={one.state},offset={one.offset},lag={one.lag}"
        yield f"slave{number}", said
    yield from r.group.items()
    if r.confirming:
        yield "replica_acks_offset", r.confirmed
        yield "withheld_clients", r.withheld_clients
        yield "withheld_bytes", r.withheld_bytes
        yield "withheld_ms", r.withheld_ms
    yield "master_failover_state", r.failover
    yield "master_replid", r.id
    yield "master_replid2", r.previous_id
    yield "master_repl_offset", s.log_offset
    yield "second_repl_offset", r.previous_offset
    yield "repl_backlog_active", int(r.backlog_active)
    yield "repl_backlog_size", s.config("repl-backlog-size")
    yield "repl_backlog_first_byte_offset", r.backlog_first if r.backlog_active else 0
    yield "repl_backlog_histlen", s.log_offset - r.backlog_first if r.backlog_active else 0


def _following(s: ServerStats) -> Fields:
    """Yield the fields that only a replica has."""
    r = s.roles
    up = r.state == "connected"
    yield "master_host", r.host
    yield "master_port", r.port
    yield "master_link_status", "up" if up else "down"
    yield "master_last_io_seconds_ago", r.last_io
    yield "master_sync_in_progress", int(r.syncing)
    yield "master_sync_refused", int(r.refused)
    yield "master_sync_reused_bytes", r.sync_reused
    yield "slave_read_repl_offset", s.log_offset
    yield "slave_repl_offset", s.log_offset
    if r.syncing:
        done = r.sync_read + r.sync_reused
        left = max(0, r.sync_total - done)
        yield "master_sync_total_bytes", r.sync_total
        yield "master_sync_read_bytes", r.sync_read
        yield "master_sync_left_bytes", left
        yield "master_sync_perc", f"{min(100.0, 100 * done / r.sync_total) if r.sync_total else 0:.2f}"
        yield "master_sync_last_io_seconds_ago", r.sync_last_io
    if not up:
        yield "master_link_down_since_seconds", r.down_since
    yield "slave_priority", s.config("replica-priority") if r.complete and not s.scrub.damaged else 0
    yield "slave_read_only", 1
    yield "replica_announced", int(s.config("replica-announced") == "yes")


def _cpu(_: ServerStats) -> Fields:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield "used_cpu_sys", f"{own.ru_stime:.6f}"
    yield "used_cpu_user", f"{own.ru_utime:.6f}"
    yield "used_cpu_sys_children", f"{children.ru_stime:.6f}"
    yield "used_cpu_user_children", f"{children.ru_utime:.6f}"


def _modules(_: ServerStats) -> Fields:
    return iter(())


def _commandstats(_: ServerStats) -> Fields:
    for command in all_commands():
        if not (command.calls or command.rejected or command.failed):
            continue  # not used since RESETSTAT
        calls, usec = command.calls, command.usec // 1000  # counted in nanoseconds
        mean = usec / calls if calls else 0
        refused = f"rejected_calls={command.rejected},failed_calls={command.failed}"
        yield f"cmdstat_{command.name}", f"calls={calls},usec={usec},usec_per_call={mean:.2f},{refused}"


def _errorstats(s: ServerStats) -> Fields:
    for code in sorted(s.counters.errors):
        yield f"errorstat_{code}", f"count={s.counters.errors[code]}"


def _latencystats(s: ServerStats) -> Fields:
    percentiles = s.config("latency-tracking-info-percentiles").split()
    for name, histogram in sorted(s.histograms.items()):
        if histogram.calls:
            values = ",".join(f"p{p}={histogram.percentile(float(p)):.3f}" for p in percentiles)
            yield f"latency_percentiles_usec_{name}", values


def _cluster(s: ServerStats) -> Fields:
    yield "cluster_enabled", int(s.cluster)
    yield "cluster_unserved_keys", s.unserved_keys


def _keyspace(s: ServerStats) -> Fields:
    ks = s.keyspace
    if ks.keys:
        # the mean over a sample of the keys, as in Redis
        some = [at - s.now for at in islice(ks.expires.values(), 1000)]
        average = max(0, sum(some) // len(some)) if some else 0
        yield "db0", f"keys={len(ks.keys)},expires={len(ks.expires)},avg_ttl={average},subexpiry=0"


def _streams(s: ServerStats) -> Fields:
    totals, cache = s.walk.totals(s.keyspace), s.keyspace.pool.cache
    lookups = cache.hits + cache.misses
    yield "streams", totals.streams
    yield "stream_entries", totals.entries
    yield "stream_entries_added", totals.entries_added
    yield "stream_nodes", totals.nodes
    yield "stream_memory", stream_bytes(s.keyspace)
    yield "node_cache_bytes", cache.bytes
    yield "node_cache_max_bytes", cache.max_bytes
    yield "node_cache_hits", cache.hits
    yield "node_cache_misses", cache.misses
    yield "node_cache_hit_ratio", f"{cache.hits / lookups if lookups else 0:.4f}"
    yield "groups", totals.groups
    yield "groups_expired", s.keyspace.expired_groups
    yield "group_pending", totals.pending
    yield "group_expired", totals.expired
    yield "group_deadlettered", totals.deadlettered
    yield "group_redelivered", totals.redelivered
    stages = s.keyspace.stages
    yield "stages", len(stages.by_name)
    yield "stage_bytes", stages.bytes
    yield "stages_expired", stages.expired
    yield "fences", len(stages.fences)
    yield "delayed_entries", s.keyspace.delayed_count
    yield "delayed_delivered", s.keyspace.delivered_entries


_SECTIONS: dict[str, tuple[str, Callable[[ServerStats], Fields]]] = {
    "server": ("Server", _server),
    "clients": ("Clients", _clients),
    "memory": ("Memory", _memory),
    "persistence": ("Persistence", _persistence),
    "stats": ("Stats", _stats),
    "replication": ("Replication", _replication),
    "cpu": ("CPU", _cpu),
    "modules": ("Modules", _modules),
    "commandstats": ("Commandstats", _commandstats),
    "errorstats": ("Errorstats", _errorstats),
    "latencystats": ("Latencystats", _latencystats),
    "cluster": ("Cluster", _cluster),
    "keyspace": ("Keyspace", _keyspace),
    "streams": ("Streams", _streams),
}
SECTION_NAMES = tuple(_SECTIONS)
SUMS = {"all", "default", "everything", "memory", "streams"}  # sections that need totals over all streams
_NOT_DEFAULT = {"commandstats", "latencystats"}


def fields(stats: ServerStats, section: str) -> Fields:
    """Yield the fields of a section, whose name is in SECTION_NAMES, with their values."""
    return _SECTIONS[section][1](stats)


def render(stats: ServerStats, sections: list[str]) -> str:
    """Return the text of INFO.

    ``sections``: names in any case, including ``all``, ``everything`` and ``default``; empty for the default ones.
    Unknown names are ignored, as in Redis.
    """
    wanted: set[str] = set()
    for name in [section.lower() for section in sections] or ["default"]:
        if name in ("all", "everything"):
            wanted.update(_SECTIONS)
        elif name == "default":
            wanted.update(_SECTIONS.keys() - _NOT_DEFAULT)
        else:
            wanted.add(name)
    parts = []
    for name, (title, found) in _SECTIONS.items():
        if name in wanted:
            lines = "".join([f"{key}:{value}\r\n" for key, value in found(stats)])
            parts.append(f"# {title}\r\n{lines}")
    return "\r\n".join(parts)
