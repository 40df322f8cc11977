"""Which requests are served, and the headers of all responses.

Rule 1: every request needs a session, except those to OPEN. Without one, a page redirects to the login, a stream of
        events gets the event ``ended``, and other requests get 401.
Rule 2: a request that changes something (POST) must come from a page of this console: ``Origin`` and ``Sec-Fetch-Site``
        are checked, and it needs the token of its session, in the header ``X-CSRF-Token`` or the form field ``csrf``.
Rule 3: if the console listens on this machine only, ``Host`` must be a name of this machine. A foreign name that
        resolves to this machine (DNS rebinding) is rejected.
Rule 4: a request that changes something is completed if the browser goes away. The audit log would lack it otherwise.
Rule 5: no response permits inline scripts, inline styles, or other hosts.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from tidelog.console.errors import PageError, SessionEndedError, UnavailableError
from tidelog.console.rendering import Renderer, is_fragment
from tidelog.console.sessions import ConsoleSession, ConsoleSessions
from tidelog.operating.hostnames import host_name, is_local
from tidelog.operating.httpaddress import handling
from tidelog.operating.tasks import BackgroundTasks

log = logging.getLogger("tidelog.console")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
BODY_WITHIN: Final = 30.0  # s for the body of a request
MULTIPART: Final = "multipart/form-data"
COOKIE: Final = "tidelog_console"
SESSION: Final = web.RequestKey("session", ConsoleSession)
OPEN: Final = ("/login", "/static/")
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send "Origin: null" with a form
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def guard(sessions: ConsoleSessions, renderer: Renderer, local: bool) -> Middleware:
    """Return the middleware that checks requests and turns errors into pages. local: only this machine can connect."""

    changes = BackgroundTasks()

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            with handling(request):
                answer = await _checked(request, handler, sessions, local, changes)
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            answer = _refused(request, error, renderer)
        if not answer.prepared:
            for name, value in HEADERS.items():
                answer.headers.setdefault(name, value)
        return answer

    return middleware


async def _checked(
    request: web.Request, handler: Handler, sessions: ConsoleSessions, local: bool, changes: BackgroundTasks
) -> web.StreamResponse:
    if local and not is_local(host_name(request.headers.get("Host", ""))):
        raise PageError(403, "The console accepts only local names of its machine, such as localhost, in the address.")
    session = sessions.find(request.cookies.get(COOKIE, ""))
    if session is not None:
        request[SESSION] = session
    if request.method not in ("GET", "HEAD"):
        check_origin(request)
    if session is None and not request.path.startswith(OPEN):
        raise SessionEndedError
    if request.method not in ("GET", "HEAD"):
        await _read_form(request)
        if session is not None:
            await _check_token(request, session)
    try:
        if request.method in ("GET", "HEAD"):
            return await handler(request)
        return await asyncio.shield(changes.spawn(_handled(request, handler)))
    except SessionEndedError:
        if session is not None:
            sessions.end(session)
        raise


async def _handled(request: web.Request, handler: Handler) -> web.StreamResponse:
    return await handler(request)


def check_origin(request: web.Request) -> None:
    """Raise PageError if a page of another origin sent the request."""
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2].lower() != request.headers.get("Host", "").lower():
        raise PageError(403, "Requests from pages of other origins are not permitted.")
    if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        raise PageError(403, "Requests from pages of other sites are not permitted.")


async def _read_form(request: web.Request) -> None:
    """Read the body for ``request.post`` of the handlers. Raises PageError if that fails or takes too long."""
    if request.content_type == MULTIPART:  # no form of the console has files
        raise PageError(415, f"Forms must be application/x-www-form-urlencoded, not {MULTIPART}.")
    try:
        async with asyncio.timeout(BODY_WITHIN):
            await request.post()
    except TimeoutError:
        raise PageError(408, f"The request was not complete after {BODY_WITHIN:g} seconds.") from None
    except (LookupError, ValueError) as error:  # an unknown character set, or bytes that are not of it
        raise PageError(400, f"The form can't be read: {error}") from None


async def _check_token(request: web.Request, session: ConsoleSession) -> None:
    given = request.headers.get("X-CSRF-Token")
    if given is None:
        given = str((await request.post()).get("csrf", ""))
    if not hmac.compare_digest(given.encode("utf-8", "replace"), session.csrf.encode()):
        raise PageError(403, "The form is from an earlier login. Reload the page and try again.")


def _refused(request: web.Request, error: Exception, renderer: Renderer) -> web.StreamResponse:
    def problem(status: int, text: str) -> web.Response:
        return renderer.problem(request, status, text, request.get(SESSION))

    if isinstance(error, SessionEndedError):
        return _to_login(request)
    if isinstance(error, web.HTTPRedirection):
        return web.Response(status=error.status, headers={"Location": error.headers["Location"]})
    if isinstance(error, PageError):
        return problem(error.status, str(error))
    if isinstance(error, UnavailableError):
        return problem(503, str(error))
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return problem(413, "The request is too large.")
    if isinstance(error, web.HTTPNotFound):
        return problem(404, "There is no such page.")
    if isinstance(error, web.HTTPException):
        return problem(error.status, error.reason)
    if isinstance(error, asyncio.TimeoutError):
        return problem(503, "The server did not reply in time.")
    log.error("%s %s: %s", request.method, request.path, error, exc_info=error)
    return problem(500, f"Internal error: {type(error).__name__}. The log of the console has more.")


def _to_login(request: web.Request) -> web.Response:
    if is_fragment(request):  # htmx replaces the whole page
        return web.Response(status=200, headers={"HX-Redirect": "/login"})
    if "text/event-stream" in request.headers.get("Accept", ""):
        return web.Response(text="event: ended\ndata: {}\n\n", content_type="text/event-stream")
    if request.method in ("GET", "HEAD") and "text/html" in request.headers.get("Accept", ""):
        return web.Response(status=303, headers={"Location": "/login"})
    return web.Response(status=401, text="The session has ended.")
