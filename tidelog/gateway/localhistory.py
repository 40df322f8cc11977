"""How much of a stream stays local if its server copies history to an object store (``TCFG TIER``), as a resource."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from aiohttp import web

from tidelog.client import calls
from tidelog.client.calls import Call
from tidelog.gateway.errors import ProblemError
from tidelog.gateway.site import GatewayCall, json_response
from tidelog.options.units import Duration, Size

Number = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
NONE: Final = "This stream has no setting of its own: tier-after of the server applies. PUT sets one."
ONE: Final = "The setting is one of age and bytes. DELETE lets tier-after of the server apply again."


class LocalHistoryBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What stays local. One of the fields is needed."""

    age: float | str | None = None  # entries that are younger: seconds, or text such as 7d
    bytes: Number | str | None = None  # the newest nodes with this size in the store, such as 1GB


async def get(call: GatewayCall) -> web.Response:
    """Respond with the setting."""
    words: str | None = await call.user.read(Call(("TCFG", call.key), _tier))
    if words is None:
        raise ProblemError(404, "no-local-history", NONE)
    kind, _, number = words.partition(" ")
    return json_response(LocalHistoryBody(int(number) / 1000) if kind == "AGE" else LocalHistoryBody(None, int(number)))


def _tier(reply: Any) -> str | None:
    named = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    raw = named[b"tier"]
    return None if raw is None else raw.decode()


async def put(call: GatewayCall) -> web.Response:
    """Set it."""
    given = await call.record(LocalHistoryBody)
    if (given.age is None) == (given.bytes is None):
        raise ProblemError(422, "invalid-body", ONE)
    try:
        ms = None if given.age is None else round(Duration.read(given.age) * 1000)
        size = None if given.bytes is None else int(Size.read(given.bytes))
    except ValueError as error:
        raise ProblemError(422, "invalid-body", str(error)) from None
    await call.user.read(calls.tcfg_tier(call.key, ms=ms, bytes=size))
    return web.Response(status=204)


async def delete(call: GatewayCall) -> web.Response:
    """Let the setting of the server apply again."""
    await call.user.read(calls.tcfg_tier(call.key))
    return web.Response(status=204)
