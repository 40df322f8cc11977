"""Merges the small files of a log, so that their number does not grow with each --lag interval.

A continuous backup writes a chunk at least every --lag seconds, which are 17,000 per day. Once a window of time is
over, its chunks are merged into chunks of up to LOG_CHUNK bytes: first those of five minutes, then of an hour, then of
a day. With --lag 5, a log has about 60 + 12 + 24 small chunks, and one more per day and 4 MB. Each record is written
three more times at most, and large chunks are not written again.

    read and verify the chunks -> write the merged one -> read it back -> remove the others

Rule 1: a merged chunk is an ordinary one. It has all commit groups and times of the chunks in it, so that the same
        points can be restored.
Rule 2: chunks are removed only after the merged one was read back. While all of them exist, they are used, and not the
        merged one, which may be incomplete on a target without atomic writes (``overlaps``).
Rule 3: after an interruption, a merge is completed if the merged chunk is intact, and undone if it is not. A process
        that lost its lock may still be removing the parts of an intact one, but not of any other.
Rule 4: the windows are those of the log's own times. The newest chunk is never merged, and a clock is not read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Final

from tidelog.backup import logchunks, ranges
from tidelog.backup.chunks import LOG_CHUNK
from tidelog.backup.lock import LockLostError, TargetLock
from tidelog.backup.logchunks import LogChunk
from tidelog.backup.overlaps import resolved
from tidelog.backup.targets import BackupError, BackupTarget

MOST_FAILURES: Final = 5  # of groups, until the others are not tried
LEVELS: Final = (300_000, 3_600_000, 86_400_000)  # ms: the lengths of the windows


class LogMerger:
    """Merges the chunks of one log. ``add`` may be called by another thread."""

    def __init__(self, place: BackupTarget, log: str, lock: TargetLock, stopping: Callable[[], bool]) -> None:
        """Initialize. ``stopping``: whether to leave a merge unfinished."""
        self.log = log
        self._place = place
        self._lock = lock
        self._stopping = stopping
        self._added: deque[LogChunk] = deque()
        self._chunks: list[LogChunk] | None = None  # those that can still be merged; None: not listed

    def add(self, chunk: LogChunk) -> None:
        """Note a chunk that was written."""
        self._added.append(chunk)

    def merge(self) -> None:
        """Merge what can be merged. Raises BackupError; the next call lists the log again then.

        A group with a damaged file is skipped, and the error is raised at the end.
        """
        try:
            try:
                self._merge()
            except BackupError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                self._chunks = None  # --keep has removed files since they were listed
                self._merge()
        except BaseException:
            self._chunks = None
            raise

    def _merge(self) -> None:
        if self._chunks is None:
            self._chunks = self._listed()
        known = {chunk.name for chunk in self._chunks}
        while self._added:
            chunk = self._added.popleft()
            if chunk.name not in known:
                self._chunks.append(chunk)
        chunks = self._chunks
        if not chunks:
            return
        now, failures = chunks[-1].last_ms, list[BackupError]()
        for group in mergeable(chunks, now):
            if self._stopping():
                return
            try:
                with self._lock.log_files:
                    merged = self._merged(group)
            except LockLostError:
                raise
            except BackupError as error:
                failures.append(error)
                if len(failures) == MOST_FAILURES:  # such as a target that is unavailable
                    break
                continue
            at = chunks.index(group[0])
            chunks[at : at + len(group)] = [merged]
        if failures:
            raise failures[0]
        self._chunks = [chunk for chunk in chunks if window(chunk, now) != _day(chunk)]

    def _listed(self) -> list[LogChunk]:
        """List the chunks of the log, and complete or undo an interrupted merge."""
        while True:
            found = ranges.chunks_of(self._place, self.log)
            used, superfluous = resolved(found)
            if not superfluous or self._stopping():
                return used
            with self._lock.log_files:
                self._repair(used, superfluous[0])

    def _repair(self, used: list[LogChunk], other: LogChunk) -> None:
        inside = [chunk for chunk in used if other.begin <= chunk.begin and chunk.end <= other.end]
        if inside:  # ``other`` is a merged chunk whose parts all exist
            self._remove(inside if self._intact(other) else [other])
            return
        merged = next(chunk for chunk in used if chunk.begin <= other.begin and other.end <= chunk.end)
        if not self._intact(merged):
            raise BackupError(f"{self._place.shown}/{merged.file} is damaged: files of the log can't be merged")
        self._remove([other])

    def _intact(self, chunk: LogChunk) -> bool:
        """Return whether a chunk has the content that its name states. Raises BackupError if it can't be read."""
        return sha256(self._place.read(chunk.file, max(chunk.size, 1))).hexdigest() == chunk.digest

    def _merged(self, group: list[LogChunk]) -> LogChunk:
        """Replace chunks with a merged one. Raises BackupError if one of them is damaged or missing."""
        place = self._place
        contents = [logchunks.decode(c, place.read(c.file, c.size), f"{place.shown}/{c.file}") for c in group]
        times = list[tuple[int, int]]()
        for content in contents:
            times += content.times[1:] if times[-1:] == content.times[:1] else content.times
        groups = [each for content in contents for each in content.groups]
        merged, raw = logchunks.encode(self.log, group[0].replid, contents[0].previous, groups, times)
        self._lock.confirm()
        place.write(merged.file, raw)
        place.settle()
        if not self._intact(merged):
            raise BackupError(f"{place.shown}/{merged.file}: what was read back is not what was written")
        self._lock.check()
        self._remove(group)
        return merged

    def _remove(self, chunks: list[LogChunk]) -> None:
        for chunk in chunks:
            self._lock.confirm()
            self._place.remove(chunk.file)


def mergeable(chunks: list[LogChunk], now: int) -> Iterator[list[LogChunk]]:
    """Yield the groups of consecutive chunks that are merged when the newest time in the log is ``now`` (ms)."""
    group: list[LogChunk] = []
    size = 0
    for chunk in [*chunks]:
        if group and (not _joins(group[-1], chunk, now) or size + chunk.size > LOG_CHUNK):
            if len(group) > 1:
                yield group
            group, size = [], 0
        if window(chunk, now) is not None:
            group.append(chunk)
            size += chunk.size
    if len(group) > 1:
        yield group


def _joins(one: LogChunk, two: LogChunk, now: int) -> bool:
    """Return whether two chunks can be in one: no gap, one history, no clock that was set back, one window."""
    return (
        (one.end, one.replid) == (two.begin, two.replid)
        and one.last_ms <= two.first_ms
        and window(one, now) == window(two, now)
    )


def window(chunk: LogChunk, now: int) -> tuple[int, int] | None:
    """Return the longest window of a chunk that is over: its length and number; None if none is over."""
    over = [(length, chunk.last_ms // length) for length in LEVELS if (chunk.last_ms // length + 1) * length <= now]
    return over[-1] if over else None


def _day(chunk: LogChunk) -> tuple[int, int]:
    return LEVELS[-1], chunk.last_ms // LEVELS[-1]
