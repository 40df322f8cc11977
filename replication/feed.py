"""The leader's end of the link to one replica. It sends the data that the replica lacks, as fast as the replica reads.

    preparing -> copying -> catching up -> live
                  (only after +FULLRESYNC)

Rule 1: ``position`` is the log offset after the last batch that was written to the socket; batches are sent without
gaps.
Rule 2: while a feed is live, ``position`` is the log's end after each tick: live_batch() sends each new batch. If the
replica does not read them, the feed returns to catching up from the journal, so data for a slow replica is on disk and
not in memory.
Rule 3: only data in this server's log is sent. If replies wait for replicas, it is sent before it is synced. A replica
then has more than its leader while the sync fails, or if the leader's machine fails in the meantime.
Rule 4: the journal must be retained from log offset ``needs`` on.
Rule 5: a replica of an earlier version is sent only the data that it can read (``formats``), and nothing after that.
Rule 5a: a backup is sent no records with references to history objects, and nothing after them. Before a copy of a
backup, the store gets the references of the log, so that the log after the copy has only new ones. A single backup
needs the log up to its end before the copy, and so none of these. Its connection remains until it has read what was
sent, and closes it: an abort would discard what is in the buffers.
Rule 6: a replica has at most what it was sent. If it acknowledges more, or something that is not a log offset, it is
disconnected. As in Redis, an acknowledgement below an earlier one changes nothing.
Rule 7: a replica reports the nodes that it has (``persistence.noderuns``) in chunks. Each chunk is requested when the
previous one is compared, so that at most two are in memory.

Decision: a full copy is sent in pieces of 64 KB, because an append waits while a piece is prepared. The p99 of appends
was 1.7 times that without a copy, and 2.1 times with pieces of 256 KB (one measurement each: an indication). For the
same reason, at most that many bytes of nodes are compared at a time.
Decision: a checkpoint precedes a copy of differences, because the log after the last checkpoint is sent, too, and is
not compressed. It was 99 % of the bytes after a minute with 100 appends per second (660 KB).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from commands.parse import positive
from persistence.backlog import NOTHING
from persistence.log import GoneError, Log
from persistence.noderuns import ReportedRuns
from persistence.storecopy import StoreCopy
from replication import formats, frames, nodes
from replication.frames import LONGEST_ANSWER, LONGEST_REQUEST, LinkError, encode, head
from replication.members import ClusterMember
from replication.wholecopy import whole
from resp.errors import CommandError, CorruptError
from resp.exact import ExactDecoder

AT_ONCE = 1 << 20  # maximum bytes that are read from the log at a time, and that may wait in the socket's buffer
JOINED = 1 << 16  # bytes from which a batch is not copied to be written together with its header
PIECE = 1 << 16  # bytes of a piece of a copy; a tick of the leader may have to wait until one is prepared
UNSYNCED_SECONDS = 0.05  # between two checks of whether this server has synced the last batch that was sent

T = TypeVar("T")


class BeyondError(Exception):
    """Raised if the replica can't read the data that it lacks. ``needed``: the format of that data."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


class StoreBeyondError(BeyondError):
    """Raised if the replica can't read the store; it may be able to read the part of the log that it lacks."""


