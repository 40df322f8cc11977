"""Merges of log files: the same points can be restored before, during, and after them. No servers."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tidelog.backup.test_until import BEGAN, ID, OTHER, add, base, writer
from tidelog.backup import logmerge, ranges, until
from tidelog.backup.chunkreads import read_log_chunk
from tidelog.backup.lock import TargetLock
from tidelog.backup.logchunks import LogChunk
from tidelog.backup.logmerge import LogMerger
from tidelog.backup.overlaps import resolved
from tidelog.backup.retention import prune
from tidelog.backup.targets import BackupError, BackupTarget, LocalTarget

LEVELS = (100, 1000, 10_000)  # ms


@pytest.fixture(autouse=True)
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logmerge, "LEVELS", LEVELS)


class MemoryTarget(LocalTarget):
    """A target without a disk, whose syncs would take most of the time."""

    def __init__(self) -> None:
        super().__init__(Path("memory"))
        self.files: dict[str, bytes] = {}

    def names(self, folder: str = "", below: bool = True) -> dict[str, int]:
        inside = [name for name in self.files if not folder or name.startswith(f"{folder}/")]
        return {name: len(self.files[name]) for name in inside if below or "/" not in name}

    def read(self, name: str, most: int) -> bytes:
        if name not in self.files:
            raise BackupError(f"can't read {name}: it is not there") from FileNotFoundError()
        assert len(self.files[name]) <= most
        return self.files[name]

    def write(self, name: str, data: bytes) -> None:
        self.files[name] = data

    def remove(self, name: str) -> None:
        self.files.pop(name, None)

    def settle(self) -> None: ...


@pytest.fixture
def place() -> LocalTarget:
    return MemoryTarget()


class KilledError(Exception):
    """The process was killed."""


class Killing:
    """A target that ends the process at one of its changes. ``torn``: files are not written atomically."""

    def __init__(self, place: BackupTarget, left: int, after: bool, torn: bool) -> None:
        self.shown = place.shown
        self.names, self.read, self.settle = place.names, place.read, place.settle
        self._place, self._left, self._after, self._torn = place, left, after, torn

    def write(self, name: str, data: bytes) -> None:
        self._change(lambda: self._place.write(name, data), lambda: self._place.write(name, data[: len(data) // 2]))

    def remove(self, name: str) -> None:
        self._change(lambda: self._place.remove(name), lambda: None)

    def _change(self, change: Callable[[], None], half: Callable[[], None]) -> None:
        self._left -= 1
        if self._left == 0:
            if self._after:
                change()
            elif self._torn:
                half()
            raise KilledError
        change()


class Held:
    """A lock that is never lost."""

    def __init__(self) -> None:
        self.log_files = threading.Lock()

    def confirm(self) -> None: ...
    def check(self) -> None: ...


def merger(
    place: BackupTarget, log: str, stopping: Callable[[], bool] = lambda: False, held: TargetLock | None = None
) -> LogMerger:
    lock: TargetLock = held or Held()  # type: ignore[assignment]
    return LogMerger(place, log, lock, stopping)


@dataclass
class Written:
    """A log and everything that can be read from it."""

    name: str
    groups: list[tuple[int, bytes]]
    times: list[tuple[int, int]]

    @classmethod
    def read(cls, place: BackupTarget) -> Written:
        (log,) = ranges.logs(place)
        assert not [*log.holes()]
        contents = [read_log_chunk(place, chunk) for chunk in log.chunks]
        groups = [(group.offset, group.payload) for content in contents for group in content.groups]
        return cls(log.name, groups, sorted({pair for content in contents for pair in content.times}))


def written(place: LocalTarget, chance: random.Random, count: int) -> Written:
    """A log of small chunks over several windows, with a failover, unknown times, and a clock that is set back."""
    log = writer(base(place))
    ms = 0
    for _ in range(count):
        ms += chance.choice((20, 20, 20, 90, 700))
        if chance.random() < 0.02:
            ms = max(0, ms - 1500)
        replid = OTHER if ms > 4000 else ID
        payloads = [chance.randbytes(chance.randrange(1, 40)) for _ in range(chance.randrange(1, 4))]
        add(log, place, (ms if chance.random() < 0.9 else -1, payloads), replid=replid)
    return Written.read(place)


def files(place: BackupTarget) -> list[str]:
    return sorted(name for name in place.names("logs"))


def test_few_files_remain(place: LocalTarget) -> None:
    log = writer(base(place))
    for number in range(1200):  # two windows of 10 s
        add(log, place, (20 * (number + 1), [b"%d" % number]))
    before = Written.read(place)
    merger(place, log.log).merge()
    assert Written.read(place) == before
    assert len(files(place)) <= 2 + 10 + 10 + 5
    unchanged = files(place)
    merger(place, log.log).merge()
    assert files(place) == unchanged


def test_files_that_are_written_meanwhile(place: LocalTarget) -> None:
    """After the first listing, the merger is notified of each chunk."""
    log = writer(base(place))
    merging = merger(place, log.log)
    most = 0
    for number in range(1500):
        add(log, place, (20 * (number + 1), [b"%d" % number]))
        merging.add(max(ranges.chunks_of(place, log.log), key=lambda chunk: chunk.end))
        if number % 7 == 0:
            merging.merge()
            most = max(most, len(files(place)))
    assert most <= 3 + 10 + 10 + 5 + 7
    assert [payload for _, payload in Written.read(place).groups] == [b"%d" % number for number in range(1500)]


def test_large_files_are_not_written_again(place: LocalTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logmerge, "LOG_CHUNK", 5000)
    log = writer(base(place))
    for number in range(100):
        add(log, place, (20 * (number + 1), [bytes(900)]))
    add(log, place, (30_000, [b"last"]))
    merger(place, log.log).merge()
    sizes = [chunk.size for chunk in ranges.logs(place)[0].chunks]
    assert len(sizes) <= 40
    assert all(one + two > 5000 for one, two in pairwise(sizes[:-1]))
    assert max(sizes) <= 5000


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.booleans(), st.booleans(), st.integers(0, 2**32))
def test_a_kill_at_any_change(seed: int, left: int, after: bool, torn: bool, points: int) -> None:
    """Also several times in a row. Every point remains, and each restored offset and time is what it was."""
    place = MemoryTarget()
    before = written(place, random.Random(seed), 60)
    chance = random.Random(points)
    asked = [str(chance.choice(before.groups)[0] + chance.randrange(20)) for _ in range(5)]
    asked += [at(chance.choice(before.times)[0] + chance.randrange(50)) for _ in range(5)]
    answers = [answer(place, text) for text in asked]
    for _ in range(3):
        try:
            merger(Killing(place, left, after, torn), before.name).merge()
        except KilledError:
            pass
        assert Written.read(place) == before
        assert [answer(place, text) for text in asked] == answers
    merger(place, before.name).merge()
    assert Written.read(place) == before
    assert [answer(place, text) for text in asked] == answers
    assert not ranges.logs(place)[0].superfluous
    assert len(files(place)) < 60


def at(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def answer(place: BackupTarget, text: str) -> object:
    try:
        found = until.resolve(place, text, None, lambda *_: None)
    except BackupError as error:
        return str(error)
    return found.offset


def test_a_reader_that_listed_the_target_before(place: LocalTarget) -> None:
    before = written(place, random.Random(3), 100)
    (listed,) = ranges.logs(place)
    merger(place, before.name).merge()
    contents = [read_log_chunk(place, chunk) for chunk in listed.chunks]
    assert [(group.offset, group.payload) for content in contents for group in content.groups] == before.groups
    for chunk, content in zip(listed.chunks, contents, strict=True):
        assert (content.groups[0].offset, content.times[-1][1] <= chunk.end) == (chunk.begin, True)
    for file in files(place):
        place.remove(file)
    with pytest.raises(BackupError, match=r"it is not there\. Without it, the log can be restored up to"):
        read_log_chunk(place, listed.chunks[0])


def test_a_merge_while_the_target_is_listed(place: LocalTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing has neither a merged file nor all of its parts."""
    before = written(place, random.Random(3), 100)
    names, calls = place.names, 0

    def listing(folder: str = "", below: bool = True) -> dict[str, int]:
        nonlocal calls
        found = names(folder, below)
        if folder == "logs":
            calls += 1
            if calls == 1:
                found = dict(sorted(found.items())[20:])
                merger(place, before.name).merge()
                found = {name: size for name, size in found.items() if name in names("logs")}
        return found

    monkeypatch.setattr(place, "names", listing)
    assert Written.read(place) == before
    assert calls > 1


