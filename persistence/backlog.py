"""The log as those see it who read it from an offset: replicas that catch up, on this server or further on.

Rule 1: a batch is first in memory (the ring has it, the journal not yet), then in the journal, and in between in both:
who has looked for it in memory in vain finds it in the journal, or it is gone.
Rule 2: batches are given whole. Only where the offset asked for lies inside of one, as it may after a promotion, its
end is given, and only if the offset is the border of a record.
Rule 3: what lies at or beyond ``retain`` stays in the journal. Who lowers it and then asks holds() may rely on the
answer, also while a cut is under way."""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import Final
from zlib import crc32

from persistence.journal import Journal
from persistence.wal import Frame
from storage.records import HEAD

NOTHING: Final = 1 << 62  # beyond every log offset

Batches = list[tuple[int, bytes]]  # log offset, records


class GoneError(LookupError):
    """The log does not hold that offset any more, or no record begins there."""


class Backlog:
    """What Log inherits: its state as far as readers need it, and all that reads it. Offsets are log offsets."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.offset = journal.end  # bytes of records ever logged
        self.retain = NOTHING  # see Rule 3
        self._lock = threading.Condition()
        self._waiting: list[Frame] = []  # in the ring, and nobody writes them into the journal now
        self._flying: list[Frame] = []  # before these: being written into the journal
        self._synced = journal.end  # log offset up to which everything is on disk
        self._cutting = 0  # the journal is just forgetting what lies before; 0: it isn't
        self._last: tuple[int, int] | None = None  # log offset and crc32 of the last batch

    @property
    def synced(self) -> int:
        """Everything before it is on disk."""
        return self._synced

    # -- what there is -----------------------------------------------------------------------------------------
    def first_offset(self) -> int:
        """Of the oldest batch that is still held. Raises OSError."""
        return self.journal.first()

    def holds(self, offset: int) -> bool:
        """Whether read() can begin there, borders of records apart. Raises OSError."""
        with self._lock:
            if offset == self.offset:
                return True
            if not self._cutting <= offset < self.offset:
                return False
            memory = self._flying or self._waiting
            if memory and memory[0][0] <= offset:
                return True
        return self.journal.first() <= offset

    # -- reading -----------------------------------------------------------------------------------------------
    def recent(self, offset: int, limit: int) -> Batches | None:
        """Batches from ``offset`` on, about ``limit`` bytes but at least one; [] at the end of the log.

        From memory only, and on the event loop only. None: read() must look, in a thread.
        """
        with self._lock:
            if offset == self.offset:
                return []
            found = self._memory(offset, limit)
        return found if found and found[0][0] == offset else None

    def read(self, offset: int, limit: int) -> Batches:
        """The same from wherever it is; any thread. Raises GoneError, CorruptError, OSError."""
        found = self._read(offset, limit)
        if found and found[0][0] < offset:
            at, batch = found[0]
            found[0] = offset, _behind(batch, offset - at)
        return found

    def _read(self, offset: int, limit: int) -> Batches:
        """From the batch on in which ``offset`` lies. Raises GoneError, CorruptError, OSError."""
        with self._lock:
            end = self.offset
            found = self._memory(offset, limit)
        if found or offset == end:
            return found
        if 0 <= offset < end:
            found = self.journal.read_some(offset, limit)
            while found and found[-1][0] >= end:  # in the journal, though it was reported that it isn't
                found.pop()
        if not found:
            raise GoneError(f"the log does not hold offset {offset}: it goes from {self.first_offset()} to {end}")
        return found

    def _memory(self, offset: int, limit: int) -> Batches:
        """Called with the lock: what memory holds from the batch on in which ``offset`` lies; else []."""
        found: Batches = []
        for frames in (self._flying, self._waiting):
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
        """Where the last batch begins, and its crc32: with ``offset`` it tells divergent logs apart. None: unknown."""
        return self._last

    def piece(self, size: int) -> tuple[int, int] | None:
        """The same of the last ``size`` bytes, as far as they are held: logs that parted may end with equal batches.

        Raises CorruptError, OSError.
        """
        start = at = max(self.first_offset(), self.offset - size)
        if at >= self.offset:
            return None
        crc = 0
        while at < self.offset:
            try:
                batches = self._read(at, size)
            except GoneError:  # a cut came between
                return None
            for offset, batch in batches:
                crc = crc32(memoryview(batch)[max(0, at - offset) :], crc)
                at = offset + len(batch)
        return start, crc

    def matches(self, start: int, end: int, crc: int) -> bool | None:
        """Whether the bytes of this log from ``start`` to ``end`` have that crc32; None if it doesn't hold them.

        It reads them all, on the caller's thread. Raises CorruptError, OSError.
        """
        if not 0 <= start <= end <= self.offset:
            return None
        at, found = start, 0
        while at < end:
            try:
                batches = self._read(at, 1 << 20)
            except GoneError:
                return None
            for offset, batch in batches:
                found = crc32(memoryview(batch)[max(0, at - offset) : end - offset], found)
                at = offset + len(batch)
                if at >= end:
                    break
        return found == crc


def _offset(frame: Frame) -> int:
    return frame[0]


def _behind(batch: bytes, border: int) -> bytes:
    """The records of a batch from a border on. Raises GoneError if no record begins there."""
    at = 0
    while at < border:
        at += HEAD.size + int(HEAD.unpack_from(batch, at)[1])
    if at != border:
        raise GoneError("no record of the log begins at that offset")
    return batch[border:]
