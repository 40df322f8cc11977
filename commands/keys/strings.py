"""Strings: SET, GET and related commands, counters, conditional writes and deletes.

DELEX, and IFEQ and IFNE of SET, follow Redis 8.4; DELIFEQ follows Valkey 9.
"""

from __future__ import annotations

from commands.context import Context, Reply
from commands.declare import Arg, arg, block, command, key, oneof, opt, repeat, token
from commands.parse import INT_MAX, INT_MIN, integer, invalid_expire
from commands.parts import long_array
from resp import errors, reply
from resp.errors import CommandError
from storage import manykeys
from storage.values import String

_OVERFLOW = "ERR increment or decrement would overflow"
_DECREMENT_OVERFLOW = "ERR decrement would overflow"
_DELEX_NEEDS_STRING = "ERR Key should be of string type if conditions are specified"
_DELEX_CONDITION = "ERR Invalid condition. Use IFEQ or IFNE"

# ms in a unit of the option, and whether it counts from now
_EXPIRY_UNITS = {b"EX": (1000, True), b"PX": (1, True), b"EXAT": (1000, False), b"PXAT": (1, False)}

_EXPIRY: tuple[Arg, ...] = (
    arg("seconds", "integer", token="EX"),
    arg("milliseconds", "integer", token="PX"),
    arg("unix-time-seconds", "unix-time", token="EXAT"),
    arg("unix-time-milliseconds", "unix-time", token="PXAT"),
)


class _Options:
    """The options of SET or GETEX. As in Redis an option may be given twice (the last one counts), but not two options
    that exclude each other.
    """

    __slots__ = ("condition", "expected", "expiry", "get", "time")

    def __init__(self, argv: list[bytes], start: int, for_set: bool) -> None:
        """Raises CommandError: a syntax error."""
        self.condition = b""  # NX, XX, IFEQ, IFNE
        self.expected = b""  # the value of IFEQ or IFNE
        self.expiry = b""  # EX, PX, EXAT, PXAT, KEEPTTL, PERSIST
        self.time = b""  # the value of the first four
        self.get = False
        at = start
        while at < len(argv):
            word = argv[at].upper()
            more = at + 1 < len(argv)
            if word in _EXPIRY_UNITS and more and self.expiry in (b"", word):
                self.expiry, self.time = word, argv[at + 1]
                at += 1
            elif for_set and word in (b"NX", b"XX") and self.condition in (b"", word):
                self.condition = word
            elif for_set and word in (b"IFEQ", b"IFNE") and more and self.condition in (b"", word):
                self.condition, self.expected = word, argv[at + 1]
                at += 1
            elif for_set and word == b"GET":
                self.get = True
            elif word == (b"KEEPTTL" if for_set else b"PERSIST") and self.expiry in (b"", word):
                self.expiry = word
            else:
                raise errors.syntax()
            at += 1

    def expire_at(self, now: int, name: str) -> int:
        """The expiry in ms since epoch; 0 without EX, PX, EXAT and PXAT. Raises CommandError."""
        if self.expiry not in _EXPIRY_UNITS:
            return 0
        unit, relative = _EXPIRY_UNITS[self.expiry]
        when = integer(self.time) * unit
        if when <= 0 or when > INT_MAX:
            raise invalid_expire(name)
        if relative:
            when += now
        if when > INT_MAX:
            raise invalid_expire(name)
        return when


def _store(ctx: Context, name: bytes, value: bytes, expire_at: int = 0, keep_ttl: bool = False) -> None:
    """Set a string. If ``expire_at`` is not in the future, delete the key."""
    if expire_at and expire_at <= ctx.now:
        ctx.ks.delete(name, ctx.now)
        return
    ctx.ks.set_string(name, value, expire_at, keep_ttl)
    ctx.ks.keys[name].used = ctx.now


def _set_reads(argv: list[bytes]) -> bool:
    """Whether a SET returns or compares the old value."""
    return any(word.upper() in (b"GET", b"IFEQ", b"IFNE") for word in argv[3:])


