"""Deletes the objects that nothing needs any more, in two phases.

First, the list of deletions gets the objects and pages without remaining entries, with the time, and new versions of
the manifests no longer list them. After ``tier-grace``, the files themselves are deleted. So a reader has this long to
use a manifest that it has read.

Rule 1: an object is deleted only if no manifest lists it, no node in the store refers to it, and no pin protects it.
All of this is verified again immediately before.
Rule 2: only what the store contradicts is removed: entries below the first ordinal of their stream, and streams that do
not exist any more. Only a store in which all records are confirmed counts, and that has all records of the log from
before this server began to lead: the last checkpoint of a new leader can lack some that the former leader had. It must
also have the records of the store from which the manifest was written.
Rule 2a: if even the log lacks records of the log from which the history was written, the data directory was replaced by
an older copy, and nothing is deleted. This is verified before each pass. Such a log may have grown since, so not only
the offsets are compared: the list of deletions has the replication ID of the log of the last leader, which has written
the list before anything else. It does so once the replicas have confirmed all records from before this server began to
lead, so that they know this ID. A leader that no replica has followed has copied and deleted nothing, and the next one
does not know its ID.
Rule 3: an object that no manifest lists, such as that of a process that was killed, is an orphan. It also waits for
``tier-grace``. It is deleted only if its entries were removed, or are in other objects of the manifests. The epoch in
its name must not be later than that of this leader.
Rule 4: the times are those of the server's clock and are recorded in the files. The times of the object store are not
used.
Rule 5: a pin can replace another one that has another name: a server that was restored writes its own pin, and then the
pin of its backup is removed. If this happens after all pins were listed, and before they were read, the list has only
the one that is missing. So all pins are listed again until each listed one was read.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from persistence.tiering.deletionlist import DeletionList, waiting_of
from persistence.tiering.listed import ListedStream
from persistence.tiering.manifests import NUMBERED, ManifestStore
from persistence.tiering.needed import DeletionRequest, NeededFiles, SweptStore
from persistence.tiering.objectstore import HistoryStore, HistoryStoreError, MissingFileError, TimedOutError
from persistence.tiering.source import StoredStream
from persistence.tiering.tieringpass import CopiedTo, NotReadyError
from resp.errors import CorruptError
from storage.history.deletions import OBJECT, WaitingFile
from storage.history.manifest import Manifest, Part, TrimmedManifest, directory_of, manifest_name

THREADS: Final = 16  # calls at the same time, for the manifests of many streams
BATCH: Final = 100  # manifests for which the list of deletions is written once, and files between two checks
AGAIN: Final = 3_600_000  # ms after which a file that could not be deleted is examined again


@dataclass(slots=True)
class DeletionTotals:
    """What this process has deleted, and what waits."""

    objects: int = 0
    bytes: int = 0  # of these objects
    waiting_objects: int = 0
    waiting_bytes: int = 0


class Deleting:
    """Deletes what is below a prefix."""

    def __init__(
        self, store: HistoryStore, manifests: ManifestStore, deletions: DeletionList, progress: Callable[[], None],
        now: Callable[[], int],
    ) -> None:  # fmt: skip
        """``progress``: called by any thread, after each stream. ``now``: ms since epoch."""
        self._store = store
        self._manifests = manifests
        self._listing = manifests.listing
        self._deletions = deletions
        self._progress = progress
        self._now = now
        self._is_loaded = False
        self._blocked: dict[str, int] = {}  # files that can't be deleted yet, and when they are examined again
        self.totals = DeletionTotals()
        self.problems: list[str] = []
        self._needed = NeededFiles(
            store, manifests, deletions, progress, now, lambda problem: self.problems.append(problem)
        )

    def prepare(self, wanted: DeletionRequest) -> None:
        """Verify before a pass that the log of this server has all records of the history. Otherwise, suspend
        deletions (Rule 2a).

        Raises TimedOutError, OSError. Other errors are in ``problems``.
        """
        self.problems = []
        self._guarded(wanted, lambda: self._check_log(wanted))

    def sweep(self, wanted: DeletionRequest, copied: dict[int, CopiedTo]) -> None:
        """Remove what the store no longer has, after ``prepare``. ``copied``: see ``TieringState``; it is updated.

        Raises TimedOutError, OSError. Other errors are in ``problems``.
        """
        self._guarded(wanted, lambda: self._sweep(wanted, copied))
        waiting = [file for file in self._deletions.current.files if not file.kept]
        self.totals.waiting_objects = sum(1 for file in waiting if OBJECT.fullmatch(file.name))
        self.totals.waiting_bytes = sum(file.size for file in waiting)

    def find_orphans_again(self) -> None:
        """Search for objects that no manifest lists in the next sweep."""
        self._needed.find_orphans_again()

    def _guarded(self, wanted: DeletionRequest, call: Callable[[], None]) -> None:
        """Call a function with the newest list of deletions."""
        self._deletions.epoch, self._deletions.grace = wanted.epoch, wanted.grace
        try:
            if self._is_loaded and not self._deletions.is_newest():
                self._forget()
            if not self._is_loaded:
                self._load(wanted.epoch)
            if self._deletions.problem:
                raise CorruptError(self._deletions.problem)
            call()
        except NotReadyError:
            pass  # a later sweep continues
        except TimedOutError:
            raise
        except (HistoryStoreError, CorruptError) as error:
            self._report(str(error))
            self._forget()

    def _report(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def _sweep(self, wanted: DeletionRequest, copied: dict[int, CopiedTo]) -> None:
        if self._is_suspended():
            return
        with self._needed.view(wanted) as view:
            sids = {known.sid for known in self._listing.streams.values()}
            sids.update(sid for file in self._deletions.current.files for sid, _ in file.holders)
            found = list(view.streams(lambda its: its.sid in sids or its.name in self._listing.streams))
            store = SweptStore(view.offset, {its.name for its in found}, {its.sid: its for its in found})
        self._deletions.offset = store.offset
        self._trim(store, wanted.epoch, copied)
        self._delete_versions()
        self._delete_folders(store)
        self._needed.find_orphans(wanted)
        self._delete(wanted, store)

    # -- what exists -----------------------------------------------------------------------------------------
    def _load(self, epoch: int) -> None:
        """Read the manifests of all streams that this process does not know yet."""
        self._store.open()
        self._deletions.load()
        if self._deletions.current.epoch > epoch:
            raise HistoryStoreError(
                f"a later leader has written the list of deletions, in epoch {self._deletions.current.epoch}; this one"
                f" has epoch {epoch}"
            )
        known = set(map(directory_of, self._listing.streams))
        folders = [folder for folder in self._store.names("streams") if folder not in known]
        with ThreadPoolExecutor(THREADS) as pool:
            for problem in pool.map(lambda folder: self._load_one(folder, epoch), folders):
                if problem:
                    self.problems.append(problem)
        self._is_loaded = True

    def _forget(self) -> None:
        """Let the next sweep read everything again: another process may have changed something."""
        self._is_loaded = False
        self._listing.streams.clear()
        self._listing.objects.clear()

    def _load_one(self, folder: str, epoch: int) -> str:
        try:
            self._manifests.found(folder, epoch)
        except (CorruptError, MissingFileError) as error:
            return str(error)
        self._progress()
        return ""

    def _check_log(self, wanted: DeletionRequest) -> None:
        """Suspend deletions if the log lacks records of the history. Otherwise, record whose log this is (Rule 2a)."""
        points = wanted.points
        current, own = self._deletions.current, next(iter(points))
        if not current.suspended:
            latest = max([current.offset, *(known.offset for known in self._listing.streams.values())])
            end = points.get(current.log or own, 0)
            if latest > end:
                text = (
                    f"the history was written at log offset {latest}, but the log of this server ends at {end}"
                    if current.log in ("", own) else
                    f"the history was written at offset {latest} of a log with the ID {current.log}, of which this"
                    f" server has the records up to {end}"
                )  # fmt: skip
                text += ": its data directory seems to be an older copy"
                self._deletions.save(replace(current, suspended=text))
            elif current.log != own and (wanted.offset < 0 or wanted.offset >= wanted.floor):
                self._deletions.save(replace(current, log=own))
        self._is_suspended()

    def _is_suspended(self) -> bool:
        """Return whether nothing may be deleted, and report it."""
        current = self._deletions.current
        if current.suspended:
            self._report(
                f"no object is deleted, because {current.suspended}. Check the data. Then run tidelog history repair"
            )
        return bool(current.suspended)

    # -- manifests -------------------------------------------------------------------------------------------
    def _trim(self, store: SweptStore, epoch: int, copied: dict[int, CopiedTo]) -> None:
        """Write new versions of the manifests with objects without remaining entries."""
        changes: list[TrimmedManifest] = []
        for name, known in list(self._listing.streams.items()):
            if not known.has_parts or not known.sid or directory_of(name) in self._listing.unreadable:
                continue
            if store.offset < known.offset:
                continue
            try:
                change = self._changed(name, known, store.streams.get(known.sid), epoch)
            except (CorruptError, MissingFileError) as error:
                self.problems.append(f"stream {name!r}: {error}")
                continue
            if change is not None and change.dropped:
                changes.append(change)
            if len(changes) == BATCH:
                self._change(changes, copied)
                changes = []
        self._change(changes, copied)

    def _changed(
        self, name: bytes, known: ListedStream, stream: StoredStream | None, epoch: int
    ) -> TrimmedManifest | None:  # fmt: skip
        """Return the next version of a manifest; None if it remains valid. ``stream``: perhaps with another name."""
        if stream is None:
            version = self._manifests.load(name, known.number)
            return self._manifests.trimmed(version, version.end_ord, epoch)
        if stream.first_ord <= known.first_ord or stream.first_ord < known.first_end:
            return None
        version = self._manifests.load(name, known.number)
        if not known.first_end:
            known.first_end = self._first(version).end_ord
        if stream.first_ord < known.first_end:
            return None
        return self._manifests.trimmed(version, stream.first_ord, epoch)

    def _first(self, version: Manifest) -> Part:
        """Return the first object that a manifest lists."""
        part = version.parts[0]
        while part.level:
            part = self._manifests.page(version.stream, part)[0]
        return part

    def _change(self, changes: list[TrimmedManifest], copied: dict[int, CopiedTo]) -> None:
        now = self._now()
        self._deletions.add([file for one in changes for file in self._waiting(one, now)])
        for one in changes:
            version = one.version
            self._manifests.write(version, one.pages)
            self._listing.objects.difference_update(part.name for part in one.dropped)
            for sid, its in list(copied.items()):
                if its.name != version.stream:
                    continue
                if sid == version.sid and version.parts:
                    copied[sid] = its._replace(number=version.number)
                else:
                    del copied[sid]  # the next pass reads the manifest before it copies anything
            self._progress()

    def _waiting(self, one: TrimmedManifest, now: int) -> list[WaitingFile]:
        """Return the files to list. Whether the stream has entries in them is verified again at the deletion."""
        return waiting_of(one.version.stream, one.dropped, now, one.version.sid)

    def _delete_versions(self) -> None:
        """Delete the versions of manifests that others have replaced for longer than ``tier-grace``."""
        due = self._due()
        streams = [name for name, known in self._listing.streams.items() if known.before]
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda name: self._delete_before(name, self._listing.streams[name], due), streams))

    def _delete_before(self, name: bytes, known: ListedStream, due: int) -> None:
        folder = f"streams/{directory_of(name)}"
        while known.before:
            number, replaced = known.before[0]
            if not replaced:
                replaced = known.time
                if len(known.before) > 1:
                    try:
                        replaced = self._manifests.load(name, known.before[1][0]).time or known.time
                    except (CorruptError, MissingFileError):
                        replaced = known.time
                known.before[0] = number, replaced
            if not replaced or replaced > due:
                return
            self._store.remove(f"{folder}/{manifest_name(number)}")
            del known.before[0]
            self._progress()

    def _delete_folders(self, store: SweptStore) -> None:
        """Delete the manifests of streams that have not existed for longer than ``tier-grace``."""
        due = self._due()
        gone = [
            (name, known) for name, known in self._listing.streams.items()
            if not known.has_parts and not known.before and 0 < known.time <= due and name not in store.names
        ]  # fmt: skip
        if not gone:
            return
        floor = max(known.number for _, known in gone)
        if floor > self._deletions.current.floor:
            self._deletions.save(replace(self._deletions.current, floor=floor))
        self._deletions.check_newest()
        for name, known in gone:
            self._delete_folder(f"streams/{directory_of(name)}", manifest_name(known.number))
            del self._listing.streams[name]
            self._progress()

    def _delete_folder(self, folder: str, last: str) -> None:
        """Delete the files of a stream. ``last``: its valid version, which has no parts. It is deleted last.

        A later leader can write a version meanwhile, and it is never deleted. Raises HistoryStoreError if there is one.
        """
        files = sorted(self._store.names(folder), key=lambda file: file == last)
        versions = [file for file in files if NUMBERED.fullmatch(file)]
        if any(file > last for file in versions):
            raise HistoryStoreError(
                f"{folder}/{max(versions)} was written by another process: another leader uses this prefix"
            )
        for file in files:
            self._store.remove(f"{folder}/{file}")
        self._store.remove_folder(folder)

    def _due(self) -> int:
        """Return the time before which files must have been replaced to be deleted now, in ms."""
        return self._now() - self._deletions.grace - self._deletions.slack

    # -- objects ---------------------------------------------------------------------------------------------
    def _delete(self, wanted: DeletionRequest, store: SweptStore) -> None:
        """Delete the files that have waited for long enough."""
        now, due = self._now(), self._due()
        self._blocked = {name: until for name, until in self._blocked.items() if until > now}
        files = [
            file for file in self._deletions.current.files
            if file.since <= due and not file.kept and file.name not in self._blocked
            and file.name in wanted.waiting
        ]  # fmt: skip
        if not files or store.offset < self._deletions.current.offset:
            return
        self._needed.read_references(wanted, store)
        if wanted.grace < self._deletions.current.grace:  # a backup reads there which files could be deleted
            self._deletions.save(self._deletions.current)
        for first in range(0, len(files), BATCH):
            self._needed.read_pins(store)
            self._deletions.check_newest()
            self._delete_some(wanted, store, files[first : first + BATCH])

    def _delete_some(self, wanted: DeletionRequest, store: SweptStore, files: list[WaitingFile]) -> None:
        gone: set[str] = set()
        for file in files:
            is_needed = self._needed.is_needed(file, wanted, store)
            if is_needed:
                self._blocked[file.name] = self._now() + AGAIN
                continue
            gone.add(file.name)
            if is_needed is None:  # some manifest lists it
                continue
            self._store.remove(file.name)
            if OBJECT.fullmatch(file.name):
                self.totals.objects += 1
                self.totals.bytes += file.size
            self._progress()
        if gone:
            self._deletions.save(self._deletions.current.without(gone))
