"""``websocket_client`` and ``websocket_server``: messages in both directions.

A received message is an event, or several events if preprocessors split it. The peer gets no outcome: the runtime
retries failed events. A written message counts as delivered when the operating system has accepted it. Messages in
flight are lost if the connection breaks, unless the peers have their own acknowledgements.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import aiohttp
import msgspec
from aiohttp import WSMsgType, web

from tidelog.flows.api.cancellation import cancel
from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import DISCARD, OK, REJECT, RETRY
from tidelog.flows.connectors.destinations import is_bad_header
from tidelog.flows.connectors.http.listening import HttpListenerOptions, ListeningConnector, error_response
from tidelog.flows.connectors.http.options import HttpAuth
from tidelog.flows.connectors.http.requests import check_url
from tidelog.flows.connectors.payload import PayloadOptions, PayloadReader, PayloadWriter
from tidelog.flows.connectors.tls import ClientTlsOptions
from tidelog.operating.tasks import BackgroundTasks
from tidelog.options.limits import AtLeastOne
from tidelog.options.units import Duration, Size

log = logging.getLogger("tidelog.flows")

Frames: TypeAlias = Literal["text", "binary"]
Socket: TypeAlias = "aiohttp.ClientWebSocketResponse | web.WebSocketResponse"

TEXTS: Final = frozenset(("json", "jsonl", "string", "csv", "yaml", "influx", "syslog"))  # codecs that write text
CLOSING: Final = 2.0  # s for a peer's answer to a close
NOT_READABLE: Final = 1007  # close codes
GOING_AWAY: Final = 1001
_SHARED: Final = "websockets"  # the key in ``FlowContext.shared``: connections by ID


class WebsocketClientOptions(PayloadOptions, kw_only=True):
    """Options of ``websocket_client``."""

    url: str  # `ws://HOST:PORT/PATH` or `wss://HOST:PORT/PATH`.
    auth: HttpAuth | None = None  # The credentials, see above. `null`: none.
    tls: ClientTlsOptions | None = None
    # TLS settings for `wss`, see above. `null`: the system's certificate authorities.
    headers: dict[str, str] = msgspec.field(default_factory=dict)  # Headers of the opening request.
    frames: Frames | None = None
    # Kind of written messages: `text` or `binary`. `null`: text if the codec encodes text.
    ping: Duration = Duration(20.0)
    # After this silence, a peer is pinged. It must answer in half this time. `0`: never.
    connect_timeout: Duration = Duration(10.0)  # Time limit for opening the connection.
    send_timeout: Duration = Duration(10.0)  # Time limit for a message. After it, the peer is disconnected.
    max_waiting: AtLeastOne = 1000  # Maximum number of events that were received and not pulled.
    max_waiting_bytes: Size = Size(16 << 20)  # Maximum size of the messages of these events.

    def __post_init__(self) -> None:
        super().__post_init__()
        check_url(self.url, self.tls, ("ws", "wss"))
        for name, value in self.headers.items():
            if is_bad_header(value) or is_bad_header(name):
                raise ValueError(f"headers: {name!r} can't be a header, or its value can't")


class WebsocketServerOptions(HttpListenerOptions, kw_only=True):
    """Options of ``websocket_server``."""

    frames: Frames | None = None
    # Kind of written messages: `text` or `binary`. `null`: text if the codec encodes text.
    ping: Duration = Duration(20.0)
    # After this silence, a peer is pinged. It must answer in half this time. `0`: never.
    send_timeout: Duration = Duration(10.0)  # Time limit for a message. After it, the peer is disconnected.
    max_waiting: AtLeastOne = 1000  # Maximum number of events that were received and not pulled.
    max_waiting_bytes: Size = Size(16 << 20)  # Maximum size of the messages of these events.


class _MessageFormat:
    """Encodes events as text or binary messages."""

    def __init__(self, options: WebsocketClientOptions | WebsocketServerOptions) -> None:
        name = options.codec if isinstance(options.codec, str) else next(iter(options.codec))
        is_text = name in TEXTS and not options.postprocessors
        self._text = is_text if options.frames is None else options.frames == "text"
        self._options = options
        self._writer = None if options.postprocessors else PayloadWriter(options)

    def encode(self, event: Event) -> list[bytes | str]:
        """Return the messages of an event. Raises RejectError if it can't be encoded."""
        writer = PayloadWriter(self._options) if self._writer is None else self._writer  # collects nothing
        pieces = [*writer.encode(event), *writer.end()]
        if not self._text:
            return list(pieces)
        try:
            return [each.decode() for each in pieces]
        except UnicodeDecodeError as error:
            raise RejectError(f"not text: {error}; use frames: binary") from error


async def _send(socket: Socket, messages: Sequence[bytes | str]) -> None:
    for each in messages:
        await (socket.send_str(each) if isinstance(each, str) else socket.send_bytes(each))


def _size(messages: Sequence[bytes | str]) -> int:
    return sum(len(each) if isinstance(each, bytes) else len(each.encode()) for each in messages)


