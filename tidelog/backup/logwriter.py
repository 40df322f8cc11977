"""Collects the log of a server, and writes it as chunks.

Rule 1: a chunk is complete when its first record has waited for ``wait`` seconds, when it has LOG_CHUNK bytes, when the
        replication ID changes, or when the clock of the server was set back.
Rule 2: a chunk is read back before the server may delete its records. The chunk remains in memory until then, so that
        it can be written again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from zlib import crc32

from tidelog.backup import logchunks
from tidelog.backup.chunks import LOG_CHUNK
from tidelog.backup.frames import BATCH, BackupFrame, LogPart
from tidelog.backup.logchunks import CLOCK_STEP, LogChunk
from tidelog.backup.source import LogPosition
from tidelog.backup.targets import BackupError, BackupTarget


class LogWriter:
    """Writes one log."""

    def __init__(self, log: str, position: LogPosition, known: tuple[int, int], previous: str = "") -> None:
        """Initialize. ``position``: the end of the log so far; ``known``: the last pair of ``times`` (see
        ``logchunks``); ``previous``: the name of the last chunk."""
        self.log = log
        self.position = position  # the end of the records that were added
        self.stored = position.offset  # log offset up to which the log is at the target
        self.known = known
        self.previous = previous
        self._replid = position.replid
        self._groups: list[BackupFrame] = []
        self._times: list[tuple[int, int]] = []
        self._size = 0
        self._since = 0.0  # monotonic seconds at which the first record arrived
        self._ready: tuple[LogChunk, bytes] | None = None  # a chunk that is being written

    @property
    def pending(self) -> bool:
        """Whether there are records that are not at the target."""
        return self._ready is not None or bool(self._groups)

    def due(self, wait: float) -> bool:
        """Return whether a chunk must be written."""
        if self._ready is not None or self._size >= LOG_CHUNK:
            return True
        return bool(self._groups) and time.monotonic() - self._since >= wait

    def must_end(self, part: LogPart, replid: str) -> bool:
        """Return whether the pending records must be written before this part can be added."""
        return self._ready is not None or (bool(self._groups) and (replid != self._replid or self._set_back(part.ms)))

    def _set_back(self, ms: int) -> bool:
        return bool(ms) and ms < self.known[0] - CLOCK_STEP

    def add(self, part: LogPart, replid: str) -> None:
        """Add a part of the log, which begins at the end of the position. ``must_end`` must be False."""
        set_back, start, at = self._set_back(part.ms), self.position.start, part.offset
        if part.groups and not self._groups:
            self._since = time.monotonic()
            self._times = [] if set_back else [self.known]
        for group in part.groups:
            self._groups.append(BackupFrame(BATCH, at, group))
            start, at = at, at + len(group)
            self._size += len(group)
        crc = crc32(part.groups[-1]) if part.groups else self.position.crc
        self.position = LogPosition(replid, at, start, crc)
        self._replid = replid
        if part.ms:
            self.known = (part.ms if set_back else max(part.ms, self.known[0])), at
            if self._groups:
                self._times.append(self.known)

    def write(self, place: BackupTarget, confirm: Callable[[], None]) -> LogChunk | None:
        """Write the pending records as a chunk, and return it; None if there are none.

        Raises BackupError; call it again then.

        ``confirm``: called after the write; raises BackupError if the target is not the one of this backup.
        """
        if self._ready is None:
            if not self._groups:
                return None
            self._ready = logchunks.encode(self.log, self._replid, self.previous, self._groups, self._times)
            self._groups, self._size = [], 0
        chunk, raw = self._ready
        place.write(chunk.file, raw)
        place.settle()
        if sha256(place.read(chunk.file, len(raw))).hexdigest() != chunk.digest:
            raise BackupError(f"{place.shown}/{chunk.file}: what was read back is not what was written")
        confirm()
        self.previous, self.stored, self._ready = chunk.name, chunk.end, None
        return chunk
