"""Closes TLS connections from the server's side.

A TLS transport that is closed sends close_notify, and then reads and discards all bytes until the peer answers, for up
to 30 seconds. A plain socket is closed without further reading. This module therefore keeps reading paused until the
peer has acknowledged all bytes, then sends close_notify, and closes the socket.
"""

from __future__ import annotations

import asyncio
import fcntl
import termios
from struct import unpack

FIRST_DELAY = 0.01  # seconds between the first two checks; the delays double
LAST_DELAY = 30.0  # seconds; after a delay of this length, the connection is aborted


def close(transport: asyncio.Transport, delay: float = FIRST_DELAY) -> None:
    """Close a TLS transport whose reading is paused and to which nothing more is written.

    ``delay``: seconds until the next check.
    """
    if transport.is_closing():
        return
    loop = asyncio.get_running_loop()
    if not transport.get_write_buffer_size() and not _unsent(transport):
        transport.close()  # writes close_notify, for which the socket now has room
        loop.call_soon(transport.abort)
    elif delay > LAST_DELAY:
        transport.abort()
    else:
        loop.call_later(delay, close, transport, 2 * delay)


def _unsent(transport: asyncio.Transport) -> int:
    """Return the number of bytes that the peer has not acknowledged; 0 if the system does not report it."""
    sock = transport.get_extra_info("socket")
    try:
        return int(unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    except OSError:
        return 0
