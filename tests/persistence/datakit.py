"""What the tests of persistence share: keyspaces with something in them, and a log over a directory."""

from __future__ import annotations

import errno
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from persistence.log import Log, LogOptions, Recovered
from storage.groups.group import Group
from storage.keyspace.keyspace import Keyspace
from storage.model.entries import entry_wire, id_bulk
from storage.nodes.cache import NodeCache
from storage.nodes.node import Node
from storage.nodes.pool import NodePool, NodeStore
from storage.streams.rangecopy import RangeCopy
from storage.streams.stream import Stream
from tests.storage.streams.captures import all_stored, whole_capture

RING = 64 * 1024


def wire(text: str) -> bytes:
    return b"*1\r\n$%d\r\n%b\r\n" % (len(text), text.encode())


def keyspace(store: NodeStore, max_entries: int = 10) -> Keyspace:
    nodes = NodePool(store, NodeCache(1 << 16))
    nodes.max_entries = max_entries
    return Keyspace(nodes)


def append(ks: Keyspace, key: bytes, count: int, pad: int = 0) -> Stream:
    """Add entries with the IDs 1.0, 2.0, ... after those that are there."""
    found = ks.keys.get(key)
    stream = found if isinstance(found, Stream) else ks.create_stream(key)
    for _ in range(count):
        ms = stream.last_ms + 1
        ks.append(key, stream, ms, 0, wire(f"{key.decode()} {ms} {'x' * pad}"))
    return stream


def readings(ks: Keyspace, key: bytes, count: int) -> bytes:
    """Add entries that are coded; returns their bytes."""
    stream, added = append(ks, key, 0), []
    for at in range(count):
        ms = stream.last_ms + 1 + at % 3
        added.append(entry_wire(id_bulk(ms, 0), [b"sensor", b"%02d" % (at % 10), b"t", b"%.1f" % (at * 7 % 90 / 10)]))
        ks.append(key, stream, ms, 0, added[-1])
    return b"".join(added)


def delete(ks: Keyspace, key: bytes, ordinals: Iterable[int]) -> None:
    """Delete these entries one by one, as far as they are alive."""
    stream, dead = append(ks, key, 0), dead_of(ks, key)
    alive = [at for at in sorted(ordinals) if stream.first_ord <= at < stream.next_ord and at not in dead]
    if alive:
        ks.delete_entries(key, stream, alive, stream.id_at(alive[-1]))


def dead_of(ks: Keyspace, key: bytes) -> set[int]:
    """The ordinals of a stream's dead entries."""
    stream = append(ks, key, 0)
    return set() if stream.tombstones is None else set(stream.tombstones.marked(stream.first_ord, stream.next_ord))


def group(ks: Keyspace, key: bytes, name: bytes, pending: int) -> Group:
    stream = append(ks, key, 0)
    made = Group(name, 5)
    for number in range(pending):
        made.pending.add([(number + 1 << 64).to_bytes(16, "big")], 1000 + number, 2000, 0, 100)
    stream.groups[name] = made
    made.dirty = True
    ks.group_changed(key, stream, made, b"")
    return made


def range_copy(stream: Stream, first_ord: int, first_id: int, count: int) -> Node | None:
    """The entries of a range as one node, collected one by one."""
    copy = RangeCopy(first_ord, first_id, count, 1 << 24)
    while copy.step(stream, 1, 1):
        pass
    return copy.node()


def options(**changes: object) -> LogOptions:
    made = LogOptions(ring_bytes=RING, journal_flush_ms=5)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@contextmanager
def opened(path: Path, max_entries: int = 10, **changes: object) -> Iterator[tuple[Log, Keyspace, Recovered]]:
    """A log that has recovered, its keyspace, and what was found."""
    log = Log.open(path, options(**changes))
    try:
        ks = keyspace(log.store, max_entries)
        yield log, ks, log.recover(ks)
    finally:
        log.close()


def commit(log: Log, ks: Keyspace) -> None:
    """End of a tick."""
    log.append(ks.take_batch())


def checkpoint(log: Log, ks: Keyspace) -> None:
    """A checkpoint as the server does it, but in one thread."""
    commit(log, ks)
    capture = whole_capture(ks)
    try:
        log.checkpoint(capture, log.offset)
    except Exception:
        ks.changes.failed(capture)
        raise
    log.renew_view()
    all_stored(ks, capture)


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def full(*args: object) -> None:
    raise OSError(errno.ENOSPC, "no space left on the device")


def crashed(path: Path) -> Path:
    """A copy of the directory as a SIGKILL would leave it now: what is in the files, without what close() does."""
    copy = path.parent / f"crash{random.randrange(10**12)}"
    shutil.copytree(path, copy)
    return copy


def crashed_while_writing(path: Path, log: Log) -> Path:
    """The same while the journal is being written, which is held meanwhile: a copy is made file by file."""
    with log._writing:
        return crashed(path)


def flush(log: Log) -> None:
    """Write the waiting batches to the journal, as its thread does."""
    with log._writing:
        log._flush([])