# -- one key -----------------------------------------------------------------------------------------------------
@command(
    "SET", key("RW ACCESS UPDATE VARIABLE_FLAGS"), arg("value"),
    opt(oneof(
        "condition",
        token("NX"), token("XX"), arg("ifeq-value", token="IFEQ"), arg("ifne-value", token="IFNE"),
    )),
    opt(token("GET")),
    opt(oneof("expiration", *_EXPIRY, token("KEEPTTL"))),
    flags="write denyoom", group="string", complexity="O(1)", reads=_set_reads,
)  # fmt: skip
def set_(ctx: Context, argv: list[bytes]) -> Reply:
    """Set a key to a string; options add a condition, an expiry, or return the old value."""
    if len(argv) == 3:
        _store(ctx, argv[1], argv[2])
        return reply.OK
    options = _Options(argv, 3, for_set=True)
    expire_at = options.expire_at(ctx.now, "set")
    found = ctx.ks.read(argv[1], ctx.now) if options.get else ctx.ks.get(argv[1], ctx.now)
    old = found.value if isinstance(found, String) else None
    compares = options.condition in (b"IFEQ", b"IFNE")
    if found is not None and old is None and (options.get or compares):
        raise errors.wrong_type()
    if compares:
        holds = (old == options.expected) == (options.condition == b"IFEQ")  # a missing key is equal to no value
    else:
        holds = not options.condition or (found is None) == (options.condition == b"NX")
    if holds:
        _store(ctx, argv[1], argv[2], expire_at, options.expiry == b"KEEPTTL")
    if options.get:
        return _bulk(ctx, old)
    return reply.OK if holds else reply.null(ctx.session.proto)


def _bulk(ctx: Context, value: bytes | None) -> bytes:
    return reply.null(ctx.session.proto) if value is None else reply.bulk(value)


@command("SETNX", key("OW INSERT"), arg("value"), flags="write denyoom fast", group="string", complexity="O(1)")
def setnx(ctx: Context, argv: list[bytes]) -> Reply:
    """Set a key to a string if there is no such key; return 1 if it was set, else 0."""
    if ctx.ks.get(argv[1], ctx.now) is not None:
        return reply.integer(0)
    _store(ctx, argv[1], argv[2])
    return reply.integer(1)


