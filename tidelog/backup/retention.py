"""Removes old backups, and the parts of logs that only they need (``--keep``).

Rule 1: files are removed only under the lock, and only if all remaining manifests are readable.
Rule 2: of a log, the chunks that end before the oldest remaining base backup of the log are removed. A log that
        follows no remaining base backup is removed if it began before the oldest of them.
Rule 3: only chunks that were listed before it was determined what is needed are removed. A continuous backup may write
        further ones in the meantime.
Rule 4: the pin of a backup is removed after its manifest. If this fails, the next backup does not try again.
Rule 5: no files are merged meanwhile. A listing could lack the first records of a log, which would then seem to follow
        no base backup.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tidelog.backup import ranges
from tidelog.backup.lock import TargetLock
from tidelog.backup.logstate import state_file
from tidelog.backup.manifest import ENDING, backups, chunk_file, load
from tidelog.backup.objectpins import unpin
from tidelog.backup.targets import BackupError, BackupTarget


def prune(place: BackupTarget, keep: int, lock: TargetLock, working: Callable[[], None] | None = None) -> int:
    """Remove all but the newest ``keep`` backups and all unused files, and return the number of backups removed.

    ``working``: called often. No other base backup may be taken in the meantime.
    """
    names = backups(place)
    gone, left = names[:-keep], names[-keep:]
    try:
        needed = {chunk_file(digest) for name in left for digest, _ in load(place, name).chunks}
    except BackupError as error:
        raise BackupError(f"the backup is complete, but nothing can be removed: {error}") from error
    pins = _pins(place, gone)
    for name in gone:
        place.remove(name + ENDING)
    place.settle()  # a manifest without its chunks must not reappear
    for history, pin in pins:
        unpin(history, pin)
    for file in place.names("chunks").keys() - needed:
        if working is not None:
            working()
        lock.confirm()
        place.remove(file)
    _prune_logs(place, left[0], lock)
    return len(gone)


def _pins(place: BackupTarget, names: list[str]) -> list[tuple[str, str]]:
    """Return prefix and file of the pins of backups."""
    found = []
    for name in names:
        with suppress(BackupError):  # a damaged manifest is removed, and its pin remains
            one = load(place, name)
            if one.pin:
                found.append((one.history, one.pin))
    return found


def _prune_logs(place: BackupTarget, oldest: str, lock: TargetLock) -> None:
    """Remove the log before the remaining backups, of which ``oldest`` is the first."""
    with lock.log_files:
        _remove_unused(place, oldest, lock)


def _remove_unused(place: BackupTarget, oldest: str, lock: TargetLock) -> None:
    listed = ranges.logs(place)
    first: dict[str, int] = {}  # log -> log offset of the first base backup that it follows
    for each in ranges.ranges(place):  # listed again, see Rule 3
        for log_name in {chunk.log for chunk in each.chunks}:
            first[log_name] = min(each.begin, first.get(log_name, each.begin))
    for log in listed:
        unused = log.name not in first and log.name < oldest
        for chunk in [*log.chunks, *log.superfluous]:
            lock.confirm()
            if unused or (log.name in first and chunk.end < first[log.name]):
                place.remove(chunk.file)
        if unused:
            place.remove(state_file(log.name))
