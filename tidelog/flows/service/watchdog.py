"""Logs which Python function blocks the event loop, and for how long. Meanwhile, no flow and no API can run, so a
thread watches the loop.

Rule 1: The loop records the time each ``BEAT``. If that time is older than ``LIMIT``, the thread inspects the
        functions that the loop's thread executes, until the loop continues. This is an episode. Two samples must
        find the same function.
Rule 2: An episode is logged when it is detected and when it has ended; each function at most once per ``EVERY``.
Rule 3: If the watching thread was blocked as well, so was the whole process: a call in C holds the interpreter's
        lock, or the machine was suspended. This is logged at the end, without the name of a function.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import tidelog

BEAT: Final = 0.2  # s
LIMIT: Final = 1.0  # s without a heartbeat of the loop
EVERY: Final = 60.0  # s between two logged episodes of a function
KNOWN: Final = 100  # maximum number of recorded functions

_PACKAGE: Final = str(Path(tidelog.__file__).parent) + "/"
_FLOWS: Final = _PACKAGE + "flows/"
_LOOP: Final = str(Path(asyncio.__file__).parent) + "/"
_LIBRARIES: Final = ("asyncio", "aiohttp", "uvloop", "concurrent", "selectors")

log = logging.getLogger("tidelog.flows")


class BlockingCall(NamedTuple):
    """A function that blocks the loop's thread."""

    function: str  # module:name
    flow: str  # alias of the instance, or empty
    entity: str
    remedy: str


class BlockingStats:
    """The statistics of one blocking function."""

    def __init__(self, call: BlockingCall) -> None:
        self.call = call
        self.times = 0
        self.seconds = 0.0  # total
        self.longest = 0.0
        self.last = 0.0  # s since 1970
        self.logged = 0.0  # monotonic clock: when it was logged
        self.silent = 0  # unlogged episodes since then

    def shown(self) -> dict[str, Any]:
        call = self.call
        return {
            "function": call.function, "flow": call.flow, "entity": call.entity, "times": self.times,
            "seconds": round(self.seconds, 3), "longest_s": round(self.longest, 3),
            "ago_s": round(max(0.0, time.time() - self.last), 3), "remedy": call.remedy,
        }  # fmt: skip


class Watchdog:
    """Watches the event loop from a thread: ``with Watchdog() as watchdog: ...``."""

    def __init__(self) -> None:
        self.blocked: dict[tuple[str, str, str], BlockingStats] = {}  # by flow, entity, function
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._noted = time.monotonic()
        self._used = time.process_time()
        self._samples: Counter[BlockingCall] = Counter()  # samples of this episode
        self._logged: BlockingCall | None = None  # logged in this episode
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Watchdog:
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        self._note()
        self._thread = threading.Thread(target=self._watch, name="flows-watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()

    # -- in the loop -----------------------------------------------------------------------------------------
    def _note(self) -> None:
        now, used = time.monotonic(), time.process_time()
        gap = now - self._noted
        with self._lock:
            found, self._samples = self._samples, Counter()
            logged, self._logged = self._logged, None
            computed = used - self._used
            self._noted, self._used = now, used
        if gap > LIMIT + BEAT:
            self._episode(found, logged, gap, computed)
        self._timer = self._loop.call_later(BEAT, self._note)

    def _episode(self, found: Counter[BlockingCall], logged: BlockingCall | None, gap: float, computed: float) -> None:
        if not found:
            why = "a call that holds the interpreter's lock" if computed > gap / 2 else "the machine or a debugger"
            log.warning("the process was blocked for %.1f s by %s", gap, why)
            return
        call = logged or found.most_common(1)[0][0]
        known = self._stats(call)
        known.times += 1
        known.seconds += gap
        known.longest = max(known.longest, gap)
        known.last = time.time()
        if logged is not None:
            text = "%s: the function %s blocked the process for %.1f s"
            log.warning(text, _owner(call), call.function, gap, extra=_extra(call, gap))
        else:
            known.silent += 1

    def _stats(self, call: BlockingCall) -> BlockingStats:
        key = (call.flow, call.entity, call.function)
        if key not in self.blocked:
            if len(self.blocked) >= KNOWN:
                del self.blocked[min(self.blocked, key=lambda each: self.blocked[each].last)]
            self.blocked[key] = BlockingStats(call)
        return self.blocked[key]

    # -- in the thread ---------------------------------------------------------------------------------------
    def _watch(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(BEAT):
            now = time.monotonic()
            late = now - before > 3 * BEAT
            before = now
            if not late and now - self._noted > LIMIT:
                try:
                    self._sample(now)
                except Exception:  # the loop changes what a sample reads
                    log.exception("no sample of a blocking call was taken")

    def _sample(self, now: float) -> None:
        frame = sys._current_frames().get(self._ident)
        task = asyncio.current_task(self._loop)
        call = None if frame is None else blocking_call(frame, task.get_name() if task is not None else "")
        if call is None:
            return
        with self._lock:
            self._samples[call] += 1
            if self._logged is not None or self._samples[call] < 2:
                return
            known = self._stats(call)
            if known.logged and now - known.logged < EVERY:
                return
            self._logged = call
            known.logged = now
            silent, known.silent = known.silent, 0
            gap = now - self._noted
        more = f" ({silent} times since the last message)" if silent else ""
        log.warning(
            "%s: the function %s has blocked the process for %.1f s%s: until it returns, no flow or API can run; %s",
            _owner(call), call.function, gap, more, call.remedy, extra=_extra(call, gap),
        )  # fmt: skip


def _extra(call: BlockingCall, gap: float) -> dict[str, Any]:
    return {"flow": call.flow, "entity": call.entity, "function": call.function, "seconds": round(gap, 3)}


def _owner(call: BlockingCall) -> str:
    return ": ".join(each for each in (call.flow, call.entity) if each) or "flows"


def blocking_call(frame: FrameType, task: str) -> BlockingCall | None:
    """Return the function that the event loop has called and that has not returned. Return None if the loop waits for
    events.

    ``task``: the name of the current task, as FLOW/ENTITY.
    """
    frames: list[FrameType] = []
    current: FrameType | None = frame
    while current is not None and not current.f_code.co_filename.startswith(_LOOP):
        frames.append(current)
        current = current.f_back
    frames.reverse()  # from the loop to the current function
    if not frames or frames[0].f_globals.get("__name__") == "selectors":  # the loop of asyncio waits in selectors
        return None
    chosen = next(
        (
            each
            for before, each in zip([None, *frames], frames, strict=False)
            if not each.f_code.co_filename.startswith(_PACKAGE)
            and (
                before.f_code.co_filename.startswith(_FLOWS)
                if before is not None
                else str(each.f_globals.get("__name__", "")).partition(".")[0] not in _LIBRARIES
            )
        ),
        frames[-1],
    )
    flow, _, entity = task.partition("/")
    if not entity:
        flow = ""
    name = f"{chosen.f_globals.get('__name__', '?')}:{chosen.f_code.co_qualname}"
    return BlockingCall(name, flow, entity, _remedy(chosen.f_code, frames))


def _remedy(code: CodeType, frames: list[FrameType]) -> str:
    if code.co_filename.startswith(_PACKAGE):
        return "reduce the amount of work per call"
    called = any(each.f_code.co_filename == _FLOWS + "operators/python.py" for each in frames)
    if called and not code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return "use the operator python with {in: thread} or {in: process}"
    return "use await asyncio.to_thread(...) for blocking calls"
