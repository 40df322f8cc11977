"""What a recovery can't do without: inputs, the replay log, snapshots; and what is told of it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[spark]')")
pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.tidelog.jobs.statekit import (  # noqa: E402
    clicks,
    count,
    counted,
    fresh,
    others,
    send,
)
from tests.tidelog.jobs.taskkit import Bench, changed  # noqa: E402 - needs pyarrow
from tidelog.jobs import keys, snapshots  # noqa: E402
from tidelog.jobs.task import recovery as recovering  # noqa: E402
from tidelog.testing import Server  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    fresh()
    yield
    fresh()


@pytest.fixture
def bench(tidelog_server: Server, tmp_path: Path) -> Bench:
    return Bench(tidelog_server, tmp_path / "a", count, 1)


# -- what can't be recovered ---------------------------------------------------------------------------------
def test_inputs_that_a_replay_needs_were_evicted(bench: Bench) -> None:
    for _ in range(3):
        send(bench, "a", "b")
        bench.epoch()
    bench.client.ttrim("clicks:0", count=3)
    bench.epoch()  # with its state, it needs none of them
    bench.lose_state()
    text = bench.failed("InputsLostError")
    assert "job 'count', partition 0, epoch 1: 2 of 2 entries of 'clicks:0' after 0.0 up to" in text
    assert "there is no snapshot" in text
    assert "overflow='protect' for topic 'clicks'" in text
    assert "tidelog jobs reset count" in text


def test_a_log_that_does_not_begin_at_the_beginning(bench: Bench) -> None:
    for _ in range(3):
        send(bench, "a")
        bench.epoch()
    bench.client.ttrim(keys.log("count", 0), count=1)
    bench.epoch()
    bench.lose_state()
    text = bench.failed("InputsLostError")
    assert "the replay log begins with epoch 3, and there is no snapshot" in text


def test_progress_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        send(bench, "a")
        bench.epoch()
    bench.lose_state()
    bench.tasks()
    key = keys.recovery("count", 0)
    assert bench.client.redis.get(key) == b'{"from":0,"epoch":1,"to":3,"rows":1}'  # then not before a second is over
    assert 0 < bench.client.redis.pttl(key) <= 10_000
    monkeypatch.setattr(recovering, "REPORT", 0.0)
    bench.lose_state()
    bench.tasks()
    assert bench.client.redis.get(key) == b'{"from":0,"epoch":3,"to":3,"rows":3}'


def test_a_long_log_is_read_in_pages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.jobs.replaylog.progress.PAGE", 4)
    for _ in range(11):
        send(bench, "a")
        bench.epoch()
    bench.lose_state()
    (result,) = bench.tasks()
    assert result.recovered == 11
    assert bench.version()[0] == 12


# -- snapshots -----------------------------------------------------------------------------------------------
def wait_for_snapshots(folder: Path, number: int) -> None:
    deadline = time.monotonic() + 30
    while len(list(folder.rglob("*.json"))) < number:
        assert time.monotonic() < deadline, [path.read_text() for path in folder.parent.rglob("snapshot.log")]
        time.sleep(0.02)


def test_what_is_before_the_snapshot_is_not_needed(bench: Bench, tmp_path: Path) -> None:
    bench.store = str(tmp_path / "objects")
    for _ in range(3):
        send(bench, "a", "b")
        bench.epoch()
    bench.snapshot = True
    bench.epoch()
    wait_for_snapshots(tmp_path / "objects", 1)
    bench.snapshot = False
    for _ in range(4):
        send(bench, "a")
        bench.epoch()
    before = bench.state()
    bench.client.ttrim("clicks:0", count=4)
    bench.lose_state()
    (result,) = bench.tasks()
    assert 4 <= result.recovered <= 5  # the snapshot is of epoch 3 or 4
    assert bench.state() == before
    bench.client.ttrim("clicks:0", count=2)
    bench.lose_state()
    text = bench.failed("InputsLostError")
    assert "the newest good snapshot is of epoch" in text


def test_a_snapshot_of_an_epoch_that_another_run_has_published_is_taken_back(bench: Bench, tmp_path: Path) -> None:
    bench.store = str(tmp_path / "objects")
    rival = bench.other(tmp_path / "b")
    send(bench, "a")
    bench.epoch()
    send(bench, "x")
    bench.snapshot = True
    bench.tasks()  # epoch 2, not published; the copy has it, or is of epoch 1
    wait_for_snapshots(tmp_path / "objects", 1)
    send(bench, "b")
    rival.epoch()
    bench.lose_state()
    bench.snapshot = False
    (result,) = bench.epoch()
    assert result.recovered == 1
    assert bench.state() == {b"a": 1, b"x": 1, b"b": 1, b"calls": 2, b"last": 2}


def test_an_object_store_that_does_not_answer_is_asked_again(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(bench, "a")
    bench.epoch()
    bench.lose_state()
    bench.store = str(tmp_path / "objects")

    def refuse(*args: Any, **options: Any) -> bool:
        raise snapshots.SnapshotError("503 Slow Down")

    with monkeypatch.context() as faulty:
        faulty.setattr(snapshots, "restore", refuse)
        text = bench.failed("")
        assert "job 'count', partition 0: its state cannot be recovered yet: 503 Slow Down" in text
    (result,) = bench.tasks()
    assert result.recovered == 1


def test_an_object_store_that_can_not_be_used_here(bench: Bench) -> None:
    send(bench, "a")
    bench.epoch()
    bench.lose_state()
    bench.store = "nosuch://bucket/objects"
    bench.failed("JobError")


def test_at_random_it_is_as_if_nothing_had_happened(bench: Bench, tmp_path: Path) -> None:
    """Rivals take turns, publish or not, lose their disks, and declare other limits."""
    dice = random.Random(4711)
    benches = [bench, bench.other(tmp_path / "b"), bench.other(tmp_path / "c")]
    sent: Counter[str] = Counter()
    for _ in range(120):
        mine = dice.choice(benches)
        mine.use(changed(count, max_rows=dice.choice([1, 3, 100]), merge=dice.choice(["inputs", "time"])))
        users = dice.choices("abcdef", k=dice.randrange(6))
        if users:
            send(bench, *users, to=dice.choice([clicks, others]))
            sent.update(users)
        if dice.random() < 0.1:
            mine.lose_state()
        if dice.random() < 0.05:
            mine.run = mine.run[::-1]
        results = mine.tasks()
        if dice.random() < 0.6:
            mine.publish(results)
    benches[0].drain()
    assert counted(bench) == dict(sent)
    state = benches[0].state()
    assert {name.decode(): number for name, number in state.items() if len(name) == 1} == dict(sent)
    for other in benches[1:]:
        other.tasks()
        assert other.state() == state
