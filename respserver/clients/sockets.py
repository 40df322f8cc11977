"""Sockets of clients, read by the server itself, where _sockets.c was compiled.

A transport of the event loop takes a third of the server's own time for a short command: locks for each read and each
write, buffers, contexts. So a connection without TLS only begins with it. From its first chunk on its socket is in an
epoll set of this module, whose descriptor the event loop watches. One turn reads whatever has arrived on all sockets in
the set, and the tick ends with the turn.

Rule 1: the transport keeps the socket. It closes and aborts, and what the socket does not take at once is left to it.
Rule 2: who closes a transport, or hands it on, calls stop() before.
"""

from __future__ import annotations

import asyncio
import errno
import select
from collections.abc import Callable
from typing import Final

from respserver.runtime.ticks import TickClient, Ticks

try:
    from respserver.clients import _sockets

    AVAILABLE = True
except ImportError:  # installed without a C compiler, or no Linux
    AVAILABLE = False


class SocketReader(TickClient):
    """The part of a client's connection that takes what has arrived."""

    __slots__ = ()

    def received(self, data: bytes) -> None:
        """A chunk has arrived."""
        raise NotImplementedError

    def ended(self, error: int) -> None:
        """Nothing more arrives: the peer has shut down its side, or there was an error of the socket (its errno)."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """One of the others has raised it."""
        raise NotImplementedError


class Sockets:
    """The sockets that are read here."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ticks: Ticks) -> None:
        """Raises OSError."""
        # Takes a descriptor and bytes; returns how many of them the socket has taken, -1 for none, whatever the reason.
        self.send: Final[Callable[[int, bytes], int]] = _sockets.send  # found once
        self._receive: Final[Callable[[int, list[SocketReader | None]], bool]] = _sockets.receive
        self._loop = loop
        self._ticks = ticks
        self._epoll: Final = select.epoll()
        self._fd: Final = self._epoll.fileno()
        self._readers: Final[list[SocketReader | None]] = []  # by descriptor
        loop.add_reader(self._fd, self.turn)

    def start(self, fd: int, reader: SocketReader) -> None:
        """Read a socket. Raises OSError."""
        readers = self._readers
        if self._epoll.closed:
            raise OSError(errno.EBADF, "the server has ended")
        if fd >= len(readers):
            readers += [None] * (fd + 1 - len(readers))
        if readers[fd] is not reader:
            self._epoll.register(fd, select.EPOLLIN)
            readers[fd] = reader

    def stop(self, fd: int, reader: SocketReader) -> None:
        """Don't read it any more, until start()."""
        readers = self._readers
        if fd < len(readers) and readers[fd] is reader:
            readers[fd] = None
            self._epoll.unregister(fd)

    def turn(self) -> bool:
        """Read what has arrived on all of them: no client overtakes another because it was alone for long.

        Returns whether the time for it was too short.
        """
        ticks = self._ticks
        ticks.begin_turn()
        try:
            return self._receive(self._fd, self._readers)
        finally:
            ticks.end_turn()

    def close(self) -> None:
        """Read no more. What connections are still open then is for their transports."""
        self._loop.remove_reader(self._fd)
        self._readers.clear()
        self._epoll.close()


def sockets_of(loop: asyncio.AbstractEventLoop, ticks: Ticks) -> Sockets | None:
    """None where they are not read here. Raises OSError."""
    return Sockets(loop, ticks) if AVAILABLE else None
