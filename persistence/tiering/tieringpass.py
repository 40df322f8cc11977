"""One pass: the entries of all due nodes that no manifest lists become objects.

An object is written and read back, and is compared with the store. Then the manifest of each of its streams lists it.
A process that is killed in between leaves an object that no manifest lists. The next pass copies the same entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from persistence.tiering import objects, source
from persistence.tiering.linkedparts import parts_of
from persistence.tiering.manifests import ManifestStore
from persistence.tiering.objects import ObjectBuilder
from persistence.tiering.objectstore import HistoryStore, HistoryStoreError, MissingFileError
from persistence.tiering.source import DueNodes, StoredStream, StoreView
from resp.errors import CorruptError

T = TypeVar("T")

AT_ONCE: Final = 64  # sections in one read transaction: 16 MB of entries, and some seconds
MOST_PROBLEMS: Final = 20  # streams whose problems one pass reports


class NotReadyError(Exception):
    """Raised if the store has records that replicas have not confirmed yet, or lacks some that the former leader had. A
    later pass continues."""


class CopiedTo(NamedTuple):
    """How far the history of a stream is in the object store."""

    name: bytes  # of the stream
    number: int  # of the manifest; 0: none
    end_ord: int


@dataclass(slots=True)
class TieringTotals:
    """What this process has copied."""

    objects: int = 0
    entries: int = 0
    bytes: int = 0  # of objects


@dataclass(slots=True)
class PassRequest:
    """What the server requests."""

    directory: Path  # of the store
    epoch: int  # of the leader; 0: without a server group
    due: DueNodes  # which nodes are copied
    offset: int  # log offset up to which records are confirmed; -1: no limit
    floor: int = 0  # the end of the log when this leader began: a store with fewer records lacks what others had
    frees: bool = False  # report the nodes whose entries can leave the store
    importing: bool = False  # slots are moving to this group


@dataclass(slots=True)
class TieringState:
    """What a process remembers between passes."""

    copied: dict[int, CopiedTo] = field(default_factory=dict)  # by sid
    not_linked: set[int] = field(default_factory=set)  # sids of streams whose references are to no linked objects
    totals: TieringTotals = field(default_factory=TieringTotals)


@contextmanager
def ready(directory: Path, offset: int, floor: int) -> Iterator[StoreView]:
    """Open the store. Arguments: see ``PassRequest``. Raises NotReadyError, CorruptError, OSError."""
    with source.opened(directory) as view:
        if view.offset < floor or 0 <= offset < view.offset:
            raise NotReadyError
        yield view


class TieringPass:
    """One pass over all streams."""

    def __init__(
        self, request: PassRequest, state: TieringState, store: HistoryStore, manifests: ManifestStore,
        progress: Callable[[], None],
    ) -> None:  # fmt: skip
        """``progress``: called after each section."""
        self._request = request
        self._state = state
        self._store = store
        self._manifests = manifests
        self._progress = progress
        self._builder = ObjectBuilder()
        self._streams: dict[bytes, StoredStream] = {}  # those with sections in the builder
        self._seen: set[int] = set()  # sids of streams in the store
        self.problems: list[str] = []  # of streams that could not be copied

    def run(self) -> bool:
        """Copy everything that is due. Return False if the store is not ready (NotReadyError).

        Raises HistoryStoreError, CorruptError, OSError.
        """
        sid = 0
        try:
            while True:
                stream = self._next_due(sid)
                if stream is None:
                    break
                self._seen.add(stream.sid)
                sid = stream.sid
                try:
                    self._copy(stream)
                except CorruptError as error:
                    self._report(stream, error)
            self._flush()
        except NotReadyError:
            self._flush()
            return False
        for gone in self._state.copied.keys() - self._seen:
            del self._state.copied[gone]
        self._state.not_linked &= self._seen
        return True

    def _report(self, stream: StoredStream, error: CorruptError) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(f"stream {stream.name!r}: {error}")

    def _read(self, call: Callable[[StoreView], T]) -> T:
        """Call a function with the store, in a read transaction."""
        request = self._request
        with ready(request.directory, request.offset, request.floor) as view:
            self._manifests.offset = view.offset
            return call(view)

    def _next_due(self, after: int) -> StoredStream | None:
        copied = self._state.copied

        def copied_to(sid: int) -> int:
            known = copied.get(sid)
            if known is None:
                return 0
            self._seen.add(sid)
            return known.end_ord

        self._progress()
        return self._read(lambda view: view.next_due(after, copied_to, self._request.due))

    def _copy(self, stream: StoredStream) -> None:
        """Add the due entries of a stream to objects."""
        if stream.name in self._streams:  # it was deleted and created again during this pass
            self._flush()
        known = self._known(stream)
        begin = max(known.end_ord, stream.first_ord)
        more: int | None = self._read(lambda view: view.after_references(stream, begin, self._request.due))
        if more != begin and known.end_ord <= stream.first_ord and stream.sid not in self._state.not_linked:
            if self._request.importing:
                return  # perhaps its copy is not complete; no import that begins later has references in this pass
            known = self._adopted(stream, known)
            begin, more = max(known.end_ord, stream.first_ord), max(known.end_ord, more or 0)
        is_gap = more != begin and known.number and known.end_ord > stream.first_ord
        if is_gap and not self._has_other_name(stream, begin):
            raise CorruptError(
                f"its manifest ends at ordinal {known.end_ord}, but entries up to {more} are only in history objects:"
                " restore the latest version of the manifest"
            )
        while more is not None:
            more = self._read(lambda view, lo=more: self._add(view, stream.sid, lo))  # type: ignore[misc]
            if self._builder.full:
                self._flush()

    def _has_other_name(self, stream: StoredStream, begin: int) -> bool:
        """Return whether an object has the entries from ordinal ``begin`` on below another name that the stream had.

        The manifest then starts again after them. Otherwise, it lacks objects that it has listed.
        """

        def object_of(view: StoreView) -> str:
            nodes = view.between(stream, begin, stream.next_ord)
            return next((node.reference.object for node in nodes if node.reference is not None), "")

        name = f"objects/{self._read(object_of)}"
        try:
            index = objects.index_of(self._store, name, self._store.size(name))
        except (MissingFileError, CorruptError):
            return False
        its = [record.head for record in index if record.head.stream == stream.name]
        return not any(head.first_ord <= begin < head.end_ord for head in its)

    def _adopted(self, stream: StoredStream, known: CopiedTo) -> CopiedTo:
        """List the objects with the first entries of a stream, which were another group's, in its manifest."""
        parts = parts_of(stream, self._store, self._read, self._progress)
        if not parts:
            self._state.not_linked.add(stream.sid)
            return known
        manifest = self._manifests.adopt(stream, known.number, parts, self._request.epoch)
        known = self._state.copied[stream.sid] = CopiedTo(stream.name, manifest.number, manifest.end_ord)
        return known

    def _known(self, stream: StoredStream) -> CopiedTo:
        """Return how far the history of a stream was copied. The first time, the object store is read."""
        known = self._state.copied.get(stream.sid)
        if known is None or known.name != stream.name:
            manifest = self._manifests.latest(stream.name, self._request.epoch)
            if manifest.offset > self._manifests.offset:
                raise CorruptError(
                    f"its manifest was written at log offset {manifest.offset}, but the store of this server ends at"
                    f" {self._manifests.offset}. It is copied when the store has reached this offset"
                )
            manifest = self._manifests.agreed(stream, manifest, self._request.epoch, self._read)
            known = CopiedTo(stream.name, manifest.number, manifest.end_ord)
            self._state.copied[stream.sid] = known
        return known

    def _add(self, view: StoreView, sid: int, lo: int) -> int | None:
        """Add sections from ordinal ``lo`` on until the object is full, at most AT_ONCE. Return the ordinal after the
        last one; None if nothing else is due."""
        stream = view.stream(sid)
        known = self._state.copied.get(sid)
        if stream is None or known is None or stream.name != known.name:
            return None  # deleted or renamed meanwhile, or its manifest is damaged
        begin = max(lo, stream.first_ord)
        nodes = view.entries(stream, begin, self._request.due)
        for number, made in enumerate(objects.sections(stream.name, begin, nodes), 1):
            self._builder.add(made)
            self._streams[stream.name] = stream
            self._progress()
            if self._builder.full or number == AT_ONCE:
                return made.end_ord
        return None

    def _flush(self) -> None:
        """Write the object, verify it, and list it in the manifests."""
        if self._builder.empty:
            return
        made = self._builder.finish(self._request.epoch)
        streams, self._streams, self._builder = self._streams, {}, ObjectBuilder()
        name = f"objects/{made.name}"
        self._store.write(name, made.content)
        try:
            objects.check(made, self._store.read(name), self._progress)
        except CorruptError as error:
            raise HistoryStoreError(f"{name}: {error}") from error
        for stream, part in made.parts.items():
            its = streams[stream]
            try:
                number = self._state.copied[its.sid].number
                manifest = self._manifests.extend(its, number, part, self._request.epoch)
            except CorruptError as error:
                self._report(its, error)
                del self._state.copied[its.sid]  # the next pass reads the manifest before it copies anything
                continue
            self._state.copied[its.sid] = CopiedTo(stream, manifest.number, manifest.end_ord)
        totals = self._state.totals
        totals.objects += 1
        totals.entries += made.entries
        totals.bytes += len(made.content)
