"""Listening sockets (TCP, TLS, unix), and the form in which addresses are shown to clients."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from ssl import SSLContext

from respserver.config.config import Config

Factory = Callable[[], asyncio.Protocol]


class Listeners:
    """All listening sockets of one server."""

    def __init__(self, config: Config, factory: Factory) -> None:
        self._config = config
        self.factory = factory  # returns the protocol for an accepted socket
        self._servers: list[asyncio.AbstractServer] = []
        self._unix_path = ""  # path of the unix socket that this server has created

    async def open(self) -> None:
        """Open the sockets that the configuration names. Raises OSError, ConfigError."""
        config = self._config
        if config.port:
            await self._everywhere(config.port, None)
        if config.tls_port:
            from respserver.clients.tls import build_context  # imported here, because ssl is slow to import

            await self._everywhere(config.tls_port, build_context(config))
        if config.unixsocket:
            await self._unix(config.unixsocket, config.unixsocketperm)

    async def _everywhere(self, port: int, context: SSLContext | None) -> None:
        """Listen on each address of ``bind``. Addresses with a leading dash may be missing on this machine."""
        for address in self._config.bind:
            host = address.removeprefix("-")
            try:
                await self.tcp(None if host == "*" else host, port, context)
            except OSError as error:
                if address.startswith("-") and error.errno != errno.EADDRINUSE:
                    continue
                kind = "TLS" if context is not None else "TCP"
                text = f"Could not create server {kind} listening socket {host}:{port}: {error.strerror or error}"
                raise OSError(error.errno, text) from error

    async def tcp(self, host: str | None, port: int, context: SSLContext | None = None) -> int:
        """Listen on one address; return the port (0: a free port is chosen). Raises OSError."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self.factory, host, port, backlog=self._config.tcp_backlog, ssl=context)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _unix(self, path: str, mode: int) -> None:
        """Listen on a unix socket. Replaces the socket of an earlier server, but not another kind of file."""
        try:
            left = stat.S_ISSOCK(os.stat(path).st_mode)
        except FileNotFoundError:
            left = False
        if left:
            os.unlink(path)
        self._servers.append(await asyncio.get_running_loop().create_unix_server(self.factory, path))
        self._unix_path = path
        if mode:
            os.chmod(path, mode)

    def close(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._unix_path:
            with suppress(FileNotFoundError):
                os.unlink(self._unix_path)
            self._unix_path = ""


def shown(name: object, unixsocket: str) -> str:
    """Return an address as CLIENT LIST prints it: ``ip:port``, ``[ip6]:port``, or ``path:0``."""
    if isinstance(name, tuple) and len(name) >= 2:
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{unixsocket}:0"


def is_loopback(addr: str) -> bool:
    """Return whether ``addr``, as returned by shown(), is a loopback address."""
    return addr.startswith(("127.", "[::1]", "[::ffff:127."))


def keep_alive(sock: socket.socket, seconds: int) -> None:
    """Apply tcp-keepalive: the first probe is sent after ``seconds``. Dead connections close after about twice that."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, seconds // 3))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
