"""The cluster clients of ioredis and node-redis find the leader, and follow a failover."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.foreign.test_node import HERE, _environment, modules
from tests.replication.cluster import cluster, in_sync, wait_until

__all__ = ["modules"]  # the fixture


def test_they_follow_a_failover(modules: Path) -> None:
    with cluster() as made:
        leader = made.node(cluster_enabled="yes")
        leader("SET", "k", "v")
        replica = made.node(of=leader.port, cluster_enabled="yes")
        wait_until(lambda: in_sync(leader, replica), "a first sync")
        wait_until(lambda: b"known_nodes:2" in replica.say("CLUSTER", "INFO"), "the members")
        with subprocess.Popen(
            ["node", str(HERE / "cluster.js"), str(replica.port)], env=_environment(modules), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as program:  # fmt: skip
            assert program.stdin is not None
            assert program.stdout is not None
            try:
                assert program.stdout.readline() == "1 1\n"
                assert program.stdout.readline() == "1 1 1\n"
                leader("FAILOVER")
                wait_until(lambda: replica.role == "master" and leader.link_up, "a handover")
                program.stdin.write("go\n")
                program.stdin.flush()
                assert program.stdout.readline() == "2 2\n"
                assert program.wait(20) == 0
            finally:
                program.kill()
        assert [replica("GET", name) for name in "ab"] == [b"2", b"2"]
