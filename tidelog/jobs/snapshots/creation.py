"""Creates a snapshot: copy, upload, manifest, removal of old snapshots, and the record on the server.

Runs in a separate process (``process``).

Rule 1: The job's tasks continue. The only thing used of the store is a read transaction, while the copy to a local file
        is made.
Rule 2: A failure is recorded on the server (``catalog``), with the time of the first one. The object store may fail for
        any length of time: inputs and replay log are retained, and the next snapshot tries again.
Rule 3: Old snapshots are removed after the new one is complete. The server's groups and logs move after that, and only
        to what the retained snapshots need.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import IO, Final

import lmdb
import msgspec.structs
import zstandard

from tidelog.jobs.errors import JobError, SupersededError
from tidelog.jobs.snapshots import catalog, manifests, owners, retention
from tidelog.jobs.snapshots.catalog import PartitionSnapshots, SnapshotInfo
from tidelog.jobs.snapshots.manifests import LEFTOVER, PreviousVersion, SnapshotFiles, SnapshotManifest
from tidelog.jobs.snapshots.objects import PATIENCE, PIECE, ObjectStore, SnapshotError
from tidelog.jobs.store.copying import opened
from tidelog.jobs.store.environments import boot_id
from tidelog.jobs.store.errors import StoreUnusableError
from tidelog.jobs.store.store import StoreMeta
from tidelog.transport.access import Access
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection, UnreachableError

LEVEL: Final = 3  # of compression
RETRIES: Final = 10  # of requests to the server: the next snapshot will try again anyway

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SnapshotRequest:
    """The work of a snapshot process."""

    job: str
    generation: int
    partition: int
    partitions: int  # of the job
    path: str  # of the store: its slot directory
    url: str  # of the object store
    access: Access
    keep: int
    topics: Mapping[str, str] = field(default_factory=dict)  # of the job, with their IDs; {}: no owner is recorded
    shared: tuple[str, ...] = ()  # input topics with one partition, which all partitions of the job read
    patience: float = PATIENCE  # timeout of the object store, in seconds
    leftover: float = LEFTOVER  # seconds after which incomplete snapshots are removed

    @property
    def folder(self) -> str:
        return manifests.folder_of(self.job, self.generation, self.partition)


def make(request: SnapshotRequest) -> SnapshotManifest:
    """Create a snapshot of the store's current version, then update everything that depends on it.

    Returns the newest snapshot's manifest, which is an earlier one if the store has not changed. SnapshotError,
    JobError, StoreError, lmdb.Error and OSError are recorded on the server before they are raised. UnreachableError,
    ReplyError, and SupersededError if there is a later generation, are not.
    """
    access = replace(request.access, retries=min(request.access.retries, RETRIES))
    with closing(LeaderConnection(access, f"snapshot:{request.job}:{request.partition}")) as servers:
        try:
            return _made(request, servers)
        except (SupersededError, UnreachableError, ReplyError):
            raise
        except Exception as error:
            _record_failure(request, servers, f"{type(error).__name__}: {error}")
            raise


def _made(request: SnapshotRequest, servers: LeaderConnection) -> SnapshotManifest:
    replay = _replay_log(request, servers)
    objects = ObjectStore(request.url, request.patience)
    began = time.monotonic()
    manifest, snapshot = _stored(request, objects, replay)
    log.info(
        "snapshot %s of epoch %d: %d bytes, %d stored, %.1f s", snapshot.name, manifest.epoch, manifest.size,
        manifest.stored, time.monotonic() - began,
    )  # fmt: skip
    replay = _replay_log(request, servers)
    kept = prune(request, objects, replay)
    _record(request, servers, replay, kept)
    return manifest


def _replay_log(request: SnapshotRequest, servers: LeaderConnection) -> retention.ReplayLog:
    """Return the current replay log. Raises SupersededError if the generation has ended."""
    replay = retention.ReplayLog(servers, request.job, request.generation, request.partition)
    if replay.superseded:
        raise SupersededError(f"job {request.job!r}: generation {request.generation} has ended")
    return replay


# -- the new snapshot --------------------------------------------------------------------------------------------
def _stored(
    request: SnapshotRequest, objects: ObjectStore, replay: retention.ReplayLog
) -> tuple[SnapshotManifest, SnapshotFiles]:  # fmt: skip
    """Copy the store and upload the copy, unless there is a snapshot of this epoch and run."""
    complete, _ = manifests.listed(objects, request.folder)
    path = Path(request.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent) as file:
        with opened(path) as (env, txn, meta):
            _ours(request, meta)
            version, previous = meta.current, meta.previous
            for each in complete:
                there = manifests.load(objects, each) if each.epoch == version.epoch else None
                if there is not None and there.run == version.run:
                    return there, each
            copied = copy(env, txn, file)
        if request.topics:
            owners.write(objects, request.job, request.generation, request.topics)
        snapshot = manifests.new(request.folder, version.epoch)
        upload(objects, snapshot, file, copied)
    manifest = SnapshotManifest(
        job=request.job, generation=request.generation, partition=request.partition, epoch=version.epoch,
        run=version.run,
        previous=PreviousVersion(previous.epoch, previous.run) if previous is not None else None, inputs={},
        time=int(time.time() * 1000), size=copied.size, stored=copied.stored, sha256=copied.sha256,
    )  # fmt: skip
    manifest = msgspec.structs.replace(manifest, inputs=retention.spans(replay, manifest))
    objects.write(snapshot.manifest, manifest.dumped())
    return manifest, snapshot


def _ours(request: SnapshotRequest, meta: StoreMeta) -> None:
    """Raise StoreUnusableError if a task would not use the store either."""
    if meta.generation != request.generation:
        raise StoreUnusableError(f"{request.path} belongs to generation {meta.generation}, not {request.generation}")
    if meta.boot != boot_id():
        raise StoreUnusableError(f"{request.path} was written before the machine was restarted, and may be incomplete")


def upload(objects: ObjectStore, snapshot: SnapshotFiles, file: IO[bytes], copied: CopyResult) -> None:
    """Upload the copy of a store. Raises SnapshotError if the object then has a different size."""
    file.seek(0)
    with objects.upload(snapshot.object) as write:
        while piece := file.read(PIECE):
            write(piece)
    there = objects.names(snapshot.folder).get(snapshot.object.rpartition("/")[2])
    if there != copied.stored:
        raise SnapshotError(f"{objects.shown}/{snapshot.object} has {there} bytes, but {copied.stored} were written")


# -- old snapshots ------------------------------------------------------------------------------------------------
def prune(
    request: SnapshotRequest, objects: ObjectStore, replay: retention.ReplayLog
) -> list[tuple[SnapshotFiles, SnapshotManifest]]:
    """Remove surplus snapshots; return the retained ones, newest first.

    Damaged or incomplete snapshots, and those that the log contradicts, may belong to a process that is still running.
    They are removed only once they are old.
    """
    complete, odd = manifests.listed(objects, request.folder)
    kept: list[tuple[SnapshotFiles, SnapshotManifest]] = []
    surplus: list[SnapshotFiles] = []
    for each in complete:
        if len(kept) == request.keep:
            surplus.append(each)
            continue
        manifest = manifests.load(objects, each)
        if manifest is None or retention.contradicted(replay, manifest):
            odd.append(each)
        else:
            kept.append((each, manifest))
    now = time.time()
    for each in surplus + [each for each in odd if now - each.began > request.leftover]:
        log.info("removing %s/%s", objects.shown, each.name)
        manifests.remove(objects, each)
    return kept


# -- the server --------------------------------------------------------------------------------------------------
def _record(
    request: SnapshotRequest,
    servers: LeaderConnection,
    replay: retention.ReplayLog,
    kept: Sequence[tuple[SnapshotFiles, SnapshotManifest]],
) -> None:
    """Record the retained snapshots on the server, then evict what they do not need."""
    if not kept:
        raise SnapshotError("the snapshot is useless: according to the replay log, other runs published its epochs")
    oldest = kept[-1][1]
    needs: Mapping[str, str] = retention.needs(replay, oldest)
    stated = tuple(
        SnapshotInfo(each.name, manifest.epoch, manifest.time, manifest.size, manifest.stored)
        for each, manifest in kept
    )
    all_ = catalog.change(
        servers, request.job, request.generation, request.partition,
        lambda record: PartitionSnapshots(stated, {**record.needs, **needs}),
    )  # fmt: skip
    retention.move_groups(servers, request.job, request.partition, request.partitions, request.shared, all_)
    evicted = retention.trim(servers, replay, oldest)
    log.info("%d retained, the oldest of epoch %d; %d markers evicted", len(kept), oldest.epoch, evicted)


def _record_failure(request: SnapshotRequest, servers: LeaderConnection, error: str) -> None:
    """Record on the server why there is no snapshot. If that fails, it is only logged."""
    now = int(time.time() * 1000)

    def failed(record: PartitionSnapshots) -> PartitionSnapshots:
        return msgspec.structs.replace(record, error=error, since=record.since if record.error else now)

    try:
        catalog.change(servers, request.job, request.generation, request.partition, failed)
    except (SupersededError, UnreachableError, ReplyError, JobError) as other:
        log.error("a failure could not be recorded on the server: %s", other)


# -- the copy --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CopyResult:
    """Size and checksum of the copy."""

    size: int  # bytes of the LMDB file
    stored: int  # compressed bytes
    sha256: str  # of the compressed bytes


def copy(env: lmdb.Environment, txn: lmdb.Transaction[bytes], into: IO[bytes]) -> CopyResult:
    """Write a compressed copy of what ``txn`` sees. Raises OSError or lmdb.Error.

    During the read transaction, LMDB does not reuse pages freed since its start, and the store grows. The copy is
    therefore written to a local file, so that the transaction does not wait for the object store.
    """
    packer = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compressobj()
    digest, size, stored = sha256(), 0, 0

    def put(piece: bytes) -> None:
        nonlocal stored
        digest.update(piece)
        stored += len(piece)
        into.write(piece)

    for piece in _compacted(env, txn):
        size += len(piece)
        put(packer.compress(piece))
    put(packer.flush())
    into.flush()
    return CopyResult(size, stored, digest.hexdigest())


def _compacted(env: lmdb.Environment, txn: lmdb.Transaction[bytes]) -> Iterator[bytes]:
    """Yield the bytes of the compacted copy, which a thread writes into a pipe."""
    reader, writer = os.pipe()
    errors: list[lmdb.Error | OSError] = []

    def write() -> None:
        try:
            env.copyfd(writer, compact=True, txn=txn)
        except (lmdb.Error, OSError) as error:
            errors.append(error)
        finally:
            os.close(writer)

    thread = threading.Thread(target=write, name="copy", daemon=True)
    thread.start()
    try:
        while piece := os.read(reader, PIECE):
            yield piece
    finally:
        os.close(reader)
        thread.join()
    if errors:
        raise errors[0]
