"""The log for readers that start at an offset: replicas that catch up with this server.

Rule 1: a batch is first in memory (in the ring, not yet in the journal), then in memory and in the journal, then in the
journal only. A reader that did not find it in memory finds it in the journal, or it is gone.
Rule 2: batches are returned whole. The only exception is an offset inside a batch, as it may be after a promotion: then
the rest of that batch is returned, provided that a record begins at the offset.
Rule 3: what lies at or after ``retain`` stays in the journal. A caller that lowers it and then calls holds() may rely
on the answer, even while a cut is running. Only a full journal keeps nothing for it (``Log.cut``): then read() raises
GoneError."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import Final
from zlib import crc32

from persistence.journal import Journal
from persistence.wal import Frame
from resp.errors import CorruptError
from storage.model.records import HEAD

AT_ONCE: Final = 1 << 20  # bytes that are read at once for a crc
NOTHING: Final = 1 << 62  # a value of ``retain`` that keeps nothing: greater than every log offset

Batches = list[tuple[int, bytes]]  # log offset, records


class GoneError(LookupError):
    """The log does not hold that offset any more, or no record begins at it."""


class Backlog:
    """The base class of Log: the state that readers need, and everything that reads it. Offsets are log offsets."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.offset = journal.end  # bytes of records ever logged
        self.retain = NOTHING  # see Rule 3
        mutex = threading.RLock()
        self._lock = threading.Condition(mutex)
        # append() takes it itself: by way of the condition it would take longer
        self._enter: Callable[[], bool] = mutex.acquire
        self._leave: Callable[[], None] = mutex.release
        self._waiting: list[Frame] = []  # in the ring, not being written to the journal now
        self._flushing: list[Frame] = []  # in the ring, before ``_waiting``: being written to the journal
        self._synced = journal.end  # log offset up to which everything is on disk
        self._cutting = 0  # a running cut deletes what lies before this log offset; 0: none is running
        self._last: tuple[int, int] | None = None  # log offset and checksum (checked()) of the last batch
        self._oldest = 0  # what first_offset() returned last
        self._remembered = -1, 0  # log offset and crc32 of the last batch when it left the journal

    @property
    def synced(self) -> int:
        """The log offset up to which everything is on disk."""
        return self._synced

    # -- what the log holds ------------------------------------------------------------------------------------
    def first_offset(self) -> int:
        """The offset of the oldest batch that the log still holds. Raises OSError."""
        self._oldest = self.journal.first()
        return self._oldest

    def oldest(self) -> int:
        """first_offset(), or as it was last where the journal can't be read now: for reports, which must not fail."""
        try:
            return self.first_offset()
        except (OSError, CorruptError):
            return self._oldest

    def holds(self, offset: int) -> bool:
        """Whether the log holds that offset; whether a record begins at it is not checked. Raises OSError."""
        with self._lock:
            if offset == self.offset:
                return True
            if not self._cutting <= offset < self.offset:
                return False
            memory = self._flushing or self._waiting
            if memory and memory[0][0] <= offset:
                return True
        return self.journal.first() <= offset

    # -- reading -----------------------------------------------------------------------------------------------
    def recent(self, offset: int, limit: int) -> Batches | None:
        """Batches in memory from ``offset`` on, about ``limit`` bytes but at least one; [] at the end of the log.

        None if memory does not hold them: then call read() in a thread. On the event loop only.
        """
        with self._lock:
            if offset == self.offset:
                return []
            found = self._memory(offset, limit)
        return found if found and found[0][0] == offset else None

    def read(self, offset: int, limit: int) -> Batches:
        """Batches from ``offset`` on, from memory or journal; any thread. Raises GoneError, CorruptError, OSError."""
        found = self._read(offset, limit)
        if found and found[0][0] < offset:
            at, batch = found[0]
            found[0] = offset, _records_from(batch, offset - at)
        return found

    def _read(self, offset: int, limit: int) -> Batches:
        """Batches from the one that contains ``offset`` on. Raises GoneError, CorruptError, OSError."""
        with self._lock:
            end = self.offset
            found = self._memory(offset, limit)
        if found or offset == end:
            return found
        if 0 <= offset < end:
            found = self.journal.read_some(offset, limit)
            while found and found[-1][0] >= end:  # written to the journal, although the write was reported as failed
                found.pop()
        if not found:
            raise GoneError(f"the log does not hold offset {offset}: it goes from {self.first_offset()} to {end}")
        return found

    def _memory(self, offset: int, limit: int) -> Batches:
        """Batches in memory from the one that contains ``offset`` on; [] if none does. Call with ``_lock`` held."""
        found: Batches = []
        for frames in (self._flushing, self._waiting):
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

    # -- signatures --------------------------------------------------------------------------------------------
    def signature(self) -> tuple[int, int] | None:
        """Start offset and crc32 of the last batch; None if unknown. With ``offset`` it tells divergent logs apart."""
        with self._lock:
            last, end = self._last, self.offset
        if last is None or last[1] >= 0:
            return last
        crc = self._crc(last[0], end)
        if crc is not None:
            return last[0], crc
        return self._remembered if self._remembered[0] == last[0] else None

    def remember_last(self, cut: int) -> None:
        """Called before what ends at or before log offset ``cut`` leaves the journal: signature() may still want the
        last batch."""
        with self._lock:
            last, end = self._last, self.offset
        if last is None or last[1] >= 0 or end > cut or self._remembered[0] == last[0]:
            return
        try:
            crc = self._crc(last[0], end)
        except (OSError, CorruptError):  # it was not to be read before, either
            return
        if crc is not None:
            self._remembered = last[0], crc

    def piece(self, size: int) -> tuple[int, int] | None:
        """Start offset and crc32 of the last ``size`` bytes, or of as many of them as the log holds.

        For logs that diverged and then went on with equal batches. Raises CorruptError, OSError.
        """
        start, end = max(self.first_offset(), self.offset - size), self.offset
        crc = self._crc(start, end) if start < end else None
        return None if crc is None else (start, crc)

    def matches(self, start: int, end: int, crc: int) -> bool | None:
        """Whether the bytes of this log from ``start`` to ``end`` have that crc32; None if it does not hold them.

        Reads them all on the caller's thread. Raises CorruptError, OSError.
        """
        if not 0 <= start <= end <= self.offset:
            return None
        found = self._crc(start, end)
        return None if found is None else found == crc

    def _crc(self, start: int, end: int) -> int | None:
        """The crc32 of the bytes from ``start`` to ``end``; None if the log does not hold them, or no longer.

        Raises CorruptError, OSError.
        """
        at, crc = start, 0
        while at < end:
            try:
                batches = self._read(at, AT_ONCE)
            except GoneError:
                return None
            for offset, batch in batches:
                crc = crc32(memoryview(batch)[max(0, at - offset) : end - offset], crc)
                at = offset + len(batch)
                if at >= end:
                    break
        return crc


def _offset(frame: Frame) -> int:
    return frame[0]


def _records_from(batch: bytes, start: int) -> bytes:
    """The records of a batch from byte ``start`` on. Raises GoneError if no record begins there."""
    at = 0
    while at < start:
        at += HEAD.size + int(HEAD.unpack_from(batch, at)[1])
    if at != start:
        raise GoneError("no record of the log begins at that offset")
    return batch[start:]
