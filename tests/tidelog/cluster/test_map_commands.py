"""The commands that inspect a cluster and move its slots, on a real cluster of two groups."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.tidelog.cluster.running import RunningCluster, running_cluster
from tests.waiting import eventually
from tidelog.cli.program import main
from tidelog.cluster import checks
from tidelog.cluster.display import _rows
from tidelog.cluster.view import ClusterView, GroupView, MemberView, add_unmapped
from tidelog.transport.access import Access


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    options = ("--groups", "2", "--set", "group-lease=2000")
    with running_cluster(tmp_path_factory.mktemp("cluster"), *options) as made:
        yield made


def run(cluster: RunningCluster, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["cluster", *words, "--dir", str(cluster.directory)])
    assert done.exit_code == code, done.output
    return done.output


def owned(cluster: RunningCluster) -> dict[str, int]:
    found = json.loads(run(cluster, "status", "--json"))
    return {name: group["slots"] for name, group in found["groups"].items()}


def test_status(cluster: RunningCluster) -> None:
    text = run(cluster, "status")
    lines = text.splitlines()
    assert lines[0].startswith("cluster tide: 2 groups, map version ")
    assert lines[0].endswith("all slots are assigned")
    assert f"slots  {'1' * 32}{'2' * 32}" in lines
    assert f"1      8,192  1      1a      127.0.0.1:{cluster.port}  leading  yes      -" in text
    assert max(map(len, lines[:7])) <= 80
    by_url = CliRunner().invoke(main, ["cluster", "status", "--url", f"redis://127.0.0.1:{cluster.port + 1}"])
    assert f"slots  {'1' * 32}{'2' * 32}" in by_url.output
    assert "--dir and --url exclude" in run(cluster, "status", "--url", "redis://127.0.0.1:1", code=2)
    assert "no problems: 2 groups, 2 members" in run(cluster, "check")


def test_the_coordinator_is_away(cluster: RunningCluster) -> None:
    """It is reported at once, not when a lease has expired."""
    directory = cluster.directory / "coordinator"
    url = f"redis://127.0.0.1:{cluster.port}"
    directory.rename(cluster.directory / "away")
    try:
        found = run(cluster, "check", code=1)
        assert "coordinator" in found
        assert "no problems" not in found
    finally:
        (cluster.directory / "away").rename(directory)
    eventually(lambda: "no problems" in CliRunner().invoke(main, ["cluster", "check", "--url", url]).output)
    directory.rename(cluster.directory / "away")
    try:
        shown = CliRunner().invoke(main, ["group", "status", "--url", url])
        assert "coordinator" in shown.output
    finally:
        (cluster.directory / "away").rename(directory)
    eventually(lambda: "no problems" in CliRunner().invoke(main, ["cluster", "check", "--url", url]).output)


def test_slots_move_with_their_keys(cluster: RunningCluster) -> None:
    cluster.ask("1a", "SET", "{b}", "1")  # slot 3300
    assert "moved 1,001 slots from group 1 to group 2: 3000-4000" in run(cluster, "move", "3000-4000", "--to", "2")
    assert cluster.ask("2a", "GET", "{b}") == "1"
    assert "moved 1,001 slots from group 2 to group 1: 3000-4000" in run(cluster, "move", "3000-4000", "--to", "1")
    assert cluster.ask("1a", "GET", "{b}") == "1"
    assert "moved 2,000 slots from group 1 to group 2: 0-1999" in run(cluster, "move", "0-1999", "--to", "2")
    assert "2,000 slots already belonged to group 2" in run(cluster, "move", "0-1999", "--to", "2")
    assert "there is no group 9" in run(cluster, "move", "0", "--to", "9", code=1)
    assert "would move" in run(cluster, "rebalance", "--dry-run")
    assert owned(cluster) == {"1": 6192, "2": 10192}
    assert "slots: group 1: 8,192, group 2: 8,192" in run(cluster, "rebalance", "--only-empty")
    assert cluster.ask("1a", "GET", "{b}") == "1"
    assert "group 1 has keys already" in run(cluster, "create", code=1)


def test_a_group_joins_and_leaves(cluster: RunningCluster) -> None:
    assert f"group 3 has joined: 3a (127.0.0.1:{cluster.port + 2})" in run(cluster, "add")
    assert "group 3 owns no slots" in run(cluster, "check", code=1)
    run(cluster, "rebalance")
    assert sorted(owned(cluster).values()) == [5461, 5461, 5462]
    run(cluster, "move", "3300", "--to", "3")
    assert cluster.ask("3a", "GET", "{b}") == "1"
    assert "group 3 owns 5,462 slots: move them" in run(cluster, "remove", "3", code=1)
    run(cluster, "rebalance", "--without", "3")
    assert "1" in (cluster.ask("1a", "GET", "{b}"), cluster.ask("2a", "GET", "{b}"))
    assert "group 3 was removed" in run(cluster, "remove", "3")
    assert "there is no group 3: the groups are 1, 2" in run(cluster, "remove", "3", code=1)
    assert cluster.running() == ["1a", "2a"]
    assert owned(cluster) == {"1": 8192, "2": 8192}


def test_a_group_that_is_not_in_sync(cluster: RunningCluster) -> None:
    """Also if the slots are empty, which are assigned without a copy."""
    error = "group 2 is not in sync: 1 of its members are, and min-in-sync is 2"
    cluster.ask("2a", "CONFIG", "SET", "min-in-sync", "2")
    try:
        eventually(lambda: '"min_in_sync": 2' in cluster.ask("2a", "TMEMBER", "STATUS"), "the setting is known")
        assert error in run(cluster, "move", "100", "--to", "2", code=1)
        assert error in run(cluster, "rebalance", "--without", "1", code=1)
    finally:
        cluster.ask("2a", "CONFIG", "SET", "min-in-sync", "1")
    eventually(lambda: '"min_in_sync": 2' not in cluster.ask("2a", "TMEMBER", "STATUS"), "the setting is known")
    assert owned(cluster) == {"1": 8192, "2": 8192}


def test_a_suspended_member(cluster: RunningCluster) -> None:
    os.kill(cluster.pid("2a"), signal.SIGSTOP)
    try:
        assert "warning: group 2 has no leader that replies: its slots are not served" in run(cluster, "status")
        assert "group 2 has no leader that replies" in run(cluster, "rebalance", code=1)
        assert "group 2 has no leader that replies" in run(cluster, "move", "0", "--to", "2", code=1)
    finally:
        os.kill(cluster.pid("2a"), signal.SIGCONT)
    eventually(lambda: "has no leader" not in run(cluster, "status"), "group 2 is led again")


def test_no_cluster(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["cluster", "status", "--url", "redis://127.0.0.1:1"])
    assert done.exit_code == 1
    assert "127.0.0.1:1: no reply" in done.output
    assert "is not the directory of a cluster" in run(RunningCluster(tmp_path), "status", code=1)


def view(slots: list[list[object]], hosts: tuple[str, str, str] = ("a", "a", "b")) -> ClusterView:
    """A cluster of the groups 1 (members 1a, 1b) and 2 (2a), none of which replies."""

    def member(name: str, host: str, node_id: str) -> MemberView:
        return MemberView(name, host, 1, "redis://127.0.0.1:1", node_id, problem="no reply")

    groups = {
        "1": GroupView("1", 1, "1a", {"1a": member("1a", hosts[0], "x"), "1b": member("1b", hosts[1], "y")}),
        "2": GroupView("2", 1, "2a", {"2a": member("2a", hosts[2], "x")}),
    }
    status = {"cluster": "tide", "warnings": []}
    owners = [next((str(group) for first, last, group in slots if first <= slot <= last), "") for slot in range(16384)]  # type: ignore[operator]
    return ClusterView(Access(), "", status, {"slots": slots, "cluster_id": "c", "version": 1}, groups, owners)


def test_a_member_that_is_not_connected() -> None:
    """After some seconds, only the status of its group has it."""
    found = view([[0, 16383, "1"]])
    group = found.groups["2"]
    shown = {"name": "2b", "address": "[::1]:7003", "id": "z", "in_sync": False, "state": "not connected"}
    group.status = {"phase": "leading", "member": "2a", "members": [{"name": "2a", "in_sync": True}, shown]}
    add_unmapped(group, "redis://u:p@a:1")
    assert (group.members["2b"].address, group.members["2b"].url) == ("[::1]:7003", "redis://u:p@[::1]:7003")
    assert any("2b" in cells and "[::1]:7003" in cells and "not connected" in cells for cells in _rows(group, 0))
    found.groups["2"].members["2b"].problem = "no reply"
    problems = checks.problems(found)
    assert "group 2: 2b is not in sync (not connected)" in problems
    assert any(each.startswith("2b ([::1]:7003): no reply") for each in problems)
    assert not any("the map does not have" in each for each in problems)


def test_a_member_without_a_map() -> None:
    found = view([[0, 16383, "1"]])
    found.groups["2"].members["2a"].reply = {"map": None, "problem": "the coordinator does not reply"}
    (problem,) = [each for each in checks._maps(found) if each.startswith("2a ")]
    assert problem == "2a (b:1) does not know the map: the coordinator does not reply"


def test_problems() -> None:
    found = checks.problems(view([[0, 99, "1"], [50, 99, "2"], [200, 16383, "3"]]))
    assert "50-99 belong to group 1 and to group 2: restore the map" in found
    assert "the map gives 200-16383 to the unknown group 3: restore the map (TCLUSTER RESTORE)" in found
    assert "100-199 belong to no group: assign them with tidelog cluster rebalance" in found
    assert any(each.startswith("1a (a:1): no reply") for each in found)
    assert "group 1: 1a, 1b are on the machine a: its loss would end all of them" in found
    assert any(each.startswith("1a, 2a have the same node ID") for each in found)
    local = checks.problems(view([[0, 16383, "1"]], ("a", "a", "a")))
    assert not any("machine" in each for each in local)
    assert any(each.startswith("group 2 owns no slots") for each in local)
