"""SIGKILL at each of many points around a checkpoint, the cutting of the journal and its rewriting, and the notes in
the WAL. The next start never refuses what a kill leaves, and has all that was acknowledged.

A child dies at the n-th call of what changes files; each n is tried until a run comes to its end. So every state
between two changes is seen, also those of several checkpoints, of a start with another ring, and of a large batch.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.keyspace.values import String
from tests.killpoints import forks
from tests.persistence.datakit import append, checkpoint, opened

# Its job: a directory, the number of a call. It dies at that call.
WORKER = """
import os
from pathlib import Path
import lmdb
from persistence import journal, largebatches, log as logs, wal
from tests.killpoints import Calls, serve
from tests.persistence.datakit import append, checkpoint, commit, opened
journal.TRUNCATE_AT_ONCE, journal.SHRINK_ABOVE = 3, 1
much = {segments}
if much:
    journal.MUCH, journal.LARGE, largebatches.FULL, largebatches.SPARE = 1, 1, 8000, 100_000
calls = Calls(
    (journal.Journal, "write"), (journal.Journal, "truncate"), (journal.Journal, "_open"), (journal, "sync_directory"),
    (logs.Store, "write"), (wal.Wal, "note"), (wal.Wal, "_wipe"), (wal.Wal, "sync"), (logs, "create"),
    (Path, "replace"), (Path, "rename"), (Path, "unlink"), (os, "fsync"),
    *(((largebatches, "sync_directory"), (os, "pwritev"), (os, "fdatasync")) if much else ()),
)

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

def job(path, call):
    calls.fatal = call
    run(Path(path), 64 * 1024, 4)
    run(Path(path), 128 * 1024, 2)
    return 0

serve(job)
"""


@pytest.fixture(params=["in LMDB", "in segments"])
def killed_at(request: pytest.FixtureRequest) -> Iterator[Callable[[Path, int], bool]]:
    """killed_at(directory, call): False if it came to its end before. Batches go to LMDB, or to segments."""
    with forks(WORKER.format(segments=request.param == "in segments")) as run:

        def killed_at(path: Path, call: int) -> bool:
            code = run(str(path), call)
            assert code in (0, -signal.SIGKILL)
            return code != 0

        yield killed_at


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
