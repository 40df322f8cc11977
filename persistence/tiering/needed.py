"""Determines which files below a prefix are still needed, see ``deleting``: Rules 1, 3, and 5.

An object is needed if a node in the store refers to it, if a pin protects it, or if its stream was renamed and still
has entries in it. One that a manifest lists is needed, too, and leaves the list of deletions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from persistence.tiering import objects
from persistence.tiering.deletionlist import DeletionList
from persistence.tiering.manifests import ManifestStore
from persistence.tiering.objectstore import HistoryStore, HistoryStoreError, MissingFileError, TimedOutError
from persistence.tiering.source import StoredStream, StoreView
from persistence.tiering.tieringpass import ready
from resp.errors import CorruptError
from storage.history import pins
from storage.history.deletions import OBJECT, UNUSED, WaitingFile
from storage.history.manifest import Part, directory_of
from storage.history.objectfile import SectionRecord

NODES: Final = 20_000  # of the store in one read transaction
LISTINGS: Final = 10  # of all pins, because pins were removed meanwhile
ORPHANS: Final = 86_400_000  # ms between two searches for objects that no manifest lists


@dataclass(frozen=True, slots=True)
class DeletionRequest:
    """What the server requests."""

    directory: Path  # of the store
    epoch: int  # of the leader
    offset: int  # see ``PassRequest``
    floor: int  # likewise
    points: dict[str, int]  # the server's log: see ``History.points``
    grace: int  # ms
    waiting: frozenset[str]  # the files that waited before this process reported nodes that can leave the store


@dataclass(slots=True)
class SweptStore:
    """The store at the beginning of a sweep."""

    offset: int  # of the log, up to which it is complete
    names: set[bytes]  # of those of its streams that have a manifest
    streams: dict[int, StoredStream]  # those with the sids of manifests
    referenced: set[str] | None = None  # objects; None: not read yet
    pinned: set[str] = field(default_factory=set)
    pinned_all: bool = False


class NeededFiles:
    """Decides about the files of one prefix."""

    def __init__(
        self, store: HistoryStore, manifests: ManifestStore, deletions: DeletionList, progress: Callable[[], None],
        now: Callable[[], int], report: Callable[[str], None],
    ) -> None:  # fmt: skip
        """``report``: called with each problem. The others: see ``Deleting``."""
        self._store = store
        self._manifests = manifests
        self._listing = manifests.listing
        self._deletions = deletions
        self._progress = progress
        self._now = now
        self._report = report
        self._orphans_at = 0  # when orphans are searched next

    @contextmanager
    def view(self, wanted: DeletionRequest) -> Iterator[StoreView]:
        """Open the store. Raises NotReadyError, for example if it has records that are not confirmed: the next leader
        can lack their deletions."""
        with ready(wanted.directory, wanted.offset, wanted.floor) as view:
            yield view

    def is_needed(self, file: WaitingFile, wanted: DeletionRequest, store: SweptStore) -> bool | None:
        """Return whether a file must remain for now; None if it has to leave the list, because a manifest lists it, or
        it does not exist."""
        found = OBJECT.fullmatch(file.name)
        if found is None:
            return self._page_is_needed(file.name)
        name = file.name.removeprefix("objects/")
        if store.pinned_all or name in store.pinned or name in (store.referenced or ()):
            return True
        if int(found[1], 16) > wanted.epoch:
            return True
        for sid, end in file.holders:
            if sid in store.streams and store.streams[sid].first_ord < end:  # it was renamed
                return True
        if file.why == UNUSED:  # its index can be damaged, and no manifest ever listed it
            return None if name in self._listing.objects else False
        try:
            records = objects.index_of(self._store, file.name, file.size, file.index_offset)
        except MissingFileError:
            return None
        except CorruptError as error:
            self._report(f"{file.name} can't be deleted: {error}")
            return True
        return self._object_is_needed(name, records, wanted, file.why == "orphan")

    def _object_is_needed(
        self, name: str, records: list[SectionRecord], wanted: DeletionRequest, is_orphan: bool
    ) -> bool | None:  # fmt: skip
        ranges: dict[bytes, tuple[int, int]] = {}
        for record in records:
            head = record.head
            first, _ = ranges.get(head.stream, (head.first_ord, 0))
            ranges[head.stream] = first, head.end_ord
        covered: set[bytes] = set()
        for stream, (first, end) in ranges.items():
            if directory_of(stream) in self._listing.unreadable:
                return True
            if self._listing.may_list(stream, first, end):
                try:
                    its = self._parts_of(stream, first, end)
                except (CorruptError, MissingFileError):
                    return True
                if any(part.name == name for part in its):
                    return None
                if its[0].first_ord <= first and its[-1].end_ord >= end:
                    covered.add(stream)
        if not is_orphan:
            return False
        left = ranges.keys() - covered
        if not left:
            return False
        with self.view(wanted) as view:
            return any(its.first_ord < ranges[its.name][1] for its in view.streams(lambda its: its.name in left))

    def _parts_of(self, stream: bytes, first: int, end: int) -> list[Part]:
        """Return the objects that the manifest of a stream lists for a range of ordinals."""

        def below(parts: Iterable[Part]) -> list[Part]:
            found: list[Part] = []
            for part in parts:
                if not part.level:
                    self._listing.objects.add(part.name)
                if part.first_ord < end and part.end_ord > first:
                    found += below(self._manifests.page(stream, part)) if part.level else [part]
            return found

        return below(self._manifests.load(stream, self._listing.streams[stream].number).parts)

    def _page_is_needed(self, name: str) -> bool | None:
        """Return whether a manifest that exists lists a page."""
        _, folder, page = name.split("/")
        if folder in self._listing.unreadable:
            return True
        stream = next((each for each in self._listing.streams if directory_of(each) == folder), None)
        if stream is None:
            return False

        def lists(parts: Iterable[Part]) -> bool:
            return any(
                part.level and (part.name == page or (part.level > 1 and lists(self._manifests.page(stream, part))))
                for part in parts
            )

        try:
            version = self._manifests.load(stream, self._listing.streams[stream].number)
            return None if lists(version.parts) else False
        except (CorruptError, MissingFileError):
            return True

    def read_references(self, wanted: DeletionRequest, store: SweptStore) -> None:
        """Read to which objects the store refers. New references are only copies of these: other nodes never refer to
        an object that neither a manifest lists, nor the pin of a move names, which is read later (``linking``)."""
        store.referenced = set()
        key = b""
        while True:
            with self.view(wanted) as view:
                found, key = view.referenced(key, NODES)
            store.referenced |= found
            self._progress()
            if not key:
                return

    def read_pins(self, store: SweptStore) -> None:
        """Read what pins protect (Rule 5)."""
        for _ in range(LISTINGS):
            store.pinned, store.pinned_all = set(), False
            missing = self._missing_pin(store)
            if not missing:
                return
        self._report(f"{missing} is listed, but does not exist: nothing is deleted in this pass")
        store.pinned_all = True

    def _missing_pin(self, store: SweptStore) -> str:
        """Read the pins that are listed now. Return the first one that does not exist any more; "" if all do."""
        for name in self._store.names(pins.FOLDER):
            if not name.endswith(".json"):  # it is being written
                continue
            try:
                pin = pins.decode(self._store.read(f"{pins.FOLDER}/{name}"))
            except MissingFileError:
                return f"{pins.FOLDER}/{name}"
            except CorruptError as error:
                self._report(f"{pins.FOLDER}/{name}: {error}")
                store.pinned_all = True
                continue
            if pin.expires and pin.expires <= self._now():
                continue
            if pin.objects is None:
                store.pinned_all = True
            else:
                store.pinned |= pin.objects
        return ""

    def find_orphans_again(self) -> None:
        """Let the next call of find_orphans() search."""
        self._orphans_at = 0

    def find_orphans(self, wanted: DeletionRequest) -> None:
        """List the objects that no manifest lists (Rule 3), and remove those that were not written completely."""
        if self._now() < self._orphans_at:
            return
        waiting = {file.name.removeprefix("objects/") for file in self._deletions.current.files}
        unknown = [
            name for name in self._store.names("objects")
            if name not in waiting and name not in self._listing.objects and OBJECT.fullmatch(f"objects/{name}")
        ]  # fmt: skip
        orphans: list[WaitingFile] = []
        for name in unknown:
            if name in self._listing.objects:  # a page that was read meanwhile lists it
                continue
            file = WaitingFile(f"objects/{name}", 0, 0, self._now(), why="orphan")
            try:
                file = replace(file, size=self._store.size(file.name))
                index = objects.index_of(self._store, file.name, file.size)
                needed = self._object_is_needed(name, index, wanted, is_orphan=True)
            except MissingFileError:
                continue
            except TimedOutError:
                raise
            except (HistoryStoreError, CorruptError) as error:
                self._report(f"{file.name}: {error}")
                continue
            if needed is None:
                self._listing.objects.add(name)
            elif not needed and int(name[:16], 16) <= wanted.epoch:
                orphans.append(file)
            self._progress()
        self._deletions.add(orphans)
        self._deletions.check_newest()
        self._store.remove_unfinished("objects")  # only the leader's process writes there, and this is it
        self._orphans_at = self._now() + ORPHANS
