"""The process that makes snapshots: started by a task, one at a time, killed at any moment, while batches go on."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[jobs]')")
pytest.importorskip("fsspec", reason="no fsspec here (pip install 'tidelog[jobs]')")

from tests.tidelog.jobs.snapshotkit import RUN, Job, hanging, restored
from tests.waiting import eventually
from tidelog import Client
from tidelog.jobs.snapshots import make, manifests, start
from tidelog.jobs.snapshots.process import LOCK, LOG, take_lock
from tidelog.jobs.store import StateStore
from tidelog.jobs.store.environments import forget
from tidelog.testing import Server

PROGRAM = [sys.executable, "-P", "-m", "tidelog.jobs.snapshots"]
KILLS = 8
LIMIT = 200.0  # seconds

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tidelog_server: Server, client: Client, tmp_path: Path) -> Job:
    return Job(client, tidelog_server.url, tmp_path)


def free(job: Job) -> bool:
    lock = take_lock(job.path.parent)
    if lock is not None:
        os.close(lock)
    return lock is not None


def makers(job: Job) -> list[int]:
    """Processes that were started for this job, zombies included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                mine = parent == os.getpid() and b"tidelog.jobs.snapshots" in (entry / "cmdline").read_bytes()
                zombie = parent == os.getpid() and "Z" in (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except (OSError, IndexError):
                continue
            if mine or zombie:
                found.append(int(entry.name))
    return found


def open_files(pid: int) -> list[str]:
    """What the descriptors of a process refer to. It may close some meanwhile, as Python does when it imports."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(entry))
    return found


def test_start_returns_at_once_and_leaves_nothing(job: Job, tmp_path: Path) -> None:
    job.append(3)
    job.commit(3)
    assert start(job.request)
    assert not start(job.request)  # one is still at work
    eventually(lambda: free(job))
    eventually(lambda: not makers(job))
    assert (job.kept(), job.group()) == ([3], job.end(3))
    assert "1 retained, the oldest of epoch 3" in (job.path.parent / LOG).read_text()
    found = restored(job, 3, tmp_path / "back")
    assert found is not None
    assert found[0] == 3


def test_the_process_is_on_its_own(job: Job) -> None:
    """Of low priority, in a session of its own, with no descriptor of the task's but the lock."""
    job.commit()
    with hanging() as address, socket.socket() as sock, open(__file__) as file:
        sock.bind(("127.0.0.1", 0))
        for each in (sock, file):
            os.set_inheritable(each.fileno(), True)
        job.change(access=replace(job.request.access, urls=(f"redis://{address}",), read_ms=60_000))
        assert start(job.request)
        eventually(lambda: makers(job))
        (pid,) = makers(job)
        lower = min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)  # 19 is the lowest: the tests may be nice themselves
        eventually(lambda: os.getpriority(os.PRIO_PROCESS, pid) == lower)
        assert os.getsid(pid) == pid
        links = open_files(pid)
        assert [Path(link).name for link in links if link.startswith("/")].count(LOCK) == 1
        assert __file__ not in links
        assert f"socket:[{os.fstat(sock.fileno()).st_ino}]" not in links
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: free(job) and not makers(job))


def run(job: Job, **environment: str) -> subprocess.Popen[bytes]:
    lock = take_lock(job.path.parent)
    assert lock is not None
    process = subprocess.Popen(
        [*PROGRAM, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        pass_fds=(lock,), env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])} | environment,
    )  # fmt: skip
    os.close(lock)
    assert process.stdin is not None
    with process.stdin as given:
        given.write(msgspec.json.encode(job.request))
    return process


