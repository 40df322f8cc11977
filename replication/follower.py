"""The replica's end of the link: it connects, takes a full copy or the missing part of the log, then applies batches.
It reconnects when the link is lost.

Rule 1: batches are applied whole and in order. A batch that does not begin where this log ends is an error.
Rule 2: a full copy is written to a separate directory; the old data remains in use until the copy is complete and
checked.
Rule 3: every error ends the link with a reason. The delay before the next attempt doubles up to a maximum, until a link
has lasted for a while; it is long if only an upgrade of this server helps. The delay is partly random, so that the
replicas of a leader that was down do not all reconnect at the same time.
Rule 4: data from the leader is used only after it was checked: replies by ``handshake``, frames by ``frames``, a copy
by ``persistence.fullcopy``, a batch by the owner.
Rule 5: nodes that the old data has in common with the leader's store are not transferred again: this server reports
them when the leader requests it (``persistence.ownnodes``). If such a copy turns out to be invalid, the next one is
transferred as a whole.

Decision: replicas acknowledge on request (WAIT, FAILOVER, a shutdown) and once a second. Acknowledging each tick costs
the leader's loop one read per tick, so they do it only if the leader requests it (``replica-acks``).
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from functools import partial
from ssl import SSLContext
from typing import Any, Protocol

from persistence.fullcopy import Incoming
from persistence.history import History
from persistence.ownnodes import OwnNodes
from persistence.storecopy import UnknownDatabaseError
from replication import frames, nodes
from replication.connecting import connected
from replication.frames import LinkError, NewerError, ReplicationFrame
from replication.handshake import Introduction, Lineage, PsyncAnswer, ShorterHistoryError, request
from replication.link import ReplicationConnection
from resp.errors import CorruptError

FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0  # seconds between attempts
NEWER_WAIT = 60.0  # seconds until the next attempt if the leader has sent data that only a newer version can read
LASTED = 1.0  # seconds; after a link that lasted at least this long, the next attempt follows soon
RECENT = 0.5  # seconds; the packets of an older attempt may have been lost, and are repeated late
PROGRESS_EVERY = 2.0  # seconds between two log lines about the progress of a copy


class FollowerOwner(Protocol):
    """The server, as a follower uses it. The follower calls everything on the event loop."""

    def introduction(self) -> Introduction:
        """Return the identity and the state of this server. Raises LinkError."""
    async def settled(self) -> None:
        """Wait until all work of earlier followers has ended."""
    def patience(self) -> float:
        """Return the seconds of silence after which a link counts as dead."""
    def tls(self) -> SSLContext | None:
        """Return the context for TLS; None: use plain TCP. Raises ConfigError."""
    def incoming(self, own: OwnNodes | None) -> Incoming:
        """Return a new directory for a full copy, which may refer to the nodes in ``own``. Raises OSError."""
    def own_nodes(self) -> OwnNodes:
        """Return the nodes of this server's store. Raises OSError, CorruptError."""
    def history_of(self, replid: str, leader: Lineage | None) -> History:
        """Return the history of a server whose whole log is the leader's. ``leader``: None if unknown."""
    async def copied(self, replid: str) -> None:
        """Install the copy that is complete. Raises OSError, CorruptError, LinkError."""
    async def rewound(self, offset: int) -> None:
        """Delete this log's records from ``offset`` on. Raises LinkError, OSError."""
    def continued(self, replid: str, leader: Lineage | None) -> None:
        """Continue from this log's end, as the leader has agreed; its ID is now ``replid``. Raises OSError.

        ``leader``: its history before the agreement; None if unknown.
        """
    def batch(self, offset: int, batch: bytes) -> None:
        """Apply a batch. Raises LinkError if it does not follow this log's end or can't be applied."""
    def received_message(self, channel: bytes, text: bytes, shard: bool) -> None: ...
    def received_members(self, payload: bytes) -> None:
        """Process a MEMBERS frame. Raises LinkError."""
    def node_requested(self, payload: bytes) -> None:
        """Answer a request for a node. Raises LinkError."""
    def received_node(self, payload: bytes) -> None:
        """Process the answer to a request for a node."""
    def paused(self) -> bool:
        """Return whether no data from the leader may be applied now (CLIENT PAUSE)."""
    def ack_requested(self) -> None:
        """Note that the leader requests an acknowledgement."""
    def acknowledge_each(self, each: bool) -> None:
        """Sync and acknowledge each tick, or stop doing so, as the leader requests."""
    def confirmed_up_to(self, offset: int) -> None:
        """Release the replies that show the log up to ``offset``."""
    def link_changed(self) -> None:
        """Note that ``up`` or ``state`` has changed."""
    def received_bytes(self, count: int) -> None: ...
    def note(self, text: str) -> None:
        """Log a message for the operator."""
    def warn(self, text: str) -> None: ...
    def link_failed(self, error: Exception) -> None:
        """Note that an attempt to connect, or a link, ended with this error."""


