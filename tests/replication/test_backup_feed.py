"""A continuous backup as the server sees it: it follows the log without being a replica."""

from __future__ import annotations

import time
from struct import Struct
from zlib import crc32

import pytest
import redis

from replication.frames import DONE, LOG, LOG_BODY, ReplicationFrame
from tests.replication.cluster import Cluster, Node, wait_until
from tests.replication.test_psync import OTHER_ID, Replica
from tests.replication.test_rdb_only import first_offset


class Backup(Replica):
    """The other end of the connection, by hand."""

    def begin(self, replid: str = "?", offset: int = -1, *history: int) -> bytes:
        assert self.ask("REPLCONF", "tidelog", 1, "rdb-only", 1, "capa", "continuous").startswith(b"+OK ")
        if history:
            assert self.ask("REPLCONF", "history", "{}:{}".format(*history)) == b"+OK"
        return self.ask("PSYNC", replid, offset).split()[0]

    def ack(self, offset: int) -> None:
        self.sock.sendall(b"REPLCONF ACK %d\r\n" % offset)

    def log(self, end: int) -> tuple[int, list[bytes], int]:
        """The log up to an offset: where it began, the commit groups, and the time of the last frame that has one."""
        first, groups, ms = -1, list[bytes](), 0
        while not ms or first + len(b"".join(groups)) < end:
            frame = self.frame(LOG)
            first = frame.offset if first < 0 else first
            assert frame.offset == first + len(b"".join(groups))
            ms, more = content(frame)
            groups += more
        return first, groups, ms


def content(frame: ReplicationFrame) -> tuple[int, list[bytes]]:
    ms, count = LOG_BODY.unpack_from(frame.payload)
    sizes = Struct(f">{count}I").unpack_from(frame.payload, LOG_BODY.size)
    at, groups = LOG_BODY.size + 4 * count, []
    for size in sizes:
        groups.append(frame.payload[at : at + size])
        at += size
    assert at == len(frame.payload)
    return ms, groups


def replid(node: Node) -> str:
    return str(node.info()["master_replid"])


def test_it_is_no_replica(servers: Cluster) -> None:
    leader = servers.node()
    leader("SET", "k", "v")
    with Backup(leader.port) as backup:
        assert backup.begin() == b"+FULLRESYNC"
        backup.frame(DONE)
        leader("SET", "k", "w")
        began = time.time()
        end = leader.offset
        _, groups, ms = backup.log(end)
        assert [b"v" in groups[0], b"w" in groups[1], len(groups)] == [True, True, 2]
        assert began - 1 < ms / 1000 < time.time() + 1
        backup.ack(end)
        assert leader("WAIT", 1, 100) == 0
        info = leader.info()
        assert (info["connected_slaves"], "slave0" in info) == (0, False)
        assert leader("ROLE")[2] == []
        with pytest.raises(redis.ResponseError, match="requires connected replicas"):
            leader("FAILOVER")
        leader("CONFIG", "SET", "min-replicas-to-write", 1)
        with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
            leader("SET", "k", "x")


def test_it_continues_where_its_log_ends(servers: Cluster) -> None:
    leader = servers.node()
    leader("SET", "k", "v")
    with Backup(leader.port) as backup:
        backup.begin()
        end = leader.offset
        _, groups, _ = backup.log(end)
    leader("SET", "k", "later")
    start, crc = end - len(groups[-1]), crc32(groups[-1])
    with Backup(leader.port) as backup:
        assert backup.begin(replid(leader), end, start, crc) == b"+CONTINUE"
        first, groups, _ = backup.log(leader.offset)
        assert (first, len(groups)) == (end, 1)
    for refused in ((OTHER_ID, end), (replid(leader), leader.offset + 1), (replid(leader), end, start, crc ^ 1)):
        with Backup(leader.port) as backup:
            assert backup.begin(*refused) == b"+FULLRESYNC"
    assert (leader.syncs, leader.info("stats")["sync_partial_err"]) == ((4, 1), 3)


def test_the_journal_is_retained_until_records_are_stored(servers: Cluster) -> None:
    leader = servers.node(repl_backlog_size="16kb")
    with Backup(leader.port) as backup:
        backup.begin()
        leader("SET", "k", "x" * 100_000)
        before = leader.offset
        leader("SET", "k", "y" * 100_000)
        backup.log(leader.offset)
        leader("SAVE")
        assert first_offset(leader) < 1000
        backup.ack(before)
        wait_until(lambda: leader("SAVE") and first_offset(leader) == before, "the journal is truncated")
        backup.ack(leader.offset + 1)
        wait_until(lambda: leader.logged("which is beyond what it was sent"), "a wrong acknowledgement ends the link")


def test_the_backlog_remains_after_it(servers: Cluster) -> None:
    """As after a replica: also after a restart of the server, which may be the reason for the end of the connection."""
    leader = servers.node()
    with Backup(leader.port) as backup:
        backup.begin()
        end = leader.offset
    wait_until(lambda: leader.logged("Connection with copying client"), "its end is noticed")
    leader("SET", "k", "v")
    leader("SAVE")
    assert first_offset(leader) <= end
    leader.stop()
    leader.start()
    leader("SET", "k", "w")
    leader("SAVE")
    assert first_offset(leader) <= end
    with Backup(leader.port) as backup:
        assert backup.begin(replid(leader), end) == b"+CONTINUE"


def test_only_confirmed_records_are_sent(servers: Cluster) -> None:
    """With replica-acks, a failover may lose the others, and the backup could not continue then."""
    leader, replica = servers.pair()
    leader("CONFIG", "SET", "replica-acks", 1)
    with Backup(leader.port) as backup, Backup(leader.port) as unconfirmed:
        backup.begin()
        leader("SET", "k", "v")
        end = leader.offset
        backup.log(end)
        replica.freeze()
        unconfirmed.sock.sendall(b"SET k unconfirmed\r\n")
        wait_until(lambda: leader.offset > end, "it is logged")
        for _ in range(2):
            frame = backup.frame(LOG)
            assert (frame.offset, content(frame)[1]) == (end, [])
        replica.thaw()
        assert backup.log(leader.offset)[0] == end
