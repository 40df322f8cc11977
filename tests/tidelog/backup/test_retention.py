"""What ``--keep`` removes while a continuous backup follows the log, and where it continues. No servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidelog.backup.test_until import BEGAN, add, base, writer
from tidelog.backup import ranges, retention
from tidelog.backup.lock import TargetLock
from tidelog.backup.ranges import RestorableRange
from tidelog.backup.resume import resume_point
from tidelog.backup.targets import BackupTarget, LocalTarget


@pytest.fixture
def place(tmp_path: Path) -> LocalTarget:
    return LocalTarget(tmp_path / "target")


def prune(place: LocalTarget, keep: int) -> None:
    with TargetLock(place) as lock:
        retention.prune(place, keep, lock)


def test_the_log_continues_without_the_backup_that_it_began_with(place: LocalTarget) -> None:
    """A newer base backup that the log contains is not the end of the log."""
    log = writer(base(place))
    add(log, place, (500, [b"x" * 10]))
    add(log, place, (900, [b"y" * 10]))
    kept = base(place, BEGAN + 700, offset=1015)
    prune(place, 1)
    add(log, place, (1500, [b"z" * 10]))
    found = resume_point(place)
    assert found is not None
    assert (found.log, found.position.offset) == (log.log, 1030)
    (only,) = ranges.ranges(place)
    assert ([each.name for each in only.bases], only.end) == ([kept.name], 1030)


def test_a_base_backup_after_the_end_of_a_log(place: LocalTarget) -> None:
    """Nothing connects it to the log: the log continues from the base backup."""
    log = writer(base(place))
    add(log, place, (500, [b"x" * 10]))
    newer = base(place, BEGAN + 700, offset=1500)
    prune(place, 1)
    found = resume_point(place)
    assert found is not None
    assert (found.log, found.position.offset) == (newer.name, 1500)
    assert ranges.logs(place) == []


def test_a_chunk_that_is_written_in_the_meantime(place: LocalTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is written while another thread removes what the only base backup does not need."""
    log = writer(base(place))
    add(log, place, (500, [b"x" * 10]))
    base(place, BEGAN + 700, offset=1020)  # the log up to there is not at the target yet
    listed = ranges.ranges

    def then_written(given: BackupTarget) -> list[RestorableRange]:
        found = listed(given)
        add(log, place, (900, [b"y" * 20]))
        return found

    monkeypatch.setattr(ranges, "ranges", then_written)
    prune(place, 1)
    monkeypatch.undo()
    (only,) = ranges.ranges(place)
    assert (only.begin, only.end) == (1020, 1030)
