"""Which requests are served, as which user, and how errors become responses.

Rule 1: a request names its user by Basic authentication, or by a token. Without either, it is a request of the default
        user without a password. Requests of this user are possible only if the gateway listens on this machine only,
        and no proxy has forwarded the request, also if they have a password: the server accepts any.
Rule 2: if the gateway listens on this machine only, ``Host`` must be a name of this machine. A foreign name that
        resolves to this machine (DNS rebinding) is rejected.
Rule 3: a browser sends requests to this machine for pages of any site, with credentials that it has stored. A request
        of a page of another origin is rejected unless ``--cors-origin`` permits it.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from tidelog.gateway.counts import DISCONNECTED, OTHER
from tidelog.gateway.errors import PROBLEM, ProblemError, expired, unauthorized, unavailable
from tidelog.gateway.media import EVENTS
from tidelog.gateway.parameters import read_query
from tidelog.gateway.site import GatewayCall, GatewayRoute, GatewaySite
from tidelog.gateway.users import DEFAULT_USER, GatewayUser
from tidelog.operating import cors
from tidelog.operating.hostnames import host_name, is_forwarded, is_local
from tidelog.operating.httpaddress import handling

log = logging.getLogger("tidelog.gateway")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE")
COUNTED: Final = frozenset({*METHODS, "OPTIONS"})


def guard(site: GatewaySite) -> Middleware:
    """Return the middleware that checks where requests come from, and turns errors into responses."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        began, status, timed = monotonic(), DISCONNECTED, False
        try:
            response = await answered(request, handler)
            status, timed = str(response.status), response.content_type != EVENTS
        finally:
            site.counts.ended(*_route(request), status, monotonic() - began if timed else None)
        return response

    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        with handling(request):
            try:
                _check_host(site, request)
                _check_origin(site, request)
                if cors.is_preflight(request) and site.origins:
                    return cors.preflight_response(request, site.origins, METHODS)
                response = await handler(request)
            except ConnectionResetError:  # the client has gone
                raise
            except Exception as error:  # noqa: BLE001 - every error becomes a response
                response = refused(request, error)
            if not response.prepared:
                response.headers.update(site.headers(request))
        return response

    return middleware


def _route(request: web.Request) -> tuple[str, str]:
    """Return the method and the path of the route of a request."""
    resource = request.match_info.route.resource
    return request.method if request.method in COUNTED else OTHER, OTHER if resource is None else resource.canonical


def handler_of(site: GatewaySite, route: GatewayRoute) -> Handler:
    """Return the handler of a route, which authenticates the user and parses the parameters."""

    async def handle(request: web.Request) -> web.StreamResponse:
        query = read_query(request, route.parameters)
        token = _token(request)
        if token is None:
            user = await _authenticated(site, request)
            return await route.handle(GatewayCall(site, request, user, query))
        return await route.handle(await _permitted(site, request, route, query, token))

    return handle


def _token(request: web.Request) -> str | None:
    """Return the token of a request."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.query.get("token")


async def _permitted(
    site: GatewaySite, request: web.Request, route: GatewayRoute, query: dict[str, Any], token: str
) -> GatewayCall:
    """Return the request of a token. Raises ProblemError if the token does not permit it."""
    found = site.tokens.find(token)
    if found is None:
        raise expired()
    call = GatewayCall(site, request, found.user, query, found.expires)
    if not route.by_token or "group" in query or call.key != found.key:
        raise ProblemError(403, "token-scope", "The token permits only GET and HEAD of its stream, without a group.")
    await site.users.verified(found.user)
    return call


async def _authenticated(site: GatewaySite, request: web.Request) -> GatewayUser:
    """Return the user of a request (Rule 1)."""
    header = request.headers.get("Authorization", "")
    scheme, _, credentials = header.partition(" ")
    on_machine = site.local and not is_forwarded(request.headers)
    if scheme.lower() == "basic":
        return await _log_in(site, *_basic(credentials), request, on_machine)
    if header:
        raise unauthorized("unknown-scheme", "Authorization must be Basic, with USER:PASSWORD, or Bearer with a token.")
    if not on_machine:
        raise unauthorized("no-credentials", "Send the name and password of an ACL user (Basic authentication).")
    return await site.users.log_in(DEFAULT_USER, "", "")


async def _log_in(
    site: GatewaySite, name: str, password: str, request: web.Request, on_machine: bool
) -> GatewayUser:  # fmt: skip
    try:
        return await site.users.log_in(name, password, request.remote or "unknown", on_machine)
    except ProblemError as error:
        if error.status in (401, 403):
            log.warning("login of %r from %s: %s", name[:100], request.remote, error)
        raise


def _basic(credentials: str) -> tuple[str, str]:
    try:
        name, colon, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if not colon:
        raise unauthorized("malformed-credentials", "Basic credentials must be base64 of USER:PASSWORD in UTF-8.")
    return name or DEFAULT_USER, password


def _check_host(site: GatewaySite, request: web.Request) -> None:
    if site.local and not is_local(host_name(request.headers.get("Host", ""))):
        text = "The gateway accepts only local names of its machine, such as localhost, in the URL."
        raise ProblemError(403, "foreign-host", text)


def _check_origin(site: GatewaySite, request: web.Request) -> None:
    """Raise ProblemError if a page of another origin without access sent the request (Rule 3)."""
    origin = request.headers.get("Origin")
    if origin is None:
        own = request.headers.get("Sec-Fetch-Site", "none") in ("same-origin", "none")
    else:
        same = origin.partition("://")[2].lower() == request.headers.get("Host", "").lower()
        own = same or origin in site.origins or "*" in site.origins
    if not own:
        text = "Pages of this origin have no access. The option --cors-origin of the gateway permits it."
        raise ProblemError(403, "foreign-origin", text)


def refused(request: web.Request, error: Exception) -> web.Response:
    """Return the response to a request that failed."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        error = ProblemError(405, "wrong-method", f"This resource has the methods {allowed}.", {"Allow": allowed})
    elif isinstance(error, web.HTTPNotFound):
        error = ProblemError(404, "no-such-resource", "There is no such resource. GET /v1/openapi.json lists all.")
    elif isinstance(error, web.HTTPException):
        error = ProblemError(error.status, "http", error.reason)
    elif isinstance(error, TimeoutError):
        error = unavailable("The server did not reply in time.")
    elif not isinstance(error, ProblemError):
        log.error("%s %r: %s", request.method, request.path, error, exc_info=error)
        text = f"Internal error: {type(error).__name__}. The log of the gateway has more."
        error = ProblemError(500, "internal", text)
    response = web.Response(body=error.body + b"\n", status=error.status, content_type=PROBLEM, headers=error.headers)
    if error.headers.get("Connection") == "close":
        response.force_close()
    return response
