"""TMEMBER: status and control of the server group that this server belongs to. (TGROUP manages consumer groups.)"""

from __future__ import annotations

import json
from functools import partial

from commands.context import Await, Context, Reply
from commands.declare import arg, command, opt
from commands.parse import each_option, positive
from commands.serverparts import GroupPart
from resp import reply
from resp.errors import CommandError
from storage.model.timers import NEVER

_server = partial(command, group="server")
NO_GROUP = "ERR this server is not a member of a server group (group)"


def _group(ctx: Context) -> GroupPart:
    """Return the group. Raises CommandError."""
    if ctx.server.group is None:
        raise CommandError(NO_GROUP)
    return ctx.server.group


@_server("TMEMBER|STATUS", flags="loading stale", acl="admin dangerous", complexity="O(N): N members.")
def tmember_status(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the status of the server group as one JSON document."""
    text = json.dumps(_group(ctx).status(), ensure_ascii=False)
    return reply.verbatim(ctx.session.proto, "txt", text.encode("utf-8", "surrogateescape"))


@_server(
    "TMEMBER|FAILOVER", opt(arg("member", token="TO")), opt(arg("milliseconds", "integer", token="TIMEOUT")),
    flags="admin noscript stale",
)  # fmt: skip
def tmember_failover(ctx: Context, argv: list[bytes]) -> Reply:
    """Hand over leadership to another member of the in-sync set when it has all writes. New writes wait until then."""
    target, timeout = "", 0
    for word, at in each_option(argv, 2, {b"TO": 1, b"TIMEOUT": 1}):
        if word == b"TO":
            target = argv[at].decode("utf-8", "surrogateescape")
        else:
            timeout = positive(argv[at])
    _group(ctx).fail_over(target, timeout)
    return reply.OK


@_server("TMEMBER|REMOVE", arg("member"), flags="admin noscript stale no_multi")
def tmember_remove(ctx: Context, argv: list[bytes]) -> Reply:
    """Remove a member that is not running from the server group."""
    ended = _group(ctx).removal(argv[2].decode("utf-8", "surrogateescape"))

    def result() -> bytes | None:
        error = ended()
        if error:
            return reply.error(error)
        return None if error is None else reply.OK

    return Await(NEVER, result, lambda: reply.OK, firm=True)
