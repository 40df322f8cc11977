"""Ignored directives: those of Redis 7 and 8 that have no effect in tidelog, with Redis's defaults.

A configuration written for Redis must be able to start tidelog. So these directives are accepted with a warning, and
CONFIG GET returns the configured value, or Redis's default. They are grouped by the reason in the warning. Directives
that are *dangerous* to ignore are in ``directives``, with ``fixed="refuse"``.

The names come from ``CONFIG GET *`` and redis.conf of redis-server 7.0.15, and from the additions of Redis 8. A test
compares them with an installed redis-server.
"""

from __future__ import annotations

# Words are ``name=default``. An underscore in a default stands for a blank.
_GROUPS: tuple[tuple[str, str], ...] = (
    (
        "tidelog has its own files, always compressed and checked",
        """rdbcompression=yes rdbchecksum=yes dbfilename=dump.rdb rdb-del-sync-files=no rdb-save-incremental-fsync=yes
        sanitize-dump-payload=no appendfilename=appendonly.aof appenddirname=appendonlydir aof-use-rdb-preamble=yes
        aof-timestamp-enabled=no aof-disable-auto-gc=no aof-rewrite-incremental-fsync=yes rdb-key-save-delay=0
        key-load-delay=0 loading-process-events-interval-bytes=2097152""",
    ),
    (
        "nothing is rewritten and nothing forks: checkpoints write what changed, see checkpoint-size",
        """auto-aof-rewrite-percentage=100 auto-aof-rewrite-min-size=67108864 no-appendfsync-on-rewrite=no
        stop-writes-on-bgsave-error=yes disable-thp=yes""",
    ),
    (
        "a record that a crash truncated was never acknowledged and is always discarded",
        "aof-load-truncated=yes aof-load-corrupt-tail-max-size=0",
    ),
    (
        "tidelog has strings and streams only",
        """hash-max-listpack-entries=512 hash-max-listpack-value=64 hash-max-ziplist-entries=512
        hash-max-ziplist-value=64 list-max-listpack-size=-2 list-max-ziplist-size=-2 list-compress-depth=0
        list-max-ziplist-entries= list-max-ziplist-value= set-max-intset-entries=512 set-max-listpack-entries=128
        set-max-listpack-value=64 zset-max-listpack-entries=128 zset-max-listpack-value=64
        zset-max-ziplist-entries=128 zset-max-ziplist-value=64 hll-sparse-max-bytes=3000""",
    ),
    (
        "nothing is ever evicted to free memory, so there is nothing to sample",
        """maxmemory-samples=5 maxmemory-eviction-tenacity=10 maxmemory-clients=0 replica-ignore-maxmemory=yes
        slave-ignore-maxmemory=yes lfu-log-factor=10 lfu-decay-time=1""",
    ),
    (
        "memory is managed by Python",
        """activerehashing=yes activedefrag=no active-defrag-cycle-min=1 active-defrag-cycle-max=25
        active-defrag-threshold-lower=10 active-defrag-threshold-upper=100 active-defrag-max-scan-fields=1000
        active-defrag-ignore-bytes=104857600 jemalloc-bg-thread=yes lazyfree-lazy-eviction=no
        lazyfree-lazy-expire=no lazyfree-lazy-server-del=no lazyfree-lazy-user-del=no lazyfree-lazy-user-flush=no
        replica-lazy-flush=no slave-lazy-flush=no active-expire-effort=1 dynamic-hz=yes""",
    ),
    (
        "tidelog runs its commands in one thread and leaves placement to the system",
        """io-threads=1 io-threads-do-reads=no server_cpulist= bio_cpulist= aof_rewrite_cpulist= bgsave_cpulist=
        server-cpulist= bio-cpulist= aof-rewrite-cpulist= bgsave-cpulist= oom-score-adj=no
        oom-score-adj-values=0_200_800 max-new-connections-per-cycle=10 max-new-tls-connections-per-cycle=1
        socket-mark-id=0 bind-source-addr= client-default-resp=2""",
    ),
    (
        "there are no scripts, functions or modules",
        """lua-time-limit=5000 busy-reply-threshold=5000 lua-replicate-commands= enable-module-command=no loadmodule=
        lua-enable-insecure-api=no""",
    ),
    (
        "a full copy is read from the store while it is sent, and written to separate files until it is complete",
        """repl-diskless-sync=yes repl-diskless-sync-delay=5 repl-diskless-sync-max-replicas=0
        repl-diskless-load=disabled replica-full-sync-buffer-limit=0 repl-rdb-channel=no""",
    ),
    (
        "a replica that can't write its log stops following its leader",
        "replica-ignore-disk-write-errors=no propagation-error-behavior=ignore",
    ),
    (
        "there is no cluster bus: a coordinator has the map and elects the leaders",
        """cluster-config-file=nodes.conf cluster-node-timeout=15000 cluster-port=0
        cluster-announce-bus-port=0
        cluster-announce-human-nodename= cluster-migration-barrier=1
        cluster-allow-replica-migration=yes
        cluster-allow-pubsubshard-when-down=yes cluster-replica-validity-factor=10
        cluster-slave-validity-factor=10 cluster-replica-no-failover=no cluster-slave-no-failover=no
        cluster-link-sendbuf-limit=0 cluster-ping-interval=1000 cluster-compatibility-sample-ratio=0
        cluster-slot-stats-enabled=no tls-cluster=no""",
    ),
    (
        "new users may use no channels, until they get &pattern or allchannels",
        "acl-pubsub-default=resetchannels",
    ),
    (
        "protected directives can't be set at run time",
        "enable-protected-configs=no",
    ),
    (
        "logs go to standard output or to logfile",
        """syslog-ident=redis syslog-facility=local0 always-show-logo=no set-proc-title=yes
        proc-title-template={title}_{listen-addr}_{server-mode} crash-log-enabled=yes crash-memcheck-enabled=yes
        watchdog-period=0 use-exit-on-panic=no req-res-logfile= hide-user-data-from-log=no locale-collate=""",
    ),
    (
        "the TLS library keeps its own session cache",
        "tls-session-cache-size=20480 tls-session-cache-timeout=300",
    ),
    (
        "tidelog has no such warning to silence",
        "ignore-warnings=",
    ),
)

# Redis 8 includes modules with several dozen directives.
MODULE_PREFIXES = ("search-", "ts-", "bf-", "cf-", "topk-", "vset-")
MODULE_REASON = "there are no scripts, functions or modules"


def _table() -> dict[str, tuple[str, str]]:
    table = {}
    for reason, words in _GROUPS:
        for word in words.split():
            name, _, default = word.partition("=")
            table[name] = (default.replace("_", " "), reason)
    return table


IGNORED: dict[str, tuple[str, str]] = _table()  # name -> (Redis's default, the reason why it is ignored)


def reason_ignored(name: str) -> str | None:
    """Return why tidelog ignores Redis's directive ``name``; None if it does not."""
    known = IGNORED.get(name)
    if known is not None:
        return known[1]
    word = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return MODULE_REASON if word and name.startswith(MODULE_PREFIXES) else None
