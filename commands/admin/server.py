"""INFO, TIME, MONITOR, DBSIZE, FLUSHALL, FLUSHDB, SAVE, BGSAVE, BGREWRITEAOF, LASTSAVE, SHUTDOWN."""

from __future__ import annotations

from functools import partial

from commands.context import Await, Context, Reply, Slices
from commands.declare import MOST_NAMES, arg, command, oneof, opt, token
from commands.parse import check_database
from commands.slicing import AT_ONCE
from resp import errors, reply
from resp.errors import CommandError

_saving = partial(command, group="server", complexity="O(N): N changes since the last checkpoint.")
_flush = partial(
    command, flags="write", group="server", acl="keyspace dangerous", complexity="O(N): N keys and macro nodes.",
)  # fmt: skip


@command(
    "INFO", opt(arg("section", multiple=True)), flags="loading stale", group="server", acl="dangerous",
    complexity="O(N): N clients and streams.", most=MOST_NAMES,
)  # fmt: skip
def info(ctx: Context, argv: list[bytes]) -> Reply:
    """Return information and statistics of the server, by section."""
    sections = [word.decode("latin-1").lower() for word in argv[1:]]

    def step(ctx: Context) -> bytes | None:
        if not ctx.server.stats.ready(sections):
            return None
        text = ctx.server.stats.info(sections)
        # surrogates: paths and host names
        return reply.verbatim(ctx.session.proto, "txt", text.encode("utf-8", "surrogateescape"))

    return step(ctx) or Slices(step, False)


