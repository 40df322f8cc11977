"""``ConsoleSite``: what the handlers of all pages share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tidelog.console.audit import AuditLog
from tidelog.console.errors import UnavailableError
from tidelog.console.recorder import HistoryRecorder
from tidelog.console.rendering import Renderer
from tidelog.console.security import SESSION
from tidelog.console.sessions import ConsoleSession, ConsoleSessions
from tidelog.transport.call import Call
from tidelog.transport.errors import message_of


@dataclass(frozen=True)
class ConsoleSite:
    """The parts of one console."""

    sessions: ConsoleSessions
    renderer: Renderer
    audit: AuditLog
    recorder: HistoryRecorder | None  # None: the samples of the plots are not recorded
    local: bool  # only this machine can connect
    tls: bool
    url: str  # of the server, without user and password, for code that users copy
    cli_options: str  # of redis-cli, for the same purpose
    home: str  # the path of the page after the login

    def page(self, request: web.Request, template: str, **values: Any) -> web.Response:
        """Return a page for the logged-in user."""
        return self.renderer.page(request, template, request[SESSION], **values)

    def part(self, template: str, **values: Any) -> web.Response:
        """Return a part of a page, for htmx."""
        return web.Response(text=self.renderer.part(template, **values), content_type="text/html")


    async def change(self, session: ConsoleSession, action: str, target: str, call: Call[Any], **detail: Any) -> Any:
        """Send a call that changes something, and return its result or error. The caller writes the audit log then.

        Raises UnavailableError, of which the audit log has a line: the server may have executed the call.
        """
        try:
            (reply,) = await session.connection.change(call)
        except UnavailableError as error:
            self.audit.write(session.user, session.address, action, target, str(error), **detail)
            raise
        return reply


def refusal(reply: object) -> str:
    """Return the error reply of a call as text, empty if the call succeeded."""
    return message_of(reply) if isinstance(reply, Exception) else ""


def values_hidden(request: web.Request) -> bool:
    """Return whether the user has hidden the values of entries."""
    return request.cookies.get("tidelog_console_values") == "hidden"


def session_of(request: web.Request) -> ConsoleSession:
    return request[SESSION]
