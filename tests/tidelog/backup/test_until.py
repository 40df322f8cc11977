"""Which point ``--until`` means: log offsets, times, clocks that were set back, and gaps. No servers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.model import records
from tests.tidelog.backup.test_manifest import MADE
from tidelog.backup import logchunks, logstate, manifest, ranges, until
from tidelog.backup.frames import LogPart
from tidelog.backup.lock import TargetLock
from tidelog.backup.logstate import LogState
from tidelog.backup.logwriter import LogWriter
from tidelog.backup.manifest import ENDING, BackupManifest
from tidelog.backup.retention import prune
from tidelog.backup.source import LogPosition
from tidelog.backup.targets import BackupError, LocalTarget
from tidelog.backup.until import RestorePoint

ID, OTHER = "a" * 40, "b" * 40
BEGAN = 1_795_700_000_000  # ms
SET = records.set_string(b"k", b"v", 0)


@pytest.fixture
def place(tmp_path: Path) -> LocalTarget:
    return LocalTarget(tmp_path / "target")


def base(place: LocalTarget, ms: int = BEGAN, offset: int = 1000, replid: str = ID) -> BackupManifest:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    name = f"{moment:%Y%m%dT%H%M%S}.{ms % 1000:03}Z-{offset}"
    began = f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03}Z"
    made = replace(MADE, name=name, began=began, log_offset=offset, store_offset=offset, replid=replid, log=())
    place.write(name + ENDING, made.dumped())
    return made


def writer(manifest: BackupManifest) -> LogWriter:
    position = LogPosition(manifest.replid, manifest.log_offset)
    return LogWriter(manifest.name, position, (ranges.ms_of(manifest.began), manifest.log_offset))


def add(log: LogWriter, place: LocalTarget, *parts: tuple[int, Sequence[bytes]], replid: str = ID) -> None:
    """Add parts, each with ms after BEGAN (-1: unknown), and write them as a chunk."""
    for after, groups in parts:
        part = LogPart(log.position.offset, list(groups), BEGAN + after if after >= 0 else 0)
        if log.must_end(part, replid):
            log.write(place, lambda: None)
        log.add(part, replid)
    log.write(place, lambda: None)


def at(place: LocalTarget, text: object, named: BackupManifest | None = None) -> RestorePoint:
    return until.resolve(place, str(text), named, lambda *_: None)


def time_after(ms: int) -> str:
    return datetime.fromtimestamp((BEGAN + ms) / 1000, UTC).isoformat()


def test_offsets(place: LocalTarget) -> None:
    made = base(place)
    log = writer(made)
    add(log, place, (500, [b"x" * 10, b"y" * 20]))
    add(log, place, (900, [b"z" * 10]))
    for offset, found, chunks in ((1000, 1000, 0), (1009, 1000, 0), (1010, 1010, 1), (1029, 1010, 1), (1030, 1030, 1),
                                  (1035, 1030, 1), (1040, 1040, 2)):  # fmt: skip
        point = at(place, offset)
        assert (point.base, point.offset, bool(point.notes)) == (made, found, offset != found)
        assert len([chunk for chunk in point.chunks if chunk.begin < found]) == chunks
    assert at(place, "1,040").offset == 1040
    assert until.latest(place).offset == 1040
    for text in ("999", "1041"):
        with pytest.raises(BackupError, match=r"can't be restored: restorable: log offsets 1,000 to 1,040 \(2026-"):
            at(place, text)
    with pytest.raises(BackupError, match="is not a time such as"):
        at(place, "yesterday")
    with pytest.raises(BackupError, match="only \"before FLUSHALL\""):
        at(place, "before DEL")


def test_times(place: LocalTarget) -> None:
    made = base(place)
    log = writer(made)
    add(log, place, (500, [b"x" * 10]), (1000, [b"y" * 10]))
    add(log, place, (1500, []), (2000, [b"z" * 10]))
    logstate.write(place, log.log, LogState(1030, BEGAN + 60_000, log.previous))
    for after, offset in ((0, 1000), (499, 1000), (500, 1010), (999, 1010), (1000, 1020), (1999, 1020), (2000, 1030),
                          (30_000, 1030), (60_000, 1030)):  # fmt: skip
        point = at(place, time_after(after))
        assert (after, point.offset, point.notes) == (after, offset, [])
    assert at(place, time_after(600).replace("+00:00", "")).offset == 1010  # UTC
    assert at(place, datetime.fromisoformat(time_after(600)).astimezone().isoformat()).offset == 1010
    for after in (-1, 60_001):
        with pytest.raises(BackupError, match="restorable: log offsets 1,000 to 1,030"):
            at(place, time_after(after))


def test_a_gap_in_the_times_is_reported(place: LocalTarget) -> None:
    """As after an interruption. The records in the gap may have been logged after the time, so none is restored."""
    log = writer(base(place))
    add(log, place, (500, [b"x" * 10]))
    add(log, place, (-1, [b"y" * 10]))
    add(log, place, (60_000, [b"z" * 10]))
    point = at(place, time_after(30_000))
    assert point.offset == 1010
    assert "the times of log offsets 1,010 to 1,030 are known only to be from" in point.notes[0]
    assert at(place, time_after(60_000)).offset == 1030


def test_a_clock_that_was_set_back(place: LocalTarget) -> None:
    log = writer(base(place))
    add(log, place, (1000, [b"x" * 10]), (10_000, [b"y" * 10]), (5000, [b"z" * 10]), (12_000, [b"w" * 10]))
    assert len(ranges.logs(place)[0].chunks) == 2
    assert at(place, time_after(4000)).offset == 1010
    with pytest.raises(BackupError, match=r"showed .* more than once, at log offsets 1,010 and 1,030: restore one"):
        at(place, time_after(7000))
    assert at(place, time_after(12_000)).offset == 1040
    assert at(place, 1030).offset == 1030


def test_a_small_step_of_the_clock_is_smoothed_out(place: LocalTarget) -> None:
    log = writer(base(place))
    add(log, place, (1000, [b"x" * 10]), (900, [b"y" * 10]), (2000, [b"z" * 10]))
    assert len(ranges.logs(place)[0].chunks) == 1
    assert [at(place, time_after(after)).offset for after in (999, 1000, 1999, 2000)] == [1000, 1020, 1020, 1030]


def test_before_a_flush(place: LocalTarget) -> None:
    made = base(place)
    log = writer(made)
    add(log, place, (500, [SET, records.flush(), SET]))
    add(log, place, (900, [SET + records.flush() + SET, SET]))
    point = at(place, "before FLUSHALL")
    assert point.offset == 1000 + 3 * len(SET) - len(SET) + len(records.flush())
    later = base(place, BEGAN + 1000, log.stored)
    assert at(place, "before FLUSHALL") == point
    assert at(place, "before flushdb", made) == point
    with pytest.raises(BackupError, match="there is no FLUSHALL or FLUSHDB in the log; restorable: "):
        at(place, "before FLUSHALL", later)


def test_the_newest_base_backup_is_used(place: LocalTarget) -> None:
    first = base(place)
    log = writer(first)
    add(log, place, (500, [b"x" * 10]))
    add(log, place, (5000, [b"y" * 10]))
    second = base(place, BEGAN + 700, 1010)
    assert [each.bases for each in ranges.ranges(place)] == [[first, second]]
    assert (at(place, 1005).base, at(place, 1010).base, at(place, 1020).base) == (first, second, second)
    assert at(place, 1020, first).base == first
    foreign = base(place, BEGAN + 800, 1015, OTHER)
    assert [each.bases for each in ranges.ranges(place)] == [[first, second], [foreign]]


def test_another_history_at_the_same_offsets(place: LocalTarget) -> None:
    first = base(place)
    add(writer(first), place, (500, [b"x" * 10]), (9000, [b"x" * 10]))
    second = base(place, BEGAN + 20_000, 1005, OTHER)
    add(writer(second), place, (25_000, [b"y" * 10]), replid=OTHER)
    point = at(place, 1015)
    assert (point.base, point.offset) == (second, 1015)
    assert "2 histories have this log offset" in point.notes[0]
    assert at(place, 1010, first).base == first
    with pytest.raises(BackupError, match=r"restorable: log offsets 1,000 to 1,020 .*, log offsets 1,005 to 1,015"):
        at(place, time_after(15_000))


def test_a_new_replication_id(place: LocalTarget) -> None:
    log = writer(base(place))
    add(log, place, (500, [b"x" * 10]))
    part = LogPart(1010, [b"y" * 10], BEGAN + 600)
    log.add(part, OTHER)
    log.write(place, lambda: None)
    later = base(place, BEGAN + 1000, 1020, OTHER)
    assert [len(each.bases) for each in ranges.ranges(place)] == [2]
    assert at(place, 1020).base == later


@settings(max_examples=25)
@given(
    sizes=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=6),
    wanted=st.integers(0, 250),
)
def test_any_offset(tmp_path_factory: pytest.TempPathFactory, sizes: list[list[int]], wanted: int) -> None:
    """The point is the greatest end of a commit group that is not after the requested offset."""
    place = LocalTarget(tmp_path_factory.mktemp("any"))
    log = writer(base(place))
    ends = [1000]
    for chunk in sizes:
        add(log, place, (0, [b"x" * size for size in chunk]))
        for size in chunk:
            ends.append(ends[-1] + size)
    offset = 1000 + wanted
    if offset > ends[-1]:
        with pytest.raises(BackupError, match="can't be restored"):
            at(place, offset)
    else:
        assert at(place, offset).offset == max(end for end in ends if end <= offset)


def test_a_damaged_header(place: LocalTarget) -> None:
    log = writer(base(place))
    add(log, place, (500, [b"x" * 10]))
    (chunk,) = ranges.logs(place)[0].chunks
    raw = place.read(chunk.file, chunk.size)
    with pytest.raises(BackupError, match="SHA-256"):
        logchunks.decode(chunk, raw + b"x", chunk.file)
    content = logchunks.decode(chunk, raw, chunk.file)
    other, other_raw = logchunks.encode("log", ID, "", content.groups[:1], content.times)
    assert logchunks.LogChunk.named("log", other.name, len(other_raw)) == other
    assert logchunks.LogChunk.named("log", "state.json", 10) is None


@pytest.mark.parametrize("pruned", [False, True])
def test_the_first_file_of_a_log_is_missing(pruned: bool, place: LocalTarget) -> None:
    """It follows a base backup, so that verify must name it. The log continues after a part that --keep has removed."""
    log = writer(base(place))
    for number in range(6):
        add(log, place, (100 * (number + 1), [b"%d" % number * 10]))
    kept = base(place, BEGAN + 250, offset=1025)
    if pruned:
        with TargetLock(place) as lock:
            prune(place, 1, lock)
    assert len(until.log_after(place, None)) == (4 if pruned else 6)
    assert [log.unfollowed for log in ranges.logs(place)] == [{}]
    first = ranges.logs(place)[0].chunks[0]
    place.remove(first.file)
    oldest = manifest.load(place, manifest.backups(place)[0])
    missing = rf"{re.escape(first.name)} is missing \(the log from offset {1025 if pruned else 1000:,} on\)"
    for wanted in (oldest, None):
        with pytest.raises(BackupError, match=missing):
            until.log_after(place, wanted)
    if not pruned:
        assert [chunk.begin for chunk in until.log_after(place, kept)] == [1020, 1030, 1040, 1050]
    else:
        with pytest.raises(BackupError, match=missing):
            until.latest(place)