@command("GET", key("RO ACCESS"), flags="readonly fast", group="string", complexity="O(1)")
def get(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the string of a key, or null."""
    return _bulk(ctx, ctx.ks.read_string(argv[1], ctx.now))


@command("GETDEL", key("RW ACCESS DELETE"), flags="write fast", group="string", complexity="O(1)")
def getdel(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the string of a key, or null, and delete the key."""
    value = ctx.ks.read_string(argv[1], ctx.now)
    if value is not None:
        ctx.ks.delete(argv[1], ctx.now)
    return _bulk(ctx, value)


@command(
    "GETEX", key("RW ACCESS UPDATE"), opt(oneof("expiration", *_EXPIRY, token("PERSIST"))),
    flags="write fast", group="string", complexity="O(1)",
)  # fmt: skip
def getex(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the string of a key, or null, and set or remove the expiry of the key."""
    options = _Options(argv, 2, for_set=False)
    ks, name = ctx.ks, argv[1]
    value = ks.read_string(name, ctx.now)
    if value is None:
        return reply.null(ctx.session.proto)
    expire_at = options.expire_at(ctx.now, "getex")
    if expire_at > ctx.now:
        ks.set_expire(name, expire_at)
    elif expire_at:
        ks.delete(name, ctx.now)
    elif options.expiry == b"PERSIST":
        ks.persist(name)
    return reply.bulk(value)


@command("STRLEN", key("RO"), flags="readonly fast", group="string", complexity="O(1)")
def strlen(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the length of the string of a key in bytes, 0 if there is no such key."""
    return reply.integer(len(ctx.ks.read_string(argv[1], ctx.now) or b""))


# -- several keys --------------------------------------------------------------------------------------------------
@command("MGET", repeat(key("RO ACCESS")), flags="readonly fast", group="string", complexity="O(N): N keys.")
def mget(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the strings of several keys, null for a key that doesn't exist or holds no string."""
    found = manykeys.read_many(ctx.ks, argv[1:], ctx.now)
    values = [value.value if isinstance(value, String) else None for value in found]
    return long_array(values, reply.null(ctx.session.proto))


@command(
    "MSET", repeat(block("data", key("OW UPDATE"), arg("value"))),
    flags="write denyoom", group="string", complexity="O(N): N keys.",
)  # fmt: skip
def mset(ctx: Context, argv: list[bytes]) -> Reply:
    """Set several keys to strings in one step."""
    if len(argv) % 2 == 0:
        raise errors.arity("mset")
    manykeys.set_strings(ctx.ks, argv[1::2], argv[2::2], ctx.now)
    return reply.OK


# -- counters ------------------------------------------------------------------------------------------------------
def _add(ctx: Context, name: bytes, amount: int) -> bytes:
    old = ctx.ks.string(name, ctx.now)
    value = (integer(old) if old is not None else 0) + amount
    if not INT_MIN <= value <= INT_MAX:
        raise CommandError(_OVERFLOW)
    _store(ctx, name, b"%d" % value, keep_ttl=True)
    return reply.integer(value)


@command("INCR", key("RW ACCESS UPDATE"), flags="write denyoom fast", group="string", complexity="O(1)")
def incr(ctx: Context, argv: list[bytes]) -> Reply:
    """Add 1 to the integer of a key, which is 0 if there is no such key, and return the sum."""
    return _add(ctx, argv[1], 1)


@command("DECR", key("RW ACCESS UPDATE"), flags="write denyoom fast", group="string", complexity="O(1)")
def decr(ctx: Context, argv: list[bytes]) -> Reply:
    """Subtract 1 from the integer of a key, which is 0 if there is no such key, and return the difference."""
    return _add(ctx, argv[1], -1)


@command(
    "INCRBY", key("RW ACCESS UPDATE"), arg("increment", "integer"),
    flags="write denyoom fast", group="string", complexity="O(1)",
)  # fmt: skip
def incrby(ctx: Context, argv: list[bytes]) -> Reply:
    """Add to the integer of a key, which is 0 if there is no such key, and return the sum."""
    return _add(ctx, argv[1], integer(argv[2]))


@command(
    "DECRBY", key("RW ACCESS UPDATE"), arg("decrement", "integer"),
    flags="write denyoom fast", group="string", complexity="O(1)",
)  # fmt: skip
def decrby(ctx: Context, argv: list[bytes]) -> Reply:
    """Subtract from the integer of a key, which is 0 if there is no such key, and return the difference."""
    amount = integer(argv[2])
    if amount == INT_MIN:
        raise CommandError(_DECREMENT_OVERFLOW)
    return _add(ctx, argv[1], -amount)


# -- conditional deletes -------------------------------------------------------------------------------------------
@command(
    "DELEX", key("RW DELETE"),
    opt(oneof("condition", arg("ifeq-value", token="IFEQ"), arg("ifne-value", token="IFNE"))),
    flags="write fast", group="string", complexity="O(1)",
)  # fmt: skip
def delex(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete a key, with a condition only if its string equals a value or differs from it; return 1 if deleted."""
    name = argv[1]
    if len(argv) == 2:
        return reply.integer(int(ctx.ks.delete(name, ctx.now)))
    if len(argv) != 4:
        raise errors.arity("delex")
    condition = argv[2].upper()
    if condition not in (b"IFEQ", b"IFNE"):
        raise CommandError(_DELEX_CONDITION)
    value = ctx.ks.get(name, ctx.now)
    if value is None:
        return reply.integer(0)
    if not isinstance(value, String):
        raise CommandError(_DELEX_NEEDS_STRING)
    if (value.value == argv[3]) != (condition == b"IFEQ"):
        return reply.integer(0)
    return reply.integer(int(ctx.ks.delete(name, ctx.now)))


@command("DELIFEQ", key("RM ACCESS DELETE"), arg("value"), flags="write", group="string", complexity="O(1)")
def delifeq(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete a key if its string equals a value; return 1 if it was deleted, else 0."""
    if ctx.ks.string(argv[1], ctx.now) != argv[2]:
        return reply.integer(0)
    return reply.integer(int(ctx.ks.delete(argv[1], ctx.now)))
