"""The history of a server group in an object store, when its leader changes."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.replication.cluster import Cluster, Node, cluster, wait_until
from tests.replication.groups import Group, status
from tests.respserver.tiering.test_tiering import fields
from tests.wire.rawclient import Raw


@pytest.fixture
def servers() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


def passes(node: Node) -> int:
    with Raw(node.port) as client:
        return int(fields(client)["tier_passes"])


def wait_until_leading(node: Node) -> None:
    wait_until(lambda: status(node)["phase"] == "leading", "the leadership of this member")
    wait_until(lambda: passes(node) >= 2, "passes")


def test_objects_are_deleted_after_a_leader_that_no_other_member_followed(servers: Cluster, tmp_path: Path) -> None:
    """Its log has an ID that the next leader does not know. It has copied and deleted nothing."""
    (tmp_path / "history").mkdir()
    group = Group(
        servers, 2, tier_url=str(tmp_path / "history"), tier_after=0, tier_interval=0, tier_grace=0, save="",
        stream_node_max_entries=10, in_sync_timeout=60_000,
    )  # fmt: skip
    first = group.wait()
    (other,) = group.others(first)
    objects = tmp_path / "history" / "objects"
    with Raw(first.port) as client:
        client.pipeline(*[("XADD", "x", f"{n}-1", "t", random.Random(n).randbytes(60).hex()) for n in range(1, 100)])
        assert client("SAVE") == b"OK"
    wait_until(lambda: objects.exists() and any(objects.glob("*.tide")), "an object")
    os.kill(other.pid, signal.SIGSTOP)
    first.kill()
    first.start()
    wait_until_leading(first)
    assert len(status(first)["in_sync"]) == 2
    first.kill()
    os.kill(other.pid, signal.SIGCONT)
    wait_until_leading(other)
    first.start()
    group.wait()
    with Raw(other.port) as client:
        assert client("DEL", "x") == 1
        assert client("SAVE") == b"OK"
        before = passes(other)
        wait_until(lambda: passes(other) >= before + 3, "passes")
        assert fields(client)["tier_deletion_error"] == ""
    wait_until(lambda: not any(objects.glob("*.tide")), "the deletion of the objects")
