"""Long commands, run in slices with other clients' commands in between (``commands.context.Slices``).

Rule 1: no turn takes longer than TURN_NS and one step. Commands in progress are run round-robin.
Rule 2: the records of a slice are committed with its tick, like those of a command. The last slice returns the reply.
Rule 3: a command that has begun is completed, even if its client disconnects, and also during shutdown.
Rule 4: a command that writes pauses while writes are delayed (CLIENT PAUSE, FAILOVER) or the disk accepts none. It ends
with an error when this server becomes a replica.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns
from typing import Final

from commands.context import Chunks, Context, ServerParts, Slices
from commands.declare import Command
from commands.session import Session
from resp import errors
from resp.errors import AbsentNodeError, CommandError
from respserver.clients.connection import Connection
from respserver.clients.flowcontrol import Wait
from respserver.clients.monitor import redacted
from respserver.clients.notifications import Notifications
from respserver.execution.absent import Fetch
from respserver.execution.faults import Failures
from respserver.observe.slowlog import shortened
from respserver.runtime.parts import RuntimeParts

TURN_NS: Final = 5_000_000  # duration of the work before other clients are served
ARG_BYTES: Final = 41  # memory of an argument, in addition to its own bytes
HELD_SECONDS: Final = 0.05  # between two checks while writes are delayed


class SlicedCommand(Wait):
    """A command in progress."""

    __slots__ = ("_bytes", "absent", "argv", "command", "conn", "session", "slices", "took_ns")

    def __init__(self, conn: Connection, slices: Slices, command: Command | None, argv: list[bytes]) -> None:
        super().__init__(firm=True)
        self.conn: Connection | None = conn  # None once the client has disconnected
        self.session: Session = conn.session
        self.slices = slices
        self.command = command
        # all arguments stay in memory while the command is paused
        self._bytes = sum(map(len, argv)) + ARG_BYTES * len(argv)
        self.argv = shortened(argv)  # without most of a million arguments, which are freed as slices proceed
        self.took_ns = 0  # duration of its slices so far
        self.absent = False  # it waits for entries from the object store

    def memory_bytes(self) -> int:
        return self._bytes

    def forget(self) -> None:
        if self.conn is not None:
            self.conn.flow.wait = None
            self.conn.idle_since = 0
            self.conn = None

    def end(self, error: bool) -> bool:  # noqa: ARG002
        return False


class Slicing:
    """The commands in progress."""

    def __init__(
        self, parts: RuntimeParts, server: ServerParts, notifications: Notifications, fetch: Fetch
    ) -> None:  # fmt: skip
        self._fetch = fetch
        self._loop = parts.loop
        self._clock = parts.clock
        self._data = parts.data
        self._gates = parts.gates
        self._ticks = parts.ticks
        self._timings = parts.timings
        self._failures = Failures(parts)
        self._notifications = notifications
        self._ctx = Context(parts.data.ks, server, None)  # type: ignore[arg-type]  # set for each turn
        self._works: deque[SlicedCommand] = deque()

    @property
    def writing(self) -> bool:
        """Whether a command that writes is in progress."""
        return any(work.slices.writes for work in self._works)

    def left_bytes(self) -> int:
        """Return the approximate memory size of the commands in progress whose clients have disconnected."""
        return sum([work.memory_bytes() for work in self._works if work.conn is None]) if self._works else 0

    def begin(self, conn: Connection, slices: Slices, command: Command | None, argv: list[bytes]) -> None:
        """Block the client until the command is finished."""
        work = SlicedCommand(conn, slices, command, argv)
        conn.flow.wait = work
        self._works.append(work)
        self._ticks.queue()
        if len(self._works) == 1:
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Run some slices of the first command that is not paused."""
        for _ in range(len(self._works)):
            work = self._works.popleft()
            if self._paused(work):
                self._works.append(work)
                continue
            answer = self._steps(work, TURN_NS)
            if answer is None:
                self._works.append(work)
            else:
                self._finish(work, answer)
            if self._data.ks.events:
                self._notifications.send(work.session)
            self._ticks.queue()
            if self._works:
                self._loop.call_soon(self._turn)  # after the tick, and after newly arrived commands
            return
        if self._works:
            self._loop.call_later(HELD_SECONDS, self._turn)

    def _paused(self, work: SlicedCommand) -> bool:
        """Return whether the command must wait, because it writes (Rule 4) or for entries from the object store."""
        if work.absent:
            return True
        gates = self._gates
        waits = gates.held or gates.paused or bool(gates.unwritable)
        return waits and work.slices.writes and not self._data.ks.follower

    def _steps(self, work: SlicedCommand, limit_ns: int, closing: bool = False) -> bytes | Chunks | None:
        """Run slices for about ``limit_ns``. Returns the reply if the last slice has run, otherwise None. ``closing``:
        nothing can be fetched any more."""
        ctx = self._ctx
        ctx.ks, ctx.session, ctx.now = self._data.ks, work.session, self._clock.now()
        ctx.ks.no_touch = work.session.no_touch
        began = perf_counter_ns()
        answer: bytes | Chunks | None
        try:
            answer = _some(work.slices, ctx, began + limit_ns, not closing)
        except AbsentNodeError as error:
            if work.slices.resumes and not error.failed and not closing:
                answer = None
                work.absent = True
                self._fetch(error, lambda: _present(work))
            else:
                answer = self._failures.reply(work.argv, error, work.command, work.slices.writes)
        except Exception as error:  # noqa: BLE001 - it becomes the reply
            answer = self._failures.reply(work.argv, error, work.command, work.slices.writes)
        work.took_ns += perf_counter_ns() - began
        self._ticks.note_write(work.session)
        return answer

    def _finish(self, work: SlicedCommand, answer: bytes | Chunks) -> None:
        command, timings = work.command, self._timings
        if command is not None:
            command.usec += work.took_ns
            if timings.tracking:
                timings.note(command.name, work.took_ns, 1)
            if work.took_ns > timings.slow_ns:
                timings.slow(work.session, command, redacted(work.argv, command.name), work.took_ns, self._clock.now())
        conn = work.conn
        if conn is None:
            if isinstance(answer, Chunks):
                answer.close()
            return
        work.forget()
        conn.answer_late(answer)

    def finish_all(self) -> None:
        """Finish all commands in progress. Called at shutdown."""
        while self._works:
            work = self._works.popleft()
            answer = None
            while answer is None:
                answer = self._steps(work, TURN_NS, closing=True)
            self._finish(work, answer)


def _present(work: SlicedCommand) -> None:
    work.absent = False


def _some(slices: Slices, ctx: Context, until_ns: int, resumes: bool = False) -> bytes | Chunks | None:
    """Run slices until ``until_ns``, at least one. Returns the reply if the last slice has run, otherwise None.

    ``resumes``: a command that can do so continues after AbsentNodeError.
    """
    try:
        if slices.writes and ctx.ks.follower:
            raise CommandError(errors.DEMOTED)
        answer = slices.step(ctx)
        while answer is None and perf_counter_ns() < until_ns:
            answer = slices.step(ctx)
    except BaseException as error:
        if not (resumes and slices.resumes and isinstance(error, AbsentNodeError) and not error.failed):
            slices.close()
        raise
    return answer


def all_of(slices: Slices, ctx: Context) -> bytes | Chunks:
    answer = None
    while answer is None:
        answer = _some(slices, ctx, 0)
    return answer
