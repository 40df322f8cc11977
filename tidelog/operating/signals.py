"""Signal handlers of a program with an event loop, installed for a time and not inherited by child processes.

    with signals.handling(ENDING, handle):     handle(number) is called in the event loop
        ...

Rule 1: at the end, the previous handlers are restored, unless other code has set another handler meanwhile.
Rule 2: several parts of a program can handle the same signal. All their handlers are called.
Rule 3: a forked child starts with the handlers of a new program, and without the wakeup descriptor. Otherwise it would
        write its own signals into the parent's event loop, and survive them. Signals that arrive between the fork and
        the reset are delayed until the reset.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

#: The signals that stop a program. SIGHUP: its terminal was closed; a program under ``nohup`` ignores it.
ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
Handler = Callable[[signal.Signals], None]


class _Taken:
    """A signal that this program handles."""

    def __init__(self, number: signal.Signals, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        self.loop = loop
        self.handlers: dict[object, Handler] = {}
        self.before = signal.getsignal(number)
        loop.add_signal_handler(number, self._call)
        self._ours = signal.getsignal(number)

    def _call(self) -> None:
        for handle in tuple(self.handlers.values()):
            handle(self.number)

    def restore(self) -> None:
        if signal.getsignal(self.number) is self._ours:
            self.loop.remove_signal_handler(self.number)
            signal.signal(self.number, signal.SIG_DFL if self.before is None else self.before)


_taken: dict[signal.Signals, _Taken] = {}  # of the process


@contextmanager
def held(number: signal.Signals) -> Iterator[None]:
    """Delay a signal until ``release``, or the end. A signal that has no handler yet would end the process."""
    if not in_main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (number,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release(number: signal.Signals) -> None:
    """Deliver a signal that was delayed."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))


@contextmanager
def handling(numbers: Sequence[signal.Signals], handle: Handler) -> Iterator[None]:
    """Call ``handle`` in the running event loop, which is that of the main thread, when one of the signals arrives.

    It does nothing if there are no signals. Raises RuntimeError in another thread. SIGHUP remains ignored if it was.
    """
    if numbers and not in_main_thread():
        raise RuntimeError("signals can be handled in the main thread only")
    loop, token = asyncio.get_running_loop(), object()
    entered: list[_Taken] = []
    try:
        for number in numbers:
            found = _taken.get(number)
            if found is None or found.loop is not loop:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue
                found = _taken[number] = _Taken(number, loop)
            found.handlers[token] = handle
            entered.append(found)
        yield
    finally:
        for found in entered:
            found.handlers.pop(token, None)
            if not found.handlers and _taken.get(found.number) is found:
                del _taken[found.number]
                found.restore()


def unhandled(numbers: Sequence[signal.Signals]) -> bool:
    """Return whether ``handling`` would not replace a handler of other code. False outside the main thread."""
    return in_main_thread() and all(number in _taken or _is_default(number) for number in numbers)


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def end_as_first_process() -> None:
    """Make SIGTERM end this program with status 143 if it is process 1, the only one of a container.

    The kernel discards signals to process 1 for which it has no handler: without this, only SIGKILL would end it.
    """
    if os.getpid() == 1 and in_main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _is_default(number: signal.Signals) -> bool:
    handler: Any = signal.getsignal(number)
    if handler == signal.SIG_IGN:  # set by the parent: nohup, or a shell for ``program &`` in a script
        return True
    if isinstance(handler, functools.partial):  # asyncio.run sets its own for Ctrl-C
        return getattr(handler.func, "__func__", None) is asyncio.Runner._on_sigint  # type: ignore[attr-defined]
    if getattr(handler, "__module__", None) == "pyspark.core.context":  # each SparkContext sets it; raises as Python's
        return True
    return handler in (signal.SIG_DFL, signal.default_int_handler, _end)


# -- children ------------------------------------------------------------------------------------------------
class _Forking(threading.local):
    """The signal mask of a thread that is about to fork."""

    mask: set[signal.Signals | int] | None = None


_forking: Final = _Forking()


def _before_fork() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, tuple(_taken)) if _taken else None


def _in_parent() -> None:
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _in_child() -> None:
    if _forking.mask is None:
        return
    signal.set_wakeup_fd(-1)
    for number in _taken:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _taken.clear()
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
