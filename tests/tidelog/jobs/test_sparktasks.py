"""Tasks as Spark jobs, in a real session."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")

from tests.tidelog.jobs.driverkit import append, close_drivers, copy, driver, epochs, made, out
from tests.tidelog.spark.sparkkit import SETTINGS, require_spark, surroundings
from tidelog import Client
from tidelog.jobs.epochs.sparktasks import SparkTasks, session
from tidelog.jobs.errors import TryAgainError
from tidelog.jobs.task.plan import TaskPlan, TaskResult, TaskSettings
from tidelog.operating.signals import ENDING, unhandled
from tidelog.testing import Server
from tidelog.transport.access import Access

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
KIT = "tests.tidelog.jobs.driverkit:run"
HERE = "tests.tidelog.jobs.test_sparktasks"


@pytest.fixture(scope="module")
def engine() -> Iterator[SparkSession]:
    """A session as an engine makes it, with the settings that make it start sooner; or the one that runs already."""
    require_spark()
    from pyspark.sql import SparkSession

    there = SparkSession.getActiveSession()
    if there is not None:  # there can be only one in a process
        yield there
        return
    wanted = ("spark.driver.memory", "spark.driver.extraJavaOptions", "spark.log.level")
    with surroundings():
        made = session("local[2,3]", {name: SETTINGS[name] for name in wanted})
    yield made
    made.stop()


def plans(number: int, path: str = "") -> list[TaskPlan]:
    where = TaskSettings("any:job", (path,) if path else (), Access(), 1, "run", number, "/nowhere")
    return [TaskPlan(where, at, 1, None, {}) for at in range(number)]


def who(plan: TaskPlan) -> TaskResult:
    """A target: which process it is, and whether the user's module is found."""
    keys = 0
    if plan.where.path:
        import users_module_of_a_test  # type: ignore[import-not-found]

        keys = users_module_of_a_test.NUMBER
    return TaskResult(plan.partition, (str(os.getpid()), plan.where.run), keys=keys)


def fail_once(plan: TaskPlan) -> TaskResult:
    """A target: the first attempt at partition 1 takes its process with it."""
    mark = Path(plan.where.state_dir)
    if plan.partition == 1 and not mark.exists():
        mark.touch()
        os._exit(1)
    return TaskResult(plan.partition)


def hang(plan: TaskPlan) -> TaskResult:
    """A target that says that it has begun, and never ends."""
    (Path(plan.where.state_dir) / str(plan.partition)).touch()
    while True:
        time.sleep(0.1)


def test_there_are_as_many_tasks_as_plans_in_processes_that_stay(engine: SparkSession) -> None:
    tasks = SparkTasks(engine, "who", f"{HERE}:who")
    processes: set[str] = set()
    runs: list[str] = []
    for _ in range(5):
        for number in (1, 5):
            results = tasks(plans(number))
            assert [result.partition for result in results] == list(range(number))
            processes.update(result.stages[0] for result in results)
            runs += [result.stages[1] for result in results]
    assert len(processes) <= 3  # one for each core, and one more where Spark gave one back too late
    assert str(os.getpid()) not in processes
    assert len(set(runs)) == len(runs) == 30  # attempts at a task can be told apart, by what they leave behind
    assert {run.partition(".")[0] for run in runs} == {"run"}


def test_the_users_modules_are_found(engine: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "users_module_of_a_test.py").write_text("NUMBER = 17\n")
    assert [result.keys for result in SparkTasks(engine, "who", f"{HERE}:who")(plans(2, str(tmp_path)))] == [17, 17]
    assert str(tmp_path) not in sys.path


