"""INFO: its sections, and the fields that clients and monitoring need."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import storage
from commands.declare import all_commands
from commands.registry import TABLE
from commands.session import Session
from respserver.observe import info
from respserver.observe.clienttotals import ClientTotals
from respserver.observe.info import ServerStats
from respserver.observe.slowlog import Histogram
from respserver.observe.stats import Counters, RoleStats, Saves
from respserver.observe.streamtotals import StreamWalk
from storage.groups.group import Group
from storage.keyspace.keyspace import Keyspace
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool
from tests.commands.fakeserver import EmptyStore

NOW = 1_700_000_000_000
CONFIG = {
    "supervised": "no", "port": "7000", "hz": "10", "maxclients": "10000", "maxmemory": "0",
    "min-replicas-to-write": "0", "min-replicas-max-lag": "10", "repl-backlog-size": "1000",
    "replica-priority": "100", "replica-announced": "yes", "latency-tracking-info-percentiles": "50 99 99.9",
}  # fmt: skip


@pytest.fixture
def ks() -> Keyspace:
    return Keyspace(NodePool(EmptyStore(), NodeCache(1 << 20)))


@pytest.fixture
def stats(ks: Keyspace) -> ServerStats:
    session = Session(1, "127.0.0.1:5", "127.0.0.1:7000", NOW)
    session.channels.add(b"c")
    session.watching.update((b"a", b"b"))
    return ServerStats(
        now=NOW, started=NOW - 90_061_000, run_id="ab" * 20, roles=RoleStats(id="cd" * 20), config=CONFIG.__getitem__,
        keyspace=ks, clients=ClientTotals().add([session]), counters=Counters(), walk=StreamWalk(),
    )  # fmt: skip


Ask = Callable[..., dict[str, str]]


@pytest.fixture
def ask(stats: ServerStats) -> Ask:
    def ask(*sections: str) -> dict[str, str]:
        text = info.render(stats, list(sections))
        rows = [line for line in text.split("\r\n") if line and not line.startswith("#")]
        pairs = [row.split(":", 1) for row in rows]
        found = dict(pairs)
        assert len(found) == len(pairs), "a field occurs twice"
        return found

    return ask


def headings(text: str) -> list[str]:
    return re.findall(r"^# (.*)\r$", text, re.MULTILINE)


def test_sections_in_the_order_of_redis(stats: ServerStats) -> None:
    usual = [
        "Server", "Clients", "Memory", "Persistence", "Stats", "Replication", "CPU", "Modules", "Errorstats", "Cluster",
        "Keyspace", "Streams",
    ]  # fmt: skip
    assert headings(info.render(stats, [])) == headings(info.render(stats, ["default"])) == usual
    everything = headings(info.render(stats, ["everything"]))
    assert [title for title in everything if title not in ("Commandstats", "Latencystats")] == usual
    assert len(everything) == 14
    assert headings(info.render(stats, ["CPU", "server", "nothing"])) == ["Server", "CPU"]
    assert info.render(stats, ["nothing"]) == ""
    text = info.render(stats, ["server", "cluster"])
    assert text.startswith("# Server\r\nredis_version:8.4.0\r\n")
    assert text.endswith("\r\n\r\n# Cluster\r\ncluster_enabled:0\r\ncluster_unserved_keys:0\r\n")


def test_fields_that_clients_and_monitoring_need(ask: Ask) -> None:
    found = ask("everything")
    expected = {
        "redis_version": "8.4.0", "redis_mode": "standalone", "uptime_in_seconds": "90061", "uptime_in_days": "1",
        "tcp_port": "7000", "run_id": "ab" * 20, "role": "master", "connected_slaves": "0",
        "master_replid": "cd" * 20, "cluster_enabled": "0", "loading": "0", "connected_clients": "1",
        "blocked_clients": "0", "pubsub_clients": "1", "watching_clients": "1", "total_watched_keys": "2",
        "aof_enabled": "1", "maxmemory_policy": "noeviction", "rdb_last_bgsave_status": "ok", "arch_bits": "64",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert found["tidelog_version"]
    assert found["tidelog_compiled"] == str(int(any(Path(storage.__path__[0], "streams").glob("stream.*.so"))))
    assert found["tidelog_resp_parser"] == ("compiled" if int(found["tidelog_compiled"]) else "hiredis")
    assert found["tidelog_coded_nodes"] == str(int(any(Path(storage.__path__[0], "nodes").glob("_coded.*.so"))))
    assert int(found["used_memory_rss"]) > 1_000_000
    assert float(found["used_cpu_user"]) > 0


def test_keyspace_section(ask: Ask, ks: Keyspace) -> None:
    assert ask("keyspace") == {}
    ks.set_string(b"a", b"1")
    ks.set_string(b"b", b"1", NOW + 3000)
    ks.set_string(b"c", b"1", NOW + 1000)
    assert ask("keyspace") == {"db0": "keys=3,expires=2,avg_ttl=2000,subexpiry=0"}


def test_streams_section(ask: Ask, ks: Keyspace) -> None:
    for name, count in ((b"s", 700), (b"t", 3)):
        stream = ks.create_stream(name)
        for seq in range(count):
            ks.append(name, stream, NOW, seq, b"*1\r\n$15\r\n1700000000000.0\r\n")
    group = Group(b"g", 0)
    group.pending.add([n.to_bytes(16, "big") for n in (1, 2)], NOW, NOW + 10, 0, 10)
    group.expired, group.deadlettered, group.redelivered = 4, 5, 6
    stream.groups[b"g"] = group
    found = ask("streams")
    expected = {
        "streams": "2", "stream_entries": "703", "stream_entries_added": "703", "groups": "1", "group_pending": "2",
        "group_expired": "4", "group_deadlettered": "5", "group_redelivered": "6", "node_cache_max_bytes": str(1 << 20),
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert int(found["stream_nodes"]) >= 2
    assert int(found["stream_memory"]) > 0


def test_persistence_section(ask: Ask, stats: ServerStats) -> None:
    stats.saves = Saves(running=True, started=NOW // 1000 - 7, last=123, last_ok=False, last_seconds=2, count=3)
    stats.log = {"journal_offset": 5, "log_ring": "ok", "fsync_seconds": 0.25}
    stats.write_error = "MISCONF disk full"
    stats.loading = True
    found = ask("persistence")
    expected = {
        "loading": "1", "rdb_bgsave_in_progress": "1", "rdb_current_bgsave_time_sec": "7", "rdb_last_save_time": "123",
        "rdb_last_bgsave_status": "err", "rdb_last_bgsave_time_sec": "2", "rdb_saves": "3",
        "aof_last_write_status": "err", "log_journal_offset": "5", "log_ring": "ok", "log_fsync_seconds": "0.250000",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_stats_commands_errors_latencies(ask: Ask, stats: ServerStats) -> None:
    for command in all_commands():
        command.calls = command.usec = command.rejected = command.failed = 0
    ping = TABLE[b"ping"]
    ping.calls, ping.usec, ping.rejected, ping.failed = 4, 10_000, 1, 2
    TABLE[b"client"].subcommands[b"id"].rejected = 1
    stats.roles.full_syncs, stats.roles.partial_syncs, stats.roles.refused_partial = 3, 2, 1
    stats.roles.bytes_in, stats.roles.bytes_out = 10, 20
    histogram = Histogram()
    histogram.note(5)
    stats.histograms = {"ping": histogram, "never": Histogram()}
    stats.counters.note_error("ERR x")
    stats.counters.traffic.commands = 9
    try:
        assert ask("commandstats") == {
            "cmdstat_client|id": "calls=0,usec=0,usec_per_call=0.00,rejected_calls=1,failed_calls=0",
            "cmdstat_ping": "calls=4,usec=10,usec_per_call=2.50,rejected_calls=1,failed_calls=2",
        }
    finally:
        ping.calls = ping.usec = ping.rejected = ping.failed = 0
        TABLE[b"client"].subcommands[b"id"].rejected = 0
    assert ask("errorstats") == {"errorstat_ERR": "count=1"}
    assert ask("latencystats") == {"latency_percentiles_usec_ping": "p50=5.000,p99=5.000,p99.9=5.000"}
    found = ask("stats")
    assert (found["total_commands_processed"], found["total_error_replies"]) == ("9", "1")
    assert (found["sync_full"], found["sync_partial_ok"], found["sync_partial_err"]) == ("3", "2", "1")
    assert (found["total_net_repl_input_bytes"], found["total_net_repl_output_bytes"]) == ("10", "20")
    stats.counters.reset()
    assert ask("errorstats") == {}


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0B"), (1023, "1023B"), (1024, "1.00K"), (916752, "895.27K"), (1 << 30, "1.00G"), (3 << 50, "3.00P")],
)
def test_human_readable_sizes(size: int, text: str) -> None:
    assert info.human(size) == text
