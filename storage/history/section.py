"""Sections: consecutive entries of one stream, as one zstd frame with a header and a checksum.

     0      8      12    14    16     20      24      32      40      48      56      64      72     76    80
    +------+------+-----+-----+------+-------+-------+-------+-------+-------+-------+-------+------+-----+----------
    | xxh3 | size | 1   | how | name | count | first | end   | ms of | seq   | ms of | seq   | raw  | 0   | name
    |      |      |     |     | size |       | ord   | ord   | first | of it | last  | of it | size |     | frame
    | u64  | u32  | u16 | u16 | u32  | u32   | u64   | u64   | u64   | u64   | u64   | u64   | u32  | u32 |
    +------+------+-----+-----+------+-------+-------+-------+-------+-------+-------+-------+------+-----+----------

    xxh3           XXH3-64 of all that follows it
    size           bytes of the section, with ``xxh3``
    how            bit 0: the frame has a column of ordinals. Other bits are 0
    first, end ord the ordinals that the section covers: [first, end)
    name           of the stream

    raw bytes of the frame
        u32 x 3    bytes of the following three columns
        IDs        for each entry, ms minus that of the entry before it, and then seq minus that of the entry before it,
                   or seq if ms has increased. The entry before the first one has its ms, and seq 0
        ordinals   with bit 0 of ``how``: for each entry, its ordinal minus that of the entry before it. The ordinal of
                   the first one is relative to first ord
        sizes      the size of each entry in ``entries``
        entries    for each entry, the RESP array of its fields and values, as they were appended

All numbers are little-endian; the columns consist of varints. Without a column of ordinals, an entry has the ordinal
first ord + its position, and count is end ord - first ord. With it, the others were deleted.

Validity: version and bits are known, the reserved field is 0, sizes and checksum match, IDs and ordinals increase and
match the header, and each entry is an array of an even number of at least two bulk strings.

Decision: IDs have a column of their own. In the wire form of each entry, they would make the frame of sensor readings
72 % larger, and that of JSON of 250 bytes 4 %. A section takes 3.4 and 35.6 bytes per entry, and 0.8 and 2.4 us to
encode. zstd runs at level 9: level 3 needs a quarter of the time, but 14 and 19 % more space; level 15 saves 9 % and
takes seven times as long. Sections of 64 KB instead of 256 KB take 9 and 5 % more space.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from struct import Struct
from typing import Final

import zstandard
from xxhash import xxh3_64_intdigest

from resp.errors import CorruptError
from storage.history import varints
from storage.model.entries import COUNTS, id_bulk
from storage.model.ids import MASK64, MAX_ID

VERSION: Final = 1
HEADER: Final = Struct("<QIHHIIQQQQQQII")
FULL: Final = 1 << 18  # raw bytes at which a section is complete
MOST: Final = (1 << 32) - 1  # bytes of a section and of its frame, raw
LEVEL: Final = 9  # of zstd
_ORDINALS: Final = 0x01  # bits of ``how``
_CHECKED: Final = 8  # offset of the bytes that the checksum covers
_SIZES: Final = Struct("<III")


@dataclass(frozen=True, slots=True)
class SectionHead:
    """What a section covers. IDs are ms << 64 | seq."""

    stream: bytes
    count: int  # entries, at least 1
    first_ord: int
    end_ord: int  # exclusive
    first_id: int
    last_id: int


class SectionEntries:
    """The entries of a section."""

    __slots__ = ("_body", "_ends", "head", "ids", "ordinals")

    def __init__(self, head: SectionHead, ids: list[int], ordinals: list[int], ends: list[int], body: bytes) -> None:
        self.head = head
        self.ids = ids
        self.ordinals = ordinals
        self._ends = ends  # of each entry in body, after the offset at which the first one begins
        self._body = body

    def __len__(self) -> int:
        return len(self.ids)

    def fields(self, at: int) -> bytes:
        """Return the RESP array of an entry's fields and values."""
        return self._body[self._ends[at] : self._ends[at + 1]]

    def wire(self, at: int) -> bytes:
        """Return the wire form of an entry, as TREAD sends it (``storage.model.entries``)."""
        fields = self.fields(at)
        end = fields.index(b"\r\n")
        id = self.ids[at]  # noqa: A001
        return b"*%d\r\n%b\r\n%b" % (int(fields[1:end]) + 1, id_bulk(id >> 64, id & MASK64), fields[end + 2 :])


