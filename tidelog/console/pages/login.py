"""Login and logout.

Rule 1: a login without a password is possible only if the console listens on this machine only, and no proxy has
        forwarded the request. Other machines could use a server whose default user has no password otherwise. Such a
        server accepts any password for this user, so a login with a password is checked, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from tidelog.console.connection import DEFAULT_USER
from tidelog.console.errors import LoginError, PageError, UnavailableError
from tidelog.console.pages.site import ConsoleSite
from tidelog.console.security import COOKIE, SESSION
from tidelog.console.sessions import LIFETIME, UNPROTECTED
from tidelog.operating.hostnames import is_forwarded

LONGEST_NAME: Final = 256  # characters


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = LoginPages(site)
    return [
        web.get("/login", pages.show),
        web.post("/login", pages.log_in),
        web.post("/logout", pages.log_out),
    ]


class LoginPages:
    """The handlers."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site

    async def show(self, request: web.Request) -> web.Response:
        if SESSION in request:
            raise web.HTTPSeeOther(self._site.home)
        return self._form(request, "", DEFAULT_USER, 200)

    async def log_in(self, request: web.Request) -> web.Response:
        site, given = self._site, await request.post()
        user, password = str(given.get("user", "")).strip() or DEFAULT_USER, str(given.get("password", ""))
        address = request.remote or ""
        if len(user) > LONGEST_NAME:  # a line of the audit log has the name
            raise PageError(400, f"The name of the user has more than {LONGEST_NAME} characters.")
        try:
            on_machine = site.local and not is_forwarded(request.headers)
            if not password and not on_machine:
                raise LoginError(UNPROTECTED)
            session = await site.sessions.log_in(user, password, address, on_machine)
        except LoginError as error:
            site.audit.write(user, address, "login", result=str(error))
            return self._form(request, str(error), user, 403)
        except UnavailableError as error:
            return self._form(request, str(error), user, 503)
        if SESSION in request:
            site.sessions.end(request[SESSION])
        site.audit.write(user, address, "login")
        if site.recorder is not None:
            await site.recorder.record(session)
        answer = web.Response(status=303, headers={"Location": site.home})
        answer.set_cookie(
            COOKIE, session.token, max_age=int(LIFETIME), path="/", httponly=True, samesite="Strict", secure=site.tls
        )  # fmt: skip
        return answer

    async def log_out(self, request: web.Request) -> web.Response:
        session = request[SESSION]
        self._site.sessions.end(session)
        self._site.audit.write(session.user, session.address, "logout")
        answer = web.Response(status=303, headers={"Location": "/login"})
        answer.del_cookie(COOKIE, path="/")
        return answer

    def _form(self, request: web.Request, problem: str, user: str, status: int) -> web.Response:
        return self._site.renderer.page(
            request, "login.html", None, status, problem=problem, user=user, sample=self._site.home != "/"
        )  # fmt: skip
