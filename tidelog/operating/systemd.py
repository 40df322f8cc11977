"""Notifies systemd of the start and the state of a program (``Type=notify``), as sd_notify(3) describes.

Rule: nothing is sent if systemd did not start the program, and an error changes nothing.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(message: str) -> None:
    """Send lines such as ``READY=1`` and ``STATUS=text`` as one datagram to $NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        path = "\0" + address[1:] if address.startswith("@") else address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            sock.sendto(message.encode(), path)
