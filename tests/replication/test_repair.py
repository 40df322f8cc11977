"""A member's store is damaged on disk: it copies the entries from another member, or its reads name what is damaged."""

from __future__ import annotations

import os
import re
from hashlib import shake_256
from typing import Any

from click.testing import CliRunner

from persistence.directory import MARKER
from tests.persistence.test_scrub import flip, noise
from tests.replication.cluster import Cluster, Node, assert_same, wait_until
from tests.wire.rawclient import Raw
from tidelog.cli.program import main

SMALL: dict[str, Any] = {"stream_node_max_entries": 10, "node_cache_size": 0, "save": "", "appendfsync": "no"}
BIG = 500  # the entry that is larger than any other request of a replica
DAMAGED = r"ERR damaged data: the store is damaged at stream \d+ \(key 's'\), entries 50 to 59 \(IDs from [0-9.]+\)"


def fill(node: Node) -> None:
    with Raw(node.port) as raw:
        raw.pipeline(*[("TAPPEND", "s", "body", noise(number)) for number in range(200)])
        raw("TAPPEND", "other", "f", "v")
        raw("TAPPEND", "big", "body", noise(BIG) + shake_256(b"big").digest(200_000))


def damage(node: Node, *numbers: int) -> None:
    """Flip a bit of these entries wherever they are in the store, and let a pass of the scrub begin at once."""
    data = node.directory / "store" / "data.mdb"
    raw = data.read_bytes()
    for number in numbers:
        places = [found.start() for found in re.finditer(re.escape(noise(number)[:32]), raw)]
        assert places
        for at in places:
            flip(data, at + 32)
    os.utime(node.directory / MARKER, (1, 1))  # when the directory was created
    (node.directory / "scrub").unlink(missing_ok=True)


def damage_stopped(node: Node, *numbers: int) -> None:
    node("SAVE")
    node.stop()
    damage(node, *numbers)
    node.start()


def scrub(node: Node) -> dict[str, int]:
    return {name[6:]: value for name, value in node.info("persistence").items() if name.startswith("scrub_")}


def repaired(node: Node, count: int) -> None:
    wait_until(lambda: scrub(node)["fetched"] == count and not scrub(node)["damaged"], "it is repaired")
    assert scrub(node)["irreparable"] == 0


def verified(node: Node) -> str:
    """The output of ``tidelog verify`` after the server has ended."""
    node.stop()
    result = CliRunner().invoke(main, ["verify", str(node.directory)])
    assert result.exit_code == 1
    return result.output


def test_a_replica_copies_damaged_entries_from_its_leader(servers: Cluster) -> None:
    leader, replica = servers.pair(**SMALL)
    fill(leader)
    assert_same(leader, replica)
    damage_stopped(replica, 55, 123, 0)
    repaired(replica, 3)
    assert_same(leader, replica)
    assert replica.logged(f"with a copy from leader 127.0.0.1:{leader.port}")
    assert replica.info()["slave_priority"] == 100
    replica.kill()
    replica.start()
    assert_same(leader, replica)


def test_a_leader_copies_damaged_entries_from_a_replica(servers: Cluster) -> None:
    leader, replica = servers.pair(**SMALL)
    fill(leader)
    assert_same(leader, replica)
    damage_stopped(leader, 55, BIG)
    repaired(leader, 2)
    assert_same(leader, replica)
    assert leader.logged(f"with a copy from replica 127.0.0.1:{replica.port}")
    with Raw(leader.port) as raw:
        assert len(raw("TRANGE", "s", "-", "+")) == 200


def test_without_a_good_copy_reads_name_the_damage(servers: Cluster) -> None:
    leader, replica = servers.pair(**SMALL)
    fill(leader)
    assert_same(leader, replica)
    for node in (leader, replica):
        damage_stopped(node, 55)
    damage_stopped(replica, 123)
    wait_until(lambda: scrub(replica)["fetched"] == scrub(replica)["irreparable"] == 1, "one is repaired")
    wait_until(lambda: scrub(leader)["irreparable"] == 1, "the leader finds no copy either")
    for node in (leader, replica):
        wait_until(lambda: scrub(node)["damaged"] == 1, "the repaired node was read again")  # noqa: B023 - at once
        assert scrub(node)["irreparable"] == 1
        assert node.logged("can't repair node 50 of stream 1")
        assert node.logged("no other member has a good copy of these entries now")
        with Raw(node.port) as raw:
            assert re.match(DAMAGED, raw("TRANGE", "s", "-", "+"))
            assert len(raw("TRANGE", "s", "-", "+", "COUNT", "50")) == 50
            assert len(raw("TRANGE", "other", "-", "+")) == 1
    assert replica.info()["slave_priority"] == 0
    leader("TAPPEND", "s", "body", "more")
    leader("DEL", "other")
    assert_same_offset(leader, replica)
    damage(replica, 55)  # flips the bit back
    replica("SAVE")
    repaired(leader, 1)
    assert_same(leader, replica)


def assert_same_offset(leader: Node, replica: Node) -> None:
    wait_until(lambda: replica.link_up and replica.offset == leader.offset, "the replica follows")


def test_damaged_entries_that_the_leader_has_deleted(servers: Cluster) -> None:
    """The store of the replica needs them until its next checkpoint, which the failed repair starts."""
    leader, replica = servers.pair(**SMALL)
    fill(leader)
    assert_same(leader, replica)
    replica("SAVE")
    replica("CONFIG", "SET", "scrub-rate", 0)
    damage(replica, 55)
    with Raw(replica.port) as raw:
        assert re.match(DAMAGED, raw("TRANGE", "s", "-", "+", "COUNT", 60))
    with Raw(leader.port) as raw:
        first = raw("XRANGE", "s", "-", "+", "COUNT", 53)[-1][0]
        assert raw("XTRIM", "s", "MINID", first) == 52
    assert_same_offset(leader, replica)
    assert scrub(replica)["damaged"] == 1
    replica("CONFIG", "SET", "scrub-rate", "8mb")
    repaired(replica, 1)
    assert_same(leader, replica)


def test_a_server_alone_reports_the_damage(servers: Cluster) -> None:
    node = servers.node(**SMALL)
    fill(node)
    damage_stopped(node, 55)
    wait_until(lambda: scrub(node)["irreparable"] == 1, "there is no other member")
    with Raw(node.port) as raw:
        assert re.match(DAMAGED, raw("TRANGE", "s", "-", "+"))
        assert raw("TAPPEND", "s", "body", "more")
        assert raw("SET", "k", "v") == b"OK"
    assert "node 50 of stream 1: a node's checksum is wrong" in verified(node)


def test_only_a_replica_can_request_nodes(servers: Cluster) -> None:
    node = servers.node(**SMALL)
    assert "Unrecognized REPLCONF option" in node.say("REPLCONF", "getnode", "x")
