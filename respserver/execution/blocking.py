"""Blocked clients: they wait for entries in a stream, or until replicas or the disk have their writes.

Rule 1: readers of one group are served in the order in which they blocked, one after another as entries arrive. A
reader that was served and blocks again is at the end of the queue [18]. After them, all other clients are served:
readers without a group, and clients that read nothing (TWAIT) [53]. Clients with equal calls share one reply.
Rule 2: readers are served right after the command that made entries available, so k appends in one pipeline serve k
readers. The replies are sent at the end of the tick, when the entries are on disk.
Rule 3: a reader that is woken and gets nothing keeps its position in the queue and its timeout [10].
Rule 4: deadlines are in monotonic time. Entries fall due in served time (Rule 6 of ``Keyspace``), as stored. The idle
time of consumers is measured by the wall clock.
Rule 5: a client that waits for streams is in one queue of each of its keys, and leaves all of them when its wait ends.
Waiting for n keys therefore costs O(n). Signalling one key costs O(1) for each client in its queues that continues to
wait.
Rule 6: a client that waits for replicas or the disk (WAIT, WAITAOF) is in ``_awaiting``. It is checked after the tick
in which it began to wait, at each acknowledgement of a replica, and periodically. A client whose reply is delayed
(DelayedReply) has only a deadline.
Rule 7: a client whose reply needs entries that are only in the object store continues to wait, with its position and
its timeout, and is served when they are in the disk cache [114].

Decision: there is one queue for each key and group. Starting a wait costs some microseconds for each key, interpreted,
and ending it about one. Signalling a key makes its clients examine only that key, and an append to a key for which
nobody waits has no additional cost. Within a step, the readers of groups are served for all keys first, so that no
client is woken for an entry that a reader has just received.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from time import perf_counter_ns
from typing import Final

from commands.acl.check import denied
from commands.context import DUE_MESSAGES, Await, Block, Chunks, Context, DelayedReply, ServerParts, next_pending
from commands.declare import lookup
from commands.slots import NO_SLOTS, slot_of
from resp import errors
from resp.errors import AbsentNodeError, CommandError
from respserver.clients.connection import Connection
from respserver.clients.flowcontrol import Wait
from respserver.clients.state import HALF_CLOSED
from respserver.execution.absent import MOST, Fetch, mark_of
from respserver.execution.faults import Failures
from respserver.execution.redirects import check_calls, moved
from respserver.runtime.parts import RuntimeParts
from storage.groups.group import Group
from storage.model.timers import PENDING_DUE, Timers
from storage.streams.stream import Stream

SERVED_NS: Final = 20_000_000  # limit of serving clients without a break
KEY_BYTES: Final = 800  # memory of each key of a wait, measured


class WaitQueue:
    """The clients that wait for one group of one key, or for a key without a group."""

    __slots__ = ("in_turn", "together", "wants")

    def __init__(self) -> None:
        # readers of the group, in order of arrival; created for the first one
        self.in_turn: OrderedDict[Waiter, Block] | None = None
        self.wants: dict[int, int] = {}  # kinds of pending entries that these readers want -> number of readers
        self.together: dict[Waiter, Block] = {}  # all other clients, which are served together

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

    def first(self, exhausted: set[int]) -> Waiter | None:
        """Return the first reader that wants a kind of pending entry that is not in ``exhausted``."""
        queue = self.in_turn
        if not queue or len(exhausted) == len(self.wants):
            return None
        for waiter, block in queue.items():
            if block.wants not in exhausted:
                return waiter
        return None

    def waiters(self) -> list[Waiter]:
        return [*(self.in_turn or ()), *self.together]


def _nothing() -> bytes:
    return b""


# The call and the wait of a client after its wait has ended.
NO_CALL: Final[list[bytes]] = []
OVER: Final = Await(0, _nothing, _nothing)


class Waiter(Wait):
    """A client that waits."""

    __slots__ = ("_bytes", "_registry", "argv", "block", "conn", "deadline", "done", "fetches", "groups")

    def __init__(
        self, registry: Blocking, conn: Connection, block: Block | Await, deadline: int, argv: list[bytes]
    ) -> None:  # fmt: skip
        super().__init__(isinstance(block, Await) and block.firm)
        self._registry = registry
        self.conn = conn
        self.block = block
        self.deadline = deadline  # ms, monotonic; 0: no deadline
        self.argv = argv  # the call
        self._bytes = 0  # see memory_bytes(); 0: not known yet
        self.done = False
        self.fetches = 0  # times that the reply needed entries from the object store
        # the group, by key; not looked up by name later, because another group can get the same name
        self.groups: dict[bytes, Group] = {}

    def memory_bytes(self) -> int:
        if not self._bytes:
            keys = 0 if isinstance(self.block, Await) else len(self.block.keys)
            self._bytes = KEY_BYTES * keys + sum(map(len, self.argv))
        return self._bytes

    def finish(self) -> None:
        """Mark the wait as ended. The heap of deadlines may retain this object, but not the keys of the call."""
        self.done = True
        self.argv, self.block = NO_CALL, OVER

    def late_reply(self) -> bytes:
        return self.block.at_timeout() if isinstance(self.block, Await) else self.block.timeout_reply

    def forget(self) -> None:
        self._registry.forget(self)

    def end(self, error: bool) -> bool:
        if isinstance(self.block, DelayedReply):
            return False
        if error:
            self._registry.fail(self, errors.UNBLOCKED)
        else:
            self._registry.release(self, self.late_reply())
        return True


class Blocking:
    """The registry of waiting clients."""

    def __init__(self, parts: RuntimeParts, server: ServerParts, fetch: Fetch) -> None:
        self._fetch = fetch
        self._loop = parts.loop
        self._clock = parts.clock
        self._data = parts.data
        self._ticks = parts.ticks
        self._slots = parts.slots
        self._failures = Failures(parts)
        self._server = server
        self._ctx = Context(parts.data.ks, server, None)  # type: ignore[arg-type]  # set for each waiter
        self.count = 0  # number of clients that wait
        self._queues: dict[bytes, dict[bytes | None, WaitQueue]] = {}  # keyed by key and group; no queue is empty
        self._fetching: set[tuple[bytes, bytes | None]] = set()  # queues that wait for entries from the object store
        self._awaiting: dict[Waiter, Await] = {}  # in the order in which they began to wait
        self._deadlines: list[tuple[int, int, Waiter]] = []  # heap: monotonic ms, number, waiter
        self._number = 0
        self._due = Timers()  # when a pending entry of a waiting group falls due, in served time
        self._held: dict[bytes, None] = {}  # signalled keys in slots that are held, see resume_slots()
        self._idle = Timers()  # when an entry of a consumer has been idle for long enough, in wall-clock ms

    # -- parking ---------------------------------------------------------------------------------------------
    def park(self, conn: Connection, block: Block | Await, ctx: Context, argv: list[bytes]) -> None:
        """Block the client. ``ctx``, ``argv``: those of its call."""
        deadline = self._clock.mono() + max(1, block.deadline - ctx.now) if block.deadline else 0
        waiter = Waiter(self, conn, block, deadline, argv)
        conn.flow.wait = waiter
        conn.session.blocked = True
        self.count += 1
        if isinstance(block, Block):
            self._enqueue(waiter, block)
        elif not isinstance(block, DelayedReply):  # which waits until its deadline
            self._awaiting[waiter] = block
            self._ticks.queue()
            self._loop.call_soon(self.acknowledged)  # after the tick, which may satisfy the wait
        if deadline:
            self._number += 1
            heappush(self._deadlines, (deadline, self._number, waiter))
            if len(self._deadlines) > 64 and len(self._deadlines) > 2 * self.count:  # most are obsolete
                self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
                heapify(self._deadlines)
        if deadline or isinstance(block, Await) or block.group is not None or conn.state == HALF_CLOSED:
            self._ticks.queue_flush(conn)  # the tick sets the timer, or closes at eof

    def _enqueue(self, waiter: Waiter, block: Block) -> None:
        name, waiting = block.group, self._data.ks.waiting
        for key in block.keys:
            queues = self._queues.get(key)
            if queues is None:
                queues = self._queues[key] = {}
            queue = queues.get(name)
            if queue is None:
                queue = queues[name] = WaitQueue()
            queue.add(waiter, block)
            waiting[key] = waiting.get(key, 0) + 1
            if name is not None:
                self._join(waiter, key, name)
                self._schedule_due(key, name)

    def _group(self, key: bytes, name: bytes) -> Group | None:
        stream = self._data.ks.keys.get(key)
        return stream.groups.get(name) if isinstance(stream, Stream) else None

    def _join(self, waiter: Waiter, key: bytes, name: bytes) -> None:
        """Keep the group from expiring while a client waits for it [15]."""
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

    def _schedule_due(self, key: bytes, name: bytes) -> None:
        """Schedule wake() to serve the queue when the next pending entry that its clients want becomes available."""
        group = self._group(key, name)
        if group is None or (key, name) in self._fetching:
            return
        line = self._queues[key][name]
        for wants in (*line.wants, DUE_MESSAGES) if line.together else line.wants:
            when = next_pending(group, wants)
            if when is not None:
                (self._due if wants == DUE_MESSAGES else self._idle).arm(PENDING_DUE, key, name, when)

    def forget(self, waiter: Waiter) -> None:
        """End the wait of a client that is served, timed out, unblocked or disconnected. Idempotent."""
        if waiter.done:
            return
        self.count -= 1
        if isinstance(waiter.block, Block):
            self._dequeue(waiter, waiter.block)
        elif not isinstance(waiter.block, DelayedReply):
            del self._awaiting[waiter]
        waiter.finish()
        waiter.conn.flow.wait = None
        waiter.conn.session.blocked = False
        waiter.conn.idle_since = 0

    def _dequeue(self, waiter: Waiter, block: Block) -> None:
        name = block.group
        for key in block.keys:
            line = self._queues[key][name]
            line.remove(waiter, block)
            self._left(key, name, line, 1)
            if name is not None:
                self._leave(waiter, key, name)

    def _left(self, key: bytes, name: bytes | None, line: WaitQueue, count: int) -> None:
        """Uncount ``count`` waiters that have left the queue, and remove the queue if it is empty."""
        if not line.together and not line.in_turn:
            lines = self._queues[key]
            del lines[name]
            if not lines:
                del self._queues[key]
        waiting = self._data.ks.waiting
        left = waiting.get(key, count) - count
        if left:
            waiting[key] = left
        else:
            waiting.pop(key, None)

    def release(self, waiter: Waiter, answer: bytes | Chunks) -> None:
        """End the wait with a reply. The client continues with its backlog."""
        self.forget(waiter)
        self._answer(waiter.conn, answer)

    def fail(self, waiter: Waiter, text: str) -> None:
        self.release(waiter, self._failures.reply(waiter.argv, CommandError(text), lookup(waiter.argv)))

    def _answer(self, conn: Connection, answer: bytes | Chunks) -> None:
        self._ticks.note_write(conn.session)
        conn.answer_late(answer)

    # -- signalled keys --------------------------------------------------------------------------------------
    def serve_ready(self) -> None:
        """Serve the clients that wait for the signalled keys, until no key is signalled or the time limit is reached.
        In the latter case, the next tick continues."""
        ks = self._data.ks
        until = perf_counter_ns() + SERVED_NS
        while ks.ready:
            keys = dict.fromkeys(ks.ready)
            ks.ready.clear()
            self._serve([(key, name) for key in keys for name in self._queues.get(key, ())], until)
            if ks.ready and perf_counter_ns() > until:
                self._ticks.queue()
                return

    def _serve(self, targets: list[tuple[bytes, bytes | None]], until: int) -> None:
        """Serve the queues of these keys and groups. Entries that readers of groups receive wake no other client. Keys
        that are not served before ``until`` (ns) are signalled again."""
        if self._slots.held != NO_SLOTS:
            held = self._slots.held
            self._held.update([(key, None) for key, _ in targets if held[slot_of(key)]])
            targets = [target for target in targets if not held[slot_of(target[0])]]
        served = 0
        for key, name in targets:
            if served and perf_counter_ns() > until:
                self._data.ks.ready += [key for key, _ in targets[served:]]
                break
            served += 1
            if name is not None:
                self._serve_in_turn(key, name, until)
        for key, name in targets[:served]:
            self._serve_together(key, name)

    def _serve_in_turn(self, key: bytes, name: bytes, until: int) -> None:
        """Serve the readers of a group in order, until there is no entry of any kind that they want."""
        line = self._queues.get(key, {}).get(name)
        if line is None or not line.in_turn:
            return
        ctx = self._context()
        queue = line.in_turn
        exhausted: set[int] = set()
        while (waiter := line.first(exhausted)) is not None:
            ctx.session = waiter.conn.session
            answer = self._serve_one(waiter, queue[waiter], key)
            if answer is None:
                exhausted.add(queue[waiter].wants)
            else:
                self.release(waiter, answer)
                if perf_counter_ns() > until:
                    self._data.ks.ready.append(key)
                    break
        if queue:
            self._schedule_due(key, name)

    def _serve_together(self, key: bytes, name: bytes | None) -> None:
        """Serve all other clients for which there are entries."""
        line = self._queues.get(key, {}).get(name)
        if line is None or not line.together:
            return
        ctx, queue = self._context(), line.together
        served: list[Waiter] = []
        answers: list[bytes | Chunks] = []
        asked: Block | None = None  # the call whose reply is ``answer``, if the reply can be shared
        answer: bytes | Chunks | None = None
        proto = 0
        alone = 0  # number of the served clients that are in no other queue
        for waiter, block in queue.items():
            session = waiter.conn.session
            if asked is None or proto != session.proto or not block.same(asked):
                ctx.session = session
                proto = session.proto
                answer = self._serve_one(waiter, block, key)
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
            conn.flow.wait = None
            conn.session.blocked = False
            conn.idle_since = 0
            self._answer(conn, out)
        if name is not None and queue:
            self._schedule_due(key, name)

    def _context(self) -> Context:
        ctx = self._ctx
        ctx.ks = self._data.ks
        ctx.now = self._clock.now()
        return ctx

    def _serve_one(self, waiter: Waiter, block: Block, key: bytes) -> bytes | Chunks | None:
        """Return the reply, or error reply, now that ``key`` was signalled; None if the client continues to wait."""
        name, before = block.group, 0
        try:
            if name is not None and waiter.groups.get(key) is not self._group(key, name):
                if not block.by_name:
                    # a new group of the same name is a different one [16]
                    raise errors.quoting(errors.NO_GROUP, key, name)
                self._leave(waiter, key, name)
                self._join(waiter, key, name)
            before = mark_of(self._data.ks)
            return block.serve(self._ctx, key)
        except Exception as error:  # noqa: BLE001 - another client's command signalled the key
            if isinstance(error, AbsentNodeError) and self._fetches(waiter, key, name, error, before):
                return None
            return self._failures.reply([b"a blocked read"], error, lookup(waiter.argv), name is not None)

    def _fetches(self, waiter: Waiter, key: bytes, name: bytes | None, error: AbsentNodeError, before: int) -> bool:
        """Fetch entries from the object store, and then signal the key, so that the client is served again. Returns
        whether it can be: not if its call has changed anything since ``before``.

        Meanwhile, a message that is due remains due, and the queue is not scheduled for it.
        """
        if error.failed or mark_of(self._data.ks) != before or waiter.fetches >= MOST:
            return False
        waiter.fetches += 1
        self._fetching.add((key, name))
        self._fetch(error, lambda: self._fetched(key, name))
        return True

    def _fetched(self, key: bytes, name: bytes | None) -> None:
        self._fetching.discard((key, name))
        self._signal(key)

    def _signal(self, key: bytes) -> None:
        self._data.ks.ready.append(key)
        self._ticks.queue()

    def acknowledged(self) -> None:
        """End the waits that are satisfied. Called when a replica has acknowledged, or the log was synced."""
        for waiter, wait in list(self._awaiting.items()):
            answer = wait.check()
            if answer is not None:
                self.release(waiter, answer)

    def wake(self, now: int, mono: int) -> None:
        """Serve due entries for a limited time, and end waits at their deadline. Called periodically."""
        until = perf_counter_ns() + SERVED_NS
        while not self._data.frozen and (targets := self._due_targets(now)):
            self._serve(targets, until)
            if perf_counter_ns() > until:
                break  # the rest is scheduled or signalled again
        if self._data.ks.ready and perf_counter_ns() > until:
            self._ticks.queue()
        else:
            self.serve_ready()
        if self._awaiting:  # the journal's thread does not notify after a sync
            self.acknowledged()
        while self._deadlines and self._deadlines[0][0] <= mono:
            waiter = heappop(self._deadlines)[2]
            if not waiter.done:
                self._time_out(waiter)

    def _due_targets(self, now: int) -> list[tuple[bytes, bytes | None]]:
        """Return and unschedule the keys and groups in which an entry may have fallen due."""
        targets: dict[tuple[bytes, bytes | None], None] = {}
        served = self._data.ks.served(now)
        while (item := self._due.take(served) or self._idle.take(now)) is not None:
            targets[item[1], item[2]] = None
        return list(targets)

    def _time_out(self, waiter: Waiter) -> None:
        try:
            self.release(waiter, waiter.late_reply())
        except CommandError as error:  # raised by a delayed login
            self.fail(waiter, error.text)

    def next_wake(self, now: int, mono: int) -> int | None:
        """Return the milliseconds until wake() must be called; None if nothing is scheduled."""
        while self._deadlines and self._deadlines[0][2].done:
            heappop(self._deadlines)
        waits = []
        if self._deadlines:
            waits.append(self._deadlines[0][0] - mono)
        ks = self._data.ks
        if not self._data.frozen:
            due, idle = self._due.next(), self._idle.next()
            if due is not None and ks.served_from != ks.served_to:  # otherwise, served time does not advance
                waits.append(due - ks.served(now))
            if idle is not None:
                waits.append(idle - now)
        return max(0, min(waits)) if waits else None

    def deadlines(self) -> int:
        return sum(not entry[2].done for entry in self._deadlines)

    # -- changes of users, role and data ----------------------------------------------------------------------
    def check_again(self) -> None:
        """After users have changed, end the waits for streams that their users may no longer read, with an error."""
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
        """End the waits that only a leader can serve, with this error. Called when this server becomes a replica.

        These are waits for groups and for replicas. A replica continues to serve other waits for streams.
        """
        ended = [waiter for waiter in self._awaiting if not waiter.firm]
        ended += self._waiting(True)
        for waiter in ended:
            self.fail(waiter, text)

    def redirect(self) -> None:
        """End the waits for streams, except for those of clients that sent READONLY and wait for no group, by sending
        the clients to the leader. Called when this server, with ``cluster-enabled``, becomes a replica."""
        for_groups = set(self._waiting(True))
        for waiter in self._waiting(False):
            session = waiter.conn.session
            if not session.readonly or waiter in for_groups:
                command = lookup(waiter.argv)
                slot = slot_of(waiter.argv[command.keys(waiter.argv)[0][0]])
                self.fail(waiter, moved(self._server.cluster, session, slot).text)

    def named(self) -> list[bytes]:
        """Return the keys in the calls of clients that wait for streams."""
        calls = [waiter.argv for waiter in self._waiting(False)]
        return [argv[at] for argv in calls for at, _ in lookup(argv).keys(argv)]

    def redirect_slots(self) -> None:
        """End the waits for streams in slots that this server does not serve any more. Called when slots have left."""
        ctx = self._context()
        for waiter in self._waiting(False):
            ctx.session = waiter.conn.session
            try:
                check_calls(ctx, self._slots, ctx.session, [(lookup(waiter.argv), waiter.argv)])
            except CommandError as error:
                self.fail(waiter, error.text)

    def resume_slots(self) -> None:
        """Serve the clients whose keys were signalled while their slots were held."""
        held, self._held = self._held, {}
        if held:
            self._data.ks.ready += held
            self._ticks.queue()

    def _waiting(self, for_groups: bool) -> list[Waiter]:
        """Return the clients that wait for streams, each once; or only those that wait for groups."""
        found: dict[Waiter, None] = {}
        for lines in self._queues.values():
            for name, line in lines.items():
                if name is not None or not for_groups:
                    found.update(dict.fromkeys(line.waiters()))
        return list(found)

    def recount(self) -> None:
        """Register the waiting clients with the keyspace. Called after the keyspace has been replaced."""
        ks = self._data.ks
        for key, lines in self._queues.items():
            waiting = 0
            for name, line in lines.items():
                waiters = line.waiters()
                waiting += len(waiters)
                if name is not None:
                    for waiter in waiters:
                        waiter.groups.pop(key, None)  # a group of the previous data
                        self._join(waiter, key, name)
            ks.waiting[key] = waiting
            ks.ready.append(key)
