"""What the server says about itself: INFO, SLOWLOG, LATENCY, MONITOR, CLIENT on blocked clients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from respserver.testing import RunningServer
from tests.waiting import eventually
from tests.wire.rawclient import Raw

Connect = Callable[..., Raw]


def info(raw: Raw, *sections: str) -> dict[str, str]:
    lines = raw("INFO", *sections).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if line and not line.startswith("#"))


def test_info_over_the_wire_is_what_redis_py_parses(hand: RunningServer) -> None:
    with redis.Redis(port=hand.port) as client:
        client.config_resetstat()  # commands' stats are the process's: other tests in it have called commands
        client.execute_command("TAPPEND", "s", "f", "v")
        found = client.info("everything")
    assert found["redis_version"] == "8.4.0"
    assert found["db0"] == {"keys": 1, "expires": 0, "avg_ttl": 0, "subexpiry": 0}
    assert found["cmdstat_tappend"]["calls"] == 1
    assert (found["streams"], found["stream_entries"], found["role"]) == (1, 1, "master")
    assert found["uptime_in_seconds"] == 0


def test_info_counts_clients(c: Raw, connect: Connect) -> None:
    assert info(c, "clients")["connected_clients"] == "1"
    reader, listener = connect(), connect()
    reader.send("TREAD", "s", "", 1, "BLOCK", 0)
    listener("SUBSCRIBE", "x")
    eventually(lambda: info(c)["blocked_clients"] == "1")
    found = info(c, "clients")
    assert (found["connected_clients"], found["pubsub_clients"], found["total_blocking_keys"]) == ("3", "1", "1")
    line = c("CLIENT", "LIST").decode().splitlines()[1]
    assert " flags=b " in line
    assert " cmd=tread " in line
    c("TAPPEND", "s", "a", "b")
    assert reader.read()
    assert info(c)["blocked_clients"] == "0"
    listener.close()
    eventually(lambda: info(c)["connected_clients"] == "2")


def test_command_and_error_statistics(c: Raw) -> None:
    c("CONFIG", "RESETSTAT")
    c("SET", "k", "v")
    c("INCR", "k")  # runs and fails
    c("GET")  # refused
    c("TLEN", "k")
    c("NOSUCH")
    for words in (["MULTI"], ["TLEN", "none"], ["EXEC"], ["CLIENT", "ID", "x"], ["CLIENT", "SETNAME", "a b"]):
        c(*words)
    found = info(c, "commandstats", "errorstats", "stats")
    assert found["cmdstat_tlen"].endswith("rejected_calls=0,failed_calls=1")
    assert found["cmdstat_tlen"].startswith("calls=2,")
    assert found["cmdstat_client|id"] == "calls=0,usec=0,usec_per_call=0.00,rejected_calls=1,failed_calls=0"
    assert found["cmdstat_client|setname"].startswith("calls=1,")
    assert "cmdstat_client" not in found
    assert "calls=1,usec=" in found["cmdstat_incr"]
    assert found["cmdstat_incr"].endswith("rejected_calls=0,failed_calls=1")
    assert found["cmdstat_get"].startswith("calls=0,")
    assert found["cmdstat_get"].endswith("rejected_calls=1,failed_calls=0")
    assert found["errorstat_WRONGTYPE"] == "count=1"
    assert found["errorstat_ERR"] == "count=5"
    assert found["total_error_replies"] == "6"
    c("CONFIG", "RESETSTAT")
    assert "cmdstat_incr" not in info(c, "commandstats")


def test_slowlog_fills_and_hides_passwords(c: Raw, connect: Connect) -> None:
    c("CLIENT", "SETNAME", "me")
    assert c("CONFIG", "SET", "slowlog-log-slower-than", 0) == b"OK"
    c("AUTH", "default", "secret")
    c("ECHO", "x" * 500)
    assert c("CONFIG", "SET", "slowlog-log-slower-than", -1) == b"OK"
    entries = c("SLOWLOG", "GET", -1)
    words = [entry[3] for entry in entries]
    assert [b"ECHO", b"x" * 128 + b"... (372 more bytes)"] in words
    assert [b"AUTH", b"(redacted)", b"(redacted)"] in words
    assert all(entry[5] == b"me" for entry in entries)
    assert c("SLOWLOG", "LEN") == len(entries)


@pytest.mark.parametrize(
    ("how", "answer"), [("TIMEOUT", None), ("ERROR", "UNBLOCKED client unblocked via CLIENT UNBLOCK")]
)
def test_unblock(c: Raw, connect: Connect, how: str, answer: str | None) -> None:
    reader = connect()
    number = reader("CLIENT", "ID")
    assert c("CLIENT", "UNBLOCK", number, how) == 0
    reader.send("TREAD", "s", "", 1, "BLOCK", 0)
    eventually(lambda: info(c)["blocked_clients"] == "1")
    assert c("CLIENT", "UNBLOCK", number, how) == 1
    assert reader.read() == answer
    assert reader("PING") == b"PONG"


def test_kill_a_blocked_client(c: Raw, connect: Connect) -> None:
    reader = connect()
    number = reader("CLIENT", "ID")
    reader.send("TREAD", "s", "", 1, "BLOCK", 0)
    eventually(lambda: info(c)["blocked_clients"] == "1")
    assert c("CLIENT", "KILL", "ID", number) == 1
    with pytest.raises((EOFError, ConnectionError)):
        reader.read()
    found = info(c)
    assert (found["blocked_clients"], found["connected_clients"]) == ("0", "1")


def test_kill_by_age(c: Raw, connect: Connect, hand: RunningServer) -> None:
    assert c("PING") == b"PONG"  # the server knows the client before time passes
    hand.advance(5000)
    young = connect()
    assert young("CLIENT", "KILL", "MAXAGE", 5) == 1
    with pytest.raises((EOFError, ConnectionError)):
        c("PING")
    assert young("PING") == b"PONG"


def test_library_name_as_redis_py_sets_it(c: Raw, hand: RunningServer) -> None:
    with redis.Redis(port=hand.port, client_name="app") as client:
        client.ping()
        line = [row for row in c("CLIENT", "LIST").decode().splitlines() if " name=app " in row]
    assert len(line) == 1
    assert " lib-name=redis-py" in line[0]
    assert f" lib-ver={redis.__version__}" in line[0]


def test_a_monitor_that_left_costs_nothing(c: Raw, connect: Connect) -> None:
    watcher = connect()
    watcher("MONITOR")
    c("PING", "seen")
    assert watcher.read().endswith(b'"PING" "seen"')
    watcher("RESET")
    c("PING", "unseen")
    assert watcher("PING", "next") == b"next"
