"""Strings of several keys in one step: MGET, MSET, MSETNX, MSETEX (which follows Redis 8.4)."""

from __future__ import annotations

from typing import Final

from commands.context import Context, Reply
from commands.declare import arg, block, command, key, oneof, opt, repeat, token
from commands.keys.setoptions import EXPIRY, MSETEX, SetOptions, store
from commands.parse import integer
from commands.slicing import long_array
from resp import errors, reply
from resp.errors import CommandError
from storage.keyspace import manykeys
from storage.keyspace.values import String

_BAD_NUMKEYS: Final = "ERR invalid numkeys value"
_BAD_PAIRS: Final = "ERR wrong number of key-value pairs"
_MOST_KEYS: Final = (1 << 31) - 1


def _any_exists(ctx: Context, names: list[bytes]) -> bool:
    return any(ctx.ks.get(name, ctx.now) is not None for name in names)


def _set(ctx: Context, names: list[bytes], values: list[bytes]) -> None:
    if not ctx.ks.event_classes:
        manykeys.set_strings(ctx.ks, names, values, ctx.now)
        return
    for name, value in zip(names, values, strict=True):
        store(ctx, name, value)


@command("MGET", repeat(key("RO ACCESS")), flags="readonly fast", group="string", complexity="O(N): N keys.")
def mget(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the strings of several keys, null for a key that doesn't exist or is not a string."""
    found = manykeys.read_many(ctx.ks, argv[1:], ctx.now)
    values = [value.value if isinstance(value, String) else None for value in found]
    return long_array(values, reply.null(ctx.session.proto))


@command(
    "MSET", repeat(block("data", key("OW UPDATE"), arg("value"))), flags="write denyoom", group="string",
    complexity="O(N): N keys.",
)  # fmt: skip
def mset(ctx: Context, argv: list[bytes]) -> Reply:
    """Set several keys to strings in one step."""
    if len(argv) % 2 == 0:
        raise errors.arity("mset")
    _set(ctx, argv[1::2], argv[2::2])
    return reply.OK


@command(
    "MSETNX", repeat(block("data", key("OW INSERT"), arg("value"))), flags="write denyoom", group="string",
    complexity="O(N): N keys.",
)  # fmt: skip
def msetnx(ctx: Context, argv: list[bytes]) -> Reply:
    """Set several keys to strings in one step if none of them exists; return 1 if they were set, otherwise 0."""
    if len(argv) % 2 == 0:
        raise errors.arity("msetnx")
    names = argv[1::2]
    if _any_exists(ctx, names):
        return reply.integer(0)
    _set(ctx, names, argv[2::2])
    return reply.integer(1)


@command(
    "MSETEX", arg("numkeys", "integer"), repeat(block("data", key("OW UPDATE"), arg("value"))),
    opt(oneof("condition", token("NX"), token("XX"))), opt(oneof("expiration", *EXPIRY, token("KEEPTTL"))),
    flags="write denyoom", group="string", complexity="O(N): N keys.",
)  # fmt: skip
def msetex(ctx: Context, argv: list[bytes]) -> Reply:
    """Set several keys to strings in one step; options add an expiry or a condition for all of them; return 1 or 0."""
    count = integer(argv[1], _BAD_NUMKEYS)
    if not 1 <= count <= _MOST_KEYS:
        raise CommandError(_BAD_NUMKEYS)
    end = 2 + 2 * count
    if end > len(argv):
        raise CommandError(_BAD_PAIRS)
    options = SetOptions(argv, end, MSETEX)
    expire_at = options.expire_at(ctx.now, "msetex")
    names, values = argv[2:end:2], argv[3:end:2]
    if options.condition == b"NX" and _any_exists(ctx, names):
        return reply.integer(0)
    if options.condition == b"XX" and any(ctx.ks.get(name, ctx.now) is None for name in names):
        return reply.integer(0)
    if not options.expiry:
        _set(ctx, names, values)
        return reply.integer(1)
    keep_ttl = options.expiry == b"KEEPTTL"
    for name, value in zip(names, values, strict=True):
        store(ctx, name, value, expire_at, keep_ttl)
    return reply.integer(1)
