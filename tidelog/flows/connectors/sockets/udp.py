"""``udp_server`` (a source) and ``udp_client`` (a sink): a datagram is a message, unless preprocessors split it.

Datagrams can be lost, duplicated or reordered. While the source is not pulled, the kernel buffers datagrams and drops
those that do not fit.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.errors import DisconnectedError, RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import OK, REJECT
from tidelog.flows.connectors.payload import PayloadOptions, PayloadReader, PayloadWriter
from tidelog.flows.connectors.sockets.descriptors import forget, ready
from tidelog.options.limits import Port
from tidelog.options.units import Size

LONGEST: Final = 65_535  # maximum size of a datagram in bytes


class UdpOptions(PayloadOptions, kw_only=True):
    """Options of ``udp_client`` and ``udp_server``."""

    host: str = "127.0.0.1"  # The peer, or the address to listen on.
    port: Port  # The port of the peer, or to listen on. 0: a server selects a free port.


class UdpServerOptions(UdpOptions, kw_only=True):
    """Options of ``udp_server``. Port 0 selects a free port."""

    receive_buffer: Size | None = None
    # Size of the kernel's buffer, which the kernel may limit. `null`: the kernel's default.


class UdpServer(Source):
    """Receives datagrams. A failed event is not retried, because its sender gets no outcome."""

    type = "udp_server"
    Options = UdpServerOptions
    remembers = False

    def __init__(self, options: UdpServerOptions) -> None:
        super().__init__()
        self._options = options
        self._reader = PayloadReader(options)  # shared, as parts of a GELF message may come from several sockets
        self._socket: socket.socket | None = None
        self._found: deque[Event] = deque()

    @property
    def backlog(self) -> int:
        return len(self._found)

    async def connect(self) -> None:
        options = self._options
        family, address = await _resolve(options.host, options.port)
        self._socket = made = socket.socket(family, socket.SOCK_DGRAM)
        made.setblocking(False)
        if options.receive_buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer)
        made.bind(address)
        host, port = made.getsockname()[:2]
        self.context.described["address"] = f"{host}:{port}"

    async def close(self) -> None:
        made, self._socket = self._socket, None
        if made is not None:
            made.close()

    async def pull(self, limit: int) -> list[Event] | None:
        if not self._found:
            made = self._socket
            if made is None:
                raise DisconnectedError("not listening")
            waiting = ready(made.fileno())
            try:
                if waiting is not None and not await self.wait(waiting):
                    return []
            finally:
                if made.fileno() >= 0:
                    forget(made.fileno())
            self._receive(made, limit)
        return [self._found.popleft() for _ in range(min(limit, len(self._found)))]

    def _receive(self, made: socket.socket, limit: int) -> None:
        for _ in range(limit):  # datagrams without an event count too: there may be any number of them
            try:
                data, peer = made.recvfrom(LONGEST)
            except BlockingIOError:
                return
            meta: dict[str, Any] = {"peer": f"{peer[0]}:{peer[1]}"}
            try:
                self._found += self._reader.feed(data, meta)
            except ValueError as error:
                self._found.append(Event(data, {**meta, "error": str(error)}, path="err"))
            self._found += self._reader.end(meta)  # the rest of a datagram does not belong to the next one


class UdpClient(Sink):
    """Sends datagrams. A datagram counts as delivered when the kernel has accepted it."""

    type = "udp_client"
    Options = UdpOptions

    def __init__(self, options: UdpOptions) -> None:
        self._options = options
        self._writer = PayloadWriter(options)
        self._socket: socket.socket | None = None
        self._address: Any = None

    async def connect(self) -> None:
        family, self._address = await _resolve(self._options.host, self._options.port)
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    async def close(self) -> None:
        made, self._socket = self._socket, None
        if made is not None:
            made.close()

    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        for event in events:
            try:
                for piece in self._writer.encode(event):
                    await self._send(piece)
            except RejectError as error:
                outcomes.append((REJECT, str(error)))
            else:
                outcomes.append(OK)
        for piece in self._writer.end():
            await self._send(piece)
        return outcomes

    async def _send(self, piece: bytes) -> None:
        made = self._socket
        if made is None:
            raise DisconnectedError("not connected")
        while True:
            try:
                made.sendto(piece, self._address)
                return
            except BlockingIOError:
                waiting = ready(made.fileno(), to_write=True)
                try:
                    if waiting is not None:
                        await waiting
                finally:
                    forget(made.fileno(), to_write=True)
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    raise RejectError(f"{len(piece)} bytes do not fit into a datagram") from None
                raise


async def _resolve(host: str, port: int) -> tuple[int, Any]:
    """Return the family and the address of the first result."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)
    return found[0][0], found[0][4]
