"""The handler of ``POST /v1/tokens``."""

from __future__ import annotations

import binascii
from base64 import b64decode

import msgspec
from aiohttp import web

from tidelog.gateway.entryjson import Base64Body
from tidelog.gateway.errors import ProblemError
from tidelog.gateway.parameters import KEY_BYTES
from tidelog.gateway.site import GatewayCall, json_response
from tidelog.gateway.tokens import DEFAULT, LONGEST
from tidelog.options.units import Duration


class TokenBody(msgspec.Struct, forbid_unknown_fields=True):
    """What a token shall permit."""

    key: str | Base64Body
    ttl: float | str = DEFAULT


async def issue(call: GatewayCall) -> web.Response:
    """Respond with a token for a stream."""
    given = await call.record(TokenBody)
    try:
        key = given.key.encode() if isinstance(given.key, str) else b64decode(given.key.base64, validate=True)
        seconds = float(Duration.read(given.ttl))
        if not 0 < seconds <= LONGEST:
            raise ValueError(f"ttl must be more than 0 s, and at most {LONGEST:g} s")
        if not 0 < len(key) <= KEY_BYTES:
            raise ValueError(f"key must have 1 to {KEY_BYTES} bytes")
    except (ValueError, binascii.Error) as error:
        raise ProblemError(422, "invalid-body", str(error)) from None
    token, expires = call.site.tokens.issue(call.user, key, seconds)
    shown = expires.isoformat(timespec="seconds").replace("+00:00", "Z")
    return json_response({"token": token, "expires": shown}, 201)
