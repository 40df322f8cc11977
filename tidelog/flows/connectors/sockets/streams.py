"""Listens and connects at the address of a stream: a TCP port or a Unix socket, with or without TLS.

Rule 1: A connection is admitted when it is accepted, before TLS, because a handshake costs time. It is closed if the
        handshake is not complete within HANDSHAKE.
Rule 2: A server replaces the Unix socket of a server that no longer runs, and no other file. It deletes only its own
        socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import stat
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from tidelog.flows.api.cancellation import cancel
from tidelog.operating.errortexts import FailureLog, summary_of
from tidelog.options.limits import Port
from tidelog.options.structs import Struct

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

CHUNK: Final = 64 << 10  # bytes read at a time
HANDSHAKE: Final = 10.0  # s for a TLS handshake
SHUTDOWN: Final = 1.0  # s for the end of TLS
BACKLOG: Final = 100  # connections that wait to be accepted
QUIET: Final = 60.0  # s without a failed handshake after which one is logged again
NO_DESCRIPTORS: Final = 1.0  # s until connections are accepted again after an error

log = logging.getLogger("tidelog.flows")


class StreamAddress(Struct):
    """The address of a stream."""

    host: str
    port: Port | None  # None: a Unix socket
    unixsocket: str | None  # the path of the socket
    mode: int = 0  # of the Unix socket; 0: determined by the umask

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.unixsocket is None else f"unix:{self.unixsocket}"


def shown(name: object, address: StreamAddress) -> str:
    """Return the name of a socket as text."""
    if isinstance(name, tuple) and len(name) >= 2:
        return f"{name[0]}:{name[1]}"
    return str(address)


async def connect(address: StreamAddress, tls: ssl.SSLContext | None) -> Streams:
    """Open a connection. Raises OSError."""
    if address.unixsocket is not None:
        try:
            return await asyncio.open_unix_connection(address.unixsocket, limit=CHUNK)
        except OSError as error:  # which does not name the path
            if error.errno is None:  # the path is too long
                raise
            raise type(error)(error.errno, error.strerror, address.unixsocket) from error
    timeout = None if tls is None else HANDSHAKE
    return await asyncio.open_connection(
        address.host, address.port, limit=CHUNK, ssl=tls, ssl_handshake_timeout=timeout,
    )  # fmt: skip


class StreamServer:
    """Accepts connections. ``admit``: returns whether a new one is accepted; its handshake counts in ``handshakes``."""

    def __init__(self, address: StreamAddress, admit: Callable[[], bool], serve: Serve) -> None:
        self._address = address
        self._admit = admit
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._accepting: list[asyncio.Task[None]] = []  # with TLS
        self._shaking: set[asyncio.Task[None]] = set()
        self._failures = FailureLog(log, QUIET)  # of handshakes: a peer that tries again does not fill the log
        self._file: tuple[int, int] | None = None  # device and inode of the Unix socket
        self.bound = str(address)  # the actual address, after ``open``

    @property
    def handshakes(self) -> int:
        return len(self._shaking)

    async def open(self, tls: ssl.SSLContext | None) -> None:
        """Listen. Raises OSError if the address is in use, or can't be opened."""
        address = self._address
        if address.unixsocket is not None:
            await self._open_unix(address.unixsocket, address.mode)
            return
        self._server = await asyncio.start_server(
            self._accepted, address.host or None, address.port, limit=CHUNK, backlog=BACKLOG, start_serving=tls is None
        )
        self.bound = shown(self._server.sockets[0].getsockname(), address)
        if tls is not None:
            own = [socket.socket(fileno=os.dup(each.fileno())) for each in self._server.sockets]
            self._server.close()
            for each in own:
                each.setblocking(False)
                each.listen(BACKLOG)
            self._accepting = [asyncio.create_task(self._accept(each, tls)) for each in own]

    async def close(self) -> None:
        """Stop listening. Connections remain open."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        file, self._file = self._file, None
        if file is not None and self._address.unixsocket is not None:
            with contextlib.suppress(OSError):
                found = os.stat(self._address.unixsocket)
                if (found.st_dev, found.st_ino) == file:
                    os.unlink(self._address.unixsocket)
        accepting, self._accepting = self._accepting, []
        await cancel(*accepting, *self._shaking)

    async def _open_unix(self, path: str, mode: int) -> None:
        await asyncio.to_thread(_remove_stale, path)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.bind(path)
            found = os.stat(path)
            if mode:
                os.chmod(path, mode)
            self._server = await asyncio.start_unix_server(self._accepted, sock=made, limit=CHUNK, backlog=BACKLOG)
        except BaseException:
            made.close()
            raise
        self._file = found.st_dev, found.st_ino

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None or not self._admit():
            writer.transport.abort()
            return
        await self._serve(reader, writer)

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext) -> None:
        """Accept connections before TLS. An event loop's own server reports them only after the handshake."""
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    peer, _ = await loop.sock_accept(listening)
                except OSError as error:  # too many open files, most likely
                    log.warning("%s: no connection can be accepted: %s", self.bound, error)
                    await asyncio.sleep(NO_DESCRIPTORS)
                    continue
                if not self._admit():
                    peer.close()
                    continue
                task = asyncio.create_task(self._secure(peer, tls))
                self._shaking.add(task)
                task.add_done_callback(self._shaking.discard)

    async def _secure(self, peer: socket.socket, tls: ssl.SSLContext) -> None:
        reader = asyncio.StreamReader(limit=CHUNK)
        protocol = asyncio.StreamReaderProtocol(reader, self._serve)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, peer, ssl=tls, ssl_handshake_timeout=HANDSHAKE, ssl_shutdown_timeout=SHUTDOWN
            )
        except OSError as error:
            peer.close()
            self._failures.warn(f"{self.bound}: TLS: {summary_of(error)}")
        except BaseException:
            peer.close()
            raise
        else:
            self._failures.succeeded()


def _remove_stale(path: str) -> None:
    """Remove the socket of a server that no longer runs. Blocks. Raises OSError if another server listens."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, f"unixsocket: {path} exists, and is not a socket: choose another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except FileNotFoundError:
            return
        except OSError:
            pass  # a full backlog: somebody listens
    raise OSError(errno.EADDRINUSE, f"unixsocket: another process listens at {path}: end it, or choose another path")
