"""Assembles history objects from entries of the store, and compares what the object store returns with these entries.

The digest of a section is taken from the entries before they are encoded, and again from the entries that are decoded
from the bytes that the object store returns. So an error of the encoder, of the network, or of the object store is
detected before a manifest lists the object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from xxhash import xxh3_128

from persistence.tiering.objectstore import HistoryStore
from persistence.tiering.source import StoredEntries
from resp.errors import CorruptError
from storage.history import objectfile, section
from storage.history.manifest import Part, object_name
from storage.history.objectfile import FOOTER, ObjectWriter, SectionRecord
from storage.model.ids import MASK64

_ENTRY: Final = Struct("<QQQI")  # ordinal, ms and seq of the ID, bytes of the fields


@dataclass(frozen=True, slots=True)
class MadeSection:
    """A section of an object, and the digest of its entries in the store."""

    encoded: bytes
    digest: bytes
    end_ord: int


@dataclass(frozen=True, slots=True)
class MadeObject:
    """A complete object that is to be written."""

    name: str
    content: bytes
    digests: tuple[bytes, ...]  # of its sections
    parts: dict[bytes, Part]  # by stream, what its manifest has to list
    entries: int


def sections(stream: bytes, lo: int, nodes: Iterable[StoredEntries]) -> Iterator[MadeSection]:
    """Yield sections with the entries of the nodes of a stream, from ordinal ``lo`` on.

    A section ends with a node, unless a node alone exceeds it. A node is then readable with one request.
    """
    compressor = section.new_compressor()
    begin = end = lo
    ordinals: list[int] = []
    ids: list[int] = []
    fields: list[bytes] = []
    size = 0

    def made(stop: int) -> MadeSection:
        encoded = section.encode(stream, begin, stop, ids, ordinals, fields, compressor)
        return MadeSection(encoded, digest_of(ordinals, ids, fields), stop)

    for node in nodes:
        if ordinals and size + sum(map(len, node.fields)) > section.FULL:
            yield made(node.first_ord)
            begin, size, ordinals, ids, fields = node.first_ord, 0, [], [], []
        end = node.end_ord
        for ordinal, entry_id, entry in zip(node.ordinals, node.ids, node.fields, strict=True):
            if ordinals and size + len(entry) > section.FULL:
                stop = ordinals[-1] + 1
                yield made(stop)
                begin, size, ordinals, ids, fields = stop, 0, [], [], []
            ordinals.append(ordinal)
            ids.append(entry_id)
            fields.append(entry)
            size += len(entry)
    if ordinals:
        yield made(end)


def digest_of(ordinals: list[int], ids: list[int], fields: list[bytes]) -> bytes:
    """Return the digest of entries."""
    digest = xxh3_128()
    for ordinal, entry_id, entry in zip(ordinals, ids, fields, strict=True):
        digest.update(_ENTRY.pack(ordinal, entry_id >> 64, entry_id & MASK64, len(entry)))
        digest.update(entry)
    return digest.digest()


class ObjectBuilder:
    """Assembles one object in memory: at most LARGEST bytes and one section."""

    def __init__(self) -> None:
        self._writer = ObjectWriter()
        self._pieces = [self._writer.header]
        self._digests: list[bytes] = []

    @property
    def empty(self) -> bool:
        return not self._digests

    @property
    def full(self) -> bool:
        return self._writer.size >= objectfile.LARGEST

    def add(self, made: MadeSection) -> None:
        self._writer.add(made.encoded)
        self._pieces.append(made.encoded)
        self._digests.append(made.digest)

    def finish(self, epoch: int) -> MadeObject:
        """Return the object. ``epoch``: of the leader that writes it."""
        finished = self._writer.finish()
        name = object_name(epoch, finished.digest)
        parts: dict[bytes, Part] = {}
        for record in finished.records:
            head, before = record.head, parts.get(record.head.stream)
            parts[head.stream] = Part(
                name, 0, finished.size, finished.index_offset,
                head.first_ord if before is None else before.first_ord, head.end_ord,
                head.first_id if before is None else before.first_id, head.last_id,
                head.count + (0 if before is None else before.entries),
                record.size + (0 if before is None else before.stored),
            )  # fmt: skip
        content = b"".join([*self._pieces, finished.tail])
        entries = sum(record.head.count for record in finished.records)
        return MadeObject(name, content, tuple(self._digests), parts, entries)


def index_of(store: HistoryStore, name: str, size: int, offset: int = 0) -> list[SectionRecord]:
    """Read the index of an object. ``size``: of the object; ``offset``: of the index, 0 if it is not known.

    Raises HistoryStoreError, CorruptError.
    """
    if size < FOOTER.size:
        raise CorruptError("it is no history object")
    if not offset:
        offset = objectfile.index_offset(store.read(name, size - FOOTER.size, size), size)
    return objectfile.read_index(store.read(name, offset, size), size)


def check(made: MadeObject, stored: bytes, progress: Callable[[], None]) -> None:
    """Verify what the object store returns for an object. ``progress``: called after each section.

    Raises CorruptError if it is not what was in the store.
    """
    digests: list[bytes] = []
    for found in objectfile.verify(stored):
        digests.append(digest_of(found.ordinals, found.ids, list(map(found.fields, range(len(found))))))
        progress()
    if tuple(digests) != made.digests or stored != made.content:
        raise CorruptError(f"the object {made.name} differs from what was written")
