"""SIGKILL at each of many points around a checkpoint, the cutting of the journal and its rewriting, and the notes in
the WAL. The next start never refuses what a kill leaves, and has all that was acknowledged.

A child dies at the n-th call of what changes files; each n is tried until a run comes to its end. So every state
between two changes is seen, also those of several checkpoints, of a start with another ring, and of a large batch.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.keyspace.values import String
from tests.persistence.datakit import append, checkpoint, opened

# Reads jobs, one a line: a directory and the number of a call. Each runs in a fork, so that modules are imported once,
# and dies at that call. Answers with the exit code of the fork.
WORKER = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{root!r}]
import lmdb
from persistence import journal, largebatches, log as logs, wal
from tests.persistence.datakit import append, checkpoint, commit, opened
journal.TRUNCATE_AT_ONCE, journal.SHRINK_ABOVE = 3, 1
much = {segments}
if much:
    journal.MUCH, journal.LARGE, largebatches.FULL, largebatches.SPARE = 1, 1, 8000, 100_000
calls = call = 0

def point():
    global calls
    calls += 1
    if calls == call:
        os.kill(os.getpid(), signal.SIGKILL)

def dying(owner, name):
    function = getattr(owner, name)
    def wrapped(*words, **settings):
        point()
        try:
            return function(*words, **settings)
        finally:
            point()
    setattr(owner, name, wrapped)

for owner, name in (
    (journal.Journal, "write"), (journal.Journal, "truncate"), (journal.Journal, "_open"), (journal, "sync_directory"),
    (logs.Store, "write"), (wal.Wal, "note"), (wal.Wal, "_wipe"), (wal.Wal, "sync"), (logs, "create"),
    (Path, "replace"), (Path, "rename"), (Path, "unlink"), (os, "fsync"),
    *(((largebatches, "sync_directory"), (os, "pwritev"), (os, "fdatasync")) if much else ()),
):
    dying(owner, name)

def run(path, ring, turns):
    acknowledged = path.with_name("acknowledged")
    with opened(path, ring_bytes=ring, journal_flush_ms=100_000) as (log, ks, _):
        for turn in range(turns):
            number = int(ks.keys[b"n"].value) + 1 if b"n" in ks.keys else 1
            append(ks, b"a", 7)
            ks.set_string(b"n", b"%d" % number)
            ks.set_string(b"pad", b"x" * (ring if turn == 1 else 5000))
            commit(log, ks)
            with acknowledged.open("w") as file:
                file.write(str(number))
            if turn % 2:
                checkpoint(log, ks)

for line in sys.stdin:
    path, number = line.rsplit(" ", 1)
    child = os.fork()
    if not child:
        call = int(number)
        try:
            run(Path(path), 64 * 1024, 4)
            run(Path(path), 128 * 1024, 2)
            os._exit(0)
        finally:
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(params=["in LMDB", "in segments"])
def killed_at(request: pytest.FixtureRequest) -> Iterator[Callable[[Path, int], bool]]:
    """killed_at(directory, call): False if it came to its end before. Batches go to LMDB, or to segments."""
    program = WORKER.format(root=str(Path(__file__).parents[2]), segments=request.param == "in segments")
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        jobs, answers = worker.stdin, worker.stdout

        def killed_at(path: Path, call: int) -> bool:
            jobs.write(f"{path} {call}\n")
            jobs.flush()
            code = int(answers.readline())
            assert code in (0, -signal.SIGKILL)
            return code != 0

        yield killed_at
        jobs.close()


@pytest.mark.interpreted
@pytest.mark.timeout(400)
def test_killed_at_each_point(tmp_path: Path, killed_at: Callable[[Path, int], bool]) -> None:
    path, acknowledged = tmp_path / "data", tmp_path / "acknowledged"
    with opened(path) as (log, ks, _):
        append(ks, b"a", 7)
        checkpoint(log, ks)
    template = Path(shutil.copytree(path, tmp_path / "template"))
    ends = set()
    call, more = 0, True
    while more:
        call += 1
        shutil.rmtree(path)
        shutil.copytree(template, path)
        acknowledged.write_text("0")
        more = killed_at(path, call)
        promised = int(acknowledged.read_text() or 0)
        with opened(path) as (log, ks, _):
            number = ks.keys.get(b"n")
            found = int(number.value) if isinstance(number, String) else 0
            assert promised <= found <= promised + 1, f"killed at call {call}"
            assert append(ks, b"a", 0).length == 7 + 7 * found
            ends.add((found, log.journal.end - log.store.offset))
            assert not list(path.rglob("*.new"))
            checkpoint(log, ks)
            digest = ks.digest()
        with opened(path) as (_, ks, _):
            assert ks.digest() == digest
    assert call > 100, "hardly any points: the test shows too little"
    assert len(ends) > 8


@pytest.mark.interpreted
def test_a_power_cut_that_loses_the_note(tmp_path: Path) -> None:
    """What was not synced when the power went may be of any time: here the WAL's first block is of each time before."""
    path = tmp_path / "data"
    with opened(path, journal_flush_ms=5) as (log, ks, _):
        checkpoint(log, ks)
    blocks = [(path / "tail").read_bytes()[:4096]]
    for turn in range(4):
        with opened(path, journal_flush_ms=5) as (log, ks, _):
            ks.set_string(b"n", b"%d" % turn)
            checkpoint(log, ks)
            blocks.append((path / "tail").read_bytes()[:4096])
        blocks.append((path / "tail").read_bytes()[:4096])
    assert len(set(blocks)) > 4
    for number, block in enumerate(blocks):
        copy = Path(shutil.copytree(path, tmp_path / f"copy{number}"))
        with (copy / "tail").open("r+b") as file:
            file.write(block)
            os.fsync(file.fileno())
        with opened(copy) as (log, ks, _):
            value = ks.keys[b"n"]
            assert isinstance(value, String)
            assert value.value == b"3"
            assert log.wal.noted == (log.journal.end, log.store.offset)
