"""EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT, TTL, PTTL, EXPIRETIME, PEXPIRETIME, PERSIST."""

from __future__ import annotations

from functools import partial

from commands.context import Context, Reply
from commands.declare import arg, command, key, oneof, opt, token
from commands.keys.setoptions import set_expiry
from commands.parse import INT_MAX, INT_MIN, integer, invalid_expire
from resp import errors, reply
from resp.errors import CommandError
from storage.keyspace import events

_NX_AND_OTHERS = "ERR NX and XX, GT or LT options at the same time are not compatible"
_GT_AND_LT = "ERR GT and LT options at the same time are not compatible"

_expires = partial(command, flags="write fast", group="generic")
_CONDITION = opt(oneof("condition", token("NX"), token("XX"), token("GT"), token("LT")))


def _set_expiry(ctx: Context, argv: list[bytes], unit: int, base: int) -> bytes:
    """Set an expiry. ``unit``: ms in a unit of the argument; ``base``: added to it, in ms since epoch."""
    name = argv[0].decode().lower()
    conditions = {word.upper() for word in argv[3:]}
    if conditions:
        _check_conditions(argv, conditions)
    when = integer(argv[2])
    if not INT_MIN <= when * unit <= INT_MAX - base:
        raise invalid_expire(name)
    when = when * unit + base
    ks = ctx.ks
    if ks.get(argv[1], ctx.now) is None:
        return reply.integer(0)
    if conditions and not _allowed(conditions, when, ks.expire_at(argv[1])):
        return reply.integer(0)
    set_expiry(ctx, argv[1], when)
    return reply.integer(1)


def _check_conditions(argv: list[bytes], conditions: set[bytes]) -> None:
    for word in argv[3:]:
        if word.upper() not in (b"NX", b"XX", b"GT", b"LT"):
            raise CommandError(f"ERR Unsupported option {errors.show(word)}")
    if b"NX" in conditions and len(conditions) > 1:
        raise CommandError(_NX_AND_OTHERS)
    if b"GT" in conditions and b"LT" in conditions:
        raise CommandError(_GT_AND_LT)


def _allowed(conditions: set[bytes], when: int, current: int) -> bool:
    """Return whether the conditions hold. A key without expiry (``current`` 0) counts as one that never expires."""
    return not (
        (b"NX" in conditions and current)
        or (b"XX" in conditions and not current)
        or (b"GT" in conditions and (not current or when <= current))
        or (b"LT" in conditions and current and when >= current)
    )


@_expires("EXPIRE", key("RW UPDATE"), arg("seconds", "integer"), _CONDITION)
def expire(ctx: Context, argv: list[bytes]) -> Reply:
    """Set the expiry of a key to a number of seconds from now."""
    return _set_expiry(ctx, argv, 1000, ctx.now)


@_expires("PEXPIRE", key("RW UPDATE"), arg("milliseconds", "integer"), _CONDITION)
def pexpire(ctx: Context, argv: list[bytes]) -> Reply:
    """Set the expiry of a key to a number of milliseconds from now."""
    return _set_expiry(ctx, argv, 1, ctx.now)


@_expires("EXPIREAT", key("RW UPDATE"), arg("unix-time-seconds", "unix-time"), _CONDITION)
def expireat(ctx: Context, argv: list[bytes]) -> Reply:
    """Set the expiry of a key to a Unix time in seconds."""
    return _set_expiry(ctx, argv, 1000, 0)


@_expires("PEXPIREAT", key("RW UPDATE"), arg("unix-time-milliseconds", "unix-time"), _CONDITION)
def pexpireat(ctx: Context, argv: list[bytes]) -> Reply:
    """Set the expiry of a key to a Unix time in milliseconds."""
    return _set_expiry(ctx, argv, 1, 0)


def _expire_at(ctx: Context, name: bytes) -> int:
    """Return ms since epoch; -1 if the key doesn't expire, -2 if there is no such key."""
    if ctx.ks.peek(name, ctx.now) is None:
        return -2
    return ctx.ks.expire_at(name) or -1


def _seconds(ms: int) -> int:
    """Round as Redis does; -1 and -2 are unchanged."""
    return ms if ms < 0 else (ms + 500) // 1000


def _left(ctx: Context, name: bytes) -> int:
    at = _expire_at(ctx, name)
    return at if at < 0 else at - ctx.now


@command("TTL", key("RO ACCESS"), flags="readonly fast", group="generic")
def ttl(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the seconds until a key expires, -1 if it doesn't, -2 if there is no such key."""
    return reply.integer(_seconds(_left(ctx, argv[1])))


@command("PTTL", key("RO ACCESS"), flags="readonly fast", group="generic")
def pttl(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the milliseconds until a key expires, -1 if it doesn't, -2 if there is no such key."""
    return reply.integer(_left(ctx, argv[1]))


@command("EXPIRETIME", key("RO ACCESS"), flags="readonly fast", group="generic")
def expiretime(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the Unix time in seconds at which a key expires, -1 if it doesn't, -2 if there is no such key."""
    return reply.integer(_seconds(_expire_at(ctx, argv[1])))


@command("PEXPIRETIME", key("RO ACCESS"), flags="readonly fast", group="generic")
def pexpiretime(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the Unix time in milliseconds at which a key expires, -1 if it doesn't, -2 if there is no such key."""
    return reply.integer(_expire_at(ctx, argv[1]))


@command("PERSIST", key("RW UPDATE"), flags="write fast", group="generic")
def persist(ctx: Context, argv: list[bytes]) -> Reply:
    """Remove the expiry of a key; return 1 if it had one, otherwise 0."""
    if ctx.ks.get(argv[1], ctx.now) is None or not ctx.ks.persist(argv[1]):
        return reply.integer(0)
    ctx.ks.notify(events.GENERIC, b"persist", argv[1])
    return reply.integer(1)
