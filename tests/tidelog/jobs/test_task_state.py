"""Invariant: whatever was on the disk, a task goes on from the state that was published last."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[spark]')")
pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.tidelog.jobs.statekit import calls, clicks, count, counted, fresh, others, send  # noqa: E402
from tests.tidelog.jobs.taskkit import Bench, changed  # noqa: E402 - needs pyarrow
from tidelog.jobs import MicroBatch  # noqa: E402
from tidelog.jobs.state import State  # noqa: E402
from tidelog.jobs.store import StateStore  # noqa: E402
from tidelog.jobs.task import recovery as recovering  # noqa: E402
from tidelog.jobs.task.task import run  # noqa: E402
from tidelog.testing import Server  # noqa: E402
from tidelog.transport.errors import ConflictError  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    fresh()
    yield
    fresh()


@pytest.fixture
def bench(tidelog_server: Server, tmp_path: Path) -> Bench:
    return Bench(tidelog_server, tmp_path / "a", count, 1)


# -- going on ------------------------------------------------------------------------------------------------
def test_state_goes_on_from_epoch_to_epoch(bench: Bench) -> None:
    for _ in range(3):
        send(bench, "a", "b", "a")
        results = bench.epoch()
    assert results[0].recovered == 0
    assert (results[0].keys, results[0].bytes > 0) == (4, True)
    assert counted(bench) == {"a": 6, "b": 3}
    assert bench.version() == (3, bench.run)
    assert {marker.digest for marker in bench.markers()} != {""}


def test_an_epoch_that_was_not_published_is_taken_back(bench: Bench) -> None:
    send(bench, "a")
    bench.epoch()
    send(bench, "a")
    bench.tasks()
    assert bench.version()[0] == 2
    results = bench.tasks()
    assert bench.version()[0] == 2
    bench.publish(results)
    assert counted(bench) == {"a": 2}
    assert results[0].recovered == 0
    assert bench.state()[b"a"] == 2


def test_the_first_epoch_is_taken_back_too(bench: Bench) -> None:
    send(bench, "a")
    bench.tasks()
    bench.epoch()
    assert bench.state()[b"a"] == 1


@pytest.mark.parametrize("ruin", ["deleted", "truncated", "rubbish"])
def test_a_state_that_is_gone_is_replayed(bench: Bench, ruin: str) -> None:
    for _ in range(5):
        send(bench, "a", "b")
        send(bench, "c", to=others)
        bench.epoch()
    before = bench.state()
    made = list(calls)
    if ruin == "deleted":
        bench.lose_state()
    else:
        path = next(bench.folder.rglob("data.mdb"))
        path.write_bytes(path.read_bytes()[:5000] if ruin == "truncated" else b"\xff" * path.stat().st_size)
    send(bench, "a")
    calls.clear()
    (result,) = bench.epoch()
    assert result.recovered == 5
    assert calls == [*made, ("clicks", 1)]
    assert bench.state() == before | {b"a": 6, b"calls": 11, b"last": 1}
    assert counted(bench) == {"a": 6, "b": 5, "c": 5}


def test_a_state_that_is_behind_follows(bench: Bench, tidelog_server: Server, tmp_path: Path) -> None:
    rival = bench.other(tmp_path / "b")
    send(bench, "a")
    bench.epoch()
    for _ in range(3):
        send(bench, "a")
        rival.epoch()
    (result,) = bench.epoch()
    assert result.recovered == 3
    assert bench.state()[b"a"] == 4


def test_a_zombie_drops_what_another_run_has_published(bench: Bench, tmp_path: Path) -> None:
    rival = bench.other(tmp_path / "b")
    send(bench, "a")
    bench.epoch()
    send(bench, "a")
    stale = bench.tasks()  # epoch 2, not published: it was stopped here
    send(bench, "b")
    rival.epoch()  # another epoch 2, with more in it
    with pytest.raises(ConflictError):
        bench.publish(stale)
    assert bench.version() == (2, bench.run)
    send(bench, "c")
    (result,) = bench.epoch()
    assert result.recovered == 1
    assert bench.state() == {b"a": 2, b"b": 1, b"c": 1, b"calls": 3, b"last": 1}
    assert bench.version() == (3, bench.run)


def test_a_zombie_that_is_behind_after_its_own_epoch(bench: Bench, tmp_path: Path) -> None:
    """Its state is at an epoch that was published by another, and more have followed."""
    rival = bench.other(tmp_path / "b")
    send(bench, "a")
    bench.epoch()
    send(bench, "x")
    bench.tasks()
    for user in ("b", "c", "d"):
        send(bench, user)
        rival.epoch()
    (result,) = bench.epoch()
    assert result.recovered == 3
    assert bench.state() == rival.state() | bench.state()
    assert {name for name in bench.state() if len(name) == 1} == {b"a", b"x", b"b", b"c", b"d"}


def test_a_task_that_comes_late_leaves_the_state_alone(bench: Bench) -> None:
    """Spark had begun it before others ran: it wakes when later epochs were published."""
    send(bench, "a")
    late = bench.plan(0)
    for user in ("b", "c", "d"):
        bench.epoch()
        send(bench, user)
    failure = run(late).failure
    assert failure is not None
    assert failure.kind == "SupersededError"
    assert "epoch 3 was published" in failure.text
    assert bench.version() == (3, bench.run)
    (result,) = bench.epoch()
    assert result.recovered == 0


def test_a_leader_that_lacks_an_epoch_is_not_read(bench: Bench) -> None:
    send(bench, "a")
    bench.epoch()
    failure = run(replace(bench.plan(0), epoch=3)).failure
    assert failure is not None
    assert failure.kind == ""
    assert bench.version() == (1, bench.run)


def test_a_generation_begins_with_nothing(bench: Bench) -> None:
    send(bench, "a")
    bench.epoch()
    bench.generation = 2
    send(bench, "b")
    (result,) = bench.epoch()
    assert result.recovered == 0
    assert bench.state() == {b"a": 1, b"b": 1, b"calls": 1, b"last": 2}
    bench.lose_state()
    (result,) = bench.epoch()
    assert result.recovered == 1  # the markers of the former one don't count


def test_a_store_that_is_held_by_a_stopped_task_is_left_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    send(bench, "a")
    bench.epoch()
    monkeypatch.setattr(recovering, "PATIENCE", 1.0)
    with StateStore.open(bench.folder / "count" / "1" / "0" / "0"):
        send(bench, "a")
        (result,) = bench.epoch()
        assert result.recovered == 1
        began = time.monotonic()
        (result,) = bench.epoch()
        assert result.recovered == 0
        assert time.monotonic() - began < 1.0  # the lock is not waited for again
    with StateStore.open(bench.folder / "count" / "1" / "0" / "1") as store:
        assert store.version == (3, bench.run)


# -- the same calls ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("merge", ["inputs", "time"])
def test_a_replay_makes_the_same_calls_though_the_job_is_declared_otherwise(bench: Bench, merge: Any) -> None:
    bench.use(changed(count, max_rows=4, merge=merge))
    for n in range(12):
        send(bench, "a", to=clicks if n % 3 else others)
        send(bench, "b", "c")
    bench.drain()
    before, made = bench.state(), list(calls)
    epochs = len(bench.markers())
    assert max(rows for _, rows in made) <= 4
    bench.use(changed(count, max_rows=100, merge="time" if merge == "inputs" else "inputs", inputs=(others, clicks)))
    bench.lose_state()
    calls.clear()
    (result,) = bench.tasks()
    assert result.recovered == epochs
    assert calls == made
    assert bench.state() == before


def test_an_input_that_the_job_does_not_read_any_more(bench: Bench) -> None:
    send(bench, "a", to=others)
    bench.epoch()
    bench.use(changed(count, inputs=(clicks,)))
    bench.epoch()  # it goes on
    bench.lose_state()
    text = bench.failed("JobError")
    assert "the epoch has read topic 'others', which is not an input any more" in text


def test_a_function_that_is_not_deterministic_is_named(bench: Bench) -> None:
    dice = random.Random(7)

    def rolls(batch: MicroBatch, state: State[int]) -> None:
        state.put_many(["x"], [dice.randrange(1 << 40)])

    bench.use(changed(count, function=rolls))
    for _ in range(3):
        send(bench, "a")
        bench.epoch()
    bench.lose_state()
    text = bench.failed("NotDeterministicError")
    assert "job 'count', partition 0, epoch 1: the function is not deterministic" in text
    assert "read: clicks:0 after 0.0 up to" in text


def test_new_code_may_make_another_state(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    send(bench, "a")
    bench.epoch()

    def doubles(batch: MicroBatch, state: State[int]) -> None:
        state.put_many(batch.table["user"], [2] * len(batch))

    bench.use(changed(count, function=doubles))
    bench.lose_state()
    bench.epoch()
    assert bench.state() == {b"a": 2}
    assert "changes the state differently than version" in caplog.text


def test_new_code_that_fails_with_old_entries_says_so(bench: Bench) -> None:
    send(bench, "a")
    bench.epoch()

    def fails(batch: MicroBatch, state: State[int]) -> None:
        raise ValueError("not any more")

    bench.use(changed(count, function=fails))
    bench.lose_state()
    text = bench.failed("FunctionError")
    assert "ValueError: not any more" in text
    assert "This happened during recovery" in text
