"""CLIENT TRACKING, CACHING, TRACKINGINFO, GETREDIR: clients are notified when keys that they cache change."""

from __future__ import annotations

from functools import partial

from commands.context import Context, Reply
from commands.declare import MOST_NAMES, arg, block, command, oneof, opt, repeat, token
from commands.parse import each_option, integer
from commands.session import TrackingOptions
from resp import errors, reply
from resp.errors import CommandError

_own = partial(command, flags="noscript loading stale", traits="unpausable", group="connection")
_OPTIONS = {b"REDIRECT": 1, b"PREFIX": 1, b"BCAST": 0, b"OPTIN": 0, b"OPTOUT": 0, b"NOLOOP": 0}


def _parsed(ctx: Context, words: list[bytes]) -> tuple[TrackingOptions, list[bytes]]:
    """Return the options of CLIENT TRACKING and the prefixes. Raises CommandError."""
    caching, prefixes = TrackingOptions(), list[bytes]()
    for word, at in each_option(words, 0, _OPTIONS):
        if word == b"REDIRECT":
            if caching.redirect:
                raise CommandError(errors.ONE_REDIRECTION)
            caching.redirect = integer(words[at])
            if ctx.server.clients.get(caching.redirect) is None:
                raise CommandError(errors.NO_REDIRECTION)
        elif word == b"PREFIX":
            prefixes.append(words[at])
        elif word == b"BCAST":
            caching.bcast = True
        elif word == b"OPTIN":
            caching.optin = True
        elif word == b"OPTOUT":
            caching.optout = True
        else:
            caching.noloop = True
    return caching, prefixes


def _check(new: TrackingOptions, prefixes: list[bytes], old: TrackingOptions | None) -> None:
    """Raise CommandError if options are incompatible with each other or with those set earlier."""
    if prefixes and not new.bcast:
        raise CommandError(errors.PREFIX_NEEDS_BCAST)
    if old is not None and old.bcast != new.bcast:
        raise CommandError(errors.BCAST_STAYS)
    if new.bcast and (new.optin or new.optout):
        raise CommandError(errors.BCAST_AND_OPT)
    if new.optin and new.optout:
        raise CommandError(errors.OPTIN_AND_OPTOUT)
    if old is not None and ((new.optin and old.optout) or (new.optout and old.optin)):
        raise CommandError(errors.OPT_STAYS)
    _check_overlaps(prefixes, [] if old is None else sorted(old.prefixes))


def _check_overlaps(prefixes: list[bytes], existing: list[bytes]) -> None:
    """Raise CommandError for the first prefix that overlaps with an existing or a later one."""
    concerned = _overlapping([*prefixes, *existing])
    for at, prefix in enumerate(prefixes if concerned else ()):
        if prefix not in concerned:
            continue
        for other in existing:
            if _overlap(prefix, other):
                raise errors.prefix_overlaps(prefix, other, existing=True)
        for other in prefixes[at + 1 :]:
            if _overlap(prefix, other):
                raise errors.prefix_overlaps(prefix, other, existing=False)


def _overlapping(prefixes: list[bytes]) -> set[bytes]:
    """Return the prefixes that overlap with another one. In sorted order, names with a prefix directly follow it."""
    found: set[bytes] = set()
    first: bytes | None = None
    for prefix in sorted(prefixes):
        if first is not None and prefix.startswith(first):
            found.add(first)
            found.add(prefix)
        else:
            first = prefix
    return found


def _overlap(one: bytes, other: bytes) -> bool:
    """Return whether there are names that begin with both."""
    return one.startswith(other) or other.startswith(one)


@_own(
    "CLIENT|TRACKING", oneof("status", token("ON"), token("OFF")), opt(arg("client-id", "integer", token="REDIRECT")),
    opt(repeat(block("prefixes", arg("prefix", token="PREFIX")))), opt(token("BCAST")), opt(token("OPTIN")),
    opt(token("OPTOUT")), opt(token("NOLOOP")), most=2 * MOST_NAMES + 10,
)  # fmt: skip
def client_tracking(ctx: Context, argv: list[bytes]) -> Reply:
    """Turn notifications of changes of keys that this connection has read on or off; another one can receive them."""
    session = ctx.session
    caching, prefixes = _parsed(ctx, argv[3:])
    word = argv[2].upper()
    if word == b"ON":
        if len(prefixes) + (0 if session.caching is None else len(session.caching.prefixes)) > MOST_NAMES:
            raise CommandError(f"ERR a client can have at most {MOST_NAMES} prefixes")
        _check(caching, prefixes, session.caching)
        caching.prefixes.update(prefixes)
        ctx.server.tracking.enable(session, caching)
    elif word == b"OFF":
        ctx.server.tracking.disable(session)
    else:
        raise errors.syntax()
    return reply.OK


@_own("CLIENT|CACHING", oneof("mode", token("YES"), token("NO")))
def client_caching(ctx: Context, argv: list[bytes]) -> Reply:
    """Set whether the reads of the next command are tracked, if CLIENT TRACKING was called with OPTIN or OPTOUT."""
    caching = ctx.session.caching
    if caching is None:
        raise CommandError(errors.NOT_CACHING)
    word = argv[2].upper()
    if word == b"YES":
        if not caching.optin:
            raise CommandError(errors.NOT_OPTIN)
    elif word == b"NO":
        if not caching.optout:
            raise CommandError(errors.NOT_OPTOUT)
    else:
        raise errors.syntax()
    caching.called = True
    return reply.OK


@_own("CLIENT|GETREDIR")
def client_getredir(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the ID of the connection that is notified instead of this one; 0: none, -1: no CLIENT TRACKING."""
    caching = ctx.session.caching
    return reply.integer(-1 if caching is None else caching.redirect)


@_own("CLIENT|TRACKINGINFO")
def client_trackinginfo(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the CLIENT TRACKING options of this connection."""
    proto, caching = ctx.session.proto, ctx.session.caching
    flags = [b"off"] if caching is None else _flags(caching)
    prefixes = [] if caching is None else sorted(caching.prefixes)
    return reply.map_reply(proto, [
        (reply.bulk(b"flags"), reply.set_reply(proto, [reply.bulk(flag) for flag in flags])),
        (reply.bulk(b"redirect"), reply.integer(-1 if caching is None else caching.redirect)),
        (reply.bulk(b"prefixes"), reply.bulk_array(prefixes)),
    ])  # fmt: skip


def _flags(caching: TrackingOptions) -> list[bytes]:
    shown = (
        (b"on", True), (b"bcast", caching.bcast), (b"optin", caching.optin),
        (b"caching-yes", caching.optin and caching.called), (b"optout", caching.optout),
        (b"caching-no", caching.optout and caching.called), (b"noloop", caching.noloop),
        (b"broken_redirect", caching.broken),
    )  # fmt: skip
    return [name for name, is_set in shown if is_set]
