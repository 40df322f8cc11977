"""Topics: their list, and one topic with its partitions, groups, and records merged by time."""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import Any, Final

from aiohttp import web

from tidelog.client.entries import StreamId
from tidelog.console import topics
from tidelog.console.errors import PageError
from tidelog.console.groupsets import GroupSetPage, GroupSets
from tidelog.console.keynames import in_url, key_count, number_of, pattern_of, query_bytes, scan
from tidelog.console.merged import MergedPosition, MergedReader
from tidelog.console.pages.site import ConsoleSite, session_of, values_hidden
from tidelog.console.records import TopicDecoder
from tidelog.console.streams import StreamReader
from tidelog.topics.retention import described, policy_words
from tidelog.topics.settings import PREFIX

SHOWN: Final = 100  # partitions of a page
GROUPS: Final = 10  # groups on the page of a topic


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = TopicPages(site)
    return [
        web.get("/topics", pages.list_topics),
        web.get("/topics/rows", pages.rows),
        web.get("/topics/topic", pages.show),
        web.get("/topics/records", pages.records),
    ]


def topic_of(request: web.Request) -> str:
    """Return the name of the topic. Raises PageError if there is none."""
    name = request.query.get("name", "").strip()
    if not name:
        raise PageError(400, "The address names no topic.")
    return name


class TopicPages:
    """The handlers."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site

    async def list_topics(self, request: web.Request) -> web.Response:
        """Show the topics that match ``pattern``; without it, all topics of a small server."""
        keys = await key_count(session_of(request).connection)
        words = query_bytes(request, "pattern")
        asked = "pattern" in request.query or keys.small
        values: dict[str, Any] = {"total": keys.total, "problems": keys.problems}
        if asked:
            values = await self._step(request, words, b"0", keys.total)
        return self._site.page(request, "topics.html", words=words, asked=asked, **values)

    async def rows(self, request: web.Request) -> web.Response:
        """Return the next step of a search as rows."""
        total = (await key_count(session_of(request).connection)).total
        cursor = query_bytes(request, "cursor") or b"0"
        step = await self._step(request, query_bytes(request, "pattern"), cursor, total)
        return self._site.part("topics_rows.html", **step)

    async def _step(self, request: web.Request, words: bytes, cursor: bytes, total: int | None) -> dict[str, Any]:
        connection = session_of(request).connection
        found = await scan(connection, PREFIX.encode() + pattern_of(words), cursor, "string")
        names = sorted(key.decode("utf-8", "replace").removeprefix(PREFIX) for key in found.keys)
        rows = await topics.summaries(connection, names, _now())
        examined = number_of(request, "examined") + found.examined
        complete = found.cursor == b"0"
        examined = examined if total is None else total if complete else min(total, examined)
        following = f"pattern={in_url(words)}&cursor={in_url(found.cursor)}&examined={examined}"
        return {
            "rows": rows, "complete": complete, "examined": examined, "total": total, "following": following,
            "problems": found.problems,
        }  # fmt: skip

    async def show(self, request: web.Request) -> web.Response:
        """Show a topic. ``start``: the number of partitions before the first one of the page."""
        name, connection = topic_of(request), session_of(request).connection
        settings = await topics.settings_of(connection, name)
        topic = await topics.summary(connection, name, settings, _now())
        groups, problem = await self._groups(request, topics.partitions_of(name, settings))
        start = min(number_of(request, "start"), max(0, len(topic.partitions) - 1)) // SHOWN * SHOWN
        return self._site.page(
            request, "topic.html", topic=topic, settings=settings, rows=topic.partitions[start : start + SHOWN],
            start=start, size=SHOWN, groups=groups, groups_problem=problem, now=_now(),
            retention=described(settings.retention), policy_text=policy_words,
            several_groups=connection.several_groups, group_of=connection.group_of,
        )  # fmt: skip

    async def records(self, request: web.Request) -> web.Response:
        """Show records of all partitions, newest first. ``before`` and ``after``: positions; ``at``: a time or ID."""
        name, connection = topic_of(request), session_of(request).connection
        settings = await topics.settings_of(connection, name)
        reader = await StreamReader.of(connection)
        keys = topics.partitions_of(name, settings)
        merged = MergedReader(reader, connection, keys)
        at, problem = request.query.get("at", ""), ""
        before, after = _position(request, "before"), _position(request, "after")
        if at:
            try:
                before = MergedPosition(StreamId.parse(await reader.position(keys[0], at)), len(keys))
            except (PageError, ValueError):
                problem = f"{at[:60]!r} is not a position. Enter an ID, or a time such as 2026-01-31 12:00 (UTC)."
        return self._site.page(
            request, "records.html", name=name, settings=settings, partitions=len(keys), at=at, problem=problem,
            page=await merged.page(before, None if at else after), hidden=values_hidden(request),
            short=TopicDecoder(name, settings).short, id_text=reader.id_text,
        )  # fmt: skip

    async def _groups(self, request: web.Request, keys: Sequence[bytes]) -> tuple[GroupSetPage | None, str]:
        """Return the groups that are furthest behind, or the reason why they can't be read."""
        connection = session_of(request).connection
        sets = GroupSets(await StreamReader.of(connection), connection)
        try:
            return await sets.page(keys, b"", "position", 0, GROUPS), ""
        except PageError as error:
            return None, str(error)


def _position(request: web.Request, name: str) -> MergedPosition | None:
    """Return a position in the address: an ID, a colon, and a partition. Raises PageError."""
    words = request.query.get(name, "")
    if not words:
        return None
    id_words, _, partition = words.rpartition(":")
    try:
        return MergedPosition(StreamId.parse(id_words), int(partition[:9]))
    except ValueError:
        raise PageError(400, f"{name} must be an ID, a colon, and a partition.") from None


def _now() -> int:
    return int(time() * 1000)
