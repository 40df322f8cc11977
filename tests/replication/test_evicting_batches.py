"""Pipelines of calls that add and evict: a replica has what its leader has."""

from __future__ import annotations

import redis

from tests.replication.cluster import assert_same, cluster, in_sync, wait_until

KEPT = (
    ("TAPPEV", "COUNT", "7"), ("TAPPEV", "COUNT", "0"), ("TAPPEV", "TIME", "3"), ("TAPPEV", "MINID", "5"),
    ("XADD", "MAXLEN", "9", "*"), ("XADD", "MAXLEN", "~", "9", "*"), ("XADD", "MINID", "~", "5", "*"),
)  # fmt: skip


def test_a_replica_has_what_pipelines_left() -> None:
    with cluster() as made:
        leader, replica = made.pair(stream_node_max_entries=4)
        with redis.Redis(port=leader.port) as client:
            for _ in range(3):
                pipe = client.pipeline(transaction=False)
                for command, *words in KEPT:
                    for key in ("one", "".join(words)):
                        for n in range(20):
                            pipe.execute_command(command, key, *words, "n", n)
                pipe.execute()
        wait_until(lambda: in_sync(leader, replica), "in sync")
        assert_same(leader, replica)
        facts = [("TRANGE", "one", "-", "+"), ("XINFO", "STREAM", "MAXLEN~9*")]
        assert [replica.say(*words) for words in facts] == [leader.say(*words) for words in facts]
