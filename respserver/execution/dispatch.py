"""From a list of arguments to a reply: find the command, have it checked, call it, record its stats, queue the reply.

The fast path is for clients that are ``plain`` (Session.refresh) while no gate is closed (``Gates``), or only gates
that affect writes are closed and the command does not write. All other calls go through ``_checked``, see ``checks``.

The checks that apply to a command follow from its declaration: its flags, and the traits of ``commands.declare``.

Calls that arrived together are handled together if clients can't notice that. Calls with the same key form a batch, if
the command has a handler for batches. Calls of one command that takes almost no time (``Command.brief``) form a group:
each is called, and the clock is read once for all. A command with a handler for groups has it execute the usual calls.
In the slow log, a batch or a group is one entry, which shows the first call.

Decision: TAPPENDs to one key in one chunk become one engine call and one record, which is 1.6 times as fast at a
pipeline of 64, interpreted. The same holds for SETs and INCRs of one key, of which only the last value is stored, and
for GETs. While readers wait for the key, each append is handled alone, because k appends must serve k readers [18].
Decision: brief commands are timed as a group. In a pipeline of 16 GETs of different keys, this and the decoder halve
the server's own time (from 548 to 270 ns for each command). If the slow log or ``latency-tracking`` needs the time of
each call, there are no groups.
"""

from __future__ import annotations

from time import perf_counter_ns, time_ns
from typing import Final, cast

from commands.acl.check import denied
from commands.context import Await, Block, Chunks, Context, Reply, ServerParts, Slices
from commands.declare import TABLE, Command, find
from commands.session import Session
from commands.slots import served_calls
from resp import reply
from resp.decode import Alike, Call
from resp.errors import AbsentNodeError, CommandError
from respserver.clients.connection import Connection
from respserver.clients.flowcontrol import OUTPUT_AT_ONCE
from respserver.clients.monitor import hidden, redacted
from respserver.clients.notifications import Notifications
from respserver.execution.absent import Absent, AbsentEntries, mark_of
from respserver.execution.blocking import Blocking
from respserver.execution.checks import Checks
from respserver.execution.faults import Failures
from respserver.execution.redirects import has_served_key, in_slices, is_long, may_run, must_wait
from respserver.execution.slices import Slicing
from respserver.execution.transactions import Transactions
from respserver.runtime.clock import Clock
from respserver.runtime.memory import Memory
from respserver.runtime.parts import RuntimeParts
from storage.keyspace.prefetch import AT_ONCE, fetch

BATCH_AT_ONCE: Final = 1000  # maximum number of calls that are added to a first one
BRIEF_AT_ONCE: Final = AT_ONCE  # maximum number of brief calls in a group
BRIEF_BYTES: Final = 16 * 1024  # size of the replies after which a group ends
TURN_NS: Final = 20_000_000  # duration of one client's commands after which other clients are served
BRIEF_NS: Final = 1_000_000  # longer than any group; with a shorter slow log threshold, there are no groups
# Looked up once: a command that arrives alone reads the clock three times.
_perf_counter_ns: Final = perf_counter_ns
_time_ns: Final = time_ns
# size of the replies that wait for the end of the tick; larger ones are sent immediately if possible
SOON: Final = 64 * 1024


