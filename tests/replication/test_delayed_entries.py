"""Delayed entries: replicas, copies, promotions, kills, backups, and damage neither lose nor repeat one."""

from __future__ import annotations

import time
from pathlib import Path

from tests.persistence.test_scrub import noise
from tests.replication.cluster import Cluster, Node, assert_same, cluster, in_sync, wait_until
from tests.replication.test_delta_copies import copied
from tests.replication.test_repair import SMALL, damage_stopped
from tests.tidelog.backup.kit import restored, tidelog, url
from tests.wire.rawclient import Raw

HOUR = 3_600_000


def delay(node: Node, numbers: range, ms: int, step: int = 0, key: str = "s") -> None:
    """Delay an entry for each number, in one round trip."""
    pipe = node.redis.pipeline(transaction=False)
    for number in numbers:
        pipe.execute_command("TDELAY", key, "IN", ms + number * step, "ID", f"t{number}", "n", number)
    pipe.execute()


def numbers(node: Node, key: str = "s") -> list[int]:
    return sorted(int(entry[2]) for entry in node("TRANGE", key, "-", "+"))


def test_a_replica_delivers_nothing_until_it_is_promoted() -> None:
    with cluster() as made:
        leader, replica = made.pair()
        delay(leader, range(300), 1, 1)
        delay(leader, range(1000, 1100), HOUR)
        wait_until(lambda: leader("TLEN", "s") == 300, "all deliveries")
        assert_same(leader, replica)
        assert (replica("TDELAY", "s", "COUNT"), numbers(replica)) == (100, list(range(300)))
        assert replica("TDELAY", "s", "LIST")[1] == leader("TDELAY", "s", "LIST")[1]
        assert replica.say("TDELAY", "s", "CANCEL", "t1000").startswith("READONLY ")
        delay(leader, range(2000, 2100), 2000)
        wait_until(lambda: in_sync(leader, replica), "the replica")
        leader.kill()
        before = replica.offset
        wait_until(lambda: replica("TDELAY", "s", "LIST", "COUNT", 1)[1][0][1] < time.time() * 1000, "they are due")
        assert (replica.offset, replica("TLEN", "s")) == (before, 300)
        replica.lead()
        wait_until(lambda: replica("TLEN", "s") == 400, "deliveries of the new leader")
        delay(replica, range(1000, 1100), 1)  # still delayed
        delay(replica, range(2000, 2100), 1)  # delivered by the new leader
        delay(replica, range(250, 300), 1)  # delivered by the old one
        assert replica("TDELAY", "s", "COUNT") == 100


def test_full_and_delta_copies_include_delayed_entries(servers: Cluster) -> None:
    leader = servers.node(stream_node_max_entries=16)
    delay(leader, range(3000), HOUR, 1)
    for number in range(0, 3000, 3):
        leader("TDELAY", "s", "CANCEL", f"t{number}")
    delay(leader, range(9000, 9010), 0)
    replica = servers.node(of=leader.port)
    assert_same(leader, replica)
    replica.lead()  # the histories diverge, so that the replica needs a copy, of what differs
    replica("TDELAY", "s", "CANCEL", "t1")
    delay(replica, range(7000, 7010), HOUR)
    delay(leader, range(3000, 3100), HOUR, 1)
    leader("RENAME", "s", "renamed")
    for node in (leader, replica):
        node("SAVE")
    replica.follow(leader.port)
    assert_same(leader, replica)
    assert copied(replica)["reused"] > 0
    for node in (leader, replica):
        node.restart()
        assert node("TDELAY", "renamed", "COUNT") == 2100
    replica.lead()
    for token in ("t1", "t2999", "t3050"):
        assert replica("TDELAY", "renamed", "CANCEL", token) == 1
    assert replica("TDELAY", "renamed", "CANCEL", "t0") == 0


def test_a_backup_includes_delayed_entries(servers: Cluster, tmp_path: Path) -> None:
    leader = servers.node()
    delay(leader, range(500), HOUR)
    leader("SAVE")
    delay(leader, range(500, 700), HOUR, 1)
    tidelog("backup", tmp_path, "--url", url(leader))
    again = restored(servers, tmp_path)
    assert again.digest() == leader.digest()
    assert again("TDELAY", "s", "COUNT") == 700
    again("TDELAY", "s", "CANCEL", "t600")
    delay(again, range(500, 900), 0)
    wait_until(lambda: again("TLEN", "s") == 201, "new entries, and the one whose token is free")


def test_entries_in_a_damaged_node_wait_and_the_others_do_not(servers: Cluster) -> None:
    leader, replica = servers.pair(**SMALL)
    with Raw(leader.port) as raw:
        due = int(time.time() * 1000) + 2000
        raw.pipeline(
            *[("TDELAY", "s", "AT", due, "ID", f"t{n}", "n", n, "body", noise(n)) for n in range(100)],
            ("CLIENT", "PAUSE", 600_000, "WRITE"),  # nothing is delivered until the leader is started again
        )
    assert_same(leader, replica)
    replica.stop()
    damage_stopped(leader, 55)
    wait_until(lambda: leader("TDELAY", "s", "COUNT") <= 10, "what can be read")
    assert 55 not in numbers(leader)
    assert leader.say("TDELAY", "s", "CANCEL", "t55").startswith("ERR damaged data")
    replica.start()
    wait_until(lambda: leader("TLEN", "s") == 100, "the repaired entries")
    assert numbers(leader) == list(range(100))
    assert_same(leader, replica)
