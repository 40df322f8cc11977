"""When snapshots are due, and that the driver has them made: by the first epoch after, or by one without entries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from tests.tidelog.jobs.countjob import count
from tests.tidelog.jobs.test_driver_state import TARGET, in_threads, send, until_idle
from tests.wire.faults import until
from tidelog.client.access import Access
from tidelog.jobs import keys
from tidelog.jobs.driver import Driver
from tidelog.jobs.outcome import Options
from tidelog.jobs.plan import TaskPlan, TaskResult
from tidelog.jobs.saving import Saving
from tidelog.jobs.snapshots.records import Kept, Record, Records
from tidelog.testing import Server


def test_by_epochs_and_by_seconds() -> None:
    now = [100.0]
    saving = Saving(replace(count, snapshot_epochs=3, snapshot_every=60.0), lambda: now[0])
    assert saving.left is None
    saving.published(saved=False, changed=False)
    assert saving.left is None  # nothing has changed
    saving.published(saved=False, changed=True)
    assert saving.left == 60
    now[0] += 59
    assert saving.left == 1
    now[0] += 5
    assert saving.left == 0
    saving.published(saved=True, changed=False)
    assert saving.left is None
    for _ in range(3):
        assert saving.left is None or saving.left > 0
        saving.published(saved=False, changed=True)
    assert saving.left == 0


def test_where_an_engine_goes_on() -> None:
    def kept(epoch: int) -> Record:
        return Record((Kept("x", epoch, 0, 0, 0),))

    saving = Saving(replace(count, snapshot_epochs=10))
    saving.begin(12, 2, Records(1, {"0": kept(12), "1": kept(9)}))
    assert saving.left is not None
    assert saving.left > 0
    saving.begin(12, 2, Records(1, {"0": kept(12)}))  # partition 1 has none
    assert saving.left == 0
    saving.begin(12, 2, Records(1, {"0": kept(12), "1": kept(12)}))
    assert saving.left is None


def test_an_idle_job_gets_its_snapshots_and_then_rests(tidelog_server: Server, tmp_path: Path) -> None:
    options = Options(str(tmp_path / "state"), f"file://{tmp_path}/snapshots")
    job = replace(count, snapshot_every=0.3)
    drive = Driver(Access((tidelog_server.url,), retry_ms=5), job, TARGET, 1, options, in_threads)
    send(tidelog_server, ["ada", "bob"] * 50)
    try:
        until_idle(drive)
        with tidelog_server.client() as client:

            def saved() -> bool:
                drive.step()
                text = client.redis.get(keys.snapshots("count"))
                parts = json.loads(text)["partitions"] if text else {}
                return {at for at, part in parts.items() if part["kept"]} == {"0", "1"}

            until(saved)
            until(lambda: not drive.step().published)
            outcome, epoch = drive.step(), drive.epoch
            assert not outcome.published
            assert outcome.again is None
            assert drive.step().epoch == epoch
    finally:
        drive.close()


def test_snapshots_of_an_earlier_generation_do_not_count(tidelog_server: Server, tmp_path: Path) -> None:
    options = Options(str(tmp_path / "state"), f"file://{tmp_path}/snapshots")
    job = replace(count, snapshot_epochs=1)
    kept = {"kept": [{"name": "x", "epoch": 5000, "time": 0, "size": 0, "stored": 0}]}
    with tidelog_server.client() as client:
        text = json.dumps({"generation": 1, "partitions": {"0": kept, "1": kept}})
        client.redis.set(keys.snapshots("count"), text)
    send(tidelog_server, ["a", "b"])
    drive = Driver(Access((tidelog_server.url,)), job, TARGET, 2, options, in_threads)
    try:
        assert drive.step().epoch == 1
    finally:
        drive.close()
    again = Driver(Access((tidelog_server.url,)), job, TARGET, 2, options, in_threads)
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

    options = Options(str(tmp_path / "state"), f"file://{tmp_path}/snapshots")
    job = replace(count, snapshot_epochs=1)
    drive = Driver(Access((tidelog_server.url,)), job, TARGET, 1, options, tasks)
    send(tidelog_server, ["a", "b"])
    try:
        assert drive.step().published
        outcome = drive.step()
        assert (outcome.rows_in, saves) == (1, [False, True])
        assert drive.step().published
        assert saves == [False, True, True]
    finally:
        drive.close()
