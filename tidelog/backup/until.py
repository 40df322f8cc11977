"""Finds the point to restore: ``tidelog restore TARGET DIR --until TIME|OFFSET|"before FLUSHALL"``.

Rule 1: a restore ends after a whole commit group, which has the writes of one tick of the server. A transaction is
        therefore restored completely or not at all.
Rule 2: nothing is guessed. A point that no range contains is an error that names the ranges. If the clock of the server
        was set back, so that a time occurred twice, the error names the log offsets between which the user must choose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from struct import Struct

from tidelog.backup import ranges
from tidelog.backup.chunkreads import read_log_chunk
from tidelog.backup.logchunks import LogChunk
from tidelog.backup.manifest import BackupManifest
from tidelog.backup.ranges import RestorableRange, StoredLog
from tidelog.backup.targets import BackupError, BackupTarget
from tidelog.operating.tables import utc

RECORD = Struct(">BI")  # the head of a record in the log: its operation, and the size of its body
FLUSH = 7  # the operation of FLUSHALL and FLUSHDB
BEFORE = re.compile(r"before\s+(\S+)", re.IGNORECASE)
FLUSHES = ("FLUSHALL", "FLUSHDB")
GAP = 3000  # ms between two known times from which the user is informed that the log between them has no times
MOST_SHOWN = 10  # ranges in an error message

Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """A base backup, and the log after it up to an offset."""

    base: BackupManifest
    offset: int
    chunks: list[LogChunk] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # for the user


def latest(place: BackupTarget) -> RestorePoint:
    """Return the newest point of a target. Raises BackupError if the log at its end has a gap."""
    stored = ranges.logs(place)  # once: it grows while a backup is running
    found = ranges.ranges(place, stored)
    if not found:
        raise BackupError(f"there is no backup at {place.shown}")
    newest = max(found, key=lambda each: each.end_ms)
    last = max(stored, key=lambda log: log.end_ms, default=None)
    if last is not None and last.end_ms >= newest.end_ms:
        reached = newest.chunks[-1:] == last.chunks[-1:]
        if not reached or any(end < 0 for _, end in last.holes()):
            raise BackupError(f"{_missing(place, [last])}; {_restorable([newest])}: choose a point with --until")
    return _point(newest, newest.end)


def resolve(place: BackupTarget, text: str, base: BackupManifest | None, report: Report) -> RestorePoint:
    """Return the point that a user means with ``--until``. ``base``: only the range that begins with or contains this
    base backup, which is then used. Raises BackupError.
    """
    found = ranges.ranges(place)
    if not found:
        raise BackupError(f"there is no backup at {place.shown}")
    if base is not None:
        found = [_from(each, base) for each in found if any(one.name == base.name for one in each.bases)]
    wanted = text.strip()
    before = BEFORE.fullmatch(wanted)
    if before is not None:
        if before[1].upper() not in FLUSHES:
            raise BackupError(f'--until {text!r}: only "before FLUSHALL" and "before FLUSHDB" are supported')
        return _before_flush(place, found, report)
    if wanted.replace(",", "").isdecimal():
        return _at_offset(place, found, int(wanted.replace(",", "")))
    return _at_time(place, found, _parsed(text))


def log_after(place: BackupTarget, base: BackupManifest | None) -> list[LogChunk]:
    """Return the chunks of the log that follow a base backup; without one, those of all logs.

    Raises BackupError if a chunk is missing.
    """
    stored = ranges.logs(place)
    found = ranges.ranges(place, stored)
    if base is None:
        chunks = [chunk for log in stored for chunk in log.chunks]
    else:
        chunks = [c for r in found if base.name in {b.name for b in r.bases} for c in r.after(base, r.end)]
        names = {chunk.log for chunk in chunks}
        stored = [
            log for log in stored
            if base.name in log.unfollowed
            or (log.name in names and any(begin >= chunks[-1].end for begin, _ in log.holes()))
        ]  # fmt: skip
    gaps = [log for log in stored if [*log.holes()]]
    if gaps:
        raise BackupError(f"{_missing(place, gaps)}; {_restorable(found)}")
    return chunks


def _from(each: RestorableRange, base: BackupManifest) -> RestorableRange:
    return RestorableRange([base], each.chunks, each.end_ms)


def _parsed(text: str) -> int:
    """Return an ISO 8601 time in ms since the epoch."""
    try:
        moment = datetime.fromisoformat(text.strip().removesuffix(" UTC"))
    except ValueError:
        raise BackupError(
            f'--until {text!r} is not a time such as 2026-11-27T09:30:00Z, a log offset, or "before FLUSHALL"'
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _point(each: RestorableRange, offset: int, *notes: str) -> RestorePoint:
    base = each.base_for(offset)
    return RestorePoint(base, offset, each.after(base, offset), [*notes])


# -- by log offset -----------------------------------------------------------------------------------------------
def _at_offset(place: BackupTarget, found: list[RestorableRange], offset: int) -> RestorePoint:
    inside = [each for each in found if each.begin <= offset <= each.end]
    if not inside:
        raise _outside(place, found, f"log offset {offset:,}")
    newest, notes = inside[-1], []
    if len(inside) > 1:
        notes.append(
            f"{len(inside)} histories have this log offset: the newest is restored; name a backup (TARGET/NAME) for"
            " another"
        )
    for chunk in newest.chunks:
        if chunk.begin < offset < chunk.end:
            boundary = max(read_log_chunk(place, chunk).boundary(offset), newest.begin)
            if boundary != offset:
                notes.append(f"log offset {offset:,} is inside of a commit group, which is not divided")
            return _point(newest, boundary, *notes)
    return _point(newest, offset, *notes)


# -- by time -----------------------------------------------------------------------------------------------------
def _at_time(place: BackupTarget, found: list[RestorableRange], ms: int) -> RestorePoint:
    points = [point for each in found if (point := _in_range(place, each, ms)) is not None]
    if not points:
        raise _outside(place, found, utc(ms))
    if len(points) > 1:  # ranges of histories that were written at the same time, such as before and after a failover
        points[-1].notes.append(f"{len(points)} ranges contain this time: the newest is restored")
    return points[-1]


def _in_range(place: BackupTarget, each: RestorableRange, ms: int) -> RestorePoint | None:
    """Return the point of a range at a time; None if the range does not contain the time."""
    if ms < each.begin_ms:
        return None
    if not each.chunks:
        return _point(each, each.begin) if ms == each.begin_ms else None
    pairs: list[tuple[int, int]] = [(each.begin_ms, each.begin)]
    for chunk in each.chunks:  # two pairs per chunk; all pairs of those in which the time may be
        if chunk.end <= each.begin:
            continue
        if chunk.first_ms <= ms < chunk.last_ms:
            times = [pair for pair in read_log_chunk(place, chunk).times if pair[1] >= each.begin]
            pairs += times
        else:
            if pairs[-1] != (chunk.first_ms, chunk.begin):
                pairs.append((chunk.first_ms, max(chunk.begin, each.begin)))
            pairs.append((chunk.last_ms, chunk.end))
    pairs.append((each.end_ms, each.end))
    offsets = [(one, two) for one, two in pairwise(pairs) if one[0] <= ms < two[0]]
    if not offsets and ms == each.end_ms:
        return _point(each, each.end)
    if not offsets:
        return None
    if len({one[1] for one, _ in offsets}) > 1:
        choices = " and ".join(f"{one[1]:,}" for one, _ in offsets)
        raise BackupError(
            f"the clock of the server was set back and showed {utc(ms)} more than once, at log offsets {choices}:"
            " restore one of these with --until OFFSET"
        )
    one, two = offsets[0]
    notes = []
    if two[0] - one[0] > GAP and two[1] > one[1]:
        notes.append(
            f"the times of log offsets {one[1]:,} to {two[1]:,} are known only to be from {utc(one[0])} to"
            f" {utc(two[0])}: none of it is restored"
        )
    return _point(each, one[1], *notes)


# -- before a command --------------------------------------------------------------------------------------------
def _before_flush(place: BackupTarget, found: list[RestorableRange], report: Report) -> RestorePoint:
    done, total = 0, sum(chunk.size for each in found for chunk in each.chunks)
    for each in reversed(found):
        for chunk in reversed(each.chunks):
            if chunk.end <= each.begin:
                break
            report("searching", done, total)
            for group in reversed(read_log_chunk(place, chunk).groups):
                if group.offset >= each.begin and FLUSH in _operations(group.payload):
                    return _point(each, group.offset)
            done += chunk.size
    raise BackupError(f"there is no FLUSHALL or FLUSHDB in the log; {_restorable(found)}")


def _operations(records: bytes) -> Iterator[int]:
    at = 0
    while at + RECORD.size <= len(records):
        operation, size = RECORD.unpack_from(records, at)
        yield operation
        at += RECORD.size + size


# -- messages ----------------------------------------------------------------------------------------------------
def _outside(place: BackupTarget, found: list[RestorableRange], what: str) -> BackupError:
    gaps = [log for log in ranges.logs(place) if [*log.holes()]]
    missing = f"{_missing(place, gaps)}; " if gaps else ""
    return BackupError(f"{what} can't be restored: {missing}{_restorable(found)}")


def _restorable(found: list[RestorableRange]) -> str:
    """Return the ranges as text."""
    shown = [
        f"log offsets {each.begin:,} to {each.end:,} ({utc(each.begin_ms)} to {utc(each.end_ms)})"
        if each.end > each.begin
        else f"log offset {each.begin:,} ({utc(each.begin_ms)})"
        for each in found[-MOST_SHOWN:]
    ]
    more = " the newest ranges are" if len(found) > MOST_SHOWN else ""
    return f"restorable:{more} {', '.join(shown)}"


def _missing(place: BackupTarget, gaps: list[StoredLog]) -> str:
    """Name the missing files of logs with gaps."""
    names = []
    for log in gaps:
        for begin, end in log.holes():
            name = ""
            if end < 0 and log.state is not None:
                name = log.state.last
            else:
                after = next(chunk for chunk in log.chunks if chunk.begin == end)
                name = read_log_chunk(place, after).previous
            names.append(f"{place.shown}/logs/{log.name}/{name} is missing (the log from offset {begin:,} on)")
    return ", ".join(names[:MOST_SHOWN])
