"""Creates a backup: a full copy of a server, and its log up to the end of the log at the start of the backup.

Rule 1: memory is bounded. One chunk is built at a time; ``source`` limits the buffered frames.
Rule 2: every new chunk is read back before the manifest is written. Of an existing chunk, only the size is compared.
        ``tidelog verify`` reads existing chunks, too.
Rule 3: the log of the backup ends with the commit group that ended the server's log at the start of the backup.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

import tidelog
from tidelog.backup.chunks import LogCutter, StoreCutter
from tidelog.backup.frames import BATCH, COPY, DONE, ONE, PIECE, TWO, BackupFrame, LogPart
from tidelog.backup.lock import TargetLock
from tidelog.backup.manifest import ENDING, BackupManifest, Chunk, chunk_file
from tidelog.backup.objectpins import NEEDED, pin, pin_name
from tidelog.backup.retention import prune
from tidelog.backup.source import BackupSource
from tidelog.backup.targets import BackupError, BackupTarget
from tidelog.operating.tables import counted
from tidelog.transport.access import without_credentials

#: Called often with the current activity, the bytes done so far, and the estimated total.
Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class BackupResult:
    """The cost of a backup."""

    manifest: BackupManifest
    new_bytes: int  # written by this backup
    removed: int  # old backups


def take(
    url: str, place: BackupTarget, keep: int | None, report: Report, say: Callable[[str], None] | None = None,
    history: str = "",
) -> BackupResult:  # fmt: skip
    """Create a verified backup at ``place``, and then remove all but the newest ``keep``.

    ``history``: the prefix of the history objects to which the backup may refer; "": it has their entries.
    ``say``: called with a line if another writer's lock delays the backup. Raises BackupError, or redis.RedisError if
    the server is unreachable or refuses. There is no new backup then.
    """
    with TargetLock(place, say) as lock:
        began = datetime.now(UTC)
        with closing(BackupSource(url, whole=not history)) as source:
            manifest, new_bytes = take_base(source, url, began, place, lock, report, history)
        removed = prune(place, keep, lock) if keep else 0
    return BackupResult(manifest, new_bytes, removed)


def take_base(
    source: BackupSource, url: str, began: datetime, place: BackupTarget, lock: TargetLock, report: Report,
    history: str = "",
) -> tuple[BackupManifest, int]:  # fmt: skip
    """Copy a server from a source that has just begun a full copy. Return the manifest and the number of bytes written.

    ``began``: the time before the source was opened. Raises BackupError; there is no new backup then.
    """
    def reporting(what: str, done: int, total: int) -> None:
        source.working()
        report(what, done, total)

    shelf = _Shelf(place, lock)
    copied = _copy(source, shelf, report)
    if copied.objects and not history:
        raise BackupError(NEEDED.format(counted(len(copied.objects), "object")))
    shelf.read_back(reporting)  # can take longer than a server waits for a sign of life
    name = f"{_compact(began)}-{copied.log_offset}"
    pinned = pin_name(place, name) if copied.objects else ""
    manifest = BackupManifest(
        name=name,
        began=_precise(began),
        ended=_precise(datetime.now(UTC)),
        tool=tidelog.__version__,
        server=without_credentials(url).removeprefix("redis://"),
        version=source.facts.version,
        role=source.facts.role,
        replid=source.replid,
        store_offset=source.store_offset,
        log_offset=copied.log_offset,
        store_entries=copied.store_entries,
        keys=source.facts.keys,
        entries=source.facts.entries,
        store=tuple(copied.store),
        log=tuple(copied.log),
        history=history if pinned else "",
        pin=pinned,
    )
    lock.check()
    if pinned:
        pin(history, pinned, f"backup {place.shown}/{name}", copied.objects)
    _complete(place, manifest)
    return manifest, sum(shelf.new.values())


def _compact(when: datetime) -> str:
    return f"{when:%Y%m%dT%H%M%S}.{when.microsecond // 1000:03}Z"


def _precise(when: datetime) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03}Z"


class _Shelf:
    def __init__(self, place: BackupTarget, lock: TargetLock) -> None:
        self.new: dict[str, int] = {}  # files that were written, and their sizes
        self._there = place.names("chunks")
        self._place = place
        self._lock = lock

    def put(self, chunk: bytes) -> Chunk:
        """Write a chunk unless it exists."""
        self._lock.confirm()
        digest = sha256(chunk).hexdigest()
        file = chunk_file(digest)
        if self._there.get(file) != len(chunk):
            self._place.write(file, chunk)
            self._there[file] = self.new[file] = len(chunk)
        return digest, len(chunk)

    def read_back(self, report: Report) -> None:
        """Compare the written files with their names. Raises BackupError if one differs."""
        self._place.settle()
        done, total = 0, sum(self.new.values())
        for file, size in self.new.items():
            self._lock.confirm()
            report("verifying", done, total)
            if sha256(self._place.read(file, size)).hexdigest() != file.rpartition("/")[2]:
                raise BackupError(f"{self._place.shown}/{file}: what was read back is not what was written")
            done += size


@dataclass(frozen=True, slots=True)
class _Copied:
    store: list[Chunk]
    log: list[Chunk]
    store_entries: int
    log_offset: int
    objects: set[str]  # names of the history objects to which the store refers


def _copy(source: BackupSource, shelf: _Shelf, report: Report) -> _Copied:
    """Write the chunks of the store and of the log up to its end at the start of the backup."""
    target = source.facts.log_offset
    entries, total = _expected(source, COPY).numbers(TWO)
    total += max(0, target - source.store_offset)
    done = 0
    store: list[Chunk] = []
    cutter = StoreCutter()
    while (frame := source.take()).kind == PIECE:
        done += len(frame.payload)
        store += map(shelf.put, cutter.add(frame.payload))
        report("copying", done, max(done, total))
    store += map(shelf.put, cutter.end())
    if frame.kind != DONE or frame.numbers(ONE) != (cutter.entries,) or entries != cutter.entries:
        raise BackupError(f"the copy is incomplete: {cutter.entries} entries of {entries}")
    at = source.store_offset
    log: list[Chunk] = []
    batches = LogCutter()
    while at < target:
        part = source.take_log(at)
        assert part is not None  # noqa: S101 - without a limit, it waits
        taken = 0
        for group in part.groups:
            if at >= target:
                break
            log += map(shelf.put, batches.add(BackupFrame(BATCH, at, group)))
            at += len(group)
            done += len(group)
            taken += 1
        if part.groups[taken:]:
            source.put_back(LogPart(at, part.groups[taken:], part.ms))
        report("copying", done, max(done, total))
    log += map(shelf.put, batches.end())
    return _Copied(store, log, cutter.entries, at, cutter.objects)


def _expected(source: BackupSource, kind: int) -> BackupFrame:
    frame = source.take()
    if (frame.kind, frame.offset) != (kind, source.store_offset):
        raise BackupError(f"the server sent {chr(frame.kind)} where a full copy should begin")
    return frame


def _complete(place: BackupTarget, manifest: BackupManifest) -> None:
    """Write the manifest, which completes the backup."""
    raw = manifest.dumped()
    file = manifest.name + ENDING
    place.write(file, raw)
    place.settle()
    if place.read(file, len(raw)) != raw:
        place.remove(file)
        raise BackupError(f"{place.shown}/{file}: what was read back is not what was written")

