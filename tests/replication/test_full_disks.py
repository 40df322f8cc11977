"""Full disks: a replica acknowledges nothing and recovers, a copy leaves the old data, a leader tells its clients.

The disk is "full" for a process whose files may not grow (RLIMIT_FSIZE, set from outside while it runs).
"""

from __future__ import annotations

import resource

from tests.replication.cluster import Cluster, Node, assert_same, in_sync, wait_until
from tests.wire.rawclient import Raw

MB = 1 << 20
BODY = "x" * 20_000


def limit(node: Node, size: int = resource.RLIM_INFINITY) -> None:
    """Set the size of the largest file that the server may write."""
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def append(node: Node, count: int) -> list[object]:
    """Append entries one by one; returns the replies, errors as text."""
    with Raw(node.port) as raw:
        return [raw("TAPPEND", "s", "pad", BODY) for _ in range(count)]


def test_a_replica_with_a_full_disk(servers: Cluster) -> None:
    """It acknowledges nothing that it does not have and serves reads. With room again it goes on without a copy."""
    leader, replica = servers.pair(checkpoint_size="1gb")
    append(leader, 5)
    wait_until(lambda: in_sync(leader, replica), "it has the first entries", 40)
    limit(replica, 128 << 10)  # less than what goes to a new file at once

    def refused() -> bool:
        append(leader, 50)
        with Raw(leader.port) as raw:
            raw("TAPPEND", "s", "pad", "last")
            return bool(raw("WAIT", 1, 500) == 0)

    wait_until(refused, "its disk is full", 40)
    assert replica.say("TLEN", "s") > 0
    assert replica.running
    assert leader.say("TAPPEND", "s", "f", "v")
    limit(replica)
    wait_until(lambda: in_sync(leader, replica), "it has caught up", 40)
    with Raw(leader.port) as raw:
        raw("TAPPEND", "s", "f", "v")
        assert raw("WAIT", 1, 5000) == 1
    assert_same(leader, replica)
    assert leader.syncs[0] == 1
    replica.kill()
    replica.start()
    assert_same(leader, replica)


def test_a_copy_to_a_full_disk(servers: Cluster) -> None:
    leader = servers.node()
    for number in range(40):
        leader("SET", f"k{number}", "x" * 200_000)
    leader("SAVE")
    replica = servers.node()
    replica("SET", "old", "data")
    limit(replica, 4 * MB)
    replica.follow(leader.port)
    wait_until(lambda: replica.logged(f"127.0.0.1:{leader.port}: "), "it says so")
    assert not replica.link_up
    replica.lead(force=True)
    wait_until(lambda: not (replica.directory / "incoming").exists(), "what came of it is cleared away")
    assert replica("GET", "old") == b"data"
    limit(replica)
    replica.follow(leader.port)
    assert_same(leader, replica)


def test_a_leader_with_a_full_disk(servers: Cluster) -> None:
    """Its replica gets everything that its clients were told is durable, and nothing else."""
    leader, replica = servers.pair(checkpoint_size="1gb", appendfsync="always")
    limit(leader, 3 * MB)
    said: list[object] = []

    def full() -> bool:
        said.extend(append(leader, 20))
        return str(said[-1]).startswith("MISCONF")

    wait_until(full, "its disk is full", 40)
    confirmed = {entry for entry in said if isinstance(entry, bytes)}
    wait_until(lambda: in_sync(leader, replica), "in sync")
    assert confirmed <= {row[0] for row in replica("TRANGE", "s", "-", "+")}
    assert replica.say("TLEN", "s") == leader.say("TLEN", "s")
    limit(leader)
    wait_until(lambda: isinstance(append(leader, 1)[0], bytes), "it writes again", 40)
    assert_same(leader, replica)
    assert leader.syncs[0] == 1
