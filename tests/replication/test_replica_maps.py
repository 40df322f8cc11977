"""Reads of a replica (READONLY) whose map of the cluster is out of date, because it does not reach the coordinator."""

from __future__ import annotations

from tests.replication.cluster import Cluster, Node, wait_until
from tests.replication.clusters import Groups
from tests.wire.rawclient import Raw


def _offset(node: Node) -> int:
    return int(node.info()["master_repl_offset"])


def test_a_replica_with_an_old_map_does_not_show_that_moved_keys_are_gone(servers: Cluster) -> None:
    groups = Groups(servers, divide=False, move_pause=5000, group_lease=5000)
    one, two = groups.leader(1), groups.leader(2)
    link = servers.top / "link"
    link.symlink_to(servers.top / "coordinator")
    replica = groups.groups[0].add(start=False, coordinator=f"file://{link}")
    replica.start()
    groups.agree()
    one("XADD", "b", "1-1", "f", "v")  # slot 3300
    one("XADD", "a", "1-1", "f", "v")  # slot 15495
    with Raw(replica.port) as c:
        assert c("READONLY") == b"OK"
        wait_until(lambda: c("XLEN", "b") == 1 == c("XLEN", "a"), "the replica has the entries")
        link.unlink()
        link.symlink_to("/dev/null/away")
        assert one.say("TCLUSTER", "MOVE", "3300", "TO", "2") == b"OK"
        assert one.say("DBSIZE") == 1
        wait_until(lambda: _offset(replica) == _offset(one), "the replica has deleted the key")
        assert c("XLEN", "b") == f"MOVED 3300 127.0.0.1:{one.port}"
        assert c("XLEN", "a") == f"MOVED 15495 127.0.0.1:{one.port}"
        assert one.say("XLEN", "b") == f"MOVED 3300 127.0.0.1:{two.port}"
        link.unlink()
        link.symlink_to(servers.top / "coordinator")
        wait_until(lambda: c("XLEN", "a") == 1, "the replica has read the map")
        assert c("XLEN", "b") == f"MOVED 3300 127.0.0.1:{two.port}"
