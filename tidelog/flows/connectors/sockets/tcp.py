"""``tcp_server`` and ``tcp_client``: streams of messages in both directions, over TCP with or without TLS, or a Unix
socket. By default, messages are lines.

TCP has no acknowledgements of messages. A written message is settled when the kernel has accepted it, and a peer gets
no outcome of the messages that it sends.

Rule 1: A connection is read only while a pull waits, one chunk at a time, so unread data remains in the peer's buffers.
        At most about FOUND events are decoded in advance, for all connections together.
Rule 2: If the rest of a stream can't be decoded, the connection is closed after the earlier events were pulled.
Rule 3: A drain still sends the data that this process had received when it began, but not the data in the kernel.
Rule 4: If a flow answers on the connection of the request, a peer that half-closes its connection still gets the
        answers: the connection is closed when all its messages are settled, or after ``linger``. A connection with
        TLS can't be half-closed.
Rule 5: At ``max_connections``, a new connection replaces the one that was silent for longest, if it was silent for at
        least ``make_way``. Silent: no message was received from it or written to it. Bytes without a message do not
        end the silence, and time in which the flow accepted nothing does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from tidelog.flows.api.cancellation import cancel
from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.errors import DisconnectedError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import DISCARD, REJECT, Token
from tidelog.flows.connectors.payload import LinePayloadOptions, PayloadReader, PayloadWriter
from tidelog.flows.connectors.sockets.streams import CHUNK, StreamAddress, StreamServer, connect, shown
from tidelog.flows.connectors.tls import ClientTlsOptions, ServerTlsOptions
from tidelog.options.limits import AtLeastOne, Port
from tidelog.options.units import Duration

FOUND: Final = 10_000  # maximum number of decoded events that were not pulled
PAUSE: Final = 1.0  # s between two pulls after which the flow counts as having accepted nothing
QUIET: Final = 2.0  # s without an answer after which no more are expected, if the flow does not settle events
LONGEST_PATH: Final = 107  # bytes of the path of a Unix socket: Linux
PROBES: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 3}  # to detect dead peers

log = logging.getLogger("tidelog.flows")


class TcpOptions(LinePayloadOptions, kw_only=True):
    """Options of ``tcp_client`` and ``tcp_server``."""

    host: str = "127.0.0.1"  # The host of the peer, or the address to listen on. `""`: listen on all addresses.
    port: Port | None = None  # The port of the peer, or to listen on. Required without `unixsocket`.
    unixsocket: str | None = None  # The path of a Unix socket, instead of `host` and `port`.
    idle_timeout: Duration | None = None
    # Time without received bytes after which a connection is closed. `null`: never.
    write_timeout: Duration = Duration(10)  # Time after which a peer that reads nothing is disconnected.
    linger: Duration = Duration(30)  # Maximum time to finish the answers to a peer that has half-closed the connection.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.port is None and self.unixsocket is None:
            raise ValueError("port is missing: set port, or unixsocket")
        if self.port is not None and self.unixsocket is not None:
            raise ValueError("port and unixsocket: set one of them")
        if self.unixsocket is not None and len(self.unixsocket.encode()) > LONGEST_PATH:
            raise ValueError(f"unixsocket: a path of a Unix socket has at most {LONGEST_PATH} bytes")
        if self.unixsocket is not None and getattr(self, "tls", None) is not None:
            raise ValueError("tls: omit it, because a Unix socket has no TLS")

    @property
    def address(self) -> StreamAddress:
        return StreamAddress(self.host, self.port, self.unixsocket)


class TcpServerOptions(TcpOptions, kw_only=True):
    """Options of ``tcp_server``. Port 0 selects a free port."""

    unixsocketperm: int | str = 0
    # File mode of the Unix socket, in octal digits: `"660"`. `0`: determined by the umask.
    tls: ServerTlsOptions | None = None  # TLS settings: `cert`, `key`, and `ca`. `null`: no TLS.
    max_connections: AtLeastOne = 1000
    # Maximum number of open connections. Another one is closed, unless it can replace a silent one.
    make_way: Duration = Duration(60)  # Silence after which a connection can be replaced by a new one. `0`: never.

    def __post_init__(self) -> None:
        super().__post_init__()
        text = str(self.unixsocketperm)
        if not text or set(text) - set("01234567") or int(text, 8) > 0o777:
            raise ValueError(f"unixsocketperm is {self.unixsocketperm!r}: it must be octal digits, such as 660")

    @property
    def address(self) -> StreamAddress:
        return StreamAddress(self.host, self.port, self.unixsocket, int(str(self.unixsocketperm), 8))


class TcpClientOptions(TcpOptions, kw_only=True):
    """Options of ``tcp_client``."""

    tls: ClientTlsOptions | None = None
    # TLS settings: `ca`, `cert`, `key`, and `verify`. `{}`: the system's certificate authorities. `null`: no TLS.
    connect_timeout: Duration = Duration(10)  # Time limit for opening the connection.


class _Connection:
    def __init__(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, options: TcpOptions
    ) -> None:
        self.number = number
        self.reader = reader
        self.writer = writer
        self.reading = PayloadReader(options)
        self.writing = PayloadWriter(options)
        self.lock = asyncio.Lock()
        self.owed = 0  # bytes that were received before a drain began, and not read yet
        self.unsettled = 0  # events that may still be answered
        self.since = asyncio.get_running_loop().time()  # when a message was last received or written
        self.changed = asyncio.Event()  # an event was settled, or a message was written
        self.options = options
        self.meta = {"connection": number, "peer": shown(writer.get_extra_info("peername"), options.address)}
        with contextlib.suppress(OSError):  # the kernel probes silent peers
            own = writer.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in PROBES.items():
                if (option := getattr(socket, name, None)) is not None:  # not on all platforms
                    own.setsockopt(socket.IPPROTO_TCP, option, value)

    async def chunk(self, since: float) -> bytes | None:
        """Return the next bytes; none at the end of the stream. None: a message has ended, because no bytes have
        arrived. Raises ValueError if nothing was received for ``idle_timeout`` after the loop time ``since``.
        """
        loop = asyncio.get_running_loop()
        limit, waits = self.options.idle_timeout, self.reading.waits
        ends = [each for each in (None if limit is None else since + limit, waits and loop.time() + waits) if each]
        try:
            async with asyncio.timeout_at(min(ends, default=None)):
                return await self.reader.read(CHUNK)
        except TimeoutError:
            if limit is None or loop.time() < since + limit:
                return None
            raise ValueError(f"nothing was received for {limit:g} s") from None

    @property
    def buffered(self) -> int:
        """Return the number of bytes that were read from the kernel, and that ``chunk`` would return at once."""
        return len(self.reader._buffer)  # type: ignore[attr-defined] # there is no public attribute

    async def send(self, pieces: Sequence[bytes]) -> None:
        """Write messages. Raises OSError if they can't be sent."""
        async with self.lock:
            self.writer.writelines(pieces)
            self.since = asyncio.get_running_loop().time()
            self.changed.set()
            try:
                async with asyncio.timeout(self.options.write_timeout):
                    await self.writer.drain()
            except TimeoutError:
                self.abort()
                raise DisconnectedError(f"the peer read nothing for {self.options.write_timeout:g} s") from None

    def abort(self) -> None:
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self.writer.wait_closed()


