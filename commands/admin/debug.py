"""DEBUG, for tests. Refused unless ``enable-debug-command`` is ``yes``, or ``local`` for clients on this machine."""

from __future__ import annotations

from functools import partial

from commands.context import Context, Reply, Slices
from commands.declare import arg, command, key, opt
from commands.help import help_reply
from commands.keys.keys import encoding, idle_seconds
from commands.session import Session
from resp import errors, reply
from resp.errors import AbsentNodeError, CommandError
from storage.keyspace.values import String

FLAGS = "admin noscript loading stale"
_debug = partial(command, flags=FLAGS, group="server")

MAX_SLEEP = 3600.0  # seconds


def is_local(session: Session) -> bool:
    """Return whether the client is connected by unix socket or over the loopback interface."""
    host = session.addr.rpartition(":")[0].strip("[]")
    return session.unix or host == "::1" or host.startswith(("127.", "::ffff:127."))


def _allowed(ctx: Context) -> None:
    mode = ctx.server.config.value("enable-debug-command")
    if mode != "yes" and not (mode == "local" and is_local(ctx.session)):
        raise CommandError(errors.DEBUG_NOT_ALLOWED)


@_debug("DEBUG|SLEEP", arg("seconds", "double"), complexity="Depends on the argument.")
def debug_sleep(ctx: Context, argv: list[bytes]) -> Reply:
    """Block the whole server for a number of seconds."""
    _allowed(ctx)
    try:
        seconds = float(argv[2])
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_SLEEP:
        raise CommandError(errors.BAD_TIMEOUT)
    ctx.server.clock.sleep(seconds)
    return reply.OK


@_debug(
    "DEBUG|RELOAD", opt(arg("option", multiple=True)), flags=FLAGS + " no_multi", complexity="O(N): N keys and nodes.",
)  # fmt: skip
def debug_reload(ctx: Context, argv: list[bytes]) -> Reply:
    """Write a checkpoint, unless NOSAVE is given, and reload everything from disk."""
    _allowed(ctx)
    options = {word.upper() for word in argv[2:]}
    if options - {b"NOSAVE"}:
        raise errors.syntax()
    ctx.server.reload(ctx.session, save=not options)
    return reply.OK


@_debug("DEBUG|LOADAOF", flags=FLAGS + " no_multi", complexity="O(N): N keys, nodes and records.")
def debug_loadaof(ctx: Context, argv: list[bytes]) -> Reply:
    """Reload everything from the store, the journal and the WAL."""
    _allowed(ctx)
    ctx.server.reload(ctx.session, save=False)
    return reply.OK


@_debug("DEBUG|OBJECT", key("RO"))
def debug_object(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the encoding, the size in bytes and the idle time of a value; the address has no meaning."""
    _allowed(ctx)
    value = ctx.ks.live(argv[2], ctx.now)
    if value is None:
        raise CommandError(errors.NO_SUCH_KEY)
    size = len(value.value) if isinstance(value, String) else value.memory_bytes()
    idle = idle_seconds(value, ctx.now)
    return reply.simple(
        b"Value at:0x0 refcount:1 encoding:%b serializedlength:%d lru:%d lru_seconds_idle:%d"
        % (encoding(value), size, (ctx.now // 1000 - idle) & 0xFFFFFF, idle)
    )


@_debug("DEBUG|DIGEST", complexity="O(N): N entries.")
def debug_digest(ctx: Context, argv: list[bytes]) -> Reply:
    """Return a digest of all data, which is equal for equal data."""
    _allowed(ctx)
    try:
        return reply.simple(ctx.ks.digest().encode())
    except AbsentNodeError as error:
        if ctx.in_exec or error.failed:
            raise
    digest = ctx.ks.stepped_digest()  # a repetition from the start at each wait would take quadratic time

    def step(_ctx: Context) -> bytes | None:
        found = digest.step()
        return None if found is None else reply.simple(found.encode())

    return Slices(step, False, digest.close, resumes=True)


@command("DEBUG|HELP", flags="loading stale", group="server")
def debug_help(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the subcommands with their summaries."""
    _allowed(ctx)
    return help_reply("DEBUG")
