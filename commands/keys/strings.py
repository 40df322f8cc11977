"""Strings, one key at a time: SET, GET and related commands, conditional deletes.

DELEX, DIGEST, and the comparisons of SET follow Redis 8.4; DELIFEQ follows Valkey 9.

Decision: SETs of one key that arrive together (and INCRs and DECRs, see ``counters``) store and log only the last
value, unless each change is observed; GETs of one key need one lookup.
"""

from __future__ import annotations

from typing import Final

from commands.context import Context, Reply
from commands.declare import arg, batch, command, key, oneof, opt, together, token
from commands.keys.setoptions import (
    COMPARED,
    COMPARISONS,
    EXPIRY,
    GETEX,
    SET,
    SetOptions,
    bulk,
    compares,
    delete,
    digest,
    expiry,
    set_expiry,
    store,
)
from commands.slicing import LONG_VALUE, long_bulk
from resp import errors, reply
from resp.decode import Call
from resp.errors import CommandError
from storage.keyspace import events, stringgroups
from storage.keyspace.values import String

BATCH_BYTES: Final = 64 * 1024  # size of the values in the replies to GETs that are executed together

_DELEX_NEEDS_STRING = "ERR Key should be of string type if conditions are specified"
_DELEX_CONDITION = "ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE"


def _set_reads(argv: list[bytes]) -> bool:
    """Return whether a SET returns or compares the old value."""
    return any(word.upper() == b"GET" or word.upper() in COMPARISONS for word in argv[3:])


# -- one key -----------------------------------------------------------------------------------------------------
@command(
    "SET", key("RW ACCESS UPDATE VARIABLE_FLAGS"), arg("value"),
    opt(oneof("condition", token("NX"), token("XX"), *COMPARED)), opt(token("GET")),
    opt(oneof("expiration", *EXPIRY, token("KEEPTTL"))), flags="write denyoom", group="string", reads=_set_reads,
    traits="brief",
)  # fmt: skip
def set_(ctx: Context, argv: list[bytes]) -> Reply:
    """Set a key to a string, with an optional condition and expiry; GET returns the old value."""
    if len(argv) == 3:
        store(ctx, argv[1], argv[2])
        return reply.OK
    options = SetOptions(argv, 3, SET)
    expire_at = options.expire_at(ctx.now, "set")
    found = ctx.ks.read(argv[1], ctx.now) if options.get else ctx.ks.get(argv[1], ctx.now)
    old = found.value if isinstance(found, String) else None
    comparison = options.condition in COMPARISONS
    if found is not None and old is None and (options.get or comparison):
        raise errors.wrong_type()
    if comparison:
        holds = compares(options.condition, options.expected, old)
    else:
        holds = not options.condition or (found is None) == (options.condition == b"NX")
    if holds:
        store(ctx, argv[1], argv[2], expire_at, options.expiry == b"KEEPTTL")
    if options.get:
        return bulk(ctx, old)
    return reply.OK if holds else reply.null(ctx.session.proto)


@batch("SET")
def set_batch(ctx: Context, calls: list[list[bytes]]) -> list[bytes] | None:
    """Execute SETs of one key without options: only the last value is visible. None if each change is observed."""
    ks = ctx.ks
    if len(calls[0]) != 3 or ks.event_classes or ks.tracked:
        return None
    last = calls[-1]
    store(ctx, last[1], last[2])
    ks.passed_over(len(calls) - 1)
    return [reply.OK] * len(calls)


@together("SET")
def set_together(ctx: Context, calls: list[Call], at: int, stop: int) -> tuple[bytes, int] | None:
    """Execute SETs of different keys without options."""
    done = stringgroups.set_(ctx.ks, calls, at, stop, ctx.now)
    return (reply.OK * done, done) if done else None


@command("SETNX", key("OW INSERT"), arg("value"), flags="write denyoom fast", group="string")
def setnx(ctx: Context, argv: list[bytes]) -> Reply:
    """Set a key to a string if there is no such key; return 1 if it was set, otherwise 0."""
    if ctx.ks.get(argv[1], ctx.now) is not None:
        return reply.integer(0)
    store(ctx, argv[1], argv[2])
    return reply.integer(1)


@command("SETEX", key("OW UPDATE"), arg("seconds", "integer"), arg("value"), flags="write denyoom", group="string")
def setex(ctx: Context, argv: list[bytes]) -> Reply:
    """Set a key to a string that expires after a number of seconds."""
    store(ctx, argv[1], argv[3], expiry(argv[2], 1000, ctx.now, "setex"))
    return reply.OK


@command(
    "PSETEX", key("OW UPDATE"), arg("milliseconds", "integer"), arg("value"), flags="write denyoom", group="string",
)  # fmt: skip
def psetex(ctx: Context, argv: list[bytes]) -> Reply:
    """Set a key to a string that expires after a number of milliseconds."""
    store(ctx, argv[1], argv[3], expiry(argv[2], 1, ctx.now, "psetex"))
    return reply.OK


