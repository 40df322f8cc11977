"""INCREX of Redis 8.8: a counter with bounds and an expiry, for example the window counter of a rate limiter.

Rule: a call that is rejected because of the bounds changes nothing, not even the expiry. Its reply contains the current
number and an increment of 0.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from commands.context import Context, Reply
from commands.declare import arg, command, key, oneof, opt, token
from commands.keys import longdouble
from commands.keys.setoptions import EXPIRY, EXPIRY_UNITS, expiry, store
from commands.parse import INT_MAX, INT_MIN, integer
from resp import errors, reply
from resp.errors import CommandError
from storage.keyspace import events

_NEEDS_EXPIRATION: Final = "ERR ENX flag requires an expiration"
_BOUNDS: Final = "ERR LBOUND can't be greater than UBOUND"
_NOT_INTEGER: Final = "ERR {} is not an integer or out of range"
_NOT_FLOAT: Final = "ERR {} is not a valid float"
_INFINITE_INCREMENT: Final = "ERR BYFLOAT increment cannot be Infinity"
_INFINITE_VALUE: Final = "ERR value cannot be Infinity"
_OVERFLOW: Final = "ERR applied increment would overflow"
_NOT_FINITE: Final = "ERR increment would produce NaN or Infinity"

Number = int | Fraction
Bound = Number | float  # a bound of BYFLOAT can be infinite


class _Options:
    """The options of a call. Unlike those of SET, they can't be repeated."""

    __slots__ = ("by", "enx", "expiry", "floats", "lower", "saturate", "time", "upper")

    def __init__(self, argv: list[bytes]) -> None:
        """Parse the options. Raises CommandError if the syntax is invalid."""
        values: dict[bytes, bytes] = {}
        at, end = 2, len(argv)
        while at < end:
            word = argv[at].upper()
            words = 1 if word in (b"SATURATE", b"PERSIST", b"ENX") else 2
            if word not in _WORDS or word in values or at + words > end:
                raise errors.syntax()
            values[word] = argv[at + words - 1]
            at += words
        expiries = [word for word in values if word in EXPIRY_UNITS or word == b"PERSIST"]
        persists = b"PERSIST" in values
        self.enx = b"ENX" in values
        if len(expiries) > 1 or (b"BYINT" in values and b"BYFLOAT" in values) or (persists and self.enx):
            raise errors.syntax()
        self.expiry = expiries[0] if expiries else b""  # EX, PX, EXAT, PXAT, PERSIST, or empty
        if self.enx and not self.expiry:
            raise CommandError(_NEEDS_EXPIRATION)
        self.time = values.get(self.expiry, b"")
        self.saturate = b"SATURATE" in values
        self.floats = b"BYFLOAT" in values
        self.by = self._increment(values)
        self.lower: Bound = self._bound(values, b"LBOUND", -longdouble.LARGEST if self.floats else INT_MIN)
        self.upper: Bound = self._bound(values, b"UBOUND", longdouble.LARGEST if self.floats else INT_MAX)
        if self.lower > self.upper:
            raise CommandError(_BOUNDS)

    def _increment(self, values: dict[bytes, bytes]) -> Number:
        if not self.floats:
            raw = values.get(b"BYINT")
            return 1 if raw is None else integer(raw, _NOT_INTEGER.format("Increment"))
        number = _float(values[b"BYFLOAT"], "Increment")
        if isinstance(number, float):
            raise CommandError(_INFINITE_INCREMENT)
        return number

    def _bound(self, values: dict[bytes, bytes], word: bytes, default: Number) -> Bound:
        raw = values.get(word)
        if raw is None:
            return default
        name = word.decode()
        return _float(raw, name) if self.floats else integer(raw, _NOT_INTEGER.format(name))

    def expire_at(self, now: int) -> int:
        """Return the expiry in ms since epoch; 0 without one. Raises CommandError."""
        if self.expiry not in EXPIRY_UNITS:
            return 0
        unit, relative = EXPIRY_UNITS[self.expiry]
        return expiry(self.time, unit, now if relative else 0, "increx")