class Dispatcher:
    """Runs commands; one object per server."""

    def __init__(
        self, parts: RuntimeParts, server: ServerParts, blocking: Blocking, slicing: Slicing,
        transactions: Transactions, notifications: Notifications, memory: Memory, absent: AbsentEntries,
    ) -> None:  # fmt: skip
        self._clock = parts.clock
        self._by_hand = type(parts.clock) is not Clock  # a test advances the clock
        self._data = parts.data
        self._gates = parts.gates
        self._ticks = parts.ticks
        self._slotted = parts.config.cluster_enabled  # the keys of a call must have the same slot
        self._slots = parts.slots
        self._blocking = blocking
        self._slicing = slicing
        self._transactions = transactions
        self._absent = absent
        self._before = 0  # mark_of() the keyspace before the last call
        self._traffic = parts.counters.traffic
        self._timings = parts.timings
        self._failures = Failures(parts)
        self._notifications = notifications
        self._ctx = Context(parts.data.ks, server, None)  # type: ignore[arg-type]  # set by each run()
        self._checks = Checks(self._ctx, parts.gates, memory, parts.slots)
        self._name = b""  # name of the last command that was found: comparing it is faster than finding it again
        self._known: Command | None = None  # the last command that was found
        # set by the last call of _call()
        self._command: Command | None = None  # the command whose statistics count the call; None: no command
        self._entered = False  # a call for which ``_command`` is None has passed the checks
        self._calls = 1  # 1, or the number of calls in the batch or group
        self._alone = 0  # index from which on this run() may try batches again, after a handler has declined

    # -- the loop --------------------------------------------------------------------------------------------
    def run(self, conn: Connection, calls: list[Call]) -> None:
        """Run the calls in order until one has to wait, or the client has to read first. The others go to the backlog.

        May change the list.
        """
        session, output = conn.session, conn.output
        ctx, before = self._begin(session), output.bytes
        # number of items of ``calls`` that were run; number of calls in Alike objects among them, without the first
        # ones
        done = alike = 0
        self._alone = 0
        began = started = _perf_counter_ns()
        while done < len(calls):
            call = calls[done]
            if isinstance(call, list):
                argv = call
                answer = self._call(conn, argv, calls, done)
                if answer is None or isinstance(answer, Absent):
                    done = self._delay(conn, answer, calls, done)
                    break
                done += self._calls
            else:
                argv = call.argv
                answer = self._call_alike(conn, call, calls, done)
                if answer is None:
                    continue
                done += 1
                alike += self._calls - 1
            ended = _perf_counter_ns()
            self._account(conn, argv, ended - started)
            started = ended
            if isinstance(answer, (Block, Await, Slices)):
                self._park(conn, answer, argv)
                conn.input.put_back(calls, done)
                break
            streamed = self._deliver(conn, answer)
            ks = ctx.ks = self._data.ks  # DEBUG RELOAD replaces it
            if ks.events or ks.ready:
                self._follow_up(session)
            if (
                streamed or session.close_after_reply or output.bytes - before > OUTPUT_AT_ONCE
                or ended - began > TURN_NS
            ):  # fmt: skip
                conn.input.put_back(calls, done)
                if session.close_after_reply:
                    conn.finish()
                break
        self._finish(conn, done + alike)

    def _park(self, conn: Connection, answer: Block | Await | Slices, argv: list[bytes]) -> None:
        """Block the client until it gets its reply."""
        if self._ctx.ks.events:
            self._notifications.send(conn.session)
        conn.release_pushes()
        if isinstance(answer, Slices):
            self._slicing.begin(conn, answer, self._command, argv)
        else:
            self._blocking.park(conn, answer, self._ctx, argv)

    def _delay(self, conn: Connection, answer: Absent | None, calls: list[Call], done: int) -> int:
        """Let a call wait for entries from the object store, or (None) for the end of CLIENT PAUSE or a FAILOVER.

        Returns the number of items of ``calls`` that were run.
        """
        if answer is not None:
            done += self._calls - 1
            if self._ctx.ks.events:
                self._notifications.send(conn.session)
            argv = cast(list[bytes], calls[done])
            command = self._checks.found(conn, argv)
            # A call that writes can be repeated until it has written. Then the other nodes that it needs must be there.
            self._absent.suspend(conn, argv, answer.error, command.write or "runs_queue" in command.traits)
        conn.input.put_back(calls, done)
        return done

    def _follow_up(self, session: Session) -> None:
        """After a command of the client, notify others of its changes, and serve the clients that wait for them."""
        ks = self._data.ks
        if ks.events:
            self._notifications.send(session)
        if ks.ready:
            self._blocking.serve_ready()
            if ks.events:
                self._notifications.send(None)

    def _begin(self, session: Session) -> Context:
        """Prepare the context for commands of a session, with one reading of the clock for all of them."""
        ctx, ks = self._ctx, self._data.ks
        ctx.ks = ks
        ctx.session = session
        # as Clock.now() does, which is not compiled
        ctx.now = session.last_active = self._clock.now() if self._by_hand else _time_ns() // 1_000_000
        ctx.in_exec = False
        ks.no_touch = session.no_touch
        return ctx

    def _finish(self, conn: Connection, done: int) -> None:
        """After ``done`` commands, update the stats, and queue the flush of replies and the backlog."""
        session, ticks, ks = conn.session, self._ticks, self._data.ks
        if conn.flow.absent is not None and done and conn.flow.wait is None:
            conn.flow.absent = None
        if done and self._command is not None:
            session.last_command = self._command.name
        session.total_commands += done
        session.total_batches += done > 0
        self._traffic.commands += done
        if ks.log:
            ticks.note_write(session)
        if conn.input.backlog:
            ticks.queue_flush(conn)
            if not conn.busy:
                ticks.queue_resume(conn)
        elif ks.log or ks.ready:
            ticks.queue_flush(conn)
        elif conn.output.items:
            ticks.flush_reads(conn, conn.output.bytes > SOON)

    def _call(self, conn: Connection, argv: list[bytes], calls: list[Call], at: int) -> Reply | Absent | None:
        """Call the command of ``argv``, which is at index ``at``; None if it must wait. Sets _command and _calls."""
        self._calls = 1
        self._before = mark_of(self._ctx.ks)
        name = argv[0]
        if name == self._name:
            command = self._command = self._known
        else:
            command = self._command = TABLE.get(name)
            if command is not None:
                self._name, self._known = name, command
        try:
            if (
                command is not None
                and command.hot_least <= len(argv) <= command.hot_most
                and conn.session.plain
                and not (self._slotted and not self._may_run(conn.session, command, argv))
                and (not self._gates.closed or (self._gates.reads_pass and not command.write))
            ):
                if at + 1 < len(calls):
                    following = calls[at + 1]
                    if isinstance(following, list) and following[0] == name:
                        return self._call_several(conn, command, argv, following, calls, at)
                return command.handler(self._ctx, argv)
            if command is not None and command.batch is not None and self._limited_batch(conn, command, calls, at):
                answer = self._call_batch(command, argv, calls, at)
                return command.handler(self._ctx, argv) if answer is None else answer
            self._command = None  # until the call has passed the checks
            self._entered = False
            return self._checked(conn, argv)
        except Exception as error:  # noqa: BLE001 - it becomes the reply; bugs are logged
            return self._failed(conn, argv, error, self._command)

    def _failed(
        self, conn: Connection, argv: list[bytes], error: Exception, command: Command | None
    ) -> bytes | Absent:  # fmt: skip
        """Return the reply to a call that has failed. It waits instead if it needs entries from the object store."""
        if isinstance(error, AbsentNodeError) and self._can_wait(conn, argv, error):
            return Absent(error)
        return self._failures.reply(argv, error, command)

    def _can_wait(self, conn: Connection, argv: list[bytes], error: AbsentNodeError) -> bool:
        return self._absent.may_wait(conn, argv, error, mark_of(self._ctx.ks) == self._before)

    def _call_alike(self, conn: Connection, alike: Alike, calls: list[Call], at: int) -> bytes | None:
        """Handle the calls of an Alike object, at index ``at``, as one. Sets _command and _calls.

        Returns None if the calls must be executed one by one; they then replace the object in ``calls``.
        """
        argv, gates, waiting = alike.argv, self._gates, self._ctx.ks.waiting
        command = self._command = TABLE.get(argv[0])
        if (
            command is not None and command.alike is not None
            and not (waiting and argv[1] in waiting)  # each append has its reader [18]
            and (self._slots.whole or has_served_key(self._slots, command, argv))
            and (
                (not gates.closed or (gates.reads_pass and not command.write)) if conn.session.plain
                # a user who may run the first call may run the others, which have the same key
                else conn.session.limited and not gates.closed
                and denied(conn.session.user, command, argv, self._ctx.ks) is None
            )
        ):  # fmt: skip
            ks = self._ctx.ks
            before = mark_of(ks) if ks.pool.tiered else 0
            try:
                answer = command.alike(self._ctx, argv, alike.bodies)
                self._calls = len(alike.bodies)
                if answer:
                    return answer
            except Exception as error:  # noqa: BLE001 - the first call has failed; the others are called
                calls[at : at + 1] = alike.calls()
                if isinstance(error, AbsentNodeError) and mark_of(ks) == before:
                    return None  # called alone, it waits
                self._calls = 1
                return self._failures.reply(argv, error, command)
        calls[at : at + 1] = alike.calls()
        return None

    def _may_run(self, session: Session, command: Command, argv: list[bytes]) -> bool:
        """Return whether a call can run without a check of its slots, with ``cluster-enabled``."""
        if command.several_keys:
            return may_run(session, self._slots, command, argv)
        return self._slots.whole or has_served_key(self._slots, command, argv)

    def _call_several(
        self, conn: Connection, command: Command, argv: list[bytes], following: list[bytes], calls: list[Call], at: int
    ) -> Reply | Absent:
        """Call a command of a plain client whose next call is the same command."""
        slotted = self._slotted and command.several_keys  # a batch may have other keys than the first call
        if command.batch is not None and at >= self._alone and not slotted and _similar(argv, following):
            answer = self._call_batch(command, argv, calls, at)
            if answer is not None:
                return answer
        timings = self._timings
        if not command.brief or timings.tracking or timings.slow_ns < BRIEF_NS:
            return command.handler(self._ctx, argv)
        stop = min(len(calls), at + BRIEF_AT_ONCE)
        if not slotted and not self._slots.whole and command.first:
            stop = served_calls(self._slots.served, calls, at + 1, stop, command.first)
        fetch(self._ctx.ks.keys, cast(list[list[bytes]], calls), at, stop)  # which skips Alike objects
        if command.together is not None:
            done = command.together(self._ctx, calls, at, stop)
            if done is not None:
                replies, self._calls = done
                return replies
        return self._call_brief(conn, command, argv, calls, at, stop)

    def _call_brief(
        self, conn: Connection, command: Command, argv: list[bytes], calls: list[Call], at: int, stop: int
    ) -> Reply | Absent:  # fmt: skip
        """Call a brief command, and those after it of the same name up to index ``stop``, while all replies are short.
        A call that begins a batch is not included."""
        session, ctx, handler, name = conn.session, self._ctx, command.handler, argv[0]
        slotted = self._slotted and command.several_keys
        ks, batches, total = ctx.ks, command.batch is not None, len(calls)
        replies: list[bytes] = []
        size, i = 0, at
        answer: Reply | Absent
        while True:
            i += 1
            self._before = mark_of(ks)
            try:
                answer = handler(ctx, argv)
            except Exception as error:  # noqa: BLE001 - as in _call()
                answer = self._failed(conn, argv, error, command)
            if not isinstance(answer, bytes):  # the replies before it are queued here
                self._calls = i - at
                if replies:
                    self._deliver(conn, b"".join(replies))
                return answer
            replies.append(answer)
            size += len(answer)
            if (
                i >= stop or size > BRIEF_BYTES or ks.events or ks.ready or not session.plain
                or session.close_after_reply
            ):  # fmt: skip
                break
            call = calls[i]
            if not isinstance(call, list):
                break
            argv = call
            if argv[0] != name or not command.hot_least <= len(argv) <= command.hot_most:
                break
            if slotted and not may_run(session, self._slots, command, argv):
                break
            if batches and self._alone <= i < total - 1:
                following = calls[i + 1]
                if isinstance(following, list) and _similar(argv, following):
                    break
        self._calls = i - at
        return replies[0] if len(replies) == 1 else b"".join(replies)

    def _call_batch(self, command: Command, argv: list[bytes], calls: list[Call], at: int) -> bytes | None:
        """Handle the call at index ``at`` together with those after it that have the same command, key and length.

        Returns None if it must be handled alone. If the handler fails, or answers few of the calls, it is tried again
        some calls later: trying it at each call of a long pipeline would take quadratic time.
        """
        handle = command.batch
        waiting = self._ctx.ks.waiting
        if handle is None or (waiting and len(argv) > 1 and argv[1] in waiting):  # each append has its reader [18]
            return None
        similar, last = [argv], min(len(calls), at + 1 + BATCH_AT_ONCE)
        for i in range(at + 1, last):
            call = calls[i]
            if not isinstance(call, list) or not _similar(argv, call):
                break
            similar.append(call)
        few = len(similar) // 4
        self._alone = at + 1 + few
        replies = handle(self._ctx, similar)
        if replies is None:
            return None
        self._calls = len(replies)  # the handler may have answered only the first ones
        if self._calls > few:
            self._alone = 0
        return b"".join(replies)

    def _limited_batch(self, conn: Connection, command: Command, calls: list[Call], at: int) -> bool:
        """Return whether calls of a client with a restricted user can be a batch. If the user may run the first one,
        the user may run those with the same key, too."""
        if not conn.session.limited or self._gates.closed or at < self._alone or at + 1 >= len(calls):
            return False
        argv, following = calls[at], calls[at + 1]
        return (
            isinstance(argv, list)
            and isinstance(following, list)
            and command.hot_least <= len(argv) <= command.hot_most
            and _similar(argv, following)
            and "movablekeys" not in command.flags
            and (self._slots.whole or has_served_key(self._slots, command, argv))
            and denied(conn.session.user, command, argv, self._ctx.ks) is None
        )

    def _account(self, conn: Connection, argv: list[bytes], took_ns: int) -> None:
        """Add the last call, or calls, to the stats. In the slow log, a batch or a group is one call."""
        command, timings = self._command, self._timings
        if command is not None:
            command.calls += self._calls
            command.usec += took_ns
        if timings.each:
            if command is not None and timings.tracking:
                timings.note(command.name, took_ns, self._calls)
            if self._entered if command is None else command.shows_data:
                conn.shows_data = True
        if took_ns > timings.slow_ns:
            known = command or find(argv[:2])  # not set for a call that failed
            shown = redacted(argv, known.name) if known is not None else hidden(argv, 1)  # may be misspelled
            timings.slow(conn.session, command, shown, took_ns, self._clock.now())

    @staticmethod
    def _deliver(conn: Connection, answer: bytes | Chunks) -> bool:
        """Queue the reply. Returns True if it is streamed; the client's next command then waits for its end."""
        if isinstance(answer, Chunks):
            conn.answer(answer)
            return True
        output = conn.output
        if conn.session.plain and output.pushes is None:
            output.items.append(answer)
            output.bytes += len(answer)
        else:
            conn.answer(answer)
        return False

    # -- the checks ------------------------------------------------------------------------------------------
    def _checked(self, conn: Connection, argv: list[bytes]) -> Reply | None:
        """Check the command, then call or queue it; None if it must wait (CLIENT PAUSE, FAILOVER). Raises CommandError.

        Sets _command if the handler returned a reply.
        """
        session, gates = conn.session, self._gates
        command = self._checks.found(conn, argv)
        try:
            self._checks.may_run(command, session, argv)
        except CommandError:
            command.rejected += 1
            if session.multi and "immediate" not in command.traits:
                session.exec_abort = True
            raise
        session.last_command = command.name
        self._entered = command.shows_data
        if self._timings.each and "runs_queue" in command.traits and self._checks.queue_shows_data(session):
            conn.shows_data = True
        if ((gates.held or gates.paused) and self._checks.must_wait(command, session, argv)) or (
            self._slots.holding and must_wait(self._ctx, self._slots, command, session, argv)
        ):
            conn.flow.paused = True
            return None
        if session.multi and "immediate" not in command.traits:
            self._transactions.queue(conn, argv)
            self._entered = False  # the reply shows only that the call is queued
            return reply.QUEUED
        answer = self._handled(conn, command, argv)
        self._command = command
        return answer

    def _handled(self, conn: Connection, command: Command, argv: list[bytes]) -> Reply:
        """Call the handler of a command that has passed the checks."""
        session = conn.session
        answer: Reply | None = None
        absent = False
        try:
            if self._slotted and command.several_keys and is_long(command, session, argv):
                answer = in_slices(command, argv)
            else:
                answer = command.handler(self._ctx, argv)
        except AbsentNodeError as error:
            absent = self._can_wait(conn, argv, error)
            if not absent:
                command.calls += 1
                command.failed += 1
                if session.multi and "runs_queue" in command.traits:
                    session.end_transaction(self._ctx.ks)
            raise
        except Exception:
            command.calls += 1
            command.failed += 1
            raise
        finally:
            if not absent:
                self._notifications.ran(session, command, argv, isinstance(answer, Block))
        return answer


def _similar(first: list[bytes], second: list[bytes]) -> bool:
    """Return whether two calls can be in one batch: the command, the key and the number of words are equal."""
    words = len(first)
    return words == len(second) and (words == 1 or first[1] == second[1]) and first[0] == second[0]
