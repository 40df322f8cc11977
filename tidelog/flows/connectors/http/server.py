"""``http_server``: requests as events, answered by what became of them.

    what became of the events       ``answer: settled``     ``response``            ``accepted``
    the flow has taken them         it waits                it waits                202
    ok, discard                     200, or the response    it waits for it
    reject                          422                     422
    retry                           503                     503
    nothing for ``wait``            504                     504                     503

As a sink it takes responses: an event whose ``meta["request"]`` is that of a request answers it with its value,
``meta["status"]`` (200), ``meta["response_headers"]`` and ``meta["content_type"]``. The first event counts.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from aiohttp import web

from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import DISCARD, OK, REJECT, RETRY, Token
from tidelog.flows.connectors.http import cors
from tidelog.flows.connectors.http.contentencoding import KNOWN, ContentTooLongError, decompressed
from tidelog.flows.connectors.http.listener import HttpListener, HttpRoute, join, leave
from tidelog.flows.connectors.http.listenoptions import HttpListenerOptions
from tidelog.flows.connectors.http.options import content_type
from tidelog.flows.connectors.http.requests import is_bad_header
from tidelog.flows.connectors.payload import PayloadReader, PayloadWriter
from tidelog.options.units import Duration, Size

log = logging.getLogger("tidelog.flows")

CLOSING: Final = 5.0  # s for answers that are being sent when a connector is closed
_SHARED: Final = "http_requests"  # the key in what a process shares: requests by ID
_OWN_HEADERS: Final = frozenset(
    ("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-authenticate",
     "content-length", "content-encoding", "content-type", "date", "server")
)  # fmt: skip


class HttpServerOptions(HttpListenerOptions, kw_only=True):
    """Options of ``http_server``."""

    methods: list[str] = msgspec.field(default_factory=lambda: ["POST", "PUT"])
    answer: Literal["settled", "response", "accepted"] = "settled"  # when, and by what
    wait: Duration = Duration(30.0)  # for the answer; then 504
    body_timeout: Duration = Duration(30.0)  # for a request's body
    max_body: Size = Size(1 << 20)  # bytes of a request, packed or unpacked
    max_messages: int = 10_000  # in one request, where preprocessors find several
    max_waiting: int = 1000  # requests that have not been answered
    max_waiting_bytes: Size = Size(64 << 20)  # of their bodies
    when_paused: Literal["refuse", "wait"] = "refuse"  # while no event may be sent: 503, or wait
    retry_after: Duration = Duration(1.0)  # told with 503
    reasons: bool = False  # tell peers why something was rejected; reasons name connectors and what they said

    def __post_init__(self) -> None:
        super().__post_init__()
        self.methods = [each.upper() for each in self.methods]
        if not self.methods:
            raise ValueError("methods: none would be taken")
        for name in ("max_waiting", "max_messages"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")


class PendingRequest:
    """A request that has not been answered."""

    def __init__(self, ident: str) -> None:
        self.ident = ident
        self.answered: asyncio.Future[web.Response] = asyncio.get_running_loop().create_future()
        self.events: list[Event] = []  # that wait to be pulled
        self.left = 0  # events that are not settled
        self.sent = False  # one of them at least was pulled
        self.worst = (OK, "")
        self.response: web.Response | None = None  # given by the flow
        self.accepted = False  # it is answered when all its events were pulled
        self.at_once = False  # a response is sent when it comes, settled or not

    def answer(self, response: web.Response) -> None:
        if not self.answered.done():
            self.answered.set_result(response)


class HttpServer(Source, Sink):
    """The source of requests, the sink of responses."""

    type = "http_server"
    Options = HttpServerOptions

    def __init__(self, options: HttpServerOptions) -> None:
        super().__init__()
        self._options = options
        accepts = options.answer == "accepted"
        self.owns_policy = not accepts  # what is to be tried again is the peer's to try
        self.remembers = accepts
        self._prefix = secrets.token_hex(6)  # of this instance's request IDs
        self._number = 0
        self._listener: HttpListener | None = None
        self._route: HttpRoute | None = None
        self._mine: dict[str, PendingRequest] = {}
        self._bytes = 0  # of bodies of requests that have not been answered
        self._handling = 0
        self._idle = asyncio.Event()
        self._queue: deque[PendingRequest] = deque()  # requests whose events were not all pulled
        self._came = asyncio.Event()

    # -- the connection --------------------------------------------------------------------------------------
    async def connect(self) -> None:
        if self._options.answer == "accepted" and self.context.sink is not None:
            raise ValueError("answer: accepted leaves nothing to answer: events can't be written to it")
        if self._options.answer == "response" and self.context.sink is None:
            raise ValueError("answer: response, and nothing leads to it: connect what makes the responses")
        flow = self.context.flow.partition(".")[0]
        owner = (flow, self.context.name)
        self._route = HttpRoute(self._options.path, owner, self._handle, lambda: self.context.taking)
        self._listener = await join(self.context.flow_context.shared, self._options.listening(), self._route)
        self.context.described["url"] = self._listener.url("http", self._route)

    async def close(self) -> None:
        listener, route = self._listener, self._route
        self._listener = self._route = None
        if listener is None or route is None:
            return
        listener.make_way(route)
        for each in tuple(self._mine.values()):
            each.answer(self._unavailable("the flow has ended"))
        try:
            async with asyncio.timeout(CLOSING):
                while self._handling:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            left = self._handling
            log.warning("%s: %s: %s answers were not sent in time", self.context.flow, self.context.name, left)
        await leave(self.context.flow_context.shared, listener, route)

    # -- requests --------------------------------------------------------------------------------------------
    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self._handling += 1
        try:
            refused = self._refused(request)
            answer = refused if refused is not None else await self._admitted(request)
            if self._options.origins is not None:
                for name, value in cors.headers_for(request, self._options.origins).items():
                    answer.headers.setdefault(name, value)
            return answer
        except (ConnectionError, web.RequestPayloadError):
            raise ConnectionResetError from None  # the peer is gone: there is nobody to answer
        except Exception as error:  # a bug, but one request's only
            log.exception("%s: %s: %s", self.context.flow, self.context.name, error)
            return self._error(500, "internal error")
        finally:
            self._handling -= 1
            self._idle.set()

    def _refused(self, request: web.BaseRequest) -> web.Response | None:
        """The answer to a request that is not looked into."""
        options = self._options
        if options.origins is not None and cors.is_preflight(request) and options.admits(request):
            return cors.preflight_response(request, options.origins, options.methods)
        if options.auth is not None and not options.auth.admits(request.headers.get("Authorization", "")):
            self.context.count("unauthorized")
            response = self._error(401, "not authorized")
            scheme = "Bearer" if options.auth.bearer is not None else 'Basic realm="tidelog"'
            response.headers["WWW-Authenticate"] = scheme
            return response
        if not options.admits(request):
            self.context.count("foreign_origins")
            return self._error(403, "pages of this origin may not ask")
        if request.method not in options.methods:
            response = self._error(405, "this method is not taken here")
            response.headers["Allow"] = ", ".join(options.methods)
            return response
        if request.headers.get("Content-Encoding", "").strip().lower() not in KNOWN:
            response = self._error(415, "this encoding is not read here")
            response.headers["Accept-Encoding"] = "gzip, deflate"
            return response
        if (request.content_length or 0) > options.max_body:
            return self._error(413, f"a body may have {options.max_body} bytes")
        if self._listener is None or (options.when_paused == "refuse" and not self.context.taking):
            self.context.count("refused")
            return self._unavailable("nothing is taken now")
        if len(self._mine) >= options.max_waiting or self._bytes >= options.max_waiting_bytes:
            self.context.count("refused")
            return self._unavailable("too many requests wait")
        return None

    async def _admitted(self, request: web.BaseRequest) -> web.Response:
        self._number += 1
        waiting = PendingRequest(f"{self._prefix}-{self._number}")
        waiting.at_once = self._options.answer == "response"
        everywhere: dict[str, PendingRequest] = self.context.flow_context.shared.setdefault(_SHARED, {})
        self._mine[waiting.ident] = everywhere[waiting.ident] = waiting
        held = [0]
        try:
            body = await self._body(request, held)
            if isinstance(body, web.Response):
                return body
            return await self._answer(waiting, request, body)
        finally:
            self._bytes -= held[0]
            del self._mine[waiting.ident], everywhere[waiting.ident]

    async def _body(self, request: web.BaseRequest, held: list[int]) -> bytes | web.Response:
        """The body, unpacked; or what is answered to it. held: gets the bytes that were counted."""
        most = self._options.max_body
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        parts = []
        try:
            async with asyncio.timeout(self._options.body_timeout):
                while part := await request.content.readany():
                    held[0] += len(part)
                    self._bytes += len(part)
                    parts.append(part)
                    if held[0] > most:
                        return self._closing(self._error(413, f"a body may have {most} bytes"))
                    if self._bytes > self._options.max_waiting_bytes:
                        self.context.count("refused")
                        return self._closing(self._unavailable("too many requests wait"))
        except TimeoutError:
            return self._closing(self._error(408, "the body took too long"))
        try:
            return decompressed(b"".join(parts), request.headers.get("Content-Encoding", "").strip().lower(), most)
        except ContentTooLongError:
            return self._error(413, f"a body may have {most} bytes")
        except ValueError as error:
            return self._error(400, str(error))

    async def _answer(self, waiting: PendingRequest, request: web.BaseRequest, body: bytes) -> web.Response:
        options = self._options
        try:
            events = self._events(body, self._meta(waiting.ident, request))
        except ContentTooLongError as error:
            return self._error(413, str(error))
        except ValueError as error:
            return self._error(400, str(error))
        bad = next((each for each in events if each.path == "err"), None)
        if bad is not None and not self.context.leads("err"):
            return self._error(400, str(bad.meta.get("error", "it can't be read")))
        for number, event in enumerate(events):
            event.id = waiting.ident if len(events) == 1 else f"{waiting.ident}.{number}"
        waiting.accepted = options.answer == "accepted" or (options.answer == "settled" and not self.context.tells)
        if not events:
            return web.Response(status=202 if waiting.accepted else 200)
        waiting.events = events
        waiting.left = len(events)
        self._queue.append(waiting)
        self._came.set()
        try:
            async with asyncio.timeout(options.wait):
                return await asyncio.shield(waiting.answered)
        except TimeoutError:
            self.context.count("late")
            if not waiting.sent:
                return self._unavailable("nothing is taken now")
            return self._error(504, "it is not known yet what became of it")
        finally:
            if waiting.events:
                self._queue.remove(waiting)
                waiting.events = []
            waiting.answered.cancel()

    def _events(self, body: bytes, meta: dict[str, Any]) -> list[Event]:
        if not body:
            return [Event(None, meta)]
        most = self._options.max_messages
        reading = PayloadReader(self._options)
        events: list[Event] = []
        for part in reading.portions(body):
            events += reading.feed(part, meta)
            if len(events) > most:
                break
        else:
            events += reading.end(meta)
        if len(events) > most:
            raise ContentTooLongError(f"a body may have {most} messages")
        return events

    def _meta(self, ident: str, request: web.BaseRequest) -> dict[str, Any]:
        headers: dict[str, str] = {}
        query: dict[str, str] = {}
        for name, value in request.headers.items():
            headers.setdefault(name.lower(), value)  # the first one counts
        for name, value in request.query.items():
            query.setdefault(name, value)
        if self._options.auth is not None:
            headers.pop("authorization", None)
        return {
            "request": ident,
            "method": request.method,
            "path": request.path,
            "query": query,
            "headers": headers,
            "peer": request.remote or "",
        }

    # -- the source ------------------------------------------------------------------------------------------
    async def pull(self, limit: int) -> list[Event] | None:
        if not self._queue:
            self._came.clear()
            await self.wait(self._came.wait())
        found: list[Event] = []
        while self._queue and len(found) < limit:
            waiting = self._queue[0]
            if not waiting.answered.done():
                room = limit - len(found)
                found += waiting.events[:room]
                del waiting.events[:room]
                waiting.sent = True
                if waiting.events:
                    break
                if waiting.accepted:
                    waiting.answer(web.Response(status=202))
            waiting.events = []
            self._queue.popleft()
        return found

    def interrupt(self) -> None:
        super().interrupt()
        if self._options.when_paused == "refuse":
            for each in self._queue:
                if not each.sent:
                    each.answer(self._unavailable("nothing is taken now"))

    async def settled(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            waiting = self._mine.get(str(token.key).partition(".")[0])
            if waiting is None:
                continue
            waiting.left -= 1
            if token.status > waiting.worst[0]:
                waiting.worst = (token.status, token.reason)
            if not waiting.left:
                self._ended(waiting)

    def _ended(self, waiting: PendingRequest) -> None:
        """All events of a request are settled."""
        status, reason = waiting.worst
        told = reason if self._options.reasons else ""
        if status == REJECT:
            waiting.answer(self._error(422, told or "it was rejected"))
        elif status == RETRY:
            waiting.answer(self._unavailable(told or "it may work another time"))
        elif waiting.response is not None:
            waiting.answer(waiting.response)
        elif not waiting.at_once:
            waiting.answer(web.Response())

    # -- the sink --------------------------------------------------------------------------------------------
    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        return [self._response(event) for event in events]

    def _response(self, event: Event) -> tuple[int, str]:
        ident = event.meta.get("request")
        if not isinstance(ident, str):
            return REJECT, "its meta has no request: it answers nothing"
        everywhere: Mapping[str, PendingRequest] = self.context.flow_context.shared.get(_SHARED, {})
        waiting = everywhere.get(ident)
        if waiting is None or waiting.answered.done():
            self.context.count("late_responses")
            return DISCARD, "the request is gone"
        if waiting.response is not None:
            self.context.count("more_responses")
            return DISCARD, "the request has a response"
        try:
            waiting.response = self._made(event)
        except (RejectError, ValueError) as error:
            return REJECT, str(error)
        if waiting.at_once:
            waiting.answer(waiting.response)
        return OK, ""

    def _made(self, event: Event) -> web.Response:
        """RejectError, ValueError: it can't be a response."""
        meta = event.meta
        status = meta.get("status", 200)
        if not isinstance(status, int) or not 200 <= status <= 599:
            raise ValueError(f"meta has the status {status!r}: it must be 200 to 599")
        given = meta.get("response_headers") or {}
        if not isinstance(given, Mapping):
            raise ValueError(f"response_headers is {type(given).__name__}: it must be an object")
        headers = {"Content-Type": str(meta.get("content_type") or content_type(self._options.codec))}
        headers |= {str(name): str(value) for name, value in given.items() if str(name).lower() not in _OWN_HEADERS}
        for name, value in headers.items():
            if is_bad_header(value) or not name.isascii() or any(each <= " " or each == ":" for each in name):
                raise ValueError(f"response_headers: {name!r} can't be a header, or its value can't")
        if event.value is None or status in (204, 304):
            headers.pop("Content-Type")
            return web.Response(status=status, headers=headers)
        writing = PayloadWriter(self._options)
        body = b"".join([*writing.encode(event), *writing.end()])
        return web.Response(status=status, headers=headers, body=body)

    # -- answers ---------------------------------------------------------------------------------------------
    def _error(self, status: int, text: str) -> web.Response:
        return web.json_response({"error": text}, status=status)

    def _unavailable(self, text: str) -> web.Response:
        response = self._error(503, text)
        response.headers["Retry-After"] = str(max(1, round(self._options.retry_after)))
        return response

    def _closing(self, response: web.Response) -> web.Response:
        """With a body that was not read to its end the connection can't be used again."""
        response.force_close()
        return response
