"""An event loop for tests: a clock that is moved, not read, and chance that can be repeated.

    def test_it() -> None:
        simulate(story, seed=17)      # story: a coroutine function that gets the loop

Rule 1: the clock stands still while anything is ready. When nothing is, it jumps to the next timer. So an hour of
        waiting takes no time.
Rule 2: of what is ready any may be next: the seed decides. One seed is one order of everything, on any machine.
Rule 3: nothing ready and no timer is a deadlock, and an error; so are many steps in which the clock stands still.
Rule 4: there are no sockets, no threads, no signals. What is given to an executor runs at once, in the loop.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from asyncio.events import TimerHandle
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

BEGIN_NS: Final = 1_767_225_600 * 10**9  # 2026-01-01 UTC: the wall clock of a loop that begins
MOST_STEPS: Final = 1_000_000  # at one moment


class DeadlockError(AssertionError):
    """Nothing can ever happen any more, and the main coroutine is not done. The text names the tasks that wait."""


class LivelockError(AssertionError):
    """So much happened at one moment that it looks as if it went on for ever."""


class VirtualLoop(asyncio.BaseEventLoop):
    """``random`` is the loop's own: what a simulation decides by it is repeated with the seed."""

    _ready: Any  # a deque of handles
    _scheduled: list[TimerHandle]  # a heap
    _stopping: bool

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.random = random.Random(seed)
        self.steps = 0  # callbacks that ran
        self._now = 0.0  # s
        self._until: float | None = None  # of run_for
        self._standing = 0  # callbacks since the clock moved

    def time(self) -> float:
        return self._now

    def now_ns(self) -> int:
        """The wall clock: ns since 1970."""
        return BEGIN_NS + round(self._now * 1e9)

    def run_for(self, seconds: float = 0.0) -> None:
        """Run what is ready and what is due within that time, then let the clock stand there."""
        self._until = self._now + seconds
        try:
            self.run_forever()
        finally:
            self._until = None

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override] # noqa: ARG002 - Rule 4
        future = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - it is the caller's
                future.set_exception(error)

        self.call_soon(call)
        return future

    def _write_to_self(self) -> None:
        """For ``call_soon_threadsafe``: the loop never sleeps, so it need not be woken."""

    def _process_events(self, event_list: Any) -> None:
        """There are none."""

    def _run_once(self) -> None:
        """One callback. ``run_forever`` calls this."""
        timers = self._scheduled
        while timers and (timers[0].cancelled() or timers[0].when() <= self._now):
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            if not timer.cancelled():
                self._ready.append(timer)
        ready = self._ready
        if not ready:
            self._jump(timers)
            return
        self._standing += 1
        if self._standing > MOST_STEPS:
            self._standing = 0  # tasks can be cancelled yet
            raise LivelockError(f"seed {self.seed}: {MOST_STEPS} steps at {self._now} s:\n{self._waiting()}")
        if len(ready) > 1:
            ready.rotate(-self.random.randrange(len(ready)))
        handle = ready.popleft()
        if not handle.cancelled():
            self.steps += 1
            handle._run()

    def _jump(self, timers: list[TimerHandle]) -> None:
        """Nothing is ready: to the next timer."""
        if self._until is not None and (not timers or timers[0].when() > self._until):
            self._now = self._until
            self._standing = 0
            self._stopping = True
        elif timers:
            self._now = max(self._now, timers[0].when())
            self._standing = 0
        elif not self._stopping:
            raise DeadlockError(f"seed {self.seed}: at {self._now} s nothing can happen any more:\n{self._waiting()}")

    def _waiting(self) -> str:
        lines = []
        for task in sorted(asyncio.all_tasks(self), key=lambda each: each.get_name()):
            frames = task.get_stack(limit=1)
            where = f"{frames[0].f_code.co_qualname}:{frames[0].f_lineno}" if frames else "?"
            lines.append(f"    {task.get_name()} waits in {where}")
        return "\n".join(lines)


def simulate(main: Callable[[VirtualLoop], Awaitable[T]], seed: int = 0) -> T:
    """What ``main`` returns, run to its end by a loop with this seed. Tasks that are left are cancelled."""
    loop = VirtualLoop(seed)

    async def whole() -> T:
        return await main(loop)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(whole())
