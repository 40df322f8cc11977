"""Reads and writes the sockets of clients directly, if _sockets.c was compiled.

A connection without TLS begins with a transport of the event loop. After its first chunk, its socket is added to an
epoll set of this module. One pass reads all bytes that have arrived on all sockets of the set, and the tick ends with
the pass. A loop of uvloop waits for the set in _sockets.c. Other loops watch the set's descriptor.

Rule 1: the transport owns the socket. It closes and aborts, and sends the bytes that the socket does not accept
immediately.
Rule 2: stop() is called before a transport is closed or handed over.

Decision: for a PING, a transport took a third of the server's instructions: two lock operations for each read,
contexts, buffers, and a callback at the end of the tick. Each pass polls the set, even if one client was alone for a
long time: reading that client first saved a system call, but let it overtake commands that others had sent before.
Decision: a loop of uvloop does not watch the set. It would poll two nested sets for each pass, which takes 0.37 us more
of the kernel's time, and call Python through a handle. A PING of one client takes 7,410 instructions outside of the
kernel instead of 8,450.
"""

from __future__ import annotations

import asyncio
import errno
import select
import sys
from collections.abc import Callable
from typing import Final

from respserver.runtime.tickclient import TickClient
from respserver.runtime.ticks import Ticks

try:
    from respserver.clients import _sockets

    AVAILABLE = True
except ImportError:  # installed without a C compiler, or not on Linux
    AVAILABLE = False


class SocketReader(TickClient):
    """The part of a client's connection that receives bytes."""

    __slots__ = ()

    def received(self, data: bytes) -> None:
        raise NotImplementedError

    def ended(self, error: int) -> None:
        """Handle the end of input: the peer has shut down its side (0), or the socket failed with this errno."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Handle an exception that received() or ended() has raised."""
        raise NotImplementedError


class Sockets:
    """The epoll set."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ticks: Ticks) -> None:
        # (descriptor, bytes) -> number of bytes that the socket has accepted; -1 for any error
        self.send: Final[Callable[[int, bytes], int]] = _sockets.send  # looked up once
        self._receive: Final[Callable[[int, list[SocketReader | None]], bool]] = _sockets.receive
        self._loop = loop
        self._ticks = ticks
        self._epoll: Final = select.epoll()
        self._fd: Final = self._epoll.fileno()
        self._readers: Final[list[SocketReader | None]] = []  # indexed by descriptor
        self._waiting = self._wait(loop)  # None: the loop watches the set
        if self._waiting is None:
            loop.add_reader(self._fd, self.turn)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> object | None:
        """Let the loop wait in _sockets.c, if it is a loop of uvloop."""
        uvloop = sys.modules.get("uvloop.loop")  # not imported for another loop
        if uvloop is None or not isinstance(loop, uvloop.Loop) or uvloop.__file__ is None:
            return None
        return _sockets.wait(uvloop.__file__, uvloop.libuv_get_loop_t_ptr(loop), self._fd, self._turn_while_waiting)

    def _turn_while_waiting(self) -> None:
        try:
            self.turn()
        except BaseException as error:  # noqa: BLE001 - the loop handles it, as that of its other callbacks
            self._loop.call_soon(_raise, error)

    def start(self, fd: int, reader: SocketReader) -> None:
        """Start to read a socket. Raises OSError."""
        readers = self._readers
        if self._epoll.closed:
            raise OSError(errno.EBADF, "the server has ended")
        if fd >= len(readers):
            readers += [None] * (fd + 1 - len(readers))
        if readers[fd] is not reader:
            self._epoll.register(fd, select.EPOLLIN)
            readers[fd] = reader

    def stop(self, fd: int, reader: SocketReader) -> None:
        """Stop reading a socket until start()."""
        readers = self._readers
        if fd < len(readers) and readers[fd] is reader:
            readers[fd] = None
            self._epoll.unregister(fd)

    def turn(self) -> bool:
        """Read all bytes that have arrived on the sockets. Returns whether the time limit ended this early."""
        ticks = self._ticks
        ticks.begin_turn()
        try:
            return self._receive(self._fd, self._readers)
        finally:
            ticks.end_turn()

    def close(self) -> None:
        """Stop reading. The transports serve connections that are still open. Idempotent."""
        if self._epoll.closed:
            return
        if self._waiting is None:
            self._loop.remove_reader(self._fd)
        else:
            _sockets.unwait(self._waiting)
        self._readers.clear()
        self._epoll.close()


def _raise(error: BaseException) -> None:
    raise error
