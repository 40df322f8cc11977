"""All routes. The application and the OpenAPI document are made from this table."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from tidelog.gateway.appending import IDEMPOTENCY, KEY_LENGTH, append
from tidelog.gateway.events import follow
from tidelog.gateway.limits import ENTRIES
from tidelog.gateway.media import EVENTS, JSON, NDJSON, accepted
from tidelog.gateway.parameters import AFTER, DURATION, INTEGER, LIMIT, MOST, WAIT, Parameter, duration, number, size
from tidelog.gateway.reading import FIRST, LAST, LENGTH, head, read_page
from tidelog.gateway.schemas import APPENDED, ENTRY_BODIES, PAGE_OBJECT
from tidelog.gateway.site import Answer, GatewayCall, GatewayRoute

STREAM: Final = "/v1/streams/{key}"
YEARS: Final = 100 * 366 * 86400.0  # s

TRIMS: Final = (
    Parameter("maxcount", number(0, MOST), INTEGER, "After the append, retain the newest entries, up to this number."),
    Parameter("maxage", duration(0, YEARS), DURATION, "After the append, retain entries that are younger."),
    Parameter("maxbytes", size, {"type": "string", "examples": ["64KB", "1MB"]},
              "After the append, retain the newest entries whose sizes add up to this."),
)  # fmt: skip


async def get_stream(call: GatewayCall) -> web.StreamResponse:
    """Respond to GET in the form that the client accepts."""
    media = accepted(call.request.headers.get("Accept", ""), (JSON, NDJSON, EVENTS))
    return await follow(call) if media == EVENTS else await read_page(call, media)


_SPAN: Final = f"`{LAST}` is the newest ID ever assigned, `{FIRST}` that of the oldest entry, if there is one."

ROUTES: Final[tuple[GatewayRoute, ...]] = (
    GatewayRoute(
        "GET", STREAM, get_stream, "Read entries.",
        {200: Answer(f"A page of entries. {_SPAN} `Link` with `rel=\"next\"` has the next page.", PAGE_OBJECT,
                     (JSON, NDJSON, EVENTS))},
        parameters=(AFTER, LIMIT, WAIT),
        headers={"Last-Event-ID": "With `text/event-stream`, entries after this ID. It takes precedence over `after`."},
    ),
    GatewayRoute(
        "HEAD", STREAM, head, "The first and the last ID.",
        {200: Answer(f"{_SPAN} `{LENGTH}` is the number of entries.")},
    ),
    GatewayRoute(
        "POST", STREAM, append, f"Append up to {ENTRIES} entries in one step.",
        {201: Answer("The entries were appended.", APPENDED),
         200: Answer("An earlier request has appended them.", APPENDED)},
        parameters=TRIMS,
        headers={IDEMPOTENCY: f"A repeated request with the same key (1 to {KEY_LENGTH} characters of ASCII) appends"
                              " nothing and gets the same IDs."},
        body=ENTRY_BODIES, body_media=(JSON, NDJSON),
    ),
)  # fmt: skip