def fields_of(wire: bytes) -> bytes:
    """Return the RESP array of the fields and values of an entry in wire form."""
    count_end = wire.index(b"\r\n")
    size_end = wire.index(b"\r\n", count_end + 2)
    words = int(wire[1:count_end]) - 1
    start = size_end + 2 + int(wire[count_end + 3 : size_end]) + 2
    return (COUNTS[words] if words < len(COUNTS) else b"*%d\r\n" % words) + wire[start:]


def new_compressor() -> zstandard.ZstdCompressor:
    """Return a compressor, for one thread at a time."""
    return zstandard.ZstdCompressor(level=LEVEL)


def encode(
    stream: bytes, first_ord: int, end_ord: int, ids: list[int], ordinals: list[int], fields: list[bytes],
    compressor: zstandard.ZstdCompressor,
) -> bytes:  # fmt: skip
    """Return a section. The three lists have an element per entry; IDs and ordinals increase; the ordinals are within
    [first_ord, end_ord).

    Raises ValueError if there are no entries, the lists do not match, or the section would have MOST bytes or more.
    """
    count = len(ids)
    if not count or count != len(ordinals) or count != len(fields):
        raise ValueError("a section has at least one entry, with an ID, an ordinal, and fields for each")
    how = _ORDINALS if end_ord - first_ord != count else 0
    id_column = varints.encode(_id_steps(ids))
    ordinal_column = varints.encode(_steps(ordinals, first_ord)) if how else b""
    size_column = varints.encode([len(each) for each in fields])
    raw = b"".join((
        _SIZES.pack(len(id_column), len(ordinal_column), len(size_column)), id_column, ordinal_column, size_column,
        *fields,
    ))  # fmt: skip
    frame = compressor.compress(raw)
    size = HEADER.size + len(stream) + len(frame)
    if size > MOST or len(raw) > MOST:
        raise ValueError(f"a section has at most {MOST} bytes")
    first, last = ids[0], ids[-1]
    header = HEADER.pack(
        0, size, VERSION, how, len(stream), count, first_ord, end_ord, first >> 64, first & MASK64, last >> 64,
        last & MASK64, len(raw), 0,
    )  # fmt: skip
    rest = b"".join((header[_CHECKED:], stream, frame))
    return xxh3_64_intdigest(rest).to_bytes(8, "little") + rest


def decode(section: bytes, longest: int = MOST) -> SectionEntries:
    """Return the entries of a section. Verifies everything but the entries (see ``check_fields``).

    ``longest``: the largest size to which its frame may decompress. Raises CorruptError.
    """
    head, how, raw_size, start = _header(section)
    if raw_size > longest:
        raise CorruptError(f"a section of history decompresses to {raw_size} bytes; at most {longest} are accepted")
    frame = section[start:]
    try:
        if zstandard.frame_content_size(frame) != raw_size:
            raise CorruptError("a section of history has a frame of another size")
        raw = zstandard.ZstdDecompressor().decompress(frame, max_output_size=raw_size)
    except zstandard.ZstdError as error:
        raise CorruptError(f"a section of history can't be decompressed: {error}") from error
    if len(raw) != raw_size or raw_size < _SIZES.size:
        raise CorruptError("a section of history has a frame of another size")
    id_size, ordinal_size, size_size = _SIZES.unpack_from(raw)
    ids_end = _SIZES.size + id_size
    ordinals_end = ids_end + ordinal_size
    sizes_end = ordinals_end + size_size
    if sizes_end > raw_size or bool(ordinal_size) != bool(how & _ORDINALS):
        raise CorruptError("the columns of a section of history do not match its header")
    ids = _ids(varints.decode(raw[_SIZES.size : ids_end], 2 * head.count), head.first_id >> 64)
    if how & _ORDINALS:
        steps = varints.decode(raw[ids_end:ordinals_end], head.count)
        ordinals = list(accumulate(steps, initial=head.first_ord))[1:]
        if ordinals[-1] >= head.end_ord or 0 in steps[1:]:
            raise CorruptError("the ordinals of a section of history do not match its header")
    else:
        ordinals = list(range(head.first_ord, head.first_ord + head.count))
    ends = list(accumulate(varints.decode(raw[ordinals_end:sizes_end], head.count), initial=sizes_end))
    if ids[0] != head.first_id or ids[-1] != head.last_id:
        raise CorruptError("the IDs of a section of history do not match its header")
    if ends[-1] != raw_size:
        raise CorruptError("the sizes of a section's entries do not match its frame")
    return SectionEntries(head, ids, ordinals, ends, raw)


