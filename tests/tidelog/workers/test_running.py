"""A worker in programs of all kinds: run again, in threads, beside other handlers of signals; several processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.workers.workerkit import PATIENCE, Order, process
from tests.waiting import eventually, until
from tidelog.cli.worker import _supervise
from tidelog.testing import Server, free_port
from tidelog.topics import Topic
from tidelog.workers import App, AppError, Worker

HEAD = """
import msgspec
from tidelog.workers import *

class Order(msgspec.Struct):
    id: int
    key: str = "k"

app = App("shop", URL, lease=1.0, grace=5.0)
"""


def billing(server: Server, seen: list[int]) -> tuple[App, Topic[Any]]:
    app = App("shop", server.url, lease=20.0, grace=20.0)
    topic = app.topic("orders", Order, partition_by="key", partitions=2)

    @app.each(topic)
    async def bill(order: Order) -> None:
        seen.append(order.id)

    return app, topic


async def bills(worker: Worker, topic: Topic[Any], seen: list[int], number: int) -> None:
    """It runs until it has processed one more order."""
    task = asyncio.create_task(worker.run())
    await worker.ready.wait()
    await topic.send(Order(number))
    await until(lambda: number in seen)
    worker.stop()
    await asyncio.wait_for(task, PATIENCE)


def test_a_worker_runs_again_after_it_was_stopped(tidelog_server: Server) -> None:
    seen: list[int] = []
    app, topic = billing(tidelog_server, seen)
    worker = Worker(app)

    async def twice() -> None:
        await bills(worker, topic, seen, 1)
        await bills(worker, topic, seen, 2)
        await topic.close()

    async def once() -> None:
        await bills(worker, topic, seen, 3)
        await topic.close()

    asyncio.run(twice())
    asyncio.run(once())  # in another event loop
    assert seen == [1, 2, 3]
    assert worker.stats["bill"].finished == 3


def test_one_worker_does_not_run_twice_at_a_time(tidelog_server: Server) -> None:
    app, _ = billing(tidelog_server, [])

    async def main() -> None:
        worker = Worker(app)
        task = asyncio.create_task(worker.run())
        await worker.ready.wait()
        with pytest.raises(AppError, match="is running already"):
            await worker.run()
        worker.stop()
        await asyncio.wait_for(task, PATIENCE)

    asyncio.run(main())


def test_a_stop_before_the_beginning_counts_once(tidelog_server: Server) -> None:
    seen: list[int] = []
    app, topic = billing(tidelog_server, seen)

    async def main() -> None:
        worker = Worker(app)
        worker.stop()
        await asyncio.wait_for(worker.run(), PATIENCE)
        await bills(worker, topic, seen, 1)

    asyncio.run(main())


def test_in_a_thread_it_leaves_signals_alone_and_any_thread_stops_it(tidelog_server: Server) -> None:
    seen: list[int] = []
    app, topic = billing(tidelog_server, seen)
    worker = Worker(app)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    failed: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(worker.run())
        except BaseException as error:  # noqa: BLE001 - the test shows it
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    topic.sync.send(Order(1))
    eventually(lambda: seen or failed)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    worker.stop()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert (seen, failed) == ([1], [])
    with pytest.raises(AppError, match="main thread"):
        _in_a_thread(lambda: asyncio.run(Worker(app).run(signals=True)))


def _in_a_thread(do: Any) -> None:
    raised: list[BaseException] = []

    def work() -> None:
        try:
            do()
        except BaseException as error:  # noqa: BLE001 - raised again
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE)
    if raised:
        raise raised[0]


def test_a_program_that_handles_signals_keeps_them(tidelog_server: Server) -> None:
    """As under uvicorn, which sets its handlers before the program's own code runs."""
    app, _ = billing(tidelog_server, [])

    def theirs(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, theirs)
    interrupt = signal.getsignal(signal.SIGINT)
    try:

        async def main() -> None:
            worker = Worker(app)
            task = asyncio.create_task(worker.run())
            await worker.ready.wait()
            assert signal.getsignal(signal.SIGTERM) is theirs
            worker.stop()
            await task

        asyncio.run(main())
        assert signal.getsignal(signal.SIGTERM) is theirs
        assert signal.getsignal(signal.SIGINT) is interrupt
    finally:
        signal.signal(signal.SIGTERM, before)


