"""Handles MemoryError: the system gives this process no more memory (ulimit -v, or no overcommit).

Rule 1: a command that changes nothing gets an error reply. A client whose commands or replies do not fit into memory is
closed. In both cases the server continues.
Rule 2: in all other cases the process ends immediately, as in Redis. An interrupted change may be in memory and not in
the log, and an interrupted tick never sends its replies. All changes whose replies were sent are in the log, so a
restart recovers them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, NoReturn

from resp import errors, reply
from respserver.observe.logs import Logger
from respserver.observe.stats import Counters

RESERVE = 4 << 20  # bytes freed before the last log line is written


class OutOfMemory:
    """Ends the process, or returns the reply of Rule 1."""

    def __init__(self, counters: Counters, logger: Logger) -> None:
        self._counters = counters
        self._logger = logger
        self._reserve = bytearray(RESERVE)  # only address space: its pages are never touched
        self.on_end: Callable[[], None] = lambda: None  # called before the process ends

    def end(self, during: str) -> NoReturn:
        """End the process. ``during``: the operation that failed."""
        self._end(
            lambda: f"Out of memory while {during}: the server ends here. All answered writes are in the log. See"
            " maxmemory, and 'ulimit -v' of this process"
        )

    def give_up(self, why: str) -> NoReturn:
        self._end(lambda: f"The server ends here: {why}")

    def _end(self, text: Callable[[], str]) -> NoReturn:
        try:
            self._reserve = bytearray()
            self._logger.warning(text())
            self.on_end()
        finally:
            os._exit(1)

    def reply(self, name: bytes) -> bytes:
        """Return the error reply for a command that changes nothing; ``name`` is for the log."""
        self._counters.note_error(errors.NO_MEMORY)
        self._logger.warning(f"Out of memory while running {errors.show(name)}; the client got an error")
        return reply.error(errors.NO_MEMORY)

    def in_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an exception that was not caught elsewhere: the event loop's exception handler."""
        if isinstance(context.get("exception"), MemoryError):
            self.end("working")
        loop.default_exception_handler(context)
