"""MULTI, EXEC, DISCARD, WATCH, UNWATCH.

The dispatcher queues commands: while ``session.multi`` is set, it adds each valid command to ``session.queued`` and
replies QUEUED. An invalid one sets ``session.exec_abort``.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from commands.context import Context, Reply
from commands.declare import MOST_NAMES, command, key
from resp import errors, reply
from resp.errors import AbsentNodeError, CommandError

# maximum keys of one client: they are all dropped in one step, also when it disconnects
MOST_WATCHED: Final = MOST_NAMES

_transaction = partial(command, flags="noscript loading stale fast allow_busy", group="transactions")


def _expire_if_due(ctx: Context, name: bytes) -> bool:
    """Delete a watched key that has expired, which counts as a change. Returns True if the key must stay: on a replica,
    and while writes are delayed."""
    at = ctx.ks.expires.get(name)
    if at is None or at > ctx.now:
        return False
    if ctx.ks.follower or ctx.ks.frozen:
        return True
    ctx.ks.expire_key(name)
    return False


@_transaction("MULTI", traits="immediate")
def multi(ctx: Context, argv: list[bytes]) -> Reply:
    """Start a transaction: the commands until EXEC are queued."""
    if ctx.session.multi:
        raise CommandError(errors.MULTI_NESTED)
    ctx.session.multi = True
    ctx.session.refresh()
    return reply.OK


@command(
    "EXEC", flags="noscript loading stale skip_slowlog", traits="immediate runs_queue", group="transactions",
    complexity="Depends on the commands in the transaction.",
)  # fmt: skip
def exec_(ctx: Context, argv: list[bytes]) -> Reply:
    """Run the queued commands; if a watched key has changed, run none and return null."""
    session = ctx.session
    if not session.multi:
        raise CommandError(errors.EXEC_WITHOUT_MULTI)
    ended = [_expire_if_due(ctx, name) for name in session.watching]
    aborted, changed = session.exec_abort, session.dirty_cas or any(ended)
    if aborted or changed:
        session.end_transaction(ctx.ks)
        if aborted:
            raise CommandError(errors.EXEC_ABORT)
        return reply.null_array(session.proto)
    watched = list(session.watching)
    session.unwatch(ctx.ks)
    try:
        answer = ctx.server.transactions.run_queued(ctx)
    except AbsentNodeError:  # nothing has changed; EXEC is repeated later
        for name in watched:
            session.watch(ctx.ks, name)
        raise
    except BaseException:
        session.end_transaction(ctx.ks)
        raise
    session.end_transaction(ctx.ks)
    return answer


@_transaction("DISCARD", traits="immediate", complexity="O(N): N queued commands.")
def discard(ctx: Context, argv: list[bytes]) -> Reply:
    """Drop the queued commands and the watched keys."""
    if not ctx.session.multi:
        raise CommandError(errors.DISCARD_WITHOUT_MULTI)
    ctx.session.end_transaction(ctx.ks)
    return reply.OK


@_transaction(
    "WATCH", key("RO", multiple=True), traits="immediate", complexity="O(1) for every key.", most=MOST_WATCHED,
)  # fmt: skip
def watch(ctx: Context, argv: list[bytes]) -> Reply:
    """Make the next EXEC run nothing if one of the keys changes before it."""
    if ctx.session.multi:
        raise CommandError(errors.WATCH_IN_MULTI)
    new = [name for name in dict.fromkeys(argv[1:]) if name not in ctx.session.watching]
    if len(ctx.session.watching) + len(new) > MOST_WATCHED:
        raise CommandError(f"ERR a client can watch at most {MOST_WATCHED} keys")
    for name in new:
        _expire_if_due(ctx, name)
        ctx.session.watch(ctx.ks, name)
    return reply.OK


@_transaction("UNWATCH")
def unwatch(ctx: Context, argv: list[bytes]) -> Reply:
    """Stop watching all keys."""
    ctx.session.unwatch(ctx.ks)
    ctx.session.dirty_cas = False
    return reply.OK
