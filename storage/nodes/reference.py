"""References: what the store has instead of the blob of a node whose entries were removed from it, because a history
object has them (docs/history-format.md).

     0      2     3     4        8        12        20         28       32
    +------+-----+-----+--------+--------+---------+----------+--------+- body -----------------------------------
    | "TN" | 3   | 0   | count  | wire   | ms of   | seq of   | crc32  | digest of the blob 16 | epoch u64
    |      | u8  | u8  | u32    | bytes  | first   | first    | u32    | | digest of the object 16 | offset u64
    |      |     |     |        | u32    | u64     | u64      |        | | size u32 | checksum u64 | ms, seq of last u64
    +------+-----+-----+--------+--------+---------+----------+--------+------------------------------------------

The header and its crc32 are those of other nodes (``node``). *Epoch* and the *digest of the object* are those in the
object's name. Offset, size and checksum (XXH3-64) are those of the section that has all entries of the node. The digest
of the blob (XXH3-128) identifies the node in the disk cache. All numbers are little-endian.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from resp.errors import CorruptError
from storage.model.ids import MASK64
from storage.nodes.node import BODY, CRC, HEADER, MAGIC

VERSION: Final = 3
PREFIX: Final = MAGIC + bytes((VERSION,))
_BODY: Final = Struct("<16sQ16sQIQQQ")
SIZE: Final = BODY + _BODY.size  # bytes of a reference


class Reference(NamedTuple):
    """Where the entries of a node are. IDs are ms << 64 | seq."""

    entries: int
    wire_bytes: int  # of their wire form
    first_id: int
    last_id: int
    digest: bytes  # of the blob that the store had
    epoch: int  # in the name of the object
    object_digest: bytes  # in the name of the object, 16 bytes
    offset: int  # of the section in the object
    size: int  # of the section
    checksum: int  # of the section

    @property
    def object(self) -> str:
        """The name of the object, see ``storage.history.manifest``."""
        return f"{self.epoch:016x}-{self.object_digest.hex()}.tide"

    @property
    def section(self) -> tuple[int, bytes, int]:
        """Identifies the section."""
        return self.epoch, self.object_digest, self.offset

    def pack(self) -> bytes:
        header = HEADER.pack(
            MAGIC, VERSION, 0, self.entries, self.wire_bytes, self.first_id >> 64, self.first_id & MASK64
        )
        body = _BODY.pack(
            self.digest, self.epoch, self.object_digest, self.offset, self.size, self.checksum, self.last_id >> 64,
            self.last_id & MASK64,
        )  # fmt: skip
        return header + CRC.pack(crc32(body, crc32(header))) + body


def is_reference(blob: bytes | memoryview) -> bool:
    """Return whether the value of a node is a reference."""
    return bytes(blob[:3]) == PREFIX


def unpack(raw: bytes) -> Reference:
    """Return the reference in the value of a node. Raises CorruptError if it is damaged."""
    if len(raw) != SIZE or raw[:3] != PREFIX:
        raise CorruptError("a reference to history has an invalid size")
    if CRC.unpack_from(raw, HEADER.size)[0] != crc32(raw[BODY:], crc32(raw[: HEADER.size])):
        raise CorruptError("the checksum of a reference to history is wrong")
    _, _, _, count, wire_bytes, ms, seq = HEADER.unpack_from(raw)
    digest, epoch, of, offset, size, checksum, last_ms, last_seq = _BODY.unpack_from(raw, BODY)
    first_id, last_id = ms << 64 | seq, last_ms << 64 | last_seq
    if not count or last_id < first_id or last_id - first_id < count - 1:
        raise CorruptError("a reference to history is invalid")
    return Reference(count, wire_bytes, first_id, last_id, digest, epoch, of, offset, size, checksum)
