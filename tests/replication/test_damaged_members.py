"""A member of a server group with a damaged store: it is not in the in-sync set, and leads only if nobody else can."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.persistence.test_scrub import noise
from tests.replication.cluster import Cluster, Node, assert_same, cluster, wait_until
from tests.replication.groups import Group, Writer, status
from tests.replication.test_repair import SMALL, damage, fill, scrub
from tests.wire.rawclient import Raw

# A follower has to find its damage before the lease of a frozen leader ends: without known damage it would lead. It
# must be in the set until then, even on a busy machine.
FROZEN: dict[str, Any] = {"group_lease": 4000, "in_sync_timeout": 60_000}


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    """Three members in sync, whose scrub is off: damage is found by reads, and stays."""
    with cluster() as servers:
        group = Group(servers, **SMALL, scrub_rate=0)
        fill(group.wait())
        for node in group.nodes:
            node("SAVE")
        yield group


def damaged(node: Node, number: int) -> None:
    """Damage an entry in the store of a running member, and let a read find it."""
    damage(node, number)
    with Raw(node.port) as raw:
        assert raw("TRANGE", "s", "-", "+", "COUNT", 60).startswith("ERR damaged data")
    assert scrub(node)["damaged"] == 1


def members(node: Node) -> set[str]:
    return set(status(node)["in_sync"])


def joined(node: Node, name: str) -> int:
    """How often a member has joined the set."""
    return sum(each["what"] == f"in sync: +{name}" for each in status(node)["events"])


def repair(group: Group, node: Node) -> None:
    node("CONFIG", "SET", "scrub-rate", "8mb")
    group.wait()
    assert (scrub(node)["damaged"], scrub(node)["irreparable"]) == (0, 0)
    node("CONFIG", "SET", "scrub-rate", 0)


def freeze_and_damage(leader: Node, *followers: Node) -> None:
    """Let reads of followers find damage while the leader is frozen: it can't remove them from the set."""
    for node in followers:
        damage(node, 55)  # nothing reads it before TRANGE does
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(Raw(node.port)) for node in followers]
        leader.freeze()
        for raw in connections:
            raw.send("TRANGE", "s", "-", "+", "COUNT", 60)
        for node in followers:
            wait_until(lambda: scrub(node)["damaged"] == 1, "the damage is found")  # noqa: B023 - at once


def filled(servers: Cluster, number: int) -> tuple[Group, Node, list[Node]]:
    """A group whose members all have 200 entries in their stores, its leader, and the others."""
    group = Group(servers, number, **SMALL, scrub_rate=0, min_in_sync=1, **FROZEN)
    leader = group.wait()
    fill(leader)
    others = group.others(leader)
    wait_until(lambda: all(node.offset == leader.offset for node in others), "all have everything")
    for node in others:
        node("SAVE")
    assert group.wait() is leader
    return group, leader, others


def test_a_damaged_follower_leaves_the_set_until_it_is_repaired(group: Group) -> None:
    leader = group.wait()
    bad, good = group.others(leader)
    with Writer(group) as writer:
        damaged(bad, 55)
        wait_until(lambda: group.name(bad) not in members(leader), "it leaves")
        found = status(leader)
        assert found["events"][-1]["why"] == f"{group.name(bad)} has a damaged store"
        assert any(f"the store of {group.name(bad)} is damaged" in each for each in found["warnings"])
        (own,) = [each for each in status(bad)["warnings"] if "the store of this member is damaged" in each]
        assert own.endswith("Repairs are off: set scrub-rate to a value above 0")
        writer.after(time.monotonic())
        refused = str(leader.say("TMEMBER", "FAILOVER", "TO", group.name(bad)))
        assert "must have an undamaged store" in refused
        before = joined(leader, group.name(bad))
        leader.kill()
        wait_until(lambda: group.leader() is good, "the undamaged one leads")
        leader.start()
        wait_until(lambda: members(good) == {group.name(good), group.name(leader)}, "the old leader joins")
        wait_until(lambda: (bad.directory / "scrub").exists(), "the damage is saved")
        bad.restart()  # it knows its damage, and says so before anything else
        wait_until(lambda: bad.link_up, "it follows again")
        writer.after(time.monotonic())
        assert group.name(bad) not in members(good)
        repair(group, bad)
        assert joined(good, group.name(bad)) == before + 1
    writer.check(group.wait())
    assert_same(group.wait(), *group.others(group.wait()))


