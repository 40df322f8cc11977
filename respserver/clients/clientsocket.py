"""The socket of one client: read and written by ``sockets`` where possible, otherwise by the event loop's transport.

The first chunk is read by the transport. After that, ``sockets`` reads the socket, unless it uses TLS.
"""

from __future__ import annotations

import asyncio
import select

from respserver.clients.sockets import SocketReader, Sockets
from respserver.observe.traffic import Traffic


class ClientSocket:
    """Reads one socket for ``reader``, and writes to it."""

    __slots__ = ("_behind", "_fd", "_reader", "_sockets", "_traffic", "reading", "transport")

    def __init__(self, reader: SocketReader, sockets: Sockets | None, traffic: Traffic) -> None:
        self.transport: asyncio.Transport
        self.reading = True  # False: too many requests or replies wait, or the connection ends
        self._reader: SocketReader | None = reader  # None once the transport reads: a connection must not be a cycle
        self._sockets = sockets  # None: the transport reads and writes
        self._traffic = traffic
        self._fd = -1  # -1 while the transport reads
        self._behind = False  # the transport may still have bytes that the socket did not accept

    def leave_transport(self, tls: bool) -> None:
        """After the first chunk, let ``sockets`` read the socket, if possible."""
        if self._sockets is None:
            return
        sock = None if tls else self.transport.get_extra_info("socket")
        if sock is None:
            self.to_transport()
            return
        self.transport.pause_reading()
        self._fd = sock.fileno()
        self._start()

    def resume_reading(self) -> None:
        if not self.reading and not self.transport.is_closing():
            self.reading = True
            self._start()

    def pause_reading(self) -> None:
        if self.reading and not self.transport.is_closing():
            self.reading = False
            self.stop()

    def _start(self) -> None:
        if self._sockets is not None and self._reader is not None and self._fd >= 0:
            try:
                self._sockets.start(self._fd, self._reader)
                return
            except OSError:  # the system cannot watch any more files for this user
                self.to_transport()
        self.transport.resume_reading()

    def stop(self) -> None:
        """Stop reading, even if the transport is closing."""
        if self._sockets is not None and self._reader is not None and self._fd >= 0:
            self._sockets.stop(self._fd, self._reader)
        else:
            self.transport.pause_reading()

    def to_transport(self) -> None:
        """Hand reading and writing over to the transport, or to its next protocol."""
        if self._fd >= 0:
            self.stop()
            self._fd = -1
        self._sockets = self._reader = None

    def write(self, data: bytes) -> None:
        traffic = self._traffic
        traffic.bytes_out += len(data)
        traffic.writes += 1
        sockets = self._sockets
        if sockets is None or self._fd < 0 or (self._behind and self.transport.get_write_buffer_size()):
            self.transport.write(data)
            return
        sent = sockets.send(self._fd, data)
        self._behind = sent < len(data)
        if self._behind:  # or there is an error, which the transport will also encounter
            self.transport.write(memoryview(data)[sent:] if sent > 0 else data)

    def buffered(self) -> int:
        return self.transport.get_write_buffer_size()

    def peer_has_shut_down(self) -> bool:
        """Return whether the peer sends nothing more, or the socket has failed.

        A shutdown is not noticed if the requests in the socket fill its buffers.
        """
        poll = select.poll()
        poll.register(self.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def fileno(self) -> int:
        sock = self.transport.get_extra_info("socket")
        return sock.fileno() if sock is not None else -1