@command("GETSET", key("RW ACCESS UPDATE"), arg("value"), flags="write denyoom fast", group="string")
def getset(ctx: Context, argv: list[bytes]) -> Reply:
    """Set a key to a string and return the previous string, or null; its expiry is removed."""
    old = ctx.ks.read_string(argv[1], ctx.now)
    store(ctx, argv[1], argv[2])
    return bulk(ctx, old)


@command("GET", key("RO ACCESS"), flags="readonly fast", group="string")
def get(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the string of a key, or null."""
    ks = ctx.ks
    found = ks.keys.get(argv[1])
    if ks.expires or not isinstance(found, String):
        return bulk(ctx, ks.read_string(argv[1], ctx.now))
    ks.hits += 1  # the usual case of read_string(), inlined
    if not ks.no_touch:
        found.used = ctx.now
    value = found.value
    return reply.bulk(value) if len(value) <= LONG_VALUE else long_bulk(value)


@batch("GET")
def get_batch(ctx: Context, calls: list[list[bytes]]) -> list[bytes] | None:
    """Execute GETs of one key with one lookup. Returns None if the key could expire or is not a string."""
    ks = ctx.ks
    found = ks.keys.get(calls[0][1])
    if ks.expires or not isinstance(found, String) or len(found.value) > LONG_VALUE:
        return None
    count = min(len(calls), 1 + BATCH_BYTES // (1 + len(found.value)))
    ks.hits += count
    if not ks.no_touch:
        found.used = ctx.now
    return [reply.bulk(found.value)] * count


@together("GET")
def get_together(ctx: Context, calls: list[Call], at: int, stop: int) -> tuple[bytes, int] | None:
    """Execute GETs of different keys."""
    null = reply.null(ctx.session.proto)
    return stringgroups.get(ctx.ks, calls, at, stop, ctx.now, null, LONG_VALUE, BATCH_BYTES)


@command("GETDEL", key("RW ACCESS DELETE"), flags="write fast", group="string")
def getdel(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the string of a key, or null, and delete the key."""
    value = ctx.ks.read_string(argv[1], ctx.now)
    if value is not None:
        delete(ctx, argv[1])
    return bulk(ctx, value)


@command(
    "GETEX", key("RW ACCESS UPDATE"), opt(oneof("expiration", *EXPIRY, token("PERSIST"))), flags="write fast",
    group="string",
)  # fmt: skip
def getex(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the string of a key, or null, and set or remove the expiry of the key."""
    options = SetOptions(argv, 2, GETEX)
    ks, name = ctx.ks, argv[1]
    value = ks.read_string(name, ctx.now)
    if value is None:
        return reply.null(ctx.session.proto)
    expire_at = options.expire_at(ctx.now, "getex")
    if expire_at:
        set_expiry(ctx, name, expire_at)
    elif options.expiry == b"PERSIST" and ks.persist(name):
        ks.notify(events.GENERIC, b"persist", name)
    return long_bulk(value)


@command("STRLEN", key("RO"), flags="readonly fast", group="string")
def strlen(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the length of the string of a key in bytes, 0 if there is no such key."""
    return reply.integer(len(ctx.ks.read_string(argv[1], ctx.now) or b""))


@command("DIGEST", key("RO ACCESS"), flags="readonly fast", group="string", complexity="O(N): N bytes.")
def digest_(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the XXH3 hash of the string of a key as 16 hexadecimal digits, or null."""
    value = ctx.ks.read_string(argv[1], ctx.now)
    return bulk(ctx, None if value is None else digest(value))


# -- conditional deletes -------------------------------------------------------------------------------------------
@command(
    "DELEX", key("RW DELETE"), opt(oneof("condition", *COMPARED)), flags="write fast", group="string",
    reads=lambda argv: len(argv) > 2, traits="reads_keys", complexity="O(1); with IFDEQ and IFDNE O(N): N bytes.",
)  # fmt: skip
def delex(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete a key, optionally only if its string or digest matches a condition; return 1 if it was deleted."""
    name = argv[1]
    if len(argv) == 2:
        return reply.integer(int(delete(ctx, name)))
    if len(argv) != 4:
        raise errors.arity("delex")
    value = ctx.ks.get(name, ctx.now)
    if value is None:
        return reply.integer(0)
    if not isinstance(value, String):
        raise CommandError(_DELEX_NEEDS_STRING)
    condition = argv[2].upper()
    if condition not in COMPARISONS:
        raise CommandError(_DELEX_CONDITION)
    if not compares(condition, argv[3], value.value):
        return reply.integer(0)
    return reply.integer(int(delete(ctx, name)))


@command("DELIFEQ", key("RM ACCESS DELETE"), arg("value"), flags="write", group="string")
def delifeq(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete a key if its string equals a value; return 1 if it was deleted, otherwise 0."""
    if ctx.ks.string(argv[1], ctx.now) != argv[2]:
        return reply.integer(0)
    return reply.integer(int(delete(ctx, argv[1])))
