"""Delayed entries of a stream, and delayed records of a topic: listed by due time, and cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from time import time

from aiohttp import web

from tidelog.client import calls
from tidelog.client.entries import Entry, StreamId
from tidelog.console import delayedentries, payloads, topics
from tidelog.console.audit import DONE
from tidelog.console.errors import PageError
from tidelog.console.infotext import text
from tidelog.console.keynames import key_of
from tidelog.console.pages.site import ConsoleSite, refusal, session_of, values_hidden
from tidelog.console.records import TopicDecoder


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = DelayedPages(site)
    return [
        web.get("/streams/delayed", pages.of_stream),
        web.get("/topics/delayed", pages.of_topic),
        web.post("/streams/delayed/cancel", pages.cancel),
    ]


class DelayedPages:
    """The handlers."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site

    async def of_stream(self, request: web.Request) -> web.Response:
        """Show a page of the delayed entries of a stream. ``cursor``: that of TDELAY LIST."""
        key, connection = key_of(request), session_of(request).connection
        rows, cursor, total = await delayedentries.page(connection, key, request.query.get("cursor", "0"))
        decoder = await TopicDecoder.of(connection, key)
        return self._page(
            request, decoder, rows=rows, key=key, topic=decoder.topic if decoder else "", cursor=cursor, total=total,
            counts={}, first="cursor" not in request.query,
        )  # fmt: skip

    async def of_topic(self, request: web.Request) -> web.Response:
        """Show the records of a topic that are due first."""
        name, connection = request.query.get("name", ""), session_of(request).connection
        settings = await topics.settings_of(connection, name)
        rows, counts = await delayedentries.next_due(connection, topics.partitions_of(name, settings))
        return self._page(
            request, TopicDecoder(name, settings), rows=rows, key=b"", topic=name, cursor="0",
            total=sum(counts.values()), counts=counts, first=True,
        )  # fmt: skip

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel the delayed entry with a token, which ``token`` has in hex."""
        key, session = key_of(request), session_of(request)
        try:
            token = bytes.fromhex(str((await request.post()).get("token", "")))
        except ValueError:
            token = b""
        if not token:
            raise PageError(400, "The form names no delayed entry.")
        reply = await self._site.change(
            session, "cancel delayed", text(key), calls.tdelay_cancel(key, token), token=text(token)
        )  # fmt: skip
        problem = refusal(reply)
        if not problem and not reply:
            problem = "There is no delayed entry with this token: it has joined the stream, or was cancelled."
        self._site.audit.write(
            session.user, session.address, "cancel delayed", text(key), problem or DONE, token=text(token)
        )  # fmt: skip
        return self._site.part("delayed_done.html", problem=problem)

    def _page(
        self, request: web.Request, decoder: TopicDecoder | None, rows: Sequence[delayedentries.DelayedEntry],
        **values: object,
    ) -> web.Response:  # fmt: skip
        short = decoder.short if decoder else payloads.short
        shown = [(each, short(Entry(StreamId(0), each.entry.flat))) for each in rows]
        return self._site.page(
            request, "delayed.html", rows=shown, hidden=values_hidden(request), now=int(time() * 1000), **values
        )  # fmt: skip
