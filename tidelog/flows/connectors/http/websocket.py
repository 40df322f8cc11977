"""``websocket_client`` and ``websocket_server``: messages in both directions.

A received message is an event, or several events if preprocessors split it. The peer gets no outcome: the runtime
retries failed events. A written message counts as delivered when the operating system has accepted it. Messages in
flight are lost if the connection breaks, unless the peers have their own acknowledgements.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import aiohttp
import msgspec
from aiohttp import WSMsgType, web

from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import DISCARD, OK, REJECT, RETRY
from tidelog.flows.connectors.http.listener import HttpListener, HttpRoute, join, leave
from tidelog.flows.connectors.http.listenoptions import HttpListenerOptions
from tidelog.flows.connectors.http.options import ClientTlsOptions, HttpAuth
from tidelog.flows.connectors.http.receivebuffer import ReceiveBuffer
from tidelog.flows.connectors.http.requests import check_url, is_bad_header
from tidelog.flows.connectors.payload import PayloadOptions, PayloadReader, PayloadWriter
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
    auth: HttpAuth | None = None  # The credentials, see above.
    tls: ClientTlsOptions | None = None
    # TLS settings for `wss`, see above. `null`: the system's certificate authorities.
    headers: dict[str, str] = msgspec.field(default_factory=dict)  # Headers of the opening request.
    frames: Frames | None = None
    # Kind of written messages: `text` or `binary`. `null`: text if the codec encodes text.
    ping: Duration = Duration(20.0)  # After this silence, a peer is pinged. It must answer in half this time. 0: never.
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
    ping: Duration = Duration(20.0)  # After this silence, a peer is pinged. It must answer in half this time. 0: never.
    send_timeout: Duration = Duration(10.0)  # Time limit for a message. After it, the peer is disconnected.
    max_waiting: AtLeastOne = 1000  # Maximum number of events that were received and not pulled.
    max_waiting_bytes: Size = Size(16 << 20)  # Maximum size of the messages of these events.


class _MessageFormat:
    """Encodes events as text or binary messages."""

    def __init__(self, options: WebsocketClientOptions | WebsocketServerOptions) -> None:
        name = options.codec if isinstance(options.codec, str) else next(iter(options.codec))
        self._text = options.frames == "text" or (options.frames is None and name in TEXTS)
        if options.postprocessors and options.frames is None:
            self._text = False
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


async def _send(socket: Socket, messages: Sequence[bytes | str], most: float) -> None:
    """Send messages within ``most`` seconds. Raises OSError if the peer has disconnected or does not read."""
    try:
        async with asyncio.timeout(most):
            for each in messages:
                await (socket.send_str(each) if isinstance(each, str) else socket.send_bytes(each))
    except TimeoutError as error:
        raise TimeoutError(f"the peer did not read a message for {most:g} s") from error
    except (aiohttp.ClientError, RuntimeError) as error:  # RuntimeError if the socket is closing
        raise ConnectionError(str(error) or type(error).__name__) from error


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
            await _control(socket.ping(), ping)
            continue
        pinged = False
        if message.type is WSMsgType.TEXT:
            return str(message.data).encode("utf-8", "surrogatepass")
        if message.type is WSMsgType.BINARY:
            return bytes(message.data)
        if message.type is WSMsgType.PING:
            await _control(socket.pong(message.data), ping or CLOSING)
        elif message.type is not WSMsgType.PONG:
            return None


async def _control(sending: Coroutine[Any, Any, None], most: float) -> None:
    """Send a control frame. Raises OSError if the peer has disconnected or does not read."""
    try:
        async with asyncio.timeout(most):
            await sending
    except (aiohttp.ClientError, RuntimeError) as error:
        raise ConnectionError(str(error) or type(error).__name__) from error


class WebsocketClient(Source, Sink):
    """Opens one connection."""

    type = "websocket_client"
    Options = WebsocketClientOptions

    def __init__(self, options: WebsocketClientOptions) -> None:
        super().__init__()
        self._options = options
        self._messages = _MessageFormat(options)
        self._received = ReceiveBuffer(options.max_waiting, options.max_waiting_bytes, self.wait)
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reader: asyncio.Task[None] | None = None
        self._number = 0

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
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        if socket is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * CLOSING):
                    await socket.close()
        if session is not None:
            await session.close()

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        reader = PayloadReader(self._options)
        problem = ""
        try:
            while (data := await _received(socket, self._options.ping)) is not None:
                if self.context.source is not None:
                    for part in reader.portions(data):
                        await self._take(reader.feed(part), len(part))
        except (ValueError, OSError) as error:
            problem = f": {error}"
        await self._take(reader.end() if self.context.source is not None else [], 0)
        code = f", code {socket.close_code}" if socket.close_code is not None else ""
        self._reader = None  # close must not wait for this task
        self.context.disconnected(ConnectionError(f"the connection has ended{code}{problem}"))

    async def _take(self, events: list[Event], size: int) -> None:
        for event in events:
            self._number += 1
            event.id = self._number
        await self._received.put(events, size)

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
                await _send(self._socket, messages, self._options.send_timeout)
            except OSError as error:
                self.context.disconnected(error)
                return [*outcomes, *[(RETRY, str(error))] * (len(events) - len(outcomes))]
            outcomes.append(OK)
        return outcomes


class WebsocketConnection:
    """A connection of a server."""

    def __init__(self, ident: str, socket: web.WebSocketResponse, request: web.BaseRequest) -> None:
        self.ident = ident
        self.socket = socket
        self.transport = request.transport
        self.number = 0  # of received events
        headers: dict[str, str] = {}
        query: dict[str, str] = {}
        for name, value in request.headers.items():
            headers.setdefault(name.lower(), value)
        for name, value in request.query.items():
            query.setdefault(name, value)
        self.meta: dict[str, Any] = {
            "connection": ident, "path": request.path, "query": query, "headers": headers, "peer": request.remote or "",
        }  # fmt: skip


class WebsocketServer(Source, Sink):
    """Accepts connections. An event is written to its ``meta["connection"]``, or without one to all connections."""

    type = "websocket_server"
    Options = WebsocketServerOptions

    def __init__(self, options: WebsocketServerOptions) -> None:
        super().__init__()
        self._options = options
        self._messages = _MessageFormat(options)
        self._received = ReceiveBuffer(options.max_waiting, options.max_waiting_bytes, self.wait)
        self._listener: HttpListener | None = None
        self._route: HttpRoute | None = None
        self._mine: dict[str, WebsocketConnection] = {}
        self._handling: set[asyncio.Task[Any]] = set()

    async def connect(self) -> None:
        flow = self.context.flow.partition(".")[0]
        self._route = HttpRoute(self._options.path, (flow, self.context.name), self._handle, lambda: True)
        self._listener = await join(self.context.flow_context.shared, self._options.listening(), self._route)
        self.context.described["url"] = self._listener.url("ws", self._route)

    async def close(self) -> None:
        listener, route = self._listener, self._route
        self._listener = self._route = None
        if listener is None or route is None:
            return
        listener.make_way(route)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * CLOSING):
                closes = (each.socket.close(code=GOING_AWAY) for each in tuple(self._mine.values()))
                await asyncio.gather(*closes, return_exceptions=True)
        left = tuple(self._handling)
        for task in left:  # these wait for room in the receive buffer
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await leave(self.context.flow_context.shared, listener, route)

    # -- connections -----------------------------------------------------------------------------------------
    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        options = self._options
        if options.auth is not None and not options.auth.admits(request.headers.get("Authorization", "")):
            self.context.count("unauthorized")
            return web.json_response({"error": "not authorized"}, status=401)
        if not options.admits(request):
            self.context.count("foreign_origins")
            return web.json_response({"error": "pages of this origin have no access"}, status=403)
        socket = web.WebSocketResponse(autoping=False, max_msg_size=options.max_bytes, timeout=CLOSING)
        if not socket.can_prepare(request).ok:
            response = web.json_response({"error": "this path accepts websockets only"}, status=426)
            response.headers["Upgrade"] = "websocket"
            return response
        await socket.prepare(request)
        task = asyncio.ensure_future(self._serve(socket, request))
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)
        (problem,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(problem, Exception) and not isinstance(problem, OSError):
            log.error("%s: %s: %s", self.context.flow, self.context.name, problem, exc_info=problem)
        return socket

    async def _serve(self, socket: web.WebSocketResponse, request: web.BaseRequest) -> None:
        one = WebsocketConnection(secrets.token_hex(8), socket, request)
        if self._options.auth is not None:
            one.meta["headers"].pop("authorization", None)
        everywhere: dict[str, WebsocketConnection] = self.context.flow_context.shared.setdefault(_SHARED, {})
        self._mine[one.ident] = everywhere[one.ident] = one
        self.context.count("connections")
        try:
            await self._read(one)
        finally:
            del self._mine[one.ident], everywhere[one.ident]
            if not socket.closed:
                await socket.close()

    async def _read(self, one: WebsocketConnection) -> None:
        reader = PayloadReader(self._options)
        while (data := await _received(one.socket, self._options.ping)) is not None:
            if self.context.source is None:
                continue
            try:
                for part in reader.portions(data):
                    await self._take(one, reader.feed(part, one.meta), len(part))
            except ValueError:
                self.context.count("broken")
                await one.socket.close(code=NOT_READABLE)
                break
        if self.context.source is not None:
            await self._take(one, reader.end(one.meta), 0)

    async def _take(self, one: WebsocketConnection, events: list[Event], size: int) -> None:
        for event in events:
            one.number += 1
            event.id = f"{one.ident}-{one.number}"
        await self._received.put(events, size)

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
            peers = list(self._mine.values())
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
            await _send(one.socket, messages, self._options.send_timeout)
        except OSError as error:
            self.context.count("slow" if isinstance(error, TimeoutError) else "gone")
            if one.transport is not None:
                one.transport.abort()
            return False
        return True
