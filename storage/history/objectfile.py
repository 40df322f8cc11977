"""Objects: sections of one or many streams, an index of them, and a footer. An object is never changed.

    header     "TIDEHIST" | version u16: 1 | 0 u16 | 0 u32                                      16 bytes
    sections   (``section``), in the order of the index, without gaps
    index      one zstd frame
    footer     offset of the index u64 | its size u32 | its raw size u32 | its xxh3 u64 | xxh3 u64 of the three fields
               before it and of the header's version | version u16: 1 | 0 u16 | 0 u32 | "TIDEHEND"              48 bytes

    raw bytes of the index
        streams u32 | sections u32 | for each stream: size of its name u32, its name | for each section, 80 bytes:
        offset u64 | size u32 | stream u32 | count u32 | raw size u32 | first ord u64 | end ord u64
        | ms and seq of the first ID u64 x 2 | ms and seq of the last ID u64 x 2 | its xxh3 u64

All numbers are little-endian. Streams are numbered in the order of their first sections. The sections of a stream are
adjacent, and their ordinals and IDs increase.

A reader requests the end of the object (INDEX_GUESS bytes; a manifest states how many are needed), and then a section.
A section has a header and a checksum of its own, so an object without its index is still readable.

Validity: header, footer, and versions are as above; the index matches its checksum and sizes; its sections fill the
object from the header to the index; each section's header and checksum are those in the index.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

import zstandard
from xxhash import xxh3_64_intdigest, xxh3_128

from resp.errors import CorruptError
from storage.history import section
from storage.history.section import SectionEntries, SectionHead
from storage.model.ids import MASK64

MAGIC: Final = b"TIDEHIST"
END: Final = b"TIDEHEND"
VERSION: Final = 1
HEADER: Final = Struct("<8sHHI")
FOOTER: Final = Struct("<QIIQQHHI8s")
RECORD: Final = Struct("<QIIIIQQQQQQQ")
SMALLEST: Final = 8 << 20  # bytes at which an object may be finished
LARGEST: Final = 64 << 20  # bytes at which an object is finished; a single section may be larger
INDEX_GUESS: Final = 1 << 18  # bytes of the end of an object: more than footer and index of 64 MB of sensor readings
LARGEST_INDEX: Final = 1 << 30  # raw bytes that a reader accepts
_COUNTS: Final = Struct("<II")
_SIZE: Final = Struct("<I")
_CHECKED: Final = Struct("<QIIQH")  # what the footer's own checksum covers
_HEADER: Final = HEADER.pack(MAGIC, VERSION, 0, 0)


@dataclass(frozen=True, slots=True)
class SectionRecord:
    """A section in the index of an object."""

    head: SectionHead
    offset: int  # in the object
    size: int  # bytes in the object
    raw_size: int  # bytes of its frame, decompressed
    checksum: int  # xxh3, with which the section begins


@dataclass(frozen=True, slots=True)
class FinishedObject:
    """The end of an object, and what its name and the manifests of its streams contain."""

    tail: bytes  # index and footer: the last bytes of the object
    size: int  # bytes of the object
    index_offset: int
    digest: str  # XXH3-128 of all bytes of the object, 32 hex digits
    records: tuple[SectionRecord, ...]


class ObjectWriter:
    """Assembles one object. The caller writes ``header``, each section that ``add`` returned, and ``finish().tail``."""

    header: Final = _HEADER

    def __init__(self) -> None:
        self._size = len(_HEADER)
        self._digest = xxh3_128(_HEADER)
        self._records: list[SectionRecord] = []
        self._streams: dict[bytes, int] = {}
        self._last = b""

    @property
    def size(self) -> int:
        """The bytes of header and sections so far."""
        return self._size

    def add(self, encoded: bytes) -> None:
        """Add a section (``section.encode``). Raises ValueError if the sections of its stream are not adjacent, or its
        ordinals or IDs do not increase."""
        head, raw_size = section.read_head(encoded)
        if head.stream != self._last or not self._records:
            if head.stream in self._streams:
                raise ValueError("the sections of a stream must be adjacent")
            self._streams[head.stream] = len(self._streams)
            self._last = head.stream
        else:
            before = self._records[-1].head
            if head.first_ord < before.end_ord or head.first_id <= before.last_id:
                raise ValueError("the sections of a stream must be in order")
        checksum = int.from_bytes(encoded[:8], "little")
        self._records.append(SectionRecord(head, self._size, len(encoded), raw_size, checksum))
        self._digest.update(encoded)
        self._size += len(encoded)

    def finish(self) -> FinishedObject:
        """Return the rest of the object. Raises ValueError if it has no section."""
        if not self._records:
            raise ValueError("an object has at least one section")
        raw = b"".join((
            _COUNTS.pack(len(self._streams), len(self._records)),
            *(_SIZE.pack(len(name)) + name for name in self._streams),
            *(_pack(record, self._streams[record.head.stream]) for record in self._records),
        ))  # fmt: skip
        index = section.new_compressor().compress(raw)
        checked = _CHECKED.pack(self._size, len(index), len(raw), xxh3_64_intdigest(index), VERSION)
        offset, size, raw_size, checksum, _ = _CHECKED.unpack(checked)
        footer = FOOTER.pack(offset, size, raw_size, checksum, xxh3_64_intdigest(checked), VERSION, 0, 0, END)
        tail = index + footer
        self._digest.update(tail)
        return FinishedObject(tail, self._size + len(tail), self._size, self._digest.hexdigest(), tuple(self._records))


def index_offset(tail: bytes, size: int) -> int:
    """Return the offset of the index in an object of ``size`` bytes. ``tail``: its last bytes, at least FOOTER.size.

    Raises CorruptError if this is no object, or the footer is damaged.
    """
    return _footer(tail, size)[0]


def read_index(tail: bytes, size: int) -> list[SectionRecord]:
    """Return the sections of an object of ``size`` bytes. ``tail``: its last bytes, from ``index_offset`` or earlier.

    Raises CorruptError.
    """
    offset, stored_size, raw_size, checksum = _footer(tail, size)
    start = offset - (size - len(tail))
    if start < 0:
        raise CorruptError("the index of a history object begins before the bytes that were read")
    stored = tail[start : start + stored_size]
    if xxh3_64_intdigest(stored) != checksum:
        raise CorruptError("the checksum of the index of a history object does not match")
    try:
        if raw_size > LARGEST_INDEX or zstandard.frame_content_size(stored) != raw_size:
            raise CorruptError("the index of a history object has another size")
        raw = zstandard.ZstdDecompressor().decompress(stored, max_output_size=raw_size)
    except zstandard.ZstdError as error:
        raise CorruptError(f"the index of a history object can't be decompressed: {error}") from error
    return _records(raw, offset)


def check_header(start: bytes) -> None:
    """Verify the first bytes of an object. Raises CorruptError."""
    if start[: len(_HEADER)] != _HEADER:
        raise CorruptError("a history object does not begin with its header")


def open_section(record: SectionRecord, stored: bytes, longest: int = section.MOST) -> SectionEntries:
    """Return the entries of a section that was read from an object. Verifies that it is the one in the index.

    ``longest``: the largest size to which its frame may decompress. Raises CorruptError.
    """
    if len(stored) != record.size or int.from_bytes(stored[:8], "little") != record.checksum:
        raise CorruptError("a section of a history object is not the one in its index")
    entries = section.decode(stored, longest)
    if entries.head != record.head:
        raise CorruptError("a section of a history object is not the one in its index")
    return entries


def verify(content: bytes) -> Iterator[SectionEntries]:
    """Verify a whole object, with each entry in it, and yield its sections. Raises CorruptError."""
    check_header(content)
    for record in read_index(content, len(content)):
        entries = open_section(record, content[record.offset : record.offset + record.size])
        section.check_fields(entries)
        yield entries


def _footer(tail: bytes, size: int) -> tuple[int, int, int, int]:
    """Return offset, size, raw size, and checksum of the index."""
    if len(tail) < FOOTER.size or size < len(tail):
        raise CorruptError("a history object is shorter than its footer")
    offset, stored, raw, checksum, own, version, zero, also_zero, end = FOOTER.unpack(tail[-FOOTER.size :])
    if end != END:
        raise CorruptError("this is not a history object, or its end is missing")
    if own != xxh3_64_intdigest(_CHECKED.pack(offset, stored, raw, checksum, version)):
        raise CorruptError("the footer of a history object is damaged")
    if version != VERSION or zero or also_zero:
        raise CorruptError(
            f"a history object has format {version}; this version of tidelog reads format {VERSION}: upgrade it"
        )
    if offset < len(_HEADER) or offset + stored + FOOTER.size != size:
        raise CorruptError("a history object has another size than its footer states")
    return offset, stored, raw, checksum


def _pack(record: SectionRecord, stream: int) -> bytes:
    head = record.head
    return RECORD.pack(
        record.offset, record.size, stream, head.count, record.raw_size, head.first_ord, head.end_ord,
        head.first_id >> 64, head.first_id & MASK64, head.last_id >> 64, head.last_id & MASK64, record.checksum,
    )  # fmt: skip


def _records(raw: bytes, end: int) -> list[SectionRecord]:
    """Return the records in the raw bytes of an index. ``end``: where the sections end."""
    invalid = CorruptError("the index of a history object is invalid")
    if len(raw) < _COUNTS.size:
        raise invalid
    stream_count, section_count = _COUNTS.unpack_from(raw)
    at = _COUNTS.size
    names: list[bytes] = []
    while len(names) < stream_count:
        if at + _SIZE.size > len(raw):
            raise invalid
        (name_size,) = _SIZE.unpack_from(raw, at)
        at += _SIZE.size + name_size
        names.append(raw[at - name_size : at])
    if len(raw) - at != section_count * RECORD.size or not section_count or len(set(names)) != stream_count:
        raise invalid
    records: list[SectionRecord] = []
    offset, last = len(_HEADER), -1
    for values in RECORD.iter_unpack(raw[at:]):
        record, stream = _unpack(values, names)
        before = records[-1].head if stream == last else None
        if record.offset != offset or (before is None and stream != last + 1):
            raise invalid
        if before is not None and (record.head.first_ord < before.end_ord or record.head.first_id <= before.last_id):
            raise invalid
        records.append(record)
        offset += record.size
        last = stream
    if offset != end or last + 1 != stream_count:
        raise invalid
    return records


def _unpack(values: tuple[int, ...], names: list[bytes]) -> tuple[SectionRecord, int]:
    (
        offset, size, stream, count, raw_size, first_ord, end_ord, first_ms, first_seq, last_ms, last_seq, checksum,
    ) = values  # fmt: skip
    if stream >= len(names) or size < section.HEADER.size or not 0 < count <= end_ord - first_ord:
        raise CorruptError("the index of a history object is invalid")
    head = SectionHead(names[stream], count, first_ord, end_ord, first_ms << 64 | first_seq, last_ms << 64 | last_seq)
    return SectionRecord(head, offset, size, raw_size, checksum), stream
