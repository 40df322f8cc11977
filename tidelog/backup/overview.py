"""What a target contains, for ``tidelog backups``: the backups, the ranges, and how far a continuous backup is behind.

Rule: only file names, manifests, the lock, and the state file are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidelog.backup import lock, ranges
from tidelog.backup.lock import LockContent
from tidelog.backup.manifest import BackupManifest, backups, load
from tidelog.backup.ranges import RestorableRange
from tidelog.backup.targets import BackupError, BackupTarget


@dataclass(frozen=True, slots=True)
class TargetOverview:
    """The content of a target at a time."""

    bases: list[tuple[BackupManifest, int]]  # with the bytes of the files that earlier ones also use; oldest first
    damaged: list[tuple[str, str]]  # names of other backups, and why their manifests can't be used
    ranges: list[RestorableRange]
    writer: LockContent | None  # the process that writes to the target
    now: float  # Unix seconds

    @property
    def age(self) -> float:
        """Seconds since the target was up to date: as of the last message of a continuous backup, else as of the newest
        state that can be restored.
        """
        if self.writer is not None and self.writer.behind is not None:
            return max(0.0, self.now - self.writer.seen) + self.writer.behind
        newest = max((each.end_ms for each in self.ranges), default=0)
        return max(0.0, self.now - newest / 1000)

    def data(self) -> dict[str, Any]:
        """Return the content as JSON data. Times are ms since the epoch, sizes are bytes."""
        return {
            "backups": [
                {
                    "name": base.name, "began_ms": ranges.ms_of(base.began), "size": base.size, "shared": shared,
                    "keys": base.keys, "entries": base.entries, "server": base.server, "role": base.role,
                    "log_offset": base.log_offset, "replid": base.replid,
                }
                for base, shared in self.bases
            ],
            "damaged": dict(self.damaged),
            "ranges": [
                {
                    "begin": each.begin, "end": each.end, "begin_ms": each.begin_ms, "end_ms": each.end_ms,
                    "backups": [base.name for base in each.bases], "log_files": len(each.chunks),
                    "log_size": sum(chunk.size for chunk in each.chunks),
                }
                for each in self.ranges
            ],
            "writer": None if self.writer is None else {
                "host": self.writer.host, "pid": self.writer.pid, "began_ms": self.writer.began * 1000,
                "seen_ms": self.writer.seen * 1000, "continuous": self.writer.continuous,
                "behind_ms": None if self.writer.behind is None else int(self.writer.behind * 1000),
            },
            "age_ms": int(self.age * 1000),
        }  # fmt: skip


def overview(place: BackupTarget, report: Callable[[str, int, int], None]) -> TargetOverview:
    """Read a target. ``report``: called with "backups", the number that was read, and their total.

    Raises BackupError if there is no backup, or the target can't be listed.
    """
    names = backups(place)
    if not names:
        raise BackupError(f"there is no backup at {place.shown}")
    bases, damaged, known = list[tuple[BackupManifest, int]](), list[tuple[str, str]](), set[str]()
    for number, name in enumerate(names):
        report("backups", number, len(names))
        try:
            base = load(place, name)
        except BackupError as error:
            damaged.append((name, str(error)))
            continue
        bases.append((base, sum(size for digest, size in base.chunks if digest in known)))
        known.update(digest for digest, _ in base.chunks)
    return TargetOverview(bases, damaged, ranges.ranges(place), lock.writer(place), time.time())
