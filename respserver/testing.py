"""A server in a thread of the test's process: real sockets and files, and a clock that the test advances.

    with start_in_thread() as server:            # wall clock
        redis.Redis(port=server.port)

    with start_in_thread(clock=HandClock()) as server:
        server.advance(5000)                     # advance five seconds, and do everything that falls due
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from respserver.config.config import Config
from respserver.observe.logs import Logger
from respserver.runtime.clock import Clock
from respserver.runtime.servedtime import STALL_MS
from respserver.server import RespServer

T = TypeVar("T")
STEP_MS = 100  # step of advance(), equal to the time between two runs of RespServer.on_time()


class HandClock(Clock):
    """A clock that advances only by move() and set(). Starts at 1,700,000,000,000 ms."""

    by_hand = True

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self._now = now
        self._mono = 1_000_000

    def now(self) -> int:
        return self._now

    def mono(self) -> int:
        return self._mono

    def micros(self) -> int:
        return self._now * 1000

    def move(self, ms: int) -> None:
        """Move both clocks. A negative ``ms`` sets only the wall clock back."""
        self._now += ms
        self._mono += max(0, ms)

    def set(self, ms: int) -> None:
        """Set the wall clock forward by ``ms``, or back if it is negative."""
        self._now += ms


class RunningServer:
    """A server that runs in its own thread."""

    def __init__(self, server: RespServer, loop: asyncio.AbstractEventLoop, port: int) -> None:
        self.server = server
        self.port = port
        self._loop = loop

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the server's event loop, and return its result."""

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def stop(self) -> None:
        """Begin the shutdown."""
        self._loop.call_soon_threadsafe(self.server.stop)

    @property
    def _clock(self) -> HandClock:
        clock = self.server.clock
        if not isinstance(clock, HandClock):
            raise TypeError("only a server started with a HandClock can be stalled or advanced")
        return clock

    def stall(self, ms: int) -> None:
        """Simulate that the process is stopped for ``ms``. Commands that are sent meanwhile wait."""
        clock = self._clock

        def stop() -> None:
            self.server.served_time.longest = STALL_MS
            self.server.served_time.update()
            clock.move(ms)

        self.call(stop)

    def advance(self, ms: int) -> None:
        """Advance the clock in steps. Afterwards, the server has done everything that fell due."""
        clock, left = self._clock, ms

        def step(by: int) -> None:
            clock.move(by)
            self.server.on_time()
            self.server.tick()

        while left > 0:
            by = min(left, STEP_MS)
            self.call(lambda by=by: step(by))  # type: ignore[misc]
            left -= by
        if ms < 0:
            self.call(lambda: clock.move(ms))


def nothing_waits(server: RespServer) -> bool:
    """Return whether no client waits, no key is signalled, and no record of an earlier wait is left."""
    blocking, ks = server.blocking, server.data.ks
    return not (blocking.count or blocking._queues or blocking._awaiting or ks.waiting or ks.ready)


def retained_deadlines(server: RespServer) -> int:
    """Return the number of deadlines that are retained, including those of waits that have ended."""
    return len(server.blocking._deadlines)


@contextmanager
def start_in_thread(
    directory: Path | str | None = None, clock: Clock | None = None, **options: str | list[str]
) -> Iterator[RunningServer]:
    """Start a server on a free port of the loopback interface.

    ``options`` are directives, with ``_`` for ``-``; a list is several words. Without ``directory``, the data is in a
    temporary one. Raises what Server.start() raises.
    """
    with tempfile.TemporaryDirectory() as temporary:
        argv = ["--port", "0", "--dir", str(directory or temporary), "--loglevel", "warning"]
        for name, value in {"wal_size": "1mb", **options}.items():  # a small file, because each server writes all of it
            argv += ["--" + name.replace("_", "-"), *([value] if isinstance(value, str) else value)]
        config = Config.load(argv)
        ready: Future[RunningServer] = Future()

        async def main() -> None:
            try:
                server = RespServer(config, Logger(level="warning"), clock)
                await server.start()
                port = await server.listeners.tcp("127.0.0.1", 0)
            except BaseException as error:  # noqa: BLE001 - raised in the test's thread
                ready.set_exception(error)
                return
            ready.set_result(RunningServer(server, asyncio.get_running_loop(), port))
            await server.run_until_stopped()

        thread = threading.Thread(target=lambda: asyncio.run(main()), name="tidelog-server")
        thread.start()
        try:
            yield ready.result(30)
        finally:
            if ready.exception(0) is None and thread.is_alive():
                ready.result().stop()
            thread.join(30)
            if thread.is_alive():
                raise RuntimeError("the server did not stop")
