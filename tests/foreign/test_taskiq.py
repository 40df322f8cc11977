"""taskiq-redis: tasks over a stream, results in strings, what a killed worker left claimed under redis-py's lock."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.foreign.servers import Target, becomes, pending, until

pytest.importorskip("taskiq_redis", reason="no taskiq-redis here (pip install 'tidelog[foreign]')")

from taskiq import TaskiqResult
from taskiq.exceptions import TaskiqResultTimeoutError
from taskiq.kicker import AsyncKicker
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker
from taskiq_redis.exceptions import ResultIsMissingError

ROOT = Path(__file__).parents[2]


@contextmanager
def worker(target: Target, idle: int = 600_000) -> Iterator[subprocess.Popen[str]]:
    """`taskiq worker` as a user starts it: a main process and one worker beneath it."""
    command = [sys.executable, "-m", "taskiq", "worker", "tests.foreign.taskiqapp:broker", "--workers", "1"]
    environment = os.environ | {"FOREIGN_URL": target.url, "FOREIGN_IDLE": str(idle), "PYTHONPATH": str(ROOT)}
    # A session of its own: the worker beneath it is killed with it.
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass
    process.wait(10)
    if process.stderr is not None:
        process.stderr.close()


def broker_of(target: Target, **options: Any) -> RedisStreamBroker:
    """The same queue and group as the worker's; tasks are sent by name."""
    broker = RedisStreamBroker(
        target.url, queue_name="tasks", consumer_group_name="workers", consumer_id="0", xread_block=20, **options
    )
    return broker.with_result_backend(RedisAsyncResultBackend(target.url, result_ex_time=600))


def kicker(broker: RedisStreamBroker, name: str) -> Any:
    return AsyncKicker(task_name=f"tests.foreign.taskiqapp:{name}", broker=broker, labels={})


def test_a_worker_process_does_tasks(target: Target) -> None:
    async def play() -> None:
        broker = broker_of(target)
        await broker.startup()
        tasks = [await kicker(broker, "add").kiq(number, 1000) for number in range(50)]
        results = [await task.wait_result(check_interval=0.02, timeout=30) for task in tasks]
        assert [result.return_value for result in results] == [1000 + number for number in range(50)]
        failed = await (await kicker(broker, "fail").kiq()).wait_result(check_interval=0.02, timeout=30)
        assert failed.is_err
        assert str(failed.error) == "as told"
        await becomes(lambda: pending(target.port, "tasks", "workers") == 0)
        await broker.shutdown()

    with worker(target):
        asyncio.run(play())
    with redis.Redis(port=target.port) as client:
        assert client.xlen("tasks") == 51
        results = [key for key in client.scan_iter() if client.type(key) == b"string" and client.ttl(key) > 500]
        assert len(results) == 51


def test_what_a_killed_worker_left_is_done_by_another(target: Target, tmp_path: Path) -> None:
    flag = tmp_path / "flag"

    async def send(name: str, *arguments: Any) -> Any:
        broker = broker_of(target)
        await broker.startup()
        task = await kicker(broker, name).kiq(*arguments)
        await broker.shutdown()
        return task

    async def result_of(task: Any) -> TaskiqResult[Any]:
        broker = broker_of(target)
        await broker.startup()
        task.result_backend = broker.result_backend
        result: TaskiqResult[Any] | None = None
        # It looks for what others left only after it got something of its own.
        nudge = await kicker(broker, "add").kiq(1, 1)
        await nudge.wait_result(check_interval=0.02, timeout=30)
        deadline = time.monotonic() + 30
        while result is None:
            assert time.monotonic() < deadline
            await kicker(broker, "add").kiq(1, 1)
            try:
                result = await task.wait_result(check_interval=0.02, timeout=0.2)
            except TaskiqResultTimeoutError:
                continue
        await broker.shutdown()
        return result

    with worker(target) as process:
        task = asyncio.run(send("wait_for", str(flag)))
        began = flag.with_suffix(".began")
        until(lambda: began.exists() and began.read_text())
        _kill(process)
    assert pending(target.port, "tasks", "workers") == 1
    flag.write_text("done")
    with worker(target, idle=10):
        assert asyncio.run(result_of(task)).return_value == "done"
        until(lambda: pending(target.port, "tasks", "workers") == 0)
    assert len(set(began.read_text().split())) == 2  # processes


def test_workers_share(target: Target) -> None:
    async def play() -> set[int]:
        broker = broker_of(target)
        await broker.startup()
        tasks = [await kicker(broker, "where").kiq() for _ in range(200)]
        results = [await task.wait_result(check_interval=0.02, timeout=30) for task in tasks]
        await becomes(lambda: pending(target.port, "tasks", "workers") == 0)
        await broker.shutdown()
        return {result.return_value for result in results}

    with worker(target), worker(target):
        with redis.Redis(port=target.port) as client:
            until(lambda: client.info("clients")["blocked_clients"] == 2)
        assert len(asyncio.run(play())) == 2


def test_several_streams(target: Target) -> None:
    """additional_streams: one XREADGROUP over two keys, each acknowledged under its own name."""

    async def play() -> None:
        broker = broker_of(target, additional_streams={"urgent": ">"})
        await broker.startup()

        @broker.task(task_name="note")
        async def note(text: str) -> None: ...

        await note.kiq("plain")
        await note.kicker().with_labels(queue_name="urgent").kiq("urgent")
        got = []
        async for message in broker.listen():
            got.append(b"urgent" in message.data)
            await message.ack()  # type: ignore[misc]
            if len(got) == 2:
                break
        assert sorted(got) == [False, True]
        await broker.shutdown()

    asyncio.run(play())
    assert pending(target.port, "tasks", "workers") == pending(target.port, "urgent", "workers") == 0


def test_results_are_taken_and_end(target: Target) -> None:
    async def play() -> None:
        result: TaskiqResult[str] = TaskiqResult(is_err=False, log=None, return_value="x", execution_time=0.1)
        once = RedisAsyncResultBackend[str](target.url, keep_results=False, result_px_time=60_000, prefix_str="r")
        await once.set_result("a", result)
        assert await once.is_result_ready("a")
        with redis.Redis(port=target.port) as client:
            assert 0 < client.pttl("r:a") <= 60_000
        assert (await once.get_result("a")).return_value == "x"
        with pytest.raises(ResultIsMissingError):
            await once.get_result("a")
        short = RedisAsyncResultBackend[str](target.url, result_px_time=1)
        await short.set_result("b", result)
        deadline = time.monotonic() + 10
        while await short.is_result_ready("b"):
            assert time.monotonic() < deadline
        await once.shutdown()
        await short.shutdown()

    asyncio.run(play())
