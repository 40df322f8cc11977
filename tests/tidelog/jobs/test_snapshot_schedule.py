"""When snapshots are due, and that the driver has them made: by the first epoch after, or by one without entries."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from tests.tidelog.jobs.countjob import count
from tests.tidelog.jobs.test_driver_state import TARGET, in_threads, send, until_idle
from tests.waiting import eventually
from tidelog.jobs import keys
from tidelog.jobs.epochs.driver import Driver
from tidelog.jobs.snapshots import owners
from tidelog.jobs.snapshots.catalog import JobSnapshots, PartitionSnapshots, SnapshotInfo
from tidelog.jobs.snapshots.objects import ObjectStore
from tidelog.jobs.snapshots.schedule import FIRST, MOST, SILENT, SnapshotSchedule
from tidelog.jobs.task.plan import TaskPlan, TaskResult, TaskSettings
from tidelog.testing import Server
from tidelog.transport.access import Access


def test_by_epochs_and_by_seconds() -> None:
    now = [100.0]
    saving = SnapshotSchedule(replace(count, snapshot_epochs=3, snapshot_every=60.0), lambda: now[0])
    assert saving.due_in is None
    saving.published(saved=False, changed=False, epoch=1)
    assert saving.due_in is None  # nothing has changed
    saving.published(saved=False, changed=True, epoch=2)
    assert saving.due_in == 60
    now[0] += 59
    assert saving.due_in == 1
    now[0] += 5
    assert saving.due_in == 0
    saving.published(saved=True, changed=False, epoch=3)
    saving.check(2, records(2, 2))
    assert saving.due_in is None
    for _ in range(3):
        assert saving.due_in is None or saving.due_in > 0
        saving.published(saved=False, changed=True, epoch=2)
    assert saving.due_in == 0


def records(*epochs: int, error: str = "") -> JobSnapshots:
    """By partition: the epoch of the newest snapshot, 0 for none."""
    kept = [(SnapshotInfo("x", epoch, 0, 0, 0),) if epoch else () for epoch in epochs]
    return JobSnapshots(1, {str(at): PartitionSnapshots(each, error=error) for at, each in enumerate(kept)})


def test_what_fails_is_tried_again_with_pauses() -> None:
    now = [0.0]
    saving = SnapshotSchedule(replace(count, snapshot_every=7 * 86400.0), lambda: now[0])
    saving.begin(9, 2, records(9, 9))
    assert (saving.due_in, saving.check_in) == (None, None)
    tries, looks = [], []
    epoch = 10
    while now[0] < 4000:
        epoch += 1
        saving.published(saved=True, changed=False, epoch=epoch)
        tries.append(now[0])
        while saving.due_in is None:
            assert saving.check_in is not None
            now[0] += saving.check_in
            looks.append(now[0])
            saving.check(2, records(epoch - 1, 9, error="it does not answer"))
        assert saving.due_in == 0
    pauses = [after - before for before, after in pairwise(tries)]
    assert pauses[:3] == [2, 4, 8]
    assert pauses == sorted(pauses)
    assert pauses[-1] == MOST
    assert len(looks) <= len(tries)
    saving.published(saved=True, changed=False, epoch=100)
    saving.check(2, records(99, 100, error="of before"))
    assert (saving.due_in, saving.check_in) == (None, None)
    saving.published(saved=True, changed=False, epoch=101)
    assert saving.check_in == FIRST  # it has worked since


def test_a_maker_that_says_nothing_is_waited_for() -> None:
    """It may be slow. Or it was killed: then another one is begun after a time."""
    now = [0.0]
    saving = SnapshotSchedule(count, lambda: now[0])
    saving.published(saved=True, changed=False, epoch=11)
    for _ in range(50):
        if saving.due_in is not None:
            break
        assert saving.check_in
        now[0] += saving.check_in
        saving.check(2, records(9, 10))
    assert SILENT <= now[0] <= SILENT + MOST


def test_where_an_engine_goes_on() -> None:
    def kept(epoch: int) -> PartitionSnapshots:
        return PartitionSnapshots((SnapshotInfo("x", epoch, 0, 0, 0),))

    saving = SnapshotSchedule(replace(count, snapshot_epochs=10))
    saving.begin(12, 2, JobSnapshots(1, {"0": kept(12), "1": kept(9)}))
    assert saving.due_in is not None
    assert saving.due_in > 0
    saving.begin(12, 2, JobSnapshots(1, {"0": kept(12)}))  # partition 1 has none
    assert saving.due_in == 0
    saving.begin(12, 2, JobSnapshots(1, {"0": kept(12), "1": kept(12)}))
    assert saving.due_in is None


def settings(server: Server, folder: Path, store: str, generation: int = 1) -> TaskSettings:
    access = Access((server.url,), retry_ms=5)
    return TaskSettings(TARGET, (), access, generation, "", 0, str(folder / "state"), store)


def test_an_idle_job_gets_its_snapshots_and_then_rests(tidelog_server: Server, tmp_path: Path) -> None:
    store = f"file://{tmp_path}/snapshots"
    job = replace(count, snapshot_every=0.3)
    drive = Driver(job, settings(tidelog_server, tmp_path, store), in_threads)
    send(tidelog_server, ["ada", "bob"] * 50)
    try:
        until_idle(drive)
        with tidelog_server.client() as client:

            def saved() -> bool:
                drive.step()
                text = client.redis.get(keys.snapshots("count"))
                parts = json.loads(text)["partitions"] if text else {}
                return {at for at, part in parts.items() if part["kept"]} == {"0", "1"}

            eventually(saved)
            eventually(lambda: drive.step().again is None)
            outcome, epoch = drive.step(), drive.epoch
            assert not outcome.published
            assert outcome.again is None
            assert drive.step().epoch == epoch
            owner = owners.read(ObjectStore(store), "count", 1)
            assert owner == {each.name: each.settings.id for each in (*job.inputs, *job.outputs)}
    finally:
        drive.close()


def test_an_idle_job_whose_snapshots_fail_tries_again(
    tidelog_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nothing comes any more: its inputs are kept until there is one."""
    monkeypatch.setattr("tidelog.jobs.snapshots.schedule.FIRST", 0.2)
    place = tmp_path / "snapshots"
    place.write_text("a file where the folder should be")
    where = settings(tidelog_server, tmp_path, f"file://{place}")
    drive = Driver(replace(count, snapshot_epochs=1), where, in_threads)
    send(tidelog_server, ["ada", "bob"] * 50)

    def parts() -> list[Any]:
        outcome = drive.step()
        time.sleep(min(outcome.again or 0.0, 0.1))
        text = client.redis.get(keys.snapshots("count"))
        return list(json.loads(text)["partitions"].values()) if text else []

    try:
        with tidelog_server.client() as client:
            assert drive.step().again == 0  # a snapshot is due
            eventually(lambda: len(failed := parts()) == 2 and all(each["error"] for each in failed))
            epoch = drive.epoch
            eventually(lambda: parts() and drive.epoch > epoch + 1)
            place.unlink()
            eventually(lambda: all(each["kept"] and not each["error"] for each in parts()))
            eventually(lambda: drive.step().again is None)
            assert drive.epoch < 20  # with pauses
    finally:
        drive.close()