def test_a_damaged_file_is_not_merged(place: LocalTarget) -> None:
    before = written(place, random.Random(4), 30)
    (log,) = ranges.logs(place)
    damaged = log.chunks[3]
    raw = place.read(damaged.file, damaged.size)
    place.write(damaged.file, raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(BackupError, match=re.escape(f"{damaged.name} is damaged")):
        merger(place, log.name).merge()
    assert damaged.file in files(place)
    assert len(files(place)) < len(log.chunks) - 5  # the others are merged
    place.write(damaged.file, raw)
    assert Written.read(place) == before


def test_an_interrupted_merge_whose_file_is_damaged_is_undone(place: LocalTarget) -> None:
    before = written(place, random.Random(5), 60)
    with pytest.raises(KilledError):
        merger(Killing(place, 1, after=False, torn=True), before.name).merge()
    (other,) = ranges.logs(place)[0].superfluous
    merger(place, before.name).merge()
    assert not any(other.name == Path(file).name and place.names()[file] == other.size for file in files(place))
    assert Written.read(place) == before


def test_keep_removes_superfluous_files(place: LocalTarget) -> None:
    before = written(place, random.Random(6), 60)
    with pytest.raises(KilledError):
        merger(Killing(place, 1, after=True, torn=False), before.name).merge()
    assert ranges.logs(place)[0].superfluous
    base(place, BEGAN + 100_000, offset=before.groups[-1][0], replid=OTHER)
    with TargetLock(place) as lock:
        prune(place, 1, lock)
    assert not ranges.logs(place)[0].superfluous


@pytest.mark.parametrize("listing", [1, 2])
def test_keep_does_not_list_the_target_during_a_merge(
    listing: int, place: LocalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing could lack the first records of the log, which would then seem to follow no base backup."""
    log = writer(base(place))
    for ms in (20, 40, 150, 250, 350):  # the first two are merged
        add(log, place, (ms, [b"%d" % ms]))
    before = Written.read(place)
    base(place, BEGAN + 1000, offset=before.groups[-1][0])
    names, calls = place.names, 0

    with TargetLock(place) as lock:
        merge = threading.Thread(target=merger(place, log.log, held=lock).merge)

        def listed(folder: str = "", below: bool = True) -> dict[str, int]:
            nonlocal calls
            found = names(folder, below)
            calls += folder == "logs"
            if folder == "logs" and calls == listing:
                merge.start()
                merge.join(0.3)
                found = {name: size for name, size in found.items() if name in names("logs")}
            return found

        monkeypatch.setattr(place, "names", listed)
        prune(place, 2, lock)
        merge.join()
    assert Written.read(place) == before


def test_files_that_keep_has_removed_are_no_failure(place: LocalTarget) -> None:
    log = writer(base(place))
    merging = merger(place, log.log)
    for number in range(300):
        add(log, place, (20 * (number + 1), [b"%d" % number]))
    merging.merge()
    first, second, *_ = ranges.logs(place)[0].chunks
    base(place, BEGAN + 100_000, offset=second.end)
    with TargetLock(place) as lock:
        prune(place, 1, lock)
    assert first.file not in files(place)
    for number in range(300, 700):
        add(log, place, (20 * (number + 1), [b"%d" % number]))
        merging.add(max(ranges.chunks_of(place, log.log), key=lambda chunk: chunk.end))
    before = Written.read(place)
    merging.merge()
    assert Written.read(place) == before
    assert len(files(place)) < 20


def test_a_process_that_stops_leaves_a_merge_unfinished(place: LocalTarget) -> None:
    before = written(place, random.Random(7), 60)
    unchanged = files(place)
    merger(place, before.name, lambda: True).merge()
    assert files(place) == unchanged


# -- which files are used ------------------------------------------------------------------------------------
def chunk(begin: int, end: int) -> LogChunk:
    return LogChunk("log", begin, end, 1, 1, ID, "0" * 64, 1)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ([(0, 10), (10, 20)], [(0, 10), (10, 20)]),
        ([(0, 20), (0, 10), (10, 20)], [(0, 10), (10, 20)]),  # an unfinished merge
        ([(0, 20), (10, 20)], [(0, 20)]),  # the removal has begun
        ([(0, 20), (0, 10)], [(0, 20)]),
        ([(0, 30), (0, 10), (20, 30)], [(0, 30)]),
        ([(0, 40), (0, 20), (0, 10), (10, 20), (20, 40)], [(0, 10), (10, 20), (20, 40)]),
        ([(0, 40), (0, 20), (0, 10), (20, 40)], [(0, 20), (20, 40)]),
        ([(0, 10), (5, 20), (20, 30)], [(0, 10), (5, 20), (20, 30)]),  # two processes wrote at the same time
        ([(0, 10), (0, 10)], [(0, 10)]),
    ],
)
def test_which_files_are_used(given: list[tuple[int, int]], used: list[tuple[int, int]]) -> None:
    found, superfluous = resolved([chunk(*each) for each in given])
    assert [(each.begin, each.end) for each in found] == used
    assert len(superfluous) == len(given) - len(used)


def test_a_directory(tmp_path: Path) -> None:
    place = LocalTarget(tmp_path / "target")
    before = written(place, random.Random(8), 40)
    merger(place, before.name).merge()
    assert Written.read(place) == before
    assert len(files(place)) < 30
