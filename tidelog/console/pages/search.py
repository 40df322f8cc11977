"""Searches a range of a stream for a text, with progress. A browser that goes away ends its search.

Rule 1: a session has at most SEARCHES searches in progress, and the console TOTAL. Further ones get 429.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from aiohttp import web

from tidelog.client.entries import Entry
from tidelog.console import live, payloads
from tidelog.console.errors import PageError, UnavailableError
from tidelog.console.keynames import in_url, key_of
from tidelog.console.pages.site import ConsoleSite, session_of, values_hidden
from tidelog.console.pages.stream import bound_of
from tidelog.console.records import TopicDecoder
from tidelog.console.search import EntryFilter, bounds, count, search
from tidelog.console.sessions import ConsoleSession
from tidelog.console.streams import StreamReader
from tidelog.transport.asyncconnection import LostError

SEARCHES: Final = 2
TOTAL: Final = 10
LONGEST: Final = 1000  # characters of the text


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = SearchPages(site)
    return [web.get("/streams/search", pages.show), web.get("/streams/search/events", pages.events)]


class SearchPages:
    """The handlers. ``words``: the text; ``field``, ``from``, ``to``, ``order``, ``case``: how it is searched."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site

    async def show(self, request: web.Request) -> web.Response:
        """Show the form. With ``words``, the page starts the search."""
        key = key_of(request)
        reader = await StreamReader.of(session_of(request).connection)
        info = await reader.info(key)
        return self._site.page(request, "search.html", key=key, info=info, given=request.query)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Search and send progress and hits. ``following``: the bound from which an earlier search is continued."""
        session, key, given = session_of(request), key_of(request), request.query
        words = given.get("words", "")
        if not words or len(words) > LONGEST:
            raise PageError(400, f"Enter a text of 1 to {LONGEST} characters.")
        reader = await StreamReader.of(session.connection)
        newest_first = given.get("order", "newest") == "newest"
        low, high = await bounds(reader, key, given.get("from", ""), given.get("to", ""))
        if following := given.get("following", ""):
            bound = bound_of(following)
            low, high = (low, bound) if newest_first else (bound, high)
        matcher = EntryFilter(words, given.get("field", ""), "case" in given)
        total = sum(each.searches for each in self._site.sessions)
        if session.searches >= SEARCHES or total >= TOTAL:
            limit = f"of a session ({SEARCHES})" if session.searches >= SEARCHES else f"of the console ({TOTAL})"
            raise PageError(429, f"Other searches are in progress, up to the limit {limit}. Stop one of them.")
        session.searches += 1
        try:
            found = self._found(session, reader, key, (low, high), matcher, newest_first, values_hidden(request))
            return await live.stream(request, self._site.sessions, session, found)
        finally:
            session.searches -= 1

    async def _found(
        self, session: ConsoleSession, reader: StreamReader, key: bytes, within: tuple[str, str],
        matcher: EntryFilter, newest_first: bool, hidden: bool,
    ) -> AsyncIterator[live.Event]:  # fmt: skip
        decoder = await TopicDecoder.of(session.connection, key)
        short = decoder.short if decoder else payloads.short

        def matches(entry: Entry) -> bool:
            if matcher.matches(entry):
                return True
            record = decoder.searchable(entry) if decoder else None
            return record is not None and matcher.matches(record)

        link = await session.connection.open_another()
        try:
            total = await count(reader, link, key, *within)
            async for step in search(reader, link, key, *within, matches, newest_first):
                rows = self._site.renderer.part(
                    "stream_rows.html", entries=step.hits, hidden=hidden, short=short, id_text=reader.id_text,
                    key_url=in_url(key),
                )  # fmt: skip
                event: dict[str, Any] = {
                    "rows": rows, "hits": len(step.hits), "examined": step.examined, "total": total,
                    "at": step.at.ms if step.at else None, "following": step.following,
                }  # fmt: skip
                yield ("step", event) if not step.ended else ("done", event | {"why": step.ended})
        except PageError as error:
            yield "refused", str(error)
        except LostError as error:
            raise UnavailableError(str(error)) from None
        finally:
            link.close()
