"""The driver of a batch job: its epochs, where they begin, what it publishes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

pytest.importorskip("pyarrow")

from tests.tidelog.jobs.driverkit import append, close_drivers, copy, driver, epochs, in_threads, made, numbers, out
from tests.waiting import eventually
from tidelog import Client
from tidelog.jobs import Job, JobError, keys
from tidelog.jobs.commits import CLOSED
from tidelog.jobs.errors import SupersededError
from tidelog.jobs.replaylog.marker import Marker
from tidelog.jobs.task.plan import TaskPlan, TaskResult
from tidelog.testing import Server

GROUP = keys.group("copy")


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_drivers()


@pytest.fixture
def job(tidelog_server: Server) -> Job:
    job = copy(tidelog_server)
    made(*job.inputs)
    return job


def group(client: Client, stream: str = "in:0") -> str:
    (found,) = [each for each in client.tgroup_list(stream) if each.name == GROUP.encode()]
    assert found.ttl == 0
    return str(found.offset)


# -- epochs --------------------------------------------------------------------------------------------------------
def test_an_epoch_reads_and_publishes_in_every_partition(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1, 2)
    append(client, 3, stream="in:1")
    drive = driver(tidelog_server, job)
    done = drive.step()
    assert (done.epoch, done.published, done.more, done.rows_in, done.rows_out) == (1, True, False, 3, 3)
    assert done.slowest == {"read": 0.002}
    assert set(done.seconds) == {"ask", "tasks", "publish", "after"}
    idle = drive.step()
    assert (idle.epoch, idle.published, idle.more) == (1, False, False)
    append(client, 4, stream="in:1")
    assert drive.step().rows_in == 1
    assert out(client) == [[1, 2], [3, 4]]
    assert epochs(client, 0) == epochs(client, 1) == [1, 2]  # the partition that had nothing too
    drive.close()


def test_more_is_said_while_there_is_more(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, *range(150))
    drive = driver(tidelog_server, job)
    assert drive.step().more
    assert not drive.step().more
    assert out(client)[0] == list(range(150))


def test_another_driver_goes_on_where_the_log_ends(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1)
    driver(tidelog_server, job).step()
    append(client, 2)
    assert driver(tidelog_server, job).step().epoch == 2
    assert out(client)[0] == [1, 2]


def test_the_group_of_a_stateless_job_follows(client: Client, tidelog_server: Server, job: Job) -> None:
    first, second, third = append(client, 1, 2, 3)
    drive = driver(tidelog_server, job)
    drive.prepare()
    assert group(client) == group(client, "in:1") == "0.0"
    drive.step()
    assert group(client) == "0.0"  # it was moved less than a second ago
    again = drive.step().again
    assert again is not None
    assert 0 < again <= 1
    time.sleep(again)
    assert drive.step().again is None
    assert group(client) == str(third)
    assert second > first


def test_the_group_of_a_job_with_state_stays(client: Client, tidelog_server: Server) -> None:
    job = copy(tidelog_server, state=int)
    made(*job.inputs)
    append(client, 1)
    drive = driver(tidelog_server, job)
    drive.step()
    client.tgroup_setid("in:0", GROUP, "5.0")  # as who makes snapshots does
    assert drive.step().again is None
    driver(tidelog_server, job).prepare()
    assert group(client) == "5.0"


# -- where a job begins -------------------------------------------------------------------------------------------
def test_latest_is_what_it_was_when_the_job_was_first_prepared(client: Client, tidelog_server: Server) -> None:
    job = copy(tidelog_server, start="latest")
    made(*job.inputs)
    last = append(client, 1, 2)[-1]
    driver(tidelog_server, job).prepare()
    assert group(client) == str(last)
    append(client, 3)
    driver(tidelog_server, job).step()  # another engine: the first one published nothing
    assert out(client)[0] == [3]


def test_a_time(client: Client, tidelog_server: Server) -> None:
    early = append(client, 1)[-1]
    while time.time() * 1000 < early.ms + 3:
        time.sleep(0.001)
    late = append(client, 2)[-1]
    start = datetime.fromtimestamp(late.ms / 1000, UTC).isoformat()
    job = copy(tidelog_server, start=start)
    made(*job.inputs)
    driver(tidelog_server, job).step()
    assert out(client)[0] == [2]


@pytest.mark.parametrize("start", ["2026-01-31T12:00:00", "soon"])
def test_no_time(tidelog_server: Server, start: str) -> None:
    with pytest.raises(JobError, match=r"'copy'.*a time with its zone"):
        copy(tidelog_server, start=start)


def test_a_new_generation_begins_anew_and_the_former_one_is_closed(
    client: Client, tidelog_server: Server, job: Job
) -> None:
    append(client, 1, 2)
    former = driver(tidelog_server, job)
    former.step()
    client.tstage("closing", 60_000, keys.events("copy"), ["kind"], [["reset"]])  # as a reset does
    client.tpublish(former.fence, CLOSED, "closing")
    now = driver(tidelog_server, job, generation=2)
    now.prepare()
    assert (now.epoch, group(client)) == (0, "0.0")
    append(client, 3)
    with pytest.raises(SupersededError, match="published by another"):
        former.step()
    with pytest.raises(SupersededError, match="closed"):
        former.step()
    assert now.step().epoch == 1
    assert out(client)[0] == [1, 2, 1, 2, 3]


def test_a_new_generation_begins_where_it_is_told(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1)
    driver(tidelog_server, job).step()
    driver(tidelog_server, job, generation=2, start="latest").prepare()
    append(client, 2)
    assert driver(tidelog_server, job, generation=2).step().epoch == 1
    assert out(client)[0] == [1, 2]


# -- outputs ------------------------------------------------------------------------------------------------------
def test_a_full_output_makes_the_job_wait(client: Client, tidelog_server: Server, job: Job) -> None:
    drive = driver(tidelog_server, copy(tidelog_server, outputs=(numbers("out", tidelog_server, hard_limit=2),)))
    append(client, 1, 2)
    assert drive.step().published
    append(client, 3)
    waits = drive.step()
    assert not waits.published
    assert "topic 'out': partition 0 holds 2 entries, and its hard_limit is 2" in waits.waiting
    assert waits.again == 1.0
    client.ttrim("out:0", count=0)
    assert drive.step().published
    assert out(client)[0] == [3]


def test_outputs_that_drop_are_evicted_from(client: Client, tidelog_server: Server, job: Job) -> None:
    kept = numbers("out", tidelog_server, partition_size=2, overflow="drop")
    append(client, 1, 2, 3)
    driver(tidelog_server, copy(tidelog_server, outputs=(kept,))).step()
    eventually(lambda: out(client)[0] == [2, 3])


def test_an_output_stream_that_is_none(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1)

    def tasks(plans: Sequence[TaskPlan]) -> list[TaskResult]:
        results = in_threads(plans)
        client.redis.delete("out:0")
        client.redis.set("out:0", "text")
        return results

    with pytest.raises(JobError, match=r"'copy': the server refused: WRONGTYPE"):
        driver(tidelog_server, job, tasks=tasks).step()
    assert epochs(client) == []


# -- jobs without inputs ------------------------------------------------------------------------------------------
def test_a_source_is_called_on_its_schedule(client: Client, tidelog_server: Server) -> None:
    now = 0

    def tasks(plans: Sequence[TaskPlan]) -> list[TaskResult]:
        def at(result: TaskResult) -> TaskResult:
            assert isinstance(result.marker, Marker)
            return replace(result, marker=replace(result.marker, now_ms=now))

        return [at(result) for result in in_threads(plans)]

    job = copy(tidelog_server, inputs=(), partitions=2, every=0.2)
    drive = driver(tidelog_server, job, tasks=tasks)
    assert drive.step().epoch == 1
    waits = drive.step()
    assert not waits.published
    assert waits.again is not None
    assert 0 < waits.again <= 0.2
    time.sleep(waits.again)
    assert drive.step().epoch == 2
    assert epochs(client, 0) == epochs(client, 1) == [1, 2]


def test_a_source_does_not_spin_when_a_snapshot_is_due(tidelog_server: Server) -> None:
    job = copy(tidelog_server, inputs=(), partitions=2, every=60.0, state=int, snapshot_epochs=1)
    drive = driver(tidelog_server, job, store="file:///nowhere")
    assert drive.step().epoch == 1
    waits = drive.step()  # the snapshot is made with the next call
    assert not waits.published
    assert waits.again is not None
    assert waits.again > 50
