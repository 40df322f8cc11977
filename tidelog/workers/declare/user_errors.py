"""Classifies the exceptions of user code: which of them are failures of the event."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from tidelog.operating.errortexts import summary_of


class CancelledInsideError(Exception):
    """A processor's function raised CancelledError although its task was not cancelled."""


class ExitInsideError(Exception):
    """A processor's function raised a BaseException that is not an Exception, such as SystemExit."""


def as_failure(error: BaseException, task: asyncio.Task[Any] | None) -> Exception:
    """Return the failure that an exception of user code, which ran in ``task``, represents.

    A cancellation of this task is not a failure and is raised again. The cancellation of another task or future that
    the function awaited is a failure. So is ``sys.exit()``, since one record must not end every worker that processes
    it. A KeyboardInterrupt is not a failure, because Python raises it in whatever code is running.
    """
    if isinstance(error, Exception):
        return error
    failed: Exception
    if isinstance(error, asyncio.CancelledError):
        if task is None or task.cancelling():
            raise error
        failed = CancelledInsideError("a task or future that the function awaited was cancelled")
    else:
        if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise error
        if isinstance(error, GeneratorExit) and not _runs(task):  # the coroutine is being closed
            raise error
        failed = ExitInsideError(f"the function raised {summary_of(error)}")
    failed.__cause__ = error
    return failed


def _runs(task: asyncio.Task[Any] | None) -> bool:
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:
        return False
