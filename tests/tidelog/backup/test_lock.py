"""One writer a target, and a dead one is in nobody's way."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidelog.backup import lock
from tidelog.backup.lock import STALE, TargetLock
from tidelog.backup.targets import BackupError, LocalTarget


@pytest.fixture
def place(tmp_path: Path) -> LocalTarget:
    return LocalTarget(tmp_path)


def left(place: LocalTarget, host: str, pid: int, age: float) -> None:
    """A lock of another process."""
    facts = {"host": host, "pid": pid, "began": int(time.time() - age - 5), "seen": int(time.time() - age)}
    place.write("locks/other.json", json.dumps(facts).encode())


def gone() -> int:
    """The ID of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def test_two_at_a_time(place: LocalTarget) -> None:
    with TargetLock(place):
        with pytest.raises(BackupError, match=f"is being written there by process {os.getpid()} on"), TargetLock(place):
            pass
        assert len(place.names("locks")) == 1
    assert place.names("locks") == {}
    with TargetLock(place):
        pass


def test_one_that_is_alive_elsewhere(place: LocalTarget) -> None:
    left(place, "elsewhere", gone(), STALE - 60)
    with pytest.raises(BackupError, match=r"on elsewhere, since .* remove locks/other\.json"), TargetLock(place):
        pass
    assert list(place.names("locks")) == ["locks/other.json"]


def test_those_that_are_dead(place: LocalTarget) -> None:
    left(place, socket.gethostname(), gone(), 0)
    with TargetLock(place):
        assert len(place.names("locks")) == 1
    left(place, "elsewhere", 1, STALE + 60)
    with TargetLock(place):
        assert len(place.names("locks")) == 1


def test_it_is_renewed(place: LocalTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "RENEW", 0)
    with TargetLock(place) as held:
        (file,) = place.names("locks")
        held._began = 4711
        held.renew()
        assert json.loads(place.read(file, 4096))["began"] == 4711


def test_one_that_was_taken_for_dead_completes_nothing(place: LocalTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "RENEW", 0)
    with TargetLock(place) as held:
        held.check()
        (file,) = place.names("locks")
        place.remove(file)
        with pytest.raises(BackupError, match="silent for too long"):
            held.check()
        with pytest.raises(BackupError, match="silent for too long"):
            held.renew()


@pytest.mark.parametrize(
    "content",
    [
        b"{", b"[]", b"[" * 4000, b"x" * 5000, b'{"host":"h","pid":0,"began":1,"seen":1}',
        b'{"host":"\xff","pid":1,"began":1,"seen":1}',
        b'{"host":"h","pid":1,"began":1e30,"seen":99999999999}', b'{"host":"h","pid":9999999999,"began":1,"seen":1}',
    ],
)  # fmt: skip
def test_a_file_that_is_no_lock(place: LocalTarget, content: bytes) -> None:
    place.write("locks/x.json", content)
    with pytest.raises(BackupError, match=r"locks/x\.json"), TargetLock(place):
        pass
