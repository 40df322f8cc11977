"""The driver of a batch job: what it checks, where it begins, what it publishes, what it does about failures."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from tests.tidelog.jobs import driverkit
from tests.tidelog.jobs.driverkit import append, close_drivers, copy, driver, epochs, in_threads, made, numbers, out
from tidelog import Client
from tidelog.jobs import Job, JobError, keys
from tidelog.jobs import driver as driving
from tidelog.jobs.driver import Driver
from tidelog.jobs.errors import FunctionError, InputsLostError, SupersededError, TryAgainError
from tidelog.jobs.marker import Marker
from tidelog.jobs.origin import CLOSED
from tidelog.jobs.outcome import Options
from tidelog.jobs.plan import Failure, TaskPlan, TaskResult
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
    job = copy(tidelog_server, start=start)
    made(*job.inputs)
    with pytest.raises(JobError, match=r"'copy'.*a time with its zone"):
        driver(tidelog_server, job).step()


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


# -- topics -------------------------------------------------------------------------------------------------------
def test_a_missing_topic(tidelog_server: Server) -> None:
    with pytest.raises(JobError, match=r"'copy'.*no topic 'in'.*ready"):
        driver(tidelog_server, copy(tidelog_server)).step()


def test_a_topic_that_is_declared_otherwise(tidelog_server: Server, job: Job) -> None:
    other = copy(tidelog_server, inputs=(numbers("in", tidelog_server, partitions=3),))
    with pytest.raises(JobError, match=r"'copy'.*'in'.*partitions is 2 on the server, 3 here"):
        driver(tidelog_server, other).step()


def test_inputs_with_different_partitions(tidelog_server: Server) -> None:
    topics = (numbers("in", tidelog_server), numbers("other", tidelog_server, partitions=3))
    made(*topics)
    with pytest.raises(JobError, match=r"'in' has 2, 'other' has 3"):
        driver(tidelog_server, copy(tidelog_server, inputs=topics)).step()


def test_a_broadcast_input_is_read_by_every_partition(client: Client, tidelog_server: Server) -> None:
    topics = (numbers("in", tidelog_server), numbers("all", tidelog_server, partitions=1))
    made(*topics)
    append(client, 1, stream="in:1")
    append(client, 7, stream="all:0")
    drive = driver(tidelog_server, copy(tidelog_server, inputs=topics))
    assert drive.step().rows_in == 3
    assert out(client) == [[7], [1, 7]]
    assert set(drive.positions()) == {"in:0", "in:1", "all:0"}
    assert not drive.step().published


def grown(client: Client, topic: str, partitions: int) -> None:
    """As the program's ``topics grow``."""
    text = client.redis.get(f"topic:{topic}")
    assert isinstance(text, bytes)
    client.redis.set(f"topic:{topic}", text.replace(b'"partitions":2', b'"partitions":%d' % partitions))


def test_a_grown_input(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1)
    drive = driver(tidelog_server, copy(tidelog_server, inputs=(numbers("in", tidelog_server, partitions=None),)))
    drive.step()
    grown(client, "in", 3)
    for _ in range(2):
        with pytest.raises(JobError, match=r"'copy'.*topic 'in' has 3 partitions now, it had 2.* jobs reset copy"):
            drive.step()


def test_an_input_that_is_another_one(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1)
    drive = driver(tidelog_server, job)
    drive.step()
    client.redis.delete("topic:in", "in:0", "in:1")
    again = copy(tidelog_server)
    made(*again.inputs)
    for each in (drive, driver(tidelog_server, again)):
        with pytest.raises(JobError, match=r"topic 'in' was deleted and made anew"):
            each.step()


def test_a_stream_that_was_deleted(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1)
    drive = driver(tidelog_server, job)
    drive.step()
    client.redis.delete("in:0")
    with pytest.raises(JobError, match=r"stream 'in:0' was deleted"):
        drive.step()


def test_topics_on_two_servers(client: Client, tidelog_server: Server, job: Job) -> None:
    elsewhere = numbers("out", tidelog_server)
    elsewhere.url = "redis://127.0.0.1:1"
    with pytest.raises(JobError, match=r"'copy': all its topics must be on one server: 'in' is at"):
        driver(tidelog_server, copy(tidelog_server, outputs=(elsewhere,))).step()


def test_an_output_that_grows_while_tasks_run(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1)
    ran = 0

    def tasks(plans: Sequence[TaskPlan]) -> list[TaskResult]:
        nonlocal ran
        ran += 1
        results = in_threads(plans)
        if ran == 1:
            grown(client, "out", 3)
        return results

    drive = driver(
        tidelog_server, copy(tidelog_server, outputs=(numbers("out", tidelog_server, partitions=None),)), tasks=tasks
    )
    made(numbers("out", tidelog_server))
    with pytest.raises(TryAgainError, match=r"'out' has 3 partitions now, it had 2: nothing was published"):
        drive.step()
    assert out(client) == [[], []]
    assert drive.step().published
    assert (ran, out(client)) == (2, [[1], []])


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
        return [TaskResult(at, failure=Failure("InputsLostError", "evicted before it was read")) for at in range(2)]

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
    ahead = replace(drive._at, epoch=2)
    drive._at = ahead
    append(client, 2)
    with pytest.raises(TryAgainError, match=r"epoch 1 as the last one, not 2"):
        drive.step()
    assert drive.step().epoch == 2
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
    assert out(client)[0] == [2, 3]


def test_an_output_stream_that_is_none(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1)

    def tasks(plans: Sequence[TaskPlan]) -> list[TaskResult]:
        results = in_threads(plans)
        client.redis.delete("out:0")
        client.redis.set("out:0", "text")
        return results

    with pytest.raises(JobError, match=r"'copy': the server refuses: WRONGTYPE"):
        driver(tidelog_server, job, tasks=tasks).step()
    assert epochs(client) == []


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
        return [*in_threads(plans[:1]), TaskResult(1, failure=Failure(kind, "it is broken"))]

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
        return [TaskResult(0, failure=Failure("", "away")), TaskResult(1, failure=Failure("FunctionError", "broken"))]

    with pytest.raises(FunctionError, match=r"broken \[partition 1, epoch 1\] \(and 1 more partitions\)"):
        driver(tidelog_server, job, tasks=tasks).step()


def test_a_task_of_an_engine_that_was_superseded_says_nothing_against_the_job(
    client: Client, tidelog_server: Server, job: Job
) -> None:  # fmt: skip
    append(client, 1)

    def tasks(_: Sequence[TaskPlan]) -> list[TaskResult]:
        driver(tidelog_server, job).step()  # another engine goes on, and what it has read may be evicted
        return [TaskResult(at, failure=Failure("InputsLostError", "evicted")) for at in range(2)]

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
        drive._at = replace(drive._at, epoch=2)  # there were two epochs, on the leader that is gone
        drive._tasks = in_threads
        return [TaskResult(at, failure=Failure("InputsLostError", "the entry is not there")) for at in range(2)]

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
    with pytest.raises(TryAgainError, match=r"of 'in:0' was read and is not there any more"):
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


def test_a_source_does_not_spin_when_a_snapshot_is_due(
    tidelog_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    job = copy(tidelog_server, inputs=(), partitions=2, every=60.0, state=int, snapshot_epochs=1)
    monkeypatch.setattr(driverkit, "Options", lambda folder: Options(folder, "file:///nowhere"))
    drive = driver(tidelog_server, job)
    assert drive.step().epoch == 1
    waits = drive.step()  # the snapshot is made with the next call
    assert not waits.published
    assert waits.again is not None
    assert waits.again > 50
