"""``http_server``: requests become events, and are answered with the outcome of the events.

docs/flows-connectors.md has the answer for each outcome, and the meta of events that are written as responses.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import msgspec
from aiohttp import web

from tidelog.client import tracecontext
from tidelog.flows.api.connector import Outcome
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import DISCARD, OK, REJECT, RETRY, Token
from tidelog.flows.connectors.destinations import is_bad_header
from tidelog.flows.connectors.http.listening import HttpListenerOptions, ListeningConnector, error_response
from tidelog.flows.connectors.http.options import content_type
from tidelog.flows.connectors.payload import PayloadReader, PayloadWriter
from tidelog.flows.interceptors.compression import DecompressedTooLongError, DecompressOptions, Gunzip, Inflate
from tidelog.operating import cors
from tidelog.options.limits import AtLeastOne
from tidelog.options.units import Duration, Size

log = logging.getLogger("tidelog.flows")

_DECOMPRESS: Final = {"gzip": Gunzip, "x-gzip": Gunzip, "deflate": Inflate}
KNOWN: Final = frozenset(("", "identity", *_DECOMPRESS))  # encodings of request bodies

CLOSING: Final = 5.0  # s to finish sending responses when a connector is closed
_SHARED: Final = "http_requests"  # the key in ``FlowContext.shared``: requests by ID
_OWN_HEADERS: Final = frozenset(
    ("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-authenticate",
     "content-length", "content-encoding", "content-type", "date", "server")
)  # fmt: skip


class HttpServerOptions(HttpListenerOptions, kw_only=True):
    """Options of ``http_server``."""

    methods: list[str] = msgspec.field(default_factory=lambda: ["POST", "PUT"])
    # The methods that are allowed. Requests with others get 405.
    answer: Literal["settled", "response", "accepted"] = "settled"  # When a request is answered, see the table.
    wait: Duration = Duration(30.0)  # Time limit for the outcome. After it, the answer is 504.
    body_timeout: Duration = Duration(30.0)  # Time limit for a request's body.
    max_body: Size = Size(1 << 20)  # Maximum size of a request, compressed or decompressed. Longer ones get 413.
    max_messages: AtLeastOne = 10_000  # Maximum number of messages in a request. More get 413.
    max_waiting: AtLeastOne = 1000  # Maximum number of unanswered requests. More get 503.
    max_waiting_bytes: Size = Size(64 << 20)  # Maximum size of all bodies of unanswered requests.
    when_paused: Literal["refuse", "wait"] = "refuse"
    # While the source is stopped: `refuse` requests with 503, or let them `wait`.
    retry_after: Duration = Duration(1.0)  # The delay in `Retry-After`, sent with 503.
    reasons: bool = False  # Send the reasons of failures to peers. They name connectors and contain their error texts.

    def __post_init__(self) -> None:
        super().__post_init__()
        self.methods = [each.upper() for each in self.methods]
        if not self.methods:
            raise ValueError("methods is empty: give at least one")


class PendingRequest:
    """An unanswered request."""

    def __init__(self, ident: str) -> None:
        self.ident = ident
        self.answered: asyncio.Future[web.Response] = asyncio.get_running_loop().create_future()
        self.bytes = 0  # of the body, as received
        self.events: list[Event] = []  # not pulled yet
        self.left = 0  # unsettled events
        self.sent = False  # at least one event was pulled
        self.worst = (OK, "")
        self.rejected = 0  # events
        self.response: web.Response | None = None  # from the flow
        self.accepted = False  # answer when all events were pulled
        self.at_once = False  # send the response as soon as it arrives, settled or not

    def answer(self, response: web.Response) -> None:
        if not self.answered.done():
            self.answered.set_result(response)


class HttpServer(ListeningConnector):
    """A source of requests, and a sink for responses."""

    type = "http_server"
    scheme = "http"
    Options: ClassVar[Any] = HttpServerOptions

    @classmethod
    def option_errors(cls, options: HttpServerOptions, *, source: bool) -> list[str]:
        if source and options.answer != "accepted" and not options.on_error.is_default:
            return [
                "on_error has no effect, because the answer tells the peer to retry: omit it, or set answer: accepted"
            ]
        return []

    def __init__(self, options: HttpServerOptions) -> None:
        super().__init__(options)
        self._options = options
        accepts = options.answer == "accepted"
        self.owns_policy = not accepts  # the peer is responsible for retries
        self.remembers = accepts
        self._prefix = secrets.token_hex(6)  # of this instance's request IDs
        self._number = 0
        self.requests: dict[str, PendingRequest] = {}  # unanswered requests by ID
        self.waiting_bytes = 0  # of their bodies
        self._handling = 0
        self._idle = asyncio.Event()
        self._queue: deque[PendingRequest] = deque()  # requests with events to pull
        self._came = asyncio.Event()

    # -- the connection --------------------------------------------------------------------------------------
    async def connect(self) -> None:
        if self._options.answer == "accepted" and self.context.sink is not None:
            raise ValueError("answer is accepted: this connector can't be a sink, because requests are answered before")
        if self._options.answer == "response" and self.context.sink is None:
            raise ValueError("answer is response, and no events are written to it: connect the source of the responses")
        await super().connect()

    def taking(self) -> bool:
        return self.context.accepting

    async def finish(self) -> None:
        for each in tuple(self.requests.values()):
            each.answer(self._unavailable("the flow has ended"))
        try:
            async with asyncio.timeout(CLOSING):
                while self._handling:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            left = self._handling
            log.warning("%s: %s: %s responses were not sent in time", self.context.flow, self.context.name, left)

    # -- requests --------------------------------------------------------------------------------------------
    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self._handling += 1
        try:
            refused = self._refused(request)
            answer = refused if refused is not None else await self._admitted(request)
            if self._options.origins is not None:
                for name, value in cors.headers_for(request, self._options.origins).items():
                    answer.headers.setdefault(name, value)
            return answer
        except (ConnectionError, web.RequestPayloadError):
            raise ConnectionResetError from None  # the peer has disconnected
        except Exception as error:  # a bug must fail only this request
            log.exception("%s: %s: %s", self.context.flow, self.context.name, error)
            return error_response(500, "internal error")
        finally:
            self._handling -= 1
            self._idle.set()

    def _refused(self, request: web.BaseRequest) -> web.Response | None:
        """Return the response to a request that is refused before its body is read, and to a preflight request."""
        options = self._options
        if options.origins is not None and cors.is_preflight(request) and options.admits(request):
            return cors.preflight_response(request, options.origins, options.methods)
        if (denied := self.denied(request)) is not None:
            return denied
        if request.method not in options.methods:
            response = error_response(405, "this method is not allowed")
            response.headers["Allow"] = ", ".join(options.methods)
            return response
        if request.headers.get("Content-Encoding", "").strip().lower() not in KNOWN:
            response = error_response(415, "this encoding is not supported")
            response.headers["Accept-Encoding"] = "gzip, deflate"
            return response
        if (request.content_length or 0) > options.max_body:
            return error_response(413, f"a body can have at most {options.max_body} bytes")
        if self.listener is None or (options.when_paused == "refuse" and not self.context.accepting):
            self.context.count("refused")
            return self._unavailable("no requests are accepted now")
        if len(self.requests) >= options.max_waiting or self.waiting_bytes >= options.max_waiting_bytes:
            self.context.count("refused")
            return self._unavailable("too many requests are waiting")
        return None

    async def _admitted(self, request: web.BaseRequest) -> web.Response:
        self._number += 1
        waiting = PendingRequest(f"{self._prefix}-{self._number}")
        waiting.at_once = self._options.answer == "response"
        everywhere: dict[str, PendingRequest] = self.context.flow_context.shared.setdefault(_SHARED, {})
        self.requests[waiting.ident] = everywhere[waiting.ident] = waiting
        try:
            body = await self._body(request, waiting)
            if isinstance(body, web.Response):
                return body
            return await self._answer(waiting, request, body)
        finally:
            self.waiting_bytes -= waiting.bytes
            del self.requests[waiting.ident], everywhere[waiting.ident]

    async def _body(self, request: web.BaseRequest, waiting: PendingRequest) -> bytes | web.Response:
        """Return the decompressed body, or the response to an invalid one."""
        most = self._options.max_body
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        parts = []
        try:
            async with asyncio.timeout(self._options.body_timeout):
                while part := await request.content.readany():
                    waiting.bytes += len(part)
                    self.context.received(len(part))
                    self.waiting_bytes += len(part)
                    parts.append(part)
                    if waiting.bytes > most:
                        return self._closing(error_response(413, f"a body can have at most {most} bytes"))
                    if self.waiting_bytes > self._options.max_waiting_bytes:
                        self.context.count("refused")
                        return self._closing(self._unavailable("too many requests are waiting"))
        except TimeoutError:
            return self._closing(error_response(408, "the body took too long"))
        try:
            return decompressed(b"".join(parts), request.headers.get("Content-Encoding", "").strip().lower(), most)
        except DecompressedTooLongError:
            return error_response(413, f"a body can have at most {most} bytes")
        except ValueError as error:
            return error_response(400, str(error))

    async def _answer(self, waiting: PendingRequest, request: web.BaseRequest, body: bytes) -> web.Response:
        options = self._options
        try:
            span = zip(*tracecontext.current(), strict=True)  # of an instrumentation of aiohttp
            meta = {"request": waiting.ident, "method": request.method, **self.meta(request), **dict(span)}
            events = await self._events(body, meta)
        except ValueError as error:
            return error_response(400, str(error))
        if len(events) > options.max_messages:
            return error_response(413, f"a body can have at most {options.max_messages} messages")
        bad = next((each for each in events if each.path == "err"), None)
        if bad is not None and not self.context.is_connected("err"):
            return error_response(400, str(bad.meta.get("error", "it can't be read")))
        for number, event in enumerate(events):
            event.id = waiting.ident if len(events) == 1 else f"{waiting.ident}.{number}"
        waiting.accepted = options.answer == "accepted" or (options.answer == "settled" and not self.context.settles)
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
                return self._unavailable("no requests are accepted now")
            return error_response(504, "the outcome is not known yet")
        finally:
            if waiting.events:
                self._queue.remove(waiting)
                waiting.events = []
            waiting.answered.cancel()

    async def _events(self, body: bytes, meta: dict[str, Any]) -> list[Event]:
        if not body:
            return [Event(None, meta)]
        reader = PayloadReader(self._options)
        events: list[Event] = []
        for part in reader.portions(body):
            events += reader.feed(part, meta)
            if len(events) > self._options.max_messages:
                return events
        return events + reader.end(meta)

    @property
    def stored(self) -> int:
        return sum(len(each.events) for each in self._queue)

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
                    each.answer(self._unavailable("no requests are accepted now"))

    async def settled(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            waiting = self.requests.get(str(token.key).partition(".")[0])
            if waiting is None:
                continue
            waiting.left -= 1
            waiting.rejected += token.status == REJECT
            if token.status > waiting.worst[0]:
                waiting.worst = (token.status, token.reason)
            if not waiting.left:
                self._ended(waiting)

    def _ended(self, waiting: PendingRequest) -> None:
        """Answer a request whose events are all settled."""
        status, reason = waiting.worst
        public = reason if self._options.reasons else ""
        if status == REJECT:
            waiting.answer(error_response(422, public or "the request was rejected"))
        elif status == RETRY:
            waiting.answer(self._unavailable(public or "the request failed and can be retried"))
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
            return REJECT, "its meta has no request to answer"
        everywhere: Mapping[str, PendingRequest] = self.context.flow_context.shared.get(_SHARED, {})
        waiting = everywhere.get(ident)
        if waiting is None or waiting.answered.done():
            self.context.count("late_responses")
            return DISCARD, "the request is already answered or has timed out"
        if waiting.response is not None:
            self.context.count("more_responses")
            return DISCARD, "the request already has a response"
        try:
            waiting.response = self._made(event)
        except (RejectError, ValueError) as error:
            return REJECT, str(error)
        if waiting.at_once:
            waiting.answer(waiting.response)
        return OK, ""

    def _made(self, event: Event) -> web.Response:
        """Return the response that an event describes. Raises RejectError or ValueError if it is not valid."""
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
        writer = PayloadWriter(self._options)
        body = b"".join([*writer.encode(event), *writer.end()])
        self.context.sent(len(body))
        return web.Response(status=status, headers=headers, body=body)

    # -- answers ---------------------------------------------------------------------------------------------
    def _unavailable(self, text: str) -> web.Response:
        response = error_response(503, text)
        response.headers["Retry-After"] = str(max(1, round(self._options.retry_after)))
        return response

    def _closing(self, response: web.Response) -> web.Response:
        """Close the connection after the response, because the body was not read to its end."""
        response.force_close()
        return response


def decompressed(data: bytes, encoding: str, most: int) -> bytes:
    """Return the decompressed body. encoding: one of KNOWN.

    Raises DecompressedTooLongError if it is longer than ``most``, and ValueError if it is not valid.
    """
    kind = _DECOMPRESS.get(encoding)
    return data if kind is None else kind(DecompressOptions(), most).message(data)
