"""The parts of the first manifest of a stream that begins with references to linked objects (``linking``).

Rule 1: an object becomes a part only if its index has the section of each reference of the stream to it, under the name
of the stream, and if the other nodes of the stream in its range have the same entries as the object.
Rule 2: the parts are adjacent, and end with the last reference of the stream. If an object can't be a part, neither
can those before it. Readers get these entries from the server. So it is with the objects of a renamed stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from persistence.tiering.manifests import Read, is_same
from persistence.tiering.objects import index_of
from persistence.tiering.objectstore import HistoryStore, MissingFileError
from persistence.tiering.source import StoredStream, StoreView
from resp.errors import CorruptError
from storage.history import objectfile
from storage.history.manifest import Part
from storage.history.objectfile import SectionRecord
from storage.nodes.reference import Reference

NODES: Final = 10_000  # between two calls of ``progress``


@dataclass(slots=True)
class _LinkedObject:
    """An object, and the nodes of the stream up to the next object."""

    name: str
    references: list[tuple[int, Reference]] = field(default_factory=list)  # with their first ordinals


def parts_of(stream: StoredStream, store: HistoryStore, read: Read, progress: Callable[[], None]) -> list[Part]:
    """Return the parts of a stream; [] if there are none.

    ``read``: calls a function with the store in a read transaction. ``progress``: called after each object, and between
    nodes. Raises HistoryStoreError, CorruptError.
    """
    objects: list[_LinkedObject] = []
    local: list[tuple[int, int]] = []  # the nodes with entries in the store: [first ordinal, end)

    def find(view: StoreView) -> bool:
        for number, (first, end, its) in enumerate(view.nodes(stream)):
            if number % NODES == 0:
                progress()
            if its is None:
                local.append((first, end))
                continue
            if not objects or objects[-1].name != its.object:
                objects.append(_LinkedObject(its.object))
            objects[-1].references.append((first, its))
        return True

    read(find)
    parts: list[Part] = []
    while objects:
        part = _part(stream, objects.pop(), local, store, read)
        progress()
        if part is None or (parts and (part.end_ord != parts[0].first_ord or part.last_id >= parts[0].first_id)):
            break
        parts.insert(0, part)
    return parts


def _part(
    stream: StoredStream, linked: _LinkedObject, local: list[tuple[int, int]], store: HistoryStore, read: Read
) -> Part | None:
    """Return the part for an object; None if it can't be one (Rule 1)."""
    try:
        size = store.size(f"objects/{linked.name}")
        records = index_of(store, f"objects/{linked.name}", size)
    except (MissingFileError, CorruptError):
        return None
    own = [record for record in records if record.head.stream == stream.name]
    sections = {record.offset: record for record in own}
    if not all(_has(sections.get(its.offset), first, its) for first, its in linked.references):
        return None
    first, last = own[0].head, own[-1].head
    part = Part(
        linked.name, 0, size, records[-1].offset + records[-1].size,
        first.first_ord, last.end_ord, first.first_id, last.last_id,
        sum(record.head.count for record in own), sum(record.size for record in own),
    )  # fmt: skip
    if part.end_ord > stream.next_ord:
        return None
    for record in own:
        lo, hi = record.head.first_ord, record.head.end_ord
        if not any(begin < hi and end > lo for begin, end in local):
            continue
        stored = store.read(f"objects/{linked.name}", record.offset, record.offset + record.size)
        try:
            entries = objectfile.open_section(record, stored)
        except CorruptError:
            return None
        if not read(lambda view, its=entries: is_same(view, stream, part, its, [])):  # type: ignore[misc]
            return None
    return part


def _has(record: SectionRecord | None, first: int, its: Reference) -> bool:
    """Return whether a section has the node of a reference."""
    return (
        record is not None and (record.size, record.checksum) == (its.size, its.checksum)
        and record.head.first_ord <= first and first + its.entries <= record.head.end_ord
    )  # fmt: skip
