"""``Committer``: appends records and acknowledges events in one step, if this worker still owns the partition.

A transaction has the TMAPPENDs and TACKs of all events that were finished during the previous one. ``ClaimWatch``
executes it.

Rule 1: one commit is in flight at a time, and events are committed in the order of the calls of ``commit``.
Rule 2: without a reply it is unknown whether an EXEC was executed, or still will be. The partition is first claimed
        under a new epoch, after which it can't be executed any more. Then the pending list shows whether it was.
Rule 3: within EXEC, the server continues after a command that failed. Therefore a stream is checked before the first
        append: TLEN fails for a key of another type. If the type changes later, EXEC's reply or a second check shows
        which events have missing records. Their futures fail with PartialCommitError, so that they become dead
        letters. All other events of the transaction are complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import redis

from tidelog.client import calls
from tidelog.client.steps import arun, checked
from tidelog.coordination import Claim, Lease, LeaseLostError
from tidelog.coordination.claims import reclaim
from tidelog.topics.sending import BYTES, ROWS, PartitionBatch, Sender
from tidelog.transport.asyncconnection import AsyncConnection, LostError
from tidelog.transport.call import Call
from tidelog.workers import logs
from tidelog.workers.coordination.connections import WorkerConnection, WorkerConnector
from tidelog.workers.execution.buffers import Buffer
from tidelog.workers.execution.claim_watch import ClaimWatch
from tidelog.workers.execution.outputs import OutputEntry
from tidelog.workers.execution.partition import ActivePartition, StoppedError
from tidelog.workers.execution.stats import Stats

log = logs.get(__name__)
AT_ONCE: Final = 4000  # events per commit
MOST: Final = 8 * BYTES  # appended per commit, unless one event sends more


class PartialCommitError(redis.ResponseError):
    """Events were acknowledged, but only some of their records appended, because a stream has changed its type."""


class _Commit:
    __slots__ = ("future", "ids", "outputs", "partition", "size")

    def __init__(self, partition: ActivePartition, outputs: list[OutputEntry], ids: list[bytes]) -> None:
        self.partition = partition
        self.outputs = outputs
        self.ids = ids
        self.size = sum(len(output.row) for output in outputs)  # bytes
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Committer:
    """Commits for one processor in one worker. ``lost`` is called with a claim that another worker has taken."""

    def __init__(
        self, connector: WorkerConnector, lease: Lease, group: str, stats: Stats, lost: Callable[[Claim], None]
    ) -> None:  # fmt: skip
        self._connection: WorkerConnection = connector.connection()
        self._lease = lease
        self._group = group
        self._stats = stats
        self._lost = lost
        self._queue: list[_Commit] = []
        self._pending = asyncio.Event()
        self._under_way = False
        self.claims = ClaimWatch(lost)
        self._appendable: set[str] = set()  # streams that were checked

    def commit(self, partition: ActivePartition, outputs: list[OutputEntry], ids: list[bytes]) -> asyncio.Future[None]:
        """Append and acknowledge soon.

        The future fails with StoppedError if the partition is lost, and with redis.ResponseError if the server rejects
        the commit. Then nothing was changed, except in the case of PartialCommitError.
        """
        made = _Commit(partition, outputs, ids)
        self._queue.append(made)
        self._pending.set()
        return made.future

    async def flushed(self, partition: ActivePartition) -> None:
        """Wait until all commits of this partition are settled."""
        if self._under_way or self._queue:
            try:
                await self.commit(partition, [], [])
            except StoppedError:
                pass

    async def run(self) -> None:
        """Commit until cancelled."""
        try:
            while True:
                await self._pending.wait()
                self._pending.clear()
                while self._queue:
                    count = _fitting(self._queue)
                    batch, self._queue = self._queue[:count], self._queue[count:]
                    self._under_way = True
                    try:
                        await self._commit_all(batch)
                    finally:
                        self._under_way = False
                        for commit in batch:
                            commit.future.cancel()  # no effect if it is settled
        finally:
            for commit in self._queue:
                commit.future.cancel()
            self._connection.close()

    async def _commit_all(self, batch: list[_Commit]) -> None:
        while batch := self._ours(batch):
            try:
                channel = await self._connection.channel()
                await self.claims.watch(channel, [commit.partition.claim for commit in batch])
                await self._check_streams(channel, batch)
            except LostError:
                continue
            except redis.ResponseError as error:
                await self._refused(batch, error)
                return
            batch = self._ours(batch)
            if not batch:
                return
            changes, senders = self._changes(batch)
            try:
                done = await self.claims.execute(changes)
            except LostError:
                batch = await self._after_loss(batch)
                continue
            if done is None:
                continue  # a claim has changed: retry the commits whose partitions are still held
            await self._done(batch, done, senders)
            return

    def _ours(self, batch: list[_Commit]) -> list[_Commit]:
        """Return the commits whose partitions are held. The futures of the others fail."""
        held = []
        for commit in batch:
            if commit.future.done():
                continue
            if commit.partition.held:
                held.append(commit)
            else:
                commit.future.set_exception(StoppedError())
        return held

    async def _done(self, batch: list[_Commit], done: Any, senders: list[tuple[str, set[_Commit]]]) -> None:
        """Process the reply of EXEC."""
        if isinstance(done, redis.ResponseError):  # nothing was executed
            await self._refused(batch, done)
            return
        failed: dict[_Commit, Exception] = {}
        for at, reply in enumerate(done):
            if isinstance(reply, Exception):
                log.error("group %s: part of a transaction failed, the rest was executed: %s", self._group, reply)
                if at < len(senders):
                    stream, commits = senders[at]
                    self._appendable.discard(stream)
                    failed |= dict.fromkeys(commits, reply)
        self._stats.transactions += 1
        for commit in batch:
            self.settle(commit, failed.get(commit))
        await self._check_limits(batch)

    async def _check_limits(self, batch: list[_Commit]) -> None:
        """Check the hard limits of topics, as a send does."""
        touched: dict[Sender, set[int]] = {}
        for commit in batch:
            for output in commit.outputs:
                if output.sender is not None:
                    touched.setdefault(output.sender, set()).add(output.partition)
        for sender, partitions in touched.items():
            try:
                await arun(self._connection, sender.settled(sorted(partitions)))
            except LostError:
                return  # the next commit repeats it

    async def _refused(self, batch: list[_Commit], error: redis.ResponseError) -> None:
        """Retry the commits individually after the server rejected them as a whole."""
        if len(batch) > 1:
            for commit in batch:
                await self._commit_all([commit])
        elif not batch[0].future.done():
            batch[0].future.set_exception(error)

    def settle(self, commit: _Commit, failed: Exception | None = None) -> None:
        """Settle a commit that was executed. ``failed``: the error of an append."""
        self._stats.acknowledged += len(commit.ids)
        commit.partition.buffer.forget(commit.ids)
        if commit.future.done():
            return
        if failed is None:
            commit.future.set_result(None)
        else:
            error = PartialCommitError(f"{failed}: some records were not appended, but the events are acknowledged")
            commit.future.set_exception(error)

    def _changes(self, batch: list[_Commit]) -> tuple[list[Call[Any]], list[tuple[str, set[_Commit]]]]:
        """Return the appends in order for each stream, then the acknowledgements; and the commits of each append."""
        runs: list[tuple[str, PartitionBatch]] = []
        senders: list[tuple[str, set[_Commit]]] = []
        whose: dict[str, set[_Commit]] = {}  # by stream: the commits of the last append
        last: dict[str, PartitionBatch] = {}
        ids: dict[Buffer, list[bytes]] = {}
        for commit in batch:
            ids.setdefault(commit.partition.buffer, []).extend(commit.ids)
            for output in commit.outputs:
                run = last.get(output.stream)
                if run is None or run.fields != output.fields or run.number >= ROWS or run.size >= BYTES:
                    run = last[output.stream] = PartitionBatch(output.fields)
                    runs.append((output.stream, run))
                    whose[output.stream] = set()
                    senders.append((output.stream, whose[output.stream]))
                run.add(output.row)
                whose[output.stream].add(commit)
        made: list[Call[Any]] = [run.append(stream) for stream, run in runs]
        made += [buffer.ack(found) for buffer, found in ids.items() if found]
        return made, senders

    # -- claims ----------------------------------------------------------------------------------------------
    async def _check_streams(self, channel: AsyncConnection, batch: list[_Commit]) -> None:
        unknown = {output.stream for commit in batch for output in commit.outputs} - self._appendable
        if unknown:
            checked(await channel.send([calls.tlen(stream) for stream in unknown]))
            self._appendable |= unknown

    async def _after_loss(self, batch: list[_Commit]) -> list[_Commit]:
        """Determine what was executed; returns the commits that were not."""
        for partition in {commit.partition for commit in batch}:
            if partition.held and partition.claim.key and not await self._reclaimed(partition.claim):
                self._lost(partition.claim)
        refusing = await self._refusing(batch)
        left = []
        for commit in self._ours(batch):
            stream = commit.partition.buffer.stream
            buffer, ids = commit.partition.buffer, commit.ids
            try:
                there = bool(ids and await self._connection.repeat(partial(buffer.deliveries, ids)))
            except redis.ResponseError as error:  # such as a deleted group, which EXEC will report
                log.warning("group %s: it is unknown whether %s was committed: %s", self._group, stream, error)
                there = True
            if there or (commit.outputs and not commit.ids):  # a duplicate dead letter is better than none
                left.append(commit)
                continue
            refused = [refusing[output.stream] for output in commit.outputs if output.stream in refusing]
            self.settle(commit, refused[0] if refused else None)
        return left

    async def _refusing(self, batch: list[_Commit]) -> dict[str, Exception]:
        """Return the streams that can't be appended to, so EXEC may have skipped them."""
        streams = sorted({output.stream for commit in batch for output in commit.outputs})
        self._appendable.difference_update(streams)
        while True:
            try:
                replies = await self._connection.send([calls.tlen(stream) for stream in streams])
            except LostError:
                if not any(commit.partition.held for commit in batch):
                    return {}
            else:
                found = zip(streams, replies, strict=True)
                return {stream: reply for stream, reply in found if isinstance(reply, Exception)}

    async def _reclaimed(self, claim: Claim) -> bool:
        """Claim the partition under a new epoch, so calls in flight fail. Returns False if it is lost."""
        try:
            return await self._connection.repeat(lambda: reclaim(self._lease, claim))
        except (LeaseLostError, redis.ResponseError) as error:
            log.error("group %s: %s can't be claimed again: %s", self._group, claim.key, error)
            return False


def _fitting(queue: list[_Commit]) -> int:
    """Return how many of these fit into one commit."""
    size = 0
    for count, commit in enumerate(queue[:AT_ONCE]):
        size += commit.size
        if size > MOST and count:
            return count
    return min(len(queue), AT_ONCE)
