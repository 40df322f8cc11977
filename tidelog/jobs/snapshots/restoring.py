"""Restores the newest valid snapshot of a partition into a directory.

Rule 1: ``into`` receives a complete, verified snapshot or is not touched. Its former content is replaced atomically.
Rule 2: A snapshot is valid if its object has the size and the SHA-256 of the manifest, and opens as a store of its
        epoch and run. An invalid one is logged, and the next older one is tried.
Rule 3: "There is no snapshot" is only reported if the object store has answered every request. Otherwise it is an
        error, because the inputs that an empty store would need may have been evicted.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final
from uuid import uuid4

import zstandard

from tidelog.jobs.snapshots import manifests
from tidelog.jobs.snapshots.manifests import SnapshotFiles, SnapshotManifest
from tidelog.jobs.snapshots.objects import PATIENCE, MissingError, ObjectStore, SnapshotError
from tidelog.jobs.store.copying import opened
from tidelog.jobs.store.errors import StoreError

_FILE: Final = "data.mdb"

log = logging.getLogger(__name__)


class DamagedError(Exception):
    """A snapshot differs from its manifest."""


def restore(
    store_url: str,
    job: str,
    generation: int,
    partition: int,
    into: Path,
    at_most_epoch: int,
    *,
    published: Callable[[int, str], bool] | None = None,
    patience: float = PATIENCE,
) -> bool:
    """Restore the newest valid snapshot into ``into``, the directory of a store; return False if there is none.

    at_most_epoch: the last published epoch, M. The snapshot's epoch is M at most, or M+1 if it can be undone.
    published: a function that returns whether a run published an epoch up to M, according to the replay log. If it
        returns False for both the snapshot's epoch and the one before, the snapshot is skipped. Without it, the caller
        must compare the runs: if the version's marker has another run even after ``undo``, it belongs to another
        history.

    ``into`` can be the directory that ``fill`` of ``StateStore.create(path, fill=...)`` gets. The caller then undoes
    the store's epoch if it is M+1, or has another run than its marker. Raises SnapshotError if the object store does
    not answer every request, JobError if its URL can't be used here, and OSError if the disk is full.
    """
    objects = ObjectStore(store_url, patience)
    folder = manifests.folder_of(job, generation, partition)
    complete, _ = manifests.listed(objects, folder)
    failed: SnapshotError | None = None
    for each in complete:
        if each.epoch > at_most_epoch + 1:
            continue
        try:
            manifest = manifests.load(objects, each)
            if manifest is None or not _fits(manifest, at_most_epoch, published):
                continue
            began = time.monotonic()
            _fetched(objects, each, manifest, into)
        except (DamagedError, MissingError) as error:
            log.warning("the snapshot %s/%s is skipped: %s", objects.shown, each.object, error)
        except SnapshotError as error:
            log.warning("the snapshot %s/%s is skipped: %s", objects.shown, each.object, error)
            failed = failed or error
        else:
            log.info("restored %s/%s in %.1f s", objects.shown, each.object, time.monotonic() - began)
            return True
    if failed is not None:
        raise failed
    return False


def _fits(manifest: SnapshotManifest, last: int, published: Callable[[int, str], bool] | None) -> bool:
    if manifest.epoch <= last and (published is None or published(manifest.epoch, manifest.run)):
        return True
    before = manifest.previous
    if before is None or before.epoch > last:
        return False
    return published is None or before.epoch == 0 or published(before.epoch, before.run)


def _fetched(objects: ObjectStore, snapshot: SnapshotFiles, manifest: SnapshotManifest, into: Path) -> None:
    into.parent.mkdir(parents=True, exist_ok=True)
    half = into.with_name(f"{into.name}.restoring")  # the caller holds the lock
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    try:
        _unpack(objects, snapshot, manifest, half / _FILE)
        _verify(half, manifest)
        for file in half.iterdir():
            if file.name != _FILE:  # created by opening the store
                file.unlink()
        _exchange(half, into)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _unpack(objects: ObjectStore, snapshot: SnapshotFiles, manifest: SnapshotManifest, path: Path) -> None:
    """Write the file, and verify the object."""
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    digest, stored, size = sha256(), 0, 0
    with path.open("xb") as file:
        for piece in objects.pieces(snapshot.object):
            digest.update(piece)
            stored += len(piece)
            try:
                unpacked = unpacker.decompress(piece)
            except zstandard.ZstdError as error:
                raise DamagedError(f"it can't be unpacked: {error}") from None
            size += len(unpacked)
            if size > manifest.size or stored > manifest.stored:
                raise DamagedError(f"it is larger than the {manifest.stored} bytes in its manifest")
            file.write(unpacked)
    if (stored, size) != (manifest.stored, manifest.size):
        raise DamagedError(f"it has {stored} bytes, {size} unpacked, instead of {manifest.stored} and {manifest.size}")
    if digest.hexdigest() != manifest.sha256:
        raise DamagedError("its SHA-256 differs from its manifest")


def _verify(path: Path, manifest: SnapshotManifest) -> None:
    try:
        with opened(path) as (_, _, meta):
            found = meta.current.epoch, meta.current.run
    except StoreError as error:
        raise DamagedError(f"it can't be opened: {error}") from None
    if found != (manifest.epoch, manifest.run):
        raise DamagedError(f"it has epoch and run {found}, but its manifest {(manifest.epoch, manifest.run)}")


def _exchange(half: Path, into: Path) -> None:
    """Replace ``into`` (Rule 1). An empty directory is replaced directly."""
    try:
        os.rename(half, into)
        return
    except OSError:
        if not into.is_dir():
            raise
    old = into.with_name(f"{into.name}.{uuid4().hex[:8]}.old")
    os.rename(into, old)
    os.rename(half, into)
    shutil.rmtree(old, ignore_errors=True)