def test_two_workers_of_a_program_stop_by_one_signal(tidelog_server: Server) -> None:
    app, _ = billing(tidelog_server, [])

    async def main() -> None:
        workers = [Worker(app), Worker(app)]
        running = asyncio.gather(*[worker.run() for worker in workers])
        await asyncio.gather(*[worker.ready.wait() for worker in workers])
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, PATIENCE)

    asyncio.run(main())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_app_that_has_only_crons_and_timers(tidelog_server: Server, tmp_path: Path, number: signal.Signals) -> None:
    source = f"""{HEAD}
from tidelog.client import Client
told = Client(URL)

@app.timer(interval=0.1)
async def tick() -> None:
    told.tappend("told", {{"what": "tick"}})

@app.cron("0 3 * * *")
async def nightly() -> None: ...
"""
    with tidelog_server.client() as client, process(tidelog_server, tmp_path, source) as worker:
        eventually(lambda: client.redis.exists("told"))
        worker.signal(number)
        assert worker.wait() == 0
        assert "nightly" in worker.log


def test_an_app_with_nothing_to_run_says_so(tidelog_server: Server, tmp_path: Path) -> None:
    with process(tidelog_server, tmp_path, HEAD) as worker:
        assert worker.wait() == 1
        assert "nothing to run" in worker.log


# -- several processes ---------------------------------------------------------------------------------------
SUPERVISOR = """
import sys
from tidelog.cli.worker import _supervise
sys.exit(_supervise([[sys.executable, *sys.argv[1:]]] * 2))
"""


def test_a_signal_while_a_dead_process_waits_for_its_start_is_not_lost(tmp_path: Path) -> None:
    """One process runs, the other has died, and is to be started again in a moment."""
    child = tmp_path / "child.py"
    child.write_text(
        "import os, pathlib, sys, time\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "number = len(list(folder.glob('began-*')))\n"
        "(folder / f'began-{os.getpid()}').touch()\n"
        "try:\n    (folder / 'dies').touch(exist_ok=False)\n"
        "except FileExistsError:\n    time.sleep(600)\n"
        "os._exit(9)\n"
    )
    made = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(child)], stderr=subprocess.PIPE, text=True)
    try:
        assert made.stderr is not None
        assert "ended with status 9" in made.stderr.readline()
        eventually(lambda: len(list(tmp_path.glob("began-*"))) == 2)
        made.send_signal(signal.SIGTERM)
        assert made.wait(PATIENCE) in (0, 9)
    finally:
        made.kill()
        made.wait()
        if made.stderr is not None:
            made.stderr.close()
    assert len(list(tmp_path.glob("began-*"))) == 2


def test_a_process_that_reports_a_wrong_option_is_not_started_for_ever(capfd: pytest.CaptureFixture[str]) -> None:
    before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    try:
        assert _supervise([[sys.executable, "-c", "import sys; sys.exit(2)"]]) == 2
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    assert capfd.readouterr().err.count("ended with status 2") == 1


def test_options_with_colons_are_not_taken_for_the_app(tidelog_server: Server, tmp_path: Path) -> None:
    source = f"""{HEAD}
orders = app.topic("orders", Order, partition_by="key", partitions=2)

@app.each(orders)
async def bill(order: Order) -> None: ...
"""
    port = free_port()
    options = ("--metrics-host", "::1", "--workers", "2", "--metrics", str(port))
    (tmp_path / "shopapp.py").write_text(f"URL = {tidelog_server.url!r}\n{source}")
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    made = subprocess.Popen(
        [sys.executable, "-m", "tidelog.cli", "worker", *options, "shopapp:app"], cwd=tmp_path, env=env,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(f"http://[::1]:{port}/metrics", timeout=5) as reply:
                    assert b"tidelog_worker" in reply.read()
                break
            except OSError:
                assert made.poll() is None
                assert time.monotonic() < end
                time.sleep(0.1)
        made.send_signal(signal.SIGTERM)
        assert made.wait(PATIENCE) == 0
    finally:
        made.kill()
        made.wait()
