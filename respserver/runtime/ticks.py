"""The write path: log, then reply.

A tick is everything that the event loop does in one turn: commands of many clients, woken readers, expiry. At its end
the server (``respserver.server``) does the following:

    serve readers of keys with new entries -> commit the batch (one frame, one sync) -> write replies to the sockets
    -> run commands that waited

So the replies of a tick, which can show the writes of all its clients, are sent after the batch (the commit group) is
on disk.

If the server reads sockets itself (``clients.sockets``), the tick ends after one pass over them, without a callback of
the event loop. This shortens the latency of each reply.

Rule 1: a batch that can't be made durable is retained and retried before all later ones. The replies of its tick wait.
Rule 2: the changes of such a batch are in memory already. They are not rolled back.

Decision: if replies wait for replicas (``replica-acks``), a batch is sent to them before this server syncs it, so that
all syncs run at the same time. On a disk with syncs of 0.1 to 2 ms, this makes appends 1.2 to 1.9 times as fast.

Decision: replies to reads wait for the end of the tick, too, although nothing has to be durable for them. A reply that
is sent immediately also wakes its client immediately. A fast client answers and sleeps again, and each wake-up costs
the server two microseconds. Replies of more than 64 KB are sent immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from commands.session import Session
from resp.errors import CorruptError
from respserver.observe.logs import Logger
from respserver.runtime.clock import Clock
from respserver.runtime.confirmation import EVERYTHING, Confirmation
from respserver.runtime.data import Data
from respserver.runtime.gates import Gates
from respserver.runtime.tickclient import TickClient
from respserver.runtime.withholding import Withholding

BACKLOGS_NS: Final = 20_000_000  # maximum duration of the backlogs in a tick
FLUSH_AT_ONCE: Final = 500  # clients; writing to their sockets takes some milliseconds


class Ticks:
    """Commits batches and releases replies. ``run``: the server's method that ends a tick."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, data: Data, gates: Gates, clock: Clock, logger: Logger,
        run: Callable[[], None],
    ) -> None:  # fmt: skip
        self._loop = loop
        self._data = data
        self._gates = gates
        self._logger = logger
        self.run = run
        # called with log offset and bytes of each durable batch; also before the sync if replies wait for replicas
        self.on_batch: Callable[[int, bytes], None] | None = None
        # called with each batch before it is made durable, while slots move to another group
        self.on_records: Callable[[bytes], None] | None = None
        self._pending = False  # run() is scheduled
        self._only_reads = False  # the scheduled run() is only for replies to reads
        self._flush: list[TickClient] = []
        self._resume: dict[TickClient, None] = {}
        self._after: list[Callable[[], None]] = []
        self._at_end = False  # sockets are being read; the tick follows
        self._stalled: list[bytes] = []  # batches that are not durable yet
        self._hold = False  # the batch of this tick is one of them, so its replies must wait
        self._held: list[TickClient] = []  # clients whose replies wait
        self.whole = False  # a tick flushes all clients, regardless of their number, since the server is shutting down
        self._refused: str | None = None  # why the disk accepts no writes, as last set in the gates
        self.confirmation = Confirmation()  # call confirmed_changed() after a change
        self.on_confirmed: Callable[[], None] | None = None  # called by confirmed_changed()
        self._confirming = False  # replies may have to be withheld; the only check if ``replica-acks`` is 0
        self._needed = False  # they have to be; otherwise, only the rest of the withheld ones is to be released
        self._releasing = False  # this rest follows at the end of the next tick
        self._withholding = Withholding(clock.mono, self._failed)
        self._cut_next = ""  # why the next tick closes the clients whose replies it would withhold

    # -- the work of the next tick ---------------------------------------------------------------------------
    def queue(self) -> None:
        self._only_reads = False
        if not self._pending:
            self._pending = True
            if not self._at_end:
                self._loop.call_soon(self.run)

    def queue_flush(self, client: TickClient) -> None:
        """Flush the client at the end of the tick: it has replies, or its commands made records."""
        self._only_reads = False
        if not client.queued:
            client.queued = True
            self._flush.append(client)
            self.queue()

    def run_whole(self) -> None:
        """Run a tick now, which flushes all clients."""
        before, self.whole = self.whole, True
        self.run()
        self.whole = before

    def queue_resume(self, client: TickClient) -> None:
        """Run the client's backlog at the end of the tick."""
        self._resume[client] = None
        self.queue()

    def after(self, call: Callable[[], None]) -> None:
        """Run ``call`` once, at the end of the tick, after the replies (which may be held, see ``stalled``)."""
        self._after.append(call)
        self.queue()

    def flush_reads(self, client: TickClient, large: bool) -> None:
        """At the end of the tick, flush the replies of a client that has only sent reads. Sending each reply
        immediately would wake the client once per reply. ``large``: flush immediately if nothing else is pending, so
        that large replies do not accumulate."""
        if client.queued:
            return
        if large and (self._only_reads or not self._pending) and self.writable and (
            self._data.disk.writable() == self._refused
        ) and (not self._confirming or (self._withholding.since() is None and self._all_confirmed())):
            self._send(client)
            return
        client.queued = True
        self._flush.append(client)
        if not self._pending:
            self._pending = self._only_reads = True
            if not self._at_end:
                self._loop.call_soon(self.run)

    # -- one pass over the sockets -----------------------------------------------------------------------------
    def begin_turn(self) -> None:
        """Prepare a pass of ``clients.sockets``. A tick queued during the pass runs at its end, not in an event-loop
        callback, which would add a third to the cost of a command."""
        self._at_end = not self._pending

    def end_turn(self) -> None:
        if self._at_end:
            self._at_end = False
            if self._pending:
                self.run()

    # -- the end of a tick, step by step ---------------------------------------------------------------------
    def begin(self) -> None:
        """Start a tick. Called first by run()."""
        self._pending = False

    def commit(self) -> bool:
        """Make the records of this tick durable. Returns False if that, or an earlier commit, failed.

        In that case the batch is retained and retried, and the replies of this tick wait.
        """
        disk = self._data.disk
        batch = self._data.ks.take_batch()
        if self.on_records is not None:
            self.on_records(batch)
        if not self._stalled:
            offset = disk.offset
            try:
                # The replicas sync the batch at the same time as this server, not after it.
                disk.append(batch, self.on_batch if self._confirming else None)
                if self.on_batch is not None:
                    self.on_batch(offset, batch)
                return True
            except (OSError, CorruptError) as error:
                self._logger.warning(f"A write can't be made durable, its clients wait: {error}")
        if batch:
            self._stalled.append(batch)
            self._hold = True
            self.queue()
            self.check_disk()
        return False

    def release(self) -> None:
        """Flush replies if their batch is durable. Then run the calls of after(), and the backlogs."""
        flush = self._flush
        self._flush = []
        if len(flush) > FLUSH_AT_ONCE and not self._hold and not self.whole and not self._cut_next:
            self._flush = flush[FLUSH_AT_ONCE:]  # they are flushed in the next tick, after newly arrived commands
            del flush[FLUSH_AT_ONCE:]
            self.queue()
        if self._hold:
            self._held += flush
            self._hold = False
            for client in flush:
                client.check_output_limit()
        elif self._confirming:
            self._release_confirmed(flush)
        else:
            self._send_all(flush)
        if self._after:
            after, self._after = self._after, []
            for call in after:
                call()
        if self._resume:
            self._run_backlogs()
        if self._data.disk.writable() != self._refused:
            self.check_disk()

    @property
    def backlogs(self) -> bool:
        """Whether commands have arrived that wait only for the next tick."""
        return bool(self._resume)

    def _run_backlogs(self) -> None:
        """Run backlogs for a limited time; the next tick runs the rest, after newly arrived commands."""
        resume = self._resume
        self._resume = {}
        until = perf_counter_ns() + BACKLOGS_NS
        waiting = iter(resume)
        for client in waiting:
            client.run_backlog()
            if perf_counter_ns() > until:
                break
        for client in waiting:
            self.queue_resume(client)

    def _send_all(self, clients: list[TickClient]) -> None:
        for client in clients:
            self._send(client)

    def _send(self, client: TickClient) -> None:
        client.queued = False
        try:
            client.flush()
        except Exception as error:  # noqa: BLE001 - the other clients must be flushed
            self._failed(client, error)

    def _failed(self, client: TickClient, error: Exception) -> None:
        """Close a client whose replies can't be sent."""
        if isinstance(error, MemoryError):
            client.cut("out of memory while sending its replies")
            return
        self._logger.trace("Bug while sending replies", error)
        client.cut("its replies can't be sent")

    # -- a disk that accepts no writes -----------------------------------------------------------------------
    @property
    def stalled(self) -> bool:
        """Whether memory has effects that are not in the log."""
        return bool(self._stalled)

    @property
    def writable(self) -> bool:
        """Whether no batch is stalled and the disk, as far as known, accepts writes."""
        return not self._stalled and not self._refused

    def settle(self) -> bool:
        """Commit pending records. Returns whether everything is durable."""
        return not (self._data.ks.log or self._stalled) or self.commit()

    def check_disk(self) -> None:
        """Set the gate of the disk."""
        self._refused = self._data.disk.writable()
        self._data.disk.refuse(self._refused is not None)
        why = self._refused or ("the last write could not be made durable" if self._stalled else "")
        self._gates.disk(f"MISCONF Errors writing to disk: {why}" if why else "")

    def on_time(self) -> None:
        """Retry stalled batches. Called ``hz`` times a second."""
        if self._stalled:
            self.retry()
        if self._data.disk.writable() != self._refused:
            self.check_disk()

    def retry(self) -> None:
        """Make stalled batches durable in order, until one fails. After the last one, release held replies."""
        while self._stalled:
            disk = self._data.disk
            offset = disk.offset
            try:
                disk.append(self._stalled[0])
            except (OSError, CorruptError):
                return
            batch = self._stalled.pop(0)
            if self.on_batch is not None:
                self.on_batch(offset, batch)
        self._logger.notice("Writes are durable again")
        self._release_held()
        self.check_disk()

    def drop_stalled(self) -> None:
        """Drop stalled batches, whose data is being replaced."""
        self._stalled.clear()
        self._hold = False

    def data_replaced(self) -> None:
        """Release replies that waited for the old data's disk."""
        self._release_held()
        self.check_disk()

    def _release_held(self) -> None:
        self._hold = False
        held, self._held = self._held, []
        if self._confirming:
            self._release_confirmed(held)
        else:
            self._send_all(held)

    # -- withheld replies ----------------------------------------------------------------------------------------
    def confirmed_changed(self) -> None:
        """Release the withheld replies that ``confirmation`` allows now. Called when its answers have changed."""
        confirmation = self.confirmation
        if confirmation.needed():
            self._confirming = self._needed = True
            if self._withholding.since() is not None:
                self._release_withheld(confirmation.confirmed())
        elif self._confirming and not self._cut_next:
            self._needed = False
            self._release_withheld(EVERYTHING)
            self._confirming = self._withholding.since() is not None
        if self.on_confirmed is not None:
            self.on_confirmed()

    def _release_withheld(self, confirmed: int) -> None:
        """Release withheld replies of some clients; those of the others follow in later ticks, as in release()."""
        if self._releasing and not self.whole:
            return
        if self._withholding.release(confirmed, EVERYTHING if self.whole else FLUSH_AT_ONCE) and not self._releasing:
            self._releasing = True
            self.after(self._release_rest)

    def _release_rest(self) -> None:
        self._releasing = False
        self.confirmed_changed()

    @property
    def confirming(self) -> bool:
        """Whether replies may have to be withheld."""
        return self._confirming

    def withheld_since(self) -> int | None:
        """Return the ms (monotonic) since which the oldest reply is withheld; None if no reply is withheld."""
        return self._withholding.since()

    @property
    def waiting(self) -> bool:
        """Whether a command has run whose reply, or whose record, waits: for the end of the tick, for the disk, or for
        the confirmation."""
        waits = bool(self._flush or self._held or self._stalled or self._data.ks.log)
        return waits or self._withholding.since() is not None

    def withheld(self) -> tuple[int, int]:
        """Return the number of clients with withheld replies, and the size of these in bytes."""
        clients = self._withholding.clients()
        return len(clients), sum([client.withheld_bytes() for client in clients])

    def cut_withheld(self, why: str) -> None:
        """Close the clients whose replies are withheld, because their outcome is unknown now: this server has lost its
        role. The clients of the current tick follow at its end."""
        if not self._confirming:
            return
        self._cut(list(dict.fromkeys([*self._withholding.take_clients(), *self._held])), why)
        self._cut_next = why
        self.queue()

    def _cut(self, clients: list[TickClient], why: str) -> None:
        """Close clients immediately, since none of these replies may leave. Thousands of log lines would take long."""
        if len(clients) == 1:
            clients[0].cut(why)
        elif clients:
            self._logger.warning(f"{len(clients)} clients closed: {why}")
            for client in clients:
                client.kill()

    def _all_confirmed(self) -> bool:
        return self.confirmation.confirmed() >= self.log_end()

    def _release_confirmed(self, clients: list[TickClient]) -> None:
        """Send the replies of a tick if everything that it could see is confirmed, otherwise withhold them."""
        offset = self.log_end()  # memory has the effects of stalled batches
        confirmed = self.confirmation.confirmed() if self._needed else EVERYTHING
        if self._withholding.since() is not None:
            self._release_withheld(confirmed)
        if confirmed < offset:
            self._withholding.withhold(clients, offset)
        else:
            for client in clients:
                client.shows_data = False
                if self._releasing:
                    self._withholding.confirm(client, confirmed)  # its earlier replies leave first
            self._send_all(clients)
        if self._cut_next:
            why, self._cut_next = self._cut_next, ""
            self._cut(self._withholding.take_clients(), why)
            self.confirmed_changed()

    # -- log offsets -----------------------------------------------------------------------------------------
    def log_end(self) -> int:
        """Return the log offset at which the next batch will begin."""
        offset = self._data.disk.offset
        return offset + sum(map(len, self._stalled)) if self._stalled else offset

    def note_write(self, session: Session) -> None:
        """If the session's commands made records, store a log offset inside their batch in ``session.wrote``."""
        if self._data.ks.log:
            session.wrote = self.log_end() + 1

    def written(self, session: Session) -> int:
        self.note_write(session)
        return session.wrote

    def repeated(self, session: Session) -> None:
        session.wrote = self.log_end() + bool(self._data.ks.log)

    def synced(self, offset: int) -> bool:
        """Return whether the log is on this server's disk up to ``offset``, in the file that recovery reads."""
        disk = self._data.disk
        return disk.synced >= offset and disk.in_place()
