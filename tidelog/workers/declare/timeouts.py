"""Timeouts of one length for many calls, with one timer for the oldest of them.

asyncio.timeout() sets a timer for each call and cancels it, which costs more than a short call. Here all calls have the
same timeout, so the one that began first is the first to be late.

    begin    notes the task and its deadline; sets the timer if none is set
    timer    cancels tasks that are late, then is set for the oldest call that is left
    end      takes the note away; says whether the error is the timeout's

A cancellation by somebody else stays one: as asyncio.timeout does, ``end`` takes back only its own.
"""

from __future__ import annotations

import asyncio
from typing import Any, final


@final
class Call:
    """One call that is timed."""

    __slots__ = ("cancelling", "deadline", "late", "task")

    def __init__(self, task: asyncio.Task[Any], deadline: float) -> None:
        self.task = task
        self.deadline = deadline  # on the loop's clock
        self.cancelling = task.cancelling()  # cancellations of the task before
        self.late = False  # the task was cancelled because of this call


class Deadlines:
    """Timeouts of ``seconds`` for calls in one event loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._calls: dict[Call, None] = {}  # under way, the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> Call:
        """Time what the current task does from now on, until ``end``."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a timeout is for a task")
        call = Call(task, self._loop.time() + self._seconds)
        self._calls[call] = None
        if self._timer is None:
            self._timer = self._loop.call_at(call.deadline, self._check)
        return call

    def end(self, call: Call, error: BaseException | None = None) -> bool:
        """The call is over, with this error. True if it is the cancellation because of the timeout."""
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
