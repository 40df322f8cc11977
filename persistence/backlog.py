"""Reading the log from an offset, for replicas that catch up with this server.

Rule 1: a batch is first in memory (in the ring, not in the journal), then in memory and in the journal, then only in
the journal. A batch that a reader does not find in memory is in the journal, or it was deleted. It stays in memory for
a while after it was written to the journal if a continuous backup will read it (``keep_flushed``).
Rule 2: batches are returned whole. The only exception is an offset inside a batch, which is possible after a promotion.
The rest of that batch is returned if a record begins at the offset.
Rule 3: batches at or after ``retain`` stay in the journal. A caller that lowers ``retain`` and then calls holds() can
rely on the result, even during a truncation. Only a full journal ignores ``retain`` (``Log.truncate``); read() then
raises GoneError.

Decision: continuous backups read the log every 0.25 s, but the journal's thread takes batches out of memory every 0.1
s. A thread then read most of them from the journal. With one client and a commit group per append, this thread took 3.0
us of CPU time per append, 5 % of all. From memory, the event loop takes 0.23 us (compiled).
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final
from zlib import crc32

from persistence.journal import Journal
from persistence.wal import Frame
from resp.errors import CorruptError
from storage.model.records import HEAD

AT_ONCE: Final = 1 << 20  # bytes that are read at a time to compute a crc
# checksum_of_end() reads SOME bytes, then four times as many, and so on, as long as these are at most MANY batches. A
# batch takes 2 us: a megabyte of batches of 22 bytes held the event loop for 90 ms.
SOME: Final = 1 << 16
MANY: Final = 4096
NOTHING: Final = 1 << 62  # a value of ``retain`` above every log offset, so that nothing is retained
# Limits of the batches that stay in memory for continuous backups. A batch takes about OVERHEAD bytes more than its
# size. The lists are few because readers search them one by one.
KEPT_BYTES: Final = 8 << 20
KEPT_LISTS: Final = 64
OVERHEAD: Final = 200

Batches = list[tuple[int, bytes]]  # log offset, records


class GoneError(LookupError):
    """The log no longer contains the offset, or no record begins at it."""


class Backlog:
    """The base class of Log: the state for readers, and all reading methods. Offsets are log offsets."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.offset = journal.end  # total size of all records ever logged
        self.retain = NOTHING  # see Rule 3
        mutex = threading.RLock()
        self._lock = threading.Condition(mutex)
        # append() acquires the mutex directly, which is faster than through the condition
        self._enter: Callable[[], bool] = mutex.acquire
        self._leave: Callable[[], None] = mutex.release
        self._waiting: list[Frame] = []  # in the ring, not yet being written to the journal
        self._flushing: list[Frame] = []  # in the ring, before ``_waiting``: being written to the journal
        self._flushed: deque[list[Frame]] = deque()  # before ``_flushing``: in the journal, see keep_flushed()
        self._flushed_bytes = 0  # memory that they take
        self._flushed_from = NOTHING
        self._synced = journal.end  # log offset up to which everything is on disk
        self._truncating = 0  # a truncation deletes batches before this log offset; 0: no truncation is in progress
        self._last: tuple[int, int] | None = None  # log offset and checksum (checked()) of the last batch
        self._oldest = 0  # the last result of first_offset()
        self._remembered = -1, 0  # log offset and crc32 of the last batch, recorded when it left the journal

    @property
    def synced(self) -> int:
        """The log offset up to which everything is on disk."""
        return self._synced

    # -- contents -------------------------------------------------------------------------------------------
    def first_offset(self) -> int:
        """Return the offset of the oldest batch in the log. Raises OSError."""
        self._oldest = self.journal.first()
        return self._oldest

    def oldest(self) -> int:
        """Return first_offset(), or its last result if the journal cannot be read. For reports, which must not fail."""
        try:
            return self.first_offset()
        except (OSError, CorruptError):
            return self._oldest

    def holds(self, offset: int) -> bool:
        """Return whether the log contains the offset. Does not check that a record begins there. Raises OSError."""
        with self._lock:
            if offset == self.offset:
                return True
            if not self._truncating <= offset < self.offset:
                return False
            memory = self._flushing or self._waiting
            if memory and memory[0][0] <= offset:
                return True
        return self.journal.first() <= offset

    # -- reading -----------------------------------------------------------------------------------------------
    def recent(self, offset: int, limit: int) -> Batches | None:
        """Return batches in memory from ``offset`` on, about ``limit`` bytes but at least one; [] at the end of the
        log.

        Returns None if they are not in memory; the caller then calls read() in a thread. On the event loop only.
        """
        with self._lock:
            if offset == self.offset:
                return []
            found = self._memory(offset, limit)
        return found if found and found[0][0] == offset else None

    def read(self, offset: int, limit: int) -> Batches:
        """Return batches from ``offset`` on, from memory or journal. Any thread.

        Raises GoneError, CorruptError, OSError.
        """
        found = self._read(offset, limit)
        if found and found[0][0] < offset:
            at, batch = found[0]
            found[0] = offset, records_from(batch, offset - at)
        return found

    def _read(self, offset: int, limit: int) -> Batches:
        """Return batches from the one that contains ``offset`` on. Raises GoneError, CorruptError, OSError."""
        with self._lock:
            end = self.offset
            found = self._memory(offset, limit)
        if found or offset == end:
            return found
        if 0 <= offset < end:
            found = self.journal.read_some(offset, limit)
            while found and found[-1][0] >= end:  # already in the journal, although the write was reported as failed
                found.pop()
        if not found:
            raise GoneError(f"the log does not contain offset {offset}: it ranges from {self.first_offset()} to {end}")
        return found

    def _memory(self, offset: int, limit: int) -> Batches:
        """Return batches in memory from the one that contains ``offset`` on; [] if none does.

        Call with ``_lock`` held.
        """
        found: Batches = []
        for frames in (*self._flushed, self._flushing, self._waiting):
            if not frames:
                continue
            at = 0
            if not found:
                at = bisect_right(frames, offset, key=_offset) - 1
                if at < 0 or frames[at][0] + len(frames[at][1]) <= offset:
                    continue
            while at < len(frames):
                start, batch, _, _ = frames[at]
                limit -= len(batch)
                if limit < 0 and found:
                    return found
                found.append((start, batch))
                at += 1
        return found

    # -- batches that stay in memory ---------------------------------------------------------------------------
    def keep_flushed(self, offset: int) -> None:
        """Keep batches from ``offset`` on in memory after they were written to the journal, within the limits above.
        NOTHING: none. On the event loop.
        """
        with self._lock:
            self._flushed_from = offset
            self._release()

    def _keep(self, batches: list[Frame], gap: bool) -> None:
        """Keep batches that were just written to the journal, if they are needed. Call with ``_lock`` held.

        ``gap``: a batch that is too large to be kept was written after them. None are kept then: _memory() requires
        consecutive batches.
        """
        if gap:
            self._flushed.clear()
            self._flushed_bytes = 0
        elif batches and self._flushed_from != NOTHING:
            self._flushed.append(batches)
            self._flushed_bytes += _memory_of(batches)
            self._release()

    def _release(self) -> None:
        """Remove the batches that are not needed or exceed a limit. Call with ``_lock`` held."""
        flushed = self._flushed
        while flushed and (
            _end(flushed[0]) <= self._flushed_from or self._flushed_bytes > KEPT_BYTES or len(flushed) > KEPT_LISTS
        ):
            self._flushed_bytes -= _memory_of(flushed.popleft())

    # -- signatures --------------------------------------------------------------------------------------------
    def signature(self) -> tuple[int, int] | None:
        """Return start offset and crc32 of the last batch; None if unknown.

        This distinguishes logs with the same ``offset``.
        """
        with self._lock:
            last, end = self._last, self.offset
        if last is None or last[1] >= 0:
            return last
        crc, _ = self._crc(last[0], end)
        if crc is not None:
            return last[0], crc
        return self._remembered if self._remembered[0] == last[0] else None

    def remember_last(self, cut: int) -> None:
        """Remember the last batch for signature(), before the journal deletes batches up to log offset ``cut``."""
        with self._lock:
            last, end = self._last, self.offset
        if last is None or last[1] >= 0 or end > cut or self._remembered[0] == last[0]:
            return
        try:
            crc, _ = self._crc(last[0], end)
        except (OSError, CorruptError):  # it could not be read before the truncation, either
            return
        if crc is not None:
            self._remembered = last[0], crc

    def checksum_of_end(self, size: int, end: int = -1) -> tuple[int, int] | None:
        """Return start offset and crc32 of the last ``size`` bytes before ``end`` (-1: the end of the log), or of all
        if there are fewer. Many small batches are less than that (``SOME`` and ``MANY``).

        Used for logs that diverged and then continued with equal batches. Returns None if the log does not contain the
        bytes, or no record begins at ``end``. Raises CorruptError, OSError.
        """
        if end < 0:
            end = self.offset
        first = self.first_offset()
        if first >= end:
            return None
        try:
            self.read(end, 1)
        except GoneError:
            return None
        span = min(size, SOME)
        while True:
            start = max(first, end - span)
            crc, batches = self._crc(start, end)
            if crc is None:
                return None
            if span == size or start == first or 4 * batches > MANY:
                return start, crc
            span = min(size, 4 * span)

    def matches(self, start: int, end: int, crc: int) -> bool | None:
        """Return whether the bytes from ``start`` to ``end`` have this crc32; None if the log does not contain them.

        Reads all of them in the caller's thread. Raises CorruptError, OSError.
        """
        if not 0 <= start <= end <= self.offset:
            return None
        found, _ = self._crc(start, end)
        return None if found is None else found == crc

    def _crc(self, start: int, end: int) -> tuple[int | None, int]:
        """Return the crc32 of the bytes from ``start`` to ``end``, and the number of batches; None for the checksum if
        the log does not contain the bytes.

        Raises CorruptError, OSError.
        """
        at, crc, count = start, 0, 0
        while at < end:
            try:
                batches = self._read(at, min(AT_ONCE, end - at))
            except GoneError:
                return None, count
            for offset, batch in batches:
                count += 1
                crc = crc32(memoryview(batch)[max(0, at - offset) : end - offset], crc)
                at = offset + len(batch)
                if at >= end:
                    break
        return crc, count


def _offset(frame: Frame) -> int:
    return frame[0]


def _end(batches: list[Frame]) -> int:
    return batches[-1][0] + len(batches[-1][1])


def _memory_of(batches: list[Frame]) -> int:
    """Return about how many bytes of memory consecutive batches take."""
    return _end(batches) - batches[0][0] + OVERHEAD * len(batches)


def records_from(batch: bytes, start: int) -> bytes:
    """Return the records of a batch from byte ``start`` on. Raises GoneError if no record begins there."""
    at = 0
    while at < start:
        at += HEAD.size + int(HEAD.unpack_from(batch, at)[1])
    if at != start:
        raise GoneError("no record of the log begins at that offset")
    return batch[start:]
