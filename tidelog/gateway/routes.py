"""All routes. The application and the OpenAPI document are made from this table."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from tidelog.gateway import delayed, groups, issuing, localhistory, retention, schemas
from tidelog.gateway.appending import IDEMPOTENCY, KEY_LENGTH, append
from tidelog.gateway.events import follow
from tidelog.gateway.limits import ENTRIES
from tidelog.gateway.media import EVENTS, JSON, NDJSON, accepted
from tidelog.gateway.parameters import (
    AFTER,
    DURATION,
    INTEGER,
    LIMIT,
    MOST,
    TEXT,
    WAIT,
    Parameter,
    duration,
    flag,
    name,
    number,
    size,
    text,
    time,
)
from tidelog.gateway.reading import FIRST, LAST, LENGTH, head, read_page
from tidelog.gateway.site import Answer, GatewayCall, GatewayRoute

STREAM: Final = "/v1/streams/{key}"
YEARS: Final = 100 * 366 * 86400.0  # s

TRIMS: Final = (
    Parameter("maxcount", number(0, MOST), INTEGER, "After the append, retain the newest entries, up to this number."),
    Parameter("maxage", duration(0, YEARS), DURATION, "After the append, retain entries that are younger."),
    Parameter("maxbytes", size, {"type": "string", "examples": ["64KB", "1MB"]},
              "After the append, retain the newest entries whose sizes add up to this."),
)  # fmt: skip


GROUPING: Final = (
    Parameter("group", name, TEXT, "Read as a member of this group: each entry is delivered to one of its readers."),
    Parameter("retry", duration(0.001, YEARS), DURATION, "An entry that is not acknowledged within this time is"
              " delivered again; 30s by default."),
    Parameter("maxdeliveries", number(1, 2**31), INTEGER, "Deliveries after which an entry is given up."),
    Parameter("deadletter", name, TEXT, "The stream to which entries that are given up are appended."),
)  # fmt: skip
LATER: Final = (
    Parameter("delay", duration(0, YEARS), DURATION, "The entries join the stream after this time."),
    Parameter("at", time, TEXT, "The entries join the stream at this time: a time with its zone, or ms since 1970."),
)
BACK: Final = Parameter("delay", duration(0, YEARS), DURATION, "The entries are delivered again after this time.")
DRY: Final = Parameter("dry", flag, {"type": "boolean"}, "Change nothing, and count the entries that would be evicted.")
CURSOR: Final = Parameter("cursor", text, TEXT, "The cursor of the page before.")


async def get_stream(call: GatewayCall) -> web.StreamResponse:
    """Respond to GET in the form that the client accepts."""
    media = accepted(call.request.headers.get("Accept", ""), (JSON, NDJSON, EVENTS))
    if "group" in call.query:
        return await groups.follow_group(call) if media == EVENTS else await groups.read_group(call, media)
    groups.check_options(call)
    return await follow(call) if media == EVENTS else await read_page(call, media)


_SPAN: Final = f"`{LAST}` is the newest ID ever assigned, `{FIRST}` that of the oldest entry, if there is one."
_DONE: Final = {204: Answer("Done.")}

ROUTES: Final[tuple[GatewayRoute, ...]] = (
    GatewayRoute(
        "GET", STREAM, get_stream, "Read or follow entries.",
        {200: Answer(f"A page of entries, or a stream of events. {_SPAN} `Link` with `rel=\"next\"` has the next page.",
                     schemas.PAGE_OBJECT, (JSON, NDJSON, EVENTS))},
        parameters=(AFTER, LIMIT, WAIT, *GROUPING),
        headers={"Last-Event-ID": "With `text/event-stream`, entries after this ID. It takes precedence over `after`."},
        by_token=True,
    ),
    GatewayRoute(
        "HEAD", STREAM, head, "The first and the last ID.",
        {200: Answer(f"{_SPAN} `{LENGTH}` is the number of entries.")}, by_token=True,
    ),
    GatewayRoute(
        "POST", STREAM, append, f"Append up to {ENTRIES} entries in one step.",
        {201: Answer("The entries were appended.", schemas.APPENDED),
         200: Answer("An earlier request has appended them.", schemas.APPENDED),
         202: Answer("The entries join the stream later.", schemas.DELAYED)},
        parameters=(*TRIMS, *LATER),
        headers={IDEMPOTENCY: f"A repeated request with the same key (1 to {KEY_LENGTH} characters of ASCII) appends"
                              " nothing and gets the same IDs."},
        body=schemas.ENTRY_BODIES, body_media=(JSON, NDJSON),
    ),
    GatewayRoute(
        "GET", f"{STREAM}/groups", groups.list_groups, "List the groups of a stream.",
        {200: Answer("The groups.", schemas.GROUPS)},
    ),
    GatewayRoute(
        "POST", f"{STREAM}/groups/{{group}}/ack", groups.ack, "Acknowledge entries of a group.",
        {200: Answer("The number of entries that were pending.", schemas.ACKNOWLEDGED)}, body=schemas.IDS,
    ),
    GatewayRoute(
        "POST", f"{STREAM}/groups/{{group}}/nack", groups.nack, "Return entries of a group for redelivery.",
        {200: Answer("The number of entries that were pending.", schemas.RETURNED)}, (BACK,), body=schemas.IDS,
    ),
    GatewayRoute(
        "GET", f"{STREAM}/delayed", delayed.list_delayed, "List delayed entries in the order of their due times.",
        {200: Answer("A page. `cursor` is null on the last page.", schemas.DELAYED_PAGE)}, (CURSOR, LIMIT),
    ),
    GatewayRoute("DELETE", f"{STREAM}/delayed/{{token}}", delayed.cancel, "Cancel a delayed entry.", _DONE),
    GatewayRoute(
        "GET", f"{STREAM}/retention", retention.get, "The retention policy.",
        {200: Answer("The policy.", schemas.RETENTION)},
    ),
    GatewayRoute(
        "PUT", f"{STREAM}/retention", retention.put, "Set the retention policy.",
        {200: Answer("The number of entries that the policy evicts at once.", schemas.EVICTED)}, (DRY,),
        body=schemas.RETENTION,
    ),
    GatewayRoute("DELETE", f"{STREAM}/retention", retention.delete, "Remove the retention policy.", _DONE),
    GatewayRoute(
        "GET", f"{STREAM}/local-history", localhistory.get, "The setting of how much history stays local.",
        {200: Answer("The setting.", schemas.LOCAL_HISTORY)},
    ),
    GatewayRoute(
        "PUT", f"{STREAM}/local-history", localhistory.put, "Set how much history stays local.", _DONE,
        body=schemas.LOCAL_HISTORY,
    ),
    GatewayRoute(
        "DELETE", f"{STREAM}/local-history", localhistory.delete, "Let the setting of the server apply again.", _DONE
    ),
    GatewayRoute(
        "POST", "/v1/tokens", issuing.issue, "Issue a token that permits reading one stream.",
        {201: Answer("The token.", schemas.ISSUED)}, body=schemas.TOKEN,
    ),
)  # fmt: skip
