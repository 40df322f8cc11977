"""Clients that wait for a stream to have news.

Rule 1: readers without a group are all served; readers of one group are served in the order in which they blocked,
one after
another as entries arrive, and whoever was served queues at the end when it blocks again [18].
Rule 2: serving happens right after the command that brought the news, so k appends in one pipeline feed k readers; the
replies leave with the tick, when what they show is on disk.
Rule 3: a wake without data keeps the place in the queue and the timeout [10].
Rule 4: deadlines count on a clock that is never set; when a message falls due is wall-clock time, as stored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from commands.context import Block, Chunks, Context
from resp import errors, reply
from resp.errors import CommandError
from storage.agenda import PENDING_DUE, Agenda
from storage.groups import Group
from storage.stream import Stream

if TYPE_CHECKING:
    from respserver.connection import Connection
    from respserver.server import Server

Queue = OrderedDict["Waiter", None]


class Waiter:
    """A parked client."""

    __slots__ = ("block", "conn", "deadline", "done", "group")

    def __init__(self, conn: Connection, block: Block, deadline: int) -> None:
        self.conn = conn
        self.block = block
        self.deadline = deadline  # ms on the monotonic clock; 0: waits for ever
        self.done = False
        self.group: Group | None = None  # the very one that it waits for: another may get its name


class Blocking:
    """Registry of waiters by key and group."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.ctx = Context(server.ks, server.api, None)  # type: ignore[arg-type]  # set for each waiter
        self.count = 0
        self._queues: dict[bytes, dict[bytes | None, Queue]] = {}
        self._deadlines: list[tuple[int, int, Waiter]] = []  # heap: monotonic ms, number, waiter
        self._number = 0
        self._due = Agenda()  # when a message of a waiting group falls due, wall-clock ms

    # -- parking ---------------------------------------------------------------------------------------------
    def park(self, conn: Connection, block: Block, ctx: Context) -> None:
        server = self.server
        deadline = server.mono_ms() + max(1, block.deadline - ctx.now) if block.deadline else 0
        waiter = Waiter(conn, block, deadline)
        conn.waiter = waiter
        conn.session.blocked = True
        self.count += 1
        key, name = block.key, block.group
        self._queues.setdefault(key, {}).setdefault(name, OrderedDict())[waiter] = None
        waiting = server.ks.waiting
        waiting[key] = waiting.get(key, 0) + 1
        if deadline:
            self._number += 1
            heappush(self._deadlines, (deadline, self._number, waiter))
            if len(self._deadlines) > 64 and len(self._deadlines) > 2 * self.count:  # mostly of waits that have ended
                self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
                heapify(self._deadlines)
        if name is not None:
            self._join(waiter, name)
            self._file_due(key, name, waiter, ctx)
        server.queue_flush(conn)

    def _group(self, key: bytes, name: bytes) -> Group | None:
        stream = self.server.ks.keys.get(key)
        return stream.groups.get(name) if isinstance(stream, Stream) else None

    def _join(self, waiter: Waiter, name: bytes) -> None:
        """A group with a blocked reader does not expire [15]."""
        group = waiter.group = self._group(waiter.block.key, name)
        if group is not None:
            group.waiters += 1

    def _leave(self, waiter: Waiter, name: bytes) -> None:
        group, waiter.group = waiter.group, None
        if group is not None:
            group.waiters -= 1
            if not group.waiters and group is self._group(waiter.block.key, name):
                group.touch(self.server.now_ms())
                self.server.ks.file_group(waiter.block.key, group)

    def _file_due(self, key: bytes, name: bytes, waiter: Waiter, ctx: Context) -> None:
        if waiter.block.wake_at is not None:
            when = waiter.block.wake_at(ctx)
            if when is not None:
                self._due.file(PENDING_DUE, key, name, when)

    def forget(self, waiter: Waiter) -> None:
        """The client is served, timed out, unblocked or gone."""
        if waiter.done:
            return
        waiter.done = True
        self.count -= 1
        key, name = waiter.block.key, waiter.block.group
        groups = self._queues[key]
        queue = groups[name]
        del queue[waiter]
        if not queue:
            del groups[name]
            if not groups:
                del self._queues[key]
        waiting = self.server.ks.waiting
        left = waiting.get(key, 1) - 1
        if left:
            waiting[key] = left
        else:
            waiting.pop(key, None)
        if name is not None:
            self._leave(waiter, name)
        waiter.conn.waiter = None
        waiter.conn.session.blocked = False

    def release(self, waiter: Waiter, answer: bytes | Chunks) -> None:
        """End the wait with a reply; the client goes on with what it sent meanwhile."""
        self.forget(waiter)
        self.server.dispatcher.answer_later(waiter.conn, answer)
        self.server.queue_resume(waiter.conn)

    # -- news ------------------------------------------------------------------------------------------------
    def serve_ready(self) -> None:
        """Serve the readers of every signalled key, until nothing is signalled any more."""
        ks = self.server.ks
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
        ctx = self.ctx
        ctx.ks = self.server.ks
        ctx.now = self.server.now_ms()
        for waiter in list(queue) if name is None else _in_turn(queue):
            ctx.session = waiter.conn.session
            try:
                if name is not None and waiter.group is not self._group(key, name):
                    raise errors.no_group(key, name)  # it ended; one that got its name since is another [16]
                answer = waiter.block.serve(ctx)
            except CommandError as error:
                self.server.stats.note_error(error.text)
                answer = reply.error(error.text)
            except Exception as error:  # noqa: BLE001 - the reader's trouble, not that of whoever brought the news
                answer = self.server.dispatcher.broke(b"a blocked read", error)
            if answer is not None:
                self.release(waiter, answer)
            elif name is not None:
                self._file_due(key, name, waiter, ctx)
                return

    def wake(self, now: int, mono: int) -> None:
        """Time has passed: serve what fell due, end the waits that timed out."""
        while (item := self._due.take(now)) is not None:
            _, key, name = item
            self._serve_queue(key, name)
        self.serve_ready()
        while self._deadlines and self._deadlines[0][0] <= mono:
            waiter = heappop(self._deadlines)[2]
            if not waiter.done:
                self.release(waiter, waiter.block.timeout_reply)

    def next_wake(self, now: int, mono: int) -> int | None:
        """Milliseconds until wake() has something to do, None if nothing is in sight."""
        while self._deadlines and self._deadlines[0][2].done:
            heappop(self._deadlines)
        waits = []
        if self._deadlines:
            waits.append(self._deadlines[0][0] - mono)
        due = self._due.next()
        if due is not None:
            waits.append(due - now)
        return max(0, min(waits)) if waits else None

    # -- from outside ----------------------------------------------------------------------------------------
    def unblock(self, conn: Connection, error: bool) -> bool:
        """CLIENT UNBLOCK: as if it timed out, or with an error."""
        waiter = conn.waiter
        if waiter is None:
            return False
        answer = b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n" if error else waiter.block.timeout_reply
        self.release(waiter, answer)
        return True

    def recount(self) -> None:
        """The keyspace is another one (DEBUG RELOAD): tell it who waits."""
        ks = self.server.ks
        for key, groups in self._queues.items():
            ks.waiting[key] = sum(map(len, groups.values()))
            for name, queue in groups.items():
                if name is not None:
                    for waiter in queue:
                        self._join(waiter, name)
            ks.ready.append(key)


def _in_turn(queue: Queue) -> Iterator[Waiter]:
    """Whoever is first, again and again: who is served leaves the queue."""
    while queue:
        yield next(iter(queue))
