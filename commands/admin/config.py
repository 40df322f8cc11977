"""CONFIG: reading and changing directives at run time."""

from __future__ import annotations

from functools import partial
from typing import Final

from commands.context import Context, Reply
from commands.declare import arg, block, command, repeat
from commands.glob import check_together
from resp import errors, reply

MOST_PARAMETERS: Final = 250  # maximum parameters of one call, more than there are directives

_config = partial(command, flags="admin noscript loading stale", group="server")


@_config(
    "CONFIG|GET", arg("parameter", "pattern", multiple=True), complexity="O(N * M): N patterns, M directives.",
    most=MOST_PARAMETERS,
)  # fmt: skip
def config_get(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the directives whose names match one of the patterns, and their values."""
    check_together(argv[2:])
    pairs = ctx.server.config.get(argv[2:])
    return reply.map_reply(ctx.session.proto, [(_bulk(name), _bulk(value)) for name, value in pairs])


def _bulk(text: str) -> bytes:
    return reply.bulk(text.encode("utf-8", "surrogateescape"))


@_config(
    "CONFIG|SET", repeat(block("data", arg("parameter"), arg("value"))), arity=-4, complexity="O(N): N directives.",
    most=2 * MOST_PARAMETERS,
)  # fmt: skip
def config_set(ctx: Context, argv: list[bytes]) -> Reply:
    """Set directives; if one of them can't be set, none is changed."""
    if len(argv) % 2:
        raise errors.syntax()
    ctx.server.config.set(list(zip(argv[2::2], argv[3::2], strict=True)))
    return reply.OK


@_config("CONFIG|RESETSTAT")
def config_resetstat(ctx: Context, argv: list[bytes]) -> Reply:
    """Reset the counters of INFO to zero."""
    ctx.server.stats.reset()
    return reply.OK


@_config("CONFIG|REWRITE")
def config_rewrite(ctx: Context, argv: list[bytes]) -> Reply:
    """Write the current values of the directives to the configuration file."""
    ctx.server.config.rewrite()
    return reply.OK
