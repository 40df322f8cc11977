"""One timeout for many calls, with a single timer set for the oldest of them.

asyncio.timeout() sets a timer for each call and cancels it, which costs more than a short call. Here all calls have the
same timeout, so the one that began first is the first to be late.

    begin    notes the task and its deadline; sets the timer if none is set
    timer    cancels overdue tasks, then is set for the oldest remaining call
    end      removes the record; returns whether the timeout caused the error

A cancellation from elsewhere is left alone: like asyncio.timeout(), ``end`` undoes only its own.
"""

from __future__ import annotations

import asyncio
from typing import Any, final


@final
class TimedCall:
    """One call with a timeout."""

    __slots__ = ("cancelling", "deadline", "late", "task")

    def __init__(self, task: asyncio.Task[Any], deadline: float) -> None:
        self.task = task
        self.deadline = deadline  # loop time
        self.cancelling = task.cancelling()  # earlier cancellations of the task
        self.late = False  # the timeout of this call has cancelled the task


class CallTimeouts:
    """Timeouts of ``seconds`` for the calls in one event loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._calls: dict[TimedCall, None] = {}  # in progress, the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> TimedCall:
        """Start the timeout for the current task; it ends with ``end``."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a timeout requires a task")
        call = TimedCall(task, self._loop.time() + self._seconds)
        self._calls[call] = None
        if self._timer is None:
            self._timer = self._loop.call_at(call.deadline, self._check)
        return call

    def end(self, call: TimedCall, error: BaseException | None = None) -> bool:
        """End the timeout of a call. Returns True if ``error`` is the cancellation that the timeout caused."""
        self._calls.pop(call, None)
        if not call.late:
            return False
        call.late = False
        left = call.task.uncancel()
        return isinstance(error, asyncio.CancelledError) and left <= call.cancelling

    def _check(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._calls:
            call = next(iter(self._calls))
            if call.deadline > now:
                self._timer = self._loop.call_at(call.deadline, self._check)
                return
            del self._calls[call]
            call.late = True
            call.task.cancel()
