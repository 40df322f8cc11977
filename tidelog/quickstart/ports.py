"""The ports of a quickstart."""

from __future__ import annotations

import errno
import socket
from typing import Final

from tidelog.quickstart.errors import QuickstartError

HOST: Final = "127.0.0.1"  # only this machine can connect
TRIED: Final = 100  # ports after the usual one


def choose(given: int | None, usual: int, option: str) -> int:
    """Return ``given`` if it is free; for None, ``usual`` or the next free port.

    Raises QuickstartError if ``given``, or all ports, are in use.
    """
    if given is not None:
        if not is_free(given):
            raise QuickstartError(f"port {given} is in use: choose another {option}, or omit the option")
        return given
    for port in range(usual, usual + TRIED):
        if is_free(port):
            return port
    raise QuickstartError(f"the ports {usual} to {usual + TRIED - 1} are in use: choose another port with {option}")


def is_free(port: int) -> bool:
    """Return whether no program listens on this port, neither for IPv4 nor for IPv6: ``localhost`` can mean both."""
    return not any(_is_used(*each, port) for each in ((socket.AF_INET, HOST), (socket.AF_INET6, "::1")))


def _is_used(family: socket.AddressFamily, host: str, port: int) -> bool:
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            probe.bind((host, port))
    except OSError as error:
        return error.errno == errno.EADDRINUSE  # others: a machine without IPv6, or a port below 1024
    return False
