"""The manifests of snapshots, and the contents of a partition's folder.

    <url>/<job>/<generation>/<partition>/
        000000000120-20261122T173000Z-3f9a1c20.lmdb.zst     the LMDB file data.mdb, compacted, in one zstd frame
        000000000120-20261122T173000Z-3f9a1c20.json         its manifest, written last

    {"format": "tidelog snapshot, format 1", "job": "count", "generation": 1, "partition": 0,
     "epoch": 120, "run": "5f0c...",                 of the store when it was copied
     "previous": {"epoch": 119, "run": "5f0c..."},   the version that undo restores; null: it can't be undone
     "inputs": {"clicks": ["1700000000100.2", "1700000000000.0"]},
                                                     position after this epoch, and after the previous one,
                                                     informational
     "time": 1795368600000,                          ms since 1970
     "size": 209715200, "stored": 52428800,          bytes of data.mdb, bytes of the object
     "sha256": "...",                                of the object
     "tool": "0.1.0"}                                version of tidelog that created it

A snapshot contains the store at epoch N, whether N was published or not. The store can undo N, so the snapshot also
represents N-1. The replay log determines which of the two is valid: N is valid if its marker has the run of the
manifest. Otherwise N must be undone, and N-1 is valid if its marker has the run of ``previous``.

Rule 1: An object without a manifest is not a snapshot. Removal starts with the manifest.
Rule 2: A name contains the start time. An object that has no manifest after ``LEFTOVER`` seconds was left by a process
        that died.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

import msgspec

import tidelog
from tidelog.jobs.snapshots.objects import MissingError, ObjectStore

FORMAT: Final = "tidelog snapshot, format 1"
OBJECT: Final = ".lmdb.zst"
MANIFEST: Final = ".json"
LEFTOVER: Final = 24 * 3600.0  # seconds; longer than a snapshot may take
_NAME: Final = re.compile(r"(\d{12,})-(\d{8}T\d{6}Z)-[0-9a-f]{8}")

log = logging.getLogger(__name__)


class PreviousVersion(msgspec.Struct, frozen=True):
    """The version that undo restores."""

    epoch: int
    run: str


class SnapshotManifest(msgspec.Struct, frozen=True, kw_only=True):
    """See above."""

    job: str
    generation: int
    partition: int
    epoch: int
    run: str
    previous: PreviousVersion | None
    inputs: Mapping[str, tuple[str, str]]  # empty if the replay log has no marker of the epoch yet
    time: int
    size: int
    stored: int
    sha256: str
    format: str = FORMAT
    tool: str = tidelog.__version__

    def dumped(self) -> bytes:
        """Return the file's content."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


@dataclass(frozen=True)
class SnapshotFiles:
    """A snapshot according to the names of its files."""

    folder: str
    name: str
    epoch: int
    began: float  # seconds since 1970

    @property
    def object(self) -> str:
        return f"{self.folder}/{self.name}{OBJECT}"

    @property
    def manifest(self) -> str:
        return f"{self.folder}/{self.name}{MANIFEST}"


def folder_of(job: str, generation: int, partition: int) -> str:
    return f"{job}/{generation}/{partition}"


def new(folder: str, epoch: int) -> SnapshotFiles:
    """Return the names of a snapshot that starts now."""
    now = int(time.time())
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    return SnapshotFiles(folder, f"{epoch:012d}-{stamp}-{uuid4().hex[:8]}", epoch, now)


def listed(objects: ObjectStore, folder: str) -> tuple[list[SnapshotFiles], list[SnapshotFiles]]:
    """Return the complete snapshots, newest first, and those that lack the manifest or the object.

    Raises SnapshotError if the object store does not respond. Files with other names are ignored.
    """
    found: dict[str, set[str]] = {}
    for file in objects.names(folder):
        for ending in (OBJECT, MANIFEST):
            if file.endswith(ending):
                found.setdefault(file.removesuffix(ending), set()).add(ending)
    complete: list[SnapshotFiles] = []
    half: list[SnapshotFiles] = []
    for name, endings in found.items():
        if match := _NAME.fullmatch(name):
            began = datetime.strptime(match[2], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
            each = SnapshotFiles(folder, name, int(match[1]), began)
            (complete if len(endings) == 2 else half).append(each)
    complete.sort(key=lambda each: (each.epoch, each.began, each.name), reverse=True)
    return complete, half


def load(objects: ObjectStore, snapshot: SnapshotFiles) -> SnapshotManifest | None:
    """Return a snapshot's manifest; None, logged, if it is invalid. Raises SnapshotError if it can't be read."""
    try:
        manifest = msgspec.json.decode(objects.read(snapshot.manifest), type=SnapshotManifest)
    except (MissingError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("the manifest %s/%s is damaged or missing: %s", objects.shown, snapshot.manifest, error)
        return None
    if manifest.format != FORMAT:
        log.warning("%s/%s has the unknown format %r", objects.shown, snapshot.manifest, manifest.format)
        return None
    folder = folder_of(manifest.job, manifest.generation, manifest.partition)
    if (folder, manifest.epoch) != (snapshot.folder, snapshot.epoch):
        log.warning("%s/%s belongs to %s, epoch %d", objects.shown, snapshot.manifest, folder, manifest.epoch)
        return None
    return manifest


def remove(objects: ObjectStore, snapshot: SnapshotFiles) -> None:
    """Remove a snapshot, the manifest first (Rule 1). Raises SnapshotError."""
    objects.remove(snapshot.manifest)
    objects.remove(snapshot.object)
