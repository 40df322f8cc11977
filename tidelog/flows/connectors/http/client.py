"""``http_client``: sends a request for each event. The response becomes an event if the port ``out`` is connected.

    2xx                        ok       by default; see the option ``statuses``
    408, 425, 429, 5xx         retry    Retry-After delays all requests
    401, 403, 407              retry    an outage: the credentials are wrong. If the server accepts other events
                                        meanwhile, only this event is denied: it is rejected at the third attempt
    413                        a batch is halved, down to the member that is too large
    all others                 reject
    no response, unreachable   retry

A batch from the operator ``batch`` is one event: with the codec ``jsonl``, its body has a line for each member.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import Final

import msgspec
from yarl import URL

from tidelog.flows.api.cancellation import cancel
from tidelog.flows.api.connector import DEFERRED, Deferred
from tidelog.flows.api.errors import RejectError, RetryError
from tidelog.flows.api.event import Event, EventPredicate, extract
from tidelog.flows.api.tokens import OK, REJECT, RETRY
from tidelog.flows.codecs.base import codec
from tidelog.flows.connectors.batchmembers import members
from tidelog.flows.connectors.destinations import header_template, url_template
from tidelog.flows.connectors.http.options import StatusCodeOptions, content_type
from tidelog.flows.connectors.http.requests import (
    HttpRequestOptions,
    HttpRequestSink,
    HttpResponse,
    check_url,
    retry_after,
)
from tidelog.flows.connectors.payload import NameOrOptions, PayloadOptions, PayloadWriter
from tidelog.operating.tasks import BackgroundTasks
from tidelog.options.units import PositiveSize

_METHOD: Final = re.compile(r"[A-Z]{1,20}")
ATTEMPTS: Final = 3  # of an event that is denied while others are accepted
_WITHOUT_BODY: Final = frozenset(("GET", "HEAD"))
_SERVER: Final = re.compile(r"([a-zA-Z]+://[^/?#]*)(.*)", re.DOTALL)


class HttpClientOptions(HttpRequestOptions, kw_only=True):
    """Options of ``http_client``."""

    url: str  # The URL. Its path and its query are a [template](#templates).
    method: str = "POST"  # The method of requests. `GET` and `HEAD` have no body.
    codec: NameOrOptions = "json"  # The codec of bodies.
    postprocessors: list[NameOrOptions] = msgspec.field(default_factory=list)
    # Steps after the codec has encoded, in this order.
    max_bytes: PositiveSize = PositiveSize(1 << 20)  # Maximum size of a body. An event with a longer one is rejected.
    response_codec: NameOrOptions | None = None  # The codec of responses. `null`: the same as `codec`.
    statuses: StatusCodeOptions = msgspec.field(default_factory=StatusCodeOptions)
    # The meaning of status codes, see below.

    def __post_init__(self) -> None:
        super().__post_init__()
        self.method = self.method.upper()
        if not _METHOD.fullmatch(self.method) or self.method == "CONNECT":
            raise ValueError(f"method: {self.method!r} is not a method")
        self.payload()
        if self.response_codec is not None:
            codec(self.response_codec)
        for name, each in self.headers.items():
            try:
                header_template(each)
            except ValueError as error:
                raise ValueError(f"headers: {name}: {error}") from None
        RequestTarget(self)

    def payload(self) -> PayloadOptions:
        """Return the options of a request's body. Raises ValueError if they are not valid."""
        return PayloadOptions(codec=self.codec, postprocessors=self.postprocessors, max_bytes=self.max_bytes)


class RequestTarget:
    """The URL of requests: a fixed server, and a template for path and query."""

    def __init__(self, options: HttpClientOptions) -> None:
        found = _SERVER.fullmatch(options.url)
        if found is None:
            raise ValueError(f"url: {options.url!r}: it must have the form http://HOST:PORT/PATH")
        if "{" in found[1] or "}" in found[1]:
            raise ValueError(f"url: {options.url!r}: placeholders are only allowed in the path and the query")
        self.server = check_url(found[1], options.tls)
        self._base = found[1]
        try:
            self._rest = url_template(found[2].partition("#")[0])
        except ValueError as error:
            raise ValueError(f"url: {error}") from None
        check_url(found[1] + re.sub(r"\{[^{}]*\}|[{}]", "x", found[2]), options.tls)

    def url(self, event: Event) -> URL:
        """Return the URL for an event. Raises RejectError if it lacks a value or has an unsafe one."""
        return URL(self._base + self._rest.fill(event), encoded=True)


class _TooLargeError(Exception):
    """The server does not accept a batch of this size."""


