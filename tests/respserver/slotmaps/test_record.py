"""The record of a group in the map: which members it has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coordinator.slotmap import MapMember
from replication.members import ClusterMember
from respserver.roles.cluster import FORGET
from respserver.slotmaps.record import GroupRecord


class Leader:
    """What a record uses of a server. ``now``: the loop's time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.feeds: list[Any] = []
        loop: Any = SimpleNamespace(time=lambda: self.now)
        self.state = SimpleNamespace(members=dict.fromkeys(("a", "b", "c")))
        membership: Any = SimpleNamespace(name="a", address="10.0.0.1:7001", store=SimpleNamespace(state=self.state))
        cluster: Any = SimpleNamespace(shard="5" * 40, me=lambda: ClusterMember("a" * 40, 7001, 0, ""))
        replicas: Any = SimpleNamespace(feeds=self.feeds)
        self.record = GroupRecord(loop, membership, cluster, replicas)

    def connect(self, name: str, host: str = "") -> None:
        member = ClusterMember(name * 40, 7002, 7003, host, "named")
        self.feeds.append(SimpleNamespace(member=member, group_member=name, state="online", host="10.0.0.9"))


def test_members_are_those_that_are_connected() -> None:
    leader = Leader()
    leader.connect("b")
    leader.connect("c", "192.0.2.3")
    found = leader.record.current(1, None, 0)
    assert (found.id, found.epoch, found.leader, found.seen) == ("5" * 40, 1, "a", 0)
    assert found.members == {
        "a": MapMember("a" * 40, "10.0.0.1", 7001),
        "b": MapMember("b" * 40, "10.0.0.9", 7002, 7003, "named"),
        "c": MapMember("c" * 40, "192.0.2.3", 7002, 7003, "named"),
    }


def test_a_lost_member_stays_for_a_while() -> None:
    leader = Leader()
    leader.connect("b")
    before = leader.record.current(1, None, 0)
    leader.feeds.clear()
    leader.now += FORGET
    assert leader.record.current(1, before, 0) == before
    leader.now += 0.1
    assert set(leader.record.current(1, before, 0).members) == {"a"}


def test_a_new_leader_keeps_the_members_until_they_had_time_to_connect() -> None:
    leader = Leader()
    leader.connect("b")
    before = leader.record.current(1, None, 4)
    leader.feeds.clear()
    leader.now += 100
    elected = leader.record.current(2, before, 0)
    assert (set(elected.members), elected.epoch, elected.seen) == ({"a", "b"}, 2, 4)
    leader.now += FORGET + 0.1
    assert set(leader.record.current(2, elected, 0).members) == {"a"}


def test_a_removed_member_is_not_kept() -> None:
    leader = Leader()
    leader.connect("b")
    before = leader.record.current(1, None, 0)
    leader.feeds.clear()
    del leader.state.members["b"]
    assert set(leader.record.current(1, before, 0).members) == {"a"}
