"""Backups of a group that has linked the history objects of another one: they never depend on the object store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.replication.cluster import Cluster, cluster, wait_until
from tests.replication.clusters import Groups
from tests.replication.test_linked_moves import groups_of
from tests.replication.test_tiered_moves import KEY, fill
from tests.tidelog.backup.continuouskit import Follower, found
from tests.tidelog.backup.kit import manifests, restored, tidelog, url


@pytest.fixture
def servers() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture
def groups(servers: Cluster, tmp_path: Path) -> Groups:
    """Two groups. The second one has a stream, most of which is only in objects."""
    made = groups_of(servers, str(tmp_path))
    fill(made.leader(2))
    return made


def whole(servers: Cluster, target: Path, entries: object) -> bool:
    """Restore the last state, and compare the stream, without an object store."""
    node = restored(servers, target)
    return bool(node.say("XRANGE", KEY, "-", "+") == entries)


def test_entries_are_sent_while_a_backup_follows_the_log(servers: Cluster, groups: Groups, tmp_path: Path) -> None:
    one, two = groups.leader(1), groups.leader(2)
    entries = two.say("XRANGE", KEY, "-", "+")
    with Follower(tmp_path / "backup", one) as backup:
        wait_until(lambda: manifests(tmp_path / "backup"), "a base backup")
        groups.move("15495", to="1", at=2)
        backup.has(one)
    assert two.logged("a backup is connected, which does not read references to history objects")
    assert len(manifests(tmp_path / "backup")) == 1
    assert whole(servers, tmp_path / "backup", entries)


def test_a_backup_that_was_away_continues_with_a_base_backup(
    servers: Cluster, groups: Groups, tmp_path: Path
) -> None:  # fmt: skip
    one, two = groups.leader(1), groups.leader(2)
    entries = two.say("XRANGE", KEY, "-", "+")
    target = tmp_path / "backup"
    with Follower(target, one) as backup:
        wait_until(lambda: manifests(target), "a base backup")
        backup.kill()
    assert one.say("SET", "{b}before", "1") == b"OK"
    before = one.offset
    groups.move("15495", to="1", at=2)
    with Follower(target, one) as backup:
        wait_until(lambda: len(manifests(target)) == 2, f"another base backup: {backup.lines}")
        assert one.say("SET", "{b}after", "1") == b"OK"
        backup.has(one)
    assert backup.said("following the log from offset")
    assert one.logged("the next records refer to history objects")
    first, second = found(target)
    assert before <= first.end < second.begin, "the first range has all records before those"
    assert whole(servers, target, entries)


def test_a_single_backup_after_a_move(servers: Cluster, groups: Groups, tmp_path: Path) -> None:
    """A checkpoint comes first, so that the log after the copy has no references."""
    one, two = groups.leader(1), groups.leader(2)
    entries = two.say("XRANGE", KEY, "-", "+")
    groups.move("15495", to="1", at=2)
    tidelog("backup", tmp_path / "backup", "--url", url(one))
    assert whole(servers, tmp_path / "backup", entries)
