"""An event loop for tests, with a virtual clock and reproducible random decisions.

    def test_it() -> None:
        simulate(story, seed=17)      # story: a coroutine function that gets the loop

Rule 1: The clock does not move while a callback is ready. After that, it jumps to the next timer, so an hour of waiting
        takes no time.
Rule 2: The seed determines the order of the ready callbacks. One seed gives the same order on any machine.
Rule 3: If no callback is ready and no timer is set, this is a deadlock, which is an error. Very many steps without a
        move of the clock are an error as well.
Rule 4: There are no sockets, threads or signals. Calls for an executor run in the loop itself.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from asyncio.events import TimerHandle
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

BEGIN_NS: Final = 1_767_225_600 * 10**9  # 2026-01-01 UTC, the wall clock of a new loop
MOST_STEPS: Final = 1_000_000  # without a move of the clock


class DeadlockError(AssertionError):
    """Nothing can happen any more, and the main coroutine is not done. The text names the waiting tasks."""


class LivelockError(AssertionError):
    """MOST_STEPS callbacks ran without a move of the clock."""


class VirtualLoop(asyncio.BaseEventLoop):
    """The event loop. ``random`` is seeded too, for the random decisions of a simulation.

    ``begin_ns``: the wall clock at the beginning, in ns since 1970.
    """

    _ready: Any  # a deque of handles
    _scheduled: list[TimerHandle]  # a heap
    _stopping: bool

    def __init__(self, seed: int = 0, begin_ns: int = BEGIN_NS) -> None:
        super().__init__()
        self.seed = seed
        self._begin_ns = begin_ns
        self.random = random.Random(seed)
        self.steps = 0  # callbacks that ran
        self._now = 0.0  # s
        self._until: float | None = None  # the time at which run_for ends
        self._standing = 0  # callbacks since the clock moved

    def time(self) -> float:
        return self._now

    def now_ns(self) -> int:
        """Return the wall clock: ns since 1970."""
        return self._begin_ns + round(self._now * 1e9)

    def run_for(self, seconds: float = 0.0) -> None:
        """Run everything that is ready or due within ``seconds``, then set the clock to the end of that time."""
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
            except Exception as error:  # noqa: BLE001 - the caller receives it
                future.set_exception(error)

        self.call_soon(call)
        return future

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps, so ``call_soon_threadsafe`` need not wake it."""

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: there are no sockets."""

    def _run_once(self) -> None:
        """Run one callback. ``run_forever`` calls this."""
        timers = self._scheduled
        while timers and (timers[0].cancelled() or timers[0].when() <= self._now):
            timer = self._pop_timer()
            if not timer.cancelled():
                self._ready.append(timer)
        ready = self._ready
        if not ready:
            self._jump(timers)
            return
        self._count_step()
        if len(ready) > 1:
            ready.rotate(-self.random.randrange(len(ready)))
        handle = ready.popleft()
        if not handle.cancelled():
            self.steps += 1
            handle._run()

    def _pop_timer(self) -> TimerHandle:
        timer = heapq.heappop(self._scheduled)
        timer._scheduled = False  # type: ignore[attr-defined]
        return timer

    def _count_step(self) -> None:
        self._standing += 1
        if self._standing > MOST_STEPS:
            self._standing = 0  # so that tasks can still be cancelled
            raise LivelockError(f"seed {self.seed}: {MOST_STEPS} steps at {self._now} s:\n{self._waiting()}")

    def _jump(self, timers: list[TimerHandle]) -> None:
        """Move the clock to the next timer, because no callback is ready."""
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
    """Run ``main`` to its end in a loop with this seed, and return its result. Remaining tasks are cancelled."""
    loop = VirtualLoop(seed)

    async def whole() -> T:
        return await main(loop)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(whole())
