"""The process of a continuous backup: one base backup at a time, and servers that close connections. No servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.tidelog.backup.test_until import BEGAN, ID, OTHER, add, base, writer
from tidelog.backup import continuous, ranges, recurring, take
from tidelog.backup.continuous import ContinuousBackup, ContinuousOptions
from tidelog.backup.frames import COPY, DONE, ONE, TWO, BackupFrame, LogPart
from tidelog.backup.lock import TargetLock
from tidelog.backup.manifest import BackupManifest
from tidelog.backup.targets import BackupError, LocalTarget
from tidelog.transport.backoff import Backoff


class Source:
    """A server without keys and with 10 bytes of log."""

    def __init__(self, *_: object) -> None:
        self.facts = SimpleNamespace(log_offset=10, version="1", role="leader", keys=0, entries=0)
        self.replid, self.store_offset = ID, 0
        self.worked = 0
        self._frames = [BackupFrame(COPY, 0, TWO.pack(0, 0)), BackupFrame(DONE, 0, ONE.pack(0))]

    def take(self) -> BackupFrame:
        return self._frames.pop(0)

    def take_log(self, offset: int) -> LogPart:
        return LogPart(offset, [b"x" * 10], 0)

    def working(self) -> None:
        self.worked += 1

    def close(self) -> None: ...


def test_the_server_hears_of_the_backup_while_files_are_read_back(tmp_path: Path) -> None:
    place, source = LocalTarget(tmp_path / "target"), Source()
    with TargetLock(place) as lock:
        given: Any = source
        made, _ = take.take_base(given, "redis://db1", datetime.now(UTC), place, lock, lambda *_: None)
    assert (made.log_offset, len(made.log)) == (10, 1)
    assert source.worked


@contextmanager
def taking(monkeypatch: pytest.MonkeyPatch, backup: ContinuousBackup, place: LocalTarget) -> Iterator[threading.Thread]:
    """A thread of the backup that takes a base backup until it is cancelled."""
    begun = threading.Event()

    def take_base(*given: Any) -> None:
        begun.set()
        while True:
            given[5]("copying", 0, 1)  # the report
            time.sleep(0.001)

    monkeypatch.setattr(recurring, "BackupSource", Source)
    monkeypatch.setattr(recurring, "take_base", take_base)
    with TargetLock(place) as lock:
        backup._lock = lock
        backup._recurring.taken(0)
        backup._recurring.check(lock)
        assert begun.wait(10)
        thread = backup._recurring._thread
        assert thread is not None
        try:
            yield thread
        finally:
            backup._stop.set()
            thread.join()


def test_one_base_backup_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--keep would remove files of the other one, which no manifest names yet."""
    said: list[str] = []
    backup = ContinuousBackup(
        "redis://db1", str(tmp_path), ContinuousOptions(1, 1, 1), said.append, lambda *_: None, threading.Event()
    )
    with taking(monkeypatch, backup, LocalTarget(tmp_path)) as thread:

        def take_base(*_: object) -> None:
            raise BackupError(f"the other one runs: {thread.is_alive()}")

        monkeypatch.setattr(continuous, "take_base", take_base)
        source: Any = Source()
        with pytest.raises(BackupError, match="runs: False"):
            backup._base(source, datetime.now(UTC), other=False)
    assert said == []


def test_a_server_that_closes_each_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The delays increase, and not each attempt is reported."""
    said: list[str] = []
    stop = threading.Event()
    attempts = 0

    class Closing(Source):
        continued = True

        def take_log(self, *_: object) -> LogPart:
            nonlocal attempts
            attempts += 1
            if attempts == 9:
                stop.set()
            raise BackupError("the server closed the connection")

    monkeypatch.setattr(continuous, "BackupSource", Closing)
    monkeypatch.setattr(continuous, "BACKOFF", Backoff(first=0.001, most=0.01))
    base(LocalTarget(tmp_path))
    options = ContinuousOptions(1, None)
    ContinuousBackup("redis://db1", str(tmp_path), options, said.append, lambda *_: None, stop).run()
    assert attempts >= 9
    assert len([line for line in said if "connecting to the server again" in line]) == 1


def test_the_history_before_a_failover_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a server which lost its data directory: --keep 1 would remove the only copy of the data."""
    place, stop = LocalTarget(tmp_path), threading.Event()
    log = writer(base(place))
    add(log, place, (500, [b"x" * 10]))

    class Empty(Source):
        continued = False
        points: ClassVar[dict[str, int]] = {OTHER: 0}

        def take_log(self, *_: object) -> LogPart:
            stop.set()
            raise BackupError("the server closed the connection")

    def take_base(*_: object) -> tuple[BackupManifest, int]:
        return base(place, BEGAN + 5000, offset=10, replid=OTHER), 0

    monkeypatch.setattr(continuous, "BackupSource", Empty)
    monkeypatch.setattr(continuous, "take_base", take_base)
    said: list[str] = []
    options = ContinuousOptions(1, keep=1)
    ContinuousBackup("redis://db1", str(tmp_path), options, said.append, lambda *_: None, stop).run()
    assert "a new base backup is taken" in said[0]
    assert [(each.begin, each.end) for each in ranges.ranges(place)] == [(1000, 1010), (10, 10)]