async def _received(socket: Socket, ping: float) -> bytes | None:
    """Return the next message; None: the connection has ended. Raises ConnectionError if pings are not answered.

    A peer is pinged after ``ping`` seconds of waiting in this call. A peer that is not read, because the flow accepts
    no events, is therefore not considered dead.
    """
    pinged = False
    while True:
        try:
            message = await socket.receive(timeout=(ping / 2 if pinged else ping) or None)
        except TimeoutError:
            if pinged:
                raise ConnectionError("the peer does not answer pings") from None
            pinged = True
            await _within(ping, socket.ping())
            continue
        pinged = False
        if message.type is WSMsgType.TEXT:
            return str(message.data).encode("utf-8", "surrogatepass")
        if message.type is WSMsgType.BINARY:
            return bytes(message.data)
        if message.type is WSMsgType.PING:
            await _within(ping or CLOSING, socket.pong(message.data))
        elif message.type is not WSMsgType.PONG:
            return None


async def _within(most: float, sending: Coroutine[Any, Any, None]) -> None:
    """Send frames within ``most`` seconds. Raises OSError if the peer has disconnected or does not read."""
    try:
        async with asyncio.timeout(most):
            await sending
    except TimeoutError as error:
        raise TimeoutError(f"the peer did not read a message for {most:g} s") from error
    except (aiohttp.ClientError, RuntimeError) as error:  # RuntimeError if the socket is closing
        raise ConnectionError(str(error) or type(error).__name__) from error


class _Receiver:
    """The events of the messages that a connector has received and that were not pulled.

    They are bounded in number and bytes, so that peers are not read faster than the flow processes events.
    """

    def __init__(self, options: WebsocketClientOptions | WebsocketServerOptions, connector: Source) -> None:
        self._options = options
        self._connector = connector
        self._bytes = 0
        self._items: deque[tuple[Event, int]] = deque()
        self._came = asyncio.Event()
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def _full(self) -> bool:
        return len(self._items) >= self._options.max_waiting or self._bytes >= self._options.max_waiting_bytes

    async def receive(self, socket: Socket, ids: Iterator[Any], meta: Mapping[str, Any] | None = None) -> None:
        """Read a connection to its end. Raises ValueError if it is not valid, and OSError if it breaks."""
        options, reads = self._options, self._connector.context.source is not None
        reader = PayloadReader(options)
        broken: ValueError | None = None
        ending: asyncio.TimerHandle | None = None  # of a message that ends if no data arrives
        try:
            while (data := await _received(socket, options.ping)) is not None:
                if ending is not None:
                    ending.cancel()
                self._connector.context.received(len(data))
                for part in reader.portions(data) if reads else ():
                    await self._put(reader.feed(part, meta), ids, len(part))
                if (waits := reader.waits) is not None:
                    loop = asyncio.get_running_loop()
                    ending = loop.call_later(waits, lambda: self._add(reader.idle(meta), ids, 0))
        except ValueError as error:
            broken = error
        finally:
            if ending is not None:
                ending.cancel()
        await self._put(reader.end(meta) if reads else [], ids, 0)
        if broken is not None:
            raise broken

    async def _put(self, events: list[Event], ids: Iterator[Any], size: int) -> None:
        """Wait for room, and add the events of ``size`` bytes."""
        while self._full:
            self._room.clear()
            await self._room.wait()
        self._add(events, ids, size)

    def _add(self, events: list[Event], ids: Iterator[Any], size: int) -> None:
        for number, event in enumerate(events):
            event.id = next(ids)
            self._items.append((event, 0 if number else size))
        if events:
            self._bytes += size
            self._came.set()

    async def take(self, limit: int) -> list[Event]:
        """Implement ``pull``: return at most ``limit`` events, or none after an interruption."""
        if not self._items:
            self._came.clear()
            await self._connector.wait(self._came.wait())
        taken: list[Event] = []
        while self._items and len(taken) < limit:
            event, size = self._items.popleft()
            self._bytes -= size
            taken.append(event)
        if not self._full:
            self._room.set()
        return taken


