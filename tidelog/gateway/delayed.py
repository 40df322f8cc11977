"""Entries that join a stream later: ``POST`` with ``delay`` or ``at``, and the resource ``delayed``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from tidelog.client import calls
from tidelog.client.entries import DelayedPage
from tidelog.gateway.entryjson import Flat, fields_object, json_value
from tidelog.gateway.errors import ProblemError
from tidelog.gateway.limits import DEFAULT_ENTRIES
from tidelog.gateway.parameters import name_in_path
from tidelog.gateway.site import GatewayCall, json_response
from tidelog.transport.call import Call


def delays_of(call: GatewayCall, entries: list[Flat], token: str | None) -> list[Call[Any]] | None:
    """Return the commands that delay entries; None if the request does not delay them. Raises ProblemError."""
    delay, at = call.query.get("delay"), call.query.get("at")
    if delay is None and at is None:
        return None
    others = [name for name in call.query if name.startswith("max")]
    if others or (delay is not None and at is not None):
        text = f"{others[0]} can't be combined with delay or at." if others else "Use either delay or at, not both."
        raise ProblemError(400, "invalid-parameter", text)
    ms = None if delay is None else round(delay * 1000)
    return [
        calls.tdelay(
            call.key, list(zip(flat[::2], flat[1::2], strict=True)), ms=ms, at=at,
            token=None if token is None else f"{token}/{number}",
        )
        for number, flat in enumerate(entries)
    ]  # fmt: skip


async def list_delayed(call: GatewayCall) -> web.Response:
    """Respond with a page of delayed entries, in the order of their due times."""
    limit = min(1000, call.query.get("limit", DEFAULT_ENTRIES))
    found: DelayedPage = await call.user.read(calls.tdelay_list(call.key, call.query.get("cursor", "0"), limit))
    entries = [
        {"token": json_value(each.token.encode("utf-8", "surrogateescape")), "at": _shown(each.due),
         "fields": fields_object(each.flat)}
        for each in found.entries
    ]  # fmt: skip
    return json_response({"entries": entries, "cursor": None if found.cursor == "0" else found.cursor})


async def cancel(call: GatewayCall) -> web.Response:
    """Cancel a delayed entry."""
    token = name_in_path(call.request, "token", "the token")
    if not await call.user.read(calls.tdelay_cancel(call.key, token)):
        text = "There is no delayed entry with this token. It may have joined the stream."
        raise ProblemError(404, "no-such-token", text)
    return web.Response(status=204)


def _shown(ms: int) -> str:
    """Return a time for JSON, or ms since 1970 if it is after the year 9999."""
    try:
        time = datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)
    except (OverflowError, ValueError, OSError):
        return str(ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
