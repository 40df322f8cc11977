"""What the server tells of itself: slow log, latency, histograms, MONITOR's lines, counters, INFO."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import storage
from commands.declare import all_commands
from commands.registry import TABLE
from commands.session import Session
from respserver.clients.clients import Clients
from respserver.clients.monitor import monitor_line, redacted
from respserver.observe import info
from respserver.observe.info import ServerStats
from respserver.observe.slowlog import MAX_SAMPLES, Histogram, LatencyEvents, SlowLog
from respserver.observe.stats import Counters, Rate, RoleStats, Saves, process_memory, system_memory
from respserver.observe.streamtotals import StreamWalk
from storage.groups.group import Group
from storage.keyspace import Keyspace
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool
from tests.commands.fakeserver import EmptyStore

NOW = 1_700_000_000_000


# -- slow log ----------------------------------------------------------------------------------------------------
def test_slowlog_keeps_what_was_slow_newest_first() -> None:
    log = SlowLog(slower_than=100, max_len=2)
    for number, usec in enumerate((99, 100, 5000, 101)):
        log.note(number, usec, [b"GET"], "a", "n")
    assert [(entry[0], entry[1], entry[2]) for entry in log.entries()] == [(2, 3, 101), (1, 2, 5000)]
    log.resize(1)
    assert [entry[0] for entry in log.entries()] == [2]
    log.reset()
    assert len(log) == 0
    log.note(9, 100, [b"GET"], "a", "n")
    assert log.entries()[0][0] == 3, "IDs go on after a reset"


@pytest.mark.parametrize(("slower_than", "kept"), [(-1, 0), (0, 3), (10, 1)])
def test_slowlog_thresholds(slower_than: int, kept: int) -> None:
    log = SlowLog(slower_than=slower_than)
    for usec in (0, 9, 10):
        log.note(1, usec, [b"x"], "", "")
    assert len(log) == kept


def test_slowlog_cuts_giants() -> None:
    log = SlowLog(slower_than=0)
    log.note(1, 1, [b"SET", b"k" * 128, b"v" * 1000], "", "")
    log.note(1, 1, [b"%d" % n for n in range(32)], "", "")
    log.note(1, 1, [b"%d" % n for n in range(33)], "", "")
    many, fits, long = (entry[3] for entry in log.entries())
    assert long == [b"SET", b"k" * 128, b"v" * 128 + b"... (872 more bytes)"]
    assert fits == [b"%d" % n for n in range(32)]
    assert many == [*[b"%d" % n for n in range(31)], b"... (2 more arguments)"]


# -- latency -----------------------------------------------------------------------------------------------------
def test_latency_events() -> None:
    events = LatencyEvents(threshold=10)
    events.note("command", 100, 9)
    assert events.all() == {}
    for second, ms in ((100, 10), (100, 30), (100, 20), (101, 11)):
        events.note("command", second, ms)
    assert events.all() == {"command": [(100, 30), (101, 11)]}
    for second in range(200, 200 + 2 * MAX_SAMPLES):
        events.note("command", second, 10)
    assert len(events.all()["command"]) == MAX_SAMPLES
    assert events.reset(["other"]) == 0
    assert events.reset([]) == 1
    events.threshold = 0
    events.note("command", 1, 1000)
    assert events.all() == {}


durations = st.lists(st.one_of(st.integers(0, 64), st.integers(0, 1 << 33)), min_size=1, max_size=60)


@given(durations, st.sampled_from([50.0, 99.0, 99.9, 100.0]))
def test_percentile_is_never_low_and_at_most_an_eighth_high(times: list[int], percent: float) -> None:
    histogram = Histogram()
    for usec in times:
        histogram.note(usec)
    times.sort()
    rank = max(0, -(-len(times) * percent // 100) - 1)
    exact = times[int(rank)]
    assert exact <= histogram.percentile(percent) <= exact * 1.125


@given(durations)
def test_doublings_are_cumulative(times: list[int]) -> None:
    histogram = Histogram()
    for usec in times:
        histogram.note(usec)
    pairs = histogram.doublings()
    assert pairs[-1][1] == histogram.calls == len(times)
    assert [count for _, count in pairs] == sorted({count for _, count in pairs})
    for limit, count in pairs:
        assert limit.bit_count() == 1
        assert sum(usec < limit for usec in times) <= count <= sum(usec <= limit * 1.125 for usec in times)
    assert (Histogram().doublings(), Histogram().percentile(99.0), Histogram().calls) == ([], 0.0, 0)


def test_rate_is_a_mean_of_the_last_samples() -> None:
    rate = Rate()
    assert rate.per_second == 0
    for step in range(40):
        rate.sample(1000 + 100 * step, 5 * step)
    assert rate.per_second == pytest.approx(50)
    for step in range(40, 60):
        rate.sample(1000 + 100 * step, 5 * 39)
    assert rate.per_second == 0


def test_rate_survives_resetstat_and_a_clock_set_back() -> None:
    rate = Rate()
    for now, count in ((1000, 10), (2000, 20), (3000, 0), (2500, 5), (3500, 15)):
        rate.sample(now, count)
    assert rate.per_second == pytest.approx((10 + 0 + 10) / 3)


def test_counters_by_error_code_are_bounded() -> None:
    counters = Counters()
    counters.note_error("WRONGTYPE Operation against a key")
    counters.note_error("WRONGTYPE again")
    for number in range(1000):
        counters.note_error(f"X{number} strange")
    assert counters.errors["WRONGTYPE"] == 2
    assert counters.error_replies == 1002
    assert len(counters.errors) == 128


# -- MONITOR -----------------------------------------------------------------------------------------------------
def test_monitor_line() -> None:
    line = monitor_line(1_700_000_000_000_042, "127.0.0.1:5", [b"set", b'k"\\', b"\r\n\t\a\b\x00\xffz"])
    assert line == rb"""+1700000000.000042 [0 127.0.0.1:5] "set" "k\"\\" "\r\n\t\a\b\x00\xffz""" + b'"\r\n'


