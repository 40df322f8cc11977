"""What the journal keeps for replicas that are away, even across restarts of the leader, and for how long."""

from __future__ import annotations

from tests.replication.cluster import Cluster, Node, in_sync, wait_until


def backlog(node: Node) -> tuple[int, int]:
    """Whether a backlog is kept, and the log offset at which it begins."""
    facts = node.info()
    return int(facts["repl_backlog_active"]), int(facts["repl_backlog_first_byte_offset"])


def fill(node: Node, megabytes: int) -> None:
    for _ in range(megabytes * 10):
        node("TAPPEND", "s", "pad", "x" * 100_000)


def test_a_leader_that_restarts_keeps_what_its_replica_lacks(servers: Cluster) -> None:
    """Even if it takes a checkpoint right after the start."""
    leader, replica = servers.pair(repl_timeout=60)
    replica.freeze()
    fill(leader, 12)  # more than sockets hold
    leader.kill()
    leader.start()
    leader("SAVE")
    replica.thaw()
    wait_until(lambda: leader.syncs != (0, 0) and in_sync(leader, replica), "in sync")
    assert leader.syncs == (0, 1)


def test_a_server_without_replicas_keeps_nothing(servers: Cluster) -> None:
    leader = servers.node()
    fill(leader, 1)
    leader("SAVE")
    assert backlog(leader)[0] == 0
    assert int(leader.info("persistence")["log_journal_first_offset"]) == leader.offset


def test_a_backlog_that_nobody_asks_for_is_dropped(servers: Cluster) -> None:
    """After repl-backlog-ttl, without waiting for a checkpoint. The next start does not keep it, either."""
    leader, replica = servers.pair(repl_backlog_ttl=1)
    fill(leader, 1)
    leader("SAVE")
    assert backlog(leader) == (1, 0)
    replica.kill()
    wait_until(lambda: int(leader.info("persistence")["log_journal_first_offset"]) == leader.offset, "it is let go")
    assert backlog(leader)[0] == 0
    leader.restart()
    assert backlog(leader)[0] == 0


def test_what_is_kept_for_those_away_is_bounded(servers: Cluster) -> None:
    leader, replica = servers.pair(repl_backlog_size="500kb")
    replica.kill()
    wait_until(lambda: leader.info()["connected_slaves"] == 0, "it is away")
    fill(leader, 2)
    leader("SAVE")
    active, first = backlog(leader)
    assert active == 1
    assert leader.offset - 700_000 < first <= leader.offset - 500 * 1024
