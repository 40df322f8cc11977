"""Simulated TCP connections between processes.

Rule 1: The bytes of one direction arrive in order, in pieces of random size, each after a random latency.
Rule 2: A partition blocks one direction between two hosts. Nothing is lost: TCP sends it again, so it arrives after the
        partition has ended. Acknowledgements are blocked as well, so the sender's window fills.
Rule 3: A killed process loses the bytes in its transports' buffers. The peer still gets what was on the way, and then
        the end. A machine that loses power sends no end: the peer learns of it only when it sends something to the
        restarted machine, or by its own timeouts.
"""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tests.simulation.simloop import Process, SimLoop

WINDOW: Final = 128 << 10  # bytes on the way or not yet read by the peer
PIECE: Final = 16 << 10  # bytes that arrive together at most
HIGH: Final = 64 << 10  # bytes of a transport's buffer above which writing pauses
AGAIN: Final = 0.2  # seconds until TCP sends again, at most
END: Final = b""  # in a queue of pieces: the peer sends nothing more

Address = tuple[str, int]


class Network:
    """All hosts and connections."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.random = random.Random(loop.random.random())
        self.latency: dict[tuple[str, str], tuple[float, float]] = {}  # (from, to) -> least and most seconds
        self.blocked: set[tuple[str, str]] = set()  # (from, to)
        self.windows: dict[tuple[str, str], int] = {}  # bytes, for slow connections
        self.down: set[str] = set()  # hosts without power
        self.listeners: dict[Address, tuple[Process, Callable[[], asyncio.Protocol]]] = {}
        self.transports: list[SimTransport] = []
        self._port = 40_000

    # -- links -------------------------------------------------------------------------------------------------
    def delay(self, source: str, target: str) -> float:
        least, most = self.latency.get((source, target), (0.0001, 0.002))
        return self.random.uniform(least, most)

    def open(self, source: str, target: str) -> bool:
        return (source, target) not in self.blocked and not {source, target} & self.down

    def window(self, source: str, target: str) -> int:
        return self.windows.get((source, target), WINDOW)

    def later(self, source: str, target: str, callback: Callable[[], object]) -> None:
        """Run the callback in the world when a packet sent now from source has arrived at target."""

        def arrived() -> None:
            if self.open(source, target):
                callback()
            else:
                self.loop.world.call(arrived, after=self.random.uniform(0.01, AGAIN))

        self.loop.world.call(arrived, after=self.delay(source, target))

    # -- connections -------------------------------------------------------------------------------------------
    def listen(self, process: Process, port: int, factory: Callable[[], asyncio.Protocol]) -> SimServer:
        address = process.host, port
        if address in self.listeners and not self.listeners[address][0].dead:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self.listeners[address] = process, factory
        return SimServer(self, process, address)

    async def connect(self, process: Process, address: Address) -> SimTransport:
        """Return the caller's end of a new connection. Waits while nobody answers. Raises ConnectionRefusedError."""
        loop = self.loop
        future: asyncio.Future[SimTransport] = loop.create_future()

        def answer(transport: SimTransport | None) -> None:
            if process.dead or future.done():
                return
            if transport is None:
                future.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
            else:
                future.set_result(transport)

        def syn() -> None:
            listener = self.listeners.get(address)
            back = partial(self.later, address[0], process.host)
            if listener is None or listener[0].dead:
                back(lambda: process.call(answer, None))
                return
            self._port += 1
            mine = SimTransport(self, process, (process.host, self._port), address)
            its = SimTransport(self, listener[0], address, (process.host, self._port))
            mine.peer, its.peer = its, mine
            self.transports = [each for each in self.transports if not each.gone]
            self.transports += [mine, its]
            listener[0].call(its.accept, listener[1])
            back(lambda: process.call(answer, mine))

        self.later(process.host, address[0], syn)
        return await future

    def reset(self, transport: SimTransport) -> None:
        """Break a connection: both ends get a reset."""
        for each in (transport, transport.peer):
            each.broken(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def process_killed(self, process: Process, power: bool) -> None:
        """``power``: its machine has lost power."""
        for address in [address for address, (owner, _) in self.listeners.items() if owner is process]:
            del self.listeners[address]
        for transport in self.transports:
            if transport.process is process:
                transport.vanish(power)


class SimServer:
    """What create_server() returns, as far as it is used. It is its own socket."""

    def __init__(self, network: Network, process: Process, address: Address) -> None:
        self._network = network
        self._process = process
        self._address = address
        self.sockets = [self]

    def getsockname(self) -> Address:
        return self._address

    def close(self) -> None:
        owner = self._network.listeners.get(self._address)
        if owner is not None and owner[0] is self._process:
            del self._network.listeners[self._address]


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, process: Process, own: Address, other: Address) -> None:
        super().__init__({"sockname": own, "peername": other})
        self.network = network
        self.process = process
        self.host, self.other = own[0], other[0]
        self.peer: SimTransport
        self.gone = False  # connection_lost() was called, or the process is dead
        self._protocol: Any = None
        self._buffer = bytearray()  # not sent yet
        self._flight: deque[bytes] = deque()  # on the way to the peer, or its end
        self._flying = False  # a timer for the first piece is set
        self._unread = 0  # bytes on the way, or not yet read by the peer
        self._inbox: deque[bytes] = deque()  # arrived, not read yet
        self._reading = True
        self._scheduled = False  # _read() is scheduled
        self._closing = False
        self._ended = False  # an END was sent
        self._high = HIGH
        self._stopped = False  # pause_writing() was called

    # -- asyncio's interface -----------------------------------------------------------------------------------
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol  # type: ignore[no-any-return]

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._read_later()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def write(self, data: Any) -> None:
        if self.gone or self._ended or self.process.muted or self.process.dead:
            return
        self._buffer += data
        self._pump()
        if len(self._buffer) > self._high and not self._stopped:
            self._stopped = True
            self._protocol.pause_writing()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._reading = False
            if not self._buffer:
                self._finish(None)

    def abort(self) -> None:
        self._buffer.clear()
        self._closing = True
        self._finish(None)

    # -- the way of the bytes ----------------------------------------------------------------------------------
    def accept(self, factory: Callable[[], asyncio.Protocol]) -> None:
        """The server's end: make the protocol. The program accepts the connection now."""
        if not self.gone:
            self.begin(factory())

    def begin(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self._read_later()

    def _pump(self) -> None:
        """Send from the buffer while the window has room."""
        network = self.network
        while self._buffer:
            room = network.window(self.host, self.other) - self._unread
            if room <= 0:
                break
            most = PIECE if network.random.random() < 0.7 else network.random.randint(1, 300)
            size = min(len(self._buffer), room, most)
            self._flight.append(bytes(self._buffer[:size]))
            del self._buffer[:size]
            self._unread += size
        self._fly()
        if self._stopped and len(self._buffer) <= self._high // 4:
            self._stopped = False
            self.process.call(self._resume_writing)
        if self._closing and not self._buffer and not self.gone:
            self._finish(None)

    def _resume_writing(self) -> None:
        if not self.gone and not self._stopped:
            self._protocol.resume_writing()

    def _fly(self) -> None:
        if self._flight and not self._flying:
            self._flying = True
            self.network.later(self.host, self.other, self._arrive)

    def _arrive(self) -> None:
        """The first piece arrives at the peer."""
        self._flying = False
        if not self._flight:
            return
        piece, peer = self._flight.popleft(), self.peer
        if peer.gone:
            self._flight.clear()
            if piece:
                self.network.later(self.other, self.host, self._refused)
            return
        peer._inbox.append(piece)
        peer._read_later()
        self._fly()

    def _refused(self) -> None:
        """The peer's machine has answered that it knows no such connection."""
        if not self.gone:
            self.broken(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def _read_later(self) -> None:
        if self._inbox and self._reading and not self._scheduled and not self.gone:
            self._scheduled = True
            self.process.call(self._read)

    def _read(self) -> None:
        """The program reads what has arrived."""
        self._scheduled = False
        if not self._reading or self._closing or self._protocol is None or not self._inbox:
            return
        if self._inbox[0] == END:
            self._inbox.popleft()
            if not self._protocol.eof_received():
                self.close()
            return
        pieces = []
        while self._inbox and self._inbox[0] != END:
            pieces.append(self._inbox.popleft())
        data = b"".join(pieces)
        self.network.later(self.host, self.other, partial(self.peer.acknowledged, len(data)))
        self.network.loop.note(f"{self.process.name} reads {len(data)} from {self.other}")
        try:
            self._protocol.data_received(data)
        except Exception as error:  # noqa: BLE001 - as asyncio does
            self.network.loop.call_exception_handler({"message": "Fatal error", "exception": error})
            self.abort()
        self._read_later()

    def acknowledged(self, size: int) -> None:
        """The peer has read so many bytes."""
        self._unread -= size
        if not self.process.dead:
            self._pump()

    # -- the end -----------------------------------------------------------------------------------------------
    def _finish(self, error: Exception | None) -> None:
        """End this side. What was sent still arrives, and then the end."""
        if self.gone:
            return
        self.gone = True
        self._inbox.clear()
        if not self._ended:
            self._ended = True
            self._flight.append(END)
            self._fly()
        if not self.process.dead and self._protocol is not None:
            self.process.call(self._protocol.connection_lost, error)

    def broken(self, error: Exception) -> None:
        self._buffer.clear()
        self._flight.clear()
        self._closing = self._ended = True
        self._finish(error)

    def vanish(self, power: bool) -> None:
        """The process, or its machine, has ended."""
        self._buffer.clear()
        self._closing = True
        if power:
            self._flight.clear()
            self._ended = True
        self._finish(None)


class NetworkLoop(SimLoop):
    """A loop whose sockets are those of ``network``."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.network = Network(self)
        self._connected: dict[socket.socket, SimTransport] = {}

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.listen(self.current, port, protocol_factory)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        await asyncio.sleep(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        self._connected[sock] = await self.network.connect(self.current, address)

    async def create_connection(self, protocol_factory: Any, *_: Any, sock: Any = None, **options: Any) -> Any:
        transport = self._connected.pop(sock)
        sock.close()
        protocol = protocol_factory()
        if transport.gone:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        transport.begin(protocol)
        return transport, protocol
