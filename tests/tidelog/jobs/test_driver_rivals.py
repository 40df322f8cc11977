"""Drivers of one job beside each other, and links that break: each epoch is published once, each entry put out once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest
import redis

pytest.importorskip("pyarrow")

from tests.replication.proxy import Proxy
from tests.tidelog.jobs.driverkit import PARTITIONS, append, close_drivers, copy, driver, epochs, in_threads, made, out
from tidelog import Client
from tidelog.jobs import Job
from tidelog.jobs.errors import SupersededError, TryAgainError
from tidelog.jobs.task.plan import TaskPlan, TaskResult
from tidelog.testing import Server, free_port
from tidelog.transport.access import Access


@pytest.fixture
def job(tidelog_server: Server) -> Iterator[Job]:
    job = copy(tidelog_server)
    made(*job.inputs)
    yield job
    close_drivers()


def test_who_comes_second_begins_again(client: Client, tidelog_server: Server, job: Job) -> None:
    append(client, 1)
    other = driver(tidelog_server, job)
    rounds = 0

    def tasks(plans: Sequence[TaskPlan]) -> list[TaskResult]:
        """While they run, another engine publishes this epoch, or it and the next one."""
        results = in_threads(plans)
        other.step()
        if rounds:
            append(client, 9)
            other.step()
        return results

    slow = driver(tidelog_server, job, tasks=tasks)
    for rounds in range(2):  # noqa: B007 - the tasks see it
        append(client, 2)
        with pytest.raises(SupersededError):
            slow.step()
        assert client.redis.info()["stages"] == 0
    assert not slow.step().published
    assert slow.epoch == other.epoch == 3
    assert out(client)[0] == [1, 2, 2, 9]
    assert epochs(client) == [1, 2, 3]


def test_the_publish_decides_not_what_was_asked_before(client: Client, tidelog_server: Server, job: Job) -> None:
    """The rival publishes between the last question and TPUBLISH."""
    append(client, 1)
    slow, other = driver(tidelog_server, job), driver(tidelog_server, job)
    slow.prepare()
    ask = slow.publisher.publish

    def late(*given: object, **named: object) -> object:
        other.step()
        return ask(*given, **named)  # type: ignore[arg-type]

    slow.publisher.publish = late  # type: ignore[method-assign,assignment]
    with pytest.raises(SupersededError, match="CONFLICT"):
        slow.step()
    assert out(client)[0] == [1]
    assert epochs(client) == epochs(client, 1) == [1]
    assert client.redis.info()["stages"] == 0


def test_two_drivers_at_once(client: Client, tidelog_server: Server, job: Job) -> None:
    stop = threading.Event()
    published: list[list[int]] = [[], []]
    lost = [0, 0]
    trouble: list[BaseException] = []

    def drive(number: int) -> None:
        drive = driver(tidelog_server, job)
        try:
            while True:
                last = stop.is_set()
                try:
                    done = drive.step()
                except SupersededError:
                    lost[number] += 1
                    continue
                if done.published:
                    published[number].append(done.epoch)
                elif last:
                    return
        except BaseException as error:
            trouble.append(error)
            raise

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    sent = 0
    until = time.monotonic() + 60
    while (min(map(len, published)) < 20 or sum(lost) < 20) and time.monotonic() < until:
        for at in range(PARTITIONS):
            append(client, sent, stream=f"in:{at}")
        sent += 1
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not trouble
    assert min(map(len, published)) >= 20
    assert sum(lost) >= 20
    assert out(client) == [list(range(sent))] * PARTITIONS
    assert epochs(client) == epochs(client, 1) == sorted(published[0] + published[1])
    assert epochs(client) == list(range(1, len(epochs(client)) + 1))


# -- links --------------------------------------------------------------------------------------------------------
@pytest.fixture
def proxy(tidelog_server: Server) -> Iterator[Proxy]:
    with Proxy(free_port(), tidelog_server.port) as proxy:
        yield proxy


def test_a_lost_reply_to_a_publish_is_success(
    client: Client, tidelog_server: Server, job: Job, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    append(client, 1)
    drive = driver(tidelog_server, job, access=Access((f"redis://127.0.0.1:{proxy.port}",), retry_ms=5))
    drive.prepare()
    publish = drive.publisher.publish

    def cut(*given: object, **named: object) -> object:
        proxy.down.cut(after=0)  # the command gets through, its reply doesn't
        return publish(*given, **named)  # type: ignore[arg-type]

    drive.publisher.publish = cut  # type: ignore[method-assign,assignment]
    with caplog.at_level("INFO"):
        assert drive.step().published
    assert "epoch 1 had been published, but its reply was lost" in caplog.text
    assert out(client)[0] == [1]
    assert epochs(client) == [1]


def test_a_publish_of_which_nobody_knows(client: Client, tidelog_server: Server, job: Job, proxy: Proxy) -> None:
    """It came through, and the server could not be asked again: what counts is the log, not what was staged since."""
    append(client, 1)
    drive = driver(tidelog_server, job, access=Access((f"redis://127.0.0.1:{proxy.port}",), retry_ms=5, retries=1))
    drive.prepare()
    publish = drive.publisher.publish

    def cut(*given: object, **named: object) -> object:
        proxy.refuse()
        proxy.down.cut(after=0)
        return publish(*given, **named)  # type: ignore[arg-type]

    drive.publisher.publish = cut  # type: ignore[method-assign,assignment]
    with pytest.raises(ConnectionError):
        drive.step()
    assert epochs(client) == [1]
    drive.publisher.publish = publish  # type: ignore[method-assign]
    proxy.accept()
    append(client, 2)
    assert drive.step().epoch == 2
    assert out(client)[0] == [1, 2]


@pytest.mark.slow
def test_a_server_that_is_killed_again_and_again(client: Client, tidelog_server: Server, job: Job) -> None:
    stop = threading.Event()
    trouble: list[TryAgainError] = []

    def killer() -> None:
        for _ in range(6):
            time.sleep(0.3)
            tidelog_server.kill()
            tidelog_server.start()
        stop.set()

    drive = driver(tidelog_server, job, access=Access((tidelog_server.url,), retry_ms=20, retries=1000))
    append(client, *range(500))
    append(client, *range(500), stream="in:1")
    thread = threading.Thread(target=killer, daemon=True)
    thread.start()
    sent = 500
    while True:
        last = stop.is_set()
        try:
            done = drive.step()
            if last and not done.published:
                break
            if not last:
                append(client, sent, stream="in:1")
                sent += 1
        except TryAgainError as error:
            trouble.append(error)
        except redis.ConnectionError:  # of the test's own client: it does not know whether it appended
            sent += 1
    thread.join()
    client.redis.connection_pool.disconnect()
    values = out(client)
    assert values[0] == list(range(500))
    assert epochs(client) == epochs(client, 1) == list(range(1, drive.epoch + 1))
    read = [int(entry["n"]) for entry in client.trange("in:1")]
    assert values[1] == read