class FeedOwner(Protocol):
    """The server, as a feed uses it."""

    @property
    def replid(self) -> str: ...
    @property
    def disk(self) -> Log: ...
    def heard(self, feed: ReplicaFeed) -> None:
        """Process a keepalive or an acknowledgement of the replica."""

    @property
    def each(self) -> bool:
        """Whether replies wait for replicas, which must then sync and acknowledge each tick."""

    @property
    def may_refer(self) -> bool:
        """Whether the log can have records that refer to history objects."""

    @property
    def confirmed(self) -> int:
        """The log offset up to which replies are released; -1: unknown. Used only if ``each``."""

    def now(self) -> int:
        """Return the wall-clock time in ms since the epoch."""

    def node_requested(self, feed: ReplicaFeed, payload: bytes) -> None:
        """Answer a request for a node. Raises LinkError."""

    def received_node(self, payload: bytes) -> None:
        """Process the answer to a request for a node."""

    def whole_node(self, key: bytes, raw: bytes) -> Awaitable[bytes]: ...
    def moved_on(self) -> None:
        """Note that ``needs`` of a feed has changed."""

    def lost(self, feed: ReplicaFeed, why: str) -> None:
        """Note that the link has ended. Called once."""

    def outgrown(self, needed: int) -> None:
        """Note that the log contains data that only replicas that know the format ``needed`` can read."""

    def complete(self, feed: ReplicaFeed) -> None:
        """Note that a single backup gets no more records, because the next ones refer to history objects."""

    def cannot_back_up(self, offset: int) -> None:
        """Note that the records at this log offset are not sent to backups (Rule 5a)."""

    async def references_are_stored(self) -> None:
        """Return when the store contains the references to history objects in the log. Raises OSError."""

    async def store_is_recent(self) -> None:
        """Return when the store contains most of the log, or after a few seconds."""

    def sent_bytes(self, count: int) -> None: ...
    def in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run ``work`` in a thread; the log is not closed before it has ended. Raises RuntimeError or MemoryError if
        there is no thread."""


class ReplicaFeed(asyncio.Protocol):
    """Takes over the connection after PSYNC. Times are in ms, from a clock that is never set."""

    follows = False  # the other end is a backup that continues with another copy if it can't get all records

    def __init__(
        self, owner: FeedOwner, host: str, port: int, offset: int, now: int, copy_only: bool = False,
        reads: int = formats.FORMAT, member: ClusterMember | None = None, delta: bool = False,
        group_member: str = "", member_id: str = "", repairs: bool = False, whole: bool = False,
    ) -> None:  # fmt: skip
        """Initialize. ``copy_only``: the other end takes a full copy and the log after it, but is not a replica.
        ``reads``: the format that it can read. ``member``: how it announces itself to clients; None: it does not.
        ``delta``: it can report its nodes. ``group_member``: its name in the server group; "": it is no member.
        ``member_id``: the ID of that member's directory. ``repairs``: it answers requests for nodes.
        ``whole``: see ``wholecopy``."""
        self.owner = owner
        self.copy_only = copy_only
        self.member = member
        self.group_member = group_member
        self.member_id = member_id
        self.introduced = False  # it has acknowledged once, and the list of members was sent
        self.host = host  # host and port where clients reach the replica: as announced, or from the connection
        self.port = port
        self._reads = reads
        self._delta = delta
        self._requested = False  # a chunk of the report of its nodes was requested and has not arrived yet
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()  # at most one, see Rule 7
        self.earlier = reads < formats.RECORDS  # there are records that the other end must not get
        self.position = offset  # -1: the replica gets a full copy
        self.needs = offset if offset >= 0 else owner.disk.store.offset
        self.acknowledged = max(offset, 0)  # log offset up to which the replica has acknowledged the log
        self.on_disk = 0  # log offset up to which it has the log on disk
        self.heard_at = now
        self.state = "wait_bgsave"  # later send_bulk, online, as in INFO
        self.live = False
        self.wanted = False  # an acknowledgement is needed; it is requested when the replica has caught up
        self._transport: asyncio.Transport
        self._decoder = ExactDecoder(max_bulk=LONGEST_REQUEST, max_buffer=LONGEST_REQUEST)
        self._decoder.authenticated = True
        self._room = asyncio.Event()
        self._room.set()
        self._work: asyncio.Future[Any] | None = None  # current or last work in a thread for this feed
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self.repairs = repairs
        self._whole = whole
        self.damaged = False  # the replica has reported that its store is damaged
        self._awaited = 0  # nodes that were requested and have not arrived; the owner no longer waits for late ones
        self._told = b""  # the last list of members that was sent
        self._confirmed = 0  # the last confirmed offset that was sent

    def begin(self, transport: asyncio.Transport, delay: bool) -> None:
        """Take over the connection. ``delay``: the system may join small packets (Nagle's algorithm)."""
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if delay and sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        transport.set_write_buffer_limits(high=AT_ONCE)
        transport.set_protocol(self)
        transport.resume_reading()
        self._task = asyncio.get_running_loop().create_task(self._run())

    # -- asyncio's callbacks ---------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Do nothing: the connection existed before the feed took it over."""

    def data_received(self, data: bytes) -> None:
        for argv in self._decoder.feed(data):
            if not self._over:
                self._request(argv)
        if self._decoder.error is not None:
            self.cut(f"it broke the protocol: {self._decoder.error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"the connection was lost ({exc})" if exc is not None else "it closed the connection")

    def pause_writing(self) -> None:
        self._room.clear()
        if self.live:
            self.live = False
            self._catch_up_later()

    def resume_writing(self) -> None:
        self._room.set()

    # -- from the replica ------------------------------------------------------------------------------------
    def _request(self, argv: list[bytes]) -> None:
        """Process REPLCONF ACK offset FACK offset, REPLCONF NODES runs, REPLCONF DAMAGED 0|1, a request for a node, or
        its answer, from a replica. Any other request is only a keepalive."""
        owner = self.owner
        command = [word.upper() for word in argv[:2]]
        if command == [b"REPLCONF", b"NODES"] and len(argv) == 3:
            if not self._requested:
                self.cut("it reported nodes that were not requested")
                return
            self._requested = False
            self._chunks.put_nowait(argv[2])
        elif not self.copy_only and command[:1] == [b"REPLCONF"] and command[1:] in ([b"GETNODE"], [b"GIVENODE"]):
            self._exchange(command[1], argv[2:])
        elif command == [b"REPLCONF", b"DAMAGED"] and len(argv) == 3:
            self.damaged = argv[2] != b"0"
        elif not self.copy_only and command == [b"REPLCONF", b"ACK"] and len(argv) in (3, 5):
            try:
                has = positive(argv[2])
                on_disk = positive(argv[4]) if len(argv) == 5 and argv[3].upper() == b"FACK" else 0
            except CommandError:
                self.cut("it acknowledged something that is not an offset")
                return
            if has > self.position or on_disk > has:
                self.cut(f"it acknowledged log offset {max(has, on_disk)}, which is beyond what it was sent")
                return
            self.acknowledged, self.on_disk = max(has, self.acknowledged), max(on_disk, self.on_disk)
            if self.state == "send_bulk" and self.position >= 0:
                self.state = "online"
        owner.heard(self)

    def _exchange(self, option: bytes, rest: list[bytes]) -> None:
        """Process a request for a node, or its answer."""
        if len(rest) != 1:
            self.cut("it requested or sent a node in a wrong form")
        elif option == b"GIVENODE" and self._awaited:
            self._await(self._awaited - 1)
            self.owner.received_node(rest[0])
        elif option == b"GETNODE":
            try:
                self.owner.node_requested(self, rest[0])
            except LinkError as error:
                self.cut(str(error))

    def _await(self, count: int) -> None:
        """Set the number of nodes that were requested and have not arrived. Requests are short if it is 0."""
        self._awaited = count
        longest = LONGEST_ANSWER if count else LONGEST_REQUEST
        self._decoder.limit(longest, longest)

    # -- to the replica --------------------------------------------------------------------------------------
    def live_batch(self, offset: int, batch: bytes) -> None:
        """Send a batch that was just logged at ``offset``; for live feeds only."""
        if self.earlier:
            needed = formats.needed(batch)
            if needed > self._reads:
                self._send_away(needed)
                return
        if len(batch) < JOINED:  # one system call, and the replica wakes up only once
            self._write(b"%b%b%b" % (self._news(), head(frames.BATCH, offset, batch), batch))
        else:
            self._write(self._news() + head(frames.BATCH, offset, batch))
            self._write(batch)
        self.position = self.needs = offset + len(batch)

    def alive(self, wanted: bool = False) -> None:
        """Send a keepalive. ``wanted``: the replica acknowledges as soon as it has everything logged so far."""
        if wanted and not self.live:
            self.wanted = True  # see _catch_up()
        elif self.state != "wait_bgsave":
            self._send_alive(frames.ACKNOWLEDGE if wanted else 0)

    def _send_alive(self, flags: int) -> None:
        if self.owner.each and not self.copy_only:
            flags |= frames.EACH
        self._write(encode(frames.ALIVE, self.owner.disk.offset, frames.ALIVE_BODY.pack(flags)) + self._news())

    def tell_confirmed(self) -> None:
        """Send the confirmed offset, if the replica does not know it."""
        if self.live and (news := self._news()):
            self._write(news)

    def _news(self) -> bytes:
        """Return a CONFIRM frame if the confirmed offset has moved on since the last one."""
        owner = self.owner
        if not owner.each or self.copy_only or owner.confirmed <= self._confirmed:
            return b""
        self._confirmed = owner.confirmed
        return encode(frames.CONFIRM, self._confirmed)

    def message(self, frame: bytes) -> None:
        """Send a MESSAGE or SHARD frame. It is dropped if the feed is not live: messages may be lost."""
        if self.live:
            self._write(frame)

    def request_node(self, payload: bytes) -> None:
        """Request a node from the replica."""
        self._await(self._awaited + 1)
        self._write(encode(frames.WANT, 0, payload))

    def send_node(self, payload: bytes) -> None:
        """Answer a request for a node, if the replica reads the answers."""
        if not self._over and self._transport.get_write_buffer_size() <= nodes.LONGEST:
            self._write(encode(frames.NODE, 0, payload))

    def tell_members(self, members: bytes) -> None:
        """Send the list of the other members, if it has changed."""
        if self.live and members != self._told:
            self._told = members
            self._write(encode(frames.MEMBERS, 0, members))

    async def _run(self) -> None:
        try:
            if self.state == "wait_bgsave" and self.position < 0:
                await self._copy()
            elif self.state == "wait_bgsave":
                self._write(b"+CONTINUE %b\r\n" % self.owner.replid.encode())
                self.state = "online"
            await self._catch_up()
        except StoreBeyondError:
            self.cut("it can't read the store")  # psync() reports the error if the replica can't continue
        except BeyondError as error:
            self._send_away(error.needed)
        except GoneError:
            self.cut("the journal no longer holds the records that it lacks (repl-backlog-size)")
        except (OSError, CorruptError) as error:
            self.cut(f"the records that it lacks can't be read: {error}")
        except Exception as error:  # noqa: BLE001 - also after a bug: a replica would wait for records for ever
            self.cut(f"the records that it lacks can't be sent: {error!r}")

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work`` in a thread. If this is cancelled, the work continues; the owner waits for it."""
        self._work = self.owner.in_thread(partial(work, *args))
        return await asyncio.shield(self._work)

    async def _copy(self) -> None:
        """Send the store as it is on disk, in one read transaction; without the nodes that the replica reports."""
        owner = self.owner
        known = ReportedRuns() if self._delta else None
        copy: StoreCopy | None = None

        def opened() -> StoreCopy:
            nonlocal copy
            copy = owner.disk.store.copy()
            return copy

        await self._prepare(known is not None)
        try:
            pieces = (await self._in_thread(opened)).pieces(PIECE, known)
            assert copy is not None  # noqa: S101 - opened() has run
            if self._reads < copy.format:
                raise StoreBeyondError(copy.format)
            self.needs = offset = copy.offset
            owner.moved_on()
            delta = b"" if known is None else b" DELTA"
            self._write(b"+FULLRESYNC %b %d%b\r\n" % (owner.replid.encode(), offset, delta))
            self._write(encode(frames.COPY, offset, frames.COPY_BODY.pack(copy.entries, copy.bytes)))
            self.state = "send_bulk"
            if known is not None:
                self._request_report(offset)
            while True:
                await self._room.wait()
                piece = await self._in_thread(next, pieces, None)
                if piece is None:
                    break
                if piece and self._whole:
                    async for part in whole(piece, PIECE, owner.whole_node, self._room):
                        self._write(encode(frames.PIECE, offset, part))
                elif piece:
                    self._write(encode(frames.PIECE, offset, piece))
                elif known is not None and known.exhausted:
                    await self._next_chunk(known, offset)
            self._write(encode(frames.DONE, offset, frames.DONE_BODY.pack(copy.entries)))
            self.position = offset
        finally:
            # Not while a thread may still read in the transaction.
            if self._work is not None:
                self._work.add_done_callback(lambda _: copy.close() if copy is not None else None)

    async def _prepare(self, delta: bool) -> None:
        """Let the store contain what a copy needs."""
        if delta:
            await self.owner.store_is_recent()
        if self.copy_only:
            await self.owner.references_are_stored()

    def _request_report(self, offset: int) -> None:
        """Request the next chunk of the report of the replica's nodes."""
        self._requested = True
        self._write(encode(frames.REPORT, offset))

    async def _next_chunk(self, known: ReportedRuns, offset: int) -> None:
        try:
            known.add(await self._chunks.get())
        except CorruptError as error:
            self.cut(str(error))
            return
        if not known.ended:
            self._request_report(offset)

    async def _catch_up(self) -> None:
        """Send from the log until everything is sent; then the feed is live."""
        if self.owner.each and not self.copy_only:
            self.wanted = True  # the keepalive also tells the replica to acknowledge each tick
        while True:
            await self._room.wait()
            disk = self.owner.disk  # the log may have been reopened
            if self.position > disk.offset:  # the batch that was sent last could not be synced, and will be retried
                await asyncio.sleep(UNSYNCED_SECONDS)
                continue
            batches = disk.recent(self.position, AT_ONCE)
            if batches is None:
                batches = await self._in_thread(disk.read, self.position, AT_ONCE)
            elif not batches and self.wanted:
                self.wanted = False
                self._send_alive(frames.ACKNOWLEDGE)  # this may have filled the socket's buffer, so check again
                continue
            elif not batches:
                break
            out: list[bytes] = []
            for offset, batch in batches:
                assert offset == self.position  # noqa: S101 - Rule 1
                if self.earlier and (needed := formats.needed(batch)) > self._reads:
                    self._write(b"".join(out))
                    raise BeyondError(needed)
                out += (head(frames.BATCH, offset, batch), batch)
                self.position = offset + len(batch)
            self._write(b"".join(out))
            self.needs = self.position
            await asyncio.sleep(0)  # let the leader run a tick for its clients
        self.live = True

    def _catch_up_later(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _write(self, data: bytes) -> None:
        if not self._over:
            self._transport.write(data)
            self.owner.sent_bytes(len(data))

    def _send_away(self, needed: int) -> None:
        """Disconnect the replica, because it can't read the next data (Rules 5 and 5a)."""
        if self.copy_only and not self.follows:
            self.live = False
            self.needs = NOTHING
            self.owner.moved_on()
            self.owner.complete(self)
        elif self.copy_only:
            self.owner.cannot_back_up(self.position)
            self.cut("the next records refer to history objects, on which a backup does not depend: take another one")
        else:
            self.owner.outgrown(needed)
            self.cut("its version is too old to read the new records")

    # -- end -------------------------------------------------------------------------------------------------
    def cut(self, why: str) -> None:
        """Close the link immediately; the replica will reconnect."""
        self._end(why)
        with suppress(AttributeError):  # begin() has not been called yet
            self._transport.abort()

    def _end(self, why: str) -> None:
        if self._over:
            return
        self._over = True
        self.live = False
        if self._task is not None:
            self._task.cancel()
        self.owner.lost(self, why)
