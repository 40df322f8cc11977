"""The manifests of the streams in the object store.

Rule 1: a version of a manifest is created, never replaced. If another process has created the same number, this one
stops, because another leader is active or was active meanwhile.
Rule 2: objects and pages are written and verified before the manifest that lists them.
Rule 3: before a process adds to a history that it finds, it compares the end of the history with the store
(``agreed``). A new leader of replicas that do not wait for each other can lack entries that were copied. Parts that the
store contradicts leave the manifest.
Rule 4: objects and pages are in the list of deletions before a version of a manifest no longer lists them.
Rule 5: all parts of a manifest belong to the stream with its sid. If the stream was deleted and created again, or
another stream was renamed to its name, the manifest starts again without parts, even if the entries look the same.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from persistence.tiering.deletionlist import DeletionList
from persistence.tiering.listed import Listing
from persistence.tiering.objects import digest_of
from persistence.tiering.objectstore import HistoryStore, HistoryStoreError, MissingFileError
from persistence.tiering.source import StoredStream, StoreView
from resp.errors import CorruptError
from storage.history import manifest as manifests
from storage.history import objectfile
from storage.history.manifest import Manifest, ManifestPage, Part, TrimmedManifest
from storage.history.section import SectionEntries
from storage.model.ids import MASK64
from storage.nodes.reference import Reference

NUMBERED: Final = re.compile(r"\d{20}\.json")
SECTIONS: Final = 4  # of the end of a part, among which one with living entries is expected

#: Calls a function with the store in a read transaction, and returns its result.
Read = Callable[[Callable[[StoreView], bool]], bool]


class ManifestStore:
    """The manifests below a prefix."""

    def __init__(
        self, store: HistoryStore, server: str, warn: Callable[[str], None], deletions: DeletionList,
        now: Callable[[], int],
    ) -> None:  # fmt: skip
        """``server``: the ID of the owner. ``warn``: called with a line for the log. ``now``: ms since epoch."""
        self._store = store
        self._server = server
        self._warn = warn
        self._deletions = deletions
        self._now = now
        self.listing = Listing()
        self.offset = 0  # the log offset of the store that was read last

    def latest(self, stream: bytes, epoch: int) -> Manifest:
        """Return the valid version of a manifest; one with the number 0 and without parts if there is none.

        ``epoch``: that of this leader. Raises HistoryStoreError, CorruptError.
        """
        folder = manifests.directory_of(stream)
        numbers = self._numbers(folder)
        if not numbers:
            self.listing.streams.pop(stream, None)
            return Manifest(stream, self._server, 0, epoch, 0)
        return self._found(folder, stream, numbers, epoch)

    def found(self, folder: str, epoch: int) -> None:
        """Note the valid version of the manifest in a folder for ``listing``.

        ``epoch``: that of this leader. Raises HistoryStoreError, CorruptError.
        """
        numbers = self._numbers(folder)
        if numbers:
            self._found(folder, None, numbers, epoch)
        elif not self._store.names(f"streams/{folder}"):
            self._store.remove_folder(f"streams/{folder}")  # that of a process that was killed
        else:
            self.listing.unreadable.add(folder)
            raise CorruptError(f"streams/{folder} has no manifest: restore the newest version of the manifest")

    def _numbers(self, folder: str) -> list[int]:
        return sorted(int(name[:20]) for name in self._store.names(f"streams/{folder}") if NUMBERED.fullmatch(name))

    def _found(self, folder: str, stream: bytes | None, numbers: list[int], epoch: int) -> Manifest:
        try:
            found = self._load(folder, stream, numbers[-1])
        except (CorruptError, MissingFileError):
            self.listing.unreadable.add(folder)
            raise
        if found.epoch > epoch:
            raise HistoryStoreError(
                f"a later leader has written the history, in epoch {found.epoch}; this one has epoch {epoch}"
            )
        self.listing.unreadable.discard(folder)
        self.listing.found(found, numbers[:-1])
        return found

    def load(self, stream: bytes, number: int) -> Manifest:
        """Return a version. Raises HistoryStoreError, CorruptError."""
        return self._load(manifests.directory_of(stream), stream, number)

    def _load(self, folder: str, stream: bytes | None, number: int) -> Manifest:
        name = f"streams/{folder}/{manifests.manifest_name(number)}"
        try:
            found = manifests.decode(self._store.read(name), stream)
        except CorruptError as error:
            raise CorruptError(f"{name}: {error}") from error
        if found.server != self._server or found.number != number or manifests.directory_of(found.stream) != folder:
            raise CorruptError(f"{name} belongs to another history (server {found.server}, number {found.number})")
        return found

    def page(self, stream: bytes, part: Part) -> tuple[Part, ...]:
        """Return the parts that a page lists. Raises HistoryStoreError, CorruptError."""
        return manifests.decode_page(self._store.read(f"{_folder(stream)}/{part.name}"), part, stream)

    def extend(self, stream: StoredStream, number: int, part: Part, epoch: int) -> Manifest:
        """Add an object to the version ``number`` (0: none). Raises HistoryStoreError, CorruptError."""
        before = Manifest(stream.name, self._server, self._deletions.current.floor, epoch, part.first_ord)
        if number:
            before = self.load(stream.name, number)
        # Entries between the last part and this one were evicted, and so were all before them.
        if before.sid != stream.sid or not before.parts or before.end_ord < part.first_ord:
            self.drop(before)
            before = replace(before, sid=stream.sid, first_ord=part.first_ord, parts=())
        first_ord = max(before.first_ord, min(stream.first_ord, part.first_ord))
        after, pages = replace(before, first_ord=first_ord).extended(part, epoch)
        self.write(after, pages)
        return after

    def adopt(self, stream: StoredStream, number: int, parts: Sequence[Part], epoch: int) -> Manifest:
        """Write a manifest with the objects of another group that are linked below this prefix (``linkedparts``).

        ``number``: of the version before it, which has no parts of this stream; 0: none. Raises HistoryStoreError,
        CorruptError.
        """
        before = Manifest(stream.name, self._server, self._deletions.current.floor, epoch, 0)
        if number:
            before = self.load(stream.name, number)
            self.drop(before)
        after = replace(before, sid=stream.sid, first_ord=max(stream.first_ord, parts[0].first_ord), parts=())
        pages: list[ManifestPage] = []
        for part in parts:
            after, more = after.extended(part, epoch)
            pages += more
        after = replace(after, number=before.number + 1)
        self.write(after, pages)
        return after

    def drop(self, version: Manifest, why: str = "removed") -> None:
        """Let all objects and pages of a version wait for their deletion (Rule 4).

        Raises HistoryStoreError, CorruptError. The objects of a page that can't be read are found later, as objects
        that no manifest lists.
        """
        try:
            parts: Iterable[Part] = self.trimmed(version, MASK64, version.epoch).dropped
        except (MissingFileError, CorruptError) as error:
            self._warn(f"stream {version.stream!r}: {error}")
            parts = version.parts
        self._deletions.offset = max(self.offset, version.offset)
        self._deletions.drop(version.stream, parts, version.sid, why)

    def trimmed(self, version: Manifest, first_ord: int, epoch: int) -> TrimmedManifest:
        """Return the next version without entries below an ordinal. Raises HistoryStoreError, CorruptError."""
        return version.trimmed(first_ord, epoch, lambda part: self.page(version.stream, part))

    def write(self, version: Manifest, pages: Iterable[ManifestPage]) -> None:
        """Write pages and then a version. Raises HistoryStoreError."""
        for page in pages:
            name = f"{_folder(version.stream)}/{page.part.name}"
            self._store.write(name, page.content)
            self._compare(name, page.content)
        self._create(version)

    def agreed(self, stream: StoredStream, found: Manifest, epoch: int, read: Read) -> Manifest:
        """Return the valid version after the parts at its end that the store contradicts were removed.

        Raises HistoryStoreError, CorruptError.
        """
        parts = found.parts if found.sid == stream.sid else ()
        while parts and parts[-1].end_ord > stream.first_ord:
            if parts[-1].level:
                parts = ()
            elif self._is_agreed(stream, parts[-1], read):
                break
            else:
                parts = parts[:-1]
        if parts == found.parts:
            # an empty manifest of a stream that was deleted, whose entries ended at this ordinal
            return found if found.sid == stream.sid else replace(found, first_ord=stream.first_ord)
        dropped = found.parts[len(parts) :]
        first, end = dropped[0].first_ord, found.end_ord
        self._warn(
            f"the history of {stream.name!r} differs from the store in the entries with the ordinals {first} to {end}:"
            " its manifest no longer lists them, and those in the store are copied again"
        )
        first_ord = found.first_ord if parts else stream.first_ord
        self.drop(replace(found, parts=dropped), "differs" if found.sid == stream.sid else "removed")
        after = replace(found, number=found.number + 1, epoch=epoch, first_ord=first_ord, parts=parts, sid=stream.sid)
        self._create(after)
        return after

    def _is_agreed(self, stream: StoredStream, part: Part, read: Read) -> bool:
        """Return whether the store has the living entries at the end of an object as the object has them."""
        name = f"objects/{part.name}"
        try:
            records = objectfile.read_index(self._store.read(name, part.index_offset, part.size), part.size)
            own = [record for record in records if record.head.stream == stream.name][-SECTIONS:]
            for record in reversed(own):
                stored = self._store.read(name, record.offset, record.offset + record.size)
                entries = objectfile.open_section(record, stored)
                compared: list[int] = []
                if not read(lambda view, its=entries, count=compared: is_same(view, stream, part, its, count)):  # type: ignore[misc]
                    return False
                if compared:
                    return True
        except (MissingFileError, CorruptError) as error:
            self._warn(f"{name}: {error}")
        return False

    def _create(self, version: Manifest) -> None:
        version = replace(version, time=self._now(), offset=self.offset)
        name = f"{_folder(version.stream)}/{manifests.manifest_name(version.number)}"
        content = version.encode()
        if not self._store.create(name, content) and self._store.read(name) != content:
            raise HistoryStoreError(f"{name} was written by another process: another leader uses this prefix")
        self._compare(name, content)
        self.listing.written(version)

    def _compare(self, name: str, content: bytes) -> None:
        if self._store.read(name) != content:
            raise HistoryStoreError(f"{name} differs from what was written")


def is_same(
    view: StoreView, stream: StoredStream, part: Part, entries: SectionEntries, compared: list[int]
) -> bool:  # fmt: skip
    """Return whether the living entries in the range of a section of an object are in it. Adds their ordinals to
    ``compared``. A reference was made after such a comparison. If it names another object, because the stream had
    another name then, the IDs of its first and last entry are compared."""
    now = view.stream(stream.sid)
    if now is None or now.next_ord < entries.head.end_ord:
        return False
    places = {ordinal: at for at, ordinal in enumerate(entries.ordinals)}
    for node in view.between(now, max(entries.head.first_ord, now.first_ord), entries.head.end_ord):
        its = node.reference
        if its is not None:
            same = its.object == part.name or _has(entries, node.first_ord, its)
            if same is False:
                return False
            if same:
                compared.append(node.first_ord)
            continue
        own = [places[ordinal] for ordinal in node.ordinals if ordinal in places]
        theirs = digest_of(
            [entries.ordinals[at] for at in own], [entries.ids[at] for at in own], list(map(entries.fields, own))
        )
        if len(own) != len(node.ordinals) or theirs != digest_of(node.ordinals, node.ids, node.fields):
            return False
        compared += node.ordinals
    return True


def _has(entries: SectionEntries, first_ord: int, its: Reference) -> bool | None:
    """Return whether a section has the entries of a reference, by their IDs; None if they are not all in its range."""
    if its.first_id < entries.head.first_id or its.last_id > entries.head.last_id:
        return None
    at = bisect_left(entries.ids, its.first_id)
    ids, ordinals = entries.ids[at : at + its.entries], entries.ordinals[at : at + its.entries]
    return (ids[0], ids[-1], ordinals[0], len(ids)) == (its.first_id, its.last_id, first_ord, its.entries)


def _folder(stream: bytes) -> str:
    return f"streams/{manifests.directory_of(stream)}"
