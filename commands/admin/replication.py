"""Replication: REPLICAOF, ROLE, FAILOVER, WAIT, WAITAOF, and REPLCONF and PSYNC, which replicas send."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from commands.context import Await, Context, Reply
from commands.declare import arg, block, command, oneof, opt, token
from commands.parse import each_option, integer, is_host, positive, timeout_ms
from resp import errors, reply
from resp.errors import CommandError
from storage.model.timers import NEVER

_REPLID = re.compile(rb"\?|[0-9a-f]{40}")

_server = partial(command, group="server")
_wait = partial(command, flags="blocking", group="connection", complexity="O(N): N replicas.")


# -- the role ----------------------------------------------------------------------------------------------------
_LEADER = oneof(
    "args", block("host-port", arg("host"), arg("port", "integer")), block("no-one", token("NO"), token("ONE"))
)
_FORCE = opt(token("FORCE"))


def _replicate(ctx: Context, argv: list[bytes]) -> bytes:
    force = len(argv) == 4
    if len(argv) > 4 or (force and argv[3].upper() != b"FORCE"):
        raise errors.arity(argv[0].lower().decode())
    if argv[1].upper() == b"NO" and argv[2].upper() == b"ONE":
        ctx.server.roles.lead(force)
        return reply.OK
    if ctx.session.replica is not None:
        raise CommandError(errors.IS_REPLICA)
    port = integer(argv[2], errors.BAD_LEADER_PORT)
    if not 1 <= port <= 65535:
        raise CommandError(errors.BAD_LEADER_PORT)
    host = argv[1].decode("utf-8", "surrogateescape")
    if not is_host(host):
        raise CommandError(errors.BAD_LEADER_HOST)
    if not ctx.server.roles.follow(host, port, force):
        return reply.simple(b"OK Already connected to specified master")
    return reply.OK


@_server("REPLICAOF", _LEADER, _FORCE, flags="admin noscript stale no_async_loading")
def replicaof(ctx: Context, argv: list[bytes]) -> Reply:
    """Become a replica of another server, whose data replaces this server's data; with NO ONE, become a leader.

    FORCE: replace this server's data even with less data of an unrelated history, or lead even with incomplete data.
    """
    return _replicate(ctx, argv)


@_server("SLAVEOF", _LEADER, _FORCE, flags="admin noscript stale no_async_loading")
def slaveof(ctx: Context, argv: list[bytes]) -> Reply:
    """Do the same as REPLICAOF."""
    return _replicate(ctx, argv)


@_server("ROLE", flags="noscript loading stale fast", acl="admin dangerous")
def role(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the role of the server, its log offset, and its replicas or its leader."""
    return reply.encode(ctx.session.proto, ctx.server.roles.describe())


@_server(
    "FAILOVER", opt(block("target", arg("host", token="TO"), arg("port", "integer"), opt(token("FORCE")))),
    opt(token("ABORT")), opt(arg("milliseconds", "integer", token="TIMEOUT")), flags="admin noscript stale",
)  # fmt: skip
def failover(ctx: Context, argv: list[bytes]) -> Reply:
    """Make a replica the leader as soon as it has all writes; new writes wait in the meantime."""
    target: tuple[str, int] | None = None
    timeout, force = 0, False
    for word, at in each_option(argv, 1, {b"TO": 2, b"FORCE": 0, b"ABORT": 0, b"TIMEOUT": 1}):
        if word == b"TIMEOUT" and not timeout:
            timeout = integer(argv[at])
            if timeout <= 0:
                raise CommandError(errors.BAD_FAILOVER_TIMEOUT)
        elif word == b"TO" and target is None:
            target = argv[at].decode("utf-8", "surrogateescape"), integer(argv[at + 1])
        elif word == b"ABORT" and len(argv) == 2:
            ctx.server.roles.failover_abort()
            return reply.OK
        elif word == b"FORCE" and not force:
            force = True
        else:
            raise errors.syntax()
    if force and (not timeout or target is None):
        raise CommandError(errors.FAILOVER_FORCE)
    ctx.server.roles.failover(target, timeout, force)
    return reply.OK