def test_snapshots_of_an_earlier_generation_do_not_count(tidelog_server: Server, tmp_path: Path) -> None:
    where = settings(tidelog_server, tmp_path, f"file://{tmp_path}/snapshots", generation=2)
    job = replace(count, snapshot_epochs=1)
    kept = {"kept": [{"name": "x", "epoch": 5000, "time": 0, "size": 0, "stored": 0}]}
    with tidelog_server.client() as client:
        text = json.dumps({"generation": 1, "partitions": {"0": kept, "1": kept}})
        client.redis.set(keys.snapshots("count"), text)
    send(tidelog_server, ["a", "b"])
    drive = Driver(job, where, in_threads)
    try:
        assert drive.step().epoch == 1
    finally:
        drive.close()
    again = Driver(job, where, in_threads)
    try:
        assert again.step().published  # without entries: the snapshot is due
    finally:
        again.close()


def test_what_comes_while_a_snapshot_is_begun_gets_another_one(tidelog_server: Server, tmp_path: Path) -> None:
    """The snapshot may lack it."""
    saves: list[bool] = []

    def tasks(plans: Sequence[TaskPlan]) -> list[TaskResult]:
        if plans[0].snapshot:
            send(tidelog_server, ["late"])
        saves.append(plans[0].snapshot)
        return in_threads(plans)

    job = replace(count, snapshot_epochs=1)
    drive = Driver(job, settings(tidelog_server, tmp_path, f"file://{tmp_path}/snapshots"), tasks)
    send(tidelog_server, ["a", "b"])
    try:
        assert drive.step().published
        outcome = drive.step()
        assert (outcome.rows_in, saves) == (1, [False, True])
        assert drive.step().published
        assert saves == [False, True, True]
    finally:
        drive.close()
