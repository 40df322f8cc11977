"""A member of a server group that can't continue, or whose settings need attention, reports it (real processes)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.replication.cluster import Cluster, Node, new_port, wait_until
from tests.replication.groups import Group, status
from tests.wire.rawclient import Raw

# A later version, on a machine whose clock is 90 s ahead.
LATER = """
import sys, respserver
from respserver.runtime.clock import Clock
respserver.__version__, now = "0.9.0", Clock.now
Clock.now = lambda clock: now(clock) + 90_000
from _tidelog_server import main
sys.exit(main())
"""


def warned(node: Node, text: str) -> bool:
    return any(text in each for each in status(node)["warnings"])


def reports(node: Node, problem: str) -> None:
    """Wait until the status and the log of a member have this problem."""
    wait_until(lambda: problem in status(node)["problem"], "the status has it")
    wait_until(lambda: node.logged(problem), "the log has it")


def test_the_coordinator_is_unavailable_at_the_start(servers: Cluster) -> None:
    node = Group(servers, 1, coordinator=f"etcd://user:secret@127.0.0.1:{new_port()}").nodes[0]
    reports(node, "is unavailable; this member waits")
    found = status(node)
    assert found["phase"] == "joining"
    assert "secret" not in str(found)
    assert not node.logged("secret")
    with Raw(node.port) as raw:
        assert "READONLY" in str(raw("SET", "k", "v"))


def test_another_group_has_the_name(servers: Cluster, tmp_path: Path) -> None:
    node = Group(servers, 1).nodes[0]
    other = Group(servers, 0, coordinator=f"file://{tmp_path}")
    other.add(start=False).config["group-member"] = "m7"
    other.nodes[0].start()
    wait_until(other.leader, "the other group exists")
    wait_until(lambda: status(node)["phase"] == "leading", "its own exists")
    node.kill()
    node.config["coordinator"] = other.url
    node.start()
    reports(node, "belongs to another group with the name tide")
    assert "choose another dir or another coordinator" in status(node)["problem"]
    assert status(node)["phase"] == "joining"


def test_min_in_sync_is_greater_than_the_group(servers: Cluster) -> None:
    node = Group(servers, 1).nodes[0]
    wait_until(lambda: warned(node, "min-in-sync is 2, and the group has 1 member: writes fail"), "it warns")
    assert warned(node, "until you start more members or lower min-in-sync")
    wait_until(lambda: "NOREPLICAS" in str(node.say("SET", "k", "v")), "writes fail")
    assert node("CONFIG", "SET", "min-in-sync", 1) == b"OK"
    wait_until(lambda: node.say("SET", "k", "v") == b"OK", "writes are accepted")
    assert status(node)["warnings"] == []


@pytest.fixture
def pair(servers: Cluster) -> tuple[Node, Node]:
    """A leader, and a follower of a later version, whose clock is ahead."""
    group = Group(servers, 1, min_in_sync=1)
    group.wait()
    later = group.replace(group.add(start=False), LATER)
    return group.wait(), later


def test_versions_and_clocks_that_differ(pair: tuple[Node, Node]) -> None:
    leader, later = pair
    for node in pair:
        assert warned(node, "different versions (0.1.0: m1; 0.9.0: m2): complete the upgrade")
    text = next(each for each in status(leader)["warnings"] if "the clock of m2 is" in each)
    assert 85_000 < int(text.split("m2 is ")[1].split()[0]) < 95_000
    assert "ms ahead. This is allowed" in text
    assert "must not differ in speed by more than 5 %" in text
    later.kill()
    leader("TMEMBER", "REMOVE", "m2")
    assert status(leader)["warnings"] == []


def test_a_lease_that_is_too_short_for_the_stalls(servers: Cluster) -> None:
    node = Group(servers, 1, min_in_sync=1, group_lease=600).nodes[0]
    found = wait_until(lambda: status(node)["phase"] == "leading" and status(node), "it leads")
    longest = int(found["longest_stall_ms"])  # a busy machine stalls it, too
    assert longest >= 300 or not any("stalled for" in each for each in found["warnings"])
    node.freeze()
    time.sleep(longest / 1000 + 0.5)  # the stall that is tested
    node.thaw()
    wait_until(lambda: status(node)["longest_stall_ms"] > longest + 400, "it has noticed")
    assert warned(node, "the event loop stalled for")
    assert warned(node, "its lease (600 ms) is replaced: set group-lease to more than twice the longest stall")
    wait_until(lambda: node.logged("The event loop stalled for"), "the log has it")

    def forgotten() -> bool:
        node("CONFIG", "RESETSTAT")
        return bool(status(node)["longest_stall_ms"] < longest + 400)

    wait_until(forgotten, "the stall is forgotten")


def test_members_with_different_settings(servers: Cluster) -> None:
    group = Group(servers, 2, min_in_sync=1)
    leader = group.wait()
    assert (status(leader)["min_in_sync"], status(leader)["warnings"]) == (1, [])
    follower = group.others(leader)[0]
    follower("CONFIG", "SET", "min-in-sync", 2)
    wait_until(lambda: status(leader)["min_in_sync"] == 2, "the stricter setting counts")
    name, its = group.name(leader), group.name(follower)
    differ = f"(replica-acks insync, min-in-sync 1: {name}; replica-acks insync, min-in-sync 2: {its})"
    wait_until(lambda: all(warned(node, differ) for node in group.nodes), "both warn")
    wait_until(lambda: all(node.logged(differ) for node in group.nodes), "and in the log")
    assert [node.info()["group_min_in_sync"] for node in group.nodes] == [2, 2]
    follower.kill()
    wait_until(lambda: len(status(leader)["in_sync"]) == 1, "it has left the set")
    assert "NOREPLICAS" in str(leader.say("SET", "k", "v"))
    follower.config.update({"min-in-sync": 1, "replica-acks": 0})
    follower.start()
    wait_until(lambda: status(leader)["min_in_sync"] == 1, "it is weaker again")
    leader = group.wait()
    leader("TMEMBER", "FAILOVER")
    wait_until(lambda: group.leader() is follower, "the other one leads")
    assert (status(follower)["replica_acks"], status(follower)["min_in_sync"]) == ("insync", 1)
    assert warned(follower, f"replica-acks 0: {its}")
