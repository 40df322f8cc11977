"""An engine runs jobs over two groups while processes are killed and slots move; the totals are exact."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.replication.cluster import cluster
from tests.replication.clusters import Groups
from tests.simulation.test_seeds import MINUTES
from tests.tidelog.jobs import groupsjob
from tests.tidelog.jobs.groupskit import check, entries, some
from tidelog import Client
from tidelog.jobs.testengine import EngineTest, running_engine
from tidelog.testing import Server
from tidelog.transport.slots import SLOTS

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[jobs]')")


@pytest.mark.long
@pytest.mark.timeout(900 + 120 * MINUTES)
def test_storm(tmp_path: Path) -> None:
    seed = int(time.time())
    print(f"seed {seed}")
    chosen, sent = random.Random(seed), 0
    with cluster() as servers:
        groups = Groups(servers, members=2)
        url = groups.url()
        server = cast("Server", SimpleNamespace(url=url))
        jobs = (groupsjob.both, groupsjob.framing, groupsjob.tallying)
        with Client(url) as client:
            for topic in {topic for job in jobs for topic in (*job.inputs, *job.outputs)}:
                topic.use(sync=client)
            groupsjob.clicks.sync.ready()
            with running_engine(server, *jobs, lease=5.0, store=f"file://{tmp_path}") as engine:
                faults = {
                    "engine": lambda: _killed(engine), "leader": lambda: _restart(groups, chosen),
                    "move": lambda: _move(groups, chosen), "nothing": lambda: time.sleep(chosen.random() * 3),
                }  # fmt: skip
                left = chosen.sample(list(faults), len(faults))  # each happens at least once, while the jobs run
                groupsjob.clicks.sync.send_many(some(sent, 30))
                sent += 30
                engine.idle(timeout=300)
                done: dict[str, int] = {}
                end = time.monotonic() + MINUTES * 60
                while time.monotonic() < end or left:
                    for _ in range(chosen.randint(1, 20)):
                        groupsjob.clicks.sync.send_many(some(sent, 30))
                        sent += 30
                    fault = left.pop() if left else chosen.choice(list(faults))
                    done[fault] = done.get(fault, 0) + 1
                    faults[fault]()
                    if chosen.random() < 0.3:
                        time.sleep(chosen.random() * 10)  # the engine needs some seconds to start
                groupsjob.clicks.sync.send_many(some(sent, 30))
                sent += 30
                engine.idle(timeout=600)
                print(f"{sent} clicks, faults: {done}")
                check(client, groupsjob.copies, groupsjob.totals, sent)
                check(client, groupsjob.framed, groupsjob.tallies, sent)
                halves = Counter(int(entry["n"]) for entry in entries(client, groupsjob.halves))
                assert halves == Counter(range(0, sent, 2))


def _killed(engine: EngineTest) -> None:
    engine.kill()
    engine.start()


def _restart(groups: Groups, chosen: random.Random) -> None:
    """Kill the leader of a group."""
    node = groups.leader(chosen.choice([1, 2]))
    node.kill()
    time.sleep(chosen.random())
    node.start()
    groups.agree()


def _move(groups: Groups, chosen: random.Random) -> None:
    """Move some slots to the other group. Another move may be in progress, and a move may be aborted."""
    first = chosen.randrange(SLOTS)
    owned: list[Any] = [each for each in groups.agree()["slots"] if each[0] <= first <= each[1]]
    owner = str(owned[0][2])
    last = min(owned[0][1], first + chosen.randrange(SLOTS // 2))
    with suppress(AssertionError):
        groups.move(f"{first}-{last}", to="1" if owner == "2" else "2", at=owner)
