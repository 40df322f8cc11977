"""A client that says REPLCONF rdb-only, as a backup does: it gets a full copy and the log, and is no replica."""

from __future__ import annotations

import pytest
import redis

from replication.frames import BATCH, COPY, DONE
from tests.replication.cluster import Cluster, Node, wait_until
from tests.replication.test_psync import Replica


class Taker(Replica):
    """Asks for a copy. Acknowledges what it likes."""

    def begin(self, replid: str = "?", offset: int = -1) -> None:
        assert self.ask("REPLCONF", "tidelog", 1, "rdb-only", 1, "listening-port", 1).startswith(b"+OK ")
        assert self.ask("PSYNC", replid, offset).startswith(b"+FULLRESYNC ")
        self.frame(COPY)


def first_offset(node: Node) -> int:
    return int(node.info("persistence")["log_journal_first_offset"])


def test_it_is_no_replica(servers: Cluster) -> None:
    leader = servers.node()
    leader("SET", "k", "v")
    with Taker(leader.port) as taker:
        taker.begin()
        taker.frame(DONE)
        taker.frame(BATCH)
        taker.sock.sendall(b"REPLCONF ACK %d\r\n" % leader.offset)
        leader("SET", "k", "w")
        taker.frame(BATCH)
        taker.sock.sendall(b"REPLCONF ACK %d FACK %d\r\n" % (leader.offset, leader.offset))
        assert leader("WAIT", 1, 100) == 0
        facts = leader.info()
        assert (facts["connected_slaves"], facts["repl_backlog_active"], "slave0" in facts) == (0, 0, False)
        assert leader("ROLE")[2] == []
        with pytest.raises(redis.ResponseError, match="requires connected replicas"):
            leader("FAILOVER")
        leader("CONFIG", "SET", "min-replicas-to-write", 1)
        with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
            leader("SET", "k", "x")
        assert not (leader.directory / "replicas").exists()
    leader("CONFIG", "SET", "min-replicas-to-write", 0)
    wait_until(lambda: leader.logged("Connection with copying client"), "its end is logged")
    leader("SET", "k", "x")


def test_a_failover_goes_to_the_replica_beside_it(servers: Cluster) -> None:
    leader, replica = servers.pair()
    with Taker(leader.port) as taker:
        taker.begin()
        taker.frame(DONE)
        taker.sock.sendall(b"REPLCONF ACK %d\r\n" % leader.offset)
        leader("FAILOVER")
        wait_until(lambda: replica.role == "master", "the replica leads")


def test_it_gets_a_full_copy_even_where_it_could_go_on(servers: Cluster) -> None:
    leader, _ = servers.pair()
    with Taker(leader.port) as taker:
        taker.begin(str(leader.info()["master_replid"]), leader.offset)


def test_the_journal_is_kept_for_it_and_no_longer(servers: Cluster) -> None:
    leader = servers.node()
    leader("SET", "k", "v")
    with Taker(leader.port) as taker:
        taker.begin()
    wait_until(lambda: leader.logged("Connection with copying client"), "its end is logged")
    leader("SET", "k", "w")
    leader("SAVE")
    assert first_offset(leader) == leader.offset


def test_one_that_says_nothing_is_cut_and_the_journal_let_go(servers: Cluster) -> None:
    leader = servers.node(repl_timeout=1)
    for _ in range(120):  # more than sockets hold
        leader("TAPPEND", "s", "pad", "x" * 100_000)
    with Taker(leader.port) as taker:
        taker.begin()
        leader("SAVE")
        assert first_offset(leader) < leader.offset
        wait_until(lambda: leader.logged("it sent nothing for"), "it is cut")
        leader("SET", "k", "v")
        leader("SAVE")
        assert first_offset(leader) == leader.offset
