"""The replica's end: find the leader, take what is lacking, apply what comes, and begin again when the link is lost.

Rule 1: batches are applied in order and whole; one that doesn't begin where this log ends ends the link.
Rule 2: a full copy goes to a directory of its own; the old data stays in use until it is complete and checked.
Rule 3: whatever goes wrong ends the link with a reason, and it is tried again after a wait that doubles, up to a
bound, and is never quite the same: replicas of a leader that went down don't all come back at once.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from ssl import SSLContext
from typing import Protocol, cast

from persistence.history import History
from persistence.incoming import Incoming
from replication import frames
from replication.frames import Frame, FrameDecoder, LinkError
from replication.handshake import Answer, Handshake, Introduction, request
from resp.errors import CorruptError

FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0  # seconds between attempts
QUEUED_AT_ONCE = 4 << 20  # bytes of frames that wait to be written to disk, before reading stops
PROGRESS_EVERY = 2.0  # seconds between lines of the log about a copy


class FollowerOwner(Protocol):
    """What a follower needs of its server; all of it is called on the event loop."""

    def introduction(self) -> Introduction:
        """Who this is and what it has."""
    async def settled(self) -> None:
        """Whatever followers before this one left under way has ended."""
    def patience(self) -> float:
        """Seconds without a word after which a link is dead."""
    def tls(self) -> SSLContext | None:
        """How to speak TLS, if that is to be spoken. Raises ConfigError."""
    def incoming(self) -> Incoming:
        """A place for a full copy. Raises OSError."""
    def history_of(self, replid: str) -> History:
        """That of a server whose whole log is the leader's."""
    async def copied(self, replid: str) -> None:
        """A copy is complete in its place: use it. Raises OSError, CorruptError."""
    def continued(self, replid: str) -> None:
        """The leader lets it go on, and has this ID now. Raises OSError."""
    def batch(self, offset: int, batch: bytes) -> None:
        """Apply it. Raises LinkError if it doesn't follow, CorruptError if it can't be applied."""
    def received_message(self, channel: bytes, text: bytes) -> None: ...
    def asked(self) -> None:
        """The leader wants an acknowledgement."""
    def link_changed(self) -> None:
        """``up`` or ``state`` is another."""
    def received_bytes(self, count: int) -> None: ...
    def note(self, text: str) -> None:
        """A line for the log."""
    def warn(self, text: str) -> None: ...
    def link_failed(self, error: Exception) -> None:
        """An attempt, or a link, ended with this."""


