"""What a driver does about entries, markers and leaders that are gone, and about tasks that fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from tests.tidelog.jobs.driverkit import append, close_drivers, copy, driver, epochs, in_threads, made, out
from tidelog import Client
from tidelog.jobs import Job, JobError, keys
from tidelog.jobs.epochs import driver as driving
from tidelog.jobs.epochs.driver import Driver
from tidelog.jobs.errors import FunctionError, InputsLostError, SupersededError, TryAgainError
from tidelog.jobs.task.plan import TaskFailure, TaskPlan, TaskResult
from tidelog.testing import Server


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_drivers()


@pytest.fixture
def job(tidelog_server: Server) -> Job:
    job = copy(tidelog_server)
    made(*job.inputs)
    return job


# -- what was lost -------------------------------------------------------------------------------------------------
def test_inputs_that_were_evicted_before_they_were_read(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1)
    drive = driver(tidelog_server, job)
    drive.step()
    append(client, 2, 3)
    client.ttrim("in:0", count=1)
    with pytest.raises(InputsLostError, match=r"'copy': entries of topic 'in'.*were evicted before partition 0 read"):
        drive.step()


def test_a_new_job_begins_with_the_earliest_there_is(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1, 2)
    drive = driver(tidelog_server, job)
    drive.prepare()
    append(client, 3)
    client.ttrim("in:0", count=1)  # as a topic with overflow="drop" does with each record
    assert drive.step().published
    assert out(client)[0] == [3]


def test_a_new_job_is_tried_again_where_the_earliest_are_evicted_meanwhile(
    client: Client, tidelog_server: Server, job: Job
) -> None:  # fmt: skip
    append(client, 1, 2)

    def tasks(plans: Sequence[TaskPlan]) -> list[TaskResult]:
        if client.tlen("in:0") < 2:
            return in_threads(plans)
        client.ttrim("in:0", count=1)
        return [TaskResult(at, failure=TaskFailure("InputsLostError", "evicted before it was read")) for at in range(2)]

    drive = driver(tidelog_server, job, tasks=tasks)
    with pytest.raises(TryAgainError, match=r"evicted before it was read"):
        drive.step()
    assert drive.step().published
    assert out(client)[0] == [2]


def test_the_log_of_a_job_without_state_does_not_grow_without_end(
    client: Client, tidelog_server: Server, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(driving, "MARKERS", 4)
    drive = driver(tidelog_server, job)
    for n in range(12):
        append(client, n)
        assert drive.step().published
    assert 4 <= len(epochs(client, 0)) == len(epochs(client, 1)) <= 8
    assert driver(tidelog_server, job).step().epoch == 12


def test_a_log_that_is_not_whole(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1)
    driver(tidelog_server, job).step()
    client.redis.delete(keys.log("copy", 1))
    with pytest.raises(JobError, match=r"'copy': its replay log.*epoch 1.*0: 1.*tidelog jobs reset copy"):
        driver(tidelog_server, job).step()


def test_a_leader_that_lacks_an_epoch(client: Client, tidelog_server: Server, job: Job) -> None:
    """As after a failover to a replica that had not got it: what the server has is what counts."""
    append(client, 1)
    drive = driver(tidelog_server, job)
    drive.step()
    ahead = replace(drive.progress, epoch=2)
    drive.progress = ahead
    append(client, 2)
    with pytest.raises(TryAgainError, match=r"epoch 1 as the last one, not 2"):
        drive.step()
    assert drive.step().epoch == 2
    assert out(client)[0] == [1, 2]


# -- failures -----------------------------------------------------------------------------------------------------
def stages(client: Client) -> int:
    info: dict[str, Any] = client.redis.info()
    return int(info["stages"])


@pytest.mark.parametrize(("kind", "error"), [("FunctionError", FunctionError), ("", TryAgainError)])
def test_a_task_that_fails(
    client: Client, tidelog_server: Server, job: Job, kind: str, error: type[Exception]
) -> None:  # fmt: skip
    append(client, 1)
    runs: list[str] = []

    def tasks(plans: Sequence[TaskPlan]) -> list[TaskResult]:
        runs.append(plans[0].where.run)
        if len(runs) > 1:
            return in_threads(plans)
        return [*in_threads(plans[:1]), TaskResult(1, failure=TaskFailure(kind, "it is broken"))]

    drive = driver(tidelog_server, job, tasks=tasks)
    with pytest.raises(error, match=r"'copy': it is broken \[partition 1, epoch 1\]"):
        drive.step()
    assert (stages(client), epochs(client)) == (0, [])
    assert drive.step().published
    assert runs[0] != runs[1]  # a state that the first attempt left must not pass for the second one's
    assert out(client)[0] == [1]


def test_what_does_not_pass_is_said_first(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1)

    def tasks(_: Sequence[TaskPlan]) -> list[TaskResult]:
        return [
            TaskResult(0, failure=TaskFailure("", "away")),
            TaskResult(1, failure=TaskFailure("FunctionError", "broken")),
        ]

    with pytest.raises(FunctionError, match=r"broken \[partition 1, epoch 1\] \(and 1 more partitions\)"):
        driver(tidelog_server, job, tasks=tasks).step()


def test_a_task_of_an_engine_that_was_superseded_says_nothing_against_the_job(
    client: Client, tidelog_server: Server, job: Job
) -> None:  # fmt: skip
    append(client, 1)

    def tasks(_: Sequence[TaskPlan]) -> list[TaskResult]:
        driver(tidelog_server, job).step()  # another engine goes on, and what it has read may be evicted
        return [TaskResult(at, failure=TaskFailure("InputsLostError", "evicted")) for at in range(2)]

    with pytest.raises(SupersededError, match=r"epoch 1 was published by another engine"):
        driver(tidelog_server, job, tasks=tasks).step()


def test_a_task_that_asked_a_leader_without_the_epoch_says_nothing_against_the_job(
    client: Client, tidelog_server: Server, job: Job
) -> None:  # fmt: skip
    append(client, 1)
    drive: Driver

    def tasks(plans: Sequence[TaskPlan]) -> list[TaskResult]:
        if plans[0].epoch == 1:
            return in_threads(plans)
        drive.progress = replace(drive.progress, epoch=2)  # there were two epochs, on the leader that is gone
        drive.tasks = in_threads
        return [TaskResult(at, failure=TaskFailure("InputsLostError", "the entry is not there")) for at in range(2)]

    drive = driver(tidelog_server, job, tasks=tasks)
    drive.step()
    append(client, 2)
    with pytest.raises(TryAgainError, match=r"replica that lacked some became the leader"):
        drive.step()
    assert drive.step().epoch == 2
    assert out(client)[0] == [1, 2]


def test_what_was_read_of_a_leader_that_is_gone_is_not_published(
    client: Client, tidelog_server: Server, job: Job
) -> None:  # fmt: skip
    append(client, 1, 2)
    lost = False

    def tasks(plans: Sequence[TaskPlan]) -> list[TaskResult]:
        nonlocal lost
        results = in_threads(plans)
        if not lost:
            client.redis.delete("in:0")  # the next leader has other entries
            append(client, 1)
            lost = True
        return results

    drive = driver(tidelog_server, job, tasks=tasks)
    with pytest.raises(TryAgainError, match=r"of 'in:0' was read, and no longer exists"):
        drive.step()
    assert (stages(client), epochs(client)) == (0, [])
    append(client, 3)
    drive.step()
    assert out(client)[0] == [1, 3]


def test_what_was_evicted_after_it_was_read_is_published(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1, 2)

    def tasks(plans: Sequence[TaskPlan]) -> list[TaskResult]:
        results = in_threads(plans)
        client.ttrim("in:0", count=0)
        return results

    assert driver(tidelog_server, job, tasks=tasks).step().published
    assert out(client)[0] == [1, 2]


def test_a_stage_that_ended(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1)
    ended = False

    def tasks(plans: Sequence[TaskPlan]) -> list[TaskResult]:
        nonlocal ended
        results = in_threads(plans)
        if not ended:
            client.tdrop(results[1].stages[0])
            ended = True
        return results

    drive = driver(tidelog_server, job, tasks=tasks)
    with pytest.raises(TryAgainError, match=r"NOSTAGE"):
        drive.step()
    assert (stages(client), epochs(client)) == (0, [])
    assert drive.step().epoch == 1
    assert out(client)[0] == [1]
