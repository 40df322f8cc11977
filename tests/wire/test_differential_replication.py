"""Replication's commands beside a real redis-server: a leader without replicas answers them alike."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wire.rawclient import Raw

SCRIPT = [
    "ROLE x", "WAIT", "WAIT 0", "WAIT 0 0", "WAIT -1 0", "WAIT x 0", "WAIT 0 x", "WAIT 0 -1", "WAIT 1 10", "WAIT 1 1.5",
    "MULTI", "WAIT 1 0", "EXEC",
    "REPLICAOF", "REPLICAOF h", "REPLICAOF h 1 2", "REPLICAOF h x", "REPLICAOF h -1", "REPLICAOF h 65536",
    "REPLICAOF no one", "replicaof NO ONE", "SLAVEOF no ONE", "SLAVEOF h 65536", "MULTI", "SLAVEOF no one", "EXEC",
    "FAILOVER", "FAILOVER NOW", "FAILOVER ABORT", "FAILOVER ABORT FORCE", "FAILOVER TO h 1", "FAILOVER TO h",
    "FAILOVER TO h x", "FAILOVER TIMEOUT", "FAILOVER TIMEOUT x", "FAILOVER TIMEOUT 0", "FAILOVER TIMEOUT 5 TIMEOUT 5",
    "REPLCONF a", "REPLCONF no-such-option 1", "REPLCONF listening-port x", "REPLCONF listening-port 7000",
    "PSYNC a", "MULTI", "PSYNC ? -1", "SYNC", "EXEC",
    "CLIENT LIST TYPE replica", "CLIENT LIST TYPE master", "CLIENT KILL TYPE slave",
    "CONFIG GET slaveof", "CONFIG GET replicaof", "CONFIG SET replicaof no", "CONFIG SET replica-priority 5",
    "CONFIG GET slave-priority", "CONFIG SET replica-priority 100", "CONFIG SET repl-timeout 0",
    "CONFIG SET min-slaves-to-write 1", "SET k v", "MULTI", "SET k v", "EXEC", "PING", "GET k",
    "CONFIG SET min-slaves-max-lag 0", "SET k v", "CONFIG SET min-slaves-max-lag 10 min-replicas-to-write 0",
    "SET k v",
]  # fmt: skip


def test_same_answers(server: Any, redis_server: Any) -> None:
    with Raw(server.port) as ours, Raw(redis_server.port) as theirs:
        for line in SCRIPT:
            words = line.split(" ")
            assert ours(*words) == theirs(*words), line


def role(raw: Raw) -> list[Any]:
    answer = raw("ROLE")
    return [type(part) if isinstance(part, int) else part for part in answer]


def fields(raw: Raw) -> list[str]:
    return [line.split(":")[0] for line in raw("INFO", "replication").decode().split("\r\n")]


@pytest.mark.parametrize("least", ["0", "1"])
def test_same_facts(server: Any, redis_server: Any, least: str) -> None:
    with Raw(server.port) as ours, Raw(redis_server.port) as theirs:
        assert role(ours) == role(theirs) == [b"master", int, []]
        for raw in (ours, theirs):
            assert raw("CONFIG", "SET", "min-replicas-to-write", least) == b"OK"
        try:
            assert fields(ours) == fields(theirs)
        finally:
            theirs("CONFIG", "SET", "min-replicas-to-write", "0")


def test_same_facts_of_a_replica_that_finds_no_leader(server: Any, redis_server: Any) -> None:
    with Raw(server.port) as ours, Raw(redis_server.port) as theirs:
        try:
            for raw in (ours, theirs):
                assert raw("REPLICAOF", "127.0.0.1", "1") == b"OK"
                assert raw("REPLICAOF", "127.0.0.1", "1") == b"OK Already connected to specified master"
                assert raw("SET", "k", "v") == "READONLY You can't write against a read only replica."
                assert raw("CONFIG", "GET", "replicaof") == [b"replicaof", b"127.0.0.1 1"]
                assert raw("WAIT", 0, 0).startswith("ERR WAIT cannot be used with replica instances")
                assert raw("FAILOVER") == "ERR FAILOVER is not valid when server is a replica."
                assert raw("CONFIG", "SET", "replica-serve-stale-data", "no") == b"OK"
                assert raw("GET", "k").startswith("MASTERDOWN Link with MASTER is down")
                assert raw("CONFIG", "SET", "replica-serve-stale-data", "yes") == b"OK"
            own = {"master_sync_refused", "master_sync_reused_bytes"}
            assert [name for name in fields(ours) if name not in own] == fields(theirs)
            assert [type(part) for part in ours("ROLE")] == [type(part) for part in theirs("ROLE")]
            assert ours("ROLE")[:3] == theirs("ROLE")[:3] == [b"slave", b"127.0.0.1", 1]
            assert ours("ROLE")[3] in (b"connect", b"connecting")
        finally:
            theirs("REPLICAOF", "NO", "ONE")


QUEUED = ["GET k", "SET k w", "GET k;SET k w", "PING;GET k;GET none", "PUBLISH c m", "DEL none"]


@pytest.mark.parametrize("queued", QUEUED)
def test_transactions_of_before_a_change_of_role(server: Any, redis_server: Any, queued: str) -> None:
    """Point [38]: what was queued on a leader is executed on a replica, unless it writes; and the other way round."""
    said = []
    for port in (server.port, redis_server.port):
        with Raw(port) as raw, Raw(port) as admin:
            answers = [admin("SET", "k", "v")]
            try:
                for change in (("REPLICAOF", "127.0.0.1", 1), ("REPLICAOF", "NO", "ONE")):
                    answers.append(raw("MULTI"))
                    answers += [raw(*line.split()) for line in queued.split(";")]
                    answers.append(admin(*change))
                    answers += [raw("EXEC"), raw("GET", "k")]
            finally:
                admin("REPLICAOF", "NO", "ONE")
        said.append(answers)
    assert said[0] == said[1]
