"""Retention policies: only the leader evicts, replicas follow, and kills, restarts and copies preserve the policy."""

from __future__ import annotations

import random

from tests.replication.cluster import Node, assert_same, cluster, in_sync, wait_until

WORDS = b"COUNT 20 AGE 3600000 GROUPS LIMIT 50 EXACT"


def fill(node: Node, count: int) -> None:
    node("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(count))


def test_replicas_follow_and_a_promoted_one_goes_on() -> None:
    with cluster() as made:
        leader, replica = made.pair()
        assert leader("TCFG", "s", "RETAIN", "COUNT", 20, "EXACT") == 0
        leader("TCFG", "s", "TIER", "BYTES", 7)
        fill(leader, 100)
        wait_until(lambda: leader("TLEN", "s") == 20, "an eviction")
        assert_same(leader, replica)
        assert replica.say("TCFG", "s", "RETAIN", "COUNT", 5).startswith("READONLY ")
        assert replica("TCFG", "s") == leader("TCFG", "s") == {b"retain": b"COUNT 20 EXACT", b"tier": b"BYTES 7"}
        with leader.still():  # the replica has more than the policy retains, and evicts nothing itself
            before = replica.offset
            assert replica("TCFG", "s", "RETAIN", "COUNT", 5, "EXACT", "DRY") == 15
            assert replica.offset == before
        leader.kill()
        replica.lead()
        fill(replica, 7)
        wait_until(lambda: replica("TLEN", "s") == 20, "an eviction by the new leader")
        copied = made.node(of=replica.port)  # a full copy
        wait_until(lambda: in_sync(replica, copied), "a full copy")
        assert_same(replica, copied)
        assert copied("TCFG", "s")[b"tier"] == b"BYTES 7"
        replica.kill()
        copied.lead()
        fill(copied, 9)
        wait_until(lambda: copied("TLEN", "s") == 20, "an eviction after the copy")


def test_kills_preserve_the_policy_and_what_it_retains() -> None:
    random.seed(31)
    with cluster() as made:
        node = made.node(appendfsync="always")
        node("TCFG", "s", "RETAIN", *WORDS.split())
        appended = 0
        for turn in range(6):
            for _ in range(random.randrange(1, 6)):
                fill(node, 30)
                appended += 30
            if turn % 2:
                node("BGSAVE")
            node.kill()
            node.start()
            assert node("TCFG", "s") == {b"retain": WORDS, b"tier": None}
            wait_until(lambda: node("TLEN", "s") <= 50, "an eviction up to the limit of the groups")

            assert node("TINFO", "s")[b"entries-added"] == appended
        node("XGROUP", "CREATE", "s", "g", "$")
        fill(node, 1)
        node("XGROUP", "SETID", "s", "g", "$")
        wait_until(lambda: node("TLEN", "s") == 20, "an eviction of what the group has read")


def test_default_policies_are_replicated_with_the_streams_that_get_them() -> None:
    with cluster() as made:
        leader, replica = made.pair(stream_retention="log:* RETAIN COUNT 3 EXACT", appendfsync="always")
        leader("TAPPEND", "log:1", "f", "v")
        leader.kill()
        leader.start()
        assert leader("TCFG", "log:1")[b"retain"] == b"COUNT 3 EXACT"
        assert_same(leader, replica)
        leader("TCFG", "log:1", "RETAIN", "NONE")
        leader("CONFIG", "SET", "stream-retention", "")
        leader("TAPPEND", "log:2", "f", "v")
        assert_same(leader, replica)
        assert [replica("TCFG", key)[b"retain"] for key in ("log:1", "log:2")] == [None, None]
        replica.lead()
        replica("TAPPEND", "log:3", "f", "v")
        assert replica("TCFG", "log:3")[b"retain"] == b"COUNT 3 EXACT"
