"""A leader that is shut down waits for its replicas, for a limited time."""

from __future__ import annotations

import time

from tests.replication.cluster import Cluster, in_sync, wait_until


def test_it_waits_until_its_replicas_have_everything(servers: Cluster) -> None:
    leader = servers.node()
    leader("SET", "k", "v")
    proxy = servers.proxy(leader)
    replica = servers.node(of=proxy.port)
    wait_until(lambda: in_sync(leader, replica), "in sync")
    proxy.down.rate = 500_000
    for number in range(10):
        leader("SET", f"k{number}", "x" * 50_000)
    end = leader.offset
    leader.stop()
    assert replica.offset == end


def test_it_does_not_wait_for_ever(servers: Cluster) -> None:
    leader = servers.node(shutdown_timeout=1)
    replica = servers.node(of=leader.port)
    wait_until(lambda: in_sync(leader, replica), "in sync")
    replica.freeze()
    leader("SET", "k", "v")
    began = time.monotonic()
    leader.stop()
    assert 0.8 < time.monotonic() - began < 5
    replica.thaw()