# -- waiting for replicas ----------------------------------------------------------------------------------------
def _when(ctx: Context, timeout: int, satisfied: Callable[[], bool], counted: Callable[[], bytes]) -> Reply:
    """Return ``counted()`` once ``satisfied()``, or after ``timeout`` ms (0: no timeout); immediately inside EXEC."""
    if satisfied() or ctx.in_exec:
        return counted()
    ctx.server.replicas.ask()
    return Await(ctx.now + timeout if timeout else NEVER, lambda: counted() if satisfied() else None, counted)


@_wait("WAIT", arg("numreplicas", "integer"), arg("timeout", "integer"))
def wait(ctx: Context, argv: list[bytes]) -> Reply:
    """Wait until a number of replicas have the writes of this client; return how many have them."""
    replicas = ctx.server.replicas
    if ctx.ks.follower:
        raise CommandError(errors.WAIT_ON_REPLICA)
    wanted, timeout, offset = integer(argv[1]), timeout_ms(argv[2]), ctx.server.writes.written(ctx.session)
    return _when(
        ctx, timeout, lambda: replicas.acknowledged(offset) >= wanted,
        lambda: reply.integer(replicas.acknowledged(offset)),
    )  # fmt: skip


@_wait("WAITAOF", arg("numlocal", "integer"), arg("numreplicas", "integer"), arg("timeout", "integer"))
def waitaof(ctx: Context, argv: list[bytes]) -> Reply:
    """Wait until the writes of this client are on disk here and at a number of replicas; return both counts."""
    replicas, writes = ctx.server.replicas, ctx.server.writes
    here = integer(argv[1])
    if here not in (0, 1):
        raise CommandError(errors.BAD_LOCAL)
    wanted, timeout = positive(argv[2]), timeout_ms(argv[3])
    if ctx.ks.follower:
        raise CommandError(errors.WAITAOF_ON_REPLICA)
    offset = writes.written(ctx.session)

    def counted() -> bytes:
        return reply.array([reply.integer(int(writes.synced(offset))), reply.integer(replicas.synced(offset))])

    return _when(ctx, timeout, lambda: writes.synced(offset) >= here and replicas.synced(offset) >= wanted, counted)


# -- from replicas -----------------------------------------------------------------------------------------------
@_server("REPLCONF", arity=-1, flags="admin noscript loading stale allow_busy", traits="unpausable")
def replconf(ctx: Context, argv: list[bytes]) -> Reply:
    """Set properties of a replica's connection; sent by replicas."""
    if len(argv) % 2 == 0:
        raise errors.syntax()
    return ctx.server.replicas.replconf(ctx.session, argv[1:])


@_server(
    "PSYNC", arg("replicationid"), arg("offset", "integer"), arity=-3, flags="admin noscript no_async_loading no_multi",
    traits="unpausable",
)  # fmt: skip
def psync(ctx: Context, argv: list[bytes]) -> Reply:
    """Send the log after an offset, or a full copy if the log no longer reaches back that far; sent by replicas."""
    takeover = len(argv) == 4 and argv[3].upper() == b"FAILOVER"
    if len(argv) > 3 and not takeover:
        raise errors.syntax()
    if _REPLID.fullmatch(argv[1]) is None:
        raise CommandError(errors.BAD_REPLID)
    ctx.server.roles.psync(ctx.session, argv[1].decode("ascii"), integer(argv[2]), takeover)
    return Await(NEVER, lambda: None, lambda: b"")  # waits until the replica's feed takes over the connection


@_server("SYNC", flags="admin noscript no_async_loading no_multi")
def sync(ctx: Context, argv: list[bytes]) -> Reply:
    """Return an error: only tidelog servers can be replicas, and they send PSYNC."""
    raise CommandError(errors.SYNC_UNSUPPORTED)
