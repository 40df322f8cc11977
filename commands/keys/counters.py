"""Numbers in strings: INCR, DECR, INCRBY, DECRBY, INCRBYFLOAT."""

from __future__ import annotations

from typing import Final

from commands.context import Context, Reply
from commands.declare import arg, command, key
from commands.keys import longdouble
from commands.keys.setting import store
from commands.parse import INT_MAX, INT_MIN, integer
from resp import reply
from resp.errors import CommandError

_OVERFLOW: Final = "ERR increment or decrement would overflow"
_DECREMENT_OVERFLOW: Final = "ERR decrement would overflow"
_NOT_FLOAT: Final = "ERR value is not a valid float"
_NOT_FINITE: Final = "ERR increment would produce NaN or Infinity"


def _add(ctx: Context, name: bytes, amount: int) -> bytes:
    old = ctx.ks.string(name, ctx.now)
    value = (integer(old) if old is not None else 0) + amount
    if not INT_MIN <= value <= INT_MAX:
        raise CommandError(_OVERFLOW)
    store(ctx, name, b"%d" % value, keep_ttl=True)
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


@command(
    "INCRBYFLOAT", key("RW ACCESS UPDATE"), arg("increment", "double"),
    flags="write denyoom fast", group="string", complexity="O(1)",
)  # fmt: skip
def incrbyfloat(ctx: Context, argv: list[bytes]) -> Reply:
    """Add to the number of a key, which is 0 if there is no such key, and return the sum. The key keeps its expiry."""
    old = ctx.ks.string(argv[1], ctx.now)
    try:
        total = longdouble.add(longdouble.parse(b"0" if old is None else old), longdouble.parse(argv[2]))
    except ValueError:
        raise CommandError(_NOT_FLOAT) from None
    if total is None:
        raise CommandError(_NOT_FINITE)
    value = longdouble.text(total)
    store(ctx, argv[1], value, keep_ttl=True)
    return reply.bulk(value)
