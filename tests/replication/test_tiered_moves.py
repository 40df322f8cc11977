"""TCLUSTER MOVE of streams whose entries are only in the object store of their group."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.replication.cluster import Cluster, Node, cluster, wait_until
from tests.replication.clusters import Groups
from tests.respserver.tiering.test_tiering import fields
from tests.wire.rawclient import Raw

KEY = "{a}x"  # slot 15495
COUNT = 205


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Cluster]:
    with cluster() as made:
        yield made


def groups_of(servers: Cluster, path: Path, **config: Any) -> Groups:
    """Two groups with prefixes of their own. The second one owns {a}."""
    made = Groups(servers, groups=0, divide=False)
    for name in "12":
        (path / name).mkdir()
        made.add(
            tier_url=str(path / name), tier_after=0, tier_interval=0, tier_free="yes", stream_node_max_entries=10,
            node_cache_size=0, save="", move_pause=5000, **config,
        )  # fmt: skip
    made.divide()
    return made


def fill(node: Node) -> None:
    """A stream with deleted and pending entries, and a second one. All but the ends are freed."""
    with Raw(node.port) as client:
        for key in (KEY, "{a}y"):
            random_ = random.Random(key)
            client.pipeline(*[("XADD", key, f"{n}-1", "t", random_.randbytes(60).hex()) for n in range(1, COUNT + 1)])
        client.pipeline(
            ("XDEL", KEY, "55-1", "56-1"), ("XTRIM", KEY, "MINID", "13-1"), ("XGROUP", "CREATE", KEY, "g", "0"),
            ("XREADGROUP", "GROUP", "g", "c", "COUNT", "30", "STREAMS", KEY, ">"),
        )  # fmt: skip
    wait_until_freed(node, 30)


def wait_until_freed(node: Node, nodes: int) -> None:
    with Raw(node.port) as client:
        wait_until(lambda: client("SAVE") == b"OK", "no other checkpoint is in progress")
        wait_until(lambda: int(fields(client)["tier_freed_nodes"]) >= nodes, "nodes that have left the store")


def seen(node: Node) -> list[Any]:
    with Raw(node.port) as client:
        return [client(*words) for words in (
            ("XRANGE", KEY, "-", "+"), ("XRANGE", "{a}y", "-", "+"), ("XINFO", "GROUPS", KEY), ("XLEN", KEY),
            ("XPENDING", KEY, "g"), ("TCOUNT", KEY, "20.0", "90.0"),
        )]  # fmt: skip


def empty_cache(node: Node) -> None:
    for path in (node.directory / "tier-cache").glob("*"):
        path.unlink(missing_ok=True)


def test_entries_that_are_only_in_the_object_store_move(servers: Cluster, tmp_path: Path) -> None:
    groups = groups_of(servers, tmp_path)
    one, two = groups.leader(1), groups.leader(2)
    fill(two)
    before = seen(two)
    # without the object store, nothing changes
    (tmp_path / "2").rename(tmp_path / "away")
    empty_cache(two)
    reply = two.say("TCLUSTER", "MOVE", "15495", "TO", "1")
    assert "are only in the object store" in reply
    assert reply.endswith("the slots stay in this group")
    (tmp_path / "away").rename(tmp_path / "2")
    wait_until(lambda: not groups.agree()["moves"], "the end of the move")
    wait_until(lambda: seen(two) == before, "the entries, once a second has passed since the last failure")
    empty_cache(two)
    # the new owner links no objects without tier-free, and gets the entries
    assert one.say("CONFIG", "SET", "tier-free", "no") == b"OK"
    groups.move("15495", to="1", at=2)
    assert seen(one) == before
    assert two.logged("0 of 1 history objects of the moving slots are linked")
    assert one.say("CONFIG", "SET", "tier-free", "yes") == b"OK"
    # the new owner copies everything below its own prefix, frees it, and does not need the other prefix
    wait_until_freed(one, 30)
    (tmp_path / "2").rename(tmp_path / "away")
    empty_cache(one)
    assert seen(one) == before
    (tmp_path / "away").rename(tmp_path / "2")
    empty_cache(one)
    assert two.say("CONFIG", "SET", "tier-free", "no") == b"OK"
    groups.move("15495", to="2", at=1)
    assert seen(two) == before, "and back"
