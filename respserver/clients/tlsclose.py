"""The end of a TLS connection that this server closes.

A TLS transport that is closed sends close_notify, and then reads and drops whatever the peer sends until that answers,
for up to 30 seconds. A plain socket is closed without reading on, so this is done here: reading stays paused until the
peer's side has what was sent; then comes close_notify, and the socket is closed.
"""

from __future__ import annotations

import asyncio
import fcntl
import termios
from struct import unpack

FIRST_LOOK = 0.01  # seconds until the second look; the pauses double
LAST_LOOK = 30.0  # seconds: the longest pause; after it the peer takes nothing any more


def close(transport: asyncio.Transport) -> None:
    """Close a TLS transport whose reading is paused and that gets no more to write."""
    _look(transport, FIRST_LOOK)


def _look(transport: asyncio.Transport, pause: float) -> None:
    if transport.is_closing():
        return
    loop = asyncio.get_running_loop()
    if not transport.get_write_buffer_size() and not _unsent(transport):
        transport.close()  # writes close_notify, for which the socket has room now
        loop.call_soon(transport.abort)
    elif pause > LAST_LOOK:
        transport.abort()
    else:
        loop.call_later(pause, _look, transport, 2 * pause)


def _unsent(transport: asyncio.Transport) -> int:
    """Bytes that the peer's side has not acknowledged; 0 where the system does not say."""
    sock = transport.get_extra_info("socket")
    try:
        return int(unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    except OSError:
        return 0
