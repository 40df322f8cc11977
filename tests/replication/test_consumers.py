"""Consumers and what they have pending are the same on a replica, and go on there when it leads."""

from __future__ import annotations

from tests.replication.cluster import assert_same, cluster, in_sync, wait_until


def test_a_replica_has_the_same_consumers_and_goes_on_with_them() -> None:
    with cluster() as made:
        leader, replica = made.pair()
        leader.say("XGROUP", "CREATE", "s", "g", 0, "MKSTREAM")
        for number in range(1, 9):
            leader.say("XADD", "s", f"{number}-0", "f", "v")
        leader.say("XREADGROUP", "GROUP", "g", "a", "COUNT", 4, "STREAMS", "s", ">")
        leader.say("XREADGROUP", "GROUP", "g", "b", "COUNT", 2, "NOACK", "STREAMS", "s", ">")
        leader.say("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", 0)
        leader.say("XCLAIM", "s", "g", "c", 0, "2-0", "9-0", "RETRYCOUNT", 5)
        leader.say("XNACK", "s", "g", "SILENT", "IDS", 1, "3-0")
        leader.say("XTRIM", "s", "MINID", 2)
        leader.say("XAUTOCLAIM", "s", "g", "d", 0, 0, "COUNT", 1)
        leader.say("XACK", "s", "g", "4-0")
        leader.say("XREADGROUP", "GROUP", "g", "e", "CLAIM", 0, "COUNT", 1, "STREAMS", "s", ">")
        leader.say("XGROUP", "DELCONSUMER", "s", "g", "b")
        leader.say("XREADGROUP", "GROUP", "g", "new", "STREAMS", "s", 0)
        wait_until(lambda: in_sync(leader, replica), "in sync")
        assert_same(leader, replica)
        facts = [("XPENDING", "s", "g"), ("XINFO", "GROUPS", "s"), ("XINFO", "STREAM", "s")]
        assert [replica.say(*words) for words in facts] == [leader.say(*words) for words in facts]
        refused = replica.say("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
        assert refused.startswith("READONLY ")
        replica.lead()
        (stream,) = replica.say("XREADGROUP", "GROUP", "g", "f", "STREAMS", "s", ">")
        assert [row[0] for row in stream[1]] == [b"7-0", b"8-0"]
        assert replica.say("XGROUP", "CREATECONSUMER", "s", "g", "b") == 1
