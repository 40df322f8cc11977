"""CLIENT: commands for the caller's connection and for other connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from commands.admin.clientlist import client_line, client_type
from commands.admin.connection import check_name
from commands.context import Context, Reply
from commands.declare import MOST_NAMES, arg, command, oneof, opt, repeat, token
from commands.parse import each_option, integer, timeout_ms
from commands.serverparts import UsersPart
from commands.session import Session
from commands.slicing import in_parts
from resp import errors, reply
from resp.errors import CommandError

_own = partial(command, flags="noscript loading stale", traits="unpausable", group="connection")
_all = partial(
    command, flags="admin noscript loading stale", traits="unpausable", group="connection",
    complexity="O(N): N connected clients.",
)  # fmt: skip

CLIENTS: Final = 200  # number of clients that are described or closed in one slice
_TYPE = oneof("client-type", token("NORMAL"), token("MASTER"), token("REPLICA"), token("PUBSUB"), token="TYPE")
_KILL_OPTIONS = dict.fromkeys((b"ID", b"TYPE", b"ADDR", b"LADDR", b"USER", b"MAXAGE", b"SKIPME"), 1)
TYPES = (b"normal", b"master", b"replica", b"slave", b"pubsub")


def _type_filter(name: bytes) -> bytes:
    word = name.lower()
    if word not in TYPES:
        raise errors.quoting(errors.UNKNOWN_CLIENT_TYPE, name)
    return b"replica" if word == b"slave" else word


def _on_off(word: bytes) -> bool:
    upper = word.upper()
    if upper == b"ON":
        return True
    if upper == b"OFF":
        return False
    raise errors.syntax()


def _choice(argv: list[bytes], words: tuple[bytes, bytes], text: str) -> bytes:
    """Return the optional word argv[3] in upper case, by default the first of ``words``. Raises CommandError."""
    if len(argv) > 4:
        raise errors.bad_subcommand(argv)
    word = argv[3].upper() if len(argv) == 4 else words[0]
    if word not in words:
        raise CommandError(text)
    return word


def _text(ctx: Context, text: str) -> bytes:
    return reply.verbatim(ctx.session.proto, "txt", text.encode("latin-1", "replace"))


# -- the caller ------------------------------------------------------------------------------------------------
@_own("CLIENT|ID")
def client_id(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the ID of the connection. IDs are never reused."""
    return reply.integer(ctx.session.id)


