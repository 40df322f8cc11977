"""``tidelog-server --restore``: creates a data directory from a recorded full copy, as a leader sends it to a replica.

    +FULLRESYNC <ID> <offset>               as a leader answers PSYNC, see replication.handshake
    COPY, PIECE ..., DONE, BATCH ..., ALIVE   see replication.frames

``tidelog restore`` writes this from a backup to the standard input of this program.

Rule 1: the last frame is an ALIVE with the log offset at which the log ends. Without it, the input is truncated.
Rule 2: everything is verified as in a replica: each entry of the store, and each batch by replaying it.
Rule 3: the directory begins a new history at the end of its log, because the copied server may have continued under the
old ID. A replica that has no more than this log can still follow either server.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from persistence.directory import sync as sync_directory
from persistence.fullcopy import Incoming
from persistence.history import History
from persistence.log import Log, LogOptions, Recovered
from persistence.permissions import FOLDER
from replication import frames
from replication.frames import FrameDecoder, LinkError, ReplicationFrame
from replication.handshake import LONGEST_LINE, PsyncAnswer, read_answer
from respserver.config.config import Config
from respserver.runtime.data import empty_keyspace
from storage.keyspace.changes import EVERYTHING
from storage.keyspace.keyspace import Keyspace
from storage.streams.stream import Stream

AT_ONCE = 1 << 20  # bytes that are read, or appended to the log, at a time

Summary = dict[str, int | str]


def restore(source: BinaryIO, config: Config) -> Summary:
    """Create the directory ``config.dir``, which must be empty or missing; return a summary of its contents as JSON.

    The directory is created as ``<dir>.restoring`` and renamed when it is complete and on disk, so no server can start
    with a part of it. Raises LinkError, CorruptError, OSError; nothing remains then.
    """
    directory = Path(config.dir)
    if directory.exists() and any(directory.iterdir()):
        raise LinkError(f"{directory}: not empty; a restore creates a new directory")
    half = directory.with_name(f"{directory.name}.restoring")
    if half.exists():
        raise LinkError(f"{half}: left by an interrupted restore; remove it first")
    half.mkdir(mode=FOLDER, parents=True)
    try:
        summary = _fill(half, source, config)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise
    if directory.exists():
        directory.rmdir()
    half.rename(directory)
    sync_directory(directory.parent)
    return summary


def _fill(directory: Path, source: BinaryIO, config: Config) -> Summary:
    """Create a data directory in an empty directory."""
    answer, left = _introduction(source), _frames(source)
    # A sync for each batch would take hours; the log is synced once at the end.
    options = LogOptions(appendfsync="no", ring_bytes=config.wal_size, checkpoint_bytes=config.checkpoint_size)
    Log.open(directory, options).close()
    _take_copy(left, answer, Incoming(directory, config.wal_size))
    disk = Log.open(directory, options)  # installs the copy
    try:
        ks = empty_keyspace(disk, config)
        found = disk.recover(ks)
        end = _take_log(left, disk, ks, found)
        if disk.offset != end:
            raise LinkError(f"the log ends at {disk.offset} instead of {end}")
        disk.sync()
        _checkpoint(disk, ks)
        disk.history.shift(disk.offset)
        disk.save_history()
        return _summary(disk, ks)
    finally:
        disk.close()


def _introduction(source: BinaryIO) -> PsyncAnswer:
    answer = read_answer(source.readline(LONGEST_LINE).decode("utf-8", "replace").rstrip())
    if answer.offset < 0:
        raise LinkError("the input does not begin with a full copy")
    return answer


def _frames(source: BinaryIO) -> Iterator[ReplicationFrame]:
    decoder = FrameDecoder()
    while data := source.read(AT_ONCE):
        yield from decoder.feed(data)


def _take_copy(left: Iterator[ReplicationFrame], answer: PsyncAnswer, incoming: Incoming) -> None:
    """Write the copy into ``incoming`` and make it ready to be installed."""
    try:
        _next(left, frames.COPY, answer.offset)
        while (frame := _next(left, frames.PIECE, answer.offset, frames.DONE)).kind == frames.PIECE:
            incoming.add(frame.payload)
        (entries,) = frames.read_numbers(frames.DONE_BODY, frame.payload)
        incoming.finish(answer.offset, entries, History(answer.replid))
    except BaseException:
        incoming.abandon()
        raise


def _take_log(left: Iterator[ReplicationFrame], disk: Log, ks: Keyspace, found: Recovered) -> int:
    """Replay and log the batches; return the log offset at which the log should end."""
    waiting: list[bytes] = []
    size = 0
    while True:
        frame = _next(left, frames.BATCH, disk.offset + size, frames.ALIVE)
        if frame.kind == frames.BATCH:
            found.replay(ks, frame.payload, disk.path)
            ks.ready.clear()
            waiting.append(frame.payload)
            size += len(frame.payload)
        if size and (size >= AT_ONCE or frame.kind == frames.ALIVE):
            disk.append(b"".join(waiting))
            waiting, size = [], 0
        if frame.kind == frames.ALIVE:
            return frame.offset


def _next(left: Iterator[ReplicationFrame], kind: int, offset: int, last: int = 0) -> ReplicationFrame:
    """Return the next frame: of ``kind`` at that log offset, or of kind ``last``. Raises LinkError."""
    frame = next(left, None)
    if frame is None:
        raise LinkError("the input is truncated")
    if frame.kind != last and (frame.kind, frame.offset) != (kind, offset):
        expected = f"{chr(kind)} at {offset}"
        raise LinkError(f"a frame of kind {chr(frame.kind)} at log offset {frame.offset} instead of {expected}")
    return frame


def _checkpoint(disk: Log, ks: Keyspace) -> None:
    """Write a checkpoint, so that the first start has nothing to replay."""
    capture = ks.begin_capture()
    ks.changes.more(EVERYTHING)
    disk.checkpoint(capture, disk.offset)
    disk.renew_view()
    ks.changes.stored(capture, EVERYTHING)


def _summary(disk: Log, ks: Keyspace) -> Summary:
    streams = [value for value in ks.keys.values() if isinstance(value, Stream)]
    groups = [group for stream in streams for group in stream.groups.values()]
    return {
        "keys": len(ks.keys),
        "streams": len(streams),
        "entries": sum(stream.length for stream in streams),
        "newest_ms": max((stream.last_ms for stream in streams), default=0),
        "groups": len(groups),
        "pending": sum(len(group.pending) for group in groups),
        "stages": len(ks.stages.by_name),
        "log_offset": disk.offset,
        "bytes": sum(file.stat().st_blocks * 512 for file in disk.path.rglob("*") if file.is_file()),
        "id": disk.history.id,
    }
