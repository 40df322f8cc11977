"""Clients that wait: for news in a stream, or until replicas or the disk have their writes.

Rule 1: readers of one group are served in the order in which they blocked, one after another as entries arrive. A
reader that was served and blocks again is at the end of the queue [18]. After them everyone else is served: readers
without a group, and clients that take nothing [53]. Those of them that wait for the same share one reply.
Rule 2: readers are served right after the command that brought the news, so k appends in one pipeline serve k readers.
The replies leave with the tick, when their entries are on disk.
Rule 3: a reader that is woken and gets nothing keeps its place in the queue and its timeout [10].
Rule 4: deadlines are in monotonic time. Messages fall due in served time (Rule 6 of ``Keyspace``), as stored; those of
consumers are idle by the wall clock.
Rule 5: a client that waits for streams stands in a line of each of its keys, and leaves all of them when its wait ends.
To wait for n keys costs O(n) then; news of one key costs O(1) for each client that stands there and has to go on
waiting.
Rule 6: one that waits for replicas or the disk (WAIT, WAITAOF) is in ``_awaiting``. It is checked after the tick in
which it began to wait, at each acknowledgement of a replica, and as time passes. One whose answer is delayed (Delay)
has a deadline only.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from time import perf_counter_ns
from typing import Final

from commands.acl.check import denied
from commands.context import DUE_MESSAGES, Await, Block, Chunks, Context, DelayedReply, ServerParts, next_pending
from commands.declare import lookup
from resp import errors, reply
from resp.errors import CommandError
from respserver.clients.connection import Connection, Wait
from respserver.execution.faults import fault_reply
from respserver.runtime.parts import RuntimeParts
from storage.groups.group import Group
from storage.model.timers import PENDING_DUE, Timers
from storage.streams.stream import Stream

SERVED_NS: Final = 20_000_000  # of serving clients in one go
KEY_BYTES: Final = 800  # of memory that each key of a wait takes, measured


class WaitQueue:
    """Who waits for one group of one key, or for a key without a group."""

    __slots__ = ("in_turn", "together", "wants")

    def __init__(self) -> None:
        # readers of the group, first come, first served; made when there is one
        self.in_turn: OrderedDict[Waiter, Block] | None = None
        self.wants: dict[int, int] = {}  # what these want of what is pending, and how many do
        self.together: dict[Waiter, Block] = {}  # everyone else: all are served

    def add(self, waiter: Waiter, block: Block) -> None:
        if not block.in_turn:
            self.together[waiter] = block
            return
        self.wants[block.wants] = self.wants.get(block.wants, 0) + 1
        if self.in_turn is None:
            self.in_turn = OrderedDict()
        self.in_turn[waiter] = block

    def remove(self, waiter: Waiter, block: Block) -> None:
        if not block.in_turn:
            del self.together[waiter]
        elif self.in_turn is not None:
            del self.in_turn[waiter]
            left = self.wants[block.wants] - 1
            if left:
                self.wants[block.wants] = left
            else:
                del self.wants[block.wants]

    def first(self, vain: set[int]) -> Waiter | None:
        """The first reader in turn that wants something else than those who were asked in vain."""
        queue = self.in_turn
        if not queue or len(vain) == len(self.wants):
            return None
        for waiter, block in queue.items():
            if block.wants not in vain:
                return waiter
        return None

    def waiters(self) -> list[Waiter]:
        return [*(self.in_turn or ()), *self.together]


def _nothing() -> bytes:
    return b""


# What the call and the wait of a client are once it does not wait any more.
NO_CALL: Final[list[bytes]] = []
OVER: Final = Await(0, _nothing, _nothing)


class Waiter(Wait):
    """A client that waits."""

    __slots__ = ("_bytes", "_registry", "argv", "block", "conn", "deadline", "done", "groups")

    def __init__(
        self, registry: Blocking, conn: Connection, block: Block | Await, deadline: int, argv: list[bytes]
    ) -> None:  # fmt: skip
        super().__init__(isinstance(block, Await) and block.firm)
        self._registry = registry
        self.conn = conn
        self.block = block
        self.deadline = deadline  # ms, monotonic; 0: none
        self.argv = argv  # the call
        self._bytes = 0  # see memory_bytes(); 0: not known yet
        self.done = False
        # the group that it waits for, by key; not found by name later: another group can get the same name
        self.groups: dict[bytes, Group] = {}

    def memory_bytes(self) -> int:
        if not self._bytes:
            keys = 0 if isinstance(self.block, Await) else len(self.block.keys)
            self._bytes = KEY_BYTES * keys + sum(map(len, self.argv))
        return self._bytes

    def finish(self) -> None:
        """The wait is over. The heap of deadlines keeps this object for a while, but not the keys of the call."""
        self.done = True
        self.argv, self.block = NO_CALL, OVER

    def late_reply(self) -> bytes:
        """The reply at its deadline."""
        return self.block.at_timeout() if isinstance(self.block, Await) else self.block.timeout_reply

    def forget(self) -> None:
        self._registry.forget(self)

    def end(self, error: bool) -> bool:
        """CLIENT UNBLOCK."""
        if isinstance(self.block, DelayedReply):
            return False
        if error:
            self._registry.fail(self, errors.UNBLOCKED)
        else:
            self._registry.release(self, self.late_reply())
        return True


class Blocking:
    """The registry of waiting clients."""

    def __init__(self, parts: RuntimeParts, server: ServerParts) -> None:
        self._loop = parts.loop
        self._clock = parts.clock
        self._data = parts.data
        self._ticks = parts.ticks
        self._counters = parts.counters
        self._logger = parts.logger
        self._exhaustion = parts.exhaustion
        self._server = server
        self._ctx = Context(parts.data.ks, server, None)  # type: ignore[arg-type]  # set for each waiter
        self.count = 0  # clients that wait
        self._lines: dict[bytes, dict[bytes | None, WaitQueue]] = {}  # by key and group; none is empty
        self._awaiting: dict[Waiter, Await] = {}  # in the order in which they began to wait
        self._deadlines: list[tuple[int, int, Waiter]] = []  # heap: monotonic ms, number, waiter
        self._number = 0
        self._due = Timers()  # when a message of a waiting group falls due, served time
        self._idle = Timers()  # when one of a consumer has been idle for long enough, wall-clock ms

    # -- parking ---------------------------------------------------------------------------------------------
    def park(self, conn: Connection, block: Block | Await, ctx: Context, argv: list[bytes]) -> None:
        """Let the client wait. ``ctx``, ``argv``: those of its call."""
        deadline = self._clock.mono() + max(1, block.deadline - ctx.now) if block.deadline else 0
        waiter = Waiter(self, conn, block, deadline, argv)
        conn.wait = waiter
        conn.session.blocked = True
        self.count += 1
        if isinstance(block, DelayedReply):
            pass  # until its deadline
        elif isinstance(block, Await):
            self._awaiting[waiter] = block
            self._ticks.queue()
            self._loop.call_soon(self.acknowledged)  # after the tick, which may satisfy the wait
        else:
            self._enqueue(waiter, block)
        if deadline:
            self._number += 1
            heappush(self._deadlines, (deadline, self._number, waiter))
            if len(self._deadlines) > 64 and len(self._deadlines) > 2 * self.count:  # most are of waits that ended
                self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
                heapify(self._deadlines)
        if deadline or isinstance(block, Await) or block.group is not None or conn.peer_shut_down:
            self._ticks.queue_flush(conn)  # the tick sets the timer, or closes at eof

    def _enqueue(self, waiter: Waiter, block: Block) -> None:
        name, waiting = block.group, self._data.ks.waiting
        for key in block.keys:
            lines = self._lines.get(key)
            if lines is None:
                lines = self._lines[key] = {}
            line = lines.get(name)
            if line is None:
                line = lines[name] = WaitQueue()
            line.add(waiter, block)
            waiting[key] = waiting.get(key, 0) + 1
            if name is not None:
                self._join(waiter, key, name)
                self._file_due(key, name)

    def _group(self, key: bytes, name: bytes) -> Group | None:
        stream = self._data.ks.keys.get(key)
        return stream.groups.get(name) if isinstance(stream, Stream) else None

    def _join(self, waiter: Waiter, key: bytes, name: bytes) -> None:
        """A group that a client waits for does not expire [15]."""
        group = self._group(key, name)
        if group is not None:
            waiter.groups[key] = group
            group.waiters += 1

    def _leave(self, waiter: Waiter, key: bytes, name: bytes) -> None:
        group = waiter.groups.pop(key, None)
        if group is not None:
            group.waiters -= 1
            if not group.waiters and group is self._group(key, name):
                ks = self._data.ks
                group.touch(ks.served(self._clock.now()))
                ks.arm_group(key, group)

    def _file_due(self, key: bytes, name: bytes) -> None:
        """Let wake() serve the line when there is the next pending message that somebody there wants."""
        group = self._group(key, name)
        if group is None:
            return
        line = self._lines[key][name]
        for wants in (*line.wants, DUE_MESSAGES) if line.together else line.wants:
            when = next_pending(group, wants)
            if when is not None:
                (self._due if wants == DUE_MESSAGES else self._idle).arm(PENDING_DUE, key, name, when)

    def forget(self, waiter: Waiter) -> None:
        """End the wait: the client is served, timed out, unblocked or gone. Idempotent."""
        if waiter.done:
            return
        self.count -= 1
        if isinstance(waiter.block, DelayedReply):
            pass
        elif isinstance(waiter.block, Await):
            del self._awaiting[waiter]
        else:
            self._dequeue(waiter, waiter.block)
        waiter.finish()
        waiter.conn.wait = None
        waiter.conn.session.blocked = False

    def _dequeue(self, waiter: Waiter, block: Block) -> None:
        name = block.group
        for key in block.keys:
            line = self._lines[key][name]
            line.remove(waiter, block)
            self._left(key, name, line, 1)
            if name is not None:
                self._leave(waiter, key, name)

    def _left(self, key: bytes, name: bytes | None, line: WaitQueue, count: int) -> None:
        """Count ``count`` waiters out that have left the line, and remove it if it is empty."""
        if not line.together and not line.in_turn:
            lines = self._lines[key]
            del lines[name]
            if not lines:
                del self._lines[key]
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

    def fail(self, waiter: Waiter, text: str) -> None:
        """End the wait with an error."""
        self.release(waiter, self._error(waiter, text))

    def _error(self, waiter: Waiter, text: str) -> bytes:
        """An error reply to the call, which has failed."""
        self._counters.note_error(text)
        lookup(waiter.argv).failed += 1
        return reply.error(text)

    def _answer(self, conn: Connection, answer: bytes | Chunks) -> None:
        self._ticks.note_write(conn.session)
        conn.answer(answer)
        self._ticks.queue_flush(conn)
        self._ticks.queue_resume(conn)

    # -- news ------------------------------------------------------------------------------------------------
    def serve_ready(self) -> None:
        """Serve those who wait for the signalled keys, until no key is signalled, or for as long as others should wait:
        then a tick is queued, which goes on."""
        ks = self._data.ks
        until = perf_counter_ns() + SERVED_NS
        while ks.ready:
            keys = dict.fromkeys(ks.ready)
            ks.ready.clear()
            self._serve([(key, name) for key in keys for name in self._lines.get(key, ())], until)
            if ks.ready and perf_counter_ns() > until:
                self._ticks.queue()
                return

    def _serve(self, places: list[tuple[bytes, bytes | None]], until: int) -> None:
        """Serve the lines of these keys and groups. What the readers of groups take wakes nobody else. Keys that are
        not served before ``until`` (ns) are signalled again."""
        served = 0
        for key, name in places:
            if served and perf_counter_ns() > until:
                self._data.ks.ready += [key for key, _ in places[served:]]
                break
            served += 1
            if name is not None:
                self._serve_in_turn(key, name, until)
        for key, name in places[:served]:
            self._serve_together(key, name)

    def _serve_in_turn(self, key: bytes, name: bytes, until: int) -> None:
        """Serve the readers of a group, until there is nothing for the first one of each kind."""
        line = self._lines.get(key, {}).get(name)
        if line is None or not line.in_turn:
            return
        ctx = self._context()
        queue = line.in_turn
        vain: set[int] = set()
        while (waiter := line.first(vain)) is not None:
            ctx.session = waiter.conn.session
            answer = self._ask(waiter, queue[waiter], key)
            if answer is None:
                vain.add(queue[waiter].wants)
            else:
                self.release(waiter, answer)
                if perf_counter_ns() > until:
                    self._data.ks.ready.append(key)
                    break
        if queue:
            self._file_due(key, name)

    def _serve_together(self, key: bytes, name: bytes | None) -> None:
        """Serve everyone else that there is news for."""
        line = self._lines.get(key, {}).get(name)
        if line is None or not line.together:
            return
        ctx, queue = self._context(), line.together
        served: list[Waiter] = []
        answers: list[bytes | Chunks] = []
        asked: Block | None = None  # whose reply is ``answer``, if it can be shared
        answer: bytes | Chunks | None = None
        proto = 0
        alone = 0  # of those served: stand in no other line
        for waiter, block in queue.items():
            session = waiter.conn.session
            if asked is None or proto != session.proto or not block.same(asked):
                ctx.session = session
                proto = session.proto
                answer = self._ask(waiter, block, key)
                asked = block if answer is None or (isinstance(answer, bytes) and answer.startswith(b"*")) else None
            if answer is not None:
                served.append(waiter)
                answers.append(answer)
                if name is None and len(block.keys) == 1:
                    alone += 1
        if alone and alone == len(queue):
            queue.clear()
            self._left(key, name, line, alone)
        else:
            for waiter in served:
                self._dequeue(waiter, queue[waiter])
        self.count -= len(served)
        for waiter, out in zip(served, answers, strict=True):
            waiter.finish()
            conn = waiter.conn
            conn.wait = None
            conn.session.blocked = False
            self._answer(conn, out)
        if name is not None and queue:
            self._file_due(key, name)

    def _context(self) -> Context:
        ctx = self._ctx
        ctx.ks = self._data.ks
        ctx.now = self._clock.now()
        return ctx

    def _ask(self, waiter: Waiter, block: Block, key: bytes) -> bytes | Chunks | None:
        """The reply, or error reply, for the client now that ``key`` has news. None: it goes on waiting."""
        name = block.group
        try:
            if name is not None and waiter.groups.get(key) is not self._group(key, name):
                if not block.by_name:
                    raise errors.no_group(key, name)  # it ended; a new group of the same name is another one [16]
                self._leave(waiter, key, name)
                self._join(waiter, key, name)
            return block.serve(self._ctx, key)
        except CommandError as error:
            return self._error(waiter, error.text)
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
        """Called as time passes: serve due messages, for as long as others should wait, and end waits at their
        deadline."""
        until = perf_counter_ns() + SERVED_NS
        while not self._data.frozen and (places := self._due_places(now)):
            self._serve(places, until)
            if perf_counter_ns() > until:
                break  # what is left is filed or signalled again
        if self._data.ks.ready and perf_counter_ns() > until:
            self._ticks.queue()
        else:
            self.serve_ready()
        if self._awaiting:  # the journal's thread syncs without telling
            self.acknowledged()
        while self._deadlines and self._deadlines[0][0] <= mono:
            waiter = heappop(self._deadlines)[2]
            if not waiter.done:
                self._time_out(waiter)

    def _due_places(self, now: int) -> list[tuple[bytes, bytes | None]]:
        """The keys and groups in which a message may have fallen due; they are no longer filed."""
        places: dict[tuple[bytes, bytes | None], None] = {}
        served = self._data.ks.served(now)
        while (item := self._due.take(served) or self._idle.take(now)) is not None:
            places[item[1], item[2]] = None
        return list(places)

    def _time_out(self, waiter: Waiter) -> None:
        try:
            answer = waiter.late_reply()
        except CommandError as error:  # of a delayed login
            answer = self._error(waiter, error.text)
        self.release(waiter, answer)

    def next_wake(self, now: int, mono: int) -> int | None:
        """Milliseconds until wake() must be called; None if nothing is due."""
        while self._deadlines and self._deadlines[0][2].done:
            heappop(self._deadlines)
        waits = []
        if self._deadlines:
            waits.append(self._deadlines[0][0] - mono)
        ks = self._data.ks
        if not self._data.frozen:
            due, idle = self._due.next(), self._idle.next()
            if due is not None and ks.served_from != ks.served_to:  # else served time stands still
                waits.append(due - ks.served(now))
            if idle is not None:
                waits.append(idle - now)
        return max(0, min(waits)) if waits else None

    def deadlines(self) -> int:
        """The number of clients whose wait has a timeout."""
        return sum(not entry[2].done for entry in self._deadlines)

    # -- changes of users, role and data ----------------------------------------------------------------------
    def check_again(self) -> None:
        """Users have changed: end the waits for streams that their users may not read any more, with the error."""
        for waiter in self._waiting(False):
            session = waiter.conn.session
            if session.user.unrestricted:
                continue
            denial = denied(session.user, lookup(waiter.argv), waiter.argv, self._data.ks)
            if denial is not None:
                text = denial.error().text
                self._server.users.note(session, denial.reason, denial.what)
                self.fail(waiter, text)

    def unblock_groups(self, text: str) -> None:
        """This server is no leader any more: end the waits that only a leader can serve, with this error.

        These are waits for groups, and for replicas. Other waits for streams go on: a replica serves them.
        """
        ended = [waiter for waiter in self._awaiting if not waiter.firm]
        ended += self._waiting(True)
        for waiter in ended:
            self.fail(waiter, text)

    def _waiting(self, for_groups: bool) -> list[Waiter]:
        """The clients that wait for streams, each once; or only those that wait for groups."""
        found: dict[Waiter, None] = {}
        for lines in self._lines.values():
            for name, line in lines.items():
                if name is not None or not for_groups:
                    found.update(dict.fromkeys(line.waiters()))
        return list(found)

    def recount(self) -> None:
        """Called when the keyspace has been replaced: register the waiting clients with it."""
        ks = self._data.ks
        for key, lines in self._lines.items():
            waiting = 0
            for name, line in lines.items():
                waiters = line.waiters()
                waiting += len(waiters)
                if name is not None:
                    for waiter in waiters:
                        waiter.groups.pop(key, None)  # of the data before
                        self._join(waiter, key, name)
            ks.waiting[key] = waiting
            ks.ready.append(key)
