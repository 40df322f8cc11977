"""From a list of arguments to a reply: choose the command, call it, account for the call, deliver the reply.

The usual case is short: the client is ``plain`` (Session.refresh) and no gate is closed (``Gates``), or only gates that
concern writes. Everything else goes through ``_checked``, whose order of checks is Redis's (processCommand).

Exceptions to the rules are declared on the commands: their flags, and the traits of ``commands.declare``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Final

from commands.context import Await, Block, Chunks, Context, Reply, ServerParts
from commands.declare import TABLE, Command, find, lookup
from commands.session import Session
from resp import errors, reply
from resp.errors import CommandError
from respserver.clients.connection import Connection, Executor
from respserver.clients.flow import OUTPUT_AT_ONCE
from respserver.clients.monitor import Monitors, redacted
from respserver.clock import Clock
from respserver.config.config import Config
from respserver.data import Data
from respserver.execution.blocking import Blocking
from respserver.execution.faults import fault_reply
from respserver.gates import Gates
from respserver.observe.logs import Logger
from respserver.observe.slowlog import Timings
from respserver.observe.stats import Counters
from respserver.ticks import Ticks

HTTP_WORDS: Final = frozenset((b"post", b"host:"))  # a request made by a web page: what follows must not run
BATCH_AT_ONCE: Final = 1000  # calls that are handled together at most


class Dispatcher(Executor):
    """Runs commands; one for the server."""

    def __init__(
        self, config: Config, clock: Clock, data: Data, gates: Gates, ticks: Ticks, blocking: Blocking,
        monitors: Monitors, counters: Counters, timings: Timings, logger: Logger, parts: ServerParts,
    ) -> None:  # fmt: skip
        self._config = config
        self._clock = clock
        self._data = data
        self._gates = gates
        self._ticks = ticks
        self._blocking = blocking
        self._monitors = monitors
        self._counters = counters
        self._timings = timings
        self._logger = logger
        self._ctx = Context(data.ks, parts, None)  # type: ignore[arg-type]  # set for each run
        # of the call that _call() made last
        self._command: Command | None = None  # None: it is nobody's call, for the stats
        self._calls = 1  # calls that it handled, those of its batch included

    # -- the loop --------------------------------------------------------------------------------------------
    def run(self, conn: Connection, commands: list[list[bytes]], raw: bytes, ends: list[int]) -> None:
        """See Executor."""
        session = conn.session
        ctx = self._begin(session)
        before = conn.out_bytes
        done, total = 0, len(commands)
        started = perf_counter_ns()
        while done < total:
            argv = commands[done]
            answer = self._call(conn, commands, done, raw, ends)
            if answer is None:  # CLIENT PAUSE, or a FAILOVER: try again later
                conn.hold(commands, done)
                break
            done += self._calls
            ended = perf_counter_ns()
            self._account(session, argv, ended - started)
            started = ended
            if isinstance(answer, (Block, Await)):
                self._blocking.park(conn, answer, ctx)
                conn.hold(commands, done)
                break
            streamed = self._deliver(conn, answer)
            ks = ctx.ks = self._data.ks  # DEBUG RELOAD brings another
            if ks.ready:
                self._blocking.serve_ready()
            if streamed or session.close_after_reply or conn.out_bytes - before > OUTPUT_AT_ONCE:
                conn.hold(commands, done)
                if session.close_after_reply:
                    conn.backlog.clear()
                break
        self._finish(conn, done)

    def _begin(self, session: Session) -> Context:
        """The surroundings of the session's next commands; one reading of the clock for all of them."""
        ctx, ks = self._ctx, self._data.ks
        ctx.ks = ks
        ctx.session = session
        ctx.now = session.last_active = self._clock.now()
        ctx.in_exec = False
        ks.no_touch = session.no_touch
        return ctx

    def _finish(self, conn: Connection, done: int) -> None:
        """``done`` commands have run: see that their replies and records leave, and that what is held goes on."""
        session, ticks, ks = conn.session, self._ticks, self._data.ks
        if done and self._command is not None:
            session.last_command = self._command.name
        session.total_commands += done
        self._counters.commands_processed += done
        if ks.log:
            ticks.note_write(session)
        if conn.backlog:
            ticks.queue_flush(conn)
            if not conn.busy:
                ticks.queue_resume(conn)
        elif ks.log or ks.ready:
            ticks.queue_flush(conn)
        elif conn.out:
            ticks.flush_reads(conn)

    def _call(
        self, conn: Connection, commands: list[list[bytes]], at: int, raw: bytes, ends: list[int]
    ) -> Reply | None:  # fmt: skip
        """Choose the command and call it; None if it has to wait. Sets _command and _calls."""
        argv = commands[at]
        self._calls = 1
        command = self._command = TABLE.get(argv[0])
        try:
            if (
                command is not None
                and command.hot_least <= len(argv) <= command.hot_most
                and conn.session.plain
                and (not self._gates.closed or (self._gates.reads_pass and not command.write))
            ):
                if command.batch is not None and at + 1 < len(commands) and commands[at + 1][:2] == argv[:2]:
                    return self._call_batch(command, commands, at, raw, ends)
                return command.handler(self._ctx, argv)
            self._command = None  # nobody's call until it is found to run
            return self._checked(conn, argv)
        except CommandError as error:
            if self._command is not None:
                self._command.failed += 1
            self._counters.note_error(error.text)
            return reply.error(error.text)
        except Exception as error:  # noqa: BLE001 - one client's trouble; the log has the trace
            return self._fault(argv[0], error)

    def _call_batch(
        self, command: Command, commands: list[list[bytes]], at: int, raw: bytes, ends: list[int]
    ) -> Reply:  # fmt: skip
        """The call at ``at`` together with those after it that are like it (same command, key and length)."""
        first = commands[at]
        name, key, length = first[0], first[1], len(first)
        handle = command.batch
        if handle is None or key in self._ctx.ks.waiting:  # each append has its reader [18]
            return command.handler(self._ctx, first)
        stop, last = at + 1, min(len(commands), at + 1 + BATCH_AT_ONCE)
        while stop < last:
            argv = commands[stop]
            if len(argv) != length or argv[1] != key or argv[0] != name:
                break
            stop += 1
        if stop == at + 1:
            return command.handler(self._ctx, first)
        borders = [ends[at - 1] if at else 0, *ends[at:stop]] if stop <= len(ends) else []
        replies = handle(self._ctx, commands[at:stop], raw, borders)
        if replies is None:
            return command.handler(self._ctx, first)
        self._calls = len(replies)  # it may have answered the first ones only
        return b"".join(replies)

    def _account(self, session: Session, argv: list[bytes], took_ns: int) -> None:
        """Note what the last call cost; a batch counts as one that took as long as all of it."""
        command, timings = self._command, self._timings
        if command is not None:
            command.calls += self._calls
            command.usec += took_ns
            if timings.tracking:
                timings.note(command.name, took_ns)
        if took_ns > timings.slow_ns:
            timings.slow(session, command, redacted(argv, command.name if command is not None else ""), took_ns,
                         self._clock.now())

    @staticmethod
    def _deliver(conn: Connection, answer: bytes | Chunks) -> bool:
        """Queue the reply. True if it is sent piece by piece: the client's next command has to wait for its end."""
        if isinstance(answer, Chunks):
            conn.answer(answer)
            return True
        if conn.session.plain:
            conn.out.append(answer)
            conn.out_bytes += len(answer)
        else:
            conn.answer(answer)
        return False

    def _fault(self, name: bytes, error: Exception) -> bytes:
        return fault_reply(name, error, self._counters, self._logger)

    # -- everything but the usual case -----------------------------------------------------------------------
    def _checked(self, conn: Connection, argv: list[bytes]) -> Reply | None:
        """The command's reply, None if it has to wait (CLIENT PAUSE, FAILOVER). Raises CommandError.

        Sets _command where the call was made.
        """
        session, gates = conn.session, self._gates
        command = self._found(conn, argv)
        try:
            self._may_run(command, session, argv)
        except CommandError:
            command.rejected += 1
            if session.multi and "immediate" not in command.traits:
                session.exec_abort = True
            raise
        if (gates.held or gates.pause_until > self._ctx.now) and self._must_wait(command, session, argv):
            conn.paused = True
            return None
        session.last_command = command.name
        if session.multi and "immediate" not in command.traits:
            self._queue(conn, argv)
            return reply.QUEUED  # EXEC is when it is called
        try:
            answer = command.handler(self._ctx, argv)
        except CommandError:
            command.calls += 1
            command.failed += 1
            raise
        finally:
            self._monitors.show(session, command, argv)
        self._command = command
        return answer

    def _found(self, conn: Connection, argv: list[bytes]) -> Command:
        """The command that argv calls. Raises CommandError: it is unknown, or called with too few or too many words."""
        session = conn.session
        try:
            return lookup(argv)
        except CommandError as error:
            refused = find(argv[:2])
            if refused is not None:
                refused.rejected += 1
                if "runs_queue" in refused.traits:
                    session.end_transaction(self._ctx.ks)
                    why = error.text.removeprefix("ERR ")
                    raise CommandError(f"EXECABORT Transaction discarded because of: {why}") from None
            elif argv[0].lower() in HTTP_WORDS:
                conn.cut("it speaks HTTP: somebody may be using a browser to attack this server")
            if session.multi:
                session.exec_abort = True
            raise

    def _may_run(self, command: Command, session: Session, argv: list[bytes]) -> None:
        """Raises what Redis answers to a command that must not run here and now."""
        gates = self._gates
        if not session.authenticated and "no_auth" not in command.flags:
            raise CommandError(errors.NOAUTH)
        if gates.out_of_memory and "denyoom" in command.flags:
            raise CommandError(errors.OOM)
        against = self._against_writes()
        if against:
            self._refuse(command, session, argv, _changes, against)
        if session.proto == 2 and (session.channels or session.patterns) and "subscribed" not in command.traits:
            raise CommandError(
                f"ERR Can't execute '{command.called}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET"
                " are allowed in this context"
            )
        if gates.stale:
            self._refuse(command, session, argv, _lacks_stale, errors.MASTERDOWN)
        if gates.loading:
            self._refuse(command, session, argv, _lacks_loading, errors.LOADING)
        if session.multi and "no_multi" in command.flags:
            raise CommandError("ERR Command not allowed inside a transaction")

    def _against_writes(self) -> str:
        """The error line for commands that write; empty if they are welcome."""
        if self._gates.readonly:  # the rest is its leader's business
            return errors.READONLY
        return self._gates.unwritable or (errors.NO_REPLICAS if self._gates.too_few else "")

    def _refuse(
        self, command: Command, session: Session, argv: list[bytes], concerned: Callable[[Command, list[bytes]], bool],
        why: str,
    ) -> None:  # fmt: skip
        """Raises ``why`` if the command is ``concerned``; an EXEC that holds such a command ends its transaction."""
        if concerned(command, argv):
            raise CommandError(why)
        if "runs_queue" in command.traits and any(concerned(lookup(queued), queued) for queued in session.queued):
            session.end_transaction(self._ctx.ks)
            raise CommandError(f"EXECABORT Transaction discarded because of: {why}")

    def _must_wait(self, command: Command, session: Session, argv: list[bytes]) -> bool:
        """Whether CLIENT PAUSE, or a FAILOVER, holds the call back."""
        gates = self._gates
        if "unpausable" in command.traits or session.replica is not None:
            return False
        if gates.pause_until > self._ctx.now and not gates.pause_writes_only:
            return True
        if "runs_queue" in command.traits:
            return any(lookup(queued).changes(queued) for queued in session.queued)
        return "reaches_replicas" in command.traits or command.changes(argv)

    def _queue(self, conn: Connection, argv: list[bytes]) -> None:
        """MULTI: keep the command for EXEC."""
        session = conn.session
        conn.multi_bytes = (conn.multi_bytes if session.queued else 0) + 64 * len(argv) + sum(map(len, argv))
        if conn.multi_bytes > self._config.client_query_buffer_limit:
            conn.cut("query buffer limit exceeded by what waits for EXEC")
        session.queued.append(argv)

    # -- EXEC ------------------------------------------------------------------------------------------------
    def run_queued(self, ctx: Context) -> Reply:
        """EXEC's body: every queued command in order; an error is that command's reply."""
        queued, ctx.session.queued = ctx.session.queued, []
        ctx.in_exec = True
        try:
            parts = [self._run_one_queued(ctx, argv) for argv in queued]
        finally:
            ctx.in_exec = False
        head = reply.array_header(len(parts))
        whole = [part for part in parts if isinstance(part, bytes)]
        return b"".join([head, *whole]) if len(whole) == len(parts) else _joined(head, parts)

    def _run_one_queued(self, ctx: Context, argv: list[bytes]) -> bytes | Chunks:
        command = lookup(argv)
        started = perf_counter_ns()
        answer: Reply
        try:
            answer = command.handler(ctx, argv)
            if isinstance(answer, (Block, Await)):
                raise TypeError("a handler blocks inside EXEC")
        except CommandError as error:
            answer = reply.error(error.text)
            command.failed += 1
            self._counters.note_error(error.text)
        except Exception as error:  # noqa: BLE001 - the other commands' effects are there: the array must be whole
            answer = self._fault(argv[0], error)
            command.failed += 1
        took = perf_counter_ns() - started
        command.calls += 1
        command.usec += took
        if took > self._timings.slow_ns:
            self._timings.slow(ctx.session, command, redacted(argv, command.name), took, self._clock.now())
        self._monitors.show(ctx.session, command, argv)
        return answer or reply.OK  # CLIENT REPLY answers nothing; the array has a place for it


def _changes(command: Command, argv: list[bytes]) -> bool:
    return command.changes(argv)


def _lacks_stale(command: Command, _: list[bytes]) -> bool:
    return "stale" not in command.flags


def _lacks_loading(command: Command, _: list[bytes]) -> bool:
    return "loading" not in command.flags


def _joined(head: bytes, parts: list[bytes | Chunks]) -> Chunks:
    """One streamed reply of several parts, some of them streamed."""

    def pieces() -> Iterator[bytes]:
        yield head
        for part in parts:
            if isinstance(part, bytes):
                yield part
            else:
                yield from part.pieces

    def close() -> None:
        for part in parts:
            if isinstance(part, Chunks):
                part.close()

    return Chunks(pieces(), close)
