"""The sections of an object, and their bytes. Everything is verified: see docs/history-format.md."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Final

import zstandard
from xxhash import xxh3_64_intdigest

from tidelog.client.entries import StreamId
from tidelog.history.errors import HistoryError
from tidelog.history.files import OBJECTS, HistoryFiles
from tidelog.history.manifest import HistoryPart

END: Final = b"TIDEHEND"
VERSION: Final = 1
LARGEST: Final = 1 << 30  # bytes of an index after decompression
FOOTER: Final = Struct("<QIIQQH6x8s")
CHECKED: Final = 24  # bytes of the footer before its own checksum
RECORD: Final = Struct("<QIIII7Q")
SECTION: Final = Struct("<QIHHII6QII")
_PREFIX: Final = 8  # bytes of a section that its checksum does not cover


@dataclass(frozen=True, slots=True)
class IndexedSection:
    """A section of the stream in the index of an object."""

    offset: int  # in the object
    size: int  # bytes in the object
    entries: int
    raw_size: int  # bytes of its frame, decompressed
    first_ord: int
    end_ord: int
    first_id: StreamId
    last_id: StreamId
    checksum: int


@dataclass(frozen=True, slots=True)
class Frame:
    """The decompressed frame of a section."""

    record: IndexedSection
    content: bytes
    has_ordinals: bool


def sections(files: HistoryFiles, part: HistoryPart, stream: bytes, first_ord: int) -> list[IndexedSection]:
    """Return the sections of a stream in an object, in order.

    Raises HistoryError, also if sections with ordinals from ``first_ord`` on are missing.
    """
    tail = files.read(f"{OBJECTS}/{part.name}", part.index_offset, part.size)
    try:
        found = [record_of(record) for name, record in records(tail, part) if name == stream]
        if not found or (found[0].first_ord, found[-1].end_ord) != (part.first_ord, part.end_ord):
            raise ValueError("its index does not match the manifest")
        for one, other in pairwise(found):
            if other.first_ord != one.end_ord and other.first_ord > first_ord:
                raise ValueError(f"its index has a gap before the entry {other.first_id}")
    except (ValueError, zstandard.ZstdError) as error:
        raise damaged(files, part, stream, part.first_id, part.last_id, str(error)) from error
    return found


def frame_of(
    files: HistoryFiles, part: HistoryPart, stream: bytes, record: IndexedSection, section: bytes | memoryview,
    decompressor: zstandard.ZstdDecompressor,
) -> Frame:  # fmt: skip
    """Verify and decompress a section. Raises HistoryError."""
    try:
        if len(section) != record.size or record.size < SECTION.size:
            raise ValueError("a section has another size")
        own, _, version, flags, name_size, count, first, end, *ids, raw_size, _ = SECTION.unpack_from(section)
        if own != record.checksum or own != xxh3_64_intdigest(section[_PREFIX:]):
            raise ValueError("the checksum of a section does not match")
        expected = (
            VERSION, record.entries, record.first_ord, record.end_ord, *record.first_id, *record.last_id,
            record.raw_size,
        )  # fmt: skip
        start = SECTION.size + name_size
        if (version, count, first, end, *ids, raw_size) != expected or section[SECTION.size : start] != stream:
            raise ValueError("a section is not the one in the index")
        frame = section[start:]
        if zstandard.frame_content_size(frame) != raw_size:
            raise ValueError("a frame has another size")
        content = decompressor.decompress(frame, max_output_size=raw_size)
    except (ValueError, zstandard.ZstdError) as error:
        raise damaged(files, part, stream, record.first_id, record.last_id, str(error)) from error
    return Frame(record, content, bool(flags & 1))


def damaged(
    files: HistoryFiles, part: HistoryPart, stream: bytes, first: StreamId, last: StreamId, problem: str
) -> HistoryError:
    """Return the error for entries of an object that can't be read."""
    return HistoryError(
        f"{files.url}/{OBJECTS}/{part.name} is damaged: {problem}. It should contain the entries {first} to {last} of"
        f" stream {stream.decode(errors='backslashreplace')!r}"
    )


def records(tail: bytes, part: HistoryPart) -> list[tuple[bytes, tuple[int, ...]]]:
    """Return the name and the record of each section. Raises ValueError, ZstdError."""
    footer = tail[-FOOTER.size :]
    if len(footer) < FOOTER.size or footer[-len(END) :] != END:
        raise ValueError("this is not the end of a history object")
    offset, stored, raw_size, checksum, own, version, _ = FOOTER.unpack(footer)
    if own != xxh3_64_intdigest(footer[:CHECKED] + footer[32:34]) or version != VERSION:
        raise ValueError("its footer is damaged, or of another version")
    index = tail[:stored]
    if offset != part.index_offset or stored + FOOTER.size != len(tail) or checksum != xxh3_64_intdigest(index):
        raise ValueError("its index is damaged")
    if raw_size > LARGEST or zstandard.frame_content_size(index) != raw_size:
        raise ValueError("its index has another size")
    raw = zstandard.ZstdDecompressor().decompress(index, max_output_size=raw_size)
    streams, count = int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:8], "little")
    at, names = 8, []
    for _ in range(streams):
        size = int.from_bytes(raw[at : at + 4], "little")
        names.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    if len(raw) - at != count * RECORD.size:
        raise ValueError("its index has another size")
    found = list(RECORD.iter_unpack(raw[at:]))
    if any(record[2] >= streams for record in found):
        raise ValueError("its index is invalid")
    return [(names[record[2]], record) for record in found]


def record_of(record: tuple[int, ...]) -> IndexedSection:
    """Return the section that a record describes."""
    offset, size, _, entries, raw_size, first, end, *ids, checksum = record
    return IndexedSection(
        offset, size, entries, raw_size, first, end, StreamId(ids[0], ids[1]), StreamId(ids[2], ids[3]), checksum
    )
