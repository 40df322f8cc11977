"""HELLO, AUTH, PING, ECHO, QUIT, RESET, SELECT."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from commands.context import Context, DelayedReply, Reply, Slices
from commands.declare import arg, batch, block, command, opt
from commands.parse import check_database, each_option, integer
from commands.session import Session
from commands.slicing import AT_ONCE
from resp import errors, reply
from resp.errors import CommandError

# The version of Redis that shared commands follow. HELLO and INFO return it; clients use it to choose features.
REDIS_LEVEL = b"8.4.0"

_always = partial(command, flags="noscript loading stale fast no_auth allow_busy", group="connection")


def check_name(value: bytes, what: str) -> bytes:
    """Check a client name, or a word of CLIENT SETINFO: printable ASCII without spaces. Raises CommandError."""
    if any(not 0x21 <= code <= 0x7E for code in value):
        raise errors.bad_name(what)
    return value


def _log_in(
    ctx: Context, name: bytes, password: bytes, command: bytes, then: Callable[[], bytes]
) -> bytes | DelayedReply:  # fmt: skip
    """Log in and return ``then()``, immediately or after the delay that follows failures from the same address.

    ``command``: AUTH or HELLO, as it was sent. Raises CommandError (WRONGPASS); after a delay, ``Delay.at_timeout``
    raises it.
    """
    users, session = ctx.server.users, ctx.session

    def attempt() -> bytes:
        users.log_in(session, name, password, command)
        return then()

    wait = users.wait(session)
    if not wait:
        return attempt()
    if ctx.in_exec:  # nothing can wait inside EXEC
        raise CommandError(errors.AUTH_HAS_TO_WAIT)
    return DelayedReply(ctx.now + wait, attempt)


@_always(
    "HELLO",
    opt(
        block(
            "arguments",
            arg("protover", "integer"),
            opt(block("auth", arg("username"), arg("password"), token="AUTH")),
            opt(arg("clientname", token="SETNAME")),
        )
    ),
)
def hello(ctx: Context, argv: list[bytes]) -> Reply:
    """Choose RESP2 or RESP3, log in, and set the name of the connection; return properties of the server."""
    session = ctx.session
    proto = session.proto
    if len(argv) > 1:
        proto = integer(argv[1], errors.BAD_PROTOCOL_VERSION)
        if proto not in (2, 3):
            raise CommandError(errors.NO_PROTO)
    credentials: tuple[bytes, bytes] | None = None
    name: bytes | None = None
    for word, at in each_option(argv, 2, {b"AUTH": 2, b"SETNAME": 1}, partial(errors.quoting, errors.BAD_HELLO)):
        if word == b"AUTH":
            credentials = (argv[at], argv[at + 1])
        else:
            name = check_name(argv[at], "Client names")
    role = "replica" if ctx.ks.follower else "master"
    mode = "cluster" if ctx.server.cluster.enabled else "standalone"
    if credentials is not None:
        return _log_in(ctx, *credentials, argv[0], lambda: _greeting(session, proto, name, mode, role))
    if not session.authenticated:
        raise CommandError(errors.HELLO_NEEDS_AUTH)
    return _greeting(session, proto, name, mode, role)


def _greeting(session: Session, proto: int, name: bytes | None, mode: str, role: str) -> bytes:
    """Switch to the protocol, set the name unless it is None, and return HELLO's reply."""
    if name is not None:
        session.name = name
    session.proto = proto
    session.refresh()
    return reply.encode(proto, {
        "server": "redis", "version": REDIS_LEVEL, "proto": proto, "id": session.id, "mode": mode,
        "role": role, "modules": [],
    })  # fmt: skip


@_always("AUTH", opt(arg("username")), arg("password"), arity=-2)
def auth(ctx: Context, argv: list[bytes]) -> Reply:
    """Log in; without a name, as the user ``default``, whose password is set by ``requirepass``."""
    if len(argv) > 3:
        raise errors.syntax()
    if len(argv) == 2 and ctx.server.users.default.nopass:
        raise CommandError(errors.AUTH_WITHOUT_NEED)
    name = argv[1] if len(argv) == 3 else b"default"
    return _log_in(ctx, name, argv[-1], argv[0], lambda: reply.OK)


@command("PING", opt(arg("message")), flags="fast", traits="subscribed", group="connection")
def ping(ctx: Context, argv: list[bytes]) -> Reply:
    """Return PONG, or the message."""
    session = ctx.session
    if len(argv) == 1 and session.plain:
        return reply.PONG
    if len(argv) > 2:
        raise errors.arity("ping")
    if session.proto == 2 and session.subscribed:
        return reply.bulk_array([b"pong", argv[1] if len(argv) == 2 else b""])
    return reply.bulk(argv[1]) if len(argv) == 2 else reply.PONG


@batch("PING")
def ping_batch(ctx: Context, calls: list[list[bytes]]) -> list[bytes] | None:
    """Execute PINGs that are equal, including their messages."""
    answer = ping(ctx, calls[0])
    return [answer] * len(calls) if isinstance(answer, bytes) else None


@command("ECHO", arg("message"), flags="loading stale fast", group="connection")
def echo(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the message."""
    return reply.bulk(argv[1])


@_always("QUIT", arity=-1, traits="immediate subscribed unpausable")
def quit_(ctx: Context, argv: list[bytes]) -> Reply:
    """Close the connection after this reply."""
    ctx.session.close_after_reply = True
    return reply.OK


@_always("RESET", traits="immediate subscribed unpausable")
def reset(ctx: Context, argv: list[bytes]) -> Reply:
    """Reset the connection to the state of a new one."""
    session = ctx.session
    session.end_transaction(ctx.ks)
    if ctx.server.pubsub.unsubscribe_some(session, AT_ONCE):
        return Slices(_unsubscribe, False)
    return _as_new(ctx)


def _unsubscribe(ctx: Context) -> bytes | None:
    """End some subscriptions, as one slice of a RESET by a client that has many."""
    return None if ctx.server.pubsub.unsubscribe_some(ctx.session, AT_ONCE) else _as_new(ctx)


def _as_new(ctx: Context) -> bytes:
    """Complete RESET: the client is in the state of a new one."""
    session = ctx.session
    ctx.server.monitors.remove(session)
    ctx.server.tracking.disable(session)
    session.name = b""
    session.proto = 2
    session.reply_mode = 0
    session.readonly = session.multislot = False
    session.no_evict = session.no_touch = ctx.ks.no_touch = False
    ctx.server.users.greet(session)
    return reply.simple(b"RESET")


@command("SELECT", arg("index", "integer"), flags="loading stale fast", group="connection")
def select(ctx: Context, argv: list[bytes]) -> Reply:
    """Accept database 0, the only one."""
    if ctx.server.cluster.enabled and integer(argv[1]):
        raise CommandError(errors.NOT_IN_CLUSTER.format("SELECT"))
    check_database(argv[1])
    return reply.OK
