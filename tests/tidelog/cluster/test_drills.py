"""The drills of docs/clusters.md: their commands run as written, except for the port, while a program writes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.tidelog.cluster.running import RunningCluster
from tests.waiting import eventually
from tidelog import Client
from tidelog.serverprogram import server_environment

DOCS = Path(__file__).parents[3] / "docs" / "clusters.md"
KEYS = ("{b}", "{a}")  # slots 3300 and 15495
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def commands(number: int) -> list[str]:
    """The commands of a drill, in order."""
    section = DOCS.read_text().split("\n### Drills\n")[1].split("\n## ")[0]
    text = re.split(r"^\d\. ", section, flags=re.MULTILINE)[number]
    found = re.findall(r"`([^`]+)`|^       (\S.*)$", text, re.MULTILINE)
    return [one or other for one, other in found if " " in (one or other)]


class Drills:
    """A cluster of two groups of two members, and a program that counts in both groups all the time."""

    def __init__(self, top: Path) -> None:
        self.cluster = RunningCluster(top, "cluster")
        self.cluster.up("--groups", "2", "--replicas", "1")
        self.acked = dict.fromkeys(KEYS, 0)
        self._top = top
        self._ending = threading.Event()
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.cluster.members.values())
        self._url = f"redis://{hosts}?socket_timeout=1"
        self._writer = threading.Thread(target=self._write)
        self._writer.start()

    def close(self) -> None:
        self._ending.set()
        self._writer.join()
        self.cluster.kill()

    def _write(self) -> None:
        with Client(self._url) as client:
            while not self._ending.wait(0.002):
                for key in KEYS:
                    with suppress(redis.RedisError):
                        number: Any = client.redis.incr(key)
                        self.acked[key] = int(number)

    def _shell(self, command: str) -> tuple[str, dict[str, str]]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return command.replace("-p 7000", f"-p {self.cluster.port}"), server_environment() | {"PATH": path}

    def start(self, command: str) -> subprocess.Popen[str]:
        text, environment = self._shell(command)
        return subprocess.Popen(
            ["sh", "-c", f"exec {text}"], cwd=self._top, env=environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, command: str, code: int = 0) -> str:
        text, environment = self._shell(command)
        done = subprocess.run(
            ["sh", "-c", text], cwd=self._top, env=environment, text=True, stdin=subprocess.DEVNULL, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
        )  # fmt: skip
        assert done.returncode == code, done.stdout
        return done.stdout

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cluster.run("status", "--json"))
        return found

    def leads(self, member: str) -> bool:
        return bool((self.cluster.ask(member, "ROLE") or [""])[0] == "master")

    def lead(self, member: str) -> None:
        """Let a member lead its group. Another one may, because a leader that stalls on a busy machine is replaced."""
        self.recovered()
        other = member[0] + ("b" if member[1] == "a" else "a")
        if not self.leads(member):
            self.cluster.ask(other, "FAILOVER")
            eventually(lambda: self.leads(member), f"{member} leads")
            self.recovered()

    def follows(self, member: str) -> bool:
        return bool((self.cluster.ask(member, "ROLE") or [])[3:4] == ["connected"])

    def recovered(self) -> None:
        """Wait until all members are in sync and calls are executed again. No acknowledged one is lost."""
        eventually(lambda: all(map(self._in_sync, self.cluster.members)), "all members are in sync")
        before = dict(self.acked)
        eventually(lambda: all(self.acked[key] > before[key] for key in KEYS), "calls are executed")
        with Client(self._url) as client:
            for key in KEYS:
                least = self.acked[key]
                now: Any = client.redis.get(key)
                assert int(now) >= least

    def _in_sync(self, member: str) -> bool:
        status = json.loads(self.cluster.ask(member, "TMEMBER", "STATUS") or "{}")
        return len(status.get("in_sync", ())) == 2


@pytest.fixture(scope="module")
def drills(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drills]:
    made = Drills(tmp_path_factory.mktemp("drills"))
    try:
        yield made
    finally:
        made.close()


def test_1_a_leader_is_killed(drills: Drills) -> None:
    (kill,) = commands(1)
    drills.lead("1a")
    drills.run(kill)
    eventually(lambda: drills.leads("1b"), "the replica leads")
    eventually(lambda: drills.follows("1a"), "1a follows")
    drills.recovered()


@pytest.mark.long  # waits for the end of a lease
def test_2_a_leader_is_suspended(drills: Drills) -> None:
    stop, go_on = commands(2)
    drills.lead("2a")
    drills.run(stop)
    try:
        eventually(lambda: drills.leads("2b"), "the replica leads")
    finally:
        drills.run(go_on)
    eventually(lambda: drills.follows("2a"), "2a follows")
    drills.recovered()


@pytest.mark.long  # test_up.py kills a supervisor, too
def test_3_the_supervisor_is_killed(drills: Drills) -> None:
    kill, up = commands(3)
    before = {name: drills.cluster.pid(name) for name in drills.cluster.members}
    drills.run(kill)
    eventually(lambda: drills.cluster.ended, "the supervisor has ended")
    drills.recovered()
    assert up == "tidelog cluster up --dir ./cluster"
    drills.cluster.up()
    assert {name: drills.cluster.pid(name) for name in before} == before


def test_4_slots_move(drills: Drills) -> None:
    (move,) = commands(4)
    leader = "1b" if drills.leads("1b") else "1a"
    with drills.cluster.client(leader) as client:  # a stage with slots that move and slots that stay: the move waits
        client.execute_command("CLIENT", "MULTISLOT", "ON")
        for key in ("{b}y", "{c}y"):
            client.execute_command("TSTAGE", "{b}stage", "600000", key, "FIELDS", "1", "f", "VALUES", "v")
        moving = drills.start(move)
        eventually(lambda: json.loads(drills.cluster.ask("1a", "TCLUSTER", "MAP"))["moves"], "the move has begun")
        moving.send_signal(signal.SIGINT)
        shown, _ = moving.communicate(timeout=60)
        assert moving.returncode == 1, shown
        assert "the move was aborted: 4,096 slots remain with group 1, with their keys" in shown
        client.execute_command("TDROP", "{b}stage")
    assert "moved 4,096 slots from group 1 to group 2: 0-4095" in drills.run(move)
    drills.recovered()


@pytest.mark.long  # test_map_commands.py adds and removes a group, too
def test_5_a_group_joins_and_leaves(drills: Drills) -> None:
    add, rebalance, without, remove = commands(5)
    assert "group 3 has joined" in drills.run(add)
    drills.run(rebalance)
    assert sorted(group["slots"] for group in drills.status()["groups"].values()) == [5461, 5461, 5462]
    drills.recovered()
    drills.run(without)
    assert "group 3 was removed" in drills.run(remove)
    drills.recovered()


@pytest.mark.long  # waits for the end of all leases
@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="no redis-cli here (Debian: redis-tools)")
def test_6_the_coordinator_is_stopped(drills: Drills) -> None:
    away, check, write, back = commands(6)
    drills.run(away)
    try:
        assert "coordinator" in drills.run(check, code=1)
        eventually(lambda: _still(drills), "no replies")
        writing = drills.start(write)
    finally:
        drills.run(back)
    shown, _ = writing.communicate(timeout=60)
    assert "OK" in shown or "closed the connection" in shown, shown
    drills.recovered()


def _still(drills: Drills) -> bool:
    """Whether no call gets a reply for half a second."""
    before = dict(drills.acked)
    time.sleep(0.5)
    return before == drills.acked
