"""The list of streams.

Rule 1: the keyspace of a large server is scanned only if the user asks for it, in steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import Any

from aiohttp import web

from tidelog.console.keynames import in_url, key_count, names, number_of, pattern_of, query_bytes, scan
from tidelog.console.pages.site import ConsoleSite, session_of
from tidelog.console.streams import StreamReader


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = StreamListPages(site)
    return [web.get("/streams", pages.show), web.get("/streams/rows", pages.rows)]


class StreamListPages:
    """The handlers."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site

    async def show(self, request: web.Request) -> web.Response:
        """Show the list. ``pattern``: what the user searches for; without it, all streams of a small server."""
        connection = session_of(request).connection
        keys = await key_count(connection)
        words = query_bytes(request, "pattern")
        asked = "pattern" in request.query or keys.small
        values = {"total": keys.total, "problems": keys.problems}
        if asked:
            values = await self._step(request, words, b"0", keys.total)
        return self._site.page(request, "streams.html", words=words, asked=asked, **values)

    async def rows(self, request: web.Request) -> web.Response:
        """Return the next step of a search as rows."""
        total = (await key_count(session_of(request).connection)).total
        step = await self._step(request, query_bytes(request, "pattern"), query_bytes(request, "cursor") or b"0", total)
        return self._site.part("streams_rows.html", **step)

    async def _step(self, request: web.Request, words: bytes, cursor: bytes, total: int | None) -> dict[str, Any]:
        connection = session_of(request).connection
        found = await scan(connection, pattern_of(words), cursor)
        before = number_of(request, "examined")
        reader = await StreamReader.of(connection)
        rows = await reader.summaries(names(found.keys), int(time() * 1000))
        examined = before + found.examined if total is None else min(total, before + found.examined)
        complete = found.cursor == b"0"
        following = f"pattern={in_url(words)}&cursor={in_url(found.cursor)}&examined={examined}"
        return {
            "rows": rows, "complete": complete, "examined": total if complete and total is not None else examined,
            "total": total, "following": following, "tidelog": reader.tidelog, "id_text": reader.id_text,
            "problems": found.problems, "several_groups": connection.several_groups, "group_of": connection.group_of,
        }  # fmt: skip
