"""Annexes of the WAL: segments that the frames of large batches go to, so that the journal need not copy them.

    ring     | frame | frame |               small batches, and all of them under ``always``
    annex    | frame ....... | frame ...|    a segment that the journal has lent; else as in the ring (see ``wal``)

The journal then only names what is there. A start follows the log offsets of the frames through ring and annexes.

Rule 1: before the first byte is written to it, LMDB says that a segment is lent, until the journal has all its frames.
Rule 2: the event loop writes; the journal's thread lends, takes back and closes; any thread syncs.
Rule 3: an annex whose sync has failed once is not believed again. Its frames are still in memory: the journal writes
those instead.
Rule 4: annexes never wait for anybody. While none is ready, batches go to the ring."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable
from typing import Final

from persistence.segments import FULL
from persistence.wal import FRAME, blocks

LEAST: Final = 8 << 10  # bytes of a batch; a smaller one goes to the ring
MOST: Final = 8 << 20
MUCH: Final = 256 << 10  # bytes of such batches in one flush of the journal: then it lends segments
READY: Final = 4  # segments that are lent before they are needed


class Annex:
    """One of them, open."""

    __slots__ = ("at", "end", "failed", "fd", "number", "synced")

    def __init__(self, number: int, fd: int) -> None:
        self.number = number  # of the segment
        self.fd = fd
        self.at = 0  # where the next frame begins
        self.synced = 0  # up to where it is on disk
        self.end = 0  # log offset after the last frame
        self.failed = False  # see Rule 3


class Annexes:
    """Those of one log."""

    def __init__(self) -> None:
        self._ready: list[Annex] = []  # lent, nothing written yet
        self._begun: list[Annex] = []
        self._current: Annex | None = None  # the one that is written, also in ``_begun``
        self._syncing = threading.Lock()  # held while files are synced or closed

    # -- on the event loop, with the log's lock held -----------------------------------------------------------
    def room(self, size: int) -> Annex | None:
        """Where a batch of so many bytes goes; None: to the ring."""
        if size > MOST:
            return None
        annex = self._current
        if annex is None or annex.at >= FULL or annex.failed:
            if not self._ready:
                self._current = None
                return None
            annex = self._current = self._ready.pop(0)
            self._begun.append(annex)
        return annex

    def wrote(self, annex: Annex, size: int, end: int) -> int:
        """A frame of ``size`` bytes of records, which end at log offset ``end``, was written. Returns its place."""
        place = ~(annex.number << 32 | annex.at)
        annex.end = end
        annex.at += blocks(FRAME.size + size)
        return place

    def leave(self, annex: Annex) -> None:
        """It takes no more."""
        if self._current is annex:
            self._current = None

    # -- on any thread -----------------------------------------------------------------------------------------
    def sync(self, journal_end: int) -> None:
        """Sync all that was written. Raises OSError if an annex has failed, or does so now, all of whose frames the
        journal did not have when it ended at that log offset."""
        with self._syncing:
            failed = [annex for annex in list(self._begun) if not _is_synced(annex) and annex.end > journal_end]
        if failed:
            raise OSError(errno.EIO, f"a segment can't be synced ({failed[0].number})")

    # -- on the journal's thread -------------------------------------------------------------------------------
    def synced(self, numbers: set[int]) -> set[int]:
        """Those of the annexes whose frames are on disk when this returns."""
        with self._syncing:
            return {annex.number for annex in list(self._begun) if annex.number in numbers and _is_synced(annex)}

    def wanted(self) -> int:
        """How many more should be lent, if large batches keep coming."""
        ready = len(self._ready)
        return READY - ready if ready <= READY // 2 else 0

    def done(self, end: int, idle: bool) -> dict[int, int]:
        """Those that can be taken back when the journal has everything before log offset ``end``, and the log offset
        after what each one holds; 0: nothing. ``idle``: also those that could still be written. Call with the log's
        lock held."""
        current = self._current
        if current is not None and current.end <= end and (idle or current.failed):
            self._current = None
        if idle:
            self._begun += self._ready
            self._ready = []
        return {annex.number: annex.end for annex in self._begun if annex is not self._current and annex.end <= end}

    def lend(self, annex: Annex) -> None:
        self._ready.append(annex)

    def close(self, numbers: Iterable[int]) -> None:
        """They were taken back."""
        gone = set(numbers)
        with self._syncing:
            for annex in list(self._begun):
                if annex.number in gone:
                    self._begun.remove(annex)
                    os.close(annex.fd)

    def close_all(self) -> None:
        """The log is closed: nothing is written any more."""
        with self._syncing:
            for annex in self._begun + self._ready:
                os.close(annex.fd)
            self._begun, self._ready, self._current = [], [], None


def _is_synced(annex: Annex) -> bool:
    """Sync an annex if that is to be done; False if it has failed."""
    at = annex.at
    if not annex.failed and annex.synced < at:
        try:
            os.fdatasync(annex.fd)
        except OSError:
            annex.failed = True
        else:
            annex.synced = at
    return not annex.failed
