"""``Partition``: one partition of a topic in the hands of one processor of this worker."""

from __future__ import annotations

import asyncio
from typing import Any

from tidelog.client.entries import Entry
from tidelog.coordination import Claim
from tidelog.topics import Topic
from tidelog.workers.execution.acks import Acks
from tidelog.workers.execution.buffers import Buffer, Row, id_of
from tidelog.workers.execution.event_actions import ProcessorSink


class StoppedError(Exception):
    """The partition is being released, or lost: the event in hand is not to be begun again."""


class Partition:
    """What is in hand, and whether it may be worked on.

    ``stopping`` is set when the partition is to be released: no event is begun any more.
    """

    def __init__(self, topic: Topic[Any], claim: Claim, buffer: Buffer, acks: Acks, sink: ProcessorSink) -> None:
        self.number = claim.partition
        self.claim = claim
        self.buffer = buffer
        self.acks = acks
        self.sink = sink
        self.stream = buffer.stream.encode()
        self.stopping = asyncio.Event()
        self.parked: set[str] = set()  # keys that are held back, as they are listed on the server
        self.parked_known = False  # whether the server was asked
        self.doubtful: set[bytes] = set()  # IDs of what comes again, perhaps since a process died in it
        self.tried: dict[bytes, Any] = {}  # by ID: what is known of earlier attempts, ``tried.Tried``
        self.begun: set[bytes] = set()  # of these, what this process has begun
        self.task: asyncio.Task[None] | None = None  # that consumes it
        self.ended = False  # nothing of it is in hand any more; the claim may go on under another Partition
        self._decode = topic.codec.decode

    @property
    def held(self) -> bool:
        """Whether it is still ours, for all we know."""
        return not self.ended and self.claim.held

    def stop(self) -> None:
        """Begin no event any more."""
        self.stopping.set()
        self.buffer.filled.set()

    def record(self, row: Row) -> Any:
        """The record of an entry. UndecodableError if it is none."""
        return self._decode(entry_of(row), self.stream)

    async def filled(self) -> None:
        """Wait until there are rows in the buffer, or the partition is to be released."""
        buffer = self.buffer
        while not buffer.rows and not self.stopping.is_set():
            buffer.filled.clear()
            await buffer.filled.wait()

    async def rest(self, seconds: float) -> None:
        """Sleep. StoppedError if the partition is to be released meanwhile, or is ours no more."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        except TimeoutError:
            pass
        if self.stopping.is_set() or not self.held:
            raise StoppedError


def entry_of(row: Row) -> Entry:
    """An entry as the clients have it."""
    return Entry(id_of(row[0]), row[1:])