def read_head(section: bytes) -> tuple[SectionHead, int]:
    """Return what a section covers, and the raw size of its frame. Raises CorruptError if its header or checksum is
    invalid."""
    head, _, raw_size, _ = _header(section)
    return head, raw_size


def check_fields(entries: SectionEntries) -> None:
    """Verify that each entry is an array of fields and values. Raises CorruptError."""
    for at in range(len(entries)):
        fields = entries.fields(at)
        if not _is_array(fields):
            raise CorruptError(f"entry {entries.ordinals[at]} in a section of history is no list of fields and values")


def _header(section: bytes) -> tuple[SectionHead, int, int, int]:
    """Return what a section covers, its ``how``, the raw size of its frame, and the offset of the frame."""
    if len(section) < HEADER.size:
        raise CorruptError("a section of history is shorter than its header")
    (
        checksum, size, version, how, name_size, count, first_ord, end_ord, first_ms, first_seq, last_ms, last_seq,
        raw_size, reserved,
    ) = HEADER.unpack_from(section)  # fmt: skip
    if size != len(section):
        raise CorruptError(f"a section of history has {len(section)} bytes rather than {size}")
    if checksum != xxh3_64_intdigest(section[_CHECKED:]):
        raise CorruptError("the checksum of a section of history does not match")
    if version != VERSION or how & ~_ORDINALS or reserved:
        raise CorruptError(
            f"a section of history has format {version}; this version of tidelog reads format {VERSION}: upgrade it"
        )
    span = end_ord - first_ord
    if not count or name_size > size - HEADER.size or span < count or (span == count) == bool(how & _ORDINALS):
        raise CorruptError("the header of a section of history is invalid")
    start = HEADER.size + name_size
    head = SectionHead(
        section[HEADER.size : start], count, first_ord, end_ord, first_ms << 64 | first_seq, last_ms << 64 | last_seq
    )
    return head, how, raw_size, start


def _id_steps(ids: list[int]) -> list[int]:
    steps: list[int] = []
    ms, seq = ids[0] >> 64, 0
    for id in ids:  # noqa: A001
        own_ms, own_seq = id >> 64, id & MASK64
        steps.append(own_ms - ms)
        steps.append(own_seq if own_ms != ms else own_seq - seq)
        ms, seq = own_ms, own_seq
    return steps


def _ids(steps: list[int], ms: int) -> list[int]:
    """Return IDs. Raises CorruptError if they do not increase, or are too large."""
    ids: list[int] = []
    high, seq = ms << 64, 0
    for at in range(0, len(steps), 2):
        ms_step, seq_step = steps[at], steps[at + 1]
        if ms_step:
            ms += ms_step
            high, seq = ms << 64, 0
        elif not seq_step and at:
            raise CorruptError("the IDs of a section of history do not increase")
        seq += seq_step
        if seq > MASK64:
            raise CorruptError("an ID in a section of history is too large")
        ids.append(high | seq)
    if ids[-1] > MAX_ID:
        raise CorruptError("an ID in a section of history is too large")
    return ids


def _steps(numbers: list[int], before: int) -> list[int]:
    steps: list[int] = []
    for number in numbers:
        steps.append(number - before)
        before = number
    return steps


def _is_array(fields: bytes) -> bool:
    """Return whether these bytes are a RESP array of an even number of at least two bulk strings."""
    end = fields.find(b"\r\n")
    count = _number(fields, 0, end, b"*")
    if count < 2 or count % 2:
        return False
    at = end + 2
    for _ in range(count):
        end = fields.find(b"\r\n", at)
        size = _number(fields, at, end, b"$")
        if size < 0:
            return False
        at = end + 2 + size + 2
        if fields[at - 2 : at] != b"\r\n":
            return False
    return at == len(fields)


def _number(fields: bytes, start: int, end: int, kind: bytes) -> int:
    """Return the number after a type's character; -1 if it is not one."""
    if end <= start or fields[start : start + 1] != kind:  # mypyc does not slice backwards
        return -1
    digits = fields[start + 1 : end]
    if not digits.isdigit() or len(digits) > 10:
        return -1
    if len(digits) > 1 and digits[:1] == b"0":
        return -1
    return int(digits)
