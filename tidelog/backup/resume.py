"""Where a continuous backup continues after a restart: the end of the newest log at the target.

Rule: a chunk counts only if it is intact and follows the previous one. An interrupted write can leave a damaged last
chunk on file systems without an atomic rename. It is removed after the server has agreed to send its records again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from zlib import crc32

from tidelog.backup import logchunks, ranges
from tidelog.backup.logchunks import LogChunk
from tidelog.backup.manifest import backups, load
from tidelog.backup.source import LogPosition
from tidelog.backup.targets import BackupError, BackupTarget

MOST_DAMAGED = 3  # chunks at the end of a log that are verified


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The end of a log."""

    log: str
    position: LogPosition
    known: tuple[int, int]  # the last time and log offset, see ``logchunks``
    previous: str = ""  # name of the last chunk
    damaged: list[LogChunk] = field(default_factory=list)  # chunks after it


def resume_point(place: BackupTarget) -> ResumePoint | None:
    """Return the end of the newest log, or of the newest base backup without a log; None if there is neither.

    Raises BackupError if the target can't be listed.
    """
    logs, names = ranges.logs(place), backups(place)
    if not names:
        return None
    if logs and (logs[-1].name in names or _is_used(place, logs)):
        found = _end_of(place, logs[-1])
        if found is not None:
            return found
    if not logs or names[-1] > logs[-1].name:
        with suppress(BackupError):
            base = load(place, names[-1])
            known = ranges.ms_of(base.began), base.log_offset
            return ResumePoint(base.name, LogPosition(base.replid, base.log_offset), known)
    return None


def _is_used(place: BackupTarget, logs: list[ranges.StoredLog]) -> bool:
    """Return whether the end of the last log can follow a base backup. The one that it began with may be removed."""
    return any(each.chunks[-1:] == logs[-1].chunks[-1:] for each in ranges.ranges(place, logs))


def _end_of(place: BackupTarget, log: ranges.StoredLog) -> ResumePoint | None:
    """Return the end of the intact part of a log; None if its last chunks are damaged."""
    damaged: list[LogChunk] = []
    for chunk in reversed(log.chunks[-MOST_DAMAGED:]):
        try:
            content = logchunks.decode(chunk, place.read(chunk.file, chunk.size), chunk.file)
        except BackupError:
            damaged.append(chunk)
            continue
        last = content.groups[-1]
        position = LogPosition(chunk.replid, chunk.end, last.offset, crc32(last.payload))
        return ResumePoint(log.name, position, content.times[-1], chunk.name, damaged)
    return None