_WORDS: Final = frozenset(
    (b"BYFLOAT", b"BYINT", b"SATURATE", b"LBOUND", b"UBOUND", b"EX", b"PX", b"EXAT", b"PXAT", b"PERSIST", b"ENX")
)


def _float(raw: bytes, name: str) -> Fraction | float:
    """Parse a number, which can be infinite. Raises CommandError with its name."""
    try:
        number = longdouble.parse(raw)
    except ValueError:
        raise CommandError(_NOT_FLOAT.format(name)) from None
    if number is None:
        return -math.inf if raw.startswith(b"-") else math.inf
    return number


@command(
    "INCREX", key("RW ACCESS UPDATE"),
    opt(oneof("increment", arg("float", "double", token="BYFLOAT"), arg("integer", "integer", token="BYINT"))),
    opt(token("SATURATE")), opt(arg("lowerbound", token="LBOUND")), opt(arg("upperbound", token="UBOUND")),
    opt(oneof("expiration", *EXPIRY, token("PERSIST"))), opt(token("ENX")),
    flags="write denyoom fast", group="string",
)  # fmt: skip
def increx(ctx: Context, argv: list[bytes]) -> Reply:
    """Add to the number of a key within bounds, and set its expiry; return the sum and the increment applied."""
    options = _Options(argv)
    expire_at = options.expire_at(ctx.now)
    name = argv[1]
    raw = ctx.ks.string(name, ctx.now)
    old = _current(raw, options.floats)
    new, applied = _sum(old, options)
    if new is None:
        return _numbers(ctx, options, old, 0)
    expires = raw is not None and bool(ctx.ks.expire_at(name))
    if options.enx and expires:
        expire_at = 0
    persists = options.expiry == b"PERSIST"
    event = b"incrbyfloat" if options.floats else b"incrby"
    store(ctx, name, _text(new), expire_at, keep_ttl=not expire_at and not persists, event=event)
    if persists and expires:
        ctx.ks.notify(events.GENERIC, b"persist", name)
    return _numbers(ctx, options, new, applied)


def _current(raw: bytes | None, floats: bool) -> Number:
    """Return the number of the key. Raises CommandError."""
    if raw is None:
        return Fraction(0) if floats else 0
    if not floats:
        return integer(raw)
    number = _float(raw, "value")
    if isinstance(number, float):
        raise CommandError(_INFINITE_VALUE)
    return number


def _sum(old: Number, options: _Options) -> tuple[Number | None, Number]:
    """Return the new number and the applied increment; None and 0 if the call is rejected. Raises CommandError if the
    applied increment can't be represented."""
    exact = old + options.by
    total: Number | None = exact
    if options.floats:
        total = longdouble.add(Fraction(old), Fraction(options.by))  # None: beyond the largest number
    if total is not None and options.lower <= total <= options.upper:
        return total, options.by
    if not options.saturate:
        return None, 0
    above = exact > 0 if total is None else total > options.upper
    bound = options.upper if above else options.lower
    if isinstance(bound, float):
        raise CommandError(_NOT_FINITE)
    if not options.floats:
        applied: Number | None = bound - old
        if not INT_MIN <= bound - old <= INT_MAX:
            raise CommandError(_OVERFLOW)
    else:
        applied = longdouble.add(Fraction(bound), Fraction(-old))
    if applied is None:
        raise CommandError(_NOT_FINITE)
    return bound, applied


def _text(number: Number) -> bytes:
    return longdouble.text(number) if isinstance(number, Fraction) else b"%d" % number


def _numbers(ctx: Context, options: _Options, number: Number, applied: Number) -> bytes:
    """Return the reply: integers, or with BYFLOAT doubles (RESP3) or bulk strings (RESP2)."""
    texts = [_text(number), _text(applied)]
    if not options.floats:
        return b"*2\r\n:%b\r\n:%b\r\n" % (texts[0], texts[1])
    if ctx.session.proto == 3:
        return b"*2\r\n,%b\r\n,%b\r\n" % (texts[0], texts[1])
    return b"*2\r\n" + reply.bulk(texts[0]) + reply.bulk(texts[1])
