"""What moves the fields of INFO of a server: each step, and the fields that then move."""

from __future__ import annotations

import re
import threading
import time
from hashlib import sha256
from pathlib import Path

from persistence.scrub import Damage
from persistence.storecopy import STREAMS
from respserver.testing import HandClock
from tests.persistence.test_scrub import flip
from tests.waiting import eventually
from tests.wire.faults import refuse
from tests.wire.infoworld import Check, Step, World, became, changed, fell, fields, grew, is_positive
from tests.wire.rawclient import Raw, pack

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
