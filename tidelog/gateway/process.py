"""Runs a gateway until a signal arrives."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.gateway.application import GatewayOptions, GatewayServer
from tidelog.operating.serving import serve_until_signal


def run(options: GatewayOptions, say: Callable[[str], None]) -> None:
    """Run a gateway until SIGTERM, SIGINT or SIGHUP. ``say`` prints its address. Raises GatewayError."""
    serve_until_signal(lambda: GatewayServer(options), say)
