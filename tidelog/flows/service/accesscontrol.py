"""Decides which requests the HTTP API serves.

Rule 1: If there is a token, each request to ``/v1`` and ``/metrics`` must contain it, except ``/v1/live`` and
        ``/v1/ready``. Without a token, the API only listens on this machine.
Rule 2: Without a token, ``Host`` must be a local name. A foreign name that resolves to this machine (DNS rebinding) is
        rejected. So are requests that a proxy has forwarded, because other machines could use it, except those of OPEN.
Rule 3: All requests from web pages of another origin are rejected. Browsers send ``Origin`` and ``Sec-Fetch-Site``.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from tidelog.flows.api.errors import FlowError, FlowFileError
from tidelog.flows.service.desired import DesiredStateError
from tidelog.flows.service.host import BusyError, NoFlowError
from tidelog.flows.service.requestbodies import ApiError, wrong
from tidelog.operating.hostnames import host_name, is_forwarded, is_local
from tidelog.operating.httpaddress import handling

log = logging.getLogger("tidelog.flows")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OPEN: Final = frozenset(("/", "/v1/live", "/v1/ready"))  # served without the token; /v1/ready then omits the names
TOKEN: Final = 16  # minimum length of a token
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class AccessControl:
    """Checks the requests of a server: ``AccessControl(token).middleware``."""

    def __init__(self, token: str | None) -> None:
        self._token = token.encode() if token else None

    def known(self, request: web.Request) -> bool:
        """Return whether the request contains the token, or none is required."""
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token)

    def check(self, request: web.Request) -> None:
        """Raise ApiError if the request is not permitted."""
        if self._token is None:
            host = host_name(request.headers.get("Host", ""))
            if not is_local(host):
                raise ApiError(403, f"Host is {host!r}: without a token, only localhost is permitted")
            if request.path not in OPEN and is_forwarded(request.headers):
                raise ApiError(403, "a proxy has forwarded the request: this requires a token (--token-file)")
        origin = request.headers.get("Origin")
        if origin is not None and _authority(origin) != request.headers.get("Host", "").lower():
            raise ApiError(403, f"requests from pages of {origin!r} are not permitted")
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise ApiError(403, "requests from pages of other sites are not permitted")
        if request.path not in OPEN and not self.known(request):
            raise ApiError(401, "a token is required: Authorization: Bearer TOKEN")

    @property
    def middleware(self) -> Middleware:
        """The middleware that checks requests and converts exceptions to error responses."""

        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            with handling(request):
                try:
                    self.check(request)
                    answer = await handler(request)
                except Exception as error:  # noqa: BLE001 - every exception becomes a response
                    answer = _refused(request, error).answer()
            if not answer.prepared:
                for name, value in HEADERS.items():
                    answer.headers.setdefault(name, value)
            return answer

        return middleware


def _refused(request: web.Request, error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, web.HTTPMethodNotAllowed):
        known = ", ".join(sorted(error.allowed_methods))
        return ApiError(405, f"{request.path} has no {request.method}: it has {known}")
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return ApiError(413, "the body is too large")
    if isinstance(error, web.HTTPNotFound):
        return ApiError(404, f"there is no route {request.path}; see /openapi.json")
    if isinstance(error, web.HTTPException):
        return ApiError(error.status, error.reason)
    if isinstance(error, FlowFileError):
        return wrong(error)
    for kind, code in ((NoFlowError, 404), (BusyError, 409), (DesiredStateError, 503), (FlowError, 422)):
        if isinstance(error, kind):
            return ApiError(code, str(error))
    if isinstance(error, (ConnectionError, asyncio.TimeoutError)):
        return ApiError(503, str(error) or type(error).__name__)
    log.error("%s %s: %s", request.method, request.path, error, exc_info=error)
    return ApiError(500, f"internal error: {type(error).__name__}; see the log")


def _authority(origin: str) -> str:
    """Return the host:port of an origin, in the form of ``Host``."""
    return origin.partition("://")[2].lower()
