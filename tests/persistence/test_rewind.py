"""Deleting the end of the log: the result is the log as it was there, and a kill leaves the old log or the new one."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from persistence import journal, largebatches
from persistence.backlog import GoneError
from persistence.journal import Journal
from persistence.log import Log
from persistence.rewind import rewind
from persistence.wal import BLOCK
from storage.keyspace.keyspace import Keyspace
from tests.killpoints import forks
from tests.persistence.datakit import append, checkpoint, commit, crashed_while_writing, flush, opened

pytestmark = pytest.mark.quick

# Its job: a directory, a log offset, the number of a call, and a file size. It dies at that call, and its files can't
# grow beyond that size (-1: they can). It returns 2 after an OSError.
WORKER = """
import os, resource
from pathlib import Path
from persistence import directory, journal, rewind
from tests.killpoints import Calls, serve
calls = Calls(
    (journal.Journal, "write"), (journal.Journal, "rewind"), (journal.Journal, "close"), (rewind, "create"),
    (Path, "rename"), (directory, "sync"), (os, "fsync"),
)

def job(path, offset, call, size):
    calls.fatal = call
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, -1))
    try:
        rewind.rewind(Path(path), offset)
    except OSError:
        return 2
    return 0

serve(job)
"""

RING = 4 * BLOCK  # its old frames are overwritten soon, so it can't replace what the journal lost
Points = dict[int, str]  # log offset -> digest


def filled(path: Path, batches: int = 6, ring: int = 1 << 20) -> Points:
    """Make a directory that was killed: a checkpoint, then batches in the journal, then batches only in the WAL."""
    points: Points = {}
    source = path.with_name("source")
    with opened(source, ring_bytes=ring, journal_flush_ms=100_000) as (log, ks, _):
        append(ks, b"s", 3)
        checkpoint(log, ks)
        points[log.offset] = ks.digest()
        for number in range(batches):
            points |= [written(log, ks, number)]
            if number == batches // 2:
                flush(log)
        crashed_while_writing(source, log).rename(path)
    return points


def written(log: Log, ks: Keyspace, number: int) -> tuple[int, str]:
    append(ks, b"s", 2, pad=300)
    ks.set_string(b"n", b"%d" % number)
    commit(log, ks)
    return log.offset, ks.digest()


@pytest.fixture(params=["in LMDB", "in segments"])
def batches_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "in segments":
        monkeypatch.setattr(journal, "MUCH", 1)
        monkeypatch.setattr(journal, "LARGE", 1)
        monkeypatch.setattr(largebatches, "FULL", 1500)
    return str(request.param)


@pytest.mark.interpreted
@pytest.mark.usefixtures("batches_in")
def test_the_log_is_as_it_was_there(tmp_path: Path) -> None:
    points = filled(tmp_path / "data")
    end = max(points)
    for offset, digest in [*points.items()][:-1]:
        path = Path(shutil.copytree(tmp_path / "data", tmp_path / f"to{offset}"))
        assert rewind(path, offset) == end - offset
        with opened(path) as (log, ks, _):
            assert (log.offset, ks.digest()) == (offset, digest)
            assert all(end <= offset for end in log.journal._segments.ends.values())
            later = written(log, ks, 77)
        with opened(path) as (log, ks, _):
            assert (log.offset, ks.digest()) == later
            checkpoint(log, ks)
        with opened(path) as (log, ks, _):
            assert (log.offset, ks.digest()) == later


@pytest.mark.interpreted
@pytest.mark.usefixtures("batches_in")
def test_a_point_inside_a_batch(tmp_path: Path) -> None:
    """A replica logs several of its leader's batches as one, so the point can be inside it, where a record begins."""
    path, other = tmp_path / "data", tmp_path / "other"
    with opened(other) as (log, ks, _):
        append(ks, b"s", 2)
        first = ks.take_batch()
        log.append(first)
        digest = ks.digest()
        append(ks, b"s", 2, pad=300)
        second = ks.take_batch()
    with opened(path) as (log, ks, _):
        log.append(first + second)
    for inside in (1, len(first) - 1, len(first) + 1):
        with pytest.raises(GoneError, match="no record"):
            rewind(path, inside)
    assert rewind(path, len(first)) == len(second)
    with opened(path) as (log, ks, _):
        assert (log.offset, ks.digest()) == (len(first), digest)
        assert log.read(0, 1) == [(0, first)]


