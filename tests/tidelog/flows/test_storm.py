"""Flows as processes in a storm: whatever is killed, nothing is lost, nothing stays owed, duplicates are bounded."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidelog.flows.storm import Storm
from tests.tidelog.flows.stormflows import Case, made
from tidelog.testing import Server, running_server

pytestmark = pytest.mark.slow
MINUTES = float(os.environ.get("TIDELOG_LONG") or 0.1)  # the same in short is tested always
ACTIONS = {
    "kill": 8, "early": 4, "drain": 6, "twice": 1, "server": 6, "links": 4, "peer": 8, "flap": 4, "coma": 2,
    "pauses": 6, "parts": 5, "replace": 8, "undeploy": 5,
}  # fmt: skip


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server(appendfsync="always") as server:
        yield server


def seeded() -> tuple[int, random.Random]:
    seed = int(os.environ.get("TIDELOG_SEED") or time.time_ns() % 1_000_000)
    print(f"TIDELOG_SEED={seed}")  # pytest shows it where the test fails
    return seed, random.Random(seed)


async def blow(storm: Storm, steps: list[list[str]], chance: random.Random) -> None:
    try:
        async with storm:
            await storm.listening()
            for step in steps:
                await storm.act(*step)
                if chance.random() < 0.8:
                    await storm.flowing()
                await asyncio.sleep(chance.choice([0.1, 0.4, 1.5]))
            await storm.calm()
            print(await storm.check())
    except BaseException:
        print(dict(storm.counts), *storm.cases.values(), *storm.wrong[:20], storm.log()[-50_000:], sep="\n")
        raise


SHORT = {
    "streams": (
        [("stream", "fan2", "http"), ("instances", "unbatch", "stream"), ("stream", "failing", "http")],
        [["kill"], ["peer", "pauses"], ["server"], ["drain"]],
    ),
    "files": (
        [("file", "diamond", "stream"), ("file_wal", "batch", "http"), ("file", "window", "file")],
        [["kill"], ["flap"], ["replace", "server"], ["replace"]],
    ),
    "letters": (
        [("stream", "hopeless", "http"), ("file", "hopeless", "stream"), ("wal", "hopeless", "file")],
        [["kill"], ["server", "flap"], ["drain"]],
    ),
    "requests": (
        [("http", "roundrobin", "http"), ("wal", "fanin", "stream"), ("wal", "filter", "file")],
        [["kill", "server"], ["peer"], ["replace"], ["drain"]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.timeout(300)
def test_a_short_storm(server: Server, tmp_path: Path, name: str) -> None:
    _, chance = seeded()
    flows, steps = SHORT[name]
    cases = [Case(f"f{at}", source, shape, sink, tmp_path) for at, (source, shape, sink) in enumerate(flows)]
    asyncio.run(blow(Storm(server, tmp_path, chance, cases), steps, chance))


@pytest.mark.long
@pytest.mark.timeout(MINUTES * 60 + 900)
def test_a_storm(server: Server, tmp_path: Path) -> None:
    """One storm after the other, each with flows of its own."""
    seed, chance = seeded()
    end = time.monotonic() + MINUTES * 60
    turn = 0
    while time.monotonic() < end:
        folder = tmp_path / f"storm{turn}"
        folder.mkdir()
        cases = [made(f"t{turn}f{at}", folder, chance) for at in range(4)]
        steps = [
            list(dict.fromkeys(chance.choices(list(ACTIONS), list(ACTIONS.values()), k=chance.choice([1, 1, 2, 3]))))
            for _ in range(chance.choice([4, 8, 12]))
        ]
        print(f"-- seed {seed}, storm {turn}: {steps}", flush=True)
        asyncio.run(blow(Storm(server, folder, chance, cases), steps, chance))
        turn += 1
