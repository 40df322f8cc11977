"""The retention policy of a stream as a resource."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from aiohttp import web

from tidelog.client import calls
from tidelog.client.entries import StreamPolicy
from tidelog.gateway.errors import ProblemError
from tidelog.gateway.site import GatewayCall, json_response
from tidelog.options.units import Duration, Size

Number = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
NONE: Final = "This stream has no retention policy. PUT sets one."


class RetentionBody(msgspec.Struct, forbid_unknown_fields=True):
    """A retention policy. At least one of the first three is needed."""

    maxcount: Number | None = None  # retain the newest entries, up to this number
    maxage: float | str | None = None  # retain entries that are younger: seconds, or text such as 7d
    maxbytes: Number | str | None = None  # retain the newest entries whose sizes add up to this
    groups: bool = False  # retain entries that a group has not read or acknowledged
    limit: Number | None = None  # number of entries up to which ``groups`` retains entries
    exact: bool = False  # evict single entries, not only whole nodes


async def get(call: GatewayCall) -> web.Response:
    """Respond with the policy."""
    policy: StreamPolicy | None = await call.user.read(calls.tcfg(call.key))
    if policy is None:
        raise ProblemError(404, "no-retention", NONE)
    return json_response(
        RetentionBody(
            policy.count, None if policy.ms is None else policy.ms / 1000, policy.bytes, policy.groups, policy.limit,
            policy.exact,
        )
    )  # fmt: skip


async def put(call: GatewayCall) -> web.Response:
    """Set the policy; respond with the number of entries that it evicts at once."""
    given = await call.record(RetentionBody)
    try:
        policy = StreamPolicy(
            given.maxcount, None if given.maxage is None else round(Duration.read(given.maxage) * 1000),
            None if given.maxbytes is None else int(Size.read(given.maxbytes)), given.groups, given.limit, given.exact,
        )  # fmt: skip
    except ValueError as error:
        raise ProblemError(422, "invalid-body", str(error)) from None
    if policy.count is None and policy.ms is None and policy.bytes is None:
        text = "A policy has at least one of maxcount, maxage, and maxbytes. DELETE removes a policy."
        raise ProblemError(422, "invalid-body", text)
    if policy.limit is not None and not policy.groups:
        raise ProblemError(422, "invalid-body", "limit requires groups: true.")
    evicted = await call.user.read(calls.tcfg_retain(call.key, policy, dry=call.query.get("dry", False)))
    return json_response({"evicted": evicted})


async def delete(call: GatewayCall) -> web.Response:
    """Remove the policy."""
    await call.user.read(calls.tcfg_retain(call.key, None))
    return web.Response(status=204)
