"""Watches the shutdown: it logs what a long shutdown waits for, and ends a process whose shutdown does not end.

Rule 1: stages that write to the disk are not limited: the last tick, checkpoints, the log. A replica that syncs or
opens a full copy of its leader's data gets COPY_SECONDS more.
Rule 2: stages that wait for other servers, tasks or threads end the process at their limit. That is as safe as SIGKILL,
because replies are sent after the writes. As at a regular end, the log is synced first.
Rule 3: a thread watches, because the event loop itself may hang.
Rule 4: time counts only while this thread runs: a process that was stopped (SIGSTOP) gets the rest of its time.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from respserver.observe.logs import Logger

LONGEST: Final = 20.0  # seconds for which a stage may wait for tasks and threads; systemd kills a service after 90
COPY_SECONDS: Final = 600.0  # the threads that sync and open a copy can't be interrupted
REPORT: Final = 5.0  # seconds between two log lines
CHECK: Final = 0.1  # seconds between two checks
DEEPEST: Final = 8  # calls of a stack that are logged, the innermost ones


class StopWatch:
    """Watches the shutdown of this process from the first call of stage() on."""

    def __init__(self, logger: Logger, sync: Callable[[], None], end: Callable[[str], object]) -> None:
        """Initialize, on the event loop. ``sync``: syncs the log. ``end``: ends the process; the argument is why."""
        self._logger = logger
        self._sync = sync
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._stage: tuple[str, float | None] = "", None  # what the shutdown waits for; seconds of the limit
        self._thread: threading.Thread | None = None

    def stage(self, what: str, more: float | None) -> None:
        """Begin a stage, which ends the previous one. ``what``: what the shutdown waits for.

        ``more``: seconds for which it may wait in addition to LONGEST; None: the stage is not limited.
        """
        self._stage = what, None if more is None else LONGEST + more
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tidelog-shutdown", daemon=True)
            with suppress(RuntimeError, MemoryError):  # no thread is available
                self._thread.start()

    def _run(self) -> None:
        stage, waited, due, shown = self._stage, 0.0, REPORT, False
        before = time.monotonic()
        while True:
            time.sleep(CHECK)
            now = time.monotonic()
            waited += min(now - before, 2 * CHECK)  # Rule 4
            before = now
            if self._stage is not stage:
                stage, waited, due, shown = self._stage, 0.0, REPORT, False
            what, limit = stage
            if waited >= due:
                due += REPORT
                self._logger.warning(f"The shutdown has waited for {what} for {waited:.0f} seconds")
            if waited >= (LONGEST if limit is None else limit) and not shown:
                shown = True
                self._show()
                if limit is not None:
                    self._give_up(what, waited)
                    return

    def _show(self) -> None:
        """Log what each thread and each task does."""
        with suppress(Exception):  # the event loop may change the tasks meanwhile
            for line in (*_threads(), *_tasks(self._loop)):
                self._logger.warning(line)

    def _give_up(self, what: str, waited: float) -> None:
        with suppress(Exception):  # a log that was closed is synced; if the disk fails, SIGKILL would be next
            self._sync()
        self._end(
            f"the shutdown has waited for {what} for {waited:.0f} seconds. All acknowledged writes are in the log, and"
            " the next start reads them. The lines before this one show where it waits: please report them"
        )


def _threads() -> list[str]:
    frames = sys._current_frames()
    found = []
    for thread in threading.enumerate():
        calls: list[str] = []
        frame = frames.get(thread.ident or 0)
        while frame is not None and len(calls) < DEEPEST:
            calls.append(f"{frame.f_code.co_name} ({_place(frame)})")
            frame = frame.f_back
        found.append(f"Thread {thread.name}: {' < '.join(calls)}")
    return found


def _tasks(loop: asyncio.AbstractEventLoop) -> list[str]:
    found = []
    for task in asyncio.all_tasks(loop):
        calls: list[str] = []
        coroutine: Any = task.get_coro()
        while coroutine is not None:
            frame = getattr(coroutine, "cr_frame", None)
            where = f" ({_place(frame)})" if frame is not None else ""
            calls.insert(0, f"{getattr(coroutine, '__name__', type(coroutine).__name__)}{where}")
            coroutine = getattr(coroutine, "cr_await", None)  # compiled coroutines do not have it
        found.append(f"Task {task.get_name()}: {' < '.join(calls[:DEEPEST])}")
    return found


def _place(frame: Any) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
