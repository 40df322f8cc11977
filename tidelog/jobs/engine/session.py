"""The settings of an engine, and its Spark session, which starts in the background."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import tidelog
from tidelog.jobs.epochs.sparktasks import session
from tidelog.transport.access import Access

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

DAEMON: Final = "tidelog.jobs.engine.daemon"
TASK: Final = "tidelog.jobs.task.task"
CHECK: Final = 1.0  # seconds between two checks whether the session is alive
MOST: Final = 64  # maximum number of tasks that start workers

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineSettings:
    """The settings of an engine; see ``tidelog jobs engine --help``."""

    name: str
    access: Access
    master: str = "local[*]"
    state_dir: str = "jobs-state"  # directory on the machines that run tasks
    store: str = ""  # URL of the object store
    path: tuple[str, ...] = ()  # directories with the modules of jobs
    spark: Mapping[str, str] = field(default_factory=dict)
    lease: float = 10.0  # seconds
    grace: float = 60.0  # seconds
    replicas: int = 0  # replicas that must have received what is staged and published


def begin(settings: EngineSettings) -> Future[SparkSession]:
    """Start a session in a background thread."""
    future: Future[SparkSession] = Future()

    def start() -> None:
        try:
            made = _started(settings)
        except BaseException as error:  # noqa: BLE001 - raised to the user of the future
            future.set_exception(error)
        else:
            future.set_result(made)
            warm(made)

    threading.Thread(target=start, name="spark session", daemon=True).start()
    return future


def _started(settings: EngineSettings) -> SparkSession:
    known = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    here = str(Path(tidelog.__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*settings.path, here, *known]))
    ours = {"spark.app.name": f"tidelog jobs {settings.name}", "spark.python.daemon.module": DAEMON}
    made = session(settings.master, {**ours, **settings.spark})
    if not settings.master.startswith("local"):  # executors use their own installed packages
        folders = [*settings.path, *([] if "site-packages" in here or "dist-packages" in here else [here])]
        made.sparkContext.environment["PYTHONPATH"] = os.pathsep.join(folders)
    importlib.import_module("tidelog.spark").register(made)
    log.info("engine %s: Spark %s is ready, master %s", settings.name, made.version, settings.master)
    return made


def watch(made: SparkSession, over: threading.Event, lost: Callable[[str], None]) -> None:
    """Call ``lost`` with the reason, in a thread, if the session ends by itself before ``over`` is set."""
    context = made.sparkContext
    jvm: subprocess.Popen[bytes] | None = getattr(context._gateway, "proc", None)

    def look() -> None:
        why = ""
        while not why and not over.wait(CHECK):
            why = _why_ended(context, jvm)
        if why and not over.is_set():
            lost(why)

    threading.Thread(target=look, name="spark watch", daemon=True).start()


def _why_ended(context: SparkContext, jvm: subprocess.Popen[bytes] | None) -> str:
    """Return why the session has ended; empty if it has not."""
    if jvm is not None and (status := jvm.poll()) is not None:
        return f"its JVM has ended with status {status}"
    try:
        return "its context was stopped" if context._jsc.sc().isStopped() else ""
    except Exception as error:  # noqa: BLE001 - of many kinds; the next check notices the end of the JVM
        log.warning("Spark does not respond: %r", error)
        return ""


def warm(made: SparkSession) -> None:
    """Start Python workers on the executors, so that the first epoch need not. Errors are only logged."""
    context = made.sparkContext
    try:
        number = min(context.defaultParallelism, MOST)
        context.parallelize(range(number), number).map(_imported).count()
    except Exception as error:  # noqa: BLE001 - tasks of jobs report errors in detail
        log.warning("the first tasks failed: %s", str(error)[:1000])


def _imported(_: int) -> bool:
    return importlib.import_module(TASK) is not None