class LeaderFollower:
    """Follows one leader until stop() is called. Times are seconds of the event loop's clock."""

    def __init__(self, owner: FollowerOwner, host: str, port: int, first_wait: float = FIRST_WAIT) -> None:
        """Start to follow. ``first_wait``: seconds until the second attempt."""
        self.owner = owner
        self._first_wait = first_wait
        self.host = host
        self.port = port
        self.state = "connect"  # later connecting, sync, connected, as in ROLE
        self.link: ReplicationConnection | None = None
        self.last_io = 0.0  # when the leader last sent anything; 0: never
        self.down_since = asyncio.get_running_loop().time()
        self._up_since = 0.0
        self.refused = False  # whether the last attempt ended because a full copy was refused
        self.leader_end = 0  # the leader's log offset when the link was established
        self.sync_total = 0  # bytes of the copy in progress (estimated); 0: none
        self.sync_read = 0
        self.sync_reused = 0  # bytes of the current or last copy that were taken from this server's own store
        self._damaged = False  # the last value that was reported to the leader on this link
        self._whole = False  # the next copy must be transferred as a whole (Rule 5)
        self._incoming: Incoming | None = None  # the copy in progress
        self._over = False
        self._soon = asyncio.Event()  # the next attempt follows without a delay
        self._began = 0.0  # when the last attempt began
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def up(self) -> bool:
        return self.state == "connected"

    def stop(self) -> asyncio.Task[None]:
        """End the link and a copy in progress. When the returned task is done, no thread works for it any more. Raises
        OSError; it is stopped then, but the next start may install a copy."""
        self._over = True
        self._task.cancel()
        if self.link is not None:
            self.link.fail(LinkError("stopped"))
        if self._incoming is not None:
            self._incoming.revoke()
        return self._task

    def retry(self) -> bool:
        """Connect soon: the leader is ready now. Return False if an attempt is in progress that began long ago."""
        self._soon.set()
        return self.state == "connect" or asyncio.get_running_loop().time() - self._began < RECENT

    def on_time(self) -> None:
        """Detect a silent leader, and send a keepalive while a copy is in progress. Called once a second."""
        if self.link is None:
            return
        seconds = self.owner.patience()
        if self.up and asyncio.get_running_loop().time() - self.last_io > seconds:
            self.link.fail(LinkError(f"the leader was silent for {seconds:g} seconds (repl-timeout)"))
        elif self.state == "sync":
            self.link.send(request("PING"))

    def acknowledge(self, offset: int, on_disk: int) -> None:
        """Acknowledge the log of this server; both arguments are log offsets."""
        if self.link is not None and self.up:
            self.link.send(request("REPLCONF", "ACK", offset, "FACK", on_disk))

    def tell_damaged(self, damaged: bool) -> None:
        """Tell the leader whether the store of this server is damaged, if that has changed."""
        if damaged != self._damaged and self.link is not None and self.up:
            self._damaged = damaged
            self.link.send(request("REPLCONF", "DAMAGED", int(damaged)))

    def request_node(self, payload: bytes) -> None:
        """Request a node from the leader."""
        if self.link is not None and self.up:
            self.link.send(request("REPLCONF", "GETNODE", payload))

    def send_node(self, payload: bytes) -> None:
        """Answer a request for a node, if the leader reads the answers."""
        link = self.link
        if link is not None and self.up and link.transport.get_write_buffer_size() <= nodes.LONGEST:
            link.send(request("REPLCONF", "GIVENODE", payload))

    def fail(self, error: Exception) -> None:
        """End the link for this reason; the next attempt follows."""
        if self.link is not None:
            self.link.fail(error)

    def hold(self, stop: bool) -> None:
        """Stop reading data from the leader because the disk is full, or resume. During a pause, reading resumes later;
        the leader's silence does not count in the meantime."""
        link = self.link
        if link is None or not self.up:
            return
        if self.owner.paused():
            self.last_io = asyncio.get_running_loop().time()
            stop = True
        elif link.holding:
            try:
                link.take_directly(self._take)
            except Exception as error:  # noqa: BLE001 - as where it is taken as it comes: see Link.data_received()
                link.fail(error)
                return
        link.read(not stop)

    def _heard(self, size: int) -> None:
        self.last_io = asyncio.get_running_loop().time()
        self.owner.received_bytes(size)
        if self.sync_total:
            self.sync_read += size

    # -- a link from beginning to end -------------------------------------------------------------------------------
    async def _run(self) -> None:
        wait, warned = self._first_wait, ""
        while True:
            lasted = newer = False
            try:
                try:
                    await self._follow()
                finally:
                    lasted = self.up and asyncio.get_running_loop().time() - self._up_since >= LASTED
                    self._down()
            except Exception as error:  # noqa: BLE001 - even after a bug, a replica must try again
                expected = isinstance(error, (LinkError, OSError, CorruptError))
                text = str(error) if expected and str(error) else repr(error)
                if isinstance(error, TimeoutError):
                    text = "no answer in time (repl-timeout)"
                if lasted or text != warned:  # do not repeat the same line every five seconds
                    self.owner.warn(f"Link to the leader {self.host}:{self.port}: {text}")
                warned, newer = text, isinstance(error, NewerError)
                self.refused = isinstance(error, ShorterHistoryError)
                if self._over:  # the error replaced the cancellation by stop(), for example one of a broken disk
                    return
                self.owner.link_failed(error)
            if lasted or self._soon.is_set():
                wait = self._first_wait
            with suppress(TimeoutError):
                async with asyncio.timeout((NEWER_WAIT if newer else wait) * random.uniform(0.5, 1.0)):
                    await self._soon.wait()
            self._soon.clear()
            wait = min(2 * wait, LONGEST_WAIT)

    def _down(self) -> None:
        if self.link is not None:
            self.link.transport.abort()
            self.link = None
        self._damaged = False
        if self.up:
            self.down_since = asyncio.get_running_loop().time()
        self.sync_total = self.sync_read = 0
        self._set("connect")

    def _set(self, state: str) -> None:
        if state != self.state:
            self.state = state
            if self.up:
                self._up_since = asyncio.get_running_loop().time()
            if not self._over:
                self.owner.link_changed()

    async def _follow(self) -> None:
        """Run one link, from connecting to its end. It always ends with an exception."""
        owner, loop = self.owner, asyncio.get_running_loop()
        await owner.settled()
        seconds, tls = owner.patience(), owner.tls()
        self._began = loop.time()
        self._set("connecting")
        async with asyncio.timeout(seconds):
            sock = await connected(self.host, self.port)
            try:
                _, self.link = await loop.create_connection(
                    partial(ReplicationConnection, self._heard), sock=sock, ssl=tls,
                    server_hostname=self.host if tls else None,
                )  # fmt: skip
            except BaseException:
                sock.close()
                raise
            who = owner.introduction()
            who.delta = who.delta and not self._whole
            answer = await self.link.introduce(who)
        self.refused = False
        self.leader_end = self.link.leader.end if self.link.leader is not None else max(answer.offset, who.offset)
        if answer.offset >= 0:
            if who.offset > 0:
                owner.warn(
                    f"This server's own data (log offset {who.offset} of ID {who.replid}) will be replaced: the"
                    " leader's history does not continue from there"
                )
            self._set("sync")
            await self._copy(self.link, answer)
        elif who.offset < 0:
            raise LinkError("the leader continues without an offset, although a full copy was requested")
        else:
            if who.rewound:
                await owner.rewound(who.offset)
            owner.continued(answer.replid, self.link.leader)
            owner.note(f"Continuing from the end of the log: leader {self.host}:{self.port}, ID {answer.replid}")
        self._set("connected")
        self._soon.clear()
        if not owner.paused():  # otherwise, hold() starts it
            self.link.take_directly(self._take)
        await self.link.ended()

    def _take(self, frame: ReplicationFrame) -> None:
        """Process a frame that is not part of a copy. Raises LinkError."""
        if self.owner.paused() and self.link is not None:
            self.link.hold(frame)
            return
        kind, offset, payload = frame
        if kind == frames.BATCH:
            self.owner.batch(offset, payload)
        elif kind == frames.ALIVE:
            flags = frames.read_numbers(frames.ALIVE_BODY, payload)[0]
            self.owner.acknowledge_each(flags & frames.EACH != 0)
            if flags & frames.ACKNOWLEDGE:
                self.owner.ack_requested()
        elif kind == frames.CONFIRM:
            self.owner.confirmed_up_to(offset)
        elif kind in (frames.MESSAGE, frames.SHARD):
            self.owner.received_message(*frames.read_message(payload), kind == frames.SHARD)
        elif kind == frames.MEMBERS:
            self.owner.received_members(payload)
        elif kind == frames.WANT:
            self.owner.node_requested(payload)
        elif kind == frames.NODE:
            self.owner.received_node(payload)
        else:
            raise LinkError("a part of a copy that was not requested")

    async def _copy(self, link: ReplicationConnection, answer: PsyncAnswer) -> None:
        """Take a full copy. Raises LinkError, CorruptError, OSError; the old data still exists then."""
        owner, loop = self.owner, asyncio.get_running_loop()
        first = _part_of_copy(await self._next(link), frames.COPY, answer.offset)
        entries, self.sync_total = frames.read_numbers(frames.COPY_BODY, first)
        self.sync_read, self.sync_total, self.sync_reused = 0, max(self.sync_total, 1), 0
        owner.note(f"Full copy from {self.host}:{self.port}: entries={entries} bytes={self.sync_total} (estimated)")
        began = loop.time()
        own = owner.own_nodes() if answer.delta else None
        try:
            self._incoming = incoming = owner.incoming(own)
            await self._receive(link, answer, entries, incoming, own)
        except CorruptError:
            self._whole = self._whole or own is not None
            raise
        finally:
            self._incoming = None
            if own is not None:
                own.close()
        self._whole = False
        seconds = max(loop.time() - began, 1e-6)
        owner.note(
            f"Full copy complete: entries={incoming.entries} bytes={incoming.bytes} reused={incoming.reused}"
            f" seconds={seconds:.3f} rate={incoming.bytes / seconds / 1e6:.1f} MB/s"
        )
        await owner.copied(answer.replid)
        self.sync_total = 0

    async def _receive(
        self, link: ReplicationConnection, answer: PsyncAnswer, entries: int, incoming: Incoming, own: OwnNodes | None
    ) -> None:
        """Receive a copy of ``entries`` entries. If this fails, it is removed. Raises LinkError, CorruptError, OSError.

        ``own``: the nodes that are reported when the leader requests it.
        """
        owner, loop = self.owner, asyncio.get_running_loop()
        noted = loop.time()
        work: asyncio.Future[Any] | None = None
        reporting = own is not None
        try:
            while True:
                frame = await self._next(link)
                if frame.kind == frames.DONE:
                    break
                if own is not None and reporting and frame.kind == frames.REPORT:
                    work = loop.run_in_executor(None, own.chunk)
                    chunk = await asyncio.shield(work)
                    link.send(request("REPLCONF", "NODES", chunk))
                    reporting = bool(chunk)  # a request after the end of the report is an error
                    continue
                payload = _part_of_copy(frame, frames.PIECE, answer.offset)
                work = loop.run_in_executor(None, incoming.add, payload)
                await asyncio.shield(work)
                self.sync_reused = incoming.reused
                if loop.time() - noted > PROGRESS_EVERY:
                    noted = loop.time()
                    percent = min(99, 100 * incoming.entries // max(1, entries))
                    owner.note(f"Full copy: {percent} %, entries={incoming.entries} bytes={incoming.bytes}")
            (sent,) = frames.read_numbers(frames.DONE_BODY, frame.payload)
            history = owner.history_of(answer.replid, link.leader)
            work = loop.run_in_executor(None, incoming.finish, answer.offset, sent, history)
            await asyncio.shield(work)
        except BaseException as error:
            if work is not None:
                await asyncio.gather(work, return_exceptions=True)
            incoming.abandon()
            if isinstance(error, UnknownDatabaseError):
                raise NewerError(f"{error}: upgrade this server; its data is unchanged") from error
            raise

    async def _next(self, link: ReplicationConnection) -> ReplicationFrame:
        """Return the next frame of a copy. Raises LinkError after silence, or why the link ended."""
        seconds = self.owner.patience()
        while True:
            waiting = asyncio.ensure_future(link.frame())
            try:
                done: set[asyncio.Future[ReplicationFrame]] = set()
                while not done:
                    before = self.last_io
                    done, _ = await asyncio.wait([waiting], timeout=seconds)
                    if not done and self.last_io == before:
                        raise LinkError(f"the leader was silent for {seconds:g} seconds (repl-timeout)")
            finally:
                waiting.cancel()
                if waiting.done() and not waiting.cancelled():
                    # mark the exception as retrieved: this task may have been cancelled, or the link failed too late
                    waiting.exception()
            frame = waiting.result()
            if frame.kind not in (frames.ALIVE, frames.MESSAGE, frames.SHARD):
                return frame


def _part_of_copy(frame: ReplicationFrame, kind: int, offset: int) -> bytes:
    """Return the payload of a frame that must be of that kind. Raises LinkError."""
    if frame.kind != kind or frame.offset != offset:
        raise LinkError(f"a frame of kind {chr(frame.kind)} in the middle of a copy")
    return frame.payload