def test_a_damaged_leader_hands_over(group: Group) -> None:
    leader = group.wait()
    epoch = status(leader)["epoch"]
    with Writer(group) as writer:
        damaged(leader, 25)
        new = wait_until(lambda: group.leader(*group.others(leader)), "another one leads")
        assert new is not None
        assert status(new)["epoch"] == epoch + 1
        assert group.name(leader) not in members(new)
        why = [each["why"] for each in status(new)["events"] if each["what"] == f"{group.name(new)} leads"]
        assert why[-1] == f"{group.name(leader)} handed over, because its store is damaged"
        writer.after(time.monotonic())
        repair(group, leader)
        assert group.leader() is new
    writer.check(group.wait())
    assert not writer.unknown
    assert_same(new, *group.others(new))


def test_a_damaged_member_leads_if_nobody_else_can(servers: Cluster) -> None:
    group = Group(servers, 2, **SMALL, scrub_rate=0, min_in_sync=1)
    leader = group.wait()
    fill(leader)
    leader("SAVE")
    other = group.others(leader)[0]
    other.kill()
    wait_until(lambda: members(leader) == {group.name(leader)}, "it is alone")
    damaged(leader, 55)
    assert leader("SET", "k", "v")
    wait_until(lambda: (leader.directory / "scrub").exists(), "the damage is saved")
    leader.restart()
    wait_until(lambda: group.leader() is leader, "it leads again")
    assert leader("GET", "k") == b"v"
    assert leader.say("TRANGE", "s", "-", "+", "COUNT", 60).startswith("ERR damaged data")
    other.start()
    wait_until(lambda: group.leader() is other, "the undamaged one leads as soon as it is in sync")
    assert members(other) == {group.name(other)}
    repair(group, leader)
    assert other("XLEN", "s") == 200
    assert noise(55) in other("XRANGE", "s", "-", "+")[55][1].values()


def test_a_damaged_member_is_no_candidate(servers: Cluster) -> None:
    group, leader, (other,) = filled(servers, 2)
    freeze_and_damage(leader, other)
    wait_until(lambda: "its store is damaged" in status(other)["problem"], "it does not lead")
    assert status(other)["problem"].endswith(f"it waits for {group.name(leader)}")
    assert group.name(other) in members(other)
    leader.thaw()
    wait_until(lambda: group.leader() is leader, "the undamaged one leads")
    wait_until(lambda: members(leader) == {group.name(leader)}, "the damaged one leaves")


def test_a_lost_leader_can_be_removed_so_that_a_damaged_member_leads(servers: Cluster) -> None:
    group, leader, (other,) = filled(servers, 2)
    refused = other.say("TMEMBER", "REMOVE", group.name(leader))
    assert str(refused).startswith(f"ERR {group.name(leader)} is running: stop it first.")
    freeze_and_damage(leader, other)
    leader.kill()
    wait_until(lambda: "its store is damaged" in status(other)["problem"], "it does not lead")
    wait_until(lambda: other.say("TMEMBER", "REMOVE", group.name(leader)) == b"OK", "the lost leader is removed")
    wait_until(lambda: group.leader() is other, "the damaged member leads")
    assert other("XLEN", "s") == 200
    assert other("SET", "k", "v")
    leader.start()
    wait_until(lambda: group.leader() is leader, "it joins again, and leads because its store is not damaged")
    assert leader("GET", "k") == b"v"
    assert leader("XLEN", "s") == 200


def test_damaged_members_lead_once_no_undamaged_one_can_return(servers: Cluster) -> None:
    group, leader, others = filled(servers, 3)
    freeze_and_damage(leader, *others)
    leader.kill()
    wait_until(lambda: all("its store is damaged" in status(node)["problem"] for node in others), "none leads")
    assert group.leader() is None
    wait_until(lambda: others[0].say("TMEMBER", "REMOVE", group.name(leader)) == b"OK", "the lost leader is removed")
    new = wait_until(lambda: group.leader(), "one of them leads")
    assert new is not None
    assert new("XLEN", "s") == 200
