"""Groups by name over several streams: those of a topic, or those that match a pattern; and resets of all of them.

Rule 1: a reset moves exactly the streams and positions of its preview. If the group has moved meanwhile on one of them,
        nothing is changed unless the user allows it. Each stream gets a line in the audit log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import time
from typing import Final

from aiohttp import web

from tidelog.client.entries import StreamId
from tidelog.console.audit import DONE
from tidelog.console.errors import PageError, UnavailableError
from tidelog.console.groups import ORDERS
from tidelog.console.groupsets import STREAMS, GroupSets
from tidelog.console.infotext import text
from tidelog.console.keynames import in_url, key_count, names, number_of, pattern_of, query_bytes, scan
from tidelog.console.pages.site import ConsoleSite, refusal, session_of, values_hidden
from tidelog.console.records import TopicDecoder
from tidelog.console.streams import StreamReader
from tidelog.console.topics import partitions_of, settings_of

TOGETHER: Final = 100  # resets of a request


@dataclass(frozen=True)
class SelectedStreams:
    """The streams whose groups a page shows."""

    keys: list[bytes]
    query: str  # that selects them, for links
    topic: str = ""  # empty: streams by a pattern
    words: bytes = b""  # the pattern, as the user entered it
    following: str = ""  # the query that selects the next streams; empty: there are none
    total: int | None = None  # partitions of the topic
    problems: tuple[str, ...] = ()  # why streams are missing


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = GroupSetPages(site)
    return [
        web.get("/groups", pages.list_groups),
        web.get("/groups/group", pages.show),
        web.post("/groups/preview", pages.preview),
        web.post("/groups/reset", pages.reset),
    ]


class GroupSetPages:
    """The handlers. ``topic`` or ``streams`` (a pattern) select the streams."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site

    async def list_groups(self, request: web.Request) -> web.Response:
        """Show the groups of the streams, of all streams of a small server without a selection."""
        selection = await self._selected(request, required=False)
        words, order = query_bytes(request, "filter"), request.query.get("order", "name")
        if order not in ORDERS:
            raise PageError(400, f"order must be one of {', '.join(ORDERS)}")
        page = None
        if selection is not None:
            page = await (await self._sets(request)).page(selection.keys, words, order, number_of(request, "start"))
        return self._site.page(
            request, "groupsets.html", selection=selection, page=page, words=words, order=order, now=_now()
        )  # fmt: skip

    async def show(self, request: web.Request) -> web.Response:
        """Show a group on all streams."""
        name, selection = query_bytes(request, "group"), await self._selected(request)
        assert selection is not None  # noqa: S101 - required
        sets = await self._sets(request)
        members = await sets.members(selection.keys, name)
        lags = [each.group.lag for each in members]
        return self._site.page(
            request, "groupset.html", selection=selection, name=name, members=members, now=_now(),
            lag=None if None in lags else sum(filter(None, lags)),
            behind=min((each.group.oldest_unread for each in members if each.group.oldest_unread), default=None),
            oldest=min((each.oldest.ms for each in members if each.oldest), default=None), id_text=sets.id_text,
        )  # fmt: skip

    async def preview(self, request: web.Request) -> web.Response:
        """Show the effect of a reset of the streams ``stream`` to ``to``, with a button that executes it."""
        name, given = query_bytes(request, "group"), await request.post()
        keys = [_key(str(each)) for each in given.getall("stream", [])]
        if not 1 <= len(keys) <= STREAMS:
            raise PageError(400, f"Select 1 to {STREAMS:,} streams.")
        sets = await self._sets(request)
        planned = await sets.plan(keys, name, str(given.get("to", "")))
        short = await TopicDecoder.shorteners(session_of(request).connection, keys)
        return self._site.part(
            "groupset_preview.html", name=name, planned=planned, short=short, hidden=values_hidden(request),
            id_text=sets.id_text,
        )  # fmt: skip

    async def reset(self, request: web.Request) -> web.Response:
        """Move the group on each stream: ``move`` has its key in hex, the position before, and the one after."""
        name, given = query_bytes(request, "group"), await request.post()
        moves = [_move(str(each)) for each in given.getall("move", [])]
        if not 1 <= len(moves) <= STREAMS:
            raise PageError(400, "Show the preview again.")
        sets = await self._sets(request)
        now = dict(await sets.positions([key for key, _, _ in moves], name))
        moved = [text(key) for key, before, _ in moves if now[key].position != before]
        if moved and "moving" not in given:
            where = ", ".join(moved[:3]) + (" and others" if len(moved) > 3 else "")
            problem = f"The position of the group has changed on {where} since the preview. Nothing was reset."
            raise PageError(409, f"{problem} Show the preview again.")
        problems, done = await self._reset(request, sets, name, moves)
        shown = "; ".join(f"{text(key)}: {problem}" for key, problem in problems[:5])
        return self._site.part(
            "groupset_done.html", done=done, total=len(moves), problem=shown, more=max(0, len(problems) - 5)
        )

    async def _reset(
        self, request: web.Request, sets: GroupSets, name: bytes, moves: Sequence[tuple[bytes, StreamId, StreamId]]
    ) -> tuple[list[tuple[bytes, str]], int]:
        """Execute a reset, and write the audit log. Returns the streams that were refused, and the number of others."""
        session, audit, problems, done = session_of(request), self._site.audit, list[tuple[bytes, str]](), 0

        def write(move: tuple[bytes, StreamId, StreamId], result: str) -> None:
            key, before, after = move
            detail = {"before": str(before), "after": str(after)}
            audit.write(session.user, session.address, "reset", f"{text(key)} {text(name)}", result, **detail)

        for at in range(0, len(moves), TOGETHER):
            part = moves[at : at + TOGETHER]
            try:
                replies = await session.connection.change(
                    *(sets.reset_call(key, name, after) for key, _, after in part)
                )
            except UnavailableError as error:
                for move in part:
                    write(move, str(error))
                raise UnavailableError(f"{error} {done:,} of {len(moves):,} streams were reset before.") from None
            for move, reply in zip(part, replies, strict=True):
                problem = refusal(reply)
                write(move, problem or DONE)
                done += not problem
                if problem:
                    problems.append((move[0], problem))
        return problems, done

    async def _selected(self, request: web.Request, required: bool = True) -> SelectedStreams | None:
        connection = session_of(request).connection
        topic, words = request.query.get("topic", "").strip(), query_bytes(request, "streams").strip()
        if topic:
            settings = await settings_of(connection, topic)
            keys = list(partitions_of(topic, settings))
            return SelectedStreams(keys, f"topic={in_url(topic)}", topic, total=settings.partitions)
        if "streams" not in request.query:
            if required:
                raise PageError(400, "The address names no topic and no streams.")
            if not (await key_count(connection)).small:
                return None
        cursor = query_bytes(request, "cursor") or b"0"
        found = await scan(connection, pattern_of(words), cursor, most=STREAMS)
        query = f"streams={in_url(words)}"
        following = f"{query}&cursor={in_url(found.cursor)}" if found.cursor != b"0" else ""
        return SelectedStreams(
            names(found.keys), f"{query}&cursor={in_url(cursor)}", words=words, following=following,
            problems=found.problems,
        )  # fmt: skip

    async def _sets(self, request: web.Request) -> GroupSets:
        connection = session_of(request).connection
        return GroupSets(await StreamReader.of(connection), connection)


def _key(words: str) -> bytes:
    try:
        return bytes.fromhex(words)
    except ValueError:
        raise PageError(400, "Show the page again.") from None


def _move(words: str) -> tuple[bytes, StreamId, StreamId]:
    try:
        key, before, after = words.split(" ")
        return bytes.fromhex(key), StreamId.parse(before), StreamId.parse(after)
    except ValueError:
        raise PageError(400, "Show the preview again.") from None


def _now() -> int:
    return int(time() * 1000)