@command("TIME", flags="loading stale fast", group="server")
def time(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the server's time: Unix seconds and microseconds."""
    now = ctx.server.clock.micros()
    return reply.bulk_array([b"%d" % (now // 1_000_000), b"%d" % (now % 1_000_000)])


@command("MONITOR", flags="admin noscript loading stale", group="server")
def monitor(ctx: Context, argv: list[bytes]) -> Reply:
    """Receive every command that the server executes from now on."""
    if ctx.in_exec:
        raise CommandError(errors.NO_MONITOR_IN_EXEC)
    if not ctx.session.monitoring:
        ctx.server.monitors.add(ctx.session)
    return reply.OK


# -- all keys ----------------------------------------------------------------------------------------------------
@command("DBSIZE", flags="readonly fast", group="server", acl="keyspace")
def dbsize(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of keys."""
    if ctx.ks.hidden is None:
        return reply.integer(len(ctx.ks.keys))
    return _visible_keys(ctx)


def _visible_keys(ctx: Context) -> Reply:
    """Return the number of keys that this group serves, while others are moving between groups."""
    cursor, total = 0, 0

    def step(ctx: Context) -> bytes | None:
        nonlocal cursor, total
        cursor, names = ctx.ks.index.page(cursor, AT_ONCE)
        hidden = ctx.ks.hidden
        total += len(names) if hidden is None else len([name for name in names if not hidden(name)])
        return None if cursor else reply.integer(total)

    return step(ctx) or Slices(step, False)


def _flush_all(ctx: Context, argv: list[bytes]) -> Reply:
    # ASYNC and SYNC are equivalent: the keys are removed immediately, and their memory is freed in steps
    if len(argv) > 2 or (len(argv) == 2 and argv[1].upper() not in (b"ASYNC", b"SYNC")):
        raise errors.syntax()
    if ctx.ks.flush_refused:
        raise CommandError(f"TRYAGAIN {ctx.ks.flush_refused}")
    old = ctx.ks.flush()
    if max(map(len, old)) <= AT_ONCE:
        return reply.OK

    def step(ctx: Context) -> bytes | None:
        for held in old:
            if held:
                for _ in range(min(len(held), AT_ONCE)):
                    held.popitem()
                return None
        return reply.OK

    return Slices(step, False)


@_flush("FLUSHALL", opt(oneof("flush-type", token("ASYNC"), token("SYNC"))))
def flushall(ctx: Context, argv: list[bytes]) -> Reply:
    """Remove all keys."""
    return _flush_all(ctx, argv)


@_flush("FLUSHDB", opt(oneof("flush-type", token("ASYNC"), token("SYNC"))))
def flushdb(ctx: Context, argv: list[bytes]) -> Reply:
    """Remove all keys, like FLUSHALL, as there is only one database."""
    return _flush_all(ctx, argv)


@command(
    "SWAPDB", arg("index1", "integer"), arg("index2", "integer"), flags="write fast", group="server",
    acl="keyspace dangerous",
)  # fmt: skip
def swapdb(ctx: Context, argv: list[bytes]) -> Reply:
    """Accept database 0 twice, as it is the only one."""
    if ctx.server.cluster.enabled:
        raise CommandError(errors.NOT_IN_CLUSTER.format("SWAPDB"))
    check_database(argv[1], "ERR invalid first DB index")
    check_database(argv[2], "ERR invalid second DB index")
    return reply.OK


# -- saving ------------------------------------------------------------------------------------------------------
def _begin(ctx: Context, rewrite: bool) -> bool:
    """Start a checkpoint in the background. Returns False if one is in progress, or inside EXEC (one commit group)."""
    return not ctx.in_exec and ctx.server.checkpoints.begin(ctx.session, rewrite)


@_saving("SAVE", flags="admin noscript no_async_loading no_multi")
def save(ctx: Context, argv: list[bytes]) -> Reply:
    """Write a checkpoint; the reply is sent when it is on disk."""
    outcome = ctx.server.checkpoints.save(ctx.session)

    def check() -> bytes | None:
        error = outcome()
        return error if error is None else reply.error(error) if error else reply.OK

    return Await(0, check, lambda: b"", firm=True)


@_saving("BGSAVE", opt(token("SCHEDULE")), flags="admin noscript no_async_loading")
def bgsave(ctx: Context, argv: list[bytes]) -> Reply:
    """Start a checkpoint in the background."""
    scheduled = len(argv) == 2 and argv[1].upper() == b"SCHEDULE"
    if len(argv) > 2 or (len(argv) == 2 and not scheduled):
        raise errors.syntax()
    if _begin(ctx, rewrite=False):
        return reply.simple(b"Background saving started")
    if not (scheduled or ctx.in_exec):
        raise CommandError(errors.CHILD_ACTIVE if ctx.server.checkpoints.rewriting else errors.SAVE_RUNNING)
    ctx.server.checkpoints.schedule(rewrite=False)
    return reply.simple(b"Background saving scheduled")


@_saving("BGREWRITEAOF", flags="admin noscript no_async_loading")
def bgrewriteaof(ctx: Context, argv: list[bytes]) -> Reply:
    """Start a checkpoint in the background; afterwards the journal before it is deleted."""
    if ctx.server.checkpoints.rewriting:
        raise CommandError(errors.REWRITE_RUNNING)
    if _begin(ctx, rewrite=True):
        return reply.simple(b"Background append only file rewriting started")
    ctx.server.checkpoints.schedule(rewrite=True)
    return reply.simple(b"Background append only file rewriting scheduled")


@command("LASTSAVE", flags="loading stale fast", group="server", acl="admin dangerous")
def lastsave(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the Unix time of the last successful checkpoint."""
    return reply.integer(ctx.server.checkpoints.last())


@_saving(
    "SHUTDOWN", opt(oneof("save-selector", token("NOSAVE"), token("SAVE"))), opt(token("NOW")), opt(token("FORCE")),
    opt(token("ABORT")), flags="admin noscript loading stale no_multi allow_busy", traits="unpausable",
)  # fmt: skip
def shutdown(ctx: Context, argv: list[bytes]) -> Reply:
    """Shut down the server, after a checkpoint unless NOSAVE is given. Acknowledged writes are on disk anyway."""
    words = [word.upper() for word in argv[1:]]
    unknown = set(words) - {b"NOSAVE", b"SAVE", b"NOW", b"FORCE", b"ABORT"}
    abort = b"ABORT" in words
    if unknown or (abort and len(words) > 1) or (b"NOSAVE" in words and b"SAVE" in words):
        raise errors.syntax()
    if abort:
        raise CommandError(errors.NO_SHUTDOWN)
    if not {b"NOSAVE", b"FORCE"}.intersection(words):
        refused = ctx.server.checkpoints.refused()
        if refused is not None:
            raise CommandError(f"ERR Errors trying to SHUTDOWN: {refused}. SHUTDOWN FORCE shuts down the server anyway")
    ctx.server.stop(save=b"NOSAVE" not in words, now=b"NOW" in words)
    return b""
