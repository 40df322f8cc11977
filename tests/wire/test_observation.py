"""What clients are told about use, waits and memory: keyspace hits, pauses, checkpoints in INFO, CLIENT LIST."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from respserver.testing import RunningServer
from tests.waiting import eventually
from tests.wire.rawclient import Raw, pack
from tidelog.testing import running_server

Connect = Callable[..., Raw]


def info(raw: Raw, *names: str) -> list[int]:
    text = raw("INFO", "everything").decode()
    return [int(re.search(rf"^{name}:(-?\d+)", text, re.MULTILINE)[1]) for name in names]  # type: ignore[index]


def line(raw: Raw, client: Raw) -> dict[str, str]:
    """The line of ``client`` in CLIENT LIST, as ``raw`` sees it."""
    port = client.sock.getsockname()[1]
    rows = [dict(word.split("=", 1) for word in row.split(" ")) for row in raw("CLIENT", "LIST").decode().splitlines()]
    return next(row for row in rows if row["addr"].endswith(f":{port}"))


# -- hits and misses ----------------------------------------------------------------------------------------------
READS = (("TREAD", "s", "0", 10), ("TREAD", "none", "0", 10), ("TRANGE", "s", "-", "+"), ("TLEN", "none"))
WRITES = (
    ("TAPPEND", "s", "f", "v"), ("TAPPEND", "new", "f", "v"), ("TAPPEV", "s", "COUNT", 100), ("TACK", "s", "g", "1.0"),
    ("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", "v"), ("TTOUCH", "s", "g", 1, "1.0"), ("DEL", "nothing"),
)  # fmt: skip


@pytest.mark.parametrize("expiring", [False, True], ids=["no TTLs", "TTLs about"])
@pytest.mark.parametrize("batch", [1, 8], ids=["one by one", "pipelined"])
def test_only_reads_count_as_hits_and_misses_and_each_once(c: Raw, batch: int, expiring: bool) -> None:
    c("TAPPEND", "s", "f", "v")
    if expiring:
        c("SET", "t", "v", "EX", 1000)
    c("CONFIG", "RESETSTAT")
    for words in WRITES:
        c.pipeline(*[words] * batch)
    assert info(c, "keyspace_hits", "keyspace_misses") == [0, 0]
    for words in READS:
        c.pipeline(*[words] * batch)
    assert info(c, "keyspace_hits", "keyspace_misses") == [2 * batch, 2 * batch]
    c("TREAD", "s", "0", 10, "GROUP", "g", 0)
    c("TPENDING", "s", "g")
    assert info(c, "keyspace_hits", "keyspace_misses") == [2 * batch + 2, 2 * batch]


def test_a_blocked_read_counts_when_it_is_sent(c: Raw, connect: Connect) -> None:
    reader = connect()
    reader.send("TREAD", "s", "", 1, "BLOCK", 0)
    eventually(lambda: info(c, "blocked_clients") == [1])
    c("TAPPEND", "s", "f", "v")
    assert len(reader.read()) == 1
    assert info(c, "keyspace_hits", "keyspace_misses") == [0, 1]


def test_a_reload_keeps_the_counters(c: Raw) -> None:
    c("SET", "k", "v")
    c("GET", "k")
    c("GET", "none")
    assert c("DEBUG", "RELOAD") == b"OK"
    assert info(c, "keyspace_hits", "keyspace_misses") == [1, 1]


# -- pauses -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["WRITE", "ALL"])
def test_nothing_ends_by_time_while_writes_are_paused(hand: RunningServer, c: Raw, mode: str) -> None:
    c("SET", "k", "v", "PX", 50)
    c("TAPPEND", "s", "f", "v")
    c("TREAD", "s", "0", 1, "GROUP", "short", 50)
    c("TREAD", "s", "0", 1, "GROUP", "g", 0, "RETRY", 10, 60)
    c("TSTAGE", "stage", 50, "s", "FIELDS", 1, "f", "VALUES", "v")
    before = hand.call(lambda: hand.server.data.disk.offset)
    c("CLIENT", "PAUSE", 5000, mode)
    hand.advance(4900)
    if mode == "WRITE":
        assert c("GET", "k") is None
        assert c("RANDOMKEY") == b"s"
        assert (c("EXISTS", "k"), c("SCAN", 0)[1], c("DBSIZE")) == (0, [b"s"], 2)
        assert info(c, "expired_keys", "groups_expired", "stages_expired", "group_expired") == [0, 0, 0, 0]
    assert hand.call(lambda: hand.server.data.disk.offset) == before, "the log has not grown"
    hand.advance(300)
    assert info(c, "expired_keys", "groups_expired", "stages_expired", "group_expired") == [1, 1, 1, 1]
    assert c("DBSIZE") == 1


def test_messages_do_not_fall_due_while_writes_are_paused(hand: RunningServer, c: Raw, connect: Connect) -> None:
    c("TAPPEND", "s", "f", "v")
    assert len(c("TREAD", "s", "0", 1, "GROUP", "g", 0, "RETRY", 100, 0)) == 1
    reader = connect()
    reader.send("TREAD", "s", "0", 1, "BLOCK", 0, "GROUP", "g", 0, "RETRY", 100, 0)
    eventually(lambda: info(c, "blocked_clients") == [1])
    c("CLIENT", "PAUSE", 5000, "WRITE")
    hand.advance(1000)
    assert info(c, "group_redelivered", "blocked_clients") == [0, 1]
    c("CLIENT", "UNPAUSE")
    hand.advance(100)
    assert info(c, "group_redelivered") == [0], "nobody could acknowledge it meanwhile [73]"
    hand.advance(100)
    assert len(reader.read()) == 1
    assert info(c, "group_redelivered") == [1]


def test_a_watched_key_that_ends_in_a_pause_has_changed(hand: RunningServer, c: Raw) -> None:
    c("SET", "k", "v", "PX", 50)
    c("WATCH", "k")
    c("CLIENT", "PAUSE", 5000, "WRITE")
    hand.advance(1000)
    c("MULTI")
    c("PING")
    assert c("EXEC") is None
    assert info(c, "expired_keys") == [0]


def test_paused_and_blocked_clients_in_info(hand: RunningServer, c: Raw, connect: Connect) -> None:
    held, waits, patient = connect(), connect(), connect()
    waits.send("TREAD", "s", "", 1, "BLOCK", 60000)
    patient.send("TREAD", "s", "", 1, "BLOCK", 0)
    eventually(lambda: info(c, "blocked_clients", "clients_in_timeout_table") == [2, 1])
    c("CLIENT", "PAUSE", 5000, "WRITE")
    held.send("SET", "k", "v")
    eventually(lambda: info(c, "blocked_clients", "clients_in_timeout_table") == [3, 1])
    assert (line(c, held)["flags"], line(c, held)["cmd"]) == ("b", "set")
    c("CLIENT", "UNPAUSE")
    assert held.read() == b"OK"
    assert info(c, "blocked_clients") == [2]


# -- CLIENT LIST --------------------------------------------------------------------------------------------------
def test_the_buffers_of_clients(c: Raw, connect: Connect) -> None:
    idle, half, slow = connect(), connect(), connect()
    for each in (idle, half, slow):
        each("PING")  # it is accepted
    half.sock.sendall(pack("GET", "key")[:-7])
    eventually(lambda: line(c, half)["qbuf"] == str(len(pack("GET", "key")) - 7))
    own = line(c, c)
    assert own["qbuf"] == str(len(pack("CLIENT", "LIST")))
    assert own["argv-mem"] == str(len("CLIENTLIST"))
    assert int(own["tot-mem"]) == int(line(c, idle)["tot-mem"]) + int(own["qbuf"]) + int(own["argv-mem"])
    for _ in range(8):
        c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *[bytes(8000)] * 500)
    slow.send("TRANGE", "s", "-", "+")
    eventually(lambda: int(line(c, slow)["omem"]) > 100_000)
    found = line(c, slow)
    assert (found["oll"], found["events"]) == ("2", "w")
    assert int(found["tot-mem"]) >= int(found["omem"])
    assert (line(c, idle)["oll"], line(c, idle)["omem"], line(c, idle)["obl"]) == ("0", "0", "0")
    later = connect()
    later.pipeline(("PING",), ("PING",))
    later("CLIENT", "PAUSE", 0)
    later.sock.sendall(pack("ECHO", "x" * 1000) + pack("CLIENT", "INFO"))
    later.read()
    assert b" obl=1009 " in later.read(), "replies that wait for the end of the tick"


# -- LATENCY ------------------------------------------------------------------------------------------------------
GRAPH = [  # as redis-server 7.0 draws these samples
    "command - high 67 ms, low 20 ms (all time high 67 ms)", "-" * 80,
    " # ", " | ", " | ", "#|_", "   ", "210", "sss", "",
]  # fmt: skip


def test_a_graph_of_latencies(hand: RunningServer, c: Raw) -> None:
    latency = hand.server.timings.latency
    now = hand.server.clock.now() // 1000
    latency.threshold = 1
    assert c("LATENCY", "GRAPH", "command") == "ERR No samples available for event 'command'"
    for age, ms in ((2, 29), (1, 67), (0, 20)):
        latency.note("command", now - age, ms)
    assert c("LATENCY", "GRAPH", "command").decode().split("\n") == GRAPH
    for number in range(200):
        latency.note("command", now + number, 5)
    assert c("LATENCY", "LATEST") == [[b"command", now + 199, 5, 67]], "the worst is of a sample that is gone"
    graph = c("LATENCY", "GRAPH", "command").decode().split("\n")
    assert graph[0] == "command - high 5 ms, low 5 ms (all time high 67 ms)"
    assert [len(row) for row in graph if set(row) == {"_"}] == [80, 80]
    assert c("LATENCY", "RESET", "command") == 1
    assert c("LATENCY", "LATEST") == []


def test_the_percentiles_of_info(hand: RunningServer, c: Raw) -> None:
    assert c("CONFIG", "SET", "latency-tracking", "yes") == b"OK"
    assert c("CONFIG", "SET", "latency-tracking-info-percentiles", "0 99.5 1e2") == b"OK"
    c("PING")
    text = c("INFO", "latencystats").decode()
    assert re.search(r"latency_percentiles_usec_ping:p0=[\d.]+,p99.5=[\d.]+,p100=[\d.]+\r\n", text)


def test_debug_object(hand: RunningServer, c: Raw) -> None:
    c("SET", "k", "hello")
    c("TAPPEND", "s", "f", "v")
    hand.advance(3000)
    form = rb"Value at:0x[0-9a-f]+ refcount:1 encoding:(\w+) serializedlength:(\d+) lru:\d+ lru_seconds_idle:(\d+)"
    assert re.fullmatch(form, c("DEBUG", "OBJECT", "k")).groups() == (b"embstr", b"5", b"3")  # type: ignore[union-attr]
    assert re.fullmatch(form, c("DEBUG", "OBJECT", "s"))[1] == b"stream"  # type: ignore[index]
    assert c("DEBUG", "OBJECT", "none") == "ERR no such key"
    assert info(c, "keyspace_hits", "keyspace_misses") == [0, 0]


# -- pub/sub ------------------------------------------------------------------------------------------------------
def test_messages_are_not_mixed_with_the_reply_of_exec(connect: Connect) -> None:
    c = connect(3)
    c("SUBSCRIBE", "c")
    c.pipeline(("MULTI",), ("PUBLISH", "c", "m"), ("PING",))
    assert c("EXEC") == [1, b"PONG"]
    assert c.read() == [b"message", b"c", b"m"]


def test_messages_to_oneself_come_after_the_reply(connect: Connect) -> None:
    """As in Redis since 7.2."""
    c, other = connect(3), connect(3)
    for client in (c, other):
        client("SUBSCRIBE", "c")
        client("PSUBSCRIBE", "*")
        client("SSUBSCRIBE", "c")
    mine = [[b"message", b"c", b"m"], [b"pmessage", b"*", b"c", b"m"]]
    for _ in range(2):
        c.sock.sendall(pack("PUBLISH", "c", "m") + pack("GET", "k"))
        assert [c.read() for _ in range(4)] == [4, *mine, None]
    assert c("SPUBLISH", "c", "m") == 2
    assert c.read() == [b"smessage", b"c", b"m"]
    assert [other.read() for _ in range(5)] == [*mine, *mine, [b"smessage", b"c", b"m"]]
    assert c("GET", "k") is None


# -- checkpoints --------------------------------------------------------------------------------------------------
RUNNING = ("rdb_bgsave_in_progress", "aof_rewrite_in_progress", "aof_rewrite_scheduled")
DONE = ("rdb_saves", "aof_rewrites")


@pytest.mark.interpreted
def test_a_rewrite_is_no_bgsave(hand: RunningServer, c: Raw) -> None:
    go_on = threading.Event()
    disk = hand.server.data.disk
    checkpoint = disk.checkpoint

    def held(capture: object, offset: int) -> None:
        go_on.wait(10)
        checkpoint(capture, offset)  # type: ignore[arg-type]

    hand.call(lambda: setattr(disk, "checkpoint", held))
    assert c("BGREWRITEAOF") == b"Background append only file rewriting started"
    assert info(c, *RUNNING) == [0, 1, 0]
    assert c("BGREWRITEAOF") == "ERR Background append only file rewriting already in progress"
    assert c("BGSAVE").startswith("ERR Another child process is active (AOF?): can't BGSAVE right now.")
    go_on.set()
    eventually(lambda: info(c, *RUNNING, *DONE) == [0, 0, 0, 0, 1])
    go_on.clear()
    assert c("BGSAVE") == b"Background saving started"
    assert c("BGREWRITEAOF") == b"Background append only file rewriting scheduled"
    assert info(c, *RUNNING) == [1, 0, 1]
    go_on.set()
    eventually(lambda: info(c, *RUNNING, *DONE) == [0, 0, 1, 1, 1])
    hand.advance(100)
    eventually(lambda: info(c, *RUNNING, *DONE) == [0, 0, 0, 1, 2])


# -- secrets ------------------------------------------------------------------------------------------------------
SECRET_CALLS = """
AUTH {} | AUTH user {} | AUTH user {} more | AUHT {} | HELLO 3 AUTH user {} | HELLO AUTH user {} | HELLO 9 AUTH user {}
HELLO 3 SETNAME AUTH AUTH user {} | HELO 3 AUTH user {} | CONFIG SET requirepass {} hz | CONFIG SET hz requirepass {}
CONFIG SET requirepas {} | CONFIG SETT requirepass {} | CONFIG SET tls-key-file-pass {} nosuch x
CONFIG SET masterauth {} | CONFIG SET masteruser {} | CONFIG SET user {} | CONFIG SET masterauth {} masterauth x
ACL SETUSER al on >{} | ACL SETUSER al #{} | ACL SETUSR al >{} | ACL SETUSER al <{} | ACL DRYRUN default AUTH {}
COMMAND GETKEYS AUTH {}
"""


@pytest.mark.parametrize("multi", [False, True], ids=["alone", "in MULTI"])
def test_secrets_are_shown_nowhere(c: Raw, connect: Connect, hand: RunningServer, multi: bool) -> None:
    watcher, one = connect(), connect()
    c("CONFIG", "SET", "slowlog-log-slower-than", 0, "slowlog-max-len", 1000)
    watcher("MONITOR")
    calls = [call.strip().split(" ") for line in SECRET_CALLS.strip().splitlines() for call in line.split("|")]
    for number, call in enumerate(calls):
        words = tuple(word.replace("{}", f"s3cret{number}") for word in call)
        if multi:
            one.pipeline(("MULTI",), words, ("EXEC",))
        else:
            one(*words)
    c("ECHO", "the end")
    told = [repr(c("SLOWLOG", "GET", -1)), repr(c("ACL", "LOG", -1)), repr(c("CLIENT", "LIST"))]
    told += [repr(c("INFO", "everything")), repr(c("LATENCY", "HISTOGRAM")), repr(c("ACL", "LIST"))]
    lines = []
    while b"the end" not in (line := watcher.read()):
        lines.append(line)
    assert re.findall(r"s3cret\d+", repr(told) + repr(lines)) == []
    assert "(redacted)" in told[0]
    assert "(redacted)" in repr(lines)


def test_secrets_of_renamed_commands(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_text("rename-command CONFIG cfg\nrename-command AUTH enter\n")
    program = [str(Path(sys.executable).with_name("tidelog-server")), str(tmp_path / "a.conf")]
    with running_server(command=program, slowlog_log_slower_than=0) as server, Raw(server.port) as c:
        assert c("cfg", "SET", "masteruser", "s3cret") == b"OK"
        assert c("cfg", "SET", "masterauth", "s3cret", "hz", "x").startswith("ERR")
        assert c("enter", "s3cret").startswith("ERR")
        assert c("CONFIG", "SET", "masteruser", "s3cret").startswith("ERR unknown command")
        assert repr(c("SLOWLOG", "GET", -1)).count("(redacted)") >= 4
        assert "s3cret" not in repr(c("SLOWLOG", "GET", -1))
