"""``otlp``: receives logs, metrics, and traces of OpenTelemetry over HTTP.

A log record, a data point, or a span is an event.

It is an ``http_server`` with the requests and responses of OTLP (``messages``). A request is answered when its events
are settled: with the number of rejected events, or with a status for which exporters send it again, if an event must be
retried or the flow is paused.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Literal

import msgspec
from aiohttp import web
from msgspec import field

from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import REJECT
from tidelog.flows.connectors.http.listening import error_response
from tidelog.flows.connectors.http.server import HttpServer, HttpServerOptions, PendingRequest
from tidelog.flows.connectors.otlp.messages import FORMATS, PROTOBUF, SIGNALS, decoded, failure, signal_of, success
from tidelog.options.limits import Port
from tidelog.options.units import Size


class OtlpOptions(HttpServerOptions, kw_only=True):
    """Options of ``otlp``."""

    port: Port = 4318  # The port to listen on. `0`: a free port.
    path: str = "/*"  # The path of requests without `/v1/logs`, `/v1/metrics`, and `/v1/traces`, such as `/otlp/*`.
    methods: list[str] = field(default_factory=lambda: ["POST"])  # Always `["POST"]`.
    answer: Literal["settled"] = "settled"  # Always `settled`: a request is answered when its events are settled.
    codec: Literal["json"] = "json"  # Has no effect: the formats are those of OTLP.
    max_body: Size = Size(4 << 20)  # Maximum size of a request, compressed or decompressed. Longer ones get 413.

    fixed: ClassVar[tuple[str, ...]] = ("preprocessors", "postprocessors")

    def __post_init__(self) -> None:
        super().__post_init__()
        for each in self.fixed:
            if getattr(self, each):
                raise ValueError(f"{each}: omit it, because OTLP defines the formats")
        if self.methods != ["POST"]:
            raise ValueError("methods: omit it, because OTLP uses POST")
        if not self.path.endswith("/*"):
            raise ValueError(f"path is {self.path!r}: it must end with /*, because each kind of data has its own path")


class OtlpSource(HttpServer):
    """Sets ``signal`` (``logs``, ``metrics``, or ``traces``) in meta, and the entries that ``http_server`` sets."""

    type = "otlp"
    Options: ClassVar[Any] = OtlpOptions

    @classmethod
    def option_errors(cls, options: HttpServerOptions, *, source: bool) -> list[str]:
        return super().option_errors(options, source=source) if source else ["otlp is a source, and not a sink"]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle a request. Its response has the same format."""
        response = await super().handle(request)
        if isinstance(response, web.Response) and request.method == "POST":
            form = _format(request) or PROTOBUF
            signal = signal_of(request.path)
            if response.status >= 400:
                error = msgspec.json.decode(response.body or b"{}")  # type: ignore[arg-type] # it is bytes
                response.body = failure(str(error.get("error", "")), form)
            elif signal is not None and not response.body:
                response.set_status(200)
                response.body = success(signal, form)
            response.content_type = form
        return response

    def _refused(self, request: web.BaseRequest) -> web.Response | None:
        refused = super()._refused(request)
        if refused is not None:
            return refused
        if signal_of(request.path) is None:
            return error_response(404, f"there is no such path: use {', '.join(SIGNALS)}")
        if _format(request) is None:
            return error_response(415, f"Content-Type must be {' or '.join(FORMATS)}")
        return None

    async def _answer(self, waiting: PendingRequest, request: web.BaseRequest, body: bytes) -> web.Response:
        signal, form = signal_of(request.path), _format(request)
        response = await super()._answer(waiting, request, body)
        if signal is not None and form is not None and waiting.worst[0] == REJECT and not waiting.left:
            reason = waiting.worst[1] if self._options.reasons else ""
            body = success(signal, form, waiting.rejected, reason or "the flow has rejected them")
            return web.Response(body=body)
        return response

    async def _events(self, body: bytes, meta: dict[str, Any]) -> list[Event]:
        """Decode a request in a thread: one of 4 MB takes longer than the event loop may be blocked."""
        signal = signal_of(meta["path"])
        form = str(meta["headers"].get("content-type", "")).partition(";")[0].strip().lower()
        assert signal is not None  # noqa: S101 - ``_refused`` has checked it
        most = self._options.max_messages

        def decode() -> list[dict[str, Any]]:
            message = decoded(signal, body, form)
            return [{}] * (most + 1) if signal.count(message) > most else list(signal.values(message))

        return [Event(each, {**meta, "signal": signal.name}) for each in await asyncio.to_thread(decode)]


def _format(request: web.BaseRequest) -> str | None:
    """Return the format of a request. None: it is unknown."""
    given = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return given if given in FORMATS else None

