"""From a list of arguments to a reply: look the command up, check what stands against it, call it, note what it cost.

The usual case is short: the client is ``plain`` (Session.refresh) and nothing is ``gated`` (a monitor, CLIENT PAUSE,
writes refused ...), or nothing but writing is.
Everything else goes through ``_checked``, whose order of checks is Redis's (processCommand).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from commands.context import Await, Block, Chunks, Context, Reply
from commands.declare import TABLE, Command, find, lookup
from resp import errors, reply
from resp.errors import CommandError, CorruptError
from respserver.clients.connection import OUTPUT_AT_ONCE
from respserver.clients.monitor import monitor_line, redacted
from respserver.observe.slowlog import Histogram

if TYPE_CHECKING:
    from commands.session import Session
    from respserver.clients.connection import Connection
    from respserver.server import Server

SUBSCRIBED_MAY: Final = frozenset(
    ("subscribe", "unsubscribe", "psubscribe", "punsubscribe", "ping", "quit", "reset", "ssubscribe", "sunsubscribe")
)
NOT_QUEUED: Final = frozenset(("exec", "discard", "multi", "watch", "quit", "reset"))
HTTP_WORDS: Final = frozenset((b"post", b"host:"))  # a request made by a web page: what follows must not be run
RUN_AT_ONCE: Final = 1000  # calls that are handled as one at most
# CLIENT UNPAUSE must get through, and replicas go on hearing what was written
ALWAYS_WHILE_PAUSED: Final = frozenset(("client", "psync", "quit", "replconf", "reset", "shutdown"))


class Dispatcher:
    """Runs commands; one for the server. ``gated`` is kept by whoever switches a gate (Server.regate)."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.ctx = Context(server.ks, server.api, None)  # type: ignore[arg-type]  # set for each run
        self.gated = False
        self.reads_pass = False  # what is gated concerns nothing but commands that write: a replica's usual case
        self.refuse_writes = ""  # error line for commands that write; empty: writes are welcome
        self.refuse_memory = False  # maxmemory reached: commands that may grow are refused
        # what the server's role has against commands (set_role)
        self.readonly = False  # it is a replica: nothing writes
        self.stale = False  # it is one that does not hear its leader, and is not to show what it has
        self.loading = False  # the data is being replaced
        self.refuse_few = False  # fewer replicas are well than min-replicas-to-write
        self.hold_writes = False  # a FAILOVER is under way: what writes waits for its end
        self.pause_until = 0  # ms since epoch
        self.pause_writes_only = False
        # how long commands take, where latency-tracking asks for it
        self.histograms: dict[str, Histogram] | None = None

    def set_role(self) -> bool:
        """Recompute what the server's role has against commands; True if it has anything (Server.regate)."""
        roles, config = self.server.roles, self.server.config
        self.readonly = roles.follower
        self.stale = roles.follower and not roles.link_up and not config.replica_serve_stale_data
        self.loading = roles.loading
        least = config.min_replicas_to_write if config.min_replicas_max_lag else 0
        self.refuse_few = bool(least) and not roles.follower and roles.good() < least
        others = self.stale or self.loading or self.hold_writes  # PUBLISH waits for a failover, too
        self.reads_pass = not (others or self.pause_until or self.server.monitors)
        return others or self.readonly or self.refuse_few

    def note_write(self) -> None:
        """The client's commands so far have left records: remember where in the log their batch stands."""
        server = self.server
        if server.ks.log:
            self.ctx.session.wrote = server.log_end() + 1

    def run(self, conn: Connection, commands: list[list[bytes]], raw: bytes, ends: list[int]) -> None:
        """Run the commands in order, until one has to wait or the client has to read first; the rest is held.

        ``raw``, ``ends``: as RequestDecoder has them, for the first len(ends) commands.
        """
        server = self.server
        session = conn.session
        ks = server.ks
        ctx = self.ctx
        ctx.ks = ks
        ctx.session = session
        ks.no_touch = session.no_touch
        ctx.now = session.last_active = server.now_ms()
        ctx.in_exec = False
        out = conn.out
        find = TABLE.get
        slow_ns = server.slow_ns
        histograms = self.histograms
        size = 0
        done = 0
        started = perf_counter_ns()
        total = len(commands)
        while done < total:
            argv = commands[done]
            done += 1
            command = find(argv[0])
            try:
                if (
                    command is not None
                    and command.hot_least <= len(argv) <= command.hot_most
                    and session.plain
                    and (not self.gated or (self.reads_pass and not command.write))
                ):
                    if command.run_handler is not None and done < total and commands[done][:2] == argv[:2]:
                        answer, more = self._run_of(commands, done, command, raw, ends)
                        done += more
                        command.calls += more
                    else:
                        answer = command.handler(ctx, argv)
                else:
                    command = None  # nobody's call until it is found to run
                    checked, command = self._checked(conn, argv)
                    if checked is None:  # CLIENT PAUSE: try again later
                        conn.hold(commands, done - 1)
                        done -= 1
                        break
                    answer = checked
            except CommandError as error:
                answer = reply.error(error.text)
                if command is not None:
                    command.failed += 1
                server.stats.note_error(error.text)
            except Exception as error:  # noqa: BLE001 - one client's trouble; the log has the trace
                answer = self.broke(argv[0], error)
            ended = perf_counter_ns()
            if command is not None:
                command.calls += 1
                command.usec += ended - started
                if histograms is not None:  # a run of calls counts as one
                    histograms.setdefault(command.name, Histogram()).note((ended - started) // 1000)
            if ended - started > slow_ns:
                self._slow(session, argv, command, ended - started)
            started = ended
            if type(answer) is bytes:
                if session.plain:
                    out.append(answer)
                    size += len(answer)
                else:
                    size += self._answer(conn, answer)
            elif isinstance(answer, (Block, Await)):
                session.last_command = command.name if command is not None else ""
                server.blocking.park(conn, answer, ctx)
                conn.hold(commands, done)
                break
            elif isinstance(answer, Chunks):
                self._answer(conn, answer)
                if ks.ready:
                    server.blocking.serve_ready()
                conn.hold(commands, done)
                break
            if ks is not server.ks:
                ks = ctx.ks = server.ks  # DEBUG RELOAD
            if ks.ready:
                server.blocking.serve_ready()
            if size > OUTPUT_AT_ONCE or session.close_after_reply:
                conn.hold(commands, done)
                if session.close_after_reply:
                    conn.backlog.clear()
                break
        if done and command is not None:
            session.last_command = command.name
        session.total_commands += done
        server.stats.commands_processed += done
        conn.out_bytes += size
        if ks.log:
            session.wrote = server.log_end() + 1
        if conn.backlog:
            server.queue_flush(conn)
            if not conn.busy:
                server.queue_resume(conn)
        elif ks.log or ks.ready:
            server.queue_flush(conn)
        elif out:
            server.flush_reads(conn)

    def _run_of(
        self, commands: list[list[bytes]], start: int, command: Command, raw: bytes, ends: list[int]
    ) -> tuple[Reply, int]:  # fmt: skip
        """The call before ``start`` together with those like it behind it (same command, key and length).

        Returns its reply, or the replies of all joined, and how many were handled with it.
        """
        first = commands[start - 1]
        name, key, length = first[0], first[1], len(first)
        if key in self.ctx.ks.waiting:  # each append has its reader [18]
            return command.handler(self.ctx, first), 0
        stop, last = start, min(len(commands), start + RUN_AT_ONCE)
        while stop < last:
            argv = commands[stop]
            if len(argv) != length or argv[1] != key or argv[0] != name:
                break
            stop += 1
        handle = command.run_handler
        replies: list[bytes] | None = None
        if handle is not None and stop > start:
            borders = [ends[start - 2] if start > 1 else 0, *ends[start - 1 : stop]] if stop <= len(ends) else []
            replies = handle(self.ctx, commands[start - 1 : stop], raw, borders)
        if replies is None:
            return command.handler(self.ctx, first), 0
        return b"".join(replies), len(replies) - 1  # it may have answered the first ones only

    def broke(self, name: bytes, error: Exception) -> bytes:
        """The reply to a command that raised what it should not have; the log has the rest."""
        server = self.server
        server.stats.note_error("ERR")
        if isinstance(error, CorruptError):
            server.log.warning(f"{errors.show(name)} met damaged data: {error}")
            return reply.error(f"ERR damaged data: {error}")
        server.log.trace(f"Bug while running {errors.show(name)}; the client got an error", error)
        return b"-ERR internal error: the command failed because of a bug in the server, see its log\r\n"

    def answer_later(self, conn: Connection, answer: bytes | Chunks) -> None:
        """The reply to a command that had to wait."""
        if self.server.ks.log:
            conn.session.wrote = self.server.log_end() + 1
        conn.out_bytes += self._answer(conn, answer)
        self.server.queue_flush(conn)

    def _answer(self, conn: Connection, answer: bytes | Chunks) -> int:
        """Queue a reply as CLIENT REPLY wants it; returns its bytes."""
        session = conn.session
        mode = session.reply_mode
        if mode == 3:  # SKIP: this reply is the one to leave out
            session.reply_mode = 0
            session.refresh()
        elif mode == 2:
            session.reply_mode = 3
        if mode in (1, 3) or not answer:
            if isinstance(answer, Chunks):
                answer.close()
            return 0
        if isinstance(answer, Chunks):
            conn.send(answer)
            return 0
        conn.out.append(answer)
        return len(answer)

    # -- everything but the usual case -----------------------------------------------------------------------
    def _checked(self, conn: Connection, argv: list[bytes]) -> tuple[Reply | None, Command | None]:
        """The command's reply, None if it has to wait (CLIENT PAUSE, FAILOVER); raises CommandError."""
        server, session, ctx = self.server, conn.session, self.ctx
        try:
            command = lookup(argv)
        except CommandError as error:
            refused = find(argv[:2])  # known, and called with too few or too many words
            if refused is not None:
                refused.rejected += 1
                if refused.name == "exec":
                    server.api.discard(session)
                    why = error.text.removeprefix("ERR ")
                    raise CommandError(f"EXECABORT Transaction discarded because of: {why}") from None
            elif argv[0].lower() in HTTP_WORDS:
                conn.cut("it speaks HTTP: somebody may be using a browser to attack this server")
            if session.multi:
                session.exec_abort = True
            raise
        try:
            self._may_run(command, session, argv)
        except CommandError:
            command.rejected += 1
            if session.multi and command.name not in NOT_QUEUED:
                session.exec_abort = True
            raise
        if (self.hold_writes or self.pause_until > ctx.now) and self._must_wait(command, session, argv):
            conn.paused = True
            return None, command
        if session.multi and command.name not in NOT_QUEUED:
            conn.multi_bytes = (conn.multi_bytes if session.queued else 0) + 64 * len(argv) + sum(map(len, argv))
            if conn.multi_bytes > server.config.client_query_buffer_limit:
                conn.cut("query buffer limit exceeded by what waits for EXEC")
            session.queued.append(argv)
            session.last_command = command.name
            return reply.QUEUED, None  # EXEC is when it is called
        try:
            return command.handler(ctx, argv), command
        except CommandError:
            command.calls += 1
            command.failed += 1
            raise
        finally:
            if server.monitors:
                self._show(session, command, argv)

    def _must_wait(self, command: Command, session: Session, argv: list[bytes]) -> bool:
        """Whether CLIENT PAUSE, or a FAILOVER, holds the call back."""
        top = command.name.split("|", 1)[0]
        if top in ALWAYS_WHILE_PAUSED or session.replica is not None:
            return False
        if self.pause_until > self.ctx.now and not self.pause_writes_only:
            return True
        if top == "exec":
            return any(self._writes(lookup(queued), queued) for queued in session.queued)
        return top == "publish" or self._writes(command, argv)

    def _show(self, session: Session, command: Command, argv: list[bytes]) -> None:
        """Let monitors see a command that ran: a queued one when EXEC runs it, an administrative one never."""
        if not command.flags.isdisjoint(("admin", "skip_monitor")):
            return
        line = monitor_line(self.server.clock_us(), session.addr, redacted(argv, command.name))
        for watcher in list(self.server.monitors):
            self.server.api.push(watcher, line)

    def _may_run(self, command: Command, session: Session, argv: list[bytes]) -> None:
        """Raises what Redis answers to a command that must not run here and now."""
        if not session.authenticated and "no_auth" not in command.flags:
            raise CommandError(errors.NOAUTH)
        if self.refuse_memory and "denyoom" in command.flags:
            raise CommandError(errors.OOM)
        against = self._against_writes()
        if against:
            self._refuse(command, session, argv, self._writes, against)
        if session.proto == 2 and (session.channels or session.patterns) and command.name not in SUBSCRIBED_MAY:
            raise CommandError(
                f"ERR Can't execute '{command.called}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET"
                " are allowed in this context"
            )
        if self.stale:
            self._refuse(command, session, argv, _lacks_stale, errors.MASTERDOWN)
        if self.loading:
            self._refuse(command, session, argv, _lacks_loading, errors.LOADING)
        if session.multi and "no_multi" in command.flags:
            raise CommandError("ERR Command not allowed inside a transaction")

    def _against_writes(self) -> str:
        """The error line for commands that write; empty if they are welcome."""
        if self.readonly:  # the rest is its leader's business
            return errors.READONLY
        return self.refuse_writes or (errors.NO_REPLICAS if self.refuse_few else "")

    def _refuse(
        self, command: Command, session: Session, argv: list[bytes], concerned: Callable[[Command, list[bytes]], bool],
        why: str,
    ) -> None:  # fmt: skip
        """Raises ``why`` if the command is ``concerned``; an EXEC that holds such a command ends its transaction."""
        if concerned(command, argv):
            raise CommandError(why)
        if command.name == "exec" and any(concerned(lookup(queued), queued) for queued in session.queued):
            self.server.api.discard(session)
            raise CommandError(f"EXECABORT Transaction discarded because of: {why}")

    @staticmethod
    def _writes(command: Command, argv: list[bytes]) -> bool:
        """Whether the call changes data: TREAD does so only with GROUP [13]."""
        if not command.write:
            return False
        return command.name != "tread" or any(word.upper() == b"GROUP" for word in argv[4:])

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
            self.server.stats.note_error(error.text)
        except Exception as error:  # noqa: BLE001 - the other commands' effects are there: the array must be whole
            answer = self.broke(argv[0], error)
            command.failed += 1
        took = perf_counter_ns() - started
        command.calls += 1
        command.usec += took
        if took > self.server.slow_ns:
            self._slow(ctx.session, argv, command, took)
        if self.server.monitors:
            self._show(ctx.session, command, argv)
        return answer or reply.OK  # CLIENT REPLY answers nothing; the array has a place for it

    def _slow(self, session: Session, argv: list[bytes], command: Command | None, took_ns: int) -> None:
        flags = command.flags if command is not None else frozenset()
        if "skip_slowlog" in flags or ("blocking" in flags and session.blocked):
            return
        shown = redacted(argv, command.name if command is not None else "")
        self.server.note_slow(session, shown, command, took_ns)


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
