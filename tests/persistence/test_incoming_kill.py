"""SIGKILL in the middle of a full copy: what opens then is wholly old or wholly new."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from persistence.history import History
from persistence.incoming import Incoming
from tests.persistence.datakit import RING, append, checkpoint, commit, opened

NEW = "a" * 40

# Copies the store in argv[1] over the data in argv[2], and opens it. Before the argv[3]-th call that changes names or
# opens a file, or after argv[4] seconds, it kills itself.
COPIER = """
import os, signal, sys, threading
from pathlib import Path
sys.path[:0] = [{root!r}]
from persistence import incoming
from persistence.history import History
from persistence.incoming import Incoming
from persistence.store import Store
from tests.persistence.datakit import RING, opened
incoming.WRITE_ABOVE = 2000
calls = 0
def count(event, args):
    global calls
    if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir") or event == "open" and {here!r} not in str(args[0]):
        calls += 1
        if calls == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
store = Store(Path(sys.argv[1]) / "store")
target = Path(sys.argv[2])
sys.stdout.write("begins\\n")
sys.stdout.flush()
sys.addaudithook(count)
if float(sys.argv[4]):
    timer = threading.Timer(float(sys.argv[4]), os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
copy = store.copy()
with opened(target):
    place = Incoming(target, RING)
    for piece in copy.pieces(500):
        place.add(piece)
    place.finish(copy.offset, copy.entries, History("a" * 40))
with opened(target):
    pass
"""


@pytest.fixture
def leader(tmp_path: Path) -> tuple[Path, str]:
    with opened(tmp_path / "leader") as (log, ks, _):
        for number in range(30):
            append(ks, b"s%d" % number, 25)
        checkpoint(log, ks)
        digest = ks.digest()
    return tmp_path / "leader", digest


@pytest.fixture
def old(tmp_path: Path) -> tuple[Path, str]:
    with opened(tmp_path / "old") as (log, ks, _):
        append(ks, b"old", 30)
        checkpoint(log, ks)
        append(ks, b"old", 30)
        commit(log, ks)
        return tmp_path / "old", ks.digest()


def copied(leader: Path, target: Path, call: int, seconds: float) -> bool:
    """Run the copier until it is killed; True if it came to its end before."""
    here = Path(__file__).parents[2]
    program = COPIER.format(root=str(here), here=str(here))
    done = subprocess.run(
        [sys.executable, "-c", program, str(leader), str(target), str(call), str(seconds)],
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    assert done.stdout == b"begins\n"
    return done.returncode == 0


def which(target: Path, old: str, new: str) -> str:
    """What the directory holds; and it must work."""
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


def test_killed_before_each_change_of_names(tmp_path: Path, leader: tuple[Path, str], old: tuple[Path, str]) -> None:
    found = []
    call = 0
    while True:
        call += 1
        target = renewed(old[0], tmp_path / "target")
        ended = copied(leader[0], target, call, 0)
        found.append(which(target, old[1], leader[1]))
        if ended:
            break
    assert found == sorted(found, reverse=True), "old until one moment, and new from then on"
    assert found.count("old") > 10
    assert found.count("new") > 10


def test_killed_at_any_time(tmp_path: Path, leader: tuple[Path, str], old: tuple[Path, str]) -> None:
    target = renewed(old[0], tmp_path / "target")
    began = time.monotonic()
    assert copied(leader[0], target, 0, 0)
    longest = time.monotonic() - began
    rng = random.Random(1)
    found = []
    for _ in range(15):
        target = renewed(old[0], tmp_path / "target")
        copied(leader[0], target, 0, max(0.001, rng.random() * longest / 3))
        found.append(which(target, old[1], leader[1]))
    assert "old" in found


def test_killed_again_while_it_is_installed(tmp_path: Path, leader: tuple[Path, str], old: tuple[Path, str]) -> None:
    """Starts that are killed, one call further each, on the same directory: the next goes on where that one was."""
    target = renewed(old[0], tmp_path / "target")
    with opened(leader[0]) as (log, _, _), opened(target):
        copy = log.store.copy()
        place = Incoming(target, RING)
        for piece in copy.pieces(1 << 18):
            place.add(piece)
        place.finish(copy.offset, copy.entries, History(NEW))
    starter = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        f"sys.path[:0] = [{str(Path(__file__).parents[2])!r}]\n"
        "from persistence.incoming import install\n"
        "calls = 0\n"
        "def count(event, args):\n"
        "    global calls\n"
        "    calls += event in ('os.rename', 'os.remove', 'os.rmdir')\n"
        "    if calls == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.addaudithook(count)\n"
        "install(Path(sys.argv[1]))\n"
    )
    kills = 0
    while subprocess.run([sys.executable, "-c", starter, str(target)], check=False).returncode:
        kills += 1
    assert kills >= 8
    assert which(target, old[1], leader[1]) == "new"
