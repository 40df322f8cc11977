"""Reads of a replica (READONLY) whose map of the cluster and whose data are not of the same time."""

from __future__ import annotations

from tests.replication.cluster import Cluster, Node, wait_until
from tests.replication.clusters import Groups
from tests.replication.proxy import Proxy
from tests.wire.rawclient import Raw


def _offset(node: Node) -> int:
    return int(node.info()["master_repl_offset"])


def _linked(servers: Cluster) -> tuple[Groups, Proxy]:
    """Return two groups, and the proxy between the leader of the first one and its replica."""
    groups = Groups(servers, divide=False, move_pause=20_000, group_lease=1000, repl_timeout=3)
    leader = groups.leader(1)
    link = servers.proxy(leader)
    leader.stop()
    leader.config["replica-announce-port"] = link.port
    leader.start()
    groups.leader(1)
    groups.groups[0].add()
    groups.agree()
    return groups, link


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


def test_a_replica_that_lags_does_not_show_keys_as_before_their_slots_left(servers: Cluster) -> None:
    groups, link = _linked(servers)
    one, two, replica = groups.leader(1), groups.leader(2), groups.groups[0].nodes[1]
    one("XADD", "b", "1-1", "f", "v")  # slot 3300
    one("XADD", "a", "1-1", "f", "v")  # slot 15495
    with Raw(replica.port) as c:
        assert c("READONLY") == b"OK"
        wait_until(lambda: c("XLEN", "b") == 1 == c("XLEN", "a"), "the replica has the entries")
        link.down.hold()
        groups.move("3300", to="2")
        two("XADD", "b", "2-1", "f", "v")
        groups.move("3300", to="1", at=2)
        wait_until(lambda: c("TCLUSTER", "MAP") == one.say("TCLUSTER", "MAP"), "the replica has read the map")
        assert one.say("XLEN", "b") == 2
        assert c("XLEN", "b") == f"MOVED 3300 127.0.0.1:{link.port}"
        assert c("XLEN", "a") == f"MOVED 15495 127.0.0.1:{link.port}"  # the data may lack other slots, too
        link.down.release()
        wait_until(lambda: c("XLEN", "b") == 2 and c("XLEN", "a") == 1, "the replica has the data")


def test_a_replica_that_starts_with_a_saved_map_has_the_data_of_this_map(servers: Cluster) -> None:
    groups, link = _linked(servers)
    one, two, replica = groups.leader(1), groups.leader(2), groups.groups[0].nodes[1]
    one("XADD", "b", "1-1", "f", "v")  # slot 3300
    wait_until(lambda: replica.say("READONLY") and _offset(replica) == _offset(one), "the replica has the entry")
    link.down.hold()
    groups.move("3300", to="2")
    two("XADD", "b", "2-1", "f", "v")
    groups.move("3300", to="1", at=2)
    wait_until(lambda: replica.say("TCLUSTER", "MAP") == one.say("TCLUSTER", "MAP"), "the replica has read the map")
    replica.kill()
    replica.start()
    with Raw(replica.port) as c:
        assert c("READONLY") == b"OK"
        wait_until(lambda: c("XLEN", "b") == f"MOVED 3300 127.0.0.1:{link.port}", "the replica knows its leader")
        link.down.release()
        wait_until(lambda: c("XLEN", "b") == 2, "the replica has the data")
