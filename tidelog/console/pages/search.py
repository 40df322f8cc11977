"""Searches a range of a stream, or of all partitions of a topic, for a text, with progress.

A browser that goes away ends its search.

Rule 1: a session has at most SEARCHES searches in progress, and the console TOTAL. Further ones get 429.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from tidelog.client.entries import Entry
from tidelog.console import live, payloads
from tidelog.console.errors import PageError, UnavailableError
from tidelog.console.keynames import in_url, key_of
from tidelog.console.pages.site import ConsoleSite, session_of, values_hidden
from tidelog.console.pages.stream import bound_of
from tidelog.console.records import TopicDecoder
from tidelog.console.search import EntryFilter, bounds, count, search_all
from tidelog.console.sessions import ConsoleSession
from tidelog.console.streams import StreamReader
from tidelog.console.topics import partitions_of, settings_of
from tidelog.transport.asyncconnection import LostError

SEARCHES: Final = 2
TOTAL: Final = 10
LONGEST: Final = 1000  # characters of the text


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = SearchPages(site)
    return [web.get("/streams/search", pages.show), web.get("/streams/search/events", pages.events)]


@dataclass(frozen=True)
class SearchedStreams:
    """The streams of a search: one, or the partitions of a topic."""

    keys: Sequence[bytes]
    decoder: TopicDecoder | None
    topic: str = ""  # empty: one stream


class SearchPages:
    """The handlers. ``words``: the text; ``field``, ``from``, ``to``, ``order``, ``case``: how it is searched.

    ``key`` is the stream, or ``topic`` a topic, whose partitions are searched one after the other.
    """

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site

    async def show(self, request: web.Request) -> web.Response:
        """Show the form. With ``words``, the page starts the search."""
        connection = session_of(request).connection
        searched = await self._searched(request)
        total = None
        if not searched.topic:
            total = (await (await StreamReader.of(connection)).info(searched.keys[0])).length
        return self._site.page(
            request, "search.html", key=searched.keys[0], topic=searched.topic, total=total, given=request.query,
            partitions=len(searched.keys),
        )  # fmt: skip

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Search and send progress and hits. ``following``: where an earlier search has ended."""
        session, given = session_of(request), request.query
        searched = await self._searched(request)
        words = given.get("words", "")
        if not words or len(words) > LONGEST:
            raise PageError(400, f"Enter a text of 1 to {LONGEST} characters.")
        reader = await StreamReader.of(session.connection)
        within = await bounds(reader, searched.keys[0], given.get("from", ""), given.get("to", ""))
        found = self._found(
            session, reader, searched, within, EntryFilter(words, given.get("field", ""), "case" in given),
            given.get("order", "newest") == "newest", _following(given.get("following", "")), values_hidden(request),
        )  # fmt: skip
        total = sum(each.searches for each in self._site.sessions)
        if session.searches >= SEARCHES or total >= TOTAL:
            limit = f"of a session ({SEARCHES})" if session.searches >= SEARCHES else f"of the console ({TOTAL})"
            raise PageError(429, f"Other searches are in progress, up to the limit {limit}. Stop one of them.")
        session.searches += 1
        try:
            return await live.stream(request, self._site.sessions, session, found)
        finally:
            session.searches -= 1

    async def _searched(self, request: web.Request) -> SearchedStreams:
        connection, topic = session_of(request).connection, request.query.get("topic", "")
        if not topic:
            key = key_of(request)
            return SearchedStreams([key], await TopicDecoder.of(connection, key))
        settings = await settings_of(connection, topic)
        return SearchedStreams(partitions_of(topic, settings), TopicDecoder(topic, settings), topic)

    async def _found(
        self, session: ConsoleSession, reader: StreamReader, searched: SearchedStreams, within: tuple[str, str],
        matcher: EntryFilter, newest_first: bool, following: tuple[int, str], hidden: bool,
    ) -> AsyncIterator[live.Event]:  # fmt: skip
        decoder, keys = searched.decoder, searched.keys

        def matches(entry: Entry) -> bool:
            if matcher.matches(entry):
                return True
            record = decoder.with_fields(entry) if decoder else None
            return record is not None and matcher.matches(record)

        link = await session.connection.open_another()
        try:
            total = await count(reader, link, keys[following[0] :], *within)
            async for at, step in search_all(reader, link, keys, within, matches, newest_first, following):
                rows = self._site.renderer.part(
                    "stream_rows.html", entries=step.hits, hidden=hidden, id_text=reader.id_text,
                    short=decoder.short if decoder else payloads.short, key_url=in_url(keys[at]),
                    stream=keys[at] if searched.topic else b"",
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


def _following(words: str) -> tuple[int, str]:
    """Return where an earlier search has ended: the index of a stream, and a bound in it. Raises PageError."""
    if not words:
        return 0, ""
    index, _, bound = words.partition(" ")
    if not index.isascii() or not index.isdecimal() or len(index) > 6:
        raise PageError(400, "following must be a stream and a bound.")
    return int(index), bound_of(bound) if bound else ""
