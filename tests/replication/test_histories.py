"""Which replicas may go on without a copy: after restarts, when logs diverged, after a backup or a power cut."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from persistence import history
from tests.replication.cluster import Cluster, Node, assert_same, block_history, in_sync, wait_until


def test_nothing_is_copied_when_all_servers_restart(servers: Cluster) -> None:
    first, second = servers.pair()
    third = servers.node(of=second.port)
    first("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(500))
    assert_same(first, second, third)
    digest = first.digest()
    for node in (third, first, second):
        node.kill()
    for node in (second, third, first):
        node.start()
    assert_same(first, second, third)
    assert third.digest() == digest
    assert [node.syncs[0] for node in (first, second, third)] == [0, 0, 0]


def test_a_replica_that_is_restarted_as_leader_begins_a_new_history(servers: Cluster) -> None:
    leader, replica = servers.pair()
    other = servers.node(of=leader.port)
    assert_same(leader, replica, other)
    leader.kill()
    replica.stop()
    replica.config.pop("replicaof")
    replica.start()
    replica("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(50))
    other.follow(replica.port)
    assert_same(replica, other)
    leader.start()
    leader("SET", "a", "b")
    leader.follow(replica.port)
    assert_same(replica, leader, other)
    assert leader("EXISTS", "a") == 0


def test_a_replica_learns_the_previous_ids_of_its_leader(servers: Cluster) -> None:
    """Later, it leads servers that have more of these histories than it had itself."""
    first, second = servers.pair()
    third = servers.node(of=first.port)
    assert_same(first, second, third)
    third.kill()
    first("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(50))
    assert_same(first, second)
    first.kill()
    second.lead()
    second("SET", "k", "v")
    third.config["replicaof"] = f"127.0.0.1 {second.port}"
    third.start()
    assert_same(second, third)
    second.kill()
    third.lead()
    first.config["replicaof"] = f"127.0.0.1 {third.port}"
    first.start()
    assert_same(third, first)
    stats = first.info("stats")
    assert (stats["sync_truncated"], third.syncs[0]) == (0, 0), "the new leader has all of its records"


def test_a_log_that_went_on_differently_is_replaced(servers: Cluster) -> None:
    """A replica that led for a while, so its log went on differently."""
    leader, replica = servers.pair()
    leader("SET", "k", "v")
    assert_same(leader, replica)
    replica.stop()
    replica.config.pop("replicaof")
    replica.start()  # leads, by its configuration: other writes, under a name of its own or not
    replica("SET", "k", "x")
    leader("SET", "k", "y")
    replica.follow(leader.port)
    assert_same(leader, replica)
    assert replica("GET", "k") == b"y"


def test_logs_that_differ_before_their_last_batch(servers: Cluster) -> None:
    """They have the same ID and equal ends: a directory from a backup, or a replica that was started as leader."""
    leader, replica = servers.pair()
    assert_same(leader, replica)
    replica.stop()
    replica.config.pop("replicaof")
    replica.start()
    replica("SET", "k", "x")
    leader("SET", "k", "y")
    for node in (leader, replica):
        for _ in range(3):
            node("SET", "same", "everywhere")
    replica.follow(leader.port)
    assert_same(leader, replica)
    assert replica("GET", "k") == b"y"


# -- the leader comes back with an older state -------------------------------------------------------------------
def test_a_leader_from_a_backup(servers: Cluster) -> None:
    """Its log has the same ID and gets longer than the replica's, but the end of the replica's log differs."""
    leader, replica = servers.pair()
    leader("SET", "k", "v")
    assert_same(leader, replica)
    leader.stop()
    backup = leader.directory.with_name("backup")
    shutil.copytree(leader.directory, backup)
    leader.start()
    for number in range(20):
        leader("SET", "n", number)
    assert_same(leader, replica)
    replica.freeze()
    leader.kill()
    shutil.rmtree(leader.directory)
    backup.rename(leader.directory)
    leader.start()
    for number in range(40):
        leader("SET", "m", number)
    assert leader.offset > replica_offset_of(replica)
    replica.thaw()
    assert_same(leader, replica)
    assert leader.syncs == (1, 0)
    assert replica("EXISTS", "n") == 0


def replica_offset_of(replica: Node) -> int:
    replica.thaw()
    try:
        return replica.offset
    finally:
        replica.freeze()


def test_a_leader_from_a_backup_whose_log_has_the_same_end(servers: Cluster) -> None:
    """Its log went on from an older state, but its last batches are those that the replica has at the same offset."""
    leader, replica = servers.pair()
    leader.stop()
    backup = leader.directory.with_name("backup")
    shutil.copytree(leader.directory, backup)
    leader.start()
    wait_until(lambda: in_sync(leader, replica), "in sync")
    for node, value in ((replica, "y"), (leader, "x")):
        if node is leader:
            replica.freeze()
            leader.kill()
            shutil.rmtree(leader.directory)
            shutil.copytree(backup, leader.directory)
            leader.start()
        leader("SET", "k", value)
        for _ in range(3):
            leader("SET", "same", "everywhere")
        if node is replica:
            wait_until(lambda: in_sync(leader, replica), "in sync")
    replica.thaw()
    wait_until(lambda: leader.syncs != (0, 0), "it comes back")  # until then it looks as if it were in sync
    assert_same(leader, replica)
    assert replica("GET", "k") == b"x"


def boot_again(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Make a data directory look as if the machine had been started since."""
    with monkeypatch.context() as patch:
        patch.setattr(history, "boot_id", lambda: "00000000-another-boot")
        history.History.load(directory, "0" * 40).save(directory)


@pytest.mark.parametrize("lost", [False, True], ids=["nothing lost", "its end lost"])
def test_a_leader_whose_machine_went_down(servers: Cluster, monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    """It begins a new history. A replica that has more deletes the rest, and goes on like one that has not."""
    leader, replica = servers.pair()
    leader("SET", "k", "v")
    assert_same(leader, replica)
    leader.stop()
    backup = leader.directory.with_name("backup")
    shutil.copytree(leader.directory, backup)
    before = ""
    if lost:
        leader.start()
        leader("SET", "k", "w")
        assert_same(leader, replica)
        leader.kill()
    shutil.rmtree(leader.directory)
    backup.rename(leader.directory)
    boot_again(monkeypatch, leader.directory)
    before = history.History.load(leader.directory, "0" * 40).id
    leader.start()
    assert leader.info()["master_replid"] != before
    assert leader.info()["master_replid2"] == before
    assert_same(leader, replica)
    full, continued = leader.syncs
    assert full == 0 < continued
    assert replica.info("stats")["sync_truncated"] == int(lost)
    assert replica("GET", "k") == b"v"
    assert replica.info()["master_replid"] == leader.info()["master_replid"]


# -- the new ID ------------------------------------------------------------------------------------------------
def test_a_leaders_new_id_is_used_only_when_it_is_on_disk(servers: Cluster) -> None:
    """A replica takes its leader's new ID only when it is on disk."""
    leader, replica = servers.pair()
    last = servers.node(of=replica.port)
    assert_same(leader, replica, last)
    block_history(last, True)
    replica.lead()
    replica("SET", "k", "v")
    wait_until(lambda: last.logged("replication.new"), "it can't be written")
    time.sleep(0.5)
    assert not last.link_up
    block_history(last, False)
    assert_same(replica, last)
    found = history.History.load(last.directory, "0" * 40)
    assert found.id == replica.info()["master_replid"]
