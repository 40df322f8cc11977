"""The fields of INFO as metrics.

Rule: each field is in FIELDS or in OMITTED, with the reason. A test checks this, so that a new field of INFO becomes a
metric. Commands, errors, latencies, and replicas, which have a field each, are in ``values``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

Read = Callable[[object], float | None]  # the value of a metric; None: the metric has no sample


class InfoField(NamedTuple):
    """The metric of one field."""

    metric: str  # key of ``families.FAMILIES``
    labels: tuple[str, ...] = ()
    read: Read | None = None  # None: the value is the number in the field


def _times(factor: float) -> Read:
    return lambda value: float(value) * factor  # type: ignore[arg-type]


def _known(value: object) -> float | None:
    """Read a number that is negative, or 0 for a time, while it is unknown."""
    found = float(value)  # type: ignore[arg-type]
    return found if found >= 0 else None


def _ended(value: object) -> float | None:
    return float(value) or None  # type: ignore[arg-type]


def _is(word: str) -> Read:
    return lambda value: float(value == word)


FIELDS: Final[dict[str, InfoField]] = {
    "uptime_in_seconds": InfoField("uptime_seconds"),
    "connected_clients": InfoField("connected_clients"),
    "maxclients": InfoField("max_clients"),
    "client_recent_max_input_buffer": InfoField("client_max_input_buffer_bytes"),
    "client_recent_max_output_buffer": InfoField("client_max_output_buffer_bytes"),
    "blocked_clients": InfoField("blocked_clients"),
    "tracking_clients": InfoField("tracking_clients"),
    "pubsub_clients": InfoField("pubsub_clients"),
    "watching_clients": InfoField("watching_clients"),
    "clients_in_timeout_table": InfoField("blocked_clients_with_timeout"),
    "total_watched_keys": InfoField("watched_keys"),
    "total_blocking_keys": InfoField("blocking_keys"),
    "used_memory": InfoField("memory_used_bytes"),
    "used_memory_rss": InfoField("memory_resident_bytes"),
    "used_memory_peak": InfoField("memory_peak_bytes"),
    "used_memory_overhead": InfoField("memory_overhead_bytes"),
    "used_memory_startup": InfoField("memory_startup_bytes"),
    "used_memory_dataset": InfoField("memory_dataset_bytes"),
    "total_system_memory": InfoField("memory_system_bytes"),
    "maxmemory": InfoField("memory_max_bytes"),
    "mem_fragmentation_ratio": InfoField("memory_fragmentation_ratio"),
    "mem_fragmentation_bytes": InfoField("memory_fragmentation_bytes"),
    "mem_not_counted_for_evict": InfoField("memory_not_counted_bytes"),
    "mem_clients_slaves": InfoField("memory_replicas_bytes"),
    "mem_clients_normal": InfoField("memory_clients_bytes"),
    "loading": InfoField("loading"),
    "rdb_changes_since_last_save": InfoField("changes_since_checkpoint"),
    "rdb_bgsave_in_progress": InfoField("checkpoint_running", ("save",)),
    "rdb_last_save_time": InfoField("checkpoint_last_success_timestamp_seconds"),
    "rdb_last_bgsave_status": InfoField("checkpoint_last_ok", ("save",), _is("ok")),
    "rdb_last_bgsave_time_sec": InfoField("checkpoint_last_duration_seconds", ("save",), _known),
    "rdb_current_bgsave_time_sec": InfoField("checkpoint_current_duration_seconds", ("save",), _known),
    "rdb_saves": InfoField("checkpoints", ("save",)),
    "rdb_last_load_keys_loaded": InfoField("keys_loaded"),
    "aof_rewrite_in_progress": InfoField("checkpoint_running", ("rewrite",)),
    "aof_rewrite_scheduled": InfoField("checkpoint_scheduled"),
    "aof_last_rewrite_time_sec": InfoField("checkpoint_last_duration_seconds", ("rewrite",), _known),
    "aof_current_rewrite_time_sec": InfoField("checkpoint_current_duration_seconds", ("rewrite",), _known),
    "aof_last_bgrewrite_status": InfoField("checkpoint_last_ok", ("rewrite",), _is("ok")),
    "aof_rewrites": InfoField("checkpoints", ("rewrite",)),
    "aof_last_write_status": InfoField("writable", (), _is("ok")),
    "scrub_running": InfoField("scrub_running"),
    "scrub_percent": InfoField("scrub_progress_ratio", (), _times(0.01)),
    "scrub_rate": InfoField("scrub_rate_bytes"),
    "scrub_passes": InfoField("scrub_passes"),
    "scrub_last_end_time": InfoField("scrub_last_end_timestamp_seconds", (), _ended),
    "scrub_damaged": InfoField("scrub_damaged"),
    "scrub_repaired": InfoField("scrub_repaired"),
    "scrub_fetched": InfoField("scrub_fetched"),
    "scrub_irreparable": InfoField("scrub_irreparable"),
    "tier_running": InfoField("tier_running"),
    "tier_last_status": InfoField("tier_last_ok", (), _is("ok")),
    "tier_passes": InfoField("tier_passes", ("ok",)),
    "tier_errors": InfoField("tier_passes", ("error",)),
    "tier_objects": InfoField("tier_objects"),
    "tier_entries": InfoField("tier_entries"),
    "tier_bytes": InfoField("tier_bytes"),
    "tier_calls": InfoField("tier_calls"),
    "tier_calls_failed": InfoField("tier_calls_failed"),
    "tier_lag_seconds": InfoField("tier_lag_seconds", (), _known),
    "tier_freed_nodes": InfoField("tier_freed_nodes"),
    "tier_freed_bytes": InfoField("tier_freed_bytes"),
    "tier_deleted_objects": InfoField("tier_deleted_objects"),
    "tier_deleted_bytes": InfoField("tier_deleted_bytes"),
    "tier_waiting_objects": InfoField("tier_waiting_objects"),
    "tier_waiting_bytes": InfoField("tier_waiting_bytes"),
    "tier_cache_hits": InfoField("tier_cache_reads", ("hit",)),
    "tier_cache_misses": InfoField("tier_cache_reads", ("miss",)),
    "tier_cache_bytes": InfoField("tier_cache_bytes"),
    "tier_fetched_nodes": InfoField("tier_fetched_nodes"),
    "tier_fetch_errors": InfoField("tier_fetch_errors"),
    "tier_lost_objects": InfoField("tier_lost_objects"),
    "tier_waiting_reads": InfoField("tier_waiting_reads"),
    "log_offset": InfoField("log_bytes"),
    "log_journal_first_offset": InfoField("journal_first_offset_bytes"),
    "log_journal_offset": InfoField("journal_offset_bytes"),
    "log_store_offset": InfoField("store_offset_bytes"),
    "log_tail_bytes": InfoField("wal_size_bytes"),
    "log_tail_waiting_bytes": InfoField("wal_waiting_bytes"),
    "log_journal_bytes": InfoField("journal_bytes"),
    "log_store_bytes": InfoField("store_bytes"),
    "log_syncs": InfoField("log_syncs"),
    "log_last_sync_us": InfoField("log_last_sync_seconds", (), _times(1e-6)),
    "total_connections_received": InfoField("connections_received"),
    "total_commands_processed": InfoField("commands_processed"),
    "total_net_input_bytes": InfoField("network_bytes", ("in",)),
    "total_net_output_bytes": InfoField("network_bytes", ("out",)),
    "total_net_repl_input_bytes": InfoField("replication_bytes", ("in",)),
    "total_net_repl_output_bytes": InfoField("replication_bytes", ("out",)),
    "rejected_connections": InfoField("connections_rejected"),
    "client_query_buffer_limit_disconnections": InfoField("clients_closed", ("query_buffer",)),
    "client_output_buffer_limit_disconnections": InfoField("clients_closed", ("output_buffer",)),
    "client_idle_disconnections": InfoField("clients_closed", ("idle",)),
    "sync_full": InfoField("replication_syncs", ("full",)),
    "sync_partial_ok": InfoField("replication_syncs", ("partial",)),
    "sync_partial_err": InfoField("replication_syncs", ("refused",)),
    "sync_truncated": InfoField("log_truncations"),
    "expired_keys": InfoField("expired_keys"),
    "keyspace_hits": InfoField("keyspace_hits"),
    "keyspace_misses": InfoField("keyspace_misses"),
    "pubsub_channels": InfoField("pubsub_channels", ("channel",)),
    "pubsub_patterns": InfoField("pubsub_patterns"),
    "pubsubshard_channels": InfoField("pubsub_channels", ("shard",)),
    "tracking_total_keys": InfoField("tracking_keys"),
    "tracking_total_items": InfoField("tracking_items"),
    "tracking_total_prefixes": InfoField("tracking_prefixes"),
    "total_error_replies": InfoField("error_replies"),
    "acl_access_denied_auth": InfoField("acl_denied", ("auth",)),
    "acl_access_denied_cmd": InfoField("acl_denied", ("command",)),
    "acl_access_denied_key": InfoField("acl_denied", ("key",)),
    "acl_access_denied_channel": InfoField("acl_denied", ("channel",)),
    "total_reads_processed": InfoField("network_chunks", ("in",)),
    "total_writes_processed": InfoField("network_chunks", ("out",)),
    "role": InfoField("leader", (), _is("master")),
    "master_link_status": InfoField("leader_link_up", (), _is("up")),
    "master_last_io_seconds_ago": InfoField("leader_link_last_io_seconds", (), _known),
    "master_sync_in_progress": InfoField("full_copy_running"),
    "master_sync_refused": InfoField("full_copy_refused"),
    "master_sync_reused_bytes": InfoField("full_copy_reused_bytes"),
    "master_sync_total_bytes": InfoField("full_copy_size_bytes"),
    "master_sync_read_bytes": InfoField("full_copy_read_bytes"),
    "master_sync_left_bytes": InfoField("full_copy_left_bytes"),
    "master_sync_last_io_seconds_ago": InfoField("full_copy_last_io_seconds", (), _known),
    "master_link_down_since_seconds": InfoField("leader_link_down_seconds", (), _known),
    "slave_priority": InfoField("replica_priority"),
    "connected_slaves": InfoField("connected_replicas"),
    "min_slaves_good_slaves": InfoField("good_replicas"),
    "replica_acks_offset": InfoField("confirmed_offset_bytes"),
    "withheld_clients": InfoField("withheld_clients"),
    "withheld_bytes": InfoField("withheld_bytes"),
    "withheld_ms": InfoField("withheld_seconds", (), _times(0.001)),
    "master_failover_state": InfoField("failover_running", (), lambda value: float(value != "no-failover")),
    "repl_backlog_active": InfoField("replication_backlog_active"),
    "repl_backlog_size": InfoField("replication_backlog_max_bytes"),
    "repl_backlog_first_byte_offset": InfoField("replication_backlog_first_offset_bytes"),
    "repl_backlog_histlen": InfoField("replication_backlog_bytes"),
    "group_epoch": InfoField("server_group_epoch"),
    "group_leader": InfoField("server_group_has_leader", (), lambda value: float(value != "")),
    "group_in_sync": InfoField("server_group_in_sync_members"),
    "group_members": InfoField("server_group_members"),
    "group_min_in_sync": InfoField("server_group_min_in_sync"),
    "group_lease_left_ms": InfoField("server_group_lease_left_seconds", (), _times(0.001)),
    "cluster_unserved_keys": InfoField("cluster_unserved_keys"),
    "used_cpu_sys": InfoField("cpu_seconds", ("system", "server")),
    "used_cpu_user": InfoField("cpu_seconds", ("user", "server")),
    "used_cpu_sys_children": InfoField("cpu_seconds", ("system", "children")),
    "used_cpu_user_children": InfoField("cpu_seconds", ("user", "children")),
    "streams": InfoField("streams"),
    "stream_entries": InfoField("entries"),
    "stream_entries_added": InfoField("entries_added"),
    "stream_nodes": InfoField("nodes"),
    "stream_memory": InfoField("streams_memory_bytes"),
    "node_cache_bytes": InfoField("node_cache_bytes"),
    "node_cache_max_bytes": InfoField("node_cache_max_bytes"),
    "node_cache_hits": InfoField("node_cache_hits"),
    "node_cache_misses": InfoField("node_cache_misses"),
    "groups": InfoField("groups"),
    "groups_expired": InfoField("groups_expired"),
    "group_pending": InfoField("pending_messages"),
    "group_expired": InfoField("messages_expired"),
    "group_deadlettered": InfoField("messages_dead_lettered"),
    "group_redelivered": InfoField("messages_redelivered"),
    "stages": InfoField("stages"),
    "stage_bytes": InfoField("stages_bytes"),
    "stages_expired": InfoField("stages_expired"),
    "delayed_entries": InfoField("delayed_entries"),
    "delayed_delivered": InfoField("delayed_entries_delivered"),
    "fences": InfoField("fences"),
}

_TEXT = "a label of tidelog_server_info or tidelog_server_group_info, or a property of the machine or the installation"
_CONSTANT = "always the same in tidelog"
_DERIVED = "computed from other metrics by Prometheus"
_SAME = "the same number as another field"
_IDENTITY = "identifies a server or a history and is not a number"
OMITTED: Final[dict[str, str]] = {  # field -> reason
    name: reason
    for reason, names in {
        _TEXT: """redis_version tidelog_version tidelog_compiled tidelog_resp_parser tidelog_coded_nodes redis_mode os
            arch_bits multiplexing_api python_version process_id process_supervised tcp_port hz configured_hz
            executable config_file log_appendfsync maxmemory_policy mem_allocator tier_last_error
            tier_deletion_error tier_read_error group group_member group_phase""",
        _CONSTANT: """redis_git_sha1 redis_git_dirty redis_build_id io_threads_active cluster_connections
            used_memory_lua used_memory_scripts async_loading rdb_last_load_keys_expired aof_enabled evicted_keys
            evicted_clients latest_fork_usec total_forks migrate_cached_sockets slave_read_only cluster_enabled
            replica_announced""",
        _DERIVED: """instantaneous_ops_per_sec instantaneous_input_kbps instantaneous_output_kbps
            used_memory_peak_perc used_memory_dataset_perc node_cache_hit_ratio master_sync_perc server_time_usec
            uptime_in_days lru_clock used_memory_human used_memory_rss_human used_memory_peak_human
            total_system_memory_human maxmemory_human""",
        _SAME: "mem_node_cache master_repl_offset slave_repl_offset slave_read_repl_offset second_repl_offset",
        _IDENTITY: "run_id master_replid master_replid2 master_host master_port",
    }.items()
    for name in names.split()
}


def samples(fields: Iterator[tuple[str, object]]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Yield the metrics of some fields: key of the family, labels, value."""
    for name, value in fields:
        field = FIELDS.get(name)
        if field is None:
            continue
        number = field.read(value) if field.read is not None else _plain(value)
        if number is not None:
            yield field.metric, field.labels, number


def _plain(value: object) -> float:
    return value if isinstance(value, int) else float(value)  # type: ignore[arg-type]