@pytest.mark.parametrize(
    ("shown", "argv"),
    [
        ([b"AUTH", b"(redacted)"], [b"AUTH", b"pw"]),
        ([b"auth", b"(redacted)", b"(redacted)"], [b"auth", b"u", b"pw"]),
        ([b"HELLO", b"3"], [b"HELLO", b"3"]),
        (
            [b"hello", b"3", b"auth", b"(redacted)", b"(redacted)", b"SETNAME", b"n"],
            [b"hello", b"3", b"auth", b"u", b"pw", b"SETNAME", b"n"],
        ),
        (
            [b"config", b"SET", b"hz", b"20", b"RequirePass", b"(redacted)"],
            [b"config", b"SET", b"hz", b"20", b"RequirePass", b"pw"],
        ),
        ([b"GET", b"AUTH"], [b"GET", b"AUTH"]),
    ],
)
def test_secrets_are_not_shown(shown: list[bytes], argv: list[bytes]) -> None:
    before = list(argv)
    assert redacted(argv) == shown
    assert argv == before


# -- clients -----------------------------------------------------------------------------------------------------
def test_client_ids_are_never_used_twice() -> None:
    clients = Clients()
    first = Session(clients.next_id(), "a", "b", NOW)
    clients.add(first)
    clients.remove(first)
    clients.remove(first)
    second = Session(clients.next_id(), "a", "b", NOW)
    clients.add(second)
    assert (first.id, second.id) == (1, 2)
    assert (len(clients), clients.get(1), clients.get(2), clients.all()) == (1, None, second, [second])


# -- INFO --------------------------------------------------------------------------------------------------------
CONFIG = {
    "supervised": "no", "port": "7000", "hz": "10", "maxclients": "10000", "maxmemory": "0",
    "min-replicas-to-write": "0", "min-replicas-max-lag": "10", "repl-backlog-size": "1000",
    "replica-priority": "100", "replica-announced": "yes",
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
        keyspace=ks, sessions=[session], counters=Counters(), walk=StreamWalk(),
    )  # fmt: skip


Ask = Callable[..., dict[str, str]]


@pytest.fixture
def ask(stats: ServerStats) -> Ask:
    def ask(*sections: str) -> dict[str, str]:
        text = info.render(stats, list(sections))
        rows = [line for line in text.split("\r\n") if line and not line.startswith("#")]
        pairs = [row.split(":", 1) for row in rows]
        found = dict(pairs)
        assert len(found) == len(pairs), "a field stands twice"
        return found

    return ask


def headings(text: str) -> list[str]:
    return re.findall(r"^# (.*)\r$", text, re.MULTILINE)


def test_sections_as_redis_orders_them(stats: ServerStats) -> None:
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
    assert text.endswith("\r\n\r\n# Cluster\r\ncluster_enabled:0\r\n")


def test_fields_that_clients_and_monitors_ask_for(ask: Ask) -> None:
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
    assert found["tidelog_compiled"] == str(int(any(Path(storage.__path__[0]).glob("stream.*.so"))))
    assert int(found["used_memory"]) > 1_000_000
    assert float(found["used_cpu_user"]) > 0


def test_memory_of_this_process() -> None:
    memory = process_memory()
    assert 0 < memory.anonymous <= memory.resident <= memory.peak < system_memory()


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
    stats.counters.commands_processed = 9
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
def test_sizes_for_people(size: int, text: str) -> None:
    assert info.human(size) == text
