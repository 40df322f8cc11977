"""``tcp_server`` and ``tcp_client``: streams of messages over TCP, both ways. Lines, unless told otherwise.

TCP knows no acknowledgement: a message is settled as delivered when the kernel has it, and what a peer has sent is gone
there, whatever becomes of it here.

Rule 1: a connection is read while a pull waits, one chunk at a time. What is not taken fills the peer's buffers. No
        more than about FOUND events are made of what was read, however many connections there are.
Rule 2: a stream that can't be read on is closed, after what came before was taken.
Rule 3: what had come into this process when a drain began is taken still; what the kernel has is not.
Rule 4: if a flow answers on the connection of the request, a peer that has shut down its side gets its answers: the
        connection is closed when all its messages are settled, or after ``linger``.
Rule 5: at ``max_connections``, a new connection replaces the one that was silent for longest, if it was silent for at
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

from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.errors import DisconnectedError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import DISCARD, REJECT, Token
from tidelog.flows.connectors.payload import LinePayloadOptions, PayloadReader, PayloadWriter
from tidelog.options.units import Duration

CHUNK: Final = 64 << 10  # bytes read at once
FOUND: Final = 10_000  # events that were not pulled: while there are so many no more are made
PAUSE: Final = 1.0  # s between two pulls, after which connections were not read
QUIET: Final = 2.0  # s without an answer after which no more are expected, where the flow does not settle events
PROBES: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 3}  # find peers that are gone without a word

log = logging.getLogger("tidelog.flows")


class TcpOptions(LinePayloadOptions, kw_only=True):
    """Options that both have."""

    host: str = "127.0.0.1"  # a server listens there; "" is every address
    port: int
    idle_timeout: Duration | None = None  # a connection on which nothing came for so long is closed; null: never
    write_timeout: Duration = Duration(10)  # a peer that takes nothing for so long is disconnected
    linger: Duration = Duration(30)  # for answers to a peer that has sent its end

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}: it must be from 0 to 65535")


class TcpServerOptions(TcpOptions, kw_only=True):
    """Options of ``tcp_server``. Port 0 takes a free one."""

    max_connections: int = 1000  # at a time; one more is closed at once, unless a silent one makes way
    make_way: Duration = Duration(60)  # of silence, after which a connection makes way for a new one; 0: never

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_connections < 1:
            raise ValueError(f"max_connections is {self.max_connections}: it must be at least 1")


class TcpClientOptions(TcpOptions, kw_only=True):
    """Options of ``tcp_client``."""

    connect_timeout: Duration = Duration(10)


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
        self.owed = 0  # bytes that had come when a drain began, and were not read
        self.unsettled = 0  # events of it that may still be answered
        self.since = asyncio.get_running_loop().time()  # when a message came or was written
        self.changed = asyncio.Event()  # something was settled or written
        self.options = options
        peer = writer.get_extra_info("peername") or ("?", 0)
        self.meta = {"connection": number, "peer": f"{peer[0]}:{peer[1]}"}

    async def chunk(self) -> bytes:
        """The next bytes; none: the stream has ended. ValueError: nothing came for too long."""
        try:
            async with asyncio.timeout(self.options.idle_timeout):
                return await self.reader.read(CHUNK)
        except TimeoutError:
            raise ValueError(f"nothing was received for {self.options.idle_timeout:g} s") from None

    @property
    def buffered(self) -> int:
        """Bytes that were read from the kernel, and that ``chunk`` would return at once."""
        return len(self.reader._buffer)  # type: ignore[attr-defined] # nothing else tells

    async def send(self, pieces: Sequence[bytes]) -> None:
        """OSError: it can't be sent."""
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
    """Connections that are read while a pull waits."""

    remembers = True

    def __init__(self) -> None:
        super().__init__()
        self._found: deque[tuple[Event, _Connection]] = deque()
        self._wanted = asyncio.Event()  # a pull waits
        self._news = asyncio.Event()
        self._numbers = itertools.count()
        self._live: set[_Connection] = set()  # that are read
        self._pulling = False
        self._pulled = 0.0  # when the last pull ended, s of the loop's clock
        self._resumed = 0.0  # when the flow began to take events after it had taken none for a while
        self._answered = False  # whether ``unsettled`` of connections is counted
        self._asked: dict[int, _Connection] = {}  # by an event's ID: who sent it
        self._parked = 0  # of these: with bytes of which no events were made yet

    def _count_answers(self) -> None:
        self._answered = self.context.source is not None and self.context.sink is not None and self.context.tells

    @property
    def backlog(self) -> int:
        return len(self._found) + self._parked + sum(each.owed > 0 for each in self._live)

    def interrupt(self) -> None:
        if self.context.flow_context.draining:
            for each in self._live:
                each.owed = each.buffered
        super().interrupt()

    async def _take(self, limit: int) -> list[Event]:
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
                self._asked[event.id] = connection
            found.append(event)
        return found

    async def _read(self, connection: _Connection) -> None:
        """Until the stream ends. ValueError: it is broken. OSError: it is lost."""
        self._live.add(connection)
        try:
            while True:
                await self._wanted.wait()
                data = await connection.chunk()
                if not data:
                    self._add(connection.reading.end(connection.meta), connection)
                    return
                await self._events(connection, data)
                connection.owed = max(0, connection.owed - len(data))
                if self.context.flow_context.draining and not self.backlog:
                    self._news.set()  # a pull waits for what was owed, and there was no event in it
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
                leads = self.context.leads("err")
                connection.unsettled += sum(leads or each.path != "err" for each in events)
            self._found += [(each, connection) for each in events]
            self._wanted.clear()
            self._news.set()

    async def _answer(self, connection: _Connection) -> None:
        """Wait until the peer, which has sent its end, has all answers; for ``linger`` at most."""
        options = connection.options
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(options.linger):
                while not connection.writer.is_closing() and (connection.unsettled or not self._answered):
                    connection.changed.clear()
                    async with asyncio.timeout(None if self._answered else QUIET):
                        await connection.changed.wait()

    async def settled(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            connection = self._asked.pop(token.key, None)
            if connection is not None:
                connection.unsettled -= 1
                connection.changed.set()


class TcpServer(_Streams, Sink):
    """As a sink it writes to the connection that ``meta["connection"]`` names, which events from it have; without that
    to all.
    """

    type = "tcp_server"
    Options = TcpServerOptions

    def __init__(self, options: TcpServerOptions) -> None:
        super().__init__()
        self._options = options
        self._server: asyncio.Server | None = None
        self._open: dict[int, _Connection] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._connections = itertools.count(1)

    async def connect(self) -> None:
        options = self._options
        self._count_answers()
        self._server = await asyncio.start_server(self._serve, options.host or None, options.port, limit=CHUNK)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.context.described["address"] = f"{host}:{port}"

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if self._server is None or task is None or not self._admits():
            self.context.count("refused_connections")
            writer.transport.abort()
            return
        _probe(writer)
        connection = _Connection(next(self._connections), reader, writer, self._options)
        self._open[connection.number] = connection
        self._tasks.add(task)
        self.context.count("connections")
        try:
            if self.context.source is None:
                await _discard(reader)
            else:
                await self._read(connection)
                if self.context.sink is not None:
                    await self._answer(connection)
        except ValueError as error:
            self.context.count("broken_connections")
            log.warning("%s: %s: %s: %s", self.context.flow, self.context.name, connection.meta["peer"], error)
        except OSError as error:
            log.debug("%s: %s: %s: %s", self.context.flow, self.context.name, connection.meta["peer"], error)
        except asyncio.CancelledError:
            pass  # by close: asyncio would log it otherwise
        finally:
            self._open.pop(connection.number, None)
            self._tasks.discard(task)
            await connection.close()

    def _admits(self) -> bool:
        """Whether there is room for one more connection: a silent one makes way."""
        if len(self._open) < self._options.max_connections:
            return True
        now = asyncio.get_running_loop().time()
        reads = self.context.source is not None
        if reads and not self._pulling and now - self._pulled > PAUSE:
            return False  # what they have sent is not read
        silent = min(self._open.values(), key=lambda each: each.since)
        since = now - max(silent.since, self._resumed if reads else 0.0)
        if not self._options.make_way or since < self._options.make_way:
            return False
        log.warning(
            "%s: %s: %s was silent for %.0f s and makes way for a new connection: max_connections is %s",
            self.context.flow, self.context.name, silent.meta["peer"], since, self._options.max_connections,
        )  # fmt: skip
        self.context.count("silent_connections")
        del self._open[silent.number]
        silent.abort()
        return True

    async def pull(self, limit: int) -> list[Event] | None:
        return await self._take(limit)

    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        outcomes: list[Outcome] = [(DISCARD, "nobody is connected")] * len(events)
        places: dict[int, list[int]] = {}
        for place, event in enumerate(events):
            number = event.meta.get("connection")
            if number is None:
                for each in self._open:
                    places.setdefault(each, []).append(place)
            elif isinstance(number, int) and number in self._open:
                places.setdefault(number, []).append(place)
            else:
                outcomes[place] = (REJECT, f"the connection {number} is closed")
        sends = [self._send(self._open[each], [events[place] for place in found]) for each, found in places.items()]
        sent = await asyncio.gather(*sends)
        for number, answers in zip(places, sent, strict=True):
            for place, answer in zip(places[number], answers, strict=True):
                if outcomes[place] == (DISCARD, "nobody is connected") or answer == 0:
                    outcomes[place] = answer  # one that got it is enough
        return outcomes

    async def _send(self, connection: _Connection, events: list[Event]) -> Sequence[Outcome]:
        pieces, outcomes = connection.writing.batch(events)
        try:
            await connection.send(pieces)
        except OSError as error:
            return [(REJECT, f"the connection {connection.number} is closed: {error}")] * len(events)
        return outcomes


class TcpClient(_Streams, Sink):
    """When the peer closes the connection it is made again."""

    type = "tcp_client"
    Options = TcpClientOptions

    def __init__(self, options: TcpClientOptions) -> None:
        super().__init__()
        self._options = options
        self._connection: _Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._connections = itertools.count(1)

    async def connect(self) -> None:
        options = self._options
        try:
            async with asyncio.timeout(options.connect_timeout):
                reader, writer = await asyncio.open_connection(options.host, options.port, limit=CHUNK)
        except TimeoutError:
            text = f"{options.host}:{options.port} did not answer within {options.connect_timeout:g} s"
            raise DisconnectedError(text) from None
        self._count_answers()
        _probe(writer)
        self._connection = _Connection(next(self._connections), reader, writer, options)
        self._task = asyncio.get_running_loop().create_task(self._watch(self._connection))

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _watch(self, connection: _Connection) -> None:
        error: Exception = DisconnectedError("the server closed the connection")
        try:
            if self.context.source is None:
                await _discard(connection.reader)
            else:
                await self._read(connection)
                if self.context.sink is not None and self._answered:
                    await self._answer(connection)
        except (OSError, ValueError) as caught:
            error = caught
        self.context.disconnected(error)

    async def pull(self, limit: int) -> list[Event] | None:
        return await self._take(limit)

    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        connection = self._connection
        if connection is None:
            raise DisconnectedError("not connected")
        pieces, outcomes = connection.writing.batch(events)
        await connection.send(pieces)
        return outcomes


def _probe(writer: asyncio.StreamWriter) -> None:
    """Have the kernel look whether a silent peer is still there."""
    found = writer.get_extra_info("socket")
    if found is not None:
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in PROBES.items():
                if (option := getattr(socket, name, None)) is not None:  # not everywhere
                    found.setsockopt(socket.IPPROTO_TCP, option, value)


async def _discard(reader: asyncio.StreamReader) -> None:
    """What comes where nobody reads it, so that its end is seen."""
    while await reader.read(CHUNK):
        pass
