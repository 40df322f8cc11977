"""Runs a console until a signal arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop

from tidelog.console.application import ConsoleOptions, ConsoleServer
from tidelog.operating.signals import ENDING, handling


def run(options: ConsoleOptions, say: Callable[[str], None]) -> None:
    """Run a console until SIGTERM, SIGINT or SIGHUP. ``say`` prints its address. Raises ConsoleError."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(options, say))


async def _main(options: ConsoleOptions, say: Callable[[str], None]) -> None:
    server, ended = ConsoleServer(options), asyncio.Event()
    with handling(ENDING, lambda _: ended.set()):
        await server.start()
        say(f"listening on {server.url}")
        try:
            await ended.wait()
        finally:
            await server.stop()
