"""Nodes that the members of a group copy from each other, because a store is damaged (``persistence.noderepair``).

Rule 1: one node at a time is requested, and each request has an answer or a time limit.
Rule 2: the entries are read on the event loop, like those of a reader, a few milliseconds at a time. They are encoded
in a thread.
Rule 3: nodes that are known to be damaged are not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from persistence.noderepair import NodeRange
from replication.nodes import LONGEST, pack_answer, pack_request, read_answer, read_request
from resp.errors import CorruptError, DamagedNodeError
from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.runtime.threads import in_thread
from storage.nodes.node import new_compressor, seal
from storage.streams.rangecopy import RangeCopy

PATIENCE = 5.0  # seconds until an answer must have arrived
ENTRIES = 4096  # that are read at once
SIZE = 1 << 20  # bytes of entries that are read at once
AT_ONCE = 4  # answers that are being prepared; a request beyond that is answered with nothing


class NodeExchange(ServerPart):
    """Requests and serves nodes. Used on the event loop only."""

    def __init__(self, parts: RuntimeParts) -> None:
        super().__init__(parts)
        self._asked: tuple[NodeRange, asyncio.Future[bytes]] | None = None  # the request in progress
        self._serving: set[asyncio.Task[None]] = set()

    async def ask(self, send: Callable[[bytes], None], wanted: NodeRange) -> bytes:
        """Request a node. ``send`` sends the request. Returns the blob; b"" if the member has no good copy.

        Raises TimeoutError if there is no answer in time.
        """
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._asked = wanted, answer
        try:
            send(pack_request(wanted))
            async with asyncio.timeout(PATIENCE):
                return await answer
        finally:
            self._asked = None

    def received(self, payload: bytes) -> None:
        """Process an answer. One that arrives too late is dropped."""
        if self._asked is not None:
            wanted, answer = self._asked
            blob = read_answer(payload, wanted)
            if blob is not None and not answer.done():
                answer.set_result(blob)

    def abandon(self) -> None:
        """End the request in progress: the member is not connected any more."""
        if self._asked is not None and not self._asked[1].done():
            self._asked[1].set_result(b"")

    def serve(self, payload: bytes, send: Callable[[bytes], None]) -> None:
        """Answer a request. ``send`` sends the answer. Raises LinkError if the request is invalid."""
        wanted = read_request(payload)
        if len(self._serving) >= AT_ONCE:
            send(pack_answer(wanted, b""))
            return
        task = self._loop.create_task(self._serve(wanted, send))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, wanted: NodeRange, send: Callable[[bytes], None]) -> None:
        send(pack_answer(wanted, await self.own(wanted)))

    async def own(self, wanted: NodeRange, in_memory: bool = False) -> bytes:
        """Return this server's own entries as a blob; b"" if it has no good copy.

        ``in_memory``: do not read the store.
        """
        copy = RangeCopy(wanted.first_ord, wanted.first_id, wanted.size, LONGEST)
        while self._collect(copy, wanted, in_memory):  # noqa: ASYNC110
            await asyncio.sleep(0)  # others have their turn
        try:
            blob = await in_thread(lambda: _sealed(copy))
        except (RuntimeError, MemoryError):  # no thread is available
            return b""
        return blob if len(blob) <= LONGEST else b""

    def _collect(self, copy: RangeCopy, wanted: NodeRange, in_memory: bool) -> bool:
        """Collect a part of the entries. Return whether there are more."""
        stream = None if self._gates.loading else self._data.stream(wanted.key, wanted.sid)
        if stream is None:
            return False
        stored = stream.stored_nodes(copy.next, copy.stop_of(ENTRIES))
        if stored and (in_memory or self._data.disk.scrub.knows(wanted.sid, stored)):
            return False  # a page that the disk cannot read would end this process (Rule 3)
        try:
            return copy.step(stream, ENTRIES, SIZE)
        except DamagedNodeError as error:
            self._data.note_damage(error)
        except (CorruptError, OSError) as error:
            self._logger.warning(f"A node for another member can't be read: {error}")
        return False


def _sealed(copy: RangeCopy) -> bytes:
    node = copy.node()
    return b"" if node is None else seal(node, compressor=new_compressor())