def fill(job: Job, megabytes: int) -> None:
    """Values that can't be compressed."""
    with StateStore.open(job.path) as store:
        for at in range(megabytes // 10):
            changes = store.begin(1)
            keys = [b"\x00%d-%d" % (at, n) for n in range(10_000)]
            changes.put(keys, [b"b" + os.urandom(950) for _ in keys])
            job.at += 1
            store.commit(changes, job.at, RUN)
            job.publish(job.at)
    forget(job.path)


@pytest.mark.timeout(400)  # LIMIT, and a build machine computes several tests at a time
def test_killed_at_any_moment(job: Job, tmp_path: Path) -> None:
    """What is listed can be restored, and the next maker goes on; the group never moves beyond what is kept."""
    job.append(400)
    fill(job, 30)
    began = time.monotonic()
    assert run(job).wait(LIMIT) == 0
    usual = time.monotonic() - began
    dice = random.Random(1)
    survived = 0
    for _ in range(KILLS):
        job.commit(dice.randint(1, 3))
        began = time.monotonic()
        process = run(job)
        try:
            process.wait(dice.uniform(0.2, 1.2) * usual)
            survived += 1
            usual = min(usual, time.monotonic() - began)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        eventually(lambda: free(job))
        complete, half = manifests.listed(job.objects, job.folder)
        needed = min(job.kept())
        assert needed in [each.epoch for each in complete]
        assert job.group() <= job.end(needed)
        assert job.marked()[0] <= needed
        found = restored(job, job.at, tmp_path / "back")
        assert found is not None
        assert found[0] == complete[0].epoch
        assert len(found[2]) >= 30_000
    print(f"{survived} of {KILLS} were ready before they were killed; one takes {usual:.2f} s")
    assert survived < KILLS
    job.change(leftover=-1.0)
    for _ in range(2):  # with the first one there are three, whatever was ready
        job.commit()
        assert run(job).wait(LIMIT) == 0
    complete, half = manifests.listed(job.objects, job.folder)
    assert (len(complete), half) == (3, [])
    assert not list(job.path.parent.glob("tmp*"))


def test_readers_that_were_killed_hold_no_pages(job: Job) -> None:
    fill(job, 30)
    for _ in range(3):
        _killed_while_it_copies(job)
    assert run(job).wait(LIMIT) == 0
    assert _readers(job) == 0


def _killed_while_it_copies(job: Job) -> None:
    process = run(job)
    eventually(lambda: _readers(job) > 0 or process.poll() is not None)
    process.kill()
    process.wait()


def _readers(job: Job) -> int:
    """Processes that have a transaction open, or died in one."""
    program = "import lmdb, sys; print(lmdb.open(sys.argv[1], readonly=True, map_size=0).readers())"
    done = subprocess.run([sys.executable, "-c", program, str(job.path)], capture_output=True, text=True, check=True)
    return 0 if "no active readers" in done.stdout else done.stdout.strip().count("\n")


@pytest.mark.timeout(600)  # 0.8 GB are written: 8 s here, and more than 120 s on a busy disk
def test_batches_go_on_while_a_store_of_200_mb_is_copied(job: Job, tmp_path: Path) -> None:
    fill(job, 200)
    quiet = _commits(job, 60)
    began = time.monotonic()
    during: list[float] = []
    with run(job) as process:
        while process.poll() is None:
            during += _commits(job, 1)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.01)  # as batches come: not one after the other
    took = time.monotonic() - began
    assert process.returncode == 0
    size = (job.path / "data.mdb").stat().st_size
    quiet.sort()
    during.sort()
    epoch = job.kept()[0]
    (snapshot, *_), _ = manifests.listed(job.objects, job.folder)
    manifest = manifests.load(job.objects, snapshot)
    assert manifest is not None
    print(
        f"commit of 1,000 keys, ms: alone p50 {quiet[len(quiet) // 2] * 1e3:.1f} max {quiet[-1] * 1e3:.1f};"
        f" during p50 {during[len(during) // 2] * 1e3:.1f} p99 {during[len(during) * 99 // 100] * 1e3:.1f}"
        f" max {during[-1] * 1e3:.1f} ({len(during)} commits);"
        f" file {size >> 20} MB, copy {manifest.size >> 20} MB, {took:.1f} s"
    )
    assert epoch == manifest.epoch < job.at
    assert len(during) > 5  # if the copy held the lock of the writer, there would be one
    found = restored(job, job.at, tmp_path / "back")
    assert found is not None
    assert found[2][b"\x00now"] == b"i%d" % epoch  # of one moment
    assert found[2][b"\x00new999"] == b"i%d" % epoch


def _commits(job: Job, number: int) -> list[float]:
    took = []
    for _ in range(number):
        job.at += 1
        value = b"i%d" % job.at
        keys = [b"\x00now", *(b"\x00new%d" % n for n in range(1000))]
        began = time.perf_counter()
        with StateStore.open(job.path) as store:
            changes = store.begin(1)
            changes.put(keys, [value] * len(keys))
            store.commit(changes, job.at, RUN)
        took.append(time.perf_counter() - began)
        job.publish(job.at)
    return took


def test_two_makers_of_one_partition_on_two_machines(job: Job, tmp_path: Path) -> None:
    """Locks don't tell them apart: both finish, and what is recorded is there."""
    job.append(20)
    for _ in range(3):
        job.commit(2)
        first = run(job)
        (job.path.parent / LOCK).unlink()  # the other machine has a lock of its own
        second = run(job)
        assert (first.wait(LIMIT), second.wait(LIMIT)) == (0, 0)
        complete, half = manifests.listed(job.objects, job.folder)
        assert half == []
        assert {each.epoch for each in complete} == set(job.kept())
        assert job.group() == job.end(min(job.kept()))


def test_a_server_that_is_away_meanwhile(job: Job, tidelog_server: Server) -> None:
    job.append(5)
    job.commit(2)
    tidelog_server.kill()
    assert run(job).wait(LIMIT) == 1
    tidelog_server.start()
    assert job.record() is None
    assert run(job).wait(LIMIT) == 0
    assert job.kept() == [2]


def test_makers_in_this_process_and_another_exclude_each_other(job: Job) -> None:
    job.commit()
    lock = take_lock(job.path.parent)
    assert lock is not None
    assert not start(job.request)
    os.close(lock)
    make(job.request)
    assert job.kept() == [1]