def test_a_process_that_dies_is_replaced(engine: SparkSession, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    asked = [replace(plan, where=replace(plan.where, state_dir=mark)) for plan in plans(2)]
    assert [result.partition for result in SparkTasks(engine, "once", f"{HERE}:fail_once")(asked)] == [0, 1]


def test_one_that_hangs_is_ended_after_the_jobs_timeout(engine: SparkSession, tmp_path: Path) -> None:
    asked = [replace(plan, where=replace(plan.where, state_dir=str(tmp_path))) for plan in plans(2)]
    tasks = SparkTasks(engine, "hang", f"{HERE}:hang", timeout=1.0)
    for _ in range(2):
        with pytest.raises(TryAgainError, match=r"job 'hang': an epoch took longer than 1 seconds \(timeout\)"):
            tasks(asked)
    assert len(SparkTasks(engine, "who", f"{HERE}:who")(plans(2))) == 2  # its cores are free


def test_one_that_hangs_can_be_cancelled_alone(engine: SparkSession, tmp_path: Path) -> None:
    asked = [replace(plan, where=replace(plan.where, state_dir=str(tmp_path))) for plan in plans(1)]
    hanging = SparkTasks(engine, "hang", f"{HERE}:hang")
    met: list[BaseException] = []

    def run() -> None:
        try:
            hanging(asked)
        except TryAgainError as error:
            met.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not (tmp_path / "0").exists():
        time.sleep(0.01)
    assert len(SparkTasks(engine, "who", f"{HERE}:who")(plans(2))) == 2  # beside it
    hanging.cancel()
    thread.join(20)
    assert not thread.is_alive()
    assert "job 'hang': cancelled" in str(met[0])
    with pytest.raises(TryAgainError, match="cancelled"):
        hanging(asked)


def test_one_that_hung_before_leaves_a_core_to_the_others(engine: SparkSession, tmp_path: Path) -> None:
    """It has as many partitions as there are cores, and is tried again."""
    asked = [replace(plan, where=replace(plan.where, state_dir=str(tmp_path))) for plan in plans(2)]
    with pytest.raises(TryAgainError, match="longer than 1 seconds"):
        SparkTasks(engine, "stuck", f"{HERE}:hang", timeout=1.0)(asked)
    for path in tmp_path.iterdir():
        path.unlink()
    again = SparkTasks(engine, "stuck", f"{HERE}:hang", timeout=60.0)  # as after any failure

    def run() -> None:
        with pytest.raises(TryAgainError, match="cancelled"):
            again(asked)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        while not any(tmp_path.iterdir()):
            time.sleep(0.01)
        began = time.monotonic()
        for _ in range(3):
            assert [each.partition for each in SparkTasks(engine, "who", f"{HERE}:who")(plans(3))] == [0, 1, 2]
        assert time.monotonic() - began < 30
        assert [path.name for path in tmp_path.iterdir()] == ["0"]  # the others wait in the same task
    finally:
        again.cancel()
        thread.join(20)
    assert not thread.is_alive()


def slow(plan: TaskPlan) -> TaskResult:
    """A target that takes a while."""
    time.sleep(0.05)
    return TaskResult(plan.partition)


def test_a_busy_job_and_one_behind_it_in_the_alphabet_take_turns(engine: SparkSession) -> None:
    """Each alone has tasks for all cores, all the time."""
    done = dict.fromkeys(("a", "m", "z"), 0)
    over = threading.Event()

    def run(name: str) -> None:
        tasks = SparkTasks(engine, name, f"{HERE}:slow")
        while not over.is_set():
            tasks(plans(8))
            done[name] += 1

    threads = [threading.Thread(target=run, args=(name,)) for name in done]
    for thread in threads:
        thread.start()
    while max(done.values()) < 12:
        time.sleep(0.01)
    found = dict(done)
    over.set()
    for thread in threads:
        thread.join()
    assert min(found.values()) > max(found.values()) / 2, found


def test_what_a_task_raises_is_told(engine: SparkSession) -> None:
    with pytest.raises(TryAgainError, match=r"(?s)job 'none': its tasks failed:.*no_such_function") as met:
        SparkTasks(engine, "none", f"{HERE}:no_such_function")(plans(1))
    assert "\tat org.apache" not in str(met.value)
    assert "Driver stacktrace" not in str(met.value)


def test_epochs_of_a_driver(engine: SparkSession, client: Client, tidelog_server: Server) -> None:
    job = copy(tidelog_server)
    made(*job.inputs)
    drive = driver(tidelog_server, job, tasks=SparkTasks(engine, "copy", KIT))
    try:
        for number in range(3):
            append(client, number)
            assert drive.step().published
    finally:
        close_drivers()
    assert out(client) == [[0, 1, 2], []]
    assert epochs(client) == epochs(client, 1) == [1, 2, 3]


def test_a_session_leaves_the_signals_free(engine: SparkSession) -> None:
    """A SparkContext sets its own SIGINT handler. A worker in the same program still drains at SIGTERM."""
    assert engine.sparkContext
    handler = signal.getsignal(signal.SIGINT)
    assert handler not in (signal.default_int_handler, signal.SIG_IGN, signal.SIG_DFL)
    assert unhandled(ENDING)
