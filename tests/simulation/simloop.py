"""An event loop for several simulated programs, with a virtual clock.

Rule 1: Each callback belongs to the process in whose context it was scheduled. The callbacks of one process run in
        order, as on a loop of its own. The seed decides which process runs next.
Rule 2: The virtual clock moves by some microseconds with each callback, and to the next timer when no process can run.
        A loop that does not end is an error. A paused process (SIGSTOP) runs nothing while the clock
        goes on. A dead process never runs again.
Rule 3: The clock of a process may drift from the virtual clock.
Rule 4: There are no threads. Work for an executor runs as one callback, after a random time.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio.events import TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

from tidelog.flows.testing.virtualloop import VirtualLoop

LONGEST_STEP: Final = 1e-5  # seconds that a callback takes
SLOWEST_WORK: Final = 0.02  # seconds until work for an executor has run
KEPT_LINES: Final = 4000  # lines of the trace that are kept for a report


class Process:
    """One simulated program. ``rate``: seconds of its clock in a second of the virtual clock."""

    def __init__(self, loop: SimLoop, name: str, host: str, rate: float = 1.0) -> None:
        self.loop = loop
        self.name = name
        self.host = host
        self.rate = rate
        self.paused = False
        self.dead = False
        self.muted = False  # it is about to be killed: what it still sends is lost
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        self._context = contextvars.copy_context()
        self._context.run(CURRENT.set, self)

    @property
    def context(self) -> contextvars.Context:
        """A new context of this process."""
        return self._context.copy()

    def call(self, callback: Callable[..., object], *args: object, after: float = 0.0) -> asyncio.Handle:
        """Run a callback in this process, after some virtual seconds."""
        loop = self.loop
        if after:
            return loop.call_at_virtual(loop.virtual + after, self.context, callback, *args)
        return loop.call_soon(callback, *args, context=self.context)

    def start(self, main: Coroutine[Any, Any, None], name: str = "") -> asyncio.Task[None]:
        return self.loop.create_task(main, name=name or self.name, context=self.context)

    def die(self) -> None:
        """End like a program that gets SIGKILL. Its coroutines are closed now, and not at some later time."""
        self.dead = True
        self.ready.clear()
        for task in self.tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine = task.get_coro()
                with suppress(RuntimeError):  # it awaits something while it ends
                    self.context.run(coroutine.close)
        self.tasks.clear()
        self.ready.clear()


CURRENT: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


class SimLoop(VirtualLoop):
    """The event loop. ``world`` is the process of the network and of the faults; its clock is the virtual clock."""

    def __init__(self, seed: int = 0) -> None:
        self.processes: list[Process] = []
        self.world: Process = None  # type: ignore[assignment]  # the base class asks for the time
        # called after a step in which a process has reached the point at which it is to be killed
        self.on_muted: Callable[[Process], None] = lambda process: None
        self.hidden = "/nowhere"  # the directory of the files, whose name differs in each run
        self.trouble: list[str] = []  # errors that asyncio reports
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.listeners: list[Callable[[str], None]] = []  # called with each line of the trace
        self._digest = blake2b(digest_size=16)
        super().__init__(seed)
        self.world = self.process("world", "world")
        self.set_exception_handler(self._note_trouble)

    def process(self, name: str, host: str, rate: float = 1.0) -> Process:
        process = Process(self, name, host, rate)
        self.processes = [each for each in self.processes if not each.dead]
        self.processes.append(process)
        return process

    @property
    def current(self) -> Process:
        return CURRENT.get(self.world)

    # -- the trace ---------------------------------------------------------------------------------------------
    def note(self, text: str) -> None:
        """Add a line to the trace."""
        line = f"{self.virtual:.6f} {text.replace(self.hidden, '')}"
        self._digest.update(line.encode("utf-8", "backslashreplace"))
        self.lines.append(line)
        for listener in self.listeners:
            listener(line)

    def trace(self) -> str:
        """Return a digest of all lines of the trace and of the number of steps."""
        digest = self._digest.copy()
        digest.update(b"%d" % self.steps)
        return digest.hexdigest()

    def _note_trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error, text = context.get("exception"), str(context.get("message", ""))
        # those of dead processes are reported at any time, when they are freed
        if "never retrieved" not in text and "destroyed" not in text:
            self.trouble.append(f"{text}: {error!r}")

    # -- time --------------------------------------------------------------------------------------------------
    @property
    def virtual(self) -> float:
        """The virtual clock, in seconds."""
        return self._now

    def time(self) -> float:
        """Return the monotonic time of the current process, in seconds."""
        process = CURRENT.get(self.world)
        return self._now if process is None else self._now * process.rate

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> TimerHandle:
        rate = self.current.rate
        return self.call_at_virtual(when / rate, context, callback, *args)

    def call_at_virtual(
        self, when: float, context: contextvars.Context | None, callback: Callable[..., object], *args: Any
    ) -> TimerHandle:
        return super().call_at(when, callback, *args, context=context)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **options)
        process = (options.get("context") or contextvars.copy_context()).get(CURRENT, self.world)
        process.tasks = [each for each in process.tasks if not each.done()]
        process.tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - the caller receives it
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self.current.call(call, after=self.random.uniform(1e-6, SLOWEST_WORK))
        return future

    # -- steps -------------------------------------------------------------------------------------------------
    def _run_once(self) -> None:
        """Run one callback of one process. ``run_forever`` calls this."""
        timers = self._scheduled
        while timers and (timers[0].cancelled() or timers[0].when() <= self._now):
            timer = self._pop_timer()
            if not timer.cancelled():
                self._ready.append(timer)
        self._distribute()
        able = [process for process in self.processes if process.ready and not process.paused]
        if not able:
            self._jump(timers)
            return
        self._count_step()
        process = able[0] if len(able) == 1 else able[self.random.randrange(len(able))]
        handle = process.ready.popleft()
        if not handle.cancelled():
            self.steps += 1
            self._now += self.random.random() * LONGEST_STEP
            handle._run()
            if process.muted and not process.dead:
                process.muted = False
                self.on_muted(process)

    def _distribute(self) -> None:
        ready = self._ready
        while ready:
            handle = ready.popleft()
            process = handle._context.get(CURRENT, self.world)
            if not process.dead:
                process.ready.append(handle)
