"""Runs a console until a signal arrives."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.console.application import ConsoleOptions, ConsoleServer
from tidelog.operating.serving import serve_until_signal


def run(options: ConsoleOptions, say: Callable[[str], None]) -> None:
    """Run a console until SIGTERM, SIGINT or SIGHUP. ``say`` prints its address. Raises ConsoleError."""
    serve_until_signal(lambda: ConsoleServer(options), say)
