"""Clients that wait: for news in a stream, or until replicas or the disk have their writes.

Rule 1: new entries go to all readers without a group; those that wait at the same place share one reply. Readers of one
group are served in the order in which they blocked, one after another as entries arrive. A reader that was served and
blocks again is at the end of the queue [18].
Rule 2: readers are served right after the command that brought the news, so k appends in one pipeline serve k readers.
The replies leave with the tick, when their entries are on disk.
Rule 3: a reader that is woken and gets nothing keeps its place in the queue and its timeout [10].
Rule 4: deadlines are in monotonic time. Messages fall due in wall-clock time, as stored.
Rule 5: a client that waits for a stream is in a queue of its key. One that waits for replicas or the disk (WAIT,
WAITAOF) is in ``_awaiting``. It is checked after the tick in which it began to wait, at each acknowledgement of a
replica, and as time passes. One whose answer is delayed (Delay) has a deadline only.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from heapq import heapify, heappop, heappush

from commands.acl.check import denied
from commands.context import Await, Block, Chunks, Context, Delay, ServerParts
from commands.declare import lookup
from resp import errors, reply
from resp.errors import CommandError
from respserver.clients.connection import Connection, Wait
from respserver.clock import Clock
from respserver.data import Data
from respserver.execution.faults import fault_reply
from respserver.exhaustion import Exhaustion
from respserver.observe.logs import Logger
from respserver.observe.stats import Counters
from respserver.ticks import Ticks
from storage.groups.group import Group
from storage.stream import Stream
from storage.timers import PENDING_DUE, Timers

Queue = dict["Waiter", Block]  # an OrderedDict for a group, whose readers leave it at the front


class Waiter(Wait):
    """A client that waits."""

    __slots__ = ("_registry", "argv", "block", "conn", "deadline", "done", "group")

    def __init__(
        self, registry: Blocking, conn: Connection, block: Block | Await, deadline: int, argv: list[bytes]
    ) -> None:  # fmt: skip
        super().__init__(isinstance(block, Await) and block.firm)
        self._registry = registry
        self.conn = conn
        self.block = block
        self.deadline = deadline  # ms, monotonic; 0: none
        self.argv = argv  # the call
        self.done = False
        self.group: Group | None = None  # not found by name later: another group can get the same name

    def late_reply(self) -> bytes:
        """The reply at its deadline."""
        return self.block.at_timeout() if isinstance(self.block, Await) else self.block.timeout_reply

    def forget(self) -> None:
        self._registry.forget(self)

    def end(self, error: bool) -> bool:
        """CLIENT UNBLOCK."""
        if isinstance(self.block, Delay):
            return False
        unblocked = b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"
        self._registry.release(self, unblocked if error else self.late_reply())
        return True


class Blocking:
    """The registry of waiting clients, by key and group."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, data: Data, ticks: Ticks, counters: Counters,
        logger: Logger, parts: ServerParts, exhaustion: Exhaustion,
    ) -> None:  # fmt: skip
        self._loop = loop
        self._clock = clock
        self._data = data
        self._ticks = ticks
        self._counters = counters
        self._logger = logger
        self._exhaustion = exhaustion
        self._parts = parts
        self._ctx = Context(data.ks, parts, None)  # type: ignore[arg-type]  # set for each waiter
        self.count = 0  # clients that wait
        self._queues: dict[bytes, dict[bytes | None, Queue]] = {}
        self._awaiting: dict[Waiter, Await] = {}  # in the order in which they began to wait
        self._deadlines: list[tuple[int, int, Waiter]] = []  # heap: monotonic ms, number, waiter
        self._number = 0
        self._due = Timers()  # when a message of a waiting group falls due, wall-clock ms

    # -- parking ---------------------------------------------------------------------------------------------
    def park(self, conn: Connection, block: Block | Await, ctx: Context, argv: list[bytes]) -> None:
        """Let the client wait. ``ctx``, ``argv``: those of its call."""
        deadline = self._clock.mono() + max(1, block.deadline - ctx.now) if block.deadline else 0
        waiter = Waiter(self, conn, block, deadline, argv)
        conn.wait = waiter
        conn.session.blocked = True
        self.count += 1
        if isinstance(block, Delay):
            pass  # until its deadline
        elif isinstance(block, Await):
            self._awaiting[waiter] = block
            self._ticks.queue()
            self._loop.call_soon(self.acknowledged)  # after the tick, which may satisfy the wait
        else:
            self._enqueue(waiter, block, ctx)
        if deadline:
            self._number += 1
            heappush(self._deadlines, (deadline, self._number, waiter))
            if len(self._deadlines) > 64 and len(self._deadlines) > 2 * self.count:  # most are of waits that ended
                self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
                heapify(self._deadlines)
        if deadline or isinstance(block, Await) or block.group is not None or conn.eof:
            self._ticks.queue_flush(conn)  # the tick sets the timer, or closes at eof

    def _enqueue(self, waiter: Waiter, block: Block, ctx: Context) -> None:
        key, name = block.key, block.group
        groups = self._queues.get(key)
        if groups is None:
            groups = self._queues[key] = {}
        queue = groups.get(name)
        if queue is None:
            queue = groups[name] = {} if name is None else OrderedDict()
        queue[waiter] = block
        waiting = self._data.ks.waiting
        waiting[key] = waiting.get(key, 0) + 1
        if name is not None:
            self._join(waiter, block, name)
            self._file_due(block, name, ctx)

    def _group(self, key: bytes, name: bytes) -> Group | None:
        stream = self._data.ks.keys.get(key)
        return stream.groups.get(name) if isinstance(stream, Stream) else None

    def _join(self, waiter: Waiter, block: Block, name: bytes) -> None:
        """A group with a blocked reader does not expire [15]."""
        group = waiter.group = self._group(block.key, name)
        if group is not None:
            group.waiters += 1

    def _leave(self, waiter: Waiter, block: Block, name: bytes) -> None:
        group, waiter.group = waiter.group, None
        if group is not None:
            group.waiters -= 1
            if not group.waiters and group is self._group(block.key, name):
                group.touch(self._clock.now())
                self._data.ks.arm_group(block.key, group)

    def _file_due(self, block: Block, name: bytes, ctx: Context) -> None:
        when = block.wake_at(ctx)
        if when is not None:
            self._due.arm(PENDING_DUE, block.key, name, when)

    def forget(self, waiter: Waiter) -> None:
        """End the wait: the client is served, timed out, unblocked or gone. Idempotent."""
        if waiter.done:
            return
        waiter.done = True
        self.count -= 1
        if isinstance(waiter.block, Delay):
            pass
        elif isinstance(waiter.block, Await):
            del self._awaiting[waiter]
        else:
            self._dequeue(waiter, waiter.block)
        waiter.conn.wait = None
        waiter.conn.session.blocked = False

    def _dequeue(self, waiter: Waiter, block: Block) -> None:
        key, name = block.key, block.group
        del self._queues[key][name][waiter]
        self._left(key, name, 1)
        if name is not None:
            self._leave(waiter, block, name)

    def _left(self, key: bytes, name: bytes | None, count: int) -> None:
        """Count ``count`` waiters out that have left their queue, and remove empty queues."""
        groups = self._queues[key]
        if not groups[name]:
            del groups[name]
            if not groups:
                del self._queues[key]
        waiting = self._data.ks.waiting
        left = waiting.get(key, count) - count
        if left:
            waiting[key] = left
        else:
            waiting.pop(key, None)

    def release(self, waiter: Waiter, answer: bytes | Chunks) -> None:
        """End the wait with a reply. The client goes on with its backlog."""
        self.forget(waiter)
        self._answer(waiter.conn, answer)

    def _answer(self, conn: Connection, answer: bytes | Chunks) -> None:
        self._ticks.note_write(conn.session)
        conn.answer(answer)
        self._ticks.queue_flush(conn)
        self._ticks.queue_resume(conn)

    # -- news ------------------------------------------------------------------------------------------------
    def serve_ready(self) -> None:
        """Serve the readers of all signalled keys, until no key is signalled."""
        ks = self._data.ks
        while ks.ready:
            keys = dict.fromkeys(ks.ready)
            ks.ready.clear()
            for key in keys:
                for name in list(self._queues.get(key, ())):
                    self._serve_queue(key, name)

    def _serve_queue(self, key: bytes, name: bytes | None) -> None:
        queue = self._queues.get(key, {}).get(name)
        if queue is None:
            return
        ctx = self._ctx
        ctx.ks = self._data.ks
        ctx.now = self._clock.now()
        if name is None:
            self._serve_all(key, queue)
            return
        while queue:
            waiter = next(iter(queue))
            block = queue[waiter]
            ctx.session = waiter.conn.session
            answer = self._ask(waiter, block)
            if answer is None:
                self._file_due(block, name, ctx)
                return
            self.release(waiter, answer)

    def _serve_all(self, key: bytes, queue: Queue) -> None:
        """Serve all readers without a group that have new entries."""
        ctx = self._ctx
        served: list[Waiter] = []
        answers: list[bytes | Chunks] = []
        asked: Block | None = None  # whose reply is ``answer``, if it can be shared
        answer: bytes | Chunks | None = None
        proto = 0
        for waiter, block in queue.items():
            session = waiter.conn.session
            if asked is None or proto != session.proto or not block.same(asked):
                ctx.session = session
                proto = session.proto
                answer = self._ask(waiter, block)
                asked = block if answer is None or (isinstance(answer, bytes) and answer.startswith(b"*")) else None
            if answer is not None:
                served.append(waiter)
                answers.append(answer)
        if not served:
            return
        if len(served) == len(queue):
            queue.clear()
        else:
            for waiter in served:
                del queue[waiter]
        self._left(key, None, len(served))
        self.count -= len(served)
        for waiter, out in zip(served, answers, strict=True):
            waiter.done = True
            conn = waiter.conn
            conn.wait = None
            conn.session.blocked = False
            self._answer(conn, out)

    def _ask(self, waiter: Waiter, block: Block) -> bytes | Chunks | None:
        """The reply, or error reply, for the reader now. None: it goes on waiting."""
        name = block.group
        try:
            if name is not None and waiter.group is not self._group(block.key, name):
                raise errors.no_group(block.key, name)  # it ended; a new group of the same name is another one [16]
            return block.serve(self._ctx)
        except CommandError as error:
            self._counters.note_error(error.text)
            return reply.error(error.text)
        except MemoryError:
            if name is not None:
                self._exhaustion.end("serving the reader of a group")
            return self._exhaustion.reply(b"a blocked read")
        except Exception as error:  # noqa: BLE001 - it must not concern the client that brought the news
            return fault_reply(b"a blocked read", error, self._counters, self._logger)

    def acknowledged(self) -> None:
        """Called when a replica has acknowledged, or the log was synced: end the waits that are satisfied."""
        for waiter, wait in list(self._awaiting.items()):
            answer = wait.check()
            if answer is not None:
                self.release(waiter, answer)

    def wake(self, now: int, mono: int) -> None:
        """Called as time passes: serve due messages, and end waits at their deadline."""
        while not self._data.frozen and (item := self._due.take(now)) is not None:
            _, key, name = item
            self._serve_queue(key, name)
        self.serve_ready()
        if self._awaiting:  # the journal's thread syncs without telling
            self.acknowledged()
        while self._deadlines and self._deadlines[0][0] <= mono:
            waiter = heappop(self._deadlines)[2]
            if not waiter.done:
                self._time_out(waiter)

    def _time_out(self, waiter: Waiter) -> None:
        try:
            answer = waiter.late_reply()
        except CommandError as error:  # of a delayed login
            self._counters.note_error(error.text)
            answer = reply.error(error.text)
        self.release(waiter, answer)

    def next_wake(self, now: int, mono: int) -> int | None:
        """Milliseconds until wake() must be called; None if nothing is due."""
        while self._deadlines and self._deadlines[0][2].done:
            heappop(self._deadlines)
        waits = []
        if self._deadlines:
            waits.append(self._deadlines[0][0] - mono)
        due = self._due.next()
        if due is not None and not self._data.frozen:
            waits.append(due - now)
        return max(0, min(waits)) if waits else None

    def deadlines(self) -> int:
        """The number of clients whose wait has a timeout."""
        return sum(not entry[2].done for entry in self._deadlines)

    # -- changes of users, role and data ----------------------------------------------------------------------
    def check_again(self) -> None:
        """Users have changed: end the waits for streams that their users may not read any more, with the error."""
        for groups in list(self._queues.values()):
            for queue in list(groups.values()):
                for waiter in list(queue):
                    session = waiter.conn.session
                    if session.user.unrestricted:
                        continue
                    denial = denied(session.user, lookup(waiter.argv), waiter.argv, self._data.ks)
                    if denial is not None:
                        text = denial.error().text
                        self._parts.users.note(session, denial.reason, denial.what)
                        self._counters.note_error(text)
                        self.release(waiter, reply.error(text))

    def unblock_groups(self, text: str) -> None:
        """This server is no leader any more: end the waits that only a leader can serve, with this error.

        These are readers of groups, and clients that wait for replicas. Plain readers stay: a replica serves them.
        """
        ended = [waiter for waiter in self._awaiting if not waiter.firm]
        for groups in self._queues.values():
            ended += [waiter for name, queue in groups.items() if name is not None for waiter in queue]
        for waiter in ended:
            self._counters.note_error(text)
            self.release(waiter, reply.error(text))

    def recount(self) -> None:
        """Called when the keyspace has been replaced: register the waiting readers with it."""
        ks = self._data.ks
        for key, groups in self._queues.items():
            ks.waiting[key] = sum(map(len, groups.values()))
            for name, queue in groups.items():
                if name is not None:
                    for waiter, block in queue.items():
                        self._join(waiter, block, name)
            ks.ready.append(key)
