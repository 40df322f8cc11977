"""One writer a target, and a dead one is in nobody's way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.waiting import eventually
from tidelog.backup import lock
from tidelog.backup.lock import STALE, LockLostError, TargetLock
from tidelog.backup.targets import BackupError, BackupStoppedError, LocalTarget


@pytest.fixture
def place(tmp_path: Path) -> LocalTarget:
    return LocalTarget(tmp_path)


def left(place: LocalTarget, age: float, **other: object) -> None:
    """A lock of another process, by default of one on another host."""
    facts = {"host": "elsewhere", "pid": 1, "began": int(time.time() - age - 5), "seen": int(time.time() - age)}
    place.write("locks/other.json", json.dumps(facts | other).encode())


def mine(place: LocalTarget) -> dict[str, object]:
    """The content of a lock of this process."""
    with TargetLock(place):
        (file,) = place.names("locks")
        content: dict[str, object] = json.loads(place.read(file, 4096))
    return content


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
    """It is renewed while it is watched, whatever its clock shows."""
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        if len(waited) == 3:
            left(place, 500, beat=2)
        return False

    left(place, 500, beat=1)
    said: list[str] = []
    with pytest.raises(BackupError, match=r"by process 1 on elsewhere, since .*other"):
        TargetLock(place, said.append, wait).__enter__()
    assert len(waited) == 3
    assert said == ["waiting for up to 60 s: process 1 on elsewhere has a lock, and may have ended"]
    assert list(place.names("locks")) == ["locks/other.json"]


@pytest.mark.parametrize("other", [{}, {"boot": "another boot"}, {"namespace": "pid:[1]"}])
def test_one_that_may_be_alive(place: LocalTarget, monkeypatch: pytest.MonkeyPatch, other: dict[str, object]) -> None:
    """On another host, before the machine was restarted, or in another container, whose PIDs mean nothing here."""
    monkeypatch.setattr(lock, "LEASE", 0.2)
    left(place, 0, **(mine(place) | {"turn": 7, "pid": gone()} | other if other else {"turn": 7}))
    said: list[str] = []
    began = time.monotonic()
    with TargetLock(place, said.append) as held:
        assert len(place.names("locks")) == 1
        assert held._content.turn == 8
    assert time.monotonic() - began >= 0.2
    assert len(said) == 1


def test_a_process_that_must_stop_while_it_waits(place: LocalTarget) -> None:
    left(place, 0)
    with pytest.raises(BackupStoppedError):
        TargetLock(place, None, lambda _: True).__enter__()
    assert list(place.names("locks")) == ["locks/other.json"]


def test_those_that_are_dead(place: LocalTarget) -> None:
    """Nobody waits for them. A later process can have the PID, such as PID 1 of a container that was restarted."""

    def unexpected(_: str) -> None:
        raise AssertionError

    this = mine(place)
    for other in ({"pid": gone()}, {"started": "1"}):
        left(place, 0, **(this | other))
        with TargetLock(place, unexpected):
            assert len(place.names("locks")) == 1
    left(place, STALE + 60)
    with TargetLock(place, unexpected):
        assert len(place.names("locks")) == 1


def test_a_process_that_nobody_has_waited_for_is_dead(place: LocalTarget) -> None:
    """A container without an init process has such zombies."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = {"pid": process.pid, "started": lock._process(process.pid)[1]}
    left(place, 0, **(mine(place) | other))
    with pytest.raises(BackupError, match="is being written there"), TargetLock(place):
        pass
    process.kill()
    eventually(lambda: lock._process(process.pid)[0] == "Z")
    with TargetLock(place):
        pass
    process.communicate()


def test_a_killed_process_blocks_nobody(place: LocalTarget, tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tidelog.backup.lock import TargetLock;"
        "from tidelog.backup.targets import LocalTarget; TargetLock(LocalTarget(Path(sys.argv[1]))).__enter__();"
        "print(flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(BackupError, match=f"by process {process.pid} on"), TargetLock(place):
            pass
        process.kill()
    with TargetLock(place) as held:
        assert held._content.turn == 2


def test_it_is_renewed_by_a_thread(place: LocalTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "RENEW", 0.01)
    with TargetLock(place):
        (file,) = place.names("locks")
        eventually(lambda: json.loads(place.read(file, 4096))["beat"] > 3)
    assert not place.names("locks")


def test_it_is_renewed_before_a_change_if_it_may_have_expired(
    place: LocalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread could not run, or the target was unavailable."""
    with TargetLock(place) as held:
        held.confirm()
        assert held._content.beat == 1
        held._renewed -= lock.LEASE - lock.MARGIN / 2
        held.confirm()
        assert held._content.beat == 2
        held._renewed -= 1000
        monkeypatch.setattr(place, "write", full)
        with pytest.raises(BackupError, match="full"):
            held.confirm()


def full(*_: object) -> None:
    raise BackupError("full")


def test_one_that_was_considered_dead_completes_nothing(place: LocalTarget) -> None:
    with TargetLock(place) as held:
        held.check()
        (file,) = place.names("locks")
        place.remove(file)
        with pytest.raises(BackupError, match="the target is not mounted"):
            held.check()
        with TargetLock(place), pytest.raises(LockLostError, match="did not renew its lock"):
            held.check()
        with pytest.raises(LockLostError):
            held.confirm()


def test_one_that_renews_its_lock_after_it_was_removed(place: LocalTarget) -> None:
    """A process that was stopped between its check and its write loses, and the other one continues."""
    with TargetLock(place) as held:
        (file,) = place.names("locks")
        raw = place.read(file, 4096)
        place.remove(file)
        with TargetLock(place) as other:
            other._content.turn = 2  # as if it had removed the lock
            other._write()
            place.write(file, raw)
            with pytest.raises(LockLostError):
                held.check()
            place.write(file, raw)
            other.check()
            assert len(place.names("locks")) == 1


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
