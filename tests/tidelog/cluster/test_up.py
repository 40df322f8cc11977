"""``tidelog cluster up`` and ``down`` with real processes: signals, kills, a second start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
import redis

from tests.tidelog.cluster.running import PROGRAM, READY, RunningCluster, running_cluster, seconds
from tests.waiting import eventually
from tidelog.serverprogram import server_environment


def test_start_and_stop(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--groups", "2", "--replicas", "1", "--set", "appendfsync=everysec") as cluster:
        assert list(cluster.members) == ["1a", "1b", "2a", "2b"]
        assert list(cluster.members.values()) == list(range(cluster.port, cluster.port + 4))
        assert f"Clients  redis://127.0.0.1:{cluster.port},127.0.0.1:{cluster.port + 1}" in cluster.output
        for name in cluster.members:
            with cluster.client(name) as client:
                assert client.config_get("appendfsync", "min-in-sync") == {
                    "appendfsync": "everysec",
                    "min-in-sync": "1",
                }
                assert str(client.info("replication")["group"]) == name[0]
        assert "runs the cluster" in cluster.run("up", code=1)
        assert cluster.send(signal.SIGINT) == 0
        assert cluster.output.endswith("Stopping 4 members ...\nStopped.\n")
        assert cluster.running() == []
        for group in "12":  # the replica stopped first: nobody had to hand over
            logs = [(cluster.directory / name / "server.log").read_text() for name in (f"{group}a", f"{group}b")]
            assert not any("handed over" in log for log in logs)
        assert "does not run" in cluster.run("down", code=1)


def test_members_outlive_a_killed_supervisor(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--groups", "2") as cluster:
        with cluster.client("1a") as client:
            client.execute_command("TAPPEND", "{b}", "n", 1)
        before = {name: cluster.pid(name) for name in cluster.members}
        cluster.send(signal.SIGKILL)
        assert cluster.running() == ["1a", "2a"]
        assert "--set would not apply" in cluster.run("up", "--set", "maxmemory=1gb", code=1)

        cluster.up()
        assert "2 members run already" in cluster.output
        assert {name: cluster.pid(name) for name in cluster.members} == before

        os.kill(before["1a"], signal.SIGKILL)  # an adopted member is started again, too
        eventually(lambda: cluster.output.count("member 1a runs again") == 1)
        assert cluster.pid("1a") != before["1a"]
        os.kill(cluster.pid("1a"), signal.SIGTERM)
        eventually(lambda: "member 1a has ended with status 0" in cluster.output)
        eventually(lambda: cluster.output.count("member 1a runs again") == 2)
        eventually(lambda: cluster.ask("1a", "TLEN", "{b}") == 1, "the data is there")

        assert "Stopped." in cluster.run("down")
        assert cluster.process is not None
        assert cluster.process.wait(10) == 0
        assert cluster.running() == []


def test_settings_are_not_in_the_list_of_processes(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--groups", "1", "--set", 'requirepass="top \\" secret"') as cluster:
        assert b"secret" not in Path(f"/proc/{cluster.pid('1a')}/cmdline").read_bytes()
        with redis.Redis(port=cluster.members["1a"], password='top " secret') as client:
            assert client.ping()
        os.kill(cluster.pid("1a"), signal.SIGKILL)
        eventually(lambda: "member 1a runs again" in cluster.output)
        assert b"secret" not in Path(f"/proc/{cluster.pid('1a')}/cmdline").read_bytes()


def test_members_are_started_again_when_nobody_reads_the_output(tmp_path: Path) -> None:
    cluster = RunningCluster(tmp_path)
    words = ["up", "--dir", str(cluster.directory), "--port", str(cluster.port), "--groups", "1"]
    cluster.process = subprocess.Popen(
        [*PROGRAM, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=server_environment(),
    )  # fmt: skip
    try:
        assert cluster.process.stdout is not None
        with cluster.process.stdout as output:
            assert any(READY.encode() in line for line in output)
        before = cluster.pid("1a")
        os.kill(before, signal.SIGKILL)
        eventually(lambda: cluster.pid("1a") not in (0, before) and cluster.answers("1a"))
        assert not cluster.ended
    finally:
        cluster.kill()


def test_down_without_a_supervisor_and_with_a_suspended_member(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--groups", "1", "--replicas", "1") as cluster:
        cluster.send(signal.SIGKILL)
        os.kill(cluster.pid("1b"), signal.SIGSTOP)
        assert "Stopping 2 members without a supervisor" in cluster.run("down")
        assert cluster.running() == []


def test_two_starts_at_the_same_time(tmp_path: Path) -> None:
    first = RunningCluster(tmp_path)
    second = RunningCluster(tmp_path)
    second._log = tmp_path / "second.output"
    try:
        first.up("--groups", "1", ready=False)
        second.up("--groups", "1", ready=False)
        ended = eventually(lambda: next((each for each in (first, second) if each.ended), None))
        assert "runs the cluster" in ended.output
        other = second if ended is first else first
        eventually(lambda: READY in other.output)
    finally:
        first.kill()
        second.kill()


def test_a_member_that_fails_at_each_start(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--groups", "2") as cluster:
        cluster.send(signal.SIGTERM)
        marker = cluster.directory / "2a" / "data" / "tidelog.format"
        content = marker.read_text()
        marker.write_text("garbage\n")
        cluster.up(ready=False)
        eventually(lambda: len(seconds(cluster.output)) >= 3)
        assert seconds(cluster.output)[:3] == [0.2, 0.4, 0.8]
        assert "member 2a has ended with status 1" in cluster.output
        assert "not a tidelog data directory" in cluster.output
        assert cluster.answers("1a")
        marker.write_text(content)
        eventually(lambda: READY in cluster.output)


def test_ports_in_use(tmp_path: Path) -> None:
    cluster = RunningCluster(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", cluster.port + 1))
        taken.listen()
        text = cluster.run("up", "--groups", "2", "--port", str(cluster.port), code=1)
    assert f"these ports are in use: {cluster.port + 1} (2a)" in text
    assert not (cluster.directory / "cluster.json").exists()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--set", "appendfsync=sometimes"], "argument(s) must be one of the following"),
        (["--", "--no-such-directive", "1"], "unknown word"),
        (["--bind", "no-such-host.invalid"], "--bind no-such-host.invalid can't be used"),
    ],
)
def test_settings_that_the_server_refuses(tmp_path: Path, options: list[str], error: str) -> None:
    cluster = RunningCluster(tmp_path)
    assert error in cluster.run("up", "--port", str(cluster.port), *options, code=1)
    assert not (cluster.directory / "cluster.json").exists()


def test_a_lost_coordinator_is_not_created_again(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--groups", "1") as cluster:
        cluster.send(signal.SIGTERM)
        (cluster.directory / "coordinator").rename(tmp_path / "elsewhere")
        assert "restore it from a backup" in cluster.run("up", code=1)
        (tmp_path / "elsewhere").rename(cluster.directory / "coordinator")
        cluster.up()
