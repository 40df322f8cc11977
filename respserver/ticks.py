"""The write path: log, then reply.

A tick is everything that the event loop found to do at once: commands of many clients, woken readers, expiry. The
server ends it (``respserver.server``) with

    serve readers whose key has news -> commit the batch (one frame, one sync) -> hand replies to the sockets -> go on
    with what waited

so no reply, and no other client's view of a write, leaves before the batch is on disk.

Rule 1: a batch that can't be made durable stays here, and those after it, in order; they are tried again. The replies
of its tick wait with it. Rule 2: what such batches changed is in memory already, so nothing is rolled back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from commands.session import Session
from resp.errors import CorruptError
from respserver.data import Data
from respserver.gates import Gates
from respserver.observe.logs import Logger


class Client:
    """A client's connection, as ticks see it."""

    __slots__ = ("queued",)

    def __init__(self) -> None:
        self.queued = False  # stands in the list of clients to be flushed

    def flush(self) -> None:
        """Hand replies to the socket."""
        raise NotImplementedError

    def run_backlog(self) -> None:
        """Go on with commands that waited."""
        raise NotImplementedError

    def cut(self, why: str) -> None:
        """Close at once."""
        raise NotImplementedError


class Ticks:
    """Commits batches and lets replies out. ``run`` ends a tick: the server's."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, data: Data, gates: Gates, logger: Logger, run: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._data = data
        self._gates = gates
        self._logger = logger
        self.run = run
        self.on_batch: Callable[[int, bytes], None] | None = None  # told log offset and bytes of each durable batch
        self._pending = False  # run() is scheduled
        self._flush: list[Client] = []
        self._resume: dict[Client, None] = {}
        self._after: list[Callable[[], None]] = []
        self._stalled: list[bytes] = []  # batches that could not be made durable yet
        self._hold = False  # some of them are this tick's: its replies have to wait
        self._held: list[Client] = []  # clients whose replies wait for them
        self._refused: str | None = None  # why the disk takes no writes, as the gates know it

    # -- what a tick has to do -------------------------------------------------------------------------------
    def queue(self) -> None:
        """See that a tick comes."""
        if not self._pending:
            self._pending = True
            self._loop.call_soon(self.run)

    def queue_flush(self, client: Client) -> None:
        """The client has replies (or its command made records): see to it at the end of the tick."""
        if not client.queued:
            client.queued = True
            self._flush.append(client)
            if not self._pending:
                self.queue()

    def queue_resume(self, client: Client) -> None:
        """Nothing holds the client's backlog any more, once this tick is out."""
        self._resume[client] = None
        if not self._pending:
            self.queue()

    def after(self, call: Callable[[], None]) -> None:
        """Call it once, when the batch of this tick is durable and its replies are out."""
        self._after.append(call)
        self.queue()

    def flush_reads(self, client: Client) -> None:
        """Replies of a client while no record waits for the disk: what they show is durable, so they may leave.

        Saves a reader a turn of the event loop.
        """
        if client.queued or self._pending or self._stalled or self._data.disk.writable() != self._refused or (
            self._refused
        ):
            self.queue_flush(client)
        else:
            self._send(client)

    # -- the end of a tick, step by step ---------------------------------------------------------------------
    def begin(self) -> None:
        """run() has come."""
        self._pending = False

    def commit(self) -> bool:
        """Make the records so far durable. False if that, or an earlier commit, failed.

        Then they stay, in order, and are tried again; the replies of this tick wait with them.
        """
        batch = self._data.ks.take_batch()
        if not self._stalled:
            disk = self._data.disk
            offset = disk.offset
            try:
                disk.append(batch)
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
        """Replies leave, unless the batch that they belong to is not durable; then clients go on."""
        flush = self._flush
        self._flush = []
        if self._hold:
            self._held += flush
            self._hold = False
        else:
            self._send_all(flush)
        if self._after:
            after, self._after = self._after, []
            for call in after:
                call()
        if self._resume:
            resume = self._resume
            self._resume = {}
            for client in resume:
                client.run_backlog()
        if self._data.disk.writable() != self._refused:
            self.check_disk()

    def _send_all(self, clients: Sequence[Client]) -> None:
        for client in clients:
            self._send(client)

    def _send(self, client: Client) -> None:
        client.queued = False
        try:
            client.flush()
        except Exception as error:  # noqa: BLE001 - one client's trouble must not keep the others waiting
            self._logger.trace("Bug while sending replies", error)
            client.cut("its replies can't be sent")

    # -- a disk that takes no writes -------------------------------------------------------------------------
    @property
    def stalled(self) -> bool:
        """There are effects in memory that are not in the log."""
        return bool(self._stalled)

    @property
    def writable(self) -> bool:
        """Nothing waits for the disk, and it takes writes, as far as is known."""
        return not self._stalled and not self._refused

    def settle(self) -> bool:
        """Commit what there is; False if something is not durable then."""
        return not (self._data.ks.log or self._stalled) or self.commit()

    def check_disk(self) -> None:
        """Tell the gates what the disk says."""
        self._refused = self._data.disk.writable()
        why = self._refused or ("the last write could not be made durable" if self._stalled else "")
        self._gates.disk(f"MISCONF Errors writing to disk: {why}" if why else "")

    def on_time(self) -> None:
        """Some ten times a second: try again what could not be made durable."""
        if self._stalled:
            self.retry()
        if self._data.disk.writable() != self._refused:
            self.check_disk()

    def retry(self) -> None:
        """Make stalled batches durable, as far as the disk takes them."""
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
        self._let_go()
        self.check_disk()

    def drop_stalled(self) -> None:
        """The data that stalled batches belong to is being replaced."""
        self._stalled.clear()
        self._hold = False

    def data_replaced(self) -> None:
        """Replies that waited for the old data's disk leave."""
        self._let_go()
        self.check_disk()

    def _let_go(self) -> None:
        self._hold = False
        held, self._held = self._held, []
        self._send_all(held)

    # -- log offsets -----------------------------------------------------------------------------------------
    def log_end(self) -> int:
        """The log offset at which the next batch will begin."""
        offset = self._data.disk.offset
        return offset + sum(map(len, self._stalled)) if self._stalled else offset

    def note_write(self, session: Session) -> None:
        """The session's commands so far have left records: remember where in the log their batch stands."""
        if self._data.ks.log:
            session.wrote = self.log_end() + 1

    def written(self, session: Session) -> int:
        """A log offset: a log that reaches it has everything that the client has written."""
        self.note_write(session)
        return session.wrote

    def synced(self, offset: int) -> bool:
        """Whether everything up to ``offset`` is on this server's disk."""
        return self._data.disk.synced >= offset
