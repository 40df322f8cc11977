"""``tidelog backup --continuous`` with real servers: what is stored, and what can be restored."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.replication.cluster import Cluster, Node, assert_same, new_port, wait_until
from tests.replication.groups import Group
from tests.tidelog.backup.continuouskit import MERGE_SOON, Follower, found, log_files, stored
from tests.tidelog.backup.kit import manifests, start, tidelog, url
from tidelog.cli.program import main

pytestmark = pytest.mark.slow


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def restored_until(servers: Cluster, target: object, until: object = None) -> Node:
    node = servers.node(start=False)
    tidelog("restore", target, node.directory, *([] if until is None else ["--until", until]))
    node.start()
    return node


class Program:
    """Random commands. ``digests`` has the content of the server at each log offset between two of them."""

    def __init__(self, node: Node, seed: int = 1) -> None:
        self.node = node
        self.digests: dict[int, str] = {}
        self._random = random.Random(seed)

    def run(self, count: int) -> None:
        for number in range(count):
            pipe: Any = self.node.redis.pipeline(transaction=True)
            for _ in range(self._random.randint(1, 3)):
                key = f"k{self._random.randrange(4)}"
                pipe.execute_command(*self._random.choice([
                    ("TAPPEND", f"s{key}", "n", number), ("SET", key, number), ("DEL", key),
                    ("TMAPPEND", f"s{key}", "FIELDS", 1, "f", "VALUES", *range(5)), ("INCR", "counter"),
                    ("TAPPEV", f"s{key}", "MAXLEN", 3),
                ]))  # fmt: skip
            pipe.execute(raise_on_error=False)
            pipe.execute_command("DEBUG", "DIGEST")
            pipe.info("replication")
            digest, info = pipe.execute()
            self.digests[info["master_repl_offset"]] = digest.decode()


def test_every_point_is_restored_as_it_was(servers: Cluster, target: Path) -> None:
    """Points between commits in several chunks. A point inside of a transaction is the state before it."""
    leader = servers.node()
    leader("SET", "before", "1")
    program = Program(leader)
    with Follower(target, leader) as backup:
        wait_until(lambda: manifests(target), "a base backup")
        for _ in range(2):
            program.run(30)
            backup.has(leader)
    assert len(log_files(target)) >= 2
    base = found(target)[0].begin
    points = sorted(offset for offset in program.digests if offset > base)
    picked = random.Random(os.getpid()).sample(points[:-1], 2)
    for offset in [*picked, points[-1]]:
        assert restored_until(servers, target, offset).digest() == program.digests[offset]
    one, two = points[-2:]
    if two - one > 1:
        node = servers.node(start=False)
        output = tidelog("restore", target, node.directory, "--until", two - 1)
        assert f"at log offset {one:,}, from" in output
        assert f"note: log offset {two - 1:,} is inside of a commit group" in output
    assert "all intact" in tidelog("verify", target)
    tidelog("verify", target, "--all")


def test_a_backup_whose_output_is_closed_continues(servers: Cluster, target: Path) -> None:
    """Its first line is printed after the base backup. A signal still lets it store the rest of the log."""
    leader = servers.node()
    process = start("backup", target, "--continuous", "--lag", 1, "--url", url(leader))
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        wait_until(lambda: manifests(target), "a base backup")
        leader("SET", "stored", "1")
        end = leader.offset
        wait_until(lambda: stored(target) >= end or process.poll() is not None, "the log at the target")
        leader("SET", "later", "1")
        process.terminate()
        assert (process.wait(30), process.stderr.read()) == (0, b"")
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
    assert restored_until(servers, target).digest() == leader.digest()


def test_before_flushall(servers: Cluster, target: Path) -> None:
    leader = servers.node()
    with Follower(target, leader) as backup:
        wait_until(lambda: manifests(target), "a base backup")
        leader("FLUSHALL")
        for number in range(20):
            leader("TAPPEND", "s", "n", number)
        before = leader.digest()
        leader("FLUSHDB")
        leader("SET", "later", "1")
        backup.has(leader)
    node = restored_until(servers, target, "Before flushdb")
    assert (node("TLEN", "s"), node.digest()) == (20, before)
    assert restored_until(servers, target)("KEYS", "*") == [b"later"]


def test_a_killed_backup_continues(servers: Cluster, target: Path) -> None:
    leader = servers.node()
    program = Program(leader)
    with Follower(target, leader) as backup:
        wait_until(lambda: manifests(target), "a base backup")
        program.run(20)
        backup.has(leader)
        program.run(5)
        backup.kill()
    program.run(20)
    leader("SAVE")  # the journal retains what the backup lacks
    with Follower(target, leader) as backup:
        end = backup.has(leader)
    assert backup.said("following the log from offset")
    assert (len(manifests(target)), len(found(target))) == (1, 1)
    assert leader.syncs == (1, 1)
    assert restored_until(servers, target, end).digest() == program.digests[end]


def test_kills_while_files_are_merged(servers: Cluster, target: Path) -> None:
    leader, chance = servers.node(), random.Random()
    program = Program(leader)

    def merged() -> bool:
        return any(chunk.last_ms - chunk.first_ms > 1000 for each in found(target) for chunk in each.chunks)

    for number in range(2):
        with Follower(target, leader, before=MERGE_SOON) as backup:
            wait_until(lambda: manifests(target), "a base backup")
            end = time.monotonic() + chance.uniform(1.5, 3)  # the kill must come at a random moment
            while time.monotonic() < end or not merged():
                program.run(1)
                time.sleep(0.05)
            backup.has(leader)
            if not number:
                backup.kill()
    assert (len(manifests(target)), len(found(target))) == (1, 1)
    tidelog("verify", target, "--all")
    base = found(target)[0].begin
    points = [offset for offset in program.digests if offset > base]
    for offset in (chance.choice(points[:-1]), points[-1]):
        assert restored_until(servers, target, offset).digest() == program.digests[offset]


def test_a_killed_server_is_followed_again(servers: Cluster, target: Path) -> None:
    leader = servers.node(appendfsync="always")
    program = Program(leader)
    with Follower(target, leader) as backup:
        wait_until(lambda: manifests(target), "a base backup")
        program.run(20)
        leader.kill()
        wait_until(lambda: backup.said("connecting to the server again"), "the loss is reported")
        leader.start()
        program.run(20)
        end = backup.has(leader)
    assert (len(manifests(target)), len(found(target))) == (1, 1)
    assert restored_until(servers, target, end).digest() == program.digests[end]


def test_a_replica_that_becomes_the_leader(servers: Cluster, target: Path) -> None:
    leader, replica = servers.pair()
    with Follower(target, replica) as backup:
        wait_until(lambda: manifests(target), "a base backup")
        Program(leader).run(20)
        assert_same(leader, replica)
        assert leader.info()["connected_slaves"] == 1
        backup.has(replica)
        leader.kill()
        replica.lead()
        program = Program(replica, 2)
        program.run(20)
        end = backup.has(replica)
    assert (len(manifests(target)), len(found(target))) == (1, 1)
    assert len({chunk.replid for chunk in found(target)[0].chunks}) == 2
    assert restored_until(servers, target, end).digest() == program.digests[end]


def test_a_failover_that_loses_records(servers: Cluster, target: Path) -> None:
    """The new leader lacks what the backup has: both histories can be restored."""
    leader, replica = servers.pair()
    with Follower(target, leader, place=f"{url(leader)},{url(replica)}") as backup:
        wait_until(lambda: manifests(target), "a base backup")
        leader("SET", "both", "1")
        assert_same(leader, replica)
        replica.kill()
        leader("SET", "lost", "1")
        lost = backup.has(leader)
        digest = leader.digest()
        leader.kill()
        replica.start()
        replica.lead()
        replica("SET", "instead", "1")
        wait_until(lambda: len(manifests(target)) == 2, "a new base backup")
        replica("SET", "more", "1")
        backup.has(replica)
    assert backup.said("which was lost in a failover: a new base backup is taken")
    assert sorted(restored_until(servers, target)("KEYS", "*")) == [b"both", b"instead", b"more"]
    older = restored_until(servers, f"{target}/{manifests(target)[0]}", lost)
    assert older.digest() == digest


def test_a_journal_that_no_longer_has_the_records(servers: Cluster, target: Path) -> None:
    leader = servers.node(repl_backlog_size="16kb")
    with Follower(target, leader) as backup:
        wait_until(lambda: manifests(target), "a base backup")
        leader("SET", "k", "v")
        backup.has(leader)
    for _ in range(3):
        leader("SET", "k", "x" * 100_000)
        leader("SAVE")
    with Follower(target, leader) as backup:
        wait_until(lambda: len(manifests(target)) == 2, "a new base backup")
    assert backup.said("the journal of the server no longer has the log after offset")
    assert len(found(target)) == 2


def test_a_target_that_is_unavailable(servers: Cluster, target: Path, tmp_path: Path) -> None:
    leader = servers.node()
    program = Program(leader)
    with Follower(target, leader) as backup:
        wait_until(lambda: manifests(target), "a base backup")
        program.run(10)
        backup.has(leader)
        target.rename(tmp_path / "away")
        program.run(10)
        wait_until(lambda: backup.said("trying again"), "it is reported")
        assert not target.exists()  # as if it was not mounted: nothing is written in its place
        leader("SAVE")
        (tmp_path / "away").rename(target)
        end = backup.has(leader)
        wait_until(lambda: backup.said("is available again"), "that is reported, too")
    assert (len(manifests(target)), len(found(target))) == (1, 1)
    assert restored_until(servers, target, end).digest() == program.digests[end]


def test_a_full_target(servers: Cluster, target: Path) -> None:
    leader = servers.node()
    program = Program(leader)
    with Follower(target, leader) as backup:
        wait_until(lambda: manifests(target), "a base backup")
        resource.prlimit(backup.process.pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        program.run(20)
        wait_until(lambda: backup.said("File too large; trying again"), "it is reported")
        assert not list(target.rglob("*.half"))
        wait_until(lambda: backup.said("s behind the server (--lag 1): can't write"), "also how far it is behind")
        resource.prlimit(backup.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        end = backup.has(leader)
        wait_until(lambda: backup.said("the target has caught up"), "and that it has caught up")
    assert (len(manifests(target)), len(found(target))) == (1, 1)
    assert restored_until(servers, target, end).digest() == program.digests[end]


def test_a_server_group_that_loses_its_leader(servers: Cluster, target: Path) -> None:
    """The backup has confirmed records only, so it can continue at any new leader."""
    group = Group(servers, 2, replica_acks="insync", min_in_sync=1)
    leader = group.wait()
    (other,) = group.others(leader)
    with Follower(target, leader, place=",".join(map(url, group.nodes))) as backup:
        wait_until(lambda: manifests(target), "a base backup")
        Program(leader).run(20)
        leader.kill()
        group.wait(other)
        program = Program(other, 2)
        program.run(20)
        end = backup.has(other)
    assert (len(manifests(target)), len(found(target))) == (1, 1)
    assert restored_until(servers, target, end).digest() == program.digests[end]


def test_one_at_a_time(servers: Cluster, target: Path) -> None:
    leader = servers.node()
    with Follower(target, leader):
        wait_until(lambda: manifests(target), "a base backup")
        output = tidelog("backup", target, "--continuous", "--url", url(leader), ok=False)
        assert "is being written there by process" in output
    assert not list(target.glob("locks/*"))


def test_a_first_connection_that_fails(servers: Cluster, target: Path) -> None:
    node = servers.node(start=False)
    assert "no answer from" in tidelog("backup", target, "--continuous", "--url", url(node), ok=False)
    assert not list(target.glob("locks/*"))
    for option in ("--lag", "--base-every"):
        output = CliRunner().invoke(main, ["backup", str(target), option, "2"]).output
        assert f"{option} needs --continuous" in output


def test_only_the_log_that_is_needed_is_kept(servers: Cluster, target: Path) -> None:
    leader = servers.node()
    with Follower(target, leader) as backup:
        wait_until(lambda: manifests(target), "a base backup")
        for number in range(3):
            leader("SET", "k", number)
            backup.has(leader)
    before = log_files(target)
    tidelog("backup", target, "--url", url(leader))
    assert log_files(target) == before
    assert len(found(target)[0].bases) == 2
    tidelog("backup", target, "--url", url(leader), "--keep", 1)
    assert log_files(target) == before[-1:]  # the log can continue from there
    with Follower(target, leader) as backup:
        leader("SET", "k", "newest")
        backup.has(leader)
    assert len(manifests(target)) == 1
    assert restored_until(servers, target)("GET", "k") == b"newest"


def test_further_base_backups(servers: Cluster, target: Path) -> None:
    """They are taken while the log is followed, and the log before the oldest one that is kept is removed."""
    leader = servers.node()
    program = Program(leader)
    with Follower(target, leader, "--base-every", 1 / 3600, "--keep", 2) as backup:
        first = wait_until(lambda: manifests(target), "a base backup")[0]
        program.run(10)
        backup.has(leader)
        wait_until(lambda: first not in manifests(target) and len(manifests(target)) == 2, "two more base backups")
        program.run(10)
        end = backup.has(leader)
    (only,) = found(target)
    assert 1 <= len(only.bases) <= 2
    assert only.begin > min(program.digests)
    assert all(chunk.end >= only.begin for chunk in only.chunks)
    assert restored_until(servers, target, end).digest() == program.digests[end]


def test_the_drill(tmp_path: Path) -> None:
    """The commands of docs/backup.md, with other ports."""
    if shutil.which("redis-cli") is None:
        pytest.skip("redis-cli is not installed")
    text = (Path(__file__).parents[3] / "docs/backup.md").read_text()
    drill = text.partition("<!-- drill -->\n```sh\n")[2].partition("```")[0]
    for port in ("6399", "6398"):
        drill = drill.replace(port, str(new_port()))
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, module in (("tidelog", "tidelog.cli"), ("tidelog-server", "_tidelog_server")):
        (tools / name).write_text(f"#!/bin/sh\nexec '{sys.executable}' -m {module} \"$@\"\n")
        (tools / name).chmod(0o755)
    script = f"trap 'kill $(jobs -p); wait' EXIT\nset -e\n{drill}"
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 key, 1 of them streams with 3 entries" in done.stdout
    assert "\n3\n" in done.stdout


def test_damaged_and_missing_files(servers: Cluster, target: Path, tmp_path: Path) -> None:
    leader = servers.node()
    with Follower(target, leader) as backup:
        wait_until(lambda: manifests(target), "a base backup")
        for number in range(3):
            leader("SET", "k", number)
            backup.has(leader)
    _, path, last = log_files(target)[-3:]
    begin, raw = int(path.name.split("-")[0]), path.read_bytes()
    new = tmp_path / "new"
    commands: list[tuple[object, ...]] = [("verify", target), ("restore", target, new)]
    for at in (0, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        for command in commands:
            output = tidelog(*command, ok=False)
            assert f"{path} is damaged" in output
            assert f"up to log offset {begin:,}: --until {begin}" in output
        assert not any(tmp_path.glob("new*"))
    path.unlink()
    end = int(last.name.split("-")[0])
    for command in (*commands, ("restore", target, new, "--until", end)):
        output = tidelog(*command, ok=False)
        assert f"{path} is missing" in output
        assert f"to {begin:,} (" in output
    assert restored_until(servers, target, begin)("GET", "k") == b"0"
    path.write_bytes(raw)
    tidelog("verify", target)
    last.rename(tmp_path / last.name)
    for command in commands:
        assert f"{last} is missing" in tidelog(*command, ok=False)
    assert stored(target) == end