class Link(asyncio.Protocol):
    """One connection to the leader: first a handshake, then frames."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self.transport: asyncio.Transport
        self.handshake: Handshake | None = None  # under way
        self._answer: Answer | None = None
        self._decoder = FrameDecoder()
        self._frames: deque[Frame] = deque()
        self._queued = 0  # bytes in ``_frames``
        self._news = asyncio.Event()
        self._failed: Exception | None = None
        self.direct: Callable[[Frame], None] | None = None  # takes frames as they come; None: they are queued

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(LinkError(f"the connection was lost{f' ({exc})' if exc is not None else ''}"))

    def eof_received(self) -> bool:
        self.fail(LinkError("the leader closed the connection"))
        return False

    def data_received(self, data: bytes) -> None:
        if self._failed is not None:
            return
        self._follower.heard(len(data))
        try:
            if self.handshake is not None:
                more = self.handshake.feed(data)
                if more:
                    self.transport.write(more)
                if self.handshake.answer is None:
                    return
                data = self.handshake.rest
                self._answer, self.handshake = self.handshake.answer, None
                self._news.set()
            for frame in self._decoder.feed(data):
                if self.direct is not None:
                    self.direct(frame)
                else:
                    self._frames.append(frame)
                    self._queued += len(frame.payload)
                    self._news.set()
            if self._queued > QUEUED_AT_ONCE:
                self.transport.pause_reading()
        except Exception as error:  # noqa: BLE001 - whatever it is, the follower says so and begins again
            self.fail(error)

    def kill(self) -> None:
        """CLIENT KILL TYPE master."""
        self.fail(LinkError("closed by CLIENT KILL"))

    def fail(self, error: Exception) -> None:
        """The link is over, for this reason."""
        if self._failed is None:
            self._failed = error
            self._news.set()
            self.transport.abort()

    def say(self, data: bytes) -> None:
        """Send it, if the connection is still there."""
        if not self.transport.is_closing():
            self.transport.write(data)

    async def introduce(self, who: Introduction) -> Answer:
        """Run the handshake. Raises LinkError, CorruptError."""
        self.handshake = Handshake(who)
        self.transport.write(self.handshake.start())
        while self._answer is None:
            await self._wait()
        return self._answer

    async def frame(self) -> Frame:
        """The next frame. Raises LinkError, CorruptError."""
        while not self._frames:
            await self._wait()
        frame = self._frames.popleft()
        self._queued -= len(frame.payload)
        if self._queued <= QUEUED_AT_ONCE // 2 and not self.transport.is_closing():
            self.transport.resume_reading()
        return frame

    async def _wait(self) -> None:
        self._raise_failed()
        self._news.clear()
        await self._news.wait()
        if not self._frames:
            self._raise_failed()

    def _raise_failed(self) -> None:
        if self._failed is not None:
            raise self._failed

    def take_directly(self, take: Callable[[Frame], None]) -> None:
        """From now on ``take`` gets every frame when it comes; first those that have come already."""
        while self._frames:
            take(self._frames.popleft())
        self._queued = 0
        self.direct = take
        if not self.transport.is_closing():
            self.transport.resume_reading()

    async def ended(self) -> None:
        """Returns never; raises what ended the link."""
        while True:
            await self._wait()


class Follower:
    """Follows one leader until it is stopped. Times are seconds of the event loop's clock."""

    def __init__(self, owner: FollowerOwner, host: str, port: int) -> None:
        self.owner = owner
        self.host = host
        self.port = port
        self.state = "connect"  # then connecting, sync, connected: as ROLE says it
        self.link: Link | None = None
        self.last_io = 0.0  # when the leader was last heard; 0 never
        self.down_since = asyncio.get_running_loop().time()
        self.sync_total = 0  # bytes of the copy under way, 0 while none is
        self.sync_read = 0
        self._place: Incoming | None = None  # of the copy under way
        self._over = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def up(self) -> bool:
        return self.state == "connected"

    def stop(self) -> asyncio.Task[None]:
        """End the link, and whatever copy is under way; what a thread does for it has ended with the task.

        Raises OSError: it has ended, but a copy may take the place of the data at the next start.
        """
        self._over = True
        self._task.cancel()
        if self.link is not None:
            self.link.fail(LinkError("stopped"))
        if self._place is not None:
            self._place.revoke()
        return self._task

    def on_time(self) -> None:
        """Once a second: notice a leader that is silent; give it a sign of life while a copy is under way."""
        if self.link is None:
            return
        seconds = self.owner.patience()
        if self.up and asyncio.get_running_loop().time() - self.last_io > seconds:
            self.link.fail(LinkError(f"nothing was heard for {seconds:g} seconds (repl-timeout)"))
        elif self.state == "sync":
            self.link.say(request("PING"))

    def acknowledge(self, offset: int, on_disk: int) -> None:
        """Tell the leader what this server has."""
        if self.link is not None and self.up:
            self.link.say(request("REPLCONF", "ACK", offset, "FACK", on_disk))

    def fail(self, error: Exception) -> None:
        """End the link for this reason; it is tried again."""
        if self.link is not None:
            self.link.fail(error)

    def hold(self, stop: bool) -> None:
        """Stop or go on reading what the leader sends: the disk is full."""
        if self.link is not None and self.up and not self.link.transport.is_closing():
            if stop:
                self.link.transport.pause_reading()
            else:
                self.link.transport.resume_reading()

    def heard(self, size: int) -> None:
        self.last_io = asyncio.get_running_loop().time()
        self.owner.received_bytes(size)
        if self.sync_total:
            self.sync_read += size

    # -- the life of a link --------------------------------------------------------------------------------------
    async def _run(self) -> None:
        wait, said = FIRST_WAIT, ""
        while True:
            was_up = False
            try:
                try:
                    await self._follow()
                finally:
                    was_up = self.up
                    self._down()
            except Exception as error:  # noqa: BLE001 - a bug, too, must not leave a replica that never tries again
                expected = isinstance(error, (LinkError, OSError, CorruptError))
                text = str(error) if expected and str(error) else repr(error)
                if isinstance(error, TimeoutError):
                    text = "no answer in time (repl-timeout)"
                if was_up or text != said:  # not the same line every five seconds
                    self.owner.warn(f"Link to the leader {self.host}:{self.port}: {text}")
                said = text
                if not self._over:
                    self.owner.link_failed(error)
            if was_up:
                wait = FIRST_WAIT
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, LONGEST_WAIT)

    def _down(self) -> None:
        if self.link is not None:
            self.link.transport.abort()
            self.link = None
        if self.up:
            self.down_since = asyncio.get_running_loop().time()
        self.sync_total = self.sync_read = 0
        self._set("connect")

    def _set(self, state: str) -> None:
        if state != self.state:
            self.state = state
            if not self._over:
                self.owner.link_changed()

    async def _follow(self) -> None:
        """One link, from connecting to its end, which is always an exception."""
        owner, loop = self.owner, asyncio.get_running_loop()
        await owner.settled()
        seconds, tls = owner.patience(), owner.tls()
        self._set("connecting")
        async with asyncio.timeout(seconds):
            _, self.link = await loop.create_connection(
                lambda: Link(self), self.host, self.port, ssl=tls, server_hostname=self.host if tls else None
            )
            who = owner.introduction()
            answer = await self.link.introduce(who)
        if answer.offset >= 0:
            if who.offset > 0:
                owner.warn(
                    f"This server's own data (log offset {who.offset} of ID {who.replid}) will be replaced: the"
                    " leader's history does not go on from there"
                )
            self._set("sync")
            await self._copy(self.link, answer)
        elif who.offset < 0:
            raise LinkError("the leader goes on from nowhere: a full copy was asked for")
        else:
            owner.continued(answer.replid)
            owner.note(f"Going on from where the log ends: leader {self.host}:{self.port}, ID {answer.replid}")
        self._set("connected")
        self.link.take_directly(self._took)
        await self.link.ended()

    def _took(self, frame: Frame) -> None:
        kind, offset, payload = frame
        if kind == frames.BATCH:
            self.owner.batch(offset, payload)
        elif kind == frames.ALIVE:
            if frames.read_numbers(frames.ALIVE_BODY, payload)[0] & frames.ACKNOWLEDGE:
                self.owner.asked()
        elif kind == frames.MESSAGE:
            self.owner.received_message(*frames.read_message(payload))
        else:
            raise LinkError("a part of a copy that nobody asked for")

    async def _copy(self, link: Link, answer: Answer) -> None:
        """Take a full copy. Raises LinkError, CorruptError, OSError; then the old data is still there."""
        owner, loop = self.owner, asyncio.get_running_loop()
        first = await self._part(link, frames.COPY, answer.offset)
        entries, self.sync_total = frames.read_numbers(frames.COPY_BODY, first)
        self.sync_read, self.sync_total = 0, max(self.sync_total, 1)
        owner.note(f"Full copy from {self.host}:{self.port}: entries={entries} bytes={self.sync_total} (estimated)")
        began = said = loop.time()
        self._place = place = owner.incoming()
        work: asyncio.Future[None] | None = None
        try:
            while True:
                frame = await self._next(link)
                if frame.kind == frames.DONE:
                    break
                payload = self._of_copy(frame, frames.PIECE, answer.offset)
                work = loop.run_in_executor(None, place.add, payload)
                await asyncio.shield(work)
                if loop.time() - said > PROGRESS_EVERY:
                    said = loop.time()
                    percent = min(99, 100 * place.entries // max(1, entries))
                    owner.note(f"Full copy: {percent} %, entries={place.entries} bytes={place.bytes}")
            (sent,) = frames.read_numbers(frames.DONE_BODY, frame.payload)
            history = owner.history_of(answer.replid)
            work = loop.run_in_executor(None, place.finish, answer.offset, sent, history)
            await asyncio.shield(work)
        except BaseException:
            if work is not None:
                await asyncio.gather(work, return_exceptions=True)
            place.abandon()
            raise
        finally:
            self._place = None
        seconds = max(loop.time() - began, 1e-6)
        owner.note(
            f"Full copy complete: entries={place.entries} bytes={place.bytes} seconds={seconds:.3f}"
            f" rate={place.bytes / seconds / 1e6:.1f} MB/s"
        )
        await owner.copied(answer.replid)
        self.sync_total = 0

    async def _next(self, link: Link) -> Frame:
        """The next frame that belongs to the copy. However long one takes: only silence is an end."""
        seconds = self.owner.patience()
        while True:
            waiting = asyncio.ensure_future(link.frame())
            try:
                done: set[asyncio.Future[Frame]] = set()
                while not done:
                    before = self.last_io
                    done, _ = await asyncio.wait([waiting], timeout=seconds)
                    if not done and self.last_io == before:
                        raise LinkError(f"nothing was heard for {seconds:g} seconds (repl-timeout)")
            finally:
                waiting.cancel()
            frame = waiting.result()
            if frame.kind not in (frames.ALIVE, frames.MESSAGE):
                return frame

    async def _part(self, link: Link, kind: int, offset: int) -> bytes:
        return self._of_copy(await self._next(link), kind, offset)

    @staticmethod
    def _of_copy(frame: Frame, kind: int, offset: int) -> bytes:
        if frame.kind != kind or frame.offset != offset:
            raise LinkError(f"a frame of kind {chr(frame.kind)} in the middle of a copy")
        return frame.payload
