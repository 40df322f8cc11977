"""INFO, TIME, MONITOR, DBSIZE, FLUSHALL, FLUSHDB, SAVE, BGSAVE, BGREWRITEAOF, LASTSAVE, SHUTDOWN."""

from __future__ import annotations

from functools import partial

from commands.context import Context, Reply
from commands.declare import arg, command, oneof, opt, token
from resp import errors, reply
from resp.errors import CommandError

_saving = partial(command, group="server", since="0.1.0", complexity="O(N): N changes since the last checkpoint.")
_flush = partial(
    command, flags="write", group="server", since="0.1.0", acl="keyspace dangerous",
    complexity="O(N): N keys and macro nodes.",
)  # fmt: skip


@command(
    "INFO", opt(arg("section", multiple=True)), flags="loading stale", group="server", since="0.1.0", acl="dangerous",
    complexity="O(N): N clients and streams.",
)
def info(ctx: Context, argv: list[bytes]) -> Reply:
    """Return stats of the server, by section."""
    text = ctx.server.stats.info([word.decode("latin-1").lower() for word in argv[1:]])
    return reply.verbatim(ctx.session.proto, "txt", text.encode("utf-8", "surrogateescape"))  # paths, host names


@command("TIME", flags="loading stale fast", group="server", since="0.1.0", complexity="O(1)")
def time(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the server's time: unix seconds and microseconds."""
    now = ctx.server.clock.micros()
    return reply.bulk_array([b"%d" % (now // 1_000_000), b"%d" % (now % 1_000_000)])


@command("MONITOR", flags="admin noscript loading stale", group="server", since="0.1.0", complexity="O(1)")
def monitor(ctx: Context, argv: list[bytes]) -> Reply:
    """Receive every command that the server runs from now on."""
    if ctx.in_exec:
        raise CommandError(errors.NO_MONITOR_IN_EXEC)
    if not ctx.session.monitoring:
        ctx.server.monitors.add(ctx.session)
    return reply.OK


# -- all keys ----------------------------------------------------------------------------------------------------
@command(
    "DBSIZE", flags="readonly fast", group="server", since="0.1.0", acl="keyspace", complexity="O(1)",
)
def dbsize(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of keys."""
    return reply.integer(len(ctx.ks.keys))


def _flush_all(ctx: Context, argv: list[bytes]) -> bytes:
    # ASYNC and SYNC do the same: the keys are removed at once
    if len(argv) > 2 or (len(argv) == 2 and argv[1].upper() not in (b"ASYNC", b"SYNC")):
        raise errors.syntax()
    ctx.ks.flush()
    return reply.OK


@_flush("FLUSHALL", opt(oneof("flush-type", token("ASYNC"), token("SYNC"))))
def flushall(ctx: Context, argv: list[bytes]) -> Reply:
    """Remove all keys."""
    return _flush_all(ctx, argv)


@_flush("FLUSHDB", opt(oneof("flush-type", token("ASYNC"), token("SYNC"))))
def flushdb(ctx: Context, argv: list[bytes]) -> Reply:
    """Remove all keys, like FLUSHALL: there is one database."""
    return _flush_all(ctx, argv)


# -- saving ------------------------------------------------------------------------------------------------------
def _begin(ctx: Context, schedule: bool) -> bool:
    """Start a checkpoint in the background. Returns False if one is running, or inside EXEC, which must be one batch.

    ``schedule``: in that case let one start later.
    """
    if not ctx.in_exec and ctx.server.checkpoints.begin(ctx.session):
        return True
    if schedule:
        ctx.server.checkpoints.schedule()
    return False


@_saving("SAVE", flags="admin noscript no_async_loading no_multi")
def save(ctx: Context, argv: list[bytes]) -> Reply:
    """Write a checkpoint; the reply comes when it is on disk."""
    ctx.server.checkpoints.save(ctx.session)
    return reply.OK


@_saving("BGSAVE", opt(token("SCHEDULE")), flags="admin noscript no_async_loading")
def bgsave(ctx: Context, argv: list[bytes]) -> Reply:
    """Start to write a checkpoint in the background."""
    scheduled = len(argv) == 2 and argv[1].upper() == b"SCHEDULE"
    if len(argv) > 2 or (len(argv) == 2 and not scheduled):
        raise errors.syntax()
    scheduled = scheduled or ctx.in_exec
    if not _begin(ctx, scheduled):
        if not scheduled:
            raise CommandError(errors.SAVE_RUNNING)
        return reply.simple(b"Background saving scheduled")
    return reply.simple(b"Background saving started")


@_saving("BGREWRITEAOF", flags="admin noscript no_async_loading")
def bgrewriteaof(ctx: Context, argv: list[bytes]) -> Reply:
    """Start to write a checkpoint in the background; then the journal before it is deleted."""
    if not _begin(ctx, ctx.in_exec):
        if ctx.in_exec:
            return reply.simple(b"Background append only file rewriting scheduled")
        raise CommandError(errors.REWRITE_RUNNING)
    return reply.simple(b"Background append only file rewriting started")


@command(
    "LASTSAVE", flags="loading stale fast", group="server", since="0.1.0", acl="admin dangerous", complexity="O(1)"
)
def lastsave(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the unix time of the last successful checkpoint."""
    return reply.integer(ctx.server.checkpoints.last())


@_saving(
    "SHUTDOWN",
    opt(oneof("save-selector", token("NOSAVE"), token("SAVE"))),
    opt(token("NOW")), opt(token("FORCE")), opt(token("ABORT")),
    flags="admin noscript loading stale no_multi allow_busy", traits="unpausable",
)
def shutdown(ctx: Context, argv: list[bytes]) -> Reply:
    """Write a checkpoint, unless NOSAVE is given, and end the server; acknowledged writes are on disk anyway."""
    words = [word.upper() for word in argv[1:]]
    unknown = set(words) - {b"NOSAVE", b"SAVE", b"NOW", b"FORCE", b"ABORT"}
    abort = b"ABORT" in words
    if unknown or (abort and len(words) > 1) or (b"NOSAVE" in words and b"SAVE" in words):
        raise errors.syntax()
    if abort:
        raise CommandError(errors.NO_SHUTDOWN)
    ctx.server.stop(save=b"NOSAVE" not in words, now=b"NOW" in words)
    return b""
