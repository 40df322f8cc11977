"""SIGKILL at each point while entries are copied, compared, removed from the store, and read back.

A child dies before or after the n-th call that reads or changes a file. Whatever it leaves, all entries can be read,
and the next process completes the work.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from persistence.log import Log
from resp.errors import AbsentNodeError
from storage.keyspace.keyspace import Keyspace
from storage.nodes.reference import is_reference
from storage.streams.stream import Stream
from tests.crash.freeingwork import ENTRIES, add, fetch
from tests.killpoints import forks
from tests.persistence.datakit import checkpoint, opened

# Its job: a directory, the target of the copies, the number of a point. It dies at that point.
WORKER = """
import os
from pathlib import Path
from persistence import store as stores
from persistence.tiering import objectstore, reader
from persistence.tiering.objectstore import LocalFiles
from tests.crash.freeingwork import work
from tests.killpoints import Calls, serve

calls = Calls(
    (LocalFiles, "names"), (LocalFiles, "read"), (LocalFiles, "write"), (LocalFiles, "create"), (os, "link"),
    (os, "replace"), (os, "fsync"), (stores.Store, "free"), (stores.Store, "write"), (Path, "rename"),
)

def job(path, target, call):
    calls.fatal = call
    work(Path(path), Path(target), calls.point)
    return 0

serve(job)
"""


def entries(log: Log, ks: Keyspace, target: Path) -> bytes:
    """Return the wire form of all entries of the stream. Those that are not in the store are read from the objects."""
    stream = ks.keys[b"a"]
    assert isinstance(stream, Stream)
    while True:
        try:
            return bytes(stream.read(stream.first_ord, stream.next_ord))
        except AbsentNodeError as error:
            fetch(log, target, error)


@pytest.mark.interpreted
@pytest.mark.timeout(400)
def test_killed_at_each_point(tmp_path: Path) -> None:
    template, path, target = tmp_path / "template", tmp_path / "data", tmp_path / "target"
    with opened(template) as (log, ks, _):
        ks.pool.max_entries = 10
        add(ks, ENTRIES)
        checkpoint(log, ks)
        expected = entries(log, ks, target)
    assert len(expected) > 80 * ENTRIES
    call, more, left = 0, True, set()
    with forks(WORKER) as run:
        while more:
            call += 1
            for one in (path, target):
                shutil.rmtree(one, ignore_errors=True)
            shutil.copytree(template, path)
            target.mkdir()
            code = run(str(path), str(target), call)
            assert code in (0, -signal.SIGKILL)
            more = code != 0
            for then in (False, True):
                if then:
                    assert run(str(path), str(target), 0) == 0, f"after a kill at point {call}"
                with opened(path) as (log, ks, _):
                    ks.pool.cache.max_bytes = 0
                    assert entries(log, ks, target).startswith(expected), f"killed at point {call}"
                    with log.store.env.begin(db=log.store.nodes) as txn:
                        freed = sum(is_reference(blob) for _, blob in txn.cursor().iternext())
                    assert not then or freed >= ENTRIES // 10
                    left.add(freed)
    assert call > 40, "hardly any points: the test shows too little"
    assert len(left) > 1
