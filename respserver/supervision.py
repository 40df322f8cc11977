"""Notifies systemd of the start, the end, and the health of the server (``Type=notify``, ``WatchdogSec``).

Each notification is a datagram to ``$NOTIFY_SOCKET``, as sd_notify(3) describes:

    READY=1     the server accepts connections
    STOPPING=1  a signal, SHUTDOWN, or an error of the server ends it; the last checkpoint follows
    WATCHDOG=1  the event loop runs; sent twice in each $WATCHDOG_USEC, from READY=1 on

Rule 1: the watchdog is a timer of the event loop, so that systemd notices a loop that hangs. It kills the server after
        WatchdogSec, and starts it again. The watchdog does not limit a long start.
Rule 2: an error of the socket is logged once and changes nothing else.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

from respserver.config.config import Config
from respserver.observe.logs import Logger

SHARE: Final = 0.5  # of the watchdog's time, between two notifications; systemd recommends half of it


class Supervision:
    """The notifications of one server. It sends nothing unless ``supervised`` is systemd or auto."""

    def __init__(self, config: Config, logger: Logger) -> None:
        self._logger = logger
        self._address = os.environ.get("NOTIFY_SOCKET", "") if config.supervised in ("systemd", "auto") else ""
        self._failed = False  # an error was logged
        if config.supervised == "systemd" and not self._address:
            logger.warning("systemd supervision requested, but NOTIFY_SOCKET not found")

    def ready(self) -> None:
        """Report that the server accepts connections, and start the watchdog's timer in the running loop."""
        self._notify(f"READY=1\nMAINPID={os.getpid()}\nSTATUS=Ready to accept connections\n")
        seconds = self._watchdog()
        if seconds:
            self._alive(asyncio.get_running_loop(), seconds)

    def stopping(self) -> None:
        """Report that the server ends."""
        self._notify("STOPPING=1\n")

    def _watchdog(self) -> float:
        """Return the seconds between two notifications; 0 if systemd expects none from this process."""
        microseconds = os.environ.get("WATCHDOG_USEC", "")
        for_us = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        if not self._address or not for_us or not microseconds.isdecimal():
            return 0
        return SHARE * int(microseconds) / 1_000_000

    def _alive(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._notify("WATCHDOG=1\n")
        loop.call_later(seconds, self._alive, loop, seconds)

    def _notify(self, message: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address  # @: abstract namespace
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto(message.encode(), address)
        except OSError as exc:
            if not self._failed:
                self._logger.warning(f"Can't notify systemd: {exc.strerror}")
            self._failed = True
