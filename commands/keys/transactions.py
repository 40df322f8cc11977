"""MULTI, EXEC, DISCARD, WATCH, UNWATCH.

Queueing is the dispatcher's: while ``session.multi`` it keeps each command that is right in itself in
``session.queued`` and answers QUEUED; one that is not sets ``session.exec_abort``.
"""

from __future__ import annotations

from commands.context import Context, Reply
from commands.declare import command, key
from resp import errors, reply
from resp.errors import CommandError


def forget_transaction(ctx: Context) -> None:
    """Back to a connection without MULTI and without watched keys."""
    session = ctx.session
    if session.watching:
        ctx.server.unwatch(session)
    session.multi = False
    session.exec_abort = False
    session.dirty_cas = False
    session.queued = []
    session.refresh()


def _expire_if_due(ctx: Context, name: bytes) -> bool:
    """Expire a watched key now, so that its end counts as the change that it is. True if a replica must not do so."""
    at = ctx.ks.expires.get(name)
    if at is None or at > ctx.now:
        return False
    if ctx.ks.follower:
        return True
    ctx.ks.expire_key(name)
    return False


@command(
    "MULTI", flags="noscript loading stale fast allow_busy", group="transactions", since="0.1.0", complexity="O(1)"
)
def multi(ctx: Context, argv: list[bytes]) -> Reply:
    """Start a transaction: queue what follows until EXEC."""
    if ctx.session.multi:
        raise CommandError(errors.MULTI_NESTED)
    ctx.session.multi = True
    ctx.session.refresh()
    return reply.OK


@command(
    "EXEC", flags="noscript loading stale skip_slowlog", group="transactions", since="0.1.0",
    complexity="Depends on the commands in the transaction.",
)
def exec_(ctx: Context, argv: list[bytes]) -> Reply:
    """Run the queued commands, all or none; null if a watched key changed."""
    session = ctx.session
    if not session.multi:
        raise CommandError(errors.EXEC_WITHOUT_MULTI)
    ended = [_expire_if_due(ctx, name) for name in session.watching]
    aborted, changed = session.exec_abort, session.dirty_cas or any(ended)
    if aborted or changed:
        forget_transaction(ctx)
        if aborted:
            raise CommandError(errors.EXEC_ABORT)
        return reply.null_array(session.proto)
    ctx.server.unwatch(session)
    try:
        return ctx.server.run_queued(ctx)
    finally:
        forget_transaction(ctx)


@command(
    "DISCARD", flags="noscript loading stale fast allow_busy", group="transactions", since="0.1.0",
    complexity="O(N): N queued commands.",
)
def discard(ctx: Context, argv: list[bytes]) -> Reply:
    """Forget the queued commands and the watched keys."""
    if not ctx.session.multi:
        raise CommandError(errors.DISCARD_WITHOUT_MULTI)
    forget_transaction(ctx)
    return reply.OK


@command(
    "WATCH", key("RO", multiple=True), flags="noscript loading stale fast allow_busy", group="transactions",
    since="0.1.0", complexity="O(1) for every key.",
)
def watch(ctx: Context, argv: list[bytes]) -> Reply:
    """Make the next EXEC do nothing if one of the keys changes before it."""
    if ctx.session.multi:
        raise CommandError(errors.WATCH_IN_MULTI)
    for name in argv[1:]:
        if name not in ctx.session.watching:
            _expire_if_due(ctx, name)
            ctx.server.watch(ctx.session, name)
    return reply.OK


@command(
    "UNWATCH", flags="noscript loading stale fast allow_busy", group="transactions", since="0.1.0", complexity="O(1)"
)
def unwatch(ctx: Context, argv: list[bytes]) -> Reply:
    """Forget the watched keys."""
    ctx.server.unwatch(ctx.session)
    ctx.session.dirty_cas = False
    return reply.OK
