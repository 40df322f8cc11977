"""``Engine``: one Spark driver and one supervisor, which runs jobs on it.

Rule 1: the session starts in the background. What needs it waits in its own thread, so the engine has joined, and knows
        its jobs, before Spark is there. Without a session there is no engine: it leaves.
Rule 2: the session ends after the last job. When it ends before, as with its JVM, nothing can run here any more: the
        engine leaves, so that its jobs go on elsewhere, and what has started it can start it again.
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
from tidelog.transport.errors import DeniedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDING: Final = 20.0  # seconds that the session may take to end

log = logging.getLogger(__name__)


class EngineError(Exception):
    """The engine can't run: there is no Spark, or none any more."""


class Engine:
    """Runs jobs from ``run`` to ``stop``, which is to be called in the event loop."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self._supervisor: Supervisor | None = None
        self._leaving = threading.Event()
        self._lost = ""  # why there is no Spark any more

    def stop(self) -> None:
        """Drain and end; the second time, without waiting for what runs."""
        if self._supervisor is not None:
            self._supervisor.stop()

    async def run(self) -> None:
        """Take part until ``stop``. EngineError where Spark does not start, or has ended (Rule 2)."""
        settings = self.settings
        spark = session.begin(settings)
        loop = asyncio.get_running_loop()
        disks = disks_of(settings, spark)
        sweeping = Cleanup(settings.access, settings.name, settings.store, disks)
        with RunnerFactory(settings, spark) as making, sweeping:
            self._supervisor = Supervisor(
                settings.access, settings.name, making.make, lease=settings.lease, grace=settings.grace,
                told=sweeping.told,
            )  # fmt: skip
            spark.add_done_callback(lambda _: loop.call_soon_threadsafe(self._started, spark))
            try:
                await self._supervisor.run()
            except DeniedError as denied:
                raise EngineError(f"the server replied: {denied}") from None
            finally:
                self._leaving.set()
                if not self._lost:
                    await _ended(spark)
        if spark.done() and (error := spark.exception()) is not None:
            raise EngineError(f"Spark does not start with master {settings.master!r}: {error}")
        if self._lost:
            raise EngineError(f"Spark has ended: {self._lost}")

    def _started(self, spark: Future[SparkSession]) -> None:
        if spark.exception() is not None:
            log.error("engine %s: Spark does not start; leaving", self.settings.name)
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


async def _ended(spark: Future[SparkSession]) -> None:
    """End the session, if there is one."""
    if not spark.done() or spark.exception() is not None:
        return
    try:
        async with asyncio.timeout(ENDING):
            await asyncio.to_thread(spark.result().stop)
    except Exception as error:  # noqa: BLE001 - it ends with the process
        log.warning("the Spark session did not end in order: %r", error)
