"""What happens when the system gives this process no more memory (MemoryError: ulimit -v, or no overcommit).

Rule 1: a command that changes nothing gets an error reply, and the server goes on. So does a client whose commands or
replies find no room: it is closed.
Rule 2: anything else ends the process at once, as Redis does: a change that was cut short may be in memory and not in
the log, and a tick that was cut short never answers. What was answered is in the log, so a restart has it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, NoReturn

from resp import errors, reply
from respserver.observe.logs import Logger
from respserver.observe.stats import Counters

RESERVE = 4 << 20  # bytes given back before the last line is written


class OutOfMemory:
    """The end of the process, and the reply of Rule 1."""

    def __init__(self, counters: Counters, logger: Logger) -> None:
        self._counters = counters
        self._logger = logger
        self._reserve = bytearray(RESERVE)  # address space only: its pages are never touched
        self.on_end: Callable[[], None] = lambda: None  # called before the process ends

    def end(self, during: str) -> NoReturn:
        """End the process. ``during``: what could not be done."""
        self._end(
            lambda: f"Out of memory while {during}: the server ends here. What was answered is in the log. See"
            " maxmemory, and 'ulimit -v' of this process"
        )

    def give_up(self, why: str) -> NoReturn:
        """End the process, which can't go on for another reason."""
        self._end(lambda: f"The server ends here: {why}")

    def _end(self, text: Callable[[], str]) -> NoReturn:
        try:
            self._reserve = bytearray()
            self._logger.warning(text())
            self.on_end()
        finally:
            os._exit(1)

    def reply(self, name: bytes) -> bytes:
        """The error reply for a command that changes nothing; ``name`` is for the log."""
        self._counters.note_error(errors.NO_MEMORY)
        self._logger.warning(f"Out of memory while running {errors.show(name)}; the client got an error")
        return reply.error(errors.NO_MEMORY)

    def in_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The event loop's exception handler: what no other part has caught."""
        if isinstance(context.get("exception"), MemoryError):
            self.end("working")
        loop.default_exception_handler(context)
