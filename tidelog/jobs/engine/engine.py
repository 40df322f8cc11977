"""``Engine``: one Spark driver, and one supervisor that runs jobs on it.

Rule 1: The session starts in the background. Code that needs it waits in its own thread, so the engine has joined and
        has read the registry before Spark is ready. If the session cannot start, the engine leaves.
Rule 2: The session ends after the last job. If it ends earlier, for instance because its JVM died, no job can run here:
        the engine leaves, so that other engines take over its jobs and its service manager can restart it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from tidelog.jobs.engine import session
from tidelog.jobs.engine.cleanup import Cleanup, disks_of
from tidelog.jobs.engine.factory import RunnerFactory
from tidelog.jobs.engine.session import EngineSettings
from tidelog.jobs.engine.supervisor import Supervisor
from tidelog.jobs.registry.status import Status
from tidelog.transport.errors import DeniedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDING: Final = 20.0  # seconds that the session may take to stop

log = logging.getLogger(__name__)


class EngineError(Exception):
    """The engine cannot run because Spark did not start or has ended."""


class Engine:
    """Runs jobs from ``run`` until ``stop``, which must be called in the event loop."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self._supervisor: Supervisor | None = None
        self._leaving = threading.Event()
        self._lost = ""  # why Spark ended; empty while it runs

    @property
    def lease_held(self) -> bool:
        return self._supervisor is not None and self._supervisor.lease.held

    def statuses(self) -> list[Status]:
        """Return the statuses of the jobs on this engine. May be called in any thread."""
        running = self._supervisor.running if self._supervisor is not None else {}
        return [job.reporter.status for job in list(running.values())]

    def stop(self) -> None:
        """Drain and stop. A second call does not wait for running jobs."""
        if self._supervisor is not None:
            self._supervisor.stop()

    async def run(self) -> None:
        """Run until ``stop``. Raises EngineError if Spark does not start or has ended (Rule 2)."""
        settings = self.settings
        spark = session.begin(settings)
        loop = asyncio.get_running_loop()
        disks = disks_of(settings, spark)
        cleanup = Cleanup(settings.access, settings.name, settings.store, disks)
        with RunnerFactory(settings, spark) as factory, cleanup:
            self._supervisor = Supervisor(
                settings.access, settings.name, factory.create, lease=settings.lease, grace=settings.grace,
                on_registry=cleanup.update,
            )  # fmt: skip
            spark.add_done_callback(lambda _: loop.call_soon_threadsafe(self._started, spark))
            try:
                await self._supervisor.run()
            except DeniedError as denied:
                raise EngineError(f"the server replied: {denied}") from None
            finally:
                self._leaving.set()
                if not self._lost:
                    await _stop_session(spark)
        if spark.done() and (error := spark.exception()) is not None:
            raise EngineError(f"Spark did not start with master {settings.master!r}: {error}")
        if self._lost:
            raise EngineError(f"Spark has ended: {self._lost}")

    def _started(self, spark: Future[SparkSession]) -> None:
        if spark.exception() is not None:
            log.error("engine %s: Spark did not start; leaving", self.settings.name)
            self.stop()
            return
        loop = asyncio.get_running_loop()

        def lost(why: str) -> None:
            if not self._leaving.is_set():
                loop.call_soon_threadsafe(self._lose, why)

        session.watch(spark.result(), self._leaving, lost)

    def _lose(self, why: str) -> None:
        log.error("engine %s: Spark has ended: %s; leaving", self.settings.name, why)
        self._lost = why
        self.stop()


async def _stop_session(spark: Future[SparkSession]) -> None:
    """Stop the session, if there is one."""
    if not spark.done() or spark.exception() is not None:
        return
    try:
        async with asyncio.timeout(ENDING):
            await asyncio.to_thread(spark.result().stop)
    except Exception as error:  # noqa: BLE001 - the session ends with the process
        log.warning("the Spark session did not stop cleanly: %r", error)
