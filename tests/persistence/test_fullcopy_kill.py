"""SIGKILL in the middle of a full copy: the directory then holds all of the old data or all of the new."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from persistence.fullcopy import Incoming
from persistence.history import History
from tests.persistence.datakit import RING, append, checkpoint, commit, opened

NEW = "a" * 40

# Reads jobs, one a line: a JSON array of a function's name and its arguments. Each runs in a fork, so that modules are
# imported once. Answers with the exit code of the fork.
WORKER = """
import json, os, signal, sys, threading, traceback
from pathlib import Path
sys.path[:0] = [{root!r}]
from persistence import fullcopy
from persistence.history import History
from persistence.fullcopy import Incoming, install
from persistence.store import Store
from tests.persistence.datakit import RING, opened
fullcopy.WRITE_ABOVE = 2000
NAMES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir")

def die_before(call, events, files):
    # SIGKILL before the call-th of these events, or opening of a file that isn't source.
    calls = 0
    def count(event, args):
        nonlocal calls
        if event in events or files and event == "open" and {root!r} not in str(args[0]):
            calls += 1
            if calls == call:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)

def copy(leader, target, call, seconds):
    # Copies a leader's store over the data in target and opens it, but dies before a call or after so many seconds.
    store = Store(Path(leader) / "store")
    target = Path(target)
    die_before(call, NAMES, True)
    if seconds:
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
    copy = store.copy()
    with opened(target):
        made = Incoming(target, RING)
        for piece in copy.pieces(500):
            made.add(piece)
        made.finish(copy.offset, copy.entries, History("a" * 40))
    with opened(target):
        pass

def start(target):
    die_before(2, ("os.rename", "os.remove", "os.rmdir"), False)
    install(Path(target))

for line in sys.stdin:
    name, *words = json.loads(line)
    child = os.fork()
    if not child:
        try:
            globals()[name](*words)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

Run = Callable[..., bool]
StoreContent = tuple[Path, str]  # directory, digest


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """run(function, *arguments): False if it was killed, True if it came to its end before."""
    program = WORKER.format(root=str(Path(__file__).parents[2]))
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        jobs, answers = worker.stdin, worker.stdout

        def run(name: str, *words: Path | float) -> bool:
            jobs.write(json.dumps([name, *[str(word) if isinstance(word, Path) else word for word in words]]) + "\n")
            jobs.flush()
            code = int(answers.readline())
            assert code in (0, -signal.SIGKILL)
            return code == 0

        yield run
        jobs.close()


@pytest.fixture
def leader(tmp_path: Path) -> StoreContent:
    with opened(tmp_path / "leader") as (log, ks, _):
        for number in range(30):
            append(ks, b"s%d" % number, 25)
        checkpoint(log, ks)
        digest = ks.digest()
    return tmp_path / "leader", digest


@pytest.fixture
def old(tmp_path: Path) -> StoreContent:
    with opened(tmp_path / "old") as (log, ks, _):
        append(ks, b"old", 30)
        checkpoint(log, ks)
        append(ks, b"old", 30)
        commit(log, ks)
        return tmp_path / "old", ks.digest()


def which(target: Path, old: str, new: str) -> str:
    """Whether the directory holds the old or the new data; also checks that it works."""
    with opened(target) as (log, ks, _):
        digest, replid, offset = ks.digest(), log.history.id, log.offset
        assert not list(target.glob("incoming*"))
    if digest == old:
        assert replid != NEW
        return "old"
    assert digest == new
    assert replid == NEW
    with opened(target) as (log, ks, _):
        assert log.offset == offset
        append(ks, b"more", 20)
        checkpoint(log, ks)
    return "new"


def renewed(path: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(path, target)
    return target


def test_killed_before_each_change_of_names(tmp_path: Path, leader: StoreContent, old: StoreContent, run: Run) -> None:
    found = []
    call = 0
    while True:
        call += 1
        target = renewed(old[0], tmp_path / "target")
        ended = run("copy", leader[0], target, call, 0)
        found.append(which(target, old[1], leader[1]))
        if ended:
            break
    assert found == sorted(found, reverse=True), "old until one moment, and new from then on"
    assert found.count("old") > 10
    assert found.count("new") > 10


def test_killed_at_any_time(tmp_path: Path, leader: StoreContent, old: StoreContent, run: Run) -> None:
    target = renewed(old[0], tmp_path / "target")
    began = time.monotonic()
    assert run("copy", leader[0], target, 0, 0)
    longest = time.monotonic() - began
    rng = random.Random(1)
    found = []
    for _ in range(15):
        target = renewed(old[0], tmp_path / "target")
        run("copy", leader[0], target, 0, max(0.001, rng.random() * longest))
        found.append(which(target, old[1], leader[1]))
    assert "old" in found


def test_killed_again_while_it_is_installed(tmp_path: Path, leader: StoreContent, old: StoreContent, run: Run) -> None:
    """Each start gets one call further before it is killed; the next goes on from there."""
    target = renewed(old[0], tmp_path / "target")
    with opened(leader[0]) as (log, _, _), opened(target):
        copy = log.store.copy()
        incoming = Incoming(target, RING)
        for piece in copy.pieces(1 << 18):
            incoming.add(piece)
        incoming.finish(copy.offset, copy.entries, History(NEW))
    kills = 0
    while not run("start", target):
        kills += 1
    assert kills >= 8
    assert which(target, old[1], leader[1]) == "new"
