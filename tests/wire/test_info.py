"""Every field of INFO, driven through a socket: what is done, and how the field moves then.

A field that is in INFO and in neither table fails ``test_every_field_is_in_a_table``.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from persistence.scrub import Damage
from persistence.storecopy import STREAMS
from respserver.testing import HandClock, RunningServer, start_in_thread
from tests.persistence.test_scrub import flip
from tests.waiting import eventually
from tests.wire.faults import refuse
from tests.wire.rawclient import Raw, pack
from tidelog.testing import running_server

Check = Callable[[str, str], bool]


def grew(before: str, after: str) -> bool:
    return float(after or 0) > float(before or 0)


def fell(before: str, after: str) -> bool:
    return float(after) < float(before)


def changed(before: str, after: str) -> bool:
    return after != before


def is_positive(before: str, after: str) -> bool:
    return float(after) > 0


def became(value: str) -> Check:
    return lambda before, after: after == value != before


def fields(raw: Raw) -> dict[str, str]:
    text = raw("INFO", "everything").decode()
    return dict(line.split(":", 1) for line in text.split("\r\n") if line and not line.startswith("#"))


class World:
    """A server on a hand-moved clock, a replica of it on the wall clock, and connections to both."""

    def __init__(self, hand: RunningServer, replica: RunningServer) -> None:
        self.hand = hand
        self.replica = replica
        self.stack = contextlib.ExitStack()  # of one step
        self.me = Raw(hand.port, 3)
        self.me("SUBSCRIBE", "always")  # `timeout` does not close subscribers
        self.its = Raw(replica.port, 3)

    def connect(self) -> Raw:
        return self.stack.enter_context(Raw(self.hand.port))

    def set(self, name: str, value: str, back: str) -> None:
        """CONFIG SET for the time of this step."""
        assert self.me("CONFIG", "SET", name, value) == b"OK"
        self.stack.callback(lambda: self.me("CONFIG", "SET", name, back))

    def patch(self, owner: object, name: str, value: object) -> None:
        """Replace a method for the time of this step."""
        self.hand.call(lambda: setattr(owner, name, value))
        self.stack.callback(lambda: self.hand.call(lambda: delattr(owner, name)))

    def follow(self) -> None:
        """Make the replica follow the server, and wait until it does."""
        self.its("REPLICAOF", "127.0.0.1", self.hand.port, "FORCE")  # it has data of its own
        eventually(lambda: fields(self.its)["master_link_status"] == "up")
        eventually(lambda: fields(self.me).get("slave0", "").find("state=online") > 0)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    options = {"enable_debug_command": "yes", "latency_tracking": "yes", "save": "", "slowlog_log_slower_than": "-1"}
    with start_in_thread(clock=HandClock(), **options) as hand, start_in_thread(**options) as replica:  # type: ignore[arg-type]
        made = World(hand, replica)
        with made.me.sock, made.its.sock:
            yield made


# -- what is done -------------------------------------------------------------------------------------------------
Step = Callable[[World], object]
ENTRY = ("FIELDS", 1, "f", "VALUES", "v")


def connects(w: World) -> None:
    w.connect()("PING")


def commands(w: World) -> None:
    w.me("TIME")  # no other step sends it


def busy(w: World) -> None:
    w.hand.advance(200)
    w.connect().pipeline(*[("ECHO", "x" * 1000)] * 200)
    w.hand.advance(200)


def errs(w: World) -> None:
    w.me("NOSUCH")


def denials(w: World) -> None:
    w.me("ACL", "SETUSER", "guest", "on", ">x", "~its", "+@all", "-ping")
    w.stack.callback(w.me, "ACL", "DELUSER", "guest")
    raw = w.connect()
    raw.pipeline(
        ("AUTH", "guest", "wrong"), ("AUTH", "guest", "x"), ("PING",), ("GET", "another"), ("PUBLISH", "a", "b")
    )


def keys(w: World) -> None:
    w.me("SET", "k", "v")
    w.me("GET", "k")
    w.me("GET", "none")


def key_expires(w: World) -> None:
    w.me("SET", "e", "v", "PX", 10)
    w.hand.advance(200)


def subscribes(w: World) -> None:
    raw = w.connect()
    raw("SUBSCRIBE", "c")
    raw("PSUBSCRIBE", "p*")


def watches(w: World) -> None:
    w.connect()("WATCH", "a", "b")


def blocks(w: World) -> None:
    w.connect().send("TREAD", "blocked", "", 1, "BLOCK", 60_000)


def half_a_command(w: World) -> None:
    w.connect().sock.sendall(pack("ECHO", "x" * 10_000)[:-5])


def reads_slowly(w: World) -> None:
    for _ in range(8):
        w.me("TMAPPEND", "large", "FIELDS", 1, "f", "VALUES", *[bytes(8000)] * 500)
    w.connect().send("TRANGE", "large", "-", "+")


def too_much_output(w: World) -> None:
    w.set("client-output-buffer-limit", "pubsub 1 0 0", "pubsub 32mb 8mb 60")
    raw = w.connect()
    raw("SUBSCRIBE", "c")
    w.hand.call(lambda: w.hand.server.pubsub.deliver(b"c", b"x" * 100))


def too_much_input(w: World) -> None:
    w.set("client-query-buffer-limit", "1mb", "1gb")
    w.connect().sock.sendall(b"*2\r\n$4\r\nECHO\r\n$%d\r\n" % (1 << 20))


def idles(w: World) -> None:
    w.connect()("PING")
    w.set("timeout", "1", "0")
    w.hand.advance(3000)


def too_many_clients(w: World) -> None:
    w.set("maxclients", "1", "10000")
    w.connect()


def two_days(w: World) -> None:
    clock = w.hand.server.clock
    assert isinstance(clock, HandClock)
    w.hand.call(lambda: clock.move(2 * 86_400_000))


def directives(w: World) -> None:
    for name, value, back in (
        ("hz", "20", "10"), ("maxmemory", "500gb", "0"), ("appendfsync", "no", "always"),
        ("repl-backlog-size", "1mb", "256mb"), ("node-cache-size", "1mb", "32mb"), ("min-replicas-to-write", "1", "0"),
    ):  # fmt: skip
        w.set(name, value, back)


def everysec(w: World) -> None:
    w.set("appendfsync", "everysec", "always")
    w.hand.call(lambda: setattr(w.hand.server.data.disk, "last_sync_us", 0))
    w.me("SET", "k", "v")
    w.hand.advance(1100)


def streams(w: World) -> None:
    w.me("TMAPPEND", f"s{time.monotonic_ns()}", "FIELDS", 1, "f", "VALUES", *[b"v" * 50] * 2000)


def groups(w: World) -> None:
    w.me("TMAPPEND", "g", "FIELDS", 1, "f", "VALUES", *"abcd")
    w.me("TREAD", "g", "0", 2, "GROUP", "expires", 0, "RETRY", 100, 200)
    w.me("TREAD", "g", "0", 2, "GROUP", "dead", 0, "RETRY", 100, 200, "DEADLETTER", "letters")
    w.me("TREAD", "g", "0", 2, "GROUP", "again", 0, "RETRY", 100, 0)
    w.me("TREAD", "g", "0", 2, "GROUP", "ends", 100)


def groups_end(w: World) -> None:
    groups(w)
    w.hand.advance(500)
    w.me("TREAD", "g", "0", 2, "GROUP", "again", 0, "RETRY", 100, 0)


def stages(w: World) -> None:
    w.me("TSTAGE", "kept", 0, "s", *ENTRY)
    w.me("TSTAGE", "published", 0, "s", *ENTRY)
    w.me("TPUBLISH", f"fence{time.monotonic_ns()}", 1, "published")


def stage_ends(w: World) -> None:
    w.me("TSTAGE", "short", 100, "s", *ENTRY)
    w.hand.advance(300)


def delays(w: World) -> None:
    w.me("TDELAY", "delayed", "IN", 1_000_000, "f", "v")


def delivers(w: World) -> None:
    w.me("TDELAY", "delayed", "IN", 100, "f", "v")
    w.hand.advance(300)


def reads_from_disk(w: World) -> None:
    values = [sha256(b"%d" % number).hexdigest() for number in range(2000)]  # whose nodes are not small in memory
    w.me("TMAPPEND", "cold", "FIELDS", 1, "f", "VALUES", *values)
    w.hand.advance(2000)
    w.me("SAVE")
    w.me("DEBUG", "RELOAD")
    for _ in range(2):
        w.me("TRANGE", "cold", "-", "+")


def held(w: World) -> None:
    """Let checkpoints wait in their thread until the end of the step."""
    go_on = threading.Event()
    disk = w.hand.server.data.disk
    checkpoint = disk.checkpoint

    def wait(capture: object, offset: int) -> None:
        go_on.wait(30)
        checkpoint(capture, offset)  # type: ignore[arg-type]

    def end() -> None:
        go_on.set()
        eventually(lambda: fields(w.me)["rdb_bgsave_in_progress"] == fields(w.me)["aof_rewrite_in_progress"] == "0")
        w.hand.advance(100)  # what was scheduled
        eventually(lambda: fields(w.me)["rdb_bgsave_in_progress"] == fields(w.me)["aof_rewrite_in_progress"] == "0")

    w.patch(disk, "checkpoint", wait)
    w.stack.callback(end)
    w.me("SET", "k", "v")


def saves(w: World) -> None:
    held(w)
    w.me("BGSAVE")
    w.me("BGREWRITEAOF")  # scheduled
    w.hand.advance(3000)


def rewrites(w: World) -> None:
    held(w)
    w.me("BGREWRITEAOF")
    w.hand.advance(3000)


def saved(w: World) -> None:
    held(w)
    w.me("BGSAVE")
    w.hand.advance(5000)
    w.stack.close()


def rewritten(w: World) -> None:
    held(w)
    w.me("BGREWRITEAOF")
    w.hand.advance(5000)
    w.stack.close()


def save_fails(w: World) -> None:
    w.patch(w.hand.server.data.disk, "checkpoint", refuse)
    w.me("BGSAVE")


def rewrite_fails(w: World) -> None:
    w.patch(w.hand.server.data.disk, "checkpoint", refuse)
    w.me("BGREWRITEAOF")


def more_keys(w: World) -> None:
    w.me("MSET", *[word for number in range(100) for word in (f"k{time.monotonic_ns()}{number}", "v")])
    w.me("DEBUG", "RELOAD")


def disk_fails(w: World) -> None:
    w.stack.callback(lambda: w.hand.advance(200))
    w.patch(w.hand.server.data.disk, "append", refuse)
    w.connect().send("SET", "k", "v")
    eventually(lambda: w.hand.call(lambda: w.hand.server.ticks.stalled))  # the replies of that tick wait, too


def loads(w: World) -> None:
    gates = w.hand.server.gates
    w.hand.call(lambda: gates.load(True))
    w.stack.callback(lambda: w.hand.call(lambda: gates.load(False)))


def is_followed(w: World) -> None:
    w.follow()
    w.me("SET", "k", "v")


def link_breaks(w: World) -> None:
    w.me("CLIENT", "KILL", "TYPE", "replica")


def histories_part(w: World) -> None:
    w.its("REPLICAOF", "NO", "ONE", "FORCE")
    w.its("SET", "own", "v")
    eventually(lambda: w.its("SAVE") == b"OK")  # its store includes the write, so it can't be deleted from the log
    w.follow()


def caches(w: World) -> None:
    for options in ([], ["BCAST", "PREFIX", "x"]):
        client = w.connect()
        client("CLIENT", "TRACKING", "ON", *options)
        client("GET", "k")


def fails_over(w: World) -> None:
    asleep = Raw(w.replica.port)
    w.stack.callback(lambda: w.me("FAILOVER", "ABORT"))
    asleep.send("DEBUG", "SLEEP", "1")
    w.stack.callback(asleep.close)
    assert w.me("SET", "k", str(time.monotonic_ns())) == b"OK"
    assert w.me("FAILOVER", "TIMEOUT", 60_000) == b"OK"


def begin_scrub(w: World) -> None:
    w.me("TAPPEND", "scrubbed", "f", "v")
    w.me("SAVE")
    w.set("scrub-rate", "20", "8388608")
    w.hand.call(lambda: w.hand.server.data.disk.scrub.begin(w.hand.server.clock.now()))
    w.hand.advance(1000)


def end_scrub(w: World) -> None:
    scrub = w.hand.server.data.disk.scrub
    w.hand.call(lambda: scrub.begin(w.hand.server.clock.now()))
    until = time.monotonic() + 20
    while scrub.running and time.monotonic() < until:
        w.hand.advance(1000)


def damage(w: World) -> None:
    """A node that only seems to be damaged: after the next checkpoint, it is read again."""
    w.me("DEL", "scrubbed")
    first_id = int(w.me("TAPPEND", "scrubbed", "f", "v").split(b".")[0]) << 64
    w.me("SAVE")
    sid = w.hand.call(lambda: w.hand.server.data.ks.keys[b"scrubbed"].sid)  # type: ignore[union-attr]
    w.hand.call(lambda: w.hand.server.data.disk.scrub.note(sid, 0, first_id, "it is not"))


def repair(w: World) -> None:
    damage(w)
    w.me("TAPPEND", "scrubbed", "f", "v")
    w.me("SAVE")
    w.hand.advance(1000)


def repair_nothing(w: World) -> None:
    """Damage that is not a node."""
    scrub = w.hand.server.data.disk.scrub
    w.hand.call(lambda: scrub._add(Damage(STREAMS, b"\xff", "it is not")))
    until = time.monotonic() + 20
    while fields(w.me)["scrub_irreparable"] == "0" and time.monotonic() < until:
        w.hand.advance(100)  # an earlier attempt may be in progress


def heal(w: World) -> None:
    """A node that is damaged on disk; the stream has it in memory."""
    w.me("DEL", "scrubbed")
    w.me("TAPPEND", "scrubbed", "f", "damage me")
    w.me("SAVE")
    data = Path(w.hand.server.config.dir) / "store" / "data.mdb"
    for found in re.finditer(b"damage me", data.read_bytes()):
        flip(data, found.start())
    end_scrub(w)


MOVES: list[tuple[Step, dict[str, Check]]] = [
    (begin_scrub, {"scrub_running": became("1"), "scrub_percent": grew, "scrub_rate": fell}),
    (end_scrub, {"scrub_passes": grew, "scrub_last_end_time": grew}),
    (damage, {"scrub_damaged": grew}),
    (repair, {"scrub_repaired": grew}),
    (heal, {"scrub_fetched": grew}),
    (repair_nothing, {"scrub_irreparable": grew}),
    (connects, {"connected_clients": grew, "total_connections_received": grew, "mem_clients_normal": grew}),
    (commands, {
        "total_commands_processed": grew, "total_net_input_bytes": grew, "total_net_output_bytes": grew,
        "total_reads_processed": grew, "total_writes_processed": grew, "cmdstat_*": changed,
        "latency_percentiles_usec_*": changed,
    }),
    (busy, {
        "instantaneous_ops_per_sec": grew, "instantaneous_input_kbps": grew, "instantaneous_output_kbps": grew,
    }),
    (caches, {
        "tracking_clients": grew, "tracking_total_keys": grew, "tracking_total_items": grew,
        "tracking_total_prefixes": grew,
    }),
    (errs, {"total_error_replies": grew, "errorstat_*": changed}),
    (denials, {f"acl_access_denied_{what}": grew for what in ("auth", "cmd", "key", "channel")}),
    (keys, {
        "keyspace_hits": grew, "keyspace_misses": grew, "db0": changed, "rdb_changes_since_last_save": grew,
        "log_offset": grew, "master_repl_offset": grew, "log_syncs": grew, "log_journal_offset": grew,
    }),
    (key_expires, {"expired_keys": grew}),
    (subscribes, {"pubsub_clients": grew, "pubsub_channels": grew, "pubsub_patterns": grew}),
    (watches, {"watching_clients": grew, "total_watched_keys": grew}),
    (blocks, {"blocked_clients": grew, "clients_in_timeout_table": grew, "total_blocking_keys": grew}),
    (half_a_command, {"client_recent_max_input_buffer": grew}),
    (reads_slowly, {"client_recent_max_output_buffer": grew, "log_journal_bytes": grew, "db0": changed}),
    (too_much_output, {"client_output_buffer_limit_disconnections": grew}),
    (too_much_input, {"client_query_buffer_limit_disconnections": grew}),
    (idles, {"client_idle_disconnections": grew}),
    (too_many_clients, {"maxclients": became("1"), "rejected_connections": grew}),
    (two_days, {
        "uptime_in_seconds": grew, "uptime_in_days": grew, "server_time_usec": grew, "lru_clock": changed,
    }),
    (directives, {
        "hz": became("20"), "configured_hz": became("20"), "maxmemory": grew, "maxmemory_human": became("500.00G"),
        "log_appendfsync": became("no"), "repl_backlog_size": became("1048576"),
        "node_cache_max_bytes": became("1048576"), "min_slaves_good_slaves": became("0"),
    }),
    (everysec, {"log_last_sync_us": is_positive}),
    (streams, {
        "streams": grew, "stream_entries": grew, "stream_entries_added": grew, "stream_nodes": grew,
        "stream_memory": grew, "log_tail_waiting_bytes": changed,
    }),
    (groups, {"groups": grew, "group_pending": grew}),
    (groups_end, {
        "groups_expired": grew, "group_expired": grew, "group_deadlettered": grew, "group_redelivered": grew,
    }),
    (stages, {"stages": grew, "stage_bytes": grew, "fences": grew}),
    (stage_ends, {"stages_expired": grew}),
    (delays, {"delayed_entries": grew}),
    (delivers, {"delayed_delivered": grew}),
    (reads_from_disk, {
        "node_cache_bytes": grew, "node_cache_hits": grew, "node_cache_misses": grew, "node_cache_hit_ratio": changed,
        "mem_node_cache": grew, "log_store_offset": grew, "log_store_bytes": grew, "rdb_last_save_time": grew,
        "log_journal_first_offset": grew,
    }),
    (saves, {
        "rdb_bgsave_in_progress": became("1"), "rdb_current_bgsave_time_sec": became("3"),
        "aof_rewrite_scheduled": became("1"),
    }),
    (saved, {"rdb_saves": grew, "rdb_last_bgsave_time_sec": became("5")}),
    (rewrites, {"aof_rewrite_in_progress": became("1"), "aof_current_rewrite_time_sec": became("3")}),
    (rewritten, {"aof_rewrites": grew, "aof_last_rewrite_time_sec": became("5")}),
    (save_fails, {"rdb_last_bgsave_status": became("err")}),
    (rewrite_fails, {"aof_last_bgrewrite_status": became("err")}),
    (more_keys, {"rdb_last_load_keys_loaded": grew}),
    (disk_fails, {"aof_last_write_status": became("err")}),
    (loads, {"loading": became("1")}),
    (is_followed, {
        "connected_slaves": became("1"), "slave0": changed, "sync_full": grew, "total_net_repl_output_bytes": grew,
        "mem_clients_slaves": grew, "repl_backlog_active": became("1"), "repl_backlog_histlen": grew,
    }),
    (link_breaks, {"sync_partial_ok": grew}),
    (histories_part, {"sync_partial_err": grew}),
    (fails_over, {"master_failover_state": became("waiting-for-sync")}),
]  # fmt: skip


# -- what is done to the replica, and seen there ------------------------------------------------------------------
def follows(w: World) -> None:
    w.follow()
    w.me("SET", "k", "v")


def loses_its_end(w: World) -> None:
    w.follow()
    w.its("REPLICAOF", "NO", "ONE", "FORCE")
    w.its("SET", f"own{time.monotonic_ns()}", "v")
    w.follow()


def its_directives(w: World) -> None:
    w.follow()
    for name, value, back in (("replica-priority", "7", "100"), ("replica-announced", "no", "yes")):
        assert w.its("CONFIG", "SET", name, value) == b"OK"
        w.stack.callback(w.its, "CONFIG", "SET", name, back)


def leads(w: World) -> None:
    w.follow()
    w.me("SET", "more", "v" * 1000)  # it begins further on than where it led before
    eventually(lambda: fields(w.its)["slave_repl_offset"] == fields(w.me)["master_repl_offset"])
    w.its("REPLICAOF", "NO", "ONE", "FORCE")


def loses_its_leader(w: World) -> None:
    w.follow()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    w.its("REPLICAOF", "127.0.0.1", port)


def copies(w: World) -> None:
    """Follow the server through a proxy that stops in the middle of the copy."""
    values = [os.urandom(400) for _ in range(2000)]
    w.me("CONFIG", "SET", "min-replicas-to-write", 0)  # no replica is connected now
    w.me("TAPPEND", f"common{time.monotonic_ns()}", "f", "v")
    w.follow()
    w.its("REPLICAOF", "NO", "ONE", "FORCE")
    w.its("SET", f"own{time.monotonic_ns()}", "v")  # a history of its own
    eventually(lambda: w.its("SAVE") == b"OK")  # which its store includes: it needs a copy, except for equal nodes
    assert len(w.me("TMAPPEND", f"random{time.monotonic_ns()}", "FIELDS", 1, "f", "VALUES", *values)) == 2
    eventually(lambda: w.me("SAVE") == b"OK")  # one of its own may be running; what the log has comes as one piece
    listener = w.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    listener.settimeout(10)
    w.stack.callback(w.its, "REPLICAOF", "NO", "ONE", "FORCE")
    w.its("REPLICAOF", "127.0.0.1", listener.getsockname()[1], "FORCE")
    near = w.stack.enter_context(listener.accept()[0])
    far = w.stack.enter_context(socket.create_connection(("127.0.0.1", w.hand.port)))
    for sock in (near, far):
        sock.settimeout(10)
    asked = b""
    while b"PSYNC" not in asked:
        asked = near.recv(1 << 16)
        far.sendall(asked)
        if b"PSYNC" not in asked:
            near.sendall(far.recv(1 << 16))
    passed = 0
    while passed < 600_000:  # of 800 KB or more; a piece may have 400 KB
        for sock in select.select([near, far], [], [], 10)[0]:
            data = sock.recv(10_000)
            (far if sock is near else near).sendall(data)
            passed += len(data) if sock is far else 0
    eventually(lambda: int(fields(w.its).get("master_sync_read_bytes", "0")) > 0)


ITS_MOVES: list[tuple[Step, dict[str, Check]]] = [
    (follows, {
        "role": became("slave"), "master_host": became("127.0.0.1"), "master_port": changed,
        "master_link_status": became("up"), "master_last_io_seconds_ago": changed, "slave_read_repl_offset": grew,
        "slave_repl_offset": grew, "total_net_repl_input_bytes": grew, "master_replid": changed,
    }),
    (loses_its_end, {"sync_truncated": grew}),
    (its_directives, {"slave_priority": became("7"), "replica_announced": became("0")}),
    (loses_its_leader, {"master_link_status": became("down"), "master_link_down_since_seconds": changed}),
    (copies, {
        "master_sync_in_progress": became("1"), "master_sync_total_bytes": grew,
        "master_sync_read_bytes": grew, "master_sync_left_bytes": grew, "master_sync_perc": grew,
        "master_sync_last_io_seconds_ago": changed, "master_sync_reused_bytes": grew,
    }),
    (leads, {
        "master_replid": changed, "master_replid2": changed, "second_repl_offset": grew,
    }),
]  # fmt: skip


# -- what is seen only in a process of its own --------------------------------------------------------------------
PROCESS_MOVES: dict[str, Check] = {
    "used_memory": grew, "used_memory_human": changed, "used_memory_rss": grew, "used_memory_rss_human": changed,
    "used_memory_peak": grew, "used_memory_peak_human": changed, "used_memory_peak_perc": changed,
    "used_memory_overhead": changed, "used_memory_dataset": grew, "used_memory_dataset_perc": changed,
    "mem_fragmentation_ratio": changed, "mem_fragmentation_bytes": changed, "used_cpu_user": grew,
    "used_cpu_sys": grew,
}  # fmt: skip

# -- what never moves: the value, and why -------------------------------------------------------------------------
CONSTANT: dict[str, tuple[str, str]] = {
    "redis_version": (r"\d+\.\d+\.\d+", "of this version"), "tidelog_version": (r"\d+\.\d+\.\d+", "of this version"),
    "tidelog_compiled": ("[01]", "of this installation"),
    "tidelog_resp_parser": ("compiled|hiredis", "of this installation"),
    "tidelog_coded_nodes": ("[01]", "of this installation"),
    "redis_git_sha1": ("0{8}", "not built from a checkout"),
    "redis_git_dirty": ("0", "the same"), "redis_build_id": ("0", "the same"),
    "redis_mode": ("standalone", "neither a cluster nor a Sentinel"), "os": (".+", "of this machine"),
    "arch_bits": ("64|32", "of this machine"), "multiplexing_api": ("asyncio", "the only one"),
    "python_version": (r"\d+\.\d+\.\d+.*", "of this installation"), "process_id": (r"\d+", "of this process"),
    "process_supervised": ("no", "set at the start"), "run_id": ("[0-9a-f]{40}", "of this start"),
    "tcp_port": (r"\d+", "set at the start"), "executable": (".+", "of this installation"),
    "config_file": (".*", "set at the start"), "io_threads_active": ("0", "there is one thread"),
    "cluster_connections": ("0", "no cluster"),
    "used_memory_startup": (r"\d+", "taken at the start"), "total_system_memory": (r"\d+", "of this machine"),
    "total_system_memory_human": (".+", "of this machine"), "used_memory_lua": ("0", "no scripts"),
    "used_memory_scripts": ("0", "no scripts"), "maxmemory_policy": ("noeviction", "nothing is evicted"),

    "mem_not_counted_for_evict": (r"\d+", "buffers of replicas, and the journal's queue"),
    "mem_allocator": ("python", "the only one"),
    "async_loading": ("0", "data is replaced in one step"),
    "rdb_last_load_keys_expired": ("0", "a load keeps keys whose time is over: they end later"),
    "aof_enabled": ("1", "every write is logged"), "log_tail_bytes": (r"\d+", "set at the start"),
    "evicted_keys": ("0", "nothing is evicted"), "evicted_clients": ("0", "clients are not closed for memory"),
    "pubsubshard_channels": ("0", "no cluster"), "latest_fork_usec": ("0", "nothing forks"),
    "total_forks": ("0", "nothing forks"), "migrate_cached_sockets": ("0", "no MIGRATE"),
    "cluster_enabled": ("0", "no cluster"), "cluster_unserved_keys": ("0", "no cluster: tests/replication"),
    "repl_backlog_first_byte_offset": (r"\d+", "moves when the journal is cut behind a backlog: tests/replication"),
    "used_cpu_sys_children": (r"0\.0+|.*", "the server starts no processes"),
    "used_cpu_user_children": (r"0\.0+|.*", "the server starts no processes"),
    "master_sync_refused": ("[01]", "1 while data is protected from an empty leader: tests/replication"),
    "slave_read_only": ("1", "there are no writable replicas"),
}  # fmt: skip


def moved(raw: Raw, step: Callable[[], object], moves: dict[str, Check]) -> dict[str, tuple[str | None, str | None]]:
    """Do the step, and wait for the moves. Returns what did not move, as (before, after)."""
    before = fields(raw)
    waiting = {_example(name): check for name, check in moves.items()}

    def all_moved() -> bool:
        now = fields(raw)
        for name in [name for name, check in waiting.items() if check(before.get(name, ""), now.get(name, ""))]:
            del waiting[name]
        return not waiting

    step()
    with contextlib.suppress(AssertionError):
        eventually(all_moved)
    return {name: (before.get(name), fields(raw).get(name)) for name in waiting}


def _example(name: str) -> str:
    return name.replace("*", "ERR" if name.startswith("errorstat") else "time")


@pytest.mark.interpreted
@pytest.mark.parametrize(("step", "moves"), MOVES, ids=[step.__name__ for step, _ in MOVES])
def test_a_field_moves(world: World, step: Step, moves: dict[str, Check]) -> None:
    with world.stack:
        assert moved(world.me, lambda: step(world), moves) == {}


@pytest.mark.parametrize(("step", "moves"), ITS_MOVES, ids=[step.__name__ for step, _ in ITS_MOVES])
def test_a_field_of_a_replica_moves(world: World, step: Step, moves: dict[str, Check]) -> None:
    world.its("REPLICAOF", "NO", "ONE", "FORCE")
    world.its("SET", "own", "v")
    world.its("REPLICAOF", "127.0.0.1", 1)
    world.its("REPLICAOF", "NO", "ONE", "FORCE")  # the history before is its own now, too
    with world.stack:
        assert moved(world.its, lambda: step(world), moves) == {}


@pytest.mark.slow
def test_a_field_of_the_process_moves() -> None:
    with running_server() as server, Raw(server.port) as raw, contextlib.ExitStack() as more:

        def fill() -> None:
            for number in range(16):
                raw("SET", number, bytes(4 << 20))
            raw("INFO", "memory")  # the peak
            raw("DEL", 15)
            assert more.enter_context(Raw(server.port))("PING") == b"PONG"

        assert moved(raw, fill, PROCESS_MOVES) == {}


def test_every_field_is_in_a_table(world: World) -> None:
    tables = [moves for _, moves in (*MOVES, *ITS_MOVES)] + [PROCESS_MOVES]
    moving = {name for table in tables for name in table}
    assert moving.isdisjoint(CONSTANT)
    with world.stack:
        errs(world)
        subscribes(world)
        world.set("min-replicas-to-write", "1", "0")
        world.follow()
        found = fields(world.me) | fields(world.its)
        loses_its_leader(world)
        found |= fields(world.its)
        copies(world)
        eventually(lambda: fields(world.its)["master_sync_in_progress"] == "1")
        found |= fields(world.its)
    for name, (value, why) in CONSTANT.items():
        assert re.fullmatch(value, found[name]), (name, found[name], why)
    patterns = [name.removesuffix("*") for name in moving if name.endswith("*")]
    known = moving | CONSTANT.keys()
    unknown = [name for name in found if name not in known and not name.startswith(tuple(patterns))]
    assert unknown == [], "say in a table what moves it, or why nothing does"
    gone = [name for name in known if name not in found and not name.endswith("*")]
    assert gone == [], "no longer in INFO"