@pytest.mark.interpreted
def test_a_point_before_the_store_or_after_the_end(tmp_path: Path) -> None:
    points = filled(tmp_path / "data")
    with opened(tmp_path / "data") as (log, ks, _):
        checkpoint(log, ks)
        end = log.offset
    for offset, why in (
        (end - 1, "the store has advanced to"),
        (end, "does not contain"),
        (end + 1, "does not contain"),
    ):
        with pytest.raises(GoneError, match=why):
            rewind(tmp_path / "data", offset)
    with opened(tmp_path / "data") as (log, ks, _):
        assert (log.offset, ks.digest()) == (end, points[end])


@pytest.mark.interpreted
def test_an_open_directory_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "data"), pytest.raises(OSError, match="in use by another"):
        rewind(tmp_path / "data", 0)


@pytest.mark.interpreted
def test_a_failed_commit_leaves_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = filled(tmp_path / "data")
    offset, *_, end = points

    def fail(self: Journal, at: int, kept: bytes) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "rewind", fail)
        with pytest.raises(OSError, match="no space left"):
            rewind(tmp_path / "data", offset)
    with opened(tmp_path / "data") as (log, ks, _):
        assert (log.offset, ks.digest()) == (end, points[end])


Rewinding = Callable[..., int]


@pytest.fixture
def rewinding() -> Iterator[Rewinding]:
    """rewinding(path, offset, call, size): the exit code of a fork, see WORKER."""
    with forks(WORKER) as run:
        yield lambda path, offset, call=0, size=-1: run(str(path), offset, call, size)


def check_left(path: Path, points: Points, offset: int) -> int:
    """Check that what was left starts, with all records or as of ``offset``, and can be rewound and continued.

    Returns where the log ended.
    """
    with opened(Path(shutil.copytree(path, path.with_name(f"{path.name}-start")))) as (log, ks, _):
        assert ks.digest() == points[log.offset], path
        found = log.offset
    if found != offset:
        rewind(path, offset)
    with opened(path) as (log, ks, _):
        assert (log.offset, ks.digest()) == (offset, points[offset])
        later = written(log, ks, 77)
    with opened(path) as (log, ks, _):
        assert (log.offset, ks.digest()) == later
    return found


@pytest.mark.interpreted
def test_killed_at_each_point(tmp_path: Path, rewinding: Rewinding) -> None:
    points = filled(tmp_path / "data", 12, RING)
    offset, end = sorted(points)[2], max(points)
    seen: list[int] = []
    call, code = 0, -signal.SIGKILL
    while code:
        call += 1
        path = Path(shutil.copytree(tmp_path / "data", tmp_path / f"call{call}"))
        code = rewinding(path, offset, call)
        assert code in (0, -signal.SIGKILL)
        seen.append(check_left(path, points, offset))
    assert set(seen) == {offset, end}
    assert seen == sorted(seen, reverse=True)
    assert call > 10, f"hardly any points: {os.fspath(tmp_path)}"


@pytest.mark.interpreted
@pytest.mark.usefixtures("batches_in")
def test_a_full_disk(tmp_path: Path, rewinding: Rewinding) -> None:
    """The disk is full at each block of each file: the log is whole, or it was rewound."""
    points = filled(tmp_path / "data", 12, RING)
    offset, end = sorted(points)[2], max(points)
    codes: list[int] = []
    seen: list[int] = []
    size = 0
    while not codes or codes[-1]:
        path = Path(shutil.copytree(tmp_path / "data", tmp_path / f"size{size}"))
        codes.append(rewinding(path, offset, size=size))
        assert codes[-1] in (0, 2)
        seen.append(check_left(path, points, offset))
        size += 8192
    assert codes.count(2) > 5, "the disk was hardly ever full"
    assert (seen[0], seen[-1]) == (end, offset)
    assert seen == sorted(seen, reverse=True)
