"""One connection of a replica to its leader: first the handshake, then frames."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from replication.frames import HEAD, FrameDecoder, LinkError, ReplicationFrame
from replication.handshake import Handshake, Introduction, Lineage, PsyncAnswer

QUEUED_AT_ONCE = 4 << 20  # bytes of queued frames after which the socket is no longer read


class ReplicationConnection(asyncio.Protocol):
    """Once the link has failed, everything that waits for it raises the reason. ``heard`` is called with the number of
    bytes received."""

    def __init__(self, heard: Callable[[int], None]) -> None:
        self.transport: asyncio.Transport
        self._heard = heard
        self._handshake: Handshake | None = None  # the handshake in progress
        self._answer: PsyncAnswer | None = None
        self.leader: Lineage | None = None  # the leader's history; None: unknown
        self.owner = ""  # the ID that owns the leader's history; "": unknown
        self._decoder = FrameDecoder()
        self._frames: deque[ReplicationFrame] = deque()
        self._queued = 0  # bytes in ``_frames``
        self._news = asyncio.Event()  # set if there is an answer, a frame or a failure
        self._failed: Exception | None = None
        self._direct: Callable[[ReplicationFrame], None] | None = None  # called with each frame; None: queue them

    # -- asyncio's callbacks ---------------------------------------------------------------------------------
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
        self._heard(len(data))
        try:
            if self._handshake is not None:
                request = self._handshake.feed(data)
                if request:
                    self.transport.write(request)
                if self._handshake.answer is None:
                    return
                data = self._handshake.rest
                self._answer, self.leader = self._handshake.answer, self._handshake.leader
                self.owner = self._handshake.owner
                self._handshake = None
                self._news.set()
            for frame in self._decoder.feed(data):
                if self._direct is not None:
                    self._direct(frame)
                else:
                    self._frames.append(frame)
                    self._queued += HEAD + len(frame.payload)
                    self._news.set()
            if self._queued > QUEUED_AT_ONCE:
                self.transport.pause_reading()
        except Exception as error:  # noqa: BLE001 - whatever it is: the follower reports it and connects again
            self.fail(error)

    # -- the end -----------------------------------------------------------------------------------------------
    def kill(self) -> None:
        """Close the link (CLIENT KILL TYPE master)."""
        self.fail(LinkError("closed by CLIENT KILL"))

    def fail(self, error: Exception) -> None:
        """End the link for this reason."""
        if self._failed is None:
            self._failed = error
            self._news.set()
            self.transport.abort()

    async def ended(self) -> None:
        """Wait until the link ends. Raises the error that ended it."""
        while True:
            await self._wait()

    # -- called by the follower ----------------------------------------------------------------------------------
    def send(self, data: bytes) -> None:
        """Send data if the connection is still open."""
        if not self.transport.is_closing():
            self.transport.write(data)

    async def introduce(self, who: Introduction) -> PsyncAnswer:
        """Run the handshake. Raises the error that ended the link."""
        self._handshake = Handshake(who)
        self.transport.write(self._handshake.start())
        while self._answer is None:
            await self._wait()
        return self._answer

    async def frame(self) -> ReplicationFrame:
        """Return the next frame. Raises the error that ended the link."""
        while not self._frames:
            await self._wait()
        frame = self._frames.popleft()
        self._queued -= HEAD + len(frame.payload)
        if self._queued <= QUEUED_AT_ONCE // 2:
            self.read(True)
        return frame

    def take_directly(self, take: Callable[[ReplicationFrame], None]) -> None:
        """Pass all frames to ``take``: first those that are queued, then each one as it arrives, until hold()."""
        self._direct = take
        while self._frames and not self.holding:
            frame = self._frames.popleft()
            self._queued -= HEAD + len(frame.payload)
            take(frame)
        if not self.holding:
            self.read(True)

    @property
    def holding(self) -> bool:
        """Whether frames are queued instead of passed on."""
        return self._direct is None

    def hold(self, frame: ReplicationFrame) -> None:
        """Queue this frame, which was passed on by take_directly(), and all later ones, and stop reading."""
        self._direct = None
        self._frames.appendleft(frame)
        self._queued += HEAD + len(frame.payload)
        self.read(False)

    def read(self, go_on: bool) -> None:
        """Read from the socket, or stop reading."""
        if not self.transport.is_closing():
            if go_on:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    async def _wait(self) -> None:
        """Wait for an answer, a frame or a failure. Raises the error that ended the link once all frames are taken."""
        self._raise_failed()
        self._news.clear()
        await self._news.wait()
        if not self._frames:
            self._raise_failed()

    def _raise_failed(self) -> None:
        if self._failed is not None:
            raise self._failed
