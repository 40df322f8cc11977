"""A start reads the keys of nodes, not the nodes: measured in bytes from the disk, with the page cache emptied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from persistence.store import Store
from storage.streams.capture import Capture, StreamCapture
from storage.streams.stream import Stream
from tests.persistence.datakit import keyspace

NODES, SIZE = 2000, 3300


def filled(path: Path) -> None:
    """A stream whose nodes hold junk, because nobody may read them."""
    store = Store(path)
    stream = Stream(1, keyspace(store).pool)
    stream.last_ms, stream.next_ord = NODES + 1, NODES
    nodes = [(number, (number + 1) << 64, os.urandom(SIZE)) for number in range(NODES)]
    capture = Capture(streams=[StreamCapture(1, stream.meta(), 0, NODES, nodes, None)], stream_keys={1: (b"a", 0)})
    store.write(capture, 1)
    store.close()


def forget(path: Path) -> None:
    """Drop the file from the page cache."""
    fd = os.open(path / "data.mdb", os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def read_bytes() -> int:
    """Bytes that were read from disks for this process."""
    try:
        text = Path("/proc/self/io").read_text()
    except OSError:
        pytest.skip("this system doesn't say what a process reads from disk")
    return int(text.partition("\nread_bytes: ")[2].split()[0])


def test_only_keys_are_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    filled(path)
    forget(path)
    before = read_bytes()
    store = Store(path)
    ks = keyspace(store)
    assert store.restore(ks) == (1, NODES, 0)
    start = read_bytes() - before
    for number in range(NODES):
        store.load(1, number, (number + 1) << 64)
    everything = read_bytes() - before
    store.close()
    if everything < NODES * SIZE // 2:
        pytest.skip("the page cache can't be emptied here (a file system in memory?)")
    assert start < everything // 10


def test_a_store_that_has_been_written_since_can_be_read_back_too(tmp_path: Path) -> None:
    path = tmp_path / "store"
    filled(path)
    store = Store(path)
    stream = Stream(2, keyspace(store).pool)
    stream.last_ms, stream.next_ord = 9, 1
    taken = StreamCapture(2, stream.meta(), 0, 1, [(0, 9 << 64, b"x")], None)
    store.write(Capture(streams=[taken], stream_keys={2: (b"b", 0)}), 2)
    assert store.restore(keyspace(store)) == (2, NODES + 1, 0)
    assert store.restore(keyspace(store)) == (2, NODES + 1, 0)
    store.close()