class HttpClient(HttpRequestSink):
    """Sends one request for each event."""

    type = "http_client"
    Options = HttpClientOptions

    def __init__(self, options: HttpClientOptions) -> None:
        self._target = RequestTarget(options)
        super().__init__(options, [self._target.server])
        self._options = options
        self._payload = options.payload()
        self._means = options.statuses.table()
        self._denied = options.statuses.denied()
        self._taken: float | None = None  # loop time of the last accepted event; None: the server denied one since
        self._headers = {name: header_template(value) for name, value in options.headers.items()}
        if not any(name.lower() == "content-type" for name in options.headers):
            self._headers["Content-Type"] = header_template(content_type(options.codec))
        self._waiting: dict[int, deque[Event]] = {}  # unsent events of each write, by id()
        self._decoder = codec(options.codec if options.response_codec is None else options.response_codec)

    async def write(self, events: list[Event]) -> Deferred:
        sending = BackgroundTasks()
        waiting = deque(events)
        self._waiting[id(waiting)] = waiting
        try:
            while waiting:
                began = await self.limit.turn(lambda: waiting)
                if began is None:
                    break
                if not waiting:  # the event was withdrawn
                    self.limit.end()
                    break
                sending.spawn(self._send(waiting.popleft(), began))
            await asyncio.gather(*sending.tasks)
        finally:
            del self._waiting[id(waiting)]
            await cancel(*sending.tasks)
        return DEFERRED

    def withdraw(self, wanted: EventPredicate) -> list[Event]:
        found: list[Event] = []
        for waiting in self._waiting.values():
            left = extract(list(waiting), wanted, found)
            waiting.clear()
            waiting.extend(left)
        if found:
            self.limit.recheck()
        return found

    async def _send(self, event: Event, began: float) -> None:
        try:
            outcomes = await self._outcomes(event, began)
        finally:
            self.limit.end()
        if len(outcomes) == 1:
            self.context.answer(event, *outcomes[0])
        else:
            self.context.answer_items(event, outcomes)

    async def _outcomes(self, event: Event, began: float) -> list[tuple[int, str]]:
        """Return the outcome of an event, or after 413 the outcomes of all members of a batch."""
        try:
            return [await self._outcome(event, began)]
        except _TooLargeError:
            middle = len(event.value) // 2
            found: list[tuple[int, str]] = []
            self.context.count("halved")
            for values in (event.value[:middle], event.value[middle:]):
                part = Event(values, event.meta, event.id, ingest_ns=event.ingest_ns)
                part.token, part.attempt = event.token, event.attempt
                outcomes = await self._outcomes(part, asyncio.get_running_loop().time())
                found += outcomes if len(outcomes) == len(values) else outcomes * len(values)
            return found
        except RejectError as error:
            return [(REJECT, str(error))]
        except RetryError as error:
            self.limit.bad(began, str(error))
            return [(RETRY, str(error))]
        except Exception as error:  # noqa: BLE001 - no error may lose the event
            return [(RETRY, f"{type(error).__name__}: {error}")]

    async def _outcome(self, event: Event, began: float) -> tuple[int, str]:
        url = self._target.url(event)
        headers = {name: each.fill(event) for name, each in self._headers.items()}
        body = None if self._options.method in _WITHOUT_BODY else self._encoded(event)
        if body is None:
            headers.pop("Content-Type", None)
        answer = await self.call(self._options.method, url, body, headers)
        self.context.count(f"status_{answer.status // 100}xx")
        if answer.status in self._denied:
            return self._refused(event, answer, began)
        status = self._means.get(answer.status, REJECT)
        if answer.status == 413 and status == REJECT and len(members(event) or ()) > 1:
            self.limit.good(began)
            raise _TooLargeError
        if status == RETRY:
            self.limit.bad(began, answer.excerpt, retry_after(answer.headers))
        else:
            self.limit.good(began)
        if status == OK:
            self._taken = asyncio.get_running_loop().time()
            self._respond(event, answer)
        return status, "" if status == OK else answer.excerpt

    def _refused(self, event: Event, answer: HttpResponse, began: float) -> tuple[int, str]:
        """Return the outcome of a denied request: either the credentials are wrong, or only this event is denied."""
        taken, self._taken = self._taken, None
        if taken is not None and taken < began and event.attempt >= ATTEMPTS:
            self.limit.good(began)
            return REJECT, f"{answer.excerpt}; other events are accepted"
        reason = f"the server denies access, check auth and headers: {answer.excerpt}"
        self.limit.bad(began, reason, retry_after(answer.headers))
        return RETRY, reason

    def _encoded(self, event: Event) -> bytes:
        """Return the body. Each request has its own writer, so no message stays in a postprocessor."""
        writer = PayloadWriter(self._payload)
        body = b"".join([*writer.encode(event), *writer.end()])
        if len(body) > self._options.max_bytes:
            raise RejectError(f"a body of {len(body)} bytes: max_bytes is {self._options.max_bytes}")
        return body

    def _respond(self, event: Event, answer: HttpResponse) -> None:
        """Send the response as an event. Raises RejectError if it can't be decoded."""
        if not self.context.responds():
            return
        meta = {**event.meta, "status": answer.status, "response_headers": dict(answer.headers)}
        if answer.body is None:
            raise RejectError(f"the response is longer than max_response, {self._options.max_response} bytes")
        try:
            value = self._decoder.decode(answer.body, meta) if answer.body else None
        except ValueError as error:
            raise RejectError(f"the response can't be read: {error}") from error
        response = event.derive(value)
        response.meta = meta
        response.path = f"{self.context.name}.out"
        response.token = None if event.token is None else event.token.fork()
        self.context.respond([response])
