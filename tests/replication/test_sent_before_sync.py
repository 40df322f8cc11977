"""With replica-acks, a batch is sent to replicas before the leader has synced it, and only once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.replication.cluster import Cluster, Node, assert_same, in_sync, wait_until
from tests.wire.rawclient import Raw

# A server whose syncs of its log wait while the file "wait" exists, and fail while "fail" exists.
SLOW = """
import errno, os, sys, time
from pathlib import Path

top, sync = Path(sys.argv.pop(1)), os.fdatasync

def slow(descriptor):
    (top / "syncs").touch()
    while (top / "wait").exists():
        time.sleep(0.002)
    if (top / "fail").exists():
        raise OSError(errno.EIO, "the test says so")
    sync(descriptor)

os.fdatasync = slow
from _tidelog_server import main
sys.exit(main())
"""


@pytest.fixture
def slow(servers: Cluster, tmp_path: Path) -> Node:
    """A leader in whose ``tmp_path`` the files are."""
    return servers.node(command=[sys.executable, "-P", "-c", SLOW, str(tmp_path)], appendfsync="always")


def following(slow: Node, servers: Cluster) -> Node:
    """A replica in sync, which the leader's replies wait for."""
    replica = servers.node(of=slow.port)
    wait_until(lambda: in_sync(slow, replica), "a first sync")
    slow("CONFIG", "SET", "replica-acks", 1)
    return replica


def test_the_replica_has_a_batch_while_its_leader_syncs_it(slow: Node, servers: Cluster, tmp_path: Path) -> None:
    replica = following(slow, servers)
    before = replica.offset
    with Raw(slow.port) as writer:
        (tmp_path / "syncs").unlink(missing_ok=True)
        (tmp_path / "wait").touch()
        writer.send("SET", "k", "v")
        wait_until((tmp_path / "syncs").exists, "the leader syncs")
        wait_until(lambda: replica.offset > before, "the replica has the batch")
        assert writer.nothing_yet()
        (tmp_path / "wait").unlink()
        assert writer.read() == b"OK"
    assert_same(slow, replica)


def test_a_batch_whose_sync_fails_is_sent_once(slow: Node, servers: Cluster, tmp_path: Path) -> None:
    replica = following(slow, servers)
    before, syncs = replica.offset, slow.syncs
    with Raw(slow.port) as writer:
        (tmp_path / "fail").touch()
        writer.send("SET", "k", "v")
        wait_until(lambda: replica.offset > before, "the replica has the batch")
        wait_until(lambda: slow.logged("can't be made durable"), "the leader noticed")
        assert writer.nothing_yet()
        (tmp_path / "fail").unlink()
        assert writer.read() == b"OK"
    assert slow("SET", "k", "w")
    assert_same(slow, replica)
    assert slow.syncs == syncs  # the replica did not have to connect again


def test_a_read_that_sees_a_batch_whose_sync_fails_waits(slow: Node, servers: Cluster, tmp_path: Path) -> None:
    following(slow, servers)
    slow("SET", "k", "old")
    with Raw(slow.port) as writer, Raw(slow.port) as reader, Raw(slow.port) as idle:
        (tmp_path / "fail").touch()
        writer.send("SET", "k", "new")
        wait_until(lambda: slow.logged("can't be made durable"), "the leader noticed")
        reader.send("GET", "k")
        for _ in range(20):
            assert idle("PING") == b"PONG"
        assert reader.nothing_yet()
        (tmp_path / "fail").unlink()
        assert writer.read() == b"OK"
        assert reader.read() == b"new"


def test_a_replica_that_reconnects_meanwhile_needs_no_copy(slow: Node, servers: Cluster, tmp_path: Path) -> None:
    proxy = servers.proxy(slow)
    replica = servers.node(of=proxy.port)
    wait_until(lambda: in_sync(slow, replica), "a first sync")
    slow("CONFIG", "SET", "replica-acks", 1)
    before, (copies, _) = replica.offset, slow.syncs
    with Raw(slow.port) as writer:
        (tmp_path / "fail").touch()
        writer.send("SET", "k", "v")
        wait_until(lambda: replica.offset > before, "the replica has the batch")
        wait_until(lambda: slow.logged("can't be made durable"), "the leader noticed")
        proxy.cut()
        wait_until(lambda: replica.logged("the replica will reconnect"), "the leader refused it for now")
        (tmp_path / "fail").unlink()
        assert writer.read() == b"OK"
    assert_same(slow, replica)
    assert slow.syncs[0] == copies


def test_without_replica_acks_it_is_sent_after_the_sync(slow: Node, servers: Cluster, tmp_path: Path) -> None:
    replica = servers.node(of=slow.port)
    wait_until(lambda: in_sync(slow, replica), "a first sync")
    before = replica.offset
    with Raw(slow.port) as writer:
        (tmp_path / "syncs").unlink(missing_ok=True)
        (tmp_path / "wait").touch()
        writer.send("SET", "k", "v")
        wait_until((tmp_path / "syncs").exists, "the leader syncs")
        for _ in range(20):
            assert replica.offset == before
        (tmp_path / "wait").unlink()
        assert writer.read() == b"OK"
    assert_same(slow, replica)
