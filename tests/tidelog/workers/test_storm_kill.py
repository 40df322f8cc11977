"""Random schedules of what can go wrong with worker processes and their server, for as long as TIDELOG_LONG says."""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.tidelog.workers.history import History
from tests.tidelog.workers.storm import PARTITIONS, Storm, source
from tests.tidelog.workers.workerkit import Order
from tidelog.testing import Server
from tidelog.workers import App

CASES = [("partition", False), ("key", False), ("none", False), ("partition", True), ("key", True)]
SECONDS = float(os.environ.get("TIDELOG_LONG") or 0.4) * 60 / len(CASES)  # of each


@pytest.mark.long(short=True)
@pytest.mark.timeout(SECONDS + 400)
@pytest.mark.parametrize(("ordering", "transactional"), CASES)
def test_a_storm(tidelog_server: Server, tmp_path: Path, ordering: str, transactional: bool) -> None:
    seed = int(os.environ.get("TIDELOG_SEED") or time.time_ns() % 1_000_000)
    print(f"TIDELOG_SEED={seed}")  # pytest shows it where the test fails
    topic = App("shop", tidelog_server.url).topic("orders", Order, partition_by="key", partitions=PARTITIONS)
    storm = Storm(tidelog_server, tmp_path, source(ordering, transactional), random.Random(seed))
    try:
        storm.blow(SECONDS, topic)
        streams = {
            at: [(fields["key"].decode(), entry_id) for entry_id, fields in storm.entries(f"orders:{at}")]
            for at in range(PARTITIONS)
        }
        history = History(streams, ordering, storm.pauses)
        with (tmp_path / "history").open() as lines:
            history.check(lines)
        print(f"{storm.counts}, {sum(map(len, streams.values()))} events, {history.begun} calls, "
              f"{len(history.late)} of them late")  # fmt: skip
        assert not history.wrong, "\n".join(history.wrong[:20])
        assert history.unfinished() == []
        there = {int(fields["id"]) for at in range(PARTITIONS) for _, fields in storm.entries(f"orders:{at}")}
        assert storm.sent <= there
        if transactional:
            once(storm, streams)
        assert "Traceback" not in storm.logs()
    except BaseException:
        print(storm.logs()[-200_000:])
        raise
    finally:
        storm.close()
        topic.close_sync()


def once(storm: Storm, streams: dict[int, list[tuple[str, tuple[int, int]]]]) -> None:
    """Each event was sent on once, and those of a key in their order."""
    wanted: dict[str, list[str]] = defaultdict(list)
    for at, entries in streams.items():
        for key, (ms, seq) in entries:
            wanted[key].append(f"{at} {ms}.{seq}")
    found: dict[str, list[str]] = defaultdict(list)
    for at in range(3):
        for _, fields in storm.entries(f"out:{at}"):
            found[fields["key"].decode()].append(fields["origin"].decode())
    for key in wanted.keys() | found.keys():
        assert Counter(found[key]) == Counter(wanted[key])
        assert found[key] == wanted[key]
