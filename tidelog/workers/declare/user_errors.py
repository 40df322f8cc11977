"""Classifies exceptions of user code: which of them are failures of the event, and their names."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from tidelog.operating.errortexts import summary_of


class CancelledInsideError(Exception):
    """A processor's function ended with CancelledError although it had not been cancelled."""


class ExitInsideError(Exception):
    """A processor's function ended with a BaseException that is not an Exception, such as SystemExit."""


def failure(error: BaseException, task: asyncio.Task[Any] | None) -> Exception:
    """What the failure policy gets for what came out of user code, which ran in ``task``.

    A cancellation of this task is no failure: it is raised again. One of something else that the function waited for (a
    task, a future) is. So is ``sys.exit()``: one record must not end every worker that gets it. Ctrl-C is none, where
    Python raises it in whatever code runs.
    """
    if isinstance(error, Exception):
        return error
    made: Exception
    if isinstance(error, asyncio.CancelledError):
        if task is None or task.cancelling():
            raise error
        made = CancelledInsideError("what the function waited for was cancelled")
    else:
        if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise error
        if isinstance(error, GeneratorExit) and not _runs(task):  # the coroutine is being closed
            raise error
        made = ExitInsideError(f"the function has raised {summary_of(error)}")
    made.__cause__ = error
    return made


def _runs(task: asyncio.Task[Any] | None) -> bool:
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:
        return False
