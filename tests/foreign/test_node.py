"""node-redis and ioredis: all their stream commands, and consumers that outlive a killed server."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.foreign.servers import PATIENCE, Target, pending, until

HERE = Path(__file__).parent / "node"
PROGRAMS = {"node-redis": ["2"], "node-redis resp3": ["3"], "ioredis": []}  # and the end of their command lines


@pytest.fixture(scope="session")
def modules(request: pytest.FixtureRequest) -> Path:
    """The libraries of package-lock.json, in pytest's cache: `npm ci` runs once for each state of that file."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here (Debian: apt-get install nodejs npm)")
    lock = (HERE / "package-lock.json").read_bytes()
    folder = Path(request.config.cache.mkdir("node-" + hashlib.sha256(lock).hexdigest()[:16]))
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # several processes run tests
        if not (folder / "complete").exists():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / name, folder)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
            ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
            if ran.returncode != 0:
                said = (ran.stderr.strip().splitlines() or ["nothing"])[0]
                pytest.skip(f"npm could not install node-redis and ioredis here: {said}")
            (folder / "complete").touch()
    path = folder / "node_modules"
    probe = subprocess.run(
        ["node", "-e", "require('redis'); require('ioredis')"], env=_environment(path), capture_output=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip("node-redis and ioredis do not load here: they need node 20 or later")
    return path


def _environment(modules: Path) -> dict[str, str]:
    return os.environ | {"NODE_PATH": str(modules)}


class Program:
    """A running program and the lines that it has said."""

    def __init__(self, modules: Path, program: str, what: str, target: Target, name: str = "c") -> None:
        script = HERE / f"{program.split()[0]}.js"
        command = ["node", str(script), what, target.url, name, *PROGRAMS[program]]
        self.process = subprocess.Popen(command, env=_environment(modules), stdout=subprocess.PIPE, text=True)
        self._lines: queue.Queue[Any] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))

    def count(self) -> int:
        """How many lines are there at least."""
        return self._lines.qsize()

    def line(self) -> Any:
        return self._lines.get(timeout=PATIENCE)

    def lines(self) -> list[Any]:
        """All that it says until it ends."""
        assert self.process.wait(PATIENCE) == 0
        self._reader.join(PATIENCE)
        return [self._lines.get_nowait() for _ in range(self._lines.qsize())]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def running(*arguments: Any) -> Iterator[Program]:
    program = Program(*arguments)
    try:
        yield program
    finally:
        program.kill()


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_same_results(both: tuple[Target, Target], modules: Path, program: str) -> None:
    with running(modules, program, "tour", both[0]) as theirs, running(modules, program, "tour", both[1]) as mine:
        expected, got = theirs.lines(), mine.lines()
    assert len(expected) > 35
    for at, pair in enumerate(zip(expected, got, strict=True)):
        assert pair[0] == pair[1], at


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_consumer_outlives_the_server(target: Target, modules: Path, program: str) -> None:
    """It waits in XREADGROUP BLOCK 0 on a duplicate of its connection while the server is killed and started again."""
    with running(modules, program, "consume", target, "a") as consumer:
        assert consumer.line() == "ready"
        for numbers in (range(30), range(30, 60)):
            with redis.Redis(port=target.port) as client:
                for number in numbers:
                    client.xadd("jobs", {"n": number})
            assert [consumer.line() for _ in numbers] == [{"name": "a", "n": number} for number in numbers]
            until(lambda: _waits(target))
            assert pending(target.port, "jobs", "g") == 0
            if numbers.start == 0:
                target.kill()
                target.start()


def _waits(target: Target) -> bool:
    with redis.Redis(port=target.port) as client:
        return bool(client.info("clients")["blocked_clients"] == 1)


@pytest.mark.parametrize("program", PROGRAMS)
def test_consumers_share(target: Target, modules: Path, program: str) -> None:
    with running(modules, program, "consume", target, "a") as a, running(modules, program, "consume", target, "b") as b:
        assert a.line() == b.line() == "ready"
        with redis.Redis(port=target.port) as client:
            until(lambda: client.info("clients")["blocked_clients"] == 2)
            for number in range(200):
                client.xadd("jobs", {"n": number})
            until(lambda: client.xinfo_groups("jobs")[0]["lag"] == 0)
        until(lambda: pending(target.port, "jobs", "g") == 0)
        said: list[Any] = []
        while len(said) < 200:
            said += [program.line() for program in (a, b) for _ in range(program.count())]
        assert sorted(line["n"] for line in said) == list(range(200))
        assert {line["name"] for line in said} == {"a", "b"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_claiming_what_a_dead_consumer_left(target: Target, modules: Path, program: str) -> None:
    with redis.Redis(port=target.port) as client:
        for number in range(10):
            client.xadd("jobs", {"n": number})
    with running(modules, program, "hang", target, "a") as consumer:
        assert [consumer.line() for _ in range(11)][1:] == [{"name": "a", "n": number} for number in range(10)]
    assert pending(target.port, "jobs", "g") == 10
    with running(modules, program, "rescue", target, "b") as rescuer:
        assert rescuer.lines() == [{"name": "b", "n": number} for number in range(10)]
    assert pending(target.port, "jobs", "g") == 0
