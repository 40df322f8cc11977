"""Runs a program that serves HTTP until a signal arrives."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Protocol

import uvloop

from tidelog.operating.signals import ENDING, handling


class HttpProgram(Protocol):
    """A server of an HTTP address."""

    url: str  # its address, after ``start``

    async def start(self) -> None:
        """Start listening."""

    async def stop(self) -> None:
        """Stop listening and end all requests."""


def serve_until_signal(made: Callable[[], HttpProgram], say: Callable[[str], None]) -> None:
    """Run a program until SIGTERM, SIGINT or SIGHUP. ``made`` creates it in the event loop. ``say`` prints its address.

    Raises what ``made`` and ``start`` raise.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(made, say))


async def _main(made: Callable[[], HttpProgram], say: Callable[[str], None]) -> None:
    program, ended = made(), asyncio.Event()
    with handling(ENDING, lambda _: ended.set()):
        await program.start()
        gc.collect()
        gc.freeze()  # otherwise, a full collection examines all loaded objects, too: 55 ms instead of 7 (console)
        say(f"listening on {program.url}")
        try:
            await ended.wait()
        finally:
            await program.stop()
