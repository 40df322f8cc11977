"""All metrics of the server, each declared once.

docs/monitoring.md lists them; ``scripts/metrics_reference.py`` writes the list. The names follow Prometheus: a counter
ends with ``_total``, and a metric with a unit ends with the unit (``_seconds``, ``_bytes``, before
``_total``). A number that can decrease without a restart of the server is a gauge. CONFIG RESETSTAT sets some counters
to zero, which Prometheus treats like a restart.
"""

from __future__ import annotations

from typing import Final, NamedTuple

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"


class MetricFamily(NamedTuple):
    """The samples of one name."""

    name: str
    kind: str  # COUNTER, GAUGE, HISTOGRAM
    help: str  # one line, without quotes and backslashes
    labels: tuple[str, ...] = ()


def _gauge(name: str, text: str, *labels: str) -> MetricFamily:
    return MetricFamily(f"tidelog_{name}", GAUGE, text, labels)


def _counter(name: str, text: str, *labels: str) -> MetricFamily:
    return MetricFamily(f"tidelog_{name}_total", COUNTER, text, labels)


_SERVER = (
    _gauge(
        "server_info",
        "Always 1; the labels describe the server.",
        "version",
        "redis_version",
        "mode",
        "role",
        "compiled",
        "appendfsync",
    ),
    _gauge("uptime_seconds", "Time since the server started."),
    _gauge("loading", "1 while the data is being replaced by a copy of the leader's data."),
    _counter("cpu_seconds", "CPU time of the server and of its child processes.", "mode", "process"),
)
_CLIENTS = (
    _gauge("connected_clients", "Connected clients, without replicas."),
    _gauge("max_clients", "The directive maxclients."),
    _gauge("blocked_clients", "Clients that wait for entries, an acknowledgement, or the end of a pause."),
    _gauge("blocked_clients_with_timeout", "Blocked clients whose wait has a timeout."),
    _gauge("tracking_clients", "Clients that have enabled CLIENT TRACKING."),
    _gauge("pubsub_clients", "Clients that have a subscription."),
    _gauge("watching_clients", "Clients that watch keys (WATCH)."),
    _gauge("watched_keys", "Keys that clients watch, counted for each client."),
    _gauge("blocking_keys", "Keys for which clients wait."),
    _gauge("client_max_input_buffer_bytes", "The largest input buffer of a client."),
    _gauge("client_max_output_buffer_bytes", "The largest output buffer of a client."),
    _counter("connections_received", "Accepted connections."),
    _counter("connections_rejected", "Connections that were refused because of maxclients or protected mode."),
    _counter("clients_closed", "Clients that the server closed, by the limit that they exceeded.", "reason"),
    _counter("acl_denied", "Commands and logins that were refused because of permissions.", "reason"),
    _gauge("pubsub_channels", "Channels that have subscribers.", "kind"),
    _gauge("pubsub_patterns", "Patterns that have subscribers."),
    _gauge("tracking_keys", "Keys that clients with CLIENT TRACKING may have cached."),
    _gauge("tracking_items", "Pairs of such a key and a client."),
    _gauge("tracking_prefixes", "Prefixes of CLIENT TRACKING."),
)
_COMMANDS = (
    _counter("commands_processed", "Commands that ran."),
    _counter("command_calls", "Calls of a command.", "command"),
    _counter("command_seconds", "Duration of all calls of a command.", "command"),
    _counter("command_rejected", "Calls that were refused before they ran.", "command"),
    _counter("command_failed", "Calls that returned an error.", "command"),
    MetricFamily(
        "tidelog_command_duration_seconds",
        HISTOGRAM,
        "Durations of the calls of a command, while latency-tracking is yes.",
        ("command",),
    ),
    _counter("error_replies", "Error replies."),
    _counter("errors", "Error replies by code.", "code"),
    _counter("network_bytes", "Bytes from and to clients.", "direction"),
    _counter("network_chunks", "Reads from and writes to the sockets of clients.", "direction"),
)
_MEMORY = (
    _gauge("memory_used_bytes", "The memory that maxmemory limits."),
    _gauge("memory_max_bytes", "The directive maxmemory; 0: no limit."),
    _gauge("memory_resident_bytes", "Memory of the process in RAM."),
    _gauge("memory_peak_bytes", "The maximum of tidelog_memory_used_bytes."),
    _gauge("memory_startup_bytes", "Memory of the process before it loaded data."),
    _gauge("memory_dataset_bytes", "Memory of the data."),
    _gauge("memory_overhead_bytes", "Used memory that is not data."),
    _gauge("memory_clients_bytes", "Memory of the clients."),
    _gauge("memory_replicas_bytes", "Memory of the connections of replicas."),
    _gauge("memory_not_counted_bytes", "Memory that maxmemory does not limit: replicas, and records in the WAL."),
    _gauge("memory_fragmentation_ratio", "Resident memory divided by used memory."),
    _gauge("memory_fragmentation_bytes", "Resident memory that is not used memory."),
    _gauge("memory_system_bytes", "Memory of the machine."),
    _gauge("node_cache_bytes", "Memory of decoded nodes."),
    _gauge("node_cache_max_bytes", "The directive node-cache-size."),
    _counter("node_cache_hits", "Reads of nodes that were in the cache."),
    _counter("node_cache_misses", "Reads of nodes that were not in the cache."),
)
_PERSISTENCE = (
    _gauge("writable", "1 if writes succeed; 0 while the disk refuses them."),
    _counter("log_bytes", "Bytes of records ever logged, which is the log offset of this server."),
    _counter("log_syncs", "Syncs of the WAL."),
    _gauge("log_last_sync_seconds", "Duration of the last sync of the WAL."),
    _gauge("wal_size_bytes", "Size of the WAL."),
    _gauge("wal_waiting_bytes", "Records in the WAL that are not in the journal yet."),
    _gauge("journal_bytes", "Size of the journal on disk."),
    _gauge("journal_first_offset_bytes", "The oldest log offset in the journal."),
    _gauge("journal_offset_bytes", "The log offset up to which records are in the journal."),
    _gauge("store_bytes", "Size of the store on disk."),
    _gauge("store_offset_bytes", "The log offset of the store, which is that of the last checkpoint."),
    _counter("checkpoints", "Completed checkpoints.", "kind"),
    _gauge("checkpoint_running", "1 while a checkpoint is in progress.", "kind"),
    _gauge("checkpoint_scheduled", "1 while a checkpoint of BGREWRITEAOF waits for another one."),
    _gauge("checkpoint_last_ok", "1 if the last checkpoint succeeded.", "kind"),
    _gauge("checkpoint_last_success_timestamp_seconds", "Unix time of the last successful checkpoint, or of startup."),
    _gauge("checkpoint_last_duration_seconds", "Duration of the last checkpoint.", "kind"),
    _gauge("checkpoint_current_duration_seconds", "Duration of the checkpoint in progress.", "kind"),
    _gauge("changes_since_checkpoint", "Changes since the last checkpoint."),
    _gauge("keys_loaded", "Keys that were loaded at startup."),
    _gauge("scrub_running", "1 while a pass of the scrub is in progress."),
    _gauge("scrub_progress_ratio", "Progress of this pass, from 0 to 1."),
    _gauge("scrub_rate_bytes", "Bytes per second that the scrub reads; 0: it is off."),
    _counter("scrub_passes", "Completed passes on this data directory."),
    _gauge("scrub_last_end_timestamp_seconds", "Unix time of the end of the last pass."),
    _gauge("scrub_damaged", "Damaged entries and pages of the store."),
    _counter("scrub_repaired", "Damaged entries of the store that are sound again."),
    _counter("scrub_fetched", "Damaged nodes that were replaced by a copy from another server."),
    _gauge("scrub_irreparable", "Damaged entries of the store for which no other server has a good copy."),
    _gauge("tier_running", "1 while a pass copies history to the object store."),
    _gauge("tier_last_ok", "1 if the last pass had no error."),
    _counter("tier_passes", "Passes since the start, without and with an error.", "result"),
    _counter("tier_objects", "Objects that were written, read back, and compared."),
    _counter("tier_entries", "Entries in these objects."),
    _counter("tier_bytes", "Size of these objects."),
    _counter("tier_calls", "Calls to the object store."),
    _counter("tier_calls_failed", "Calls to the object store that failed, or exceeded `tier-timeout`."),
    _gauge("tier_lag_seconds", "Seconds since the start of the last complete pass."),
    _counter("tier_freed_nodes", "Nodes whose entries have left the store because the object store has them."),
    _counter("tier_freed_bytes", "Space of these nodes in the store, which later checkpoints use again."),
    _counter("tier_deleted_objects", "Objects that were deleted because their entries were removed."),
    _counter("tier_deleted_bytes", "Size of these objects."),
    _gauge("tier_waiting_objects", "Objects without remaining entries that wait for their deletion."),
    _gauge("tier_waiting_bytes", "Size of these objects, and of the parts of manifests that wait with them."),
    _counter("tier_cache_reads", "Reads of such nodes that found them in the disk cache, or did not.", "result"),
    _gauge("tier_cache_bytes", "Size of the disk cache."),
    _counter("tier_fetched_nodes", "Nodes that were read from the object store into the disk cache."),
    _counter("tier_fetch_errors", "Reads from the object store that failed."),
    _gauge("tier_lost_objects", "Objects that are missing or damaged, as far as they were read."),
    _gauge("tier_waiting_reads", "Reads from the object store for which commands wait."),
)
_KEYSPACE = (
    _gauge("keys", "Keys."),
    _gauge("keys_with_expiry", "Keys that have an expiry."),
    _gauge("keys_average_ttl_seconds", "Average remaining time of a sample of these keys."),
    _counter("expired_keys", "Keys that have expired."),
    _counter("keyspace_hits", "Lookups of keys that exist."),
    _counter("keyspace_misses", "Lookups of keys that do not exist."),
    _gauge("streams", "Streams."),
    _gauge("entries", "Entries in all streams."),
    _gauge("entries_added", "Entries ever added to the existing streams."),
    _gauge("nodes", "Nodes of all streams."),
    _gauge("streams_memory_bytes", "Memory of all streams and groups."),
    _gauge("groups", "Groups of all streams."),
    _counter("groups_expired", "Groups that have expired."),
    _gauge("pending_messages", "Pending messages of all existing groups."),
    _gauge("messages_redelivered", "Redeliveries of all existing groups."),
    _gauge("messages_expired", "Messages of all existing groups that left the pending list unacknowledged."),
    _gauge("messages_dead_lettered", "Those of these messages that were moved to a dead-letter stream."),
    _gauge("stages", "Stages."),
    _gauge("stages_bytes", "Memory of the stages."),
    _counter("stages_expired", "Stages that have expired."),
    _gauge("delayed_entries", "Entries that will join their streams later (TDELAY)."),
    _counter("delayed_entries_delivered", "Delayed entries that have joined their streams."),
    _gauge("fences", "Fences."),
    _gauge("cluster_unserved_keys", "Keys in slots that the group of this leader does not own."),
)
_REPLICATION = (
    _gauge("leader", "1 if this server accepts writes as a leader; 0 if it is a replica."),
    _gauge("connected_replicas", "Connected replicas."),
    _gauge("good_replicas", "Replicas that count for min-replicas-to-write."),
    _gauge("replica_online", "1 if the replica follows; 0 while it receives a full copy.", "replica"),
    _gauge("replica_offset_bytes", "The log offset that the replica has acknowledged.", "replica"),
    _gauge("replica_lag_bytes", "Bytes of records that the replica has not acknowledged.", "replica"),
    _gauge("replica_last_ack_seconds", "Time since the last acknowledgement of the replica.", "replica"),
    _gauge("confirmed_offset_bytes", "With replica-acks: the log offset up to which replies are released."),
    _gauge("withheld_clients", "With replica-acks: clients with withheld replies."),
    _gauge("withheld_bytes", "With replica-acks: size of the withheld replies."),
    _gauge("withheld_seconds", "With replica-acks: age of the oldest withheld reply."),
    _gauge("failover_running", "1 while a planned failover is in progress."),
    _gauge("replication_backlog_active", "1 if the journal is retained for replicas."),
    _gauge("replication_backlog_max_bytes", "The directive repl-backlog-size."),
    _gauge("replication_backlog_first_offset_bytes", "The oldest log offset from which a replica can continue."),
    _gauge("replication_backlog_bytes", "Bytes of records in the replication backlog."),
    _counter(
        "replication_syncs", "Requests of replicas, by result: a full copy, a continuation, or a refused one.", "result"
    ),
    _counter("replication_bytes", "Bytes of replication links.", "direction"),
    _counter("log_truncations", "How often this server deleted the end of its log to follow a new leader."),
    _gauge("leader_link_up", "On a replica: 1 if the link to the leader is up."),
    _gauge("leader_link_down_seconds", "On a replica: time since the link was lost."),
    _gauge("leader_link_last_io_seconds", "On a replica: time since the last message of the leader."),
    _gauge("full_copy_running", "On a replica: 1 while it receives a full copy."),
    _gauge("full_copy_refused", "On a replica: 1 if it refused a full copy that has less data."),
    _gauge("full_copy_size_bytes", "On a replica: estimated size of the full copy in progress."),
    _gauge("full_copy_read_bytes", "On a replica: received bytes of the full copy in progress."),
    _gauge("full_copy_left_bytes", "On a replica: missing bytes of the full copy in progress."),
    _gauge("full_copy_reused_bytes", "On a replica: bytes of the last full copy that were in its own store."),
    _gauge("full_copy_last_io_seconds", "On a replica: time since the last byte of the full copy in progress."),
    _gauge("replica_priority", "On a replica: its priority for Sentinel; 0: it must not become the leader."),
)
_SERVER_GROUP = (
    _gauge(
        "server_group_info",
        "Always 1; the labels name the server group, this member, and its phase.",
        "group",
        "member",
        "phase",
    ),
    _gauge("server_group_epoch", "The epoch of the server group."),
    _gauge("server_group_has_leader", "1 if this member knows the leader of the server group."),
    _gauge("server_group_members", "Members of the server group."),
    _gauge("server_group_in_sync_members", "Members of the in-sync set."),
    _gauge("server_group_min_in_sync", "Members in sync that writes need; 0: replica-acks is 0."),
    _gauge("server_group_lease_left_seconds", "Remaining time of this member's lease."),
    _gauge("server_group_member_in_sync", "1 if the member is in the in-sync set.", "member"),
    _gauge("server_group_member_lag_bytes", "On the leader: records that the member does not have on disk.", "member"),
    _gauge("server_group_member_lag_seconds", "On the leader: how far the member is behind.", "member"),
    _gauge("server_group_longest_stall_seconds", "The longest stall of the event loop in ten minutes."),
    _gauge("server_group_warnings", "Warnings of TMEMBER STATUS."),
)
_STREAM = (
    _gauge("stream_entries", "Entries of the stream.", "stream"),
    _gauge("stream_bytes", "Size of the stream in the store, estimated.", "stream"),
    _gauge("stream_memory_bytes", "Memory of the stream without its groups.", "stream"),
    _counter("stream_entries_added", "Entries ever added to the stream.", "stream"),
    _gauge("stream_first_entry_timestamp_seconds", "Time in the ID of the oldest entry.", "stream"),
    _gauge("stream_last_entry_timestamp_seconds", "Time in the last ID of the stream.", "stream"),
    _gauge("stream_groups", "Groups of the stream.", "stream"),
)
_GROUP = (
    _gauge("group_lag_entries", "Entries after the position of the group.", "stream", "group"),
    _gauge(
        "group_lag_seconds",
        "Age of the oldest entry after the position of the group; 0 if there is none.",
        "stream",
        "group",
    ),
    _gauge("group_pending_messages", "Pending messages of the group.", "stream", "group"),
    _gauge(
        "group_oldest_pending_seconds",
        "Age of the oldest pending entry of the group; 0 if there is none.",
        "stream",
        "group",
    ),
    _counter("group_redelivered", "Redeliveries of the group.", "stream", "group"),
    _counter("group_expired", "Messages that left the pending list unacknowledged.", "stream", "group"),
    _counter(
        "group_dead_letters", "Those of these messages that were moved to a dead-letter stream.", "stream", "group"
    ),
    _gauge("group_consumers", "Consumers of the group.", "stream", "group"),
    _gauge("group_blocked_readers", "Clients that wait for entries of the group.", "stream", "group"),
)
_METRICS = (
    _gauge("metrics_streams_matching", "Streams from which the exported ones were selected."),
    _gauge("metrics_streams_exported", "Streams in this text."),
    _gauge("metrics_groups_omitted", "Groups of the exported streams that are not in this text."),
    _gauge("metrics_selection_age_seconds", "Time since the exported streams were selected and the totals computed."),
    _gauge("metrics_snapshot_seconds", "Time of the event loop for this text."),
    _gauge("metrics_longest_step_seconds", "The longest step of the event loop for this text."),
)

SECTIONS: Final[tuple[tuple[str, tuple[MetricFamily, ...]], ...]] = (
    ("Streams", _STREAM),
    ("Groups of streams", _GROUP),
    ("Keyspace", _KEYSPACE),
    ("Replication", _REPLICATION),
    ("Server groups", _SERVER_GROUP),
    ("WAL, journal, checkpoints, scrub", _PERSISTENCE),
    ("Commands", _COMMANDS),
    ("Clients", _CLIENTS),
    ("Memory", _MEMORY),
    ("Server", _SERVER),
    ("The endpoint", _METRICS),
)
FAMILIES: Final[dict[str, MetricFamily]] = {
    family.name.removeprefix("tidelog_").removesuffix("_total"): family for _, part in SECTIONS for family in part
}  # the keys are the names that the code uses
