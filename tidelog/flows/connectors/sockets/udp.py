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

from tidelog.flows.api.connector import Connector, Outcome, Sink, Source
from tidelog.flows.api.errors import DisconnectedError, RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import REJECT
from tidelog.flows.connectors.payload import PayloadOptions, PayloadReader, PayloadWriter
from tidelog.flows.connectors.sockets.descriptors import watching
from tidelog.options.limits import Port
from tidelog.options.units import Size

LONGEST: Final = 65_535  # maximum size of a datagram in bytes


class UdpOptions(PayloadOptions, kw_only=True):
    """Options of ``udp_client`` and ``udp_server``."""

    host: str = "127.0.0.1"  # The host of the peer, or the address to listen on.
    port: Port  # The port of the peer, or to listen on. `0`: a server selects a free port.


class UdpServerOptions(UdpOptions, kw_only=True):
    """Options of ``udp_server``. Port 0 selects a free port."""

    receive_buffer: Size | None = None
    # Size of the kernel's buffer, which the kernel may limit. `null`: the kernel's default.


class _UdpSocket(Connector):
    """A connector with one socket."""

    def __init__(self, options: UdpOptions) -> None:
        super().__init__()
        self._options = options
        self._socket: socket.socket | None = None
        self._address: Any = None  # the first address of the host

    async def connect(self) -> None:
        found = await asyncio.get_running_loop().getaddrinfo(
            self._options.host or None, self._options.port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, self._address = found[0]
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    async def close(self) -> None:
        made, self._socket = self._socket, None
        if made is not None:
            made.close()

    def opened(self) -> socket.socket:
        if self._socket is None:
            raise DisconnectedError("not connected")
        return self._socket


class UdpServer(_UdpSocket, Source):
    """Receives datagrams. A failed event is not retried, because its sender gets no outcome."""

    type = "udp_server"
    Options = UdpServerOptions
    remembers = False

    def __init__(self, options: UdpServerOptions) -> None:
        super().__init__(options)
        self._buffer = options.receive_buffer
        self._reader = PayloadReader(options)  # shared, as parts of a GELF message may come from several sockets
        self._found: deque[Event] = deque()

    @property
    def backlog(self) -> int:
        return len(self._found)

    async def connect(self) -> None:
        await super().connect()
        made = self.opened()
        if self._buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer)
        made.bind(self._address)
        host, port = made.getsockname()[:2]
        self.context.described["address"] = f"{host}:{port}"

    async def pull(self, limit: int) -> list[Event] | None:
        if not self._found:
            made = self.opened()
            with watching(made.fileno()) as readable:
                if readable is not None and not await self.wait(readable):
                    return []
            self.receive(made, limit)
        return [self._found.popleft() for _ in range(min(limit, len(self._found)))]

    def receive(self, made: socket.socket, limit: int) -> None:
        """Receive at most ``limit`` datagrams."""
        for _ in range(limit):  # including those without an event, of which there may be any number
            try:
                data, peer = made.recvfrom(LONGEST)
            except BlockingIOError:
                return
            self.context.received(len(data))
            meta: dict[str, Any] = {"peer": f"{peer[0]}:{peer[1]}"}
            try:
                self._found += self._reader.feed(data, meta)
            except ValueError as error:
                self._found.append(Event(data, {**meta, "error": str(error)}, path="err"))
            self._found += self._reader.end(meta)  # the rest of a datagram does not belong to the next one


class UdpClient(_UdpSocket, Sink):
    """Sends datagrams. A datagram counts as delivered when the kernel has accepted it."""

    type = "udp_client"
    Options = UdpOptions

    def __init__(self, options: UdpOptions) -> None:
        super().__init__(options)
        self._writer = PayloadWriter(options)

    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        messages, outcomes = self._writer.messages(events)
        for indexes, message in messages:
            try:
                await self._send(message)
                self.context.sent(len(message))
            except RejectError as error:
                for at in indexes:
                    outcomes[at] = (REJECT, str(error))
        return outcomes

    async def _send(self, piece: bytes) -> None:
        made = self.opened()
        while True:
            try:
                made.sendto(piece, self._address)
                return
            except BlockingIOError:
                with watching(made.fileno(), to_write=True) as writable:
                    if writable is not None:
                        await writable
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    raise RejectError(f"{len(piece)} bytes do not fit into a datagram") from None
                raise
