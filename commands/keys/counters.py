"""Numbers in strings: INCR, DECR, INCRBY, DECRBY, INCRBYFLOAT."""

from __future__ import annotations

from typing import Final

from commands.context import Context, Reply
from commands.declare import arg, batch, command, key, together
from commands.keys import longdouble
from commands.keys.setoptions import store
from commands.parse import INT_MAX, INT_MIN, integer, is_integer
from resp import errors, reply
from resp.decode import Call
from resp.errors import CommandError
from storage.keyspace import events, stringgroups
from storage.keyspace.values import String

_OVERFLOW: Final = "ERR increment or decrement would overflow"
_DECREMENT_OVERFLOW: Final = "ERR decrement would overflow"
_NOT_FLOAT: Final = "ERR value is not a valid float"
_NOT_FINITE: Final = "ERR increment would produce NaN or Infinity"


def _add(ctx: Context, name: bytes, amount: int) -> bytes:
    ks, now = ctx.ks, ctx.now
    found = ks.get(name, now)
    if found is None:
        text = b"%d" % amount
        store(ctx, name, text, event=b"incrby")
        return b":%b\r\n" % text
    if not isinstance(found, String):
        raise errors.wrong_type()
    value = integer(found.value) + amount
    if not INT_MIN <= value <= INT_MAX:
        raise CommandError(_OVERFLOW)
    text = reply.decimal(value)
    ks.replace_string(name, found, text)
    found.used = now
    if ks.event_classes:
        ks.notify(events.STRING, b"incrby", name)
    return b":%b\r\n" % text


def _add_batch(ctx: Context, calls: list[list[bytes]], amount: int) -> list[bytes] | None:
    """Execute calls that add the same amount to one key: only the last sum is visible, so only that is stored. Returns
    Returns None if each change is observed, or if one of the calls could fail."""
    ks, name, count = ctx.ks, calls[0][1], len(calls)
    found = ks.keys.get(name)
    if ks.expires or ks.event_classes or ks.tracked or not isinstance(found, String) or not is_integer(found.value):
        return None
    value = int(found.value)
    if not INT_MIN <= value + count * amount <= INT_MAX:
        return None
    texts: list[bytes] = []
    for _ in range(count):
        value += amount
        texts.append(b":%b\r\n" % reply.decimal(value))
    ks.replace_string(name, found, reply.decimal(value))
    ks.passed_over(count - 1)
    found.used = ctx.now
    return texts


@command("INCR", key("RW ACCESS UPDATE"), flags="write denyoom fast", group="string")
def incr(ctx: Context, argv: list[bytes]) -> Reply:
    """Add 1 to the integer of a key (0 if the key does not exist) and return the sum."""
    return _add(ctx, argv[1], 1)


@batch("INCR")
def incr_batch(ctx: Context, calls: list[list[bytes]]) -> list[bytes] | None:
    """Execute INCRs of one key together."""
    return _add_batch(ctx, calls, 1)


@together("INCR")
def incr_together(ctx: Context, calls: list[Call], at: int, stop: int) -> tuple[bytes, int] | None:
    """Execute INCRs of different keys."""
    return stringgroups.add(ctx.ks, calls, at, stop, ctx.now, 1)


@command("DECR", key("RW ACCESS UPDATE"), flags="write denyoom fast", group="string")
def decr(ctx: Context, argv: list[bytes]) -> Reply:
    """Subtract 1 from the integer of a key (0 if the key does not exist) and return the difference."""
    return _add(ctx, argv[1], -1)


@batch("DECR")
def decr_batch(ctx: Context, calls: list[list[bytes]]) -> list[bytes] | None:
    """Execute DECRs of one key together."""
    return _add_batch(ctx, calls, -1)


@together("DECR")
def decr_together(ctx: Context, calls: list[Call], at: int, stop: int) -> tuple[bytes, int] | None:
    """Execute DECRs of different keys."""
    return stringgroups.add(ctx.ks, calls, at, stop, ctx.now, -1)


@command("INCRBY", key("RW ACCESS UPDATE"), arg("increment", "integer"), flags="write denyoom fast", group="string")
def incrby(ctx: Context, argv: list[bytes]) -> Reply:
    """Add to the integer of a key (0 if the key does not exist) and return the sum."""
    return _add(ctx, argv[1], integer(argv[2]))


@command("DECRBY", key("RW ACCESS UPDATE"), arg("decrement", "integer"), flags="write denyoom fast", group="string")
def decrby(ctx: Context, argv: list[bytes]) -> Reply:
    """Subtract from the integer of a key (0 if the key does not exist) and return the difference."""
    amount = integer(argv[2])
    if amount == INT_MIN:
        raise CommandError(_DECREMENT_OVERFLOW)
    return _add(ctx, argv[1], -amount)


@command("INCRBYFLOAT", key("RW ACCESS UPDATE"), arg("increment", "double"), flags="write denyoom fast", group="string")
def incrbyfloat(ctx: Context, argv: list[bytes]) -> Reply:
    """Add to the number of a key (0 if the key does not exist) and return the sum. The key keeps its expiry."""
    old = ctx.ks.string(argv[1], ctx.now)
    try:
        total = longdouble.add(longdouble.parse(b"0" if old is None else old), longdouble.parse(argv[2]))
    except ValueError:
        raise CommandError(_NOT_FLOAT) from None
    if total is None:
        raise CommandError(_NOT_FINITE)
    value = longdouble.text(total)
    store(ctx, argv[1], value, keep_ttl=True, event=b"incrbyfloat")
    return reply.bulk(value)
