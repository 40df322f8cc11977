"""The topics of a batch job, as its driver finds them: missing, declared otherwise, grown, made anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

pytest.importorskip("pyarrow")

from tests.tidelog.jobs.driverkit import append, close_drivers, copy, driver, in_threads, made, numbers, out
from tidelog import Client
from tidelog.jobs import Job, JobError
from tidelog.jobs.errors import TryAgainError
from tidelog.jobs.task.plan import TaskPlan, TaskResult
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


# -- topics -------------------------------------------------------------------------------------------------------
def test_a_missing_topic(tidelog_server: Server) -> None:
    with pytest.raises(JobError, match=r"'copy'.*topic 'in' does not exist.*ready"):
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
        with pytest.raises(JobError, match=r"'copy'.*topic 'in' has 3 partitions now, and had 2.* jobs reset copy"):
            drive.step()


def test_an_input_that_is_another_one(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1)
    drive = driver(tidelog_server, job)
    drive.step()
    client.redis.delete("topic:in", "in:0", "in:1")
    again = copy(tidelog_server)
    made(*again.inputs)
    for each in (drive, driver(tidelog_server, again)):
        with pytest.raises(JobError, match=r"topic 'in' was deleted and recreated"):
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
    with pytest.raises(TryAgainError, match=r"'out' has 3 partitions now, and had 2: nothing was published"):
        drive.step()
    assert out(client) == [[], []]
    assert drive.step().published
    assert (ran, out(client)) == (2, [[1], []])
