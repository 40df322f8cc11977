"""One stream: browse by time and ID, follow, view an entry, append one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from time import time
from typing import Any, Final

from aiohttp import web

from tidelog.client import calls
from tidelog.client.entries import Entry, StreamId
from tidelog.console import live, payloads
from tidelog.console.audit import DONE
from tidelog.console.compared import compared
from tidelog.console.errors import PageError
from tidelog.console.infotext import text
from tidelog.console.keynames import in_url, key_of, query_bytes
from tidelog.console.pages.site import ConsoleSite, refusal, session_of, values_hidden
from tidelog.console.records import LARGEST, TopicDecoder
from tidelog.console.sessions import ConsoleSession
from tidelog.console.streams import StreamReader
from tidelog.topics.retention import policy_words
from tidelog.transport.call import Call

FOLLOWED: Final = 100  # new entries shown at once; older ones are counted
FOLLOW_EVERY: Final = 0.5  # s
SHORTEST: Final = 60_000  # ms that the plot of entries over time shows, at least
SPAN_DIGITS: Final = 12  # of ``span``, at most
FORM_FIELDS: Final = 100  # fields of an entry that is appended in a form
VIEWS: Final = ("record", "fields", "json", "hex", "compare", "code")


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = StreamPages(site)
    return [
        web.get("/streams/stream", pages.show),
        web.get("/streams/entry", pages.entry),
        web.get("/streams/density", pages.density),
        web.get("/streams/follow", pages.follow),
        web.post("/streams/append", pages.append),
    ]


def id_of(request: web.Request, name: str) -> StreamId:
    """Return an ID in the address. Raises PageError."""
    try:
        return StreamId.parse(request.query.get(name, ""))
    except ValueError as error:
        raise PageError(400, str(error)) from None


def bound_of(text: str) -> str:
    """Return ``before`` of an address: an ID, or ``(`` and an ID. Raises PageError."""
    try:
        StreamId.parse(text.removeprefix("("))
    except ValueError as error:
        raise PageError(400, str(error)) from None
    return text


class StreamPages:
    """The handlers."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site

    async def show(self, request: web.Request) -> web.Response:
        """Show a page of entries: the newest ones, or those up to ``before``, after ``after``, or at ``at``."""
        key = key_of(request)
        reader = await StreamReader.of(session_of(request).connection)
        before, problem = "+", ""
        if at := request.query.get("at", ""):
            try:
                before = await reader.position(key, at)
            except PageError as error:
                problem = str(error)
        elif given := request.query.get("before", ""):
            before = bound_of(given)
        after = id_of(request, "after") if "after" in request.query and not at else None
        info = await reader.info(key)
        page = await reader.page(key, before, after)
        if not page.entries and info.length and after is None:  # before the first entry
            page = await reader.page(key, str(info.first))
        decoder = await TopicDecoder.of(session_of(request).connection, key)
        return self._site.page(
            request, "stream.html", key=key, info=info, page=page, at=at, problem=problem,
            policy_text=policy_words, **_shown(request, reader, decoder),
        )  # fmt: skip

    async def entry(self, request: web.Request) -> web.Response:
        """Return an entry for the dialog. ``view`` is one of VIEWS."""
        key, at = key_of(request), id_of(request, "id")
        decoder = await TopicDecoder.of(session_of(request).connection, key)
        view = request.query.get("view", "record" if decoder else "fields")
        if view not in VIEWS or (view == "record" and decoder is None):
            raise PageError(400, f"view must be one of {', '.join(VIEWS)}; record is for topics")
        reader = await StreamReader.of(session_of(request).connection)
        entry = await reader.entry(key, at)
        newer, older = await reader.neighbors(key, at)
        values = _shown(request, reader, decoder) | {
            "record": decoder.decode(entry) if decoder and view == "record" else None, "key": key,
            "entry": entry, "view": view, "newer": newer, "older": older, "payloads": payloads,
            "size": sum(map(len, entry.flat)), "commands": self._commands(
                key, entry, reader, session_of(request).connection.several_groups
            ),
        }  # fmt: skip
        if view == "compare":
            values |= await self._compared(request, reader, key, entry, older or newer, decoder)
        return self._site.part("entry.html", **values)

    async def _compared(
        self, request: web.Request, reader: StreamReader, key: bytes, entry: Entry, other: StreamId | None,
        decoder: TopicDecoder | None,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the differences to the entry ``with`` of the stream ``of``; without it, to a neighbor.

        Packed records are compared by their own fields, if both can be decoded.
        """
        words = request.query.get("with", "").strip()
        other_key = query_bytes(request, "of") or key
        values: dict[str, Any] = {"other": words or other, "other_key": other_key, "rows": None, "problem": ""}
        try:
            at = StreamId.parse(words) if words else other
            if at is not None:
                pair = [entry, await reader.entry(other_key, at)]
                same = other_key == key
                others = decoder if same else await TopicDecoder.of(session_of(request).connection, other_key)
                records = [
                    None if each is None else each.with_fields(one, LARGEST)
                    for each, one in zip((decoder, others), pair, strict=True)
                ]
                if None not in records:
                    pair = [each for each in records if each is not None]
                rows, left_out = compared(*pair)
                values |= {"other": at, "rows": rows, "left_out": left_out}
        except (ValueError, PageError) as error:
            values["problem"] = str(error)
        return values

    async def density(self, request: web.Request) -> web.Response:
        """Return the numbers of entries over time as JSON. ``span``: the last so many s of the stream; 0: all."""
        key = key_of(request)
        reader = await StreamReader.of(session_of(request).connection)
        span = request.query.get("span", "0")
        if not reader.tidelog or not span.isascii() or not span.isdigit() or len(span) > SPAN_DIGITS:
            raise PageError(400, "The plot needs TCOUNT, and span is a number of seconds.")
        info = await reader.info(key)
        if info.first is None:
            return web.json_response({"times": [], "counts": []})
        end = max(info.last.ms, info.first.ms)
        start = max(info.first.ms, end - 1000 * int(span)) if int(span) else info.first.ms
        times, counts = await reader.density(key, start, max(end, start + SHORTEST))
        return web.json_response({"times": times, "counts": counts})

    async def follow(self, request: web.Request) -> web.StreamResponse:
        """Send new entries as they arrive. ``after``: the newest ID that the page shows."""
        session, key = session_of(request), key_of(request)
        after = id_of(request, "after")
        hidden = values_hidden(request)
        return await live.stream(
            request, self._site.sessions, session, self._followed(session, key, after, hidden)
        )  # fmt: skip

    async def append(self, request: web.Request) -> web.Response:
        """Append an entry: the form fields ``field`` and ``value``, as often as the entry has fields."""
        session, given = session_of(request), await request.post()
        key = key_of(request)
        fields = [str(each) for each in given.getall("field", [])]
        values = [str(each).replace("\r\n", "\n") for each in given.getall("value", [])]
        pairs = [(name, value) for name, value in zip(fields, values, strict=False) if name or value]
        if not pairs or len(pairs) > FORM_FIELDS:
            raise PageError(400, f"An entry has 1 to {FORM_FIELDS} fields here.")
        reader = await StreamReader.of(session.connection)
        words = [word for pair in pairs for word in pair]
        call: Call[Any] = calls.tappend(key, pairs) if reader.tidelog else Call(
            ("XADD", key, "*", *words), StreamId.parse
        )  # fmt: skip
        reply = await self._site.change(session, "append", text(key), call, fields=len(pairs))
        problem = refusal(reply)
        done = "" if problem else reader.id_text(reply)
        detail = {"id": done} if done else {}
        self._site.audit.write(
            session.user, session.address, "append", text(key), problem or DONE, fields=len(pairs), **detail
        )  # fmt: skip
        return self._site.part("appended.html", key=key, id=done, problem=problem)

    async def _followed(
        self, session: ConsoleSession, key: bytes, after: StreamId, hidden: bool
    ) -> AsyncIterator[live.Event]:
        reader = await StreamReader.of(session.connection)
        decoder = await TopicDecoder.of(session.connection, key)
        short = decoder.short if decoder else payloads.short
        last = after
        while True:
            try:
                entries, skipped = await reader.newest_after(key, last, FOLLOWED)
            except PageError as error:
                yield "refused", str(error)
                return
            if entries:
                last = entries[0].id
                rows = self._site.renderer.part(
                    "stream_rows.html", key=key, entries=entries, hidden=hidden, short=short,
                    id_text=reader.id_text, key_url=in_url(key), stream=b"",
                )  # fmt: skip
                yield "entries", {"rows": rows, "skipped": skipped, "last": str(last)}
            else:
                yield "idle", int(time())
            await asyncio.sleep(FOLLOW_EVERY)

    def _commands(self, key: bytes, entry: Entry, reader: StreamReader, several_groups: bool) -> dict[str, str]:
        """Return code that appends an entry again."""
        options = self._site.cli_options
        name = b"TAPPEND" if reader.tidelog else b"XADD"
        words = [name, key, *(() if reader.tidelog else (b"*",)), *entry.flat]
        return {
            "redis-cli": payloads.redis_cli(f"-c {options}".strip() if several_groups else options, words),
            "Python": payloads.python(self._site.url, key, entry, reader.tidelog),
        }


def _shown(request: web.Request, reader: StreamReader, decoder: TopicDecoder | None) -> dict[str, Any]:
    """Return the values that all templates of entries use."""
    return {
        "decoder": decoder, "short": decoder.short if decoder else payloads.short, "hidden": values_hidden(request),
        "id_text": reader.id_text, "tidelog": reader.tidelog, "now": int(time() * 1000),
    }  # fmt: skip
