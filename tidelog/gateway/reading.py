"""``GET`` and ``HEAD`` of a stream: pages of entries, and its first and last ID.

Rule 1: a key that does not exist is an empty stream, as for TREAD. A reader can therefore begin before the writer.
Rule 2: a page has at most PAGE bytes and ``limit`` entries. Its last ID is ``after`` of the next page.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import quote

import msgspec
from aiohttp import web

from tidelog.client import calls
from tidelog.client.entries import Batch, Span, StreamId
from tidelog.gateway.entryjson import entry_json, id_json
from tidelog.gateway.limits import DEFAULT_ENTRIES, PAGE
from tidelog.gateway.media import JSON, NDJSON
from tidelog.gateway.site import GatewayCall
from tidelog.gateway.users import result_of
from tidelog.options.start import EARLIEST

FIRST: Final = "Tidelog-First-Id"
LAST: Final = "Tidelog-Last-Id"
LENGTH: Final = "Tidelog-Length"
MANY: Final = 20_000  # fields and values of a page that is encoded in a thread: the event loop must not wait for it
MISSING_LINE: Final = b'{"missing":true}\n'


async def head(call: GatewayCall) -> web.Response:
    """Respond with the first and last ID, and the number of entries, as headers."""
    replies = await call.user.repeat(calls.tread(call.key, "0", 0, with_info=True), calls.tlen(call.key))
    batch, length = map(result_of, replies)
    return web.Response(headers={**span_headers(batch.info), LENGTH: str(length)}, content_type=JSON)


async def read_page(call: GatewayCall, media: str) -> web.Response:
    """Respond with a page of entries. With ``wait``, wait for the first entry if there are none."""
    after = call.query.get("after", EARLIEST).after
    if after is None:  # latest: the page begins with the entries that arrive from now on
        batch: Batch = await call.user.read(calls.tread(call.key, "0", 0, with_info=True))
        after = batch.info.last if batch.info is not None else StreamId(0, 0)
    response = await _read(call, media, after, empty="wait" not in call.query)
    if response is None:
        site, user = call.site, call.user
        with site.readers.taken(user.name), user.held(), site.tails.joined(user, call.key) as tail:
            await tail.wait(after, call.query["wait"])
        response = await _read(call, media, after, empty=True)
    assert response is not None  # noqa: S101 - the page may be empty
    return response


async def _read(call: GatewayCall, media: str, after: StreamId, empty: bool) -> web.Response | None:
    """Read a page and send it. Returns None if there are no entries, and an empty page is not wanted."""
    limit = call.query.get("limit", DEFAULT_ENTRIES)
    found = await call.user.read_page(calls.tread(call.key, after, limit, max_bytes=PAGE, with_info=True))
    if not found and not empty:
        return None
    info = found.info or Span(None, StreamId(0, 0))
    following = found.last_id or after
    more = bool(found.entries) and following < info.last
    headers = span_headers(info)
    if more:
        path = call.request.rel_url.raw_path
        limited = f"&limit={call.query['limit']}" if "limit" in call.query else ""
        headers["Link"] = f'<{path}?after={quote(str(following))}{limited}>; rel="next"'
    return await send_page(call, media, found, {"next": str(following), "more": more}, headers)


async def send_page(
    call: GatewayCall, media: str, found: Batch, members: dict[str, Any], headers: dict[str, str]
) -> web.Response:
    """Send the entries of a batch. members: of the JSON object, in addition to the entries."""
    large = sum(len(entry.flat) for entry in found.entries) > MANY
    body = await asyncio.to_thread(_body, media, found, members) if large else _body(media, found, members)
    with call.memory(len(body)):
        response = web.Response(body=body, content_type=media, headers={**call.site.headers(call.request), **headers})
        await response.prepare(call.request)
        await response.write_eof()
    return response


def _body(media: str, found: Batch, members: dict[str, Any]) -> bytes:
    missing = any(not each for each in found)
    entries = [entry_json(entry) for entry in found.entries]
    if media == NDJSON:
        return MISSING_LINE * missing + b"".join([each + b"\n" for each in entries])
    rest = msgspec.json.encode(members | ({"missing": True} if missing else {}))
    return b'{"entries":[' + b",".join(entries) + (b"]," if len(rest) > 2 else b"]") + rest[1:] + b"\n"


def span_headers(info: Span | None) -> dict[str, str]:
    """Return the headers with the first and the last ID of a stream."""
    found: dict[str, Any] = {LAST: str(info.last if info is not None else StreamId(0, 0))}
    if info is not None and info.first is not None:
        found[FIRST] = id_json(info.first)
    return found
