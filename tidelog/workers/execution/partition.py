"""``ActivePartition``: the state of one partition that a processor consumes in this worker."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from tidelog.coordination import Claim
from tidelog.operating.tasks import set_within
from tidelog.topics import Topic
from tidelog.topics.groupreader import Row, entry_of
from tidelog.workers.execution.acks import Acks
from tidelog.workers.execution.buffers import Buffer
from tidelog.workers.execution.event_actions import PartitionEventActions
from tidelog.workers.execution.outputs import OutputEntry


class StoppedError(Exception):
    """The partition is being released or is lost: the current event must not be retried here."""


class PartitionCommitter(Protocol):
    """Commits records and acknowledgements of a partition. See ``transactions.Committer``."""

    def commit(
        self, partition: ActivePartition, outputs: list[OutputEntry], ids: list[bytes]
    ) -> asyncio.Future[None]: ...
    async def flushed(self, partition: ActivePartition) -> None: ...


class ActivePartition:
    """The entries in flight, and whether they may be processed.

    ``stopping`` is set when the partition is to be released; then no event is started any more.
    """

    def __init__(
        self, topic: Topic[Any], claim: Claim, buffer: Buffer, acks: Acks, actions: PartitionEventActions,
        committer: PartitionCommitter,
    ) -> None:  # fmt: skip
        self.number = claim.partition
        self.claim = claim
        self.buffer = buffer
        self.acks = acks
        self.actions = actions
        self.committer = committer
        self.stream = buffer.stream.encode()
        self.stopping = asyncio.Event()
        self.parked: set[str] = set()  # parked keys, as recorded on the server
        self.parked_known = False  # whether ``parked`` was read from the server
        self.suspects: set[bytes] = set()  # redelivered IDs, perhaps because a process died while handling them
        self.start_counts: dict[bytes, Any] = {}  # by ID: ``StartCounts`` of earlier attempts
        self.started: set[bytes] = set()  # of these, the IDs that this process has started
        self.task: asyncio.Task[None] | None = None  # the consumer's
        self.ended = False  # no entry is in flight any more; another ActivePartition may continue with the claim
        self._decode = topic.codec.decode

    @property
    def held(self) -> bool:
        """Whether this worker still owns the partition, as far as it knows."""
        return not self.ended and self.claim.held

    def stop(self) -> None:
        """Start no event any more."""
        self.stopping.set()
        self.buffer.filled.set()

    def record(self, row: Row) -> Any:
        """Return the record of an entry. Raises UndecodableError if it can't be decoded."""
        return self._decode(entry_of(row), self.stream)

    async def filled(self) -> None:
        """Wait until there are rows in the buffer, or the partition is being released."""
        buffer = self.buffer
        while not buffer.rows and not self.stopping.is_set():
            buffer.filled.clear()
            await buffer.filled.wait()

    async def rest(self, seconds: float) -> None:
        """Sleep. Raises StoppedError if the partition is being released or is lost meanwhile."""
        if await set_within(self.stopping, seconds) or not self.held:
            raise StoppedError
