"""MULTI and EXEC: queues the commands of a transaction, and runs them in order."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter_ns

from commands.acl.check import denied
from commands.context import Await, Block, Chunks, Context, Reply, Slices
from commands.declare import lookup
from resp import reply
from resp.errors import AbsentNodeError
from respserver.clients.connection import Connection, connection_of
from respserver.clients.flowcontrol import OUTPUT_AT_ONCE
from respserver.clients.monitor import redacted
from respserver.clients.notifications import Notifications
from respserver.execution.absent import mark_of
from respserver.execution.faults import Failures
from respserver.execution.slices import all_of
from respserver.runtime.parts import RuntimeParts


class Transactions:
    """Runs queued commands; one object per server."""

    def __init__(self, parts: RuntimeParts, notifications: Notifications) -> None:
        self._config = parts.config
        self._clock = parts.clock
        self._counters = parts.counters
        self._timings = parts.timings
        self._failures = Failures(parts)
        self._notifications = notifications

    def queue(self, conn: Connection, argv: list[bytes]) -> None:
        session = conn.session
        queued = conn.input.queued_bytes if session.queued else 0
        conn.input.queued_bytes = queued + 64 * len(argv) + sum(map(len, argv))
        if conn.input.queued_bytes > self._config.client_query_buffer_limit:
            self._counters.query_buffer_cuts += 1
            conn.cut("query buffer limit exceeded by what waits for EXEC")
        session.queued.append(argv)

    def run_queued(self, ctx: Context) -> Reply:
        """Run the queued commands in order; the reply is an array. The reply of a command that fails is its error.

        If the reply exceeds the client's output limit, the client is closed, as in Redis: all commands have run, but
        they are not answered. Raises AbsentNodeError if a command needs entries that are only in the object store, and
        nothing was changed; the transaction is then as before.
        """
        before = mark_of(ctx.ks)
        queued, ctx.session.queued = ctx.session.queued, []
        conn, parts, size = connection_of(ctx.session), list[bytes | Chunks](), 0
        ctx.in_exec = True
        try:
            for argv in queued:
                part = self._run_one_queued(ctx, argv, before)
                parts.append(part)
                size += len(part) if isinstance(part, bytes) else part.memory_bytes()
                if size > OUTPUT_AT_ONCE and (conn is None or conn.check_output_limit(size)):
                    _close_all(parts)
        except AbsentNodeError:
            _close_all(parts)
            ctx.session.queued = queued
            raise
        finally:
            ctx.in_exec = False
        head = reply.array_header(len(parts))
        whole = [part for part in parts if isinstance(part, bytes)]
        return b"".join([head, *whole]) if len(whole) == len(parts) else _joined(head, parts)

    def _run_one_queued(self, ctx: Context, argv: list[bytes], before: int) -> bytes | Chunks:
        """``before``: mark_of() the keyspace before the transaction."""
        command = lookup(argv)
        started = perf_counter_ns()
        answer: Reply
        try:
            denial = denied(ctx.session.user, command, argv, ctx.ks)  # the rules may have changed since it was queued
            if denial is not None:
                ctx.server.users.note(ctx.session, denial.reason, denial.what)
                raise denial.error_in_exec()
            answer = command.handler(ctx, argv)
            if isinstance(answer, Slices):
                answer = all_of(answer, ctx)
            if isinstance(answer, (Block, Await)):
                raise TypeError("a handler blocks inside EXEC")
        except Exception as error:
            if isinstance(error, AbsentNodeError) and not error.failed and mark_of(ctx.ks) == before:
                raise
            answer = self._failures.reply(argv, error, command)
        took = perf_counter_ns() - started
        command.calls += 1
        command.usec += took
        if took > self._timings.slow_ns:
            self._timings.slow(ctx.session, command, redacted(argv, command.name), took, self._clock.now())
        self._notifications.ran(ctx.session, command, argv, False)
        return answer or reply.OK  # CLIENT REPLY OFF has no reply, but the array needs an element


def _joined(head: bytes, parts: list[bytes | Chunks]) -> Chunks:
    """Return a streamed reply of several parts, some of which are streamed. Parts that were sent take no memory."""
    size = sum([len(part) for part in parts if isinstance(part, bytes)])
    streamed = [part for part in parts if not isinstance(part, bytes)]

    def pieces() -> Iterator[bytes]:
        nonlocal size
        yield head
        for at, part in enumerate(parts):
            if isinstance(part, bytes):
                size -= len(part)
                parts[at] = b""
                yield part
            else:
                yield from part.pieces
                streamed.remove(part)

    def memory_bytes() -> int:
        return size + sum([part.memory_bytes() for part in streamed])

    return Chunks(pieces(), lambda: _close_all(parts), 0, memory_bytes)


def _close_all(parts: list[bytes | Chunks]) -> None:
    """Close the parts of a reply that are not sent."""
    for part in parts:
        if isinstance(part, Chunks):
            part.close()
    parts.clear()