class WebsocketClient(Source, Sink):
    """Opens one connection."""

    type = "websocket_client"
    Options = WebsocketClientOptions

    def __init__(self, options: WebsocketClientOptions) -> None:
        super().__init__()
        self._options = options
        self._messages = _MessageFormat(options)
        self._received = _Receiver(options, self)
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ids = itertools.count(1)

    async def connect(self) -> None:
        options = self._options
        tls = True if options.tls is None else await asyncio.to_thread(options.tls.context)
        headers = dict(options.headers)
        if options.auth is not None:
            headers["Authorization"] = options.auth.header
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        try:
            async with asyncio.timeout(options.connect_timeout):
                self._socket = await self._session.ws_connect(
                    options.url, headers=headers, ssl=tls, autoping=False,
                    max_msg_size=options.max_bytes, timeout=aiohttp.ClientWSTimeout(ws_close=CLOSING),
                )  # fmt: skip
        except TimeoutError as error:
            raise TimeoutError(f"{options.url} can't be reached within {options.connect_timeout:g} s") from error
        self._reader = asyncio.get_running_loop().create_task(self._read(self._socket))

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        socket, self._socket = self._socket, None
        session, self._session = self._session, None
        await cancel(reader)
        if socket is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * CLOSING):
                    await socket.close()
        if session is not None:
            await session.close()

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        problem = ""
        try:
            await self._received.receive(socket, self._ids)
        except (ValueError, OSError) as error:
            problem = f": {error}"
        code = f", code {socket.close_code}" if socket.close_code is not None else ""
        self._reader = None  # close must not wait for this task
        self.context.disconnected(ConnectionError(f"the connection has ended{code}{problem}"))

    @property
    def stored(self) -> int:
        return len(self._received)

    async def pull(self, limit: int) -> list[Event] | None:
        return await self._received.take(limit)

    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        for event in events:
            try:
                messages = self._messages.encode(event)
            except RejectError as error:
                outcomes.append((REJECT, str(error)))
                continue
            try:
                if self._socket is None:
                    raise ConnectionError("not connected")
                await _within(self._options.send_timeout, _send(self._socket, messages))
                self.context.sent(_size(messages))
            except OSError as error:
                self.context.disconnected(error)
                return [*outcomes, *[(RETRY, str(error))] * (len(events) - len(outcomes))]
            outcomes.append(OK)
        return outcomes


@dataclass
class WebsocketConnection:
    """A connection of a server."""

    ident: str
    socket: web.WebSocketResponse
    transport: asyncio.Transport | None


class WebsocketServer(ListeningConnector):
    """Accepts connections. An event is written to its ``meta["connection"]``, or without one to all connections."""

    type = "websocket_server"
    scheme = "ws"
    Options = WebsocketServerOptions

    def __init__(self, options: WebsocketServerOptions) -> None:
        super().__init__(options)
        self._options = options
        self._messages = _MessageFormat(options)
        self._received = _Receiver(options, self)
        self.peers: dict[str, WebsocketConnection] = {}  # open connections by ID
        self._handling = BackgroundTasks()

    async def finish(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * CLOSING):
                closes = (each.socket.close(code=GOING_AWAY) for each in tuple(self.peers.values()))
                await asyncio.gather(*closes, return_exceptions=True)
        await cancel(*self._handling.tasks)  # these wait for room in the receive buffer

    # -- connections -----------------------------------------------------------------------------------------
    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if (denied := self.denied(request)) is not None:
            return denied
        socket = web.WebSocketResponse(autoping=False, max_msg_size=self._options.max_bytes, timeout=CLOSING)
        if not socket.can_prepare(request).ok:
            response = error_response(426, "this path accepts websockets only")
            response.headers["Upgrade"] = "websocket"
            return response
        await socket.prepare(request)
        task = self._handling.spawn(self._serve(socket, request))
        problem = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(problem, Exception) and not isinstance(problem, OSError):
            log.error("%s: %s: %s", self.context.flow, self.context.name, problem, exc_info=problem)
        return socket

    async def _serve(self, socket: web.WebSocketResponse, request: web.BaseRequest) -> None:
        one = WebsocketConnection(secrets.token_hex(8), socket, request.transport)
        everywhere: dict[str, WebsocketConnection] = self.context.flow_context.shared.setdefault(_SHARED, {})
        self.peers[one.ident] = everywhere[one.ident] = one
        self.context.count("connections")
        try:
            meta = {"connection": one.ident, **self.meta(request)}
            await self._received.receive(socket, (f"{one.ident}-{number}" for number in itertools.count(1)), meta)
        except ValueError:
            self.context.count("broken")
            await socket.close(code=NOT_READABLE)
        finally:
            del self.peers[one.ident], everywhere[one.ident]
            if not socket.closed:
                await socket.close()

    @property
    def stored(self) -> int:
        return len(self._received)

    async def pull(self, limit: int) -> list[Event] | None:
        return await self._received.take(limit)

    # -- writer ---------------------------------------------------------------------------------------------
    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        return [await self._write(event) for event in events]

    async def _write(self, event: Event) -> tuple[int, str]:
        try:
            messages = self._messages.encode(event)
        except RejectError as error:
            return REJECT, str(error)
        ident = event.meta.get("connection")
        if ident is None:
            peers = list(self.peers.values())
            if not peers:
                return DISCARD, "no peer is connected"
        else:
            everywhere: Mapping[str, WebsocketConnection] = self.context.flow_context.shared.get(_SHARED, {})
            one = everywhere.get(ident) if isinstance(ident, str) else None
            if one is None:
                self.context.count("gone")
                return DISCARD, "the connection is closed"
            peers = [one]
        sent = await asyncio.gather(*(self._reached(each, messages) for each in peers))
        return (OK, "") if any(sent) else (DISCARD, "the connection is closed")

    async def _reached(self, one: WebsocketConnection, messages: Sequence[bytes | str]) -> bool:
        try:
            await _within(self._options.send_timeout, _send(one.socket, messages))
            self.context.sent(_size(messages))
        except OSError as error:
            self.context.count("slow" if isinstance(error, TimeoutError) else "gone")
            if one.transport is not None:
                one.transport.abort()
            return False
        return True
