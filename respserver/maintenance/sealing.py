"""Compresses full nodes in a thread while the event loop runs (see ``storage.nodes.draft``).

    append fills a node -> a draft in its stream -> a thread compresses it -> the stream holds the blob

A job seals the drafts that wait when it begins, AT_ONCE bytes at most. Then the event loop replaces them with their
blobs. The next job begins at the end of a tick if there are AT_ONCE bytes again, and ``hz`` times a second. So a draft
waits a tenth of a second at most, unless the thread cannot keep up with the appends.

Rule 1: there is one job at a time, which uses the compressor.
Rule 2: streams and drafts are changed on the event loop only, after the job.
"""

from __future__ import annotations

import asyncio
from typing import Final

from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.runtime.threads import in_thread
from storage.nodes.draft import Draft
from storage.nodes.node import new_compressor
from storage.nodes.pool import NodePool

AT_ONCE: Final = 1 << 20  # bytes of drafts: a millisecond of work, so that waking the thread takes 2 % of it
RETRY_MS: Final = 1000  # after an error


class Sealing(ServerPart):
    """Seals the drafts of the keyspace."""

    def __init__(self, parts: RuntimeParts) -> None:
        super().__init__(parts)
        self._compressor = new_compressor()
        self._job: asyncio.Future[None] | None = None
        self._not_before = 0  # ms (monotonic); set after an error

    def begin(self) -> None:
        """Begin a job if drafts wait and none is running."""
        pool = self._data.ks.pool
        if self._job is not None or not pool.drafts or self._clock.mono() < self._not_before:
            return
        drafts, compressor = pool.oldest_drafts(AT_ONCE), self._compressor

        def work() -> None:
            for draft in drafts:
                draft.seal(compressor)

        try:
            self._job = in_thread(work)
        except (RuntimeError, MemoryError):  # no thread is available
            self._not_before = self._clock.mono() + RETRY_MS
            return
        self._job.add_done_callback(lambda job: self._ended(pool, drafts, job))

    def _ended(self, pool: NodePool, drafts: list[Draft], job: asyncio.Future[None]) -> None:
        """Replace the drafts. ``pool``: not that of the keyspace any more if the data was replaced meanwhile."""
        self._job = None
        if job.cancelled():
            return
        error = job.exception()
        if error is not None:
            self._not_before = self._clock.mono() + RETRY_MS
            self._logger.warning(f"Compressing nodes failed, next attempt in a second: {error!r}")
        pool.replace_drafts(drafts)
        if self._data.ks.pool.drafted >= AT_ONCE:
            self.begin()

    async def finish(self) -> None:
        """Wait for a running job, and for those that follow it."""
        while self._job is not None:
            await asyncio.wait([self._job])
            await asyncio.sleep(0)  # let its callback run