@_own("CLIENT|INFO")
def client_info(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the line of this connection in CLIENT LIST."""
    return _text(ctx, client_line(ctx.session, ctx.now, argv) + "\n")


@_own("CLIENT|SETNAME", arg("connection-name"))
def client_setname(ctx: Context, argv: list[bytes]) -> Reply:
    """Set the name of the connection; an empty name removes it."""
    ctx.session.name = check_name(argv[2], "Client names")
    return reply.OK


@_own("CLIENT|GETNAME")
def client_getname(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the name of the connection, or null."""
    return reply.bulk(ctx.session.name) if ctx.session.name else reply.null(ctx.session.proto)


@_own("CLIENT|SETINFO", oneof("attr", arg("libname", token="LIB-NAME"), arg("libver", token="LIB-VER")))
def client_setinfo(ctx: Context, argv: list[bytes]) -> Reply:
    """Set the name or the version of the client library that uses the connection."""
    word = argv[2].lower()
    if word not in (b"lib-name", b"lib-ver"):
        raise errors.quoting(errors.UNRECOGNIZED_OPTION, argv[2])
    value = check_name(argv[3], errors.show(argv[2]))
    if word == b"lib-name":
        ctx.session.lib_name = value
    else:
        ctx.session.lib_ver = value
    return reply.OK


@_own("CLIENT|REPLY", oneof("action", token("ON"), token("OFF"), token("SKIP")))
def client_reply(ctx: Context, argv: list[bytes]) -> Reply:
    """Turn replies on or off, or skip the next one."""
    session, word = ctx.session, argv[2].upper()
    if word == b"ON":
        session.reply_mode = 0
        session.refresh()
        return reply.OK
    if word == b"OFF":
        session.reply_mode = 1
    elif word == b"SKIP":
        if session.reply_mode != 1:
            session.reply_mode = 2
    else:
        raise errors.syntax()
    session.refresh()
    return b""


# Every user may call it: it gives access to no key, and clients send it on each connection.
@_own("CLIENT|MULTISLOT", oneof("enabled", token("ON"), token("OFF")), flags="noscript loading stale no_auth")
def client_multislot(ctx: Context, argv: list[bytes]) -> Reply:
    """Let the keys of one call, or of one transaction, have different hash slots, as the leader has all slots."""
    ctx.session.multislot = _on_off(argv[2])
    return reply.OK


@_own("CLIENT|NO-TOUCH", oneof("enabled", token("ON"), token("OFF")))
def client_no_touch(ctx: Context, argv: list[bytes]) -> Reply:
    """Set whether commands of this connection leave the idle time of keys unchanged."""
    ctx.session.no_touch = ctx.ks.no_touch = _on_off(argv[2])
    return reply.OK


@command(
    "CLIENT|NO-EVICT", oneof("enabled", token("ON"), token("OFF")), flags="admin noscript loading stale",
    traits="unpausable", group="connection",
)  # fmt: skip
def client_no_evict(ctx: Context, argv: list[bytes]) -> Reply:
    """Exclude the connection from eviction; accepted for compatibility, as clients are never closed to free memory."""
    ctx.session.no_evict = _on_off(argv[2])
    return reply.OK


# -- all clients -------------------------------------------------------------------------------------------------
@_all(
    "CLIENT|LIST", opt(oneof("filter", _TYPE, arg("client-id", "integer", token="ID", multiple=True))), most=MOST_NAMES,
)  # fmt: skip
def client_list(ctx: Context, argv: list[bytes]) -> Reply:
    """Return a line for each connection."""
    sessions = ctx.server.clients.all()
    if len(argv) == 4 and argv[2].upper() == b"TYPE":
        wanted = _type_filter(argv[3])
        sessions = [session for session in sessions if client_type(session) == wanted]
    elif len(argv) > 3 and argv[2].upper() == b"ID":
        ids = [integer(word, errors.BAD_CLIENT_ID) for word in argv[3:]]
        by_id = {session.id: session for session in sessions}
        sessions = [by_id[number] for number in ids if number in by_id]
    elif len(argv) != 2:
        raise errors.syntax()
    caller, now, lines = ctx.session, ctx.now, list[str]()

    def take(some: Sequence[Session]) -> None:
        lines.extend([client_line(each, now, argv if each is caller else []) + "\n" for each in some])

    return in_parts(sessions, take, lambda ctx: _text(ctx, "".join(lines)), ctx, CLIENTS)


def _kill_test(option: bytes, value: bytes, users: UsersPart, now: int) -> Callable[[Session], bool]:
    """Return the test of an option of CLIENT KILL. ``now``: ms since epoch, for MAXAGE. Raises CommandError."""
    if option == b"ID":
        client = _positive(value, errors.CLIENT_ID_TOO_SMALL, errors.CLIENT_ID_TOO_SMALL)
        return lambda session: session.id == client
    if option == b"TYPE":
        wanted = _type_filter(value)
        return lambda session: client_type(session) == wanted
    if option == b"USER":
        user = users.get(value)
        if user is None:
            raise errors.quoting(errors.NO_SUCH_USER, value)
        return lambda session: session.authenticated and session.user is user
    if option == b"MAXAGE":
        age = _positive(value, errors.BAD_MAXAGE, errors.MAXAGE_TOO_SMALL)
        return lambda session: (now - session.created) // 1000 >= age
    addr = value.decode("latin-1")
    return (lambda session: session.addr == addr) if option == b"ADDR" else (lambda session: session.laddr == addr)


def _positive(value: bytes, not_integer: str, too_small: str) -> int:
    number = integer(value, not_integer)
    if number < 1:
        raise CommandError(too_small)
    return number


@_all(
    "CLIENT|KILL",
    oneof(
        "filter",
        arg("old-format"),
        repeat(
            oneof(
                "new-format",
                arg("client-id", "integer", token="ID"),
                _TYPE,
                arg("username", token="USER"),
                arg("addr", token="ADDR"),
                arg("laddr", token="LADDR"),
                oneof("skipme", token("YES"), token("NO"), token="SKIPME"),
                arg("maxage", "integer", token="MAXAGE"),
            )
        ),
    ),
    arity=-3, most=MOST_NAMES,
)  # fmt: skip
def client_kill(ctx: Context, argv: list[bytes]) -> Reply:
    """Close the connection with this address, or all that match the filters."""
    caller, old_form = ctx.session, len(argv) == 3
    skip_me = not old_form
    tests: dict[bytes, Callable[[Session], bool]] = {}  # as in Redis, the last of repeated options counts
    for option, at in [(b"ADDR", 2)] if old_form else each_option(argv, 2, _KILL_OPTIONS):
        if option != b"SKIPME":
            tests[option] = _kill_test(option, argv[at], ctx.server.users, ctx.now)
        elif argv[at].lower() in (b"yes", b"no"):
            skip_me = argv[at].lower() == b"yes"
        else:
            raise errors.syntax()
    victims = [
        session
        for session in ctx.server.clients.all()
        if all(test(session) for test in tests.values()) and not (skip_me and session is caller)
    ]
    if old_form and not victims:
        raise CommandError(errors.NO_SUCH_CLIENT)

    def kill(some: Sequence[Session]) -> None:
        for victim in some:
            if victim is caller:
                victim.close_after_reply = True  # after this reply was sent
            elif victim.transport is not None:
                victim.transport.kill()

    return in_parts(victims, kill, lambda _: reply.OK if old_form else reply.integer(len(victims)), ctx, CLIENTS)


@_all("CLIENT|UNBLOCK", arg("client-id", "integer"), opt(oneof("unblock-type", token("TIMEOUT"), token("ERROR"))))
def client_unblock(ctx: Context, argv: list[bytes]) -> Reply:
    """End the wait of a blocked client, as at its timeout or with an error."""
    as_error = _choice(argv, (b"TIMEOUT", b"ERROR"), errors.BAD_UNBLOCK_REASON) == b"ERROR"
    found = ctx.server.clients.get(integer(argv[2]))
    waited = found is not None and found.transport is not None and found.transport.unblock(as_error)
    return reply.integer(int(waited))


@_all("CLIENT|PAUSE", arg("timeout", "integer"), opt(oneof("mode", token("WRITE"), token("ALL"))))
def client_pause(ctx: Context, argv: list[bytes]) -> Reply:
    """Delay the commands of all clients, or only write commands, for a number of ms."""
    writes_only = _choice(argv, (b"ALL", b"WRITE"), errors.BAD_PAUSE_MODE) == b"WRITE"
    ctx.server.pauses.pause(timeout_ms(argv[2]), writes_only)
    return reply.OK


@_all("CLIENT|UNPAUSE")
def client_unpause(ctx: Context, argv: list[bytes]) -> Reply:
    """End CLIENT PAUSE."""
    ctx.server.pauses.unpause()
    return reply.OK
