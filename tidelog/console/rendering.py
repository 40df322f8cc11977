"""Templates, and how they display numbers, sizes, times and bytes.

Rule 1: autoescape is on in all templates, and no template turns it off. What the server sends is displayed as text.
Rule 2: a request of htmx gets a part of a page (``is_fragment``); other requests get the whole page.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any, Final

import jinja2
from aiohttp import web

from tidelog.console.assets import Assets
from tidelog.console.infotext import text
from tidelog.console.keynames import in_url
from tidelog.console.sessions import ConsoleSession
from tidelog.operating.tables import counted, duration, size, utc

FOLDER: Final = Path(__file__).with_name("templates")
THEMES: Final = ("auto", "light", "dark")
THEME_COOKIE: Final = "tidelog_console_theme"
TITLES: Final = {403: "Not permitted", 404: "Not found", 503: "The server does not answer"}


@dataclass(frozen=True)
class NavigationItem:
    """A page in the navigation."""

    title: str
    path: str
    key: str  # the letter that opens it, after g


NAVIGATION: Final = (
    NavigationItem("Overview", "/", "o"),
    NavigationItem("Streams", "/streams", "s"),
    NavigationItem("Topics", "/topics", "t"),
    NavigationItem("Groups", "/groups", "g"),
    NavigationItem("Programs", "/programs", "p"),
    NavigationItem("Dead letters", "/deadletters", "d"),
)


def is_fragment(request: web.Request) -> bool:
    """Return whether htmx sent the request, which expects a part of a page."""
    return request.headers.get("HX-Request") == "true"


class Renderer:
    """Renders templates. server: the server's address, without user and password. first: pages before NAVIGATION."""

    def __init__(self, assets: Assets, server: str, first: tuple[NavigationItem, ...] = ()) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, undefined=jinja2.StrictUndefined,
            trim_blocks=True, lstrip_blocks=True, auto_reload=False,
        )  # fmt: skip
        filters: dict[str, Any] = {
            "size": lambda value: size(int(value)), "number": number, "ms": lambda value: duration(int(value)),
            "utc": lambda ms: utc(int(ms)), "age": age, "text": text, "url": in_url, "clock": clock, "counted": counted,
        }  # fmt: skip
        self._environment.filters |= filters
        self.assets = assets
        self._environment.globals |= {"asset": assets.url, "server": server, "navigation": (*first, *NAVIGATION)}

    def part(self, template: str, **values: Any) -> str:
        """Return a template as text. Surrogates, which JSON strings can have and UTF-8 can't, are escaped."""
        body = self._environment.get_template(template).render(values)
        return body.encode("utf-8", "backslashreplace").decode()

    def page(
        self, request: web.Request, template: str, session: ConsoleSession | None, status: int = 200, **values: Any
    ) -> web.Response:
        """Return a page. session: of the user, whose name and navigation are displayed."""
        theme = request.cookies.get(THEME_COOKIE, "auto")
        body = self.part(
            template, session=session, theme=theme if theme in THEMES else "auto", path=request.path, **values
        )  # fmt: skip
        return web.Response(text=body, content_type="text/html", status=status)

    def problem(
        self, request: web.Request, status: int, message: str, session: ConsoleSession | None
    ) -> web.Response:
        """Return an error, as a page, as a part of one, or as text."""
        title = TITLES.get(status, "The request failed")
        if is_fragment(request):
            body = self.part("problem_part.html", title=title, message=message)
            return web.Response(text=body, content_type="text/html", status=status)
        if "text/html" in request.headers.get("Accept", ""):
            return self.page(request, "problem.html", session, status, title=title, message=message)
        return web.Response(text=message, status=status)


def number(value: float) -> str:
    """Return a number with separators between thousands."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def clock(ms: int) -> str:
    """Return a time in ms since 1970 with its milliseconds."""
    return f"{utc(ms - ms % 1000).removesuffix(' UTC')}.{ms % 1000:03}" if ms < 10**14 else utc(ms)


def age(ms: int) -> str:
    """Return the time since a time in ms since 1970."""
    since = int(time() * 1000) - int(ms)
    return f"{duration(since)} ago" if since > 0 else "now"