class _Streams(Source):
    """A source that reads its connections while a pull waits."""

    remembers = True

    def __init__(self) -> None:
        super().__init__()
        self._found: deque[tuple[Event, _Connection]] = deque()
        self._wanted = asyncio.Event()  # a pull waits
        self._news = asyncio.Event()  # there are events, or a connection has ended
        self._numbers = itertools.count()
        self._live: set[_Connection] = set()  # connections that are read
        self._pulling = False
        self._pulled = 0.0  # loop time at which the last pull ended
        self._resumed = 0.0  # loop time at which the flow accepted events again after a pause
        self._answered = False  # whether ``unsettled`` of connections is counted
        self.unanswered: dict[int, _Connection] = {}  # the connection of each unsettled event, by event ID
        self._parked = 0  # connections with bytes that are not decoded yet
        self._connections = itertools.count(1)

    def _connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, options: TcpOptions
    ) -> _Connection:
        self._answered = self.context.source is not None and self.context.sink is not None and self.context.settles
        return _Connection(next(self._connections), reader, writer, options)

    @property
    def backlog(self) -> int:
        return len(self._found) + self._parked + sum(each.owed > 0 for each in self._live)

    def interrupt(self) -> None:
        if self.context.flow_context.draining:
            for each in self._live:
                each.owed = each.buffered
        super().interrupt()

    async def pull(self, limit: int) -> list[Event] | None:
        now = asyncio.get_running_loop().time()
        if now - self._pulled > PAUSE:
            self._resumed = now
        if not self._found:
            self._wanted.set()
            self._news.clear()
            self._pulling = True
            try:
                await self.wait(self._news.wait())
            finally:
                self._pulling = False
                self._wanted.clear()
        self._pulled = asyncio.get_running_loop().time()
        found = []
        for _ in range(min(limit, len(self._found))):
            event, connection = self._found.popleft()
            event.id = next(self._numbers)
            if self._answered:
                self.unanswered[event.id] = connection
            found.append(event)
        return found

    async def _read(self, connection: _Connection) -> None:
        """Read a connection to its end. Raises ValueError if the stream is not valid, and OSError if it breaks."""
        while self.context.source is None:  # only to notice the end
            if not await connection.reader.read(CHUNK):
                return
        self._live.add(connection)
        try:
            while True:
                await self._wanted.wait()
                since = asyncio.get_running_loop().time()
                while (data := await connection.chunk(since)) is None:
                    self._add(connection.reading.idle(connection.meta), connection)
                if not data:
                    self._add(connection.reading.end(connection.meta), connection)
                    return
                self.context.received(len(data))
                await self._events(connection, data)
                connection.owed = max(0, connection.owed - len(data))
                if self.context.flow_context.draining and not self.backlog:
                    self._news.set()  # a pull waits for these bytes, and they contained no event
        finally:
            self._live.discard(connection)
            self._news.set()

    async def _events(self, connection: _Connection, data: bytes) -> None:
        reading = connection.reading
        for part in reading.portions(data):
            self._parked += 1
            try:
                while len(self._found) >= FOUND:
                    await self._wanted.wait()
            finally:
                self._parked -= 1
            self._add(reading.feed(part, connection.meta), connection)
            if reading.broken:
                raise ValueError(reading.broken)

    def _add(self, events: list[Event], connection: _Connection) -> None:
        if events:
            connection.since = asyncio.get_running_loop().time()
            if self._answered:
                leads = self.context.is_connected("err")
                connection.unsettled += sum(leads or each.path != "err" for each in events)
            self._found += [(each, connection) for each in events]
            self._wanted.clear()
            self._news.set()

    async def _answer(self, connection: _Connection) -> None:
        """Wait until a peer that has half-closed the connection has all answers; at most for ``linger``."""
        options = connection.options
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(options.linger):
                while not connection.writer.is_closing() and (connection.unsettled or not self._answered):
                    connection.changed.clear()
                    async with asyncio.timeout(None if self._answered else QUIET):
                        await connection.changed.wait()

    async def settled(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            connection = self.unanswered.pop(token.key, None)
            if connection is not None:
                connection.unsettled -= 1
                connection.changed.set()


class TcpServer(_Streams, Sink):
    """Accepts connections. A sink writes to the connection in ``meta["connection"]``, or without one to all."""

    type = "tcp_server"
    Options = TcpServerOptions

    def __init__(self, options: TcpServerOptions) -> None:
        super().__init__()
        self._options = options
        self._server: StreamServer | None = None
        self.peers: dict[int, _Connection] = {}  # open connections by number
        self._tasks: set[asyncio.Task[Any]] = set()

    async def connect(self) -> None:
        options = self._options
        tls = None if options.tls is None else await asyncio.to_thread(options.tls.context)
        self._server = StreamServer(options.address, self._admits, self._serve)
        await self._server.open(tls)
        self.context.described["address"] = self._server.bound

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close()
        await cancel(*self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if self._server is None or task is None:
            writer.transport.abort()
            return
        connection = self._connection(reader, writer, self._options)
        self.peers[connection.number] = connection
        self._tasks.add(task)
        self.context.count("connections")
        try:
            await self._read(connection)
            if self.context.source is not None and self.context.sink is not None:
                await self._answer(connection)
        except ValueError as error:
            self.context.count("broken_connections")
            log.warning("%s: %s: %s: %s", self.context.flow, self.context.name, connection.meta["peer"], error)
        except OSError as error:
            log.debug("%s: %s: %s: %s", self.context.flow, self.context.name, connection.meta["peer"], error)
        except asyncio.CancelledError:
            pass  # by close; asyncio would log the exception
        finally:
            self.peers.pop(connection.number, None)
            self._tasks.discard(task)
            await connection.close()

    def _admits(self) -> bool:
        """Return whether a new connection is accepted, after closing a silent one if necessary (Rule 5)."""
        handshakes = 0 if self._server is None else self._server.handshakes
        if len(self.peers) + handshakes < self._options.max_connections or (self.peers and self._make_way()):
            return True
        self.context.count("refused_connections")
        return False

    def _make_way(self) -> bool:
        """Close the connection that was silent for longest. Return False if it was not silent for long enough."""
        now = asyncio.get_running_loop().time()
        reads = self.context.source is not None
        if reads and not self._pulling and now - self._pulled > PAUSE:
            return False  # connections are not read, so their silence is unknown
        silent = min(self.peers.values(), key=lambda each: each.since)
        since = now - max(silent.since, self._resumed if reads else 0.0)
        if not self._options.make_way or since < self._options.make_way:
            return False
        log.warning(
            "%s: %s: %s was silent for %.0f s and is replaced by a new connection: max_connections is %s",
            self.context.flow, self.context.name, silent.meta["peer"], since, self._options.max_connections,
        )  # fmt: skip
        self.context.count("silent_connections")
        del self.peers[silent.number]
        silent.abort()
        return True

    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        nobody = (DISCARD, "no peer is connected")
        outcomes: list[Outcome] = [nobody] * len(events)
        indexes: dict[int, list[int]] = {}  # of the events for each connection
        for at, event in enumerate(events):
            number = event.meta.get("connection")
            if number is None:
                for each in self.peers:
                    indexes.setdefault(each, []).append(at)
            elif isinstance(number, int) and number in self.peers:
                indexes.setdefault(number, []).append(at)
            else:
                outcomes[at] = (REJECT, f"the connection {number} is closed")
        sends = [self._send(self.peers[each], [events[at] for at in found]) for each, found in indexes.items()]
        sent = await asyncio.gather(*sends)
        for number, answers in zip(indexes, sent, strict=True):
            for at, answer in zip(indexes[number], answers, strict=True):
                if outcomes[at] == nobody or answer == 0:
                    outcomes[at] = answer  # one successful connection is sufficient
        return outcomes

    async def _send(self, connection: _Connection, events: list[Event]) -> Sequence[Outcome]:
        pieces, outcomes = connection.writing.batch(events)
        try:
            await connection.send(pieces)
        except OSError as error:
            return [(REJECT, f"the connection {connection.number} is closed: {error}")] * len(events)
        self.context.sent(sum(map(len, pieces)))
        return outcomes


class TcpClient(_Streams, Sink):
    """Opens a connection, and opens it again after the peer has closed it."""

    type = "tcp_client"
    Options = TcpClientOptions

    def __init__(self, options: TcpClientOptions) -> None:
        super().__init__()
        self._options = options
        self._current: _Connection | None = None
        self._task: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        options = self._options
        try:
            async with asyncio.timeout(options.connect_timeout):
                tls = None if options.tls is None else await asyncio.to_thread(options.tls.context)
                reader, writer = await connect(options.address, tls)
        except TimeoutError:
            text = f"{options.address} did not answer within {options.connect_timeout:g} s"
            raise DisconnectedError(text) from None
        self._current = self._connection(reader, writer, options)
        self._task = asyncio.get_running_loop().create_task(self._watch(self._current))

    async def close(self) -> None:
        task, self._task = self._task, None
        await cancel(task)
        connection, self._current = self._current, None
        if connection is not None:
            await connection.close()

    async def _watch(self, connection: _Connection) -> None:
        error: Exception = DisconnectedError("the server closed the connection")
        try:
            await self._read(connection)
            if self._answered:
                await self._answer(connection)
        except (OSError, ValueError) as caught:
            error = caught
        self.context.disconnected(error)

    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        connection = self._current
        if connection is None:
            raise DisconnectedError("not connected")
        pieces, outcomes = connection.writing.batch(events)
        await connection.send(pieces)
        self.context.sent(sum(map(len, pieces)))
        return outcomes
