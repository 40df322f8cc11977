"""Finds the nodes whose entries can leave the store, because a history object that a manifest lists has them.

Each node is compared with the bytes that the object store returns now, entry by entry. The server then replaces exactly
these nodes (``Store.free``). This is independent of the pass that wrote the object. So nothing is lost or forgotten if
a process is killed in between, and a server that begins to free space also frees what was copied before.

Nodes stay in the store if they have deleted entries, if two sections share them, or if they are small.

Decision: each replica compares its own store with the objects, and applies no record of its leader. Its nodes can have
other borders and other blobs than those of the leader. The cost is one read of each object per server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from xxhash import xxh3_128_digest

from persistence.tiering import source
from persistence.tiering.manifests import ManifestStore
from persistence.tiering.objects import digest_of
from persistence.tiering.objectstore import HistoryStore, MissingFileError
from persistence.tiering.source import DueNodes, StoredStream, StoreView
from resp.errors import CorruptError
from storage.history import objectfile
from storage.history.manifest import Manifest, Part
from storage.history.objectfile import SectionRecord
from storage.history.section import SectionEntries
from storage.nodes.node import HEADER
from storage.nodes.reference import Reference

AT_ONCE: Final = 8 << 20  # bytes that one request reads
REPORTED: Final = 200  # nodes in a line
REMEDY: Final = "Run tidelog history repair --read, or restore the object"


class FreedNode(NamedTuple):
    """A node that can be replaced."""

    key: bytes
    digest: bytes  # of its blob
    reference: bytes


class Freeing:
    """Compares the nodes of streams with the history."""

    def __init__(
        self, store: HistoryStore, manifests: ManifestStore, found: Callable[[list[FreedNode]], None],
        progress: Callable[[], None],
    ) -> None:  # fmt: skip
        """``found``: called with some nodes. ``progress``: called after each section."""
        self._store = store
        self._manifests = manifests
        self._found = found
        self._progress = progress
        self._freed: dict[int, int] = {}  # sid -> ordinal up to which its nodes were compared
        self._index: tuple[str, list[SectionRecord]] = "", []  # of the last object

    def forget(self, sids: set[int]) -> None:
        """Forget all streams but these."""
        for sid in self._freed.keys() - sids:
            del self._freed[sid]

    def compared_to(self, sid: int) -> int:
        """Return the ordinal up to which the nodes of a stream were compared."""
        return self._freed.get(sid, 0)

    def free(self, directory: Path, manifest: Manifest, due: DueNodes) -> None:
        """Compare the nodes of a stream with the objects that a manifest lists.

        ``directory``: of the store. ``due``: see ``PassRequest``. Raises HistoryStoreError, CorruptError, OSError.
        """
        sid, name = manifest.sid, manifest.stream
        lo = self.compared_to(sid)
        for part in self._parts(manifest.parts, name, lo):
            with source.opened(directory) as view:
                stream = view.stream(sid)
                if stream is None or stream.name != name:
                    return
                lo = max(lo, part.first_ord)
                wanted = [first for first, _ in view.whole_nodes(stream, lo, part.end_ord, due)]
                stop = view.due_to(stream, lo, part.end_ord, due)
            if wanted:
                self._compare(directory, stream, part, wanted, due)
            self._freed[sid] = lo = stop
            if stop < part.end_ord:  # the store of a replica, or its last checkpoint, is behind the manifest
                return

    def _parts(self, parts: tuple[Part, ...], stream: bytes, lo: int) -> Iterator[Part]:
        for part in parts:
            if part.end_ord <= lo:
                continue
            if part.level:
                yield from self._parts(self._manifests.page(stream, part), stream, lo)
            else:
                yield part

    def _compare(
        self, directory: Path, stream: StoredStream, part: Part, wanted: list[int], due: DueNodes
    ) -> None:  # fmt: skip
        """Compare nodes, given by their first ordinals, with an object."""
        name = f"objects/{part.name}"
        try:
            at = 0
            group: list[SectionRecord] = []
            for record in self._records(part, stream.name):
                while at < len(wanted) and wanted[at] < record.head.first_ord:
                    at += 1
                if at == len(wanted):
                    break
                if wanted[at] >= record.head.end_ord:
                    continue
                if group and (
                    record.offset != group[-1].offset + group[-1].size
                    or record.offset + record.size - group[0].offset > AT_ONCE
                ):
                    self._sections(directory, stream, name, group, due)
                    group = []
                group.append(record)
            if group:
                self._sections(directory, stream, name, group, due)
        except MissingFileError as error:
            raise CorruptError(f"{error}. {REMEDY}") from error

    def _records(self, part: Part, stream: bytes) -> list[SectionRecord]:
        if self._index[0] != part.name:
            tail = self._store.read(f"objects/{part.name}", part.index_offset, part.size)
            with _naming(f"objects/{part.name}"):
                self._index = part.name, objectfile.read_index(tail, part.size)
        return [record for record in self._index[1] if record.head.stream == stream]

    def _sections(
        self, directory: Path, stream: StoredStream, name: str, group: list[SectionRecord], due: DueNodes
    ) -> None:  # fmt: skip
        """Compare the nodes in adjacent sections."""
        start, end = group[0].offset, group[-1].offset + group[-1].size
        stored = self._store.read(name, start, end)
        if len(stored) != end - start:
            raise CorruptError(f"{name} ends before its index says. {REMEDY}")
        for record in group:
            raw = stored[record.offset - start : record.offset - start + record.size]
            with _naming(name):
                entries = objectfile.open_section(record, raw)
            with source.opened(directory) as view:
                now = view.stream(stream.sid)
                if now is None or now.name != stream.name:
                    return
                nodes = list(_same(view, now, name, record, raw, entries, due))
            for first in range(0, len(nodes), REPORTED):
                self._found(nodes[first : first + REPORTED])
            self._progress()


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Add the name of an object, and the remedy, to a CorruptError."""
    try:
        yield
    except CorruptError as error:
        raise CorruptError(f"{name}: {error}. {REMEDY}") from error


def _same(
    view: StoreView, stream: StoredStream, name: str, record: SectionRecord, raw: bytes, entries: SectionEntries,
    due: DueNodes,
) -> Iterator[FreedNode]:  # fmt: skip
    """Yield the nodes within a section whose entries are those of the section."""
    places = {ordinal: at for at, ordinal in enumerate(entries.ordinals)}
    epoch, _, digest = name.removeprefix("objects/").removesuffix(".tide").partition("-")
    for first, (key, end, blob) in view.whole_nodes(stream, record.head.first_ord, record.head.end_ord, due):
        node = view.living(stream, first, end, blob)
        at = places.get(first, -1)
        stop = at + end - first
        if at < 0 or len(node.ordinals) != end - first or entries.ordinals[at:stop] != node.ordinals:
            continue
        theirs = digest_of(node.ordinals, entries.ids[at:stop], list(map(entries.fields, range(at, stop))))
        if digest_of(node.ordinals, node.ids, node.fields) != theirs:
            raise CorruptError(f"{name} has other entries than the store from ordinal {first} on: these remain")
        made = Reference(
            end - first, HEADER.unpack_from(blob)[4], node.ids[0], node.ids[-1], xxh3_128_digest(blob),
            int(epoch, 16), bytes.fromhex(digest), record.offset, record.size, int.from_bytes(raw[:8], "little"),
        )  # fmt: skip
        yield FreedNode(key, made.digest, made.pack())
