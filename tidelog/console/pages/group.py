"""The groups of a stream: lag, pending messages, consumers; reset with a preview; ack, nack, claim."""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import Any, Final

from aiohttp import web

from tidelog.client.entries import StreamId
from tidelog.console.audit import DONE
from tidelog.console.errors import PageError
from tidelog.console.groups import LISTED, ORDERS, PENDING, StreamGroups
from tidelog.console.infotext import text
from tidelog.console.keynames import key_of, number_of, query_bytes
from tidelog.console.pages.site import ConsoleSite, refusal, session_of, values_hidden
from tidelog.console.records import TopicDecoder
from tidelog.console.streams import StreamReader

ACTIONS: Final = {"ack": "acknowledged", "nack": "returned for redelivery", "claim": "claimed"}


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = GroupPages(site)
    return [
        web.get("/streams/groups", pages.list_groups),
        web.get("/streams/group", pages.show),
        web.post("/streams/group/preview", pages.preview),
        web.post("/streams/group/reset", pages.reset),
        web.post("/streams/group/settle", pages.settle),
    ]


def id_in(words: str) -> StreamId:
    """Return an ID of a request. Raises PageError."""
    try:
        return StreamId.parse(words)
    except ValueError as error:
        raise PageError(400, str(error)) from None


class GroupPages:
    """The handlers."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site

    async def list_groups(self, request: web.Request) -> web.Response:
        """Show a page of the groups whose names contain ``filter``, in ``order``, after the first ``start`` ones."""
        key, (_, groups) = key_of(request), await self._groups(request)
        words, order = query_bytes(request, "filter"), request.query.get("order", "name")
        if order not in ORDERS:
            raise PageError(400, f"order must be one of {', '.join(ORDERS)}")
        page = await groups.page(key, words, order, number_of(request, "start"))
        return self._site.page(
            request, "groups.html", key=key, page=page, size=LISTED, words=words, order=order, now=_now()
        )  # fmt: skip

    async def show(self, request: web.Request) -> web.Response:
        """Show a group. ``after``: the ID after which the page of pending messages begins."""
        key, name, (reader, groups) = key_of(request), query_bytes(request, "group"), await self._groups(request)
        group = await groups.one(key, name)
        after = id_in(request.query["after"]) if request.query.get("after") else None
        pending = await groups.pending(key, name, after)
        oldest = pending[0] if after is None and pending else next(iter(await groups.pending(key, name, None)), None)
        consumers, total = await groups.consumers(key, name)
        return self._site.page(
            request, "group.html", key=key, group=group, pending=pending, oldest=oldest, after=after,
            more=len(pending) == PENDING, consumers=consumers, consumers_total=total, tidelog=reader.tidelog,
            id_text=reader.id_text, now=_now(),
        )  # fmt: skip

    async def preview(self, request: web.Request) -> web.Response:
        """Show which entries a reset to ``to`` reads again, with a button that executes it."""
        key, name, (reader, groups) = key_of(request), query_bytes(request, "group"), await self._groups(request)
        group = await groups.one(key, name)
        after = await groups.position(key, str((await request.post()).get("to", "")))
        (short,) = await TopicDecoder.shorteners(session_of(request).connection, [key])
        return self._site.part(
            "group_preview.html", key=key, group=group, preview=await groups.preview(key, group, after),
            hidden=values_hidden(request), short=short, id_text=reader.id_text,
        )  # fmt: skip

    async def reset(self, request: web.Request) -> web.Response:
        """Move the group to the position ``after``, if it is still at ``before``, as the preview has shown."""
        key, name, (reader, groups) = key_of(request), query_bytes(request, "group"), await self._groups(request)
        given = await request.post()
        after, before = id_in(str(given.get("after", ""))), id_in(str(given.get("before", "")))
        group = await groups.one(key, name)
        if group.position != before and "moving" not in given:
            raise PageError(409, "The position of the group has changed since the preview. Show the preview again.")
        detail = {"before": str(group.position), "after": str(after)}
        problem = await self._change(request, "reset", groups.reset_call(key, name, after), detail)
        return self._site.part("group_done.html", problem=problem, done=f"The group is at {reader.id_text(after)} now.")

    async def settle(self, request: web.Request) -> web.Response:
        """Acknowledge, return, or claim the messages ``id``. ``action`` is one of ACTIONS."""
        key, name, (_, groups) = key_of(request), query_bytes(request, "group"), await self._groups(request)
        given = await request.post()
        ids = [id_in(str(each)) for each in given.getall("id", [])]
        action, consumer = str(given.get("action", "")), str(given.get("consumer", "")).strip()
        if not ids or len(ids) > PENDING or action not in ACTIONS:
            raise PageError(400, f"Select 1 to {PENDING} messages.")
        call = groups.settle_call(key, await groups.one(key, name), action, ids, consumer)
        detail = {"ids": [str(each) for each in ids]} | ({"consumer": consumer} if action == "claim" else {})
        count: list[Any] = []
        problem = await self._change(request, action, call, detail, count)
        done = len(count[0]) if count and isinstance(count[0], list) else count[0] if count else 0
        return self._site.part("group_done.html", problem=problem, done=f"{done} of {len(ids)} {ACTIONS[action]}.")

    async def _change(
        self, request: web.Request, action: str, call: Any, detail: dict[str, Any], found: list[Any] | None = None
    ) -> str:
        """Execute a change and write it to the audit log. Returns the problem, empty if there is none."""
        session, site = session_of(request), self._site
        target = f"{text(key_of(request))} {text(query_bytes(request, 'group'))}"
        reply = await site.change(session, action, target, call, **detail)
        problem = refusal(reply)
        if found is not None and not problem:
            found.append(reply)
        site.audit.write(session.user, session.address, action, target, problem or DONE, **detail)
        return problem

    async def _groups(self, request: web.Request) -> tuple[StreamReader, StreamGroups]:
        connection = session_of(request).connection
        reader = await StreamReader.of(connection)
        return reader, StreamGroups(reader, connection)


def _now() -> int:
    return int(time() * 1000)
