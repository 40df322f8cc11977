"""``Partition``: one partition of a topic in the hands of one processor of this worker."""

from __future__ import annotations

import asyncio
from typing import Any

from tidelog.client.entries import Entry, StreamId
from tidelog.leases import Claim
from tidelog.topics import Topic
from tidelog.workers.acks import Acks
from tidelog.workers.buffers import Buffer, Row
from tidelog.workers.sinks import ProcessorSink


class StoppedError(Exception):
    """The partition is being released, or lost: the event in hand is not to be begun again."""


class CancelledInsideError(Exception):
    """A processor's function ended with CancelledError, and nobody had cancelled it."""


def failure(error: BaseException) -> Exception:
    """What the failure policy gets for what came out of user code. A cancellation of this task is no failure: it is
    raised again. One of something else that the function waited for (a task, a future) is.
    """
    if isinstance(error, Exception):
        return error
    task = asyncio.current_task()
    if not isinstance(error, asyncio.CancelledError) or task is None or task.cancelling():
        raise error
    made = CancelledInsideError("what the function waited for was cancelled")
    made.__cause__ = error
    return made


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


def id_of(raw: bytes) -> StreamId:
    ms, _, seq = raw.partition(b".")
    return StreamId(int(ms), int(seq))
