"""A continuous backup under SIGKILL of itself, of the leader, and of the replica that it reads from, at random moments.

What the target has at the end can be restored at any point, and every restored state is one that the leader had.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.replication.cluster import Cluster, assert_same, cluster, in_sync, wait_until
from tests.tidelog.backup.continuouskit import MERGE_SOON, Follower, found
from tests.tidelog.backup.kit import manifests, tidelog
from tests.tidelog.backup.test_continuous import Program

MINUTES = float(os.environ.get("TIDELOG_LONG") or 0)


@pytest.fixture
def made() -> Iterator[Cluster]:
    with cluster() as servers:
        yield servers


@pytest.mark.long
@pytest.mark.timeout(MINUTES * 60 + 300)
@pytest.mark.parametrize("source", ["leader", "replica"])
def test_random_kills(made: Cluster, tmp_path: Path, source: str) -> None:
    seed = time.time_ns() & 0xFFFF
    print(f"seed {seed}")
    chance, target = random.Random(seed), tmp_path / "target"
    leader, replica = made.pair(appendfsync="always", checkpoint_size="1mb")
    followed = leader if source == "leader" else replica
    program = Program(leader, seed)
    end_at = time.monotonic() + 30 * MINUTES
    turns = 0
    with ExitStack() as backups:
        backup = backups.enter_context(Follower(target, followed, before=MERGE_SOON))
        wait_until(lambda: manifests(target), "a base backup")
        while not turns or time.monotonic() < end_at:
            turns += 1
            program.run(chance.randrange(1, 40))
            time.sleep(chance.uniform(0, 1.5))  # the crash must come at a random moment
            what = chance.choice(("backup", "leader", "replica"))
            if what == "backup":
                backup.kill()
                program.run(chance.randrange(20))
                backup = backups.enter_context(Follower(target, followed, before=MERGE_SOON))
                wait_until(lambda: backup.said("following the log"), "it has connected")  # noqa: B023
            elif what == "leader":
                leader.kill()
                leader.start()
            else:
                replica.kill()
                program.run(chance.randrange(20))
                replica.start()
            wait_until(lambda: in_sync(leader, replica), "the replica is back")
        assert_same(leader, replica)
        end = backup.has(followed)
    assert (len(manifests(target)), len(found(target))) == (1, 1)  # every end of a process was bridged
    tidelog("verify", target, "--all")
    points = [offset for offset in program.digests if found(target)[0].begin <= offset <= end]
    for offset in [*chance.sample(points, min(10, len(points))), max(points)]:
        node = made.node(start=False)
        output = tidelog("restore", target, node.directory, "--until", offset)
        at = int(output.partition("at log offset ")[2].partition(", from")[0].replace(",", ""))
        assert at == offset or f"note: log offset {offset:,} is inside of a commit group" in output
        node.start()
        assert node.digest() == program.digests[at]  # a replica that catches up merges commit groups of its leader
        node.kill()
        shutil.rmtree(node.directory)
    print(f"{turns} kills, {len(program.digests)} states, log offset {end}")
