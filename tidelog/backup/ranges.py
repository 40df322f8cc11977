"""The ranges that can be restored from a target: its base backups, and the logs after them.

Rule 1: a log can follow a base backup if it has the replication ID of the base backup at its log offset: an ID and an
        offset identify one sequence of bytes. The base backup with which a log began has the log's name.
Rule 2: a range has no gaps. If a chunk is missing, a range ends before it, and another one begins at the next base
        backup after it, if there is one.
Rule 3: only file names, manifests, and state files are read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import zip_longest

from tidelog.backup import logstate
from tidelog.backup.logchunks import FOLDER, LogChunk
from tidelog.backup.manifest import BackupManifest, backups, load, offset_of
from tidelog.backup.overlaps import resolved
from tidelog.backup.targets import BackupError, BackupTarget


@dataclass(slots=True)
class StoredLog:
    """A log at the target."""

    name: str
    chunks: list[LogChunk]  # in order, not empty; each record is in one of them
    state: logstate.LogState | None  # None: missing
    superfluous: list[LogChunk] = field(default_factory=list)  # other chunks with the same records, see ``overlaps``
    unfollowed: dict[str, int] = field(default_factory=dict)  # base backups, and their log offsets, before ``chunks``

    @property
    def end_ms(self) -> int:
        """The latest time at which the log is known to have ended where it ends."""
        last = self.chunks[-1]
        known = self.state is not None and self.state.offset == last.end
        return max(last.last_ms, self.state.ms if self.state is not None and known else 0)

    def holes(self) -> Iterator[tuple[int, int]]:
        """Yield the log offsets between which chunks are missing; the second is -1 at the end of the log."""
        if self.unfollowed:
            yield min(self.unfollowed.values()), self.chunks[0].begin
        for one, two in zip(self.chunks, self.chunks[1:], strict=False):
            if one.end < two.begin:
                yield one.end, two.begin
        if self.state is not None and self.state.offset > self.chunks[-1].end:
            yield self.chunks[-1].end, -1


@dataclass(slots=True)
class RestorableRange:
    """A range of log offsets. Each commit group boundary in it can be restored."""

    bases: list[BackupManifest]  # not empty, with increasing log offsets
    chunks: list[LogChunk] = field(default_factory=list)  # contiguous; [] if there is only one base backup
    end_ms: int = 0  # time at its end

    @property
    def begin(self) -> int:
        return self.bases[0].log_offset

    @property
    def end(self) -> int:
        return max(self.chunks[-1].end, self.begin) if self.chunks else self.begin

    @property
    def begin_ms(self) -> int:
        return ms_of(self.bases[0].began)

    def base_for(self, offset: int) -> BackupManifest:
        """Return the newest base backup at or before a log offset of this range."""
        return [base for base in self.bases if base.log_offset <= offset][-1]

    def after(self, base: BackupManifest, offset: int) -> list[LogChunk]:
        """Return the chunks with the records from the end of a base backup up to a log offset."""
        return [chunk for chunk in self.chunks if chunk.end > base.log_offset and chunk.begin < offset]


def ms_of(moment: str) -> int:
    """Return a time of a manifest in ms since the epoch."""
    return int(datetime.fromisoformat(moment).timestamp() * 1000)


def logs(place: BackupTarget) -> list[StoredLog]:
    """Return the logs at a target, oldest first. Raises BackupError if the target can't be listed.

    If a log has a gap, the target is listed again. A merge may have moved records to another file in the meantime.
    """
    found = _logs(place)
    return _logs(place) if any([*log.holes()] for log in found) else found


def _logs(place: BackupTarget) -> list[StoredLog]:
    found: dict[str, list[LogChunk]] = defaultdict(list)
    for file, size in place.names(FOLDER).items():
        log, _, name = file.removeprefix(f"{FOLDER}/").partition("/")
        if (chunk := LogChunk.named(log, name, size)) is not None:
            found[log].append(chunk)
    made, names, bases = [], sorted(found), backups(place) if found else []
    for name, following in zip_longest(names, names[1:]):
        state = None
        with suppress(BackupError):
            state = logstate.read(place, name)
        used, superfluous = resolved(found[name])
        those = [base for base in bases if name <= base and (following is None or base < following)]
        made.append(StoredLog(name, used, state, superfluous, _unfollowed(place, name, used, those)))
    return made


def _unfollowed(place: BackupTarget, log: str, chunks: list[LogChunk], bases: list[str]) -> dict[str, int]:
    """Return which of the base backups that were taken during a log are before its first chunk, with their log offsets.

    The log must follow the one with which it began, and those with a replication ID of the log (Rule 1).
    """
    found, replids = dict[str, int](), {chunk.replid for chunk in chunks}
    for base in bases:
        if offset_of(base) < chunks[0].begin:
            with suppress(BackupError):  # of a damaged manifest
                if base == log or load(place, base).replid in replids:
                    found[base] = offset_of(base)
    return found


def chunks_of(place: BackupTarget, log: str) -> list[LogChunk]:
    """Return all chunks of one log. Raises BackupError if the target can't be listed."""
    prefix = f"{FOLDER}/{log}"
    files = place.names(prefix).items()
    chunks = (LogChunk.named(log, file.removeprefix(f"{prefix}/"), size) for file, size in files)
    return [chunk for chunk in chunks if chunk is not None]


def ranges(place: BackupTarget, stored: list[StoredLog] | None = None) -> list[RestorableRange]:
    """Return the ranges that can be restored, oldest first. Damaged manifests are skipped.

    ``stored``: the result of ``logs``, if the caller needs both to be consistent.

    Raises BackupError if the target can't be listed.
    """
    bases = []
    for name in backups(place):
        with suppress(BackupError):
            bases.append(load(place, name))
    found: list[RestorableRange] = []
    followed = set[str]()
    for log in logs(place) if stored is None else stored:
        for part in _contiguous(log.chunks):
            matching = [base for base in bases if _follows(base, log.name, part)]
            if matching:
                matching.sort(key=lambda base: base.log_offset)
                followed.update(base.name for base in matching)
                whole = part[-1] is log.chunks[-1]
                found.append(RestorableRange(matching, part, log.end_ms if whole else part[-1].last_ms))
    found += [RestorableRange([base], [], ms_of(base.began)) for base in bases if base.name not in followed]
    return sorted(found, key=lambda each: each.bases[0].name)


def _contiguous(chunks: list[LogChunk]) -> Iterator[list[LogChunk]]:
    part = [chunks[0]]
    for chunk in chunks[1:]:
        if chunk.begin > part[-1].end:
            yield part
            part = []
        part.append(chunk)
    yield part


def _follows(base: BackupManifest, log: str, chunks: list[LogChunk]) -> bool:
    """Return whether chunks without gaps continue a base backup (Rule 1)."""
    at = base.log_offset
    if base.name == log and at == chunks[0].begin:
        return True
    first = bisect_left(chunks, at, key=lambda chunk: chunk.end)  # the first that ends at or after it
    return any(chunk.begin <= at and chunk.replid == base.replid for chunk in chunks[first : first + 2])
