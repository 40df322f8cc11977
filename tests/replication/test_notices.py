"""Keyspace events and CLIENT TRACKING beside replicas [59] [60]: a replica fires no events, but invalidates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.replication.cluster import Cluster, cluster, in_sync, wait_until
from tests.wire.rawclient import Raw


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    with cluster() as made:
        made.pair()
        for node in made.nodes:
            node("CONFIG", "SET", "notify-keyspace-events", "KEAnm")
        yield made


def test_a_replica_fires_only_misses(pair: Cluster) -> None:
    leader, replica = pair.nodes
    with Raw(leader.port) as there, Raw(replica.port) as here:
        for heard in (there, here):
            heard("PSUBSCRIBE", "__keyevent@0__:*", "mark")
            heard.read()
        leader("SET", "k", 1, "PX", 1)
        leader("TAPPEND", "s", "f", "v")
        assert [there.read()[2:] for _ in range(5)][:3] == [
            [b"__keyevent@0__:new", b"k"], [b"__keyevent@0__:set", b"k"], [b"__keyevent@0__:expire", b"k"],
        ]  # fmt: skip
        wait_until(lambda: in_sync(leader, replica), "in sync")
        replica("GET", "nothing")
        leader("PUBLISH", "mark", "")
        assert here.read()[2:] == [b"__keyevent@0__:keymiss", b"nothing"]
        assert here.read()[2:] == [b"mark", b""]


def test_a_replica_invalidates_what_its_leader_changes(pair: Cluster) -> None:
    leader, replica = pair.nodes
    leader("MSET", "a", 1, "b", 1)
    leader("SET", "c", 1, "PX", 60_000)
    leader("TAPPEND", "s", "f", "v")
    wait_until(lambda: in_sync(leader, replica), "in sync")
    with Raw(replica.port, 3) as reader, Raw(replica.port, 3) as broad:
        reader("CLIENT", "TRACKING", "ON")
        broad("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "a", "PREFIX", "s")
        assert reader("MGET", "a", "b", "c") == [b"1", b"1", b"1"]
        assert len(reader("TRANGE", "s", "-", "+")) >= 1
        leader("SET", "a", 2)
        assert reader.read() == [b"invalidate", [b"a"]]
        assert broad.read() == [b"invalidate", [b"a"]]
        leader("PEXPIRE", "c", 10)
        assert reader.read() == [b"invalidate", [b"c"]]
        leader("TAPPEND", "s", "f", "v")
        assert reader.read() == [b"invalidate", [b"s"]]
        assert broad.read() == [b"invalidate", [b"s"]]
        leader("FLUSHALL")
        assert reader.read() == [b"invalidate", None]
        assert broad.read() == [b"invalidate", None]


def test_a_full_copy_invalidates_everything_and_a_promotion_lets_events_fire(pair: Cluster) -> None:
    leader, replica = pair.nodes
    replica.lead()
    with Raw(replica.port, 3) as reader:
        reader("SUBSCRIBE", "__keyevent@0__:set")
        replica("SET", "own", 1)
        assert reader.read() == [b"message", b"__keyevent@0__:set", b"own"]
        reader("CLIENT", "TRACKING", "ON")
        assert reader("GET", "own") == b"1"
        leader("SET", "another", 1)  # another history: what the replica has can't be continued
        replica.follow(leader.port)
        assert reader.read() == [b"invalidate", None]
        wait_until(lambda: in_sync(leader, replica), "in sync")
        reply = reader("GET", "another")
        while reply == [b"invalidate", None]:  # a FLUSHALL that came after the copy
            reply = reader.read()
        assert reply == b"1"
        leader("SET", "another", 2)
        assert reader.read() == [b"invalidate", [b"another"]]
