"""INFO replication: the lines that Sentinel and monitoring parse, for each state of a server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commands.admin.clientlist import client_line
from commands.session import LEADER, Session
from respserver.config.config import Config
from respserver.observe import info
from respserver.observe.clienttotals import ClientTotals
from respserver.observe.info import ServerStats
from respserver.observe.stats import Counters, ReplicaStats, RoleStats
from respserver.observe.streamtotals import StreamWalk
from storage.keyspace.keyspace import Keyspace
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool
from tests.commands.fakeserver import NOW, EmptyStore

END = 1000  # log offset
ID, PREVIOUS = "ab" * 20, "cd" * 20

Lines = Callable[..., list[str]]


@pytest.fixture
def config() -> Config:
    return Config.load(["--repl-backlog-size", "1mb", "--replica-priority", "7"])


@pytest.fixture
def lines(config: Config) -> Lines:
    """The lines of the section for a server with these RoleStats."""

    def lines(**facts: object) -> list[str]:
        stats = ServerStats(
            now=NOW, started=NOW, run_id="0" * 40, roles=RoleStats(id=ID, **facts),  # type: ignore[arg-type]
            config=config.value, keyspace=Keyspace(NodePool(EmptyStore(), NodeCache(1))), clients=ClientTotals(),
            counters=Counters(), walk=StreamWalk(), log_offset=END,
        )  # fmt: skip
        title, *rest, end = info.render(stats, ["replication"]).split("\r\n")
        assert (title, end) == ("# Replication", "")
        return rest

    return lines


def test_a_leader_without_replicas(lines: Lines) -> None:
    assert lines() == [
        "role:master", "connected_slaves:0", "master_failover_state:no-failover", f"master_replid:{ID}",
        f"master_replid2:{'0' * 40}", "master_repl_offset:1000", "second_repl_offset:-1", "repl_backlog_active:0",
        "repl_backlog_size:1048576", "repl_backlog_first_byte_offset:0", "repl_backlog_histlen:0",
    ]  # fmt: skip


def test_a_leader_with_replicas(lines: Lines, config: Config) -> None:
    replicas = [
        ReplicaStats("10.0.0.1", 6379, "online", 990, 1),
        ReplicaStats("::1", 7000, "send_bulk", 0, 0),
    ]
    config.min_replicas_to_write = 2
    assert lines(
        replicas=replicas, good_replicas=1, failover="waiting-for-sync", previous_id=PREVIOUS, previous_offset=400,
        backlog_active=True, backlog_first=300,
    ) == [
        "role:master", "connected_slaves:2", "min_slaves_good_slaves:1",
        "slave0:ip=10.0.0.1,port=6379,state=online,offset=990,lag=1",
        "slave1:ip=::1,port=7000,state=send_bulk,offset=0,lag=0",
        "master_failover_state:waiting-for-sync", f"master_replid:{ID}", f"master_replid2:{PREVIOUS}",
        "master_repl_offset:1000", "second_repl_offset:400", "repl_backlog_active:1", "repl_backlog_size:1048576",
        "repl_backlog_first_byte_offset:300", "repl_backlog_histlen:700",
    ]  # fmt: skip
    config.min_replicas_max_lag = 0
    assert not any("good_slaves" in line for line in lines(replicas=replicas))


REST = [
    "connected_slaves:0", "master_failover_state:no-failover", f"master_replid:{ID}", f"master_replid2:{'0' * 40}",
    "master_repl_offset:1000", "second_repl_offset:-1", "repl_backlog_active:0", "repl_backlog_size:1048576",
    "repl_backlog_first_byte_offset:0", "repl_backlog_histlen:0",
]  # fmt: skip
OFFSETS = ["slave_read_repl_offset:1000", "slave_repl_offset:1000"]


def test_a_connected_replica(lines: Lines) -> None:
    assert lines(leader=False, host="10.0.0.9", port=6379, state="connected", last_io=3) == [
        "role:slave", "master_host:10.0.0.9", "master_port:6379", "master_link_status:up",
        "master_last_io_seconds_ago:3", "master_sync_in_progress:0", "master_sync_refused:0",
        "master_sync_reused_bytes:0", *OFFSETS,
        "slave_priority:7", "slave_read_only:1", "replica_announced:1", *REST,
    ]  # fmt: skip


def test_a_replica_that_lost_its_leader(lines: Lines, config: Config) -> None:
    config.replica_announced = False
    assert lines(leader=False, host="h", port=1, state="connect", last_io=-1, down_since=12) == [
        "role:slave", "master_host:h", "master_port:1", "master_link_status:down",
        "master_last_io_seconds_ago:-1", "master_sync_in_progress:0", "master_sync_refused:0",
        "master_sync_reused_bytes:0", *OFFSETS, "master_link_down_since_seconds:12",
        "slave_priority:7", "slave_read_only:1", "replica_announced:0", *REST,
    ]  # fmt: skip


def test_a_replica_with_incomplete_data_that_refuses_a_copy(lines: Lines) -> None:
    shown = lines(leader=False, host="h", port=1, state="refused", refused=True, complete=False)
    assert {"master_link_status:down", "master_sync_refused:1", "slave_priority:0"} <= set(shown)


@pytest.mark.parametrize(
    ("total", "read", "reused", "left", "percent"),
    [(200, 50, 0, 150, "25.00"), (200, 50, 100, 50, "75.00"), (0, 0, 0, 0, "0.00"), (100, 120, 0, 0, "100.00")],
)
def test_a_replica_that_receives_a_full_copy(
    lines: Lines, total: int, read: int, reused: int, left: int, percent: str
) -> None:
    facts = {"sync_total": total, "sync_read": read, "sync_reused": reused, "sync_last_io": 0, "down_since": 4}
    assert lines(leader=False, host="h", port=1, state="sync", last_io=0, syncing=True, **facts) == [
        "role:slave", "master_host:h", "master_port:1", "master_link_status:down",
        "master_last_io_seconds_ago:0", "master_sync_in_progress:1", "master_sync_refused:0",
        f"master_sync_reused_bytes:{reused}", *OFFSETS,
        f"master_sync_total_bytes:{total}", f"master_sync_read_bytes:{read}", f"master_sync_left_bytes:{left}",
        f"master_sync_perc:{percent}", "master_sync_last_io_seconds_ago:0", "master_link_down_since_seconds:4",
        "slave_priority:7", "slave_read_only:1", "replica_announced:1", *REST,
    ]  # fmt: skip


def test_replicas_are_not_counted_as_clients(lines: Lines, config: Config) -> None:
    sessions = [Session(number, "127.0.0.1:5", "127.0.0.1:6379", NOW) for number in range(3)]
    sessions[1].replica, sessions[2].replica = object(), LEADER
    stats = ServerStats(
        now=NOW, started=NOW, run_id="0" * 40, roles=RoleStats(), config=config.value,
        keyspace=Keyspace(NodePool(EmptyStore(), NodeCache(1))), clients=ClientTotals().add(sessions),
        counters=Counters(), walk=StreamWalk(),
    )  # fmt: skip
    assert "connected_clients:1\r\n" in info.render(stats, ["clients"])
    memory = info.memory_stats(stats)
    assert memory["replicas"] == 2 * memory["clients"] > 0
    assert [client_line(one, NOW, []).split("flags=")[1].split(" ")[0] for one in sessions] == ["N", "S", "M"]
