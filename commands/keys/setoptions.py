"""Options, conditions, and the maximum length, shared by the commands that set strings.

IFEQ, IFNE, IFDEQ and IFDNE follow Redis 8.4. A digest is XXH3, 64 bits, in 16 hexadecimal digits.
"""

from __future__ import annotations

from typing import Final

import xxhash

from commands.context import Chunks, Context
from commands.declare import Arg, arg
from commands.parse import INT_MAX, integer, invalid_expire
from commands.slicing import long_bulk
from resp import errors, reply
from resp.errors import CommandError
from storage.keyspace import events
from storage.keyspace.values import String, Value

_BAD_DIGEST: Final = "ERR must be exactly 16 hexadecimal characters"
_TOO_LONG: Final = "ERR string exceeds maximum allowed size (proto-max-bulk-len)"

COMPARISONS: Final = (b"IFEQ", b"IFNE", b"IFDEQ", b"IFDNE")

# ms per unit of the option, and whether it counts from now
EXPIRY_UNITS: Final = {b"EX": (1000, True), b"PX": (1, True), b"EXAT": (1000, False), b"PXAT": (1, False)}

EXPIRY: Final[tuple[Arg, ...]] = (
    arg("seconds", "integer", token="EX"),
    arg("milliseconds", "integer", token="PX"),
    arg("unix-time-seconds", "unix-time", token="EXAT"),
    arg("unix-time-milliseconds", "unix-time", token="PXAT"),
)
COMPARED: Final[tuple[Arg, ...]] = (
    arg("ifeq-value", token="IFEQ"),
    arg("ifne-value", token="IFNE"),
    arg("ifdeq-digest", "integer", token="IFDEQ"),
    arg("ifdne-digest", "integer", token="IFDNE"),
)

# the commands that have Options
SET: Final = "set"
GETEX: Final = "getex"
MSETEX: Final = "msetex"


class SetOptions:
    """The options of SET, GETEX or MSETEX. As in Redis, an option may be repeated (the last one counts), but options
    that exclude each other may not be combined."""

    __slots__ = ("condition", "expected", "expiry", "get", "time")

    def __init__(self, argv: list[bytes], start: int, command: str) -> None:
        """Parse the options. Raises CommandError if the syntax is invalid."""
        self.condition = b""  # NX, XX, or one of COMPARISONS
        self.expected = b""  # the value or digest of a comparison
        self.expiry = b""  # EX, PX, EXAT, PXAT, KEEPTTL, PERSIST
        self.time = b""  # the value of EX, PX, EXAT or PXAT
        self.get = False
        at = start
        while at < len(argv):
            word = argv[at].upper()
            more = at + 1 < len(argv)
            if word in EXPIRY_UNITS and more and self.expiry in (b"", word):
                self.expiry, self.time = word, argv[at + 1]
                at += 1
            elif command != GETEX and word in (b"NX", b"XX") and self.condition in (b"", word):
                self.condition = word
            elif command == SET and word in COMPARISONS and more and self.condition in (b"", word):
                self.condition, self.expected = word, argv[at + 1]
                at += 1
            elif command == SET and word == b"GET":
                self.get = True
            elif word == (b"PERSIST" if command == GETEX else b"KEEPTTL") and self.expiry in (b"", word):
                self.expiry = word
            else:
                raise errors.syntax()
            at += 1

    def expire_at(self, now: int, name: str) -> int:
        """Return the expiry in ms since epoch; 0 without EX, PX, EXAT and PXAT. Raises CommandError."""
        if self.expiry not in EXPIRY_UNITS:
            return 0
        unit, relative = EXPIRY_UNITS[self.expiry]
        return expiry(self.time, unit, now if relative else 0, name)


def expiry(time: bytes, unit: int, base: int, name: str) -> int:
    """Convert ``time``, in units of ``unit`` ms from ``base`` on, to an expiry in ms since epoch. Raises CommandError
    unless it is positive. ``name``: the command's name in lower case."""
    when = integer(time) * unit
    if when <= 0 or when > INT_MAX:
        raise invalid_expire(name)
    when += base
    if when > INT_MAX:
        raise invalid_expire(name)
    return when


def compares(condition: bytes, expected: bytes, old: bytes | None) -> bool:
    """Return whether a condition of COMPARISONS holds for a value. A missing value (None) equals nothing. Raises
    CommandError for a malformed digest but, as in Redis, only if it must be compared."""
    if old is None:
        return condition in (b"IFNE", b"IFDNE")
    if condition in (b"IFEQ", b"IFNE"):
        return (old == expected) == (condition == b"IFEQ")
    if len(expected) != 16:
        raise CommandError(_BAD_DIGEST)
    return (digest(old) == expected.lower()) == (condition == b"IFDEQ")


def digest(value: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(value).encode()


def store(
    ctx: Context, name: bytes, value: bytes, expire_at: int = 0, keep_ttl: bool = False, event: bytes = b"set"
) -> None:  # fmt: skip
    """Set a string and publish ``event`` and ``expire``. If ``expire_at`` is not in the future, delete the key."""
    ks = ctx.ks
    if expire_at and expire_at <= ctx.now:
        delete(ctx, name)
        return
    if ks.event_classes and event == b"set":
        notify_overwritten(ctx, name, String)
    string = ks.set_string(name, value, expire_at, keep_ttl)
    string.used = ctx.now
    if ks.event_classes:
        ks.notify(events.STRING, event, name)
        if expire_at:
            ks.notify(events.GENERIC, b"expire", name)


def notify_overwritten(ctx: Context, name: bytes, kind: type[Value]) -> None:
    """Publish the events that Redis publishes before an existing value is replaced by one of this kind."""
    old = ctx.ks.keys.get(name)
    if old is not None:
        ctx.ks.notify(events.OVERWRITTEN, b"overwritten", name)
        if not isinstance(old, kind):
            ctx.ks.notify(events.TYPE_CHANGED, b"type_changed", name)


def delete(ctx: Context, name: bytes) -> bool:
    """Delete a key and publish ``del``. Returns False if there is no such key."""
    if not ctx.ks.delete(name, ctx.now):
        return False
    ctx.ks.notify(events.GENERIC, b"del", name)
    return True


def set_expiry(ctx: Context, name: bytes, when: int) -> None:
    """Set the expiry of an existing key, in ms since epoch, and publish ``expire``; delete the key if it is due."""
    if when <= ctx.now:
        delete(ctx, name)
    else:
        ctx.ks.set_expire(name, when)
        ctx.ks.notify(events.GENERIC, b"expire", name)


def bulk(ctx: Context, value: bytes | None) -> bytes | Chunks:
    """Return the reply for a value; None if it is missing."""
    return reply.null(ctx.session.proto) if value is None else long_bulk(value)


def check_length(ctx: Context, size: int) -> None:
    """Raise CommandError if a string of ``size`` bytes is too long."""
    if size > int(ctx.server.config.value("proto-max-bulk-len")):
        raise CommandError(_TOO_LONG)
