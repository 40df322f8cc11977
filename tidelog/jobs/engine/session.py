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
LOOK: Final = 1.0  # seconds between two looks whether it is still there
MOST: Final = 64  # tasks that start workers

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineSettings:
    """Of an engine; see ``tidelog jobs engine --help``."""

    name: str
    access: Access
    master: str = "local[*]"
    state_dir: str = "jobs-state"  # on the machines that run tasks
    store: str = ""  # URL of the object store
    path: tuple[str, ...] = ()  # folders with modules of jobs
    spark: Mapping[str, str] = field(default_factory=dict)
    lease: float = 10.0  # seconds
    grace: float = 60.0  # seconds
    replicas: int = 0  # that must have what is staged and published


def begin(settings: EngineSettings) -> Future[SparkSession]:
    """Start a session in a thread."""
    future: Future[SparkSession] = Future()

    def start() -> None:
        try:
            made = _started(settings)
        except BaseException as error:  # noqa: BLE001 - it is raised where the session is wanted
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
    if not settings.master.startswith("local"):  # what is installed there is theirs
        folders = [*settings.path, *([] if "site-packages" in here or "dist-packages" in here else [here])]
        made.sparkContext.environment["PYTHONPATH"] = os.pathsep.join(folders)
    importlib.import_module("tidelog.spark").register(made)
    log.info("engine %s: Spark %s is there, master %s", settings.name, made.version, settings.master)
    return made


def watch(made: SparkSession, over: threading.Event, lost: Callable[[str], None]) -> None:
    """Call ``lost`` in a thread, with the reason, when the session has ended by itself. Until ``over`` is set."""
    context = made.sparkContext
    jvm: subprocess.Popen[bytes] | None = getattr(context._gateway, "proc", None)

    def look() -> None:
        why = ""
        while not why and not over.wait(LOOK):
            why = _why_ended(context, jvm)
        if why and not over.is_set():
            lost(why)

    threading.Thread(target=look, name="spark watch", daemon=True).start()


def _why_ended(context: SparkContext, jvm: subprocess.Popen[bytes] | None) -> str:
    """Empty if it has not."""
    if jvm is not None and (status := jvm.poll()) is not None:
        return f"its JVM has ended with status {status}"
    try:
        return "its context was stopped" if context._jsc.sc().isStopped() else ""
    except Exception as error:  # noqa: BLE001 - of many kinds; if the JVM ends, the next look says so
        log.warning("Spark does not answer: %r", error)
        return ""


def warm(made: SparkSession) -> None:
    """Start Python's workers where tasks run, so that the first epoch need not. What goes wrong here is told later."""
    context = made.sparkContext
    try:
        number = min(context.defaultParallelism, MOST)
        context.parallelize(range(number), number).map(_imported).count()
    except Exception as error:  # noqa: BLE001 - tasks of jobs say it better
        log.warning("the first tasks failed: %s", str(error)[:1000])


def _imported(_: int) -> bool:
    return importlib.import_module(TASK) is not None
