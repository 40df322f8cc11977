"""A disk that is really full: a file size limit that the kernel enforces, and, for root, a small file system."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = """
import resource, shutil, signal, sys, time
from pathlib import Path
sys.path[:0] = [{root!r}, {here!r}]
from tests.persistence.datakit import append, checkpoint, commit, opened
from persistence import log as logfile
logfile.RETRY_SECONDS = 0.02
where, how = Path(sys.argv[1]), sys.argv[2]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ballast = where / "ballast"

def refuse():
    if how == "limit":  # no file may grow beyond what the largest has now
        size = max(file.stat().st_size for file in (where / "data").rglob("*") if file.is_file())
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        return
    try:
        with ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        pass

def allow():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    ballast.unlink(missing_ok=True)

def until(true):
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)

def fill(log, ks):
    # Append until writes are refused; returns a batch that was refused itself and must be tried again, or nothing.
    batch = b""
    for _ in range(3000):
        if log.writable() is not None:
            break
        append(ks, b"a", 1, pad=3000)
        batch = ks.take_batch()
        try:
            log.append(batch)
        except OSError:  # the ring was full before the journal said why
            break
        batch = b""
        time.sleep(0.001)
    assert log.writable() is not None, "it never refused"
    return batch

with opened(where / "data", ring_bytes=1 << 20) as (log, ks, _):
    append(ks, b"a", 40, pad=300)
    checkpoint(log, ks)
    for turn in range(3):
        refuse()
        held = fill(log, ks)
        print("refused:", log.writable())
        digest = ks.digest()  # which reads everything
        try:
            checkpoint(log, ks)
        except OSError as error:
            print("checkpoint:", error)
        else:
            raise AssertionError("a checkpoint on a full disk")
        allow()
        until(lambda: log.journal.end == log.offset)
        log.append(held)
        checkpoint(log, ks)
        assert log.writable() is None
        assert ks.digest() == digest
    refuse()
    last = append(ks, b"a", 0).last_ms
    held = fill(log, ks)
    acknowledged = append(ks, b"a", 0).last_ms - bool(held)
    assert acknowledged >= last
with opened(where / "data", ring_bytes=1 << 20) as (log, ks, _):  # a start on a full disk: reads live
    assert append(ks, b"a", 0).last_ms == acknowledged
    assert ks.digest()
    until(log.writable)
    allow()
    until(lambda: log.writable() is None)
    append(ks, b"a", 1)
    commit(log, ks)
    digest = ks.digest()
with opened(where / "data", ring_bytes=1 << 20) as (log, ks, _):
    assert ks.digest() == digest
print("healed")
"""


def run(where: Path, how: str) -> None:
    here = Path(__file__).parent
    program = PROGRAM.format(root=str(here.parents[1]), here=str(here))
    args = [sys.executable, "-c", program, str(where), how]
    child = subprocess.run(args, capture_output=True, text=True, timeout=100)
    assert child.returncode == 0, (child.stdout[-500:], child.stderr)
    assert child.stdout.endswith("healed\n")


def test_a_limit_on_file_sizes(tmp_path: Path) -> None:
    run(tmp_path, "limit")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid():
        pytest.skip("only root may mount a small file system")
    where = tmp_path / "small"
    where.mkdir()
    args = ["mount", "-t", "tmpfs", "-o", "size=6m", "tidelog-test", str(where)]
    made = subprocess.run(args, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no small file system here: {made.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", where], check=True)


def test_a_small_file_system(small: Path) -> None:
    run(small, "ballast")


def test_a_new_directory_on_a_full_disk_is_an_oserror(small: Path) -> None:
    from persistence.log import Log
    from tests.persistence.datakit import options

    with pytest.raises(OSError, match="No space left"):
        Log.open(small / "data", options(ring_bytes=16 << 20))
    log = Log.open(small / "data", options())  # with a ring that fits
    log.close()
