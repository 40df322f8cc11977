"""What a server sends to a replica: frames, and the entries of its store inside of them. Bytes only, no I/O.

    0         1               9             13               17            21
    +---------+---------------+-------------+----------------+-------------+------------- ... -+
    | kind u8 | log offset u64| length u32  | crc32 of the   | crc32 of    | payload           |     numbers are
    |         |               | of payload  | payload u32    | bytes 0..17 |                   |     big-endian
    +---------+---------------+-------------+----------------+-------------+------------- ... -+

    kind     payload
    COPY     entries u64 | bytes u64 (an estimate): a full copy begins, as of the log offset
    PIECE    entries of the store
    DONE     entries u64: the copy is complete
    BATCH    records that begin at the log offset
    ALIVE    flags u8: the server is there
    MESSAGE  a message that was PUBLISHed
    LOG      ms u64 | count u32 | sizes u32 each | commit groups that begin at the log offset; only to a continuous
             backup. The log ended after them at that time (ms since the epoch, by the server's clock); 0: more follows.
             Instead of the crc32 of the payload, the checksum is the lower half of XXH3

    an entry of the store
    +-------+----------------+------------------+------------+--------------+
    | db u8 | key length u16 | value length u32 | key        | value        |
    +-------+----------------+------------------+------------+--------------+
    db 1, nodes: bytes 28..32 of the value are the crc32, little-endian, of the rest of the value. Else the value begins
    with the crc32 of the key and of the rest of the value.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from xxhash import xxh3_64_intdigest

from tidelog.backup.targets import BackupError

BATCH, ALIVE, COPY, PIECE, DONE, MESSAGE, LOG = KINDS = b"BACPDML"
NODES: Final = 1  # a database number
CODED: Final = 2  # byte 2 of a node whose checksum is the lower half of XXH3 instead
NODE_HEADER: Final = 28  # bytes before the CRC of a node
FIRST: Final = Struct(">BQII")
CRC: Final = Struct(">I")
HEAD: Final = FIRST.size + CRC.size
NODE_CRC: Final = Struct("<I")
ENTRY: Final = Struct(">BHI")
TWO: Final = Struct(">QQ")
ONE: Final = Struct(">Q")
LOG_BODY: Final = Struct(">QI")


def checksum(kind: int, payload: bytes) -> int:
    """Return the checksum of a payload: crc32, or the lower half of XXH3 for LOG."""
    return xxh3_64_intdigest(payload) & 0xFFFFFFFF if kind == LOG else crc32(payload)


class BackupFrame(NamedTuple):
    """One frame. ``kind`` is one of the constants above, ``offset`` is a log offset."""

    kind: int
    offset: int
    payload: bytes

    def encoded(self) -> bytes:
        first = FIRST.pack(self.kind, self.offset, len(self.payload), checksum(self.kind, self.payload))
        return first + CRC.pack(crc32(first)) + self.payload

    def numbers(self, body: Struct) -> tuple[int, ...]:
        """Return the numbers of the payload. Raises BackupError if the length is wrong."""
        if len(self.payload) != body.size:
            raise BackupError(f"the server sent a frame of {len(self.payload)} bytes instead of {body.size}")
        return tuple(map(int, body.unpack(self.payload)))


class LogPart(NamedTuple):
    """Consecutive commit groups of the log."""

    offset: int  # log offset of the first one
    groups: list[bytes]
    ms: int  # time since the epoch at which the log ended after them; 0: unknown

    @property
    def end(self) -> int:
        return self.offset + sum(map(len, self.groups))

    @classmethod
    def of(cls, frame: BackupFrame) -> LogPart:
        """Return the content of a LOG frame. Raises BackupError if it is malformed."""
        payload, size = frame.payload, LOG_BODY.size
        if len(payload) >= size:
            ms, count = LOG_BODY.unpack_from(payload)
            begin = size + 4 * count
            if len(payload) >= begin:
                sizes = Struct(f">{count}I").unpack_from(payload, size)
                bounds = list(accumulate(sizes, initial=begin))
                if bounds[-1] == len(payload) and all(sizes):
                    return cls(frame.offset, [payload[start:end] for start, end in pairwise(bounds)], ms)
        raise BackupError("the server sent a part of its log whose sizes are inconsistent")


class BackupFrameDecoder:
    """Converts bytes to frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[BackupFrame]:
        """Return the frames that are complete. Raises BackupError if the input is invalid. Feed nothing more then."""
        buffer = self._buffer
        buffer += data
        found: list[BackupFrame] = []
        at = 0
        with memoryview(buffer) as view:
            while len(view) - at >= HEAD:
                kind, offset, length, body = FIRST.unpack_from(view, at)
                if crc32(view[at : at + FIRST.size]) != CRC.unpack_from(view, at + FIRST.size)[0]:
                    raise BackupError("what came from the server is not a frame, or it was damaged on the way")
                if kind not in KINDS:
                    raise BackupError(f"the server sent a frame of unknown kind {kind}: it is newer than this program")
                end = at + HEAD + int(length)
                if end > len(view):
                    break
                payload = bytes(view[at + HEAD : end])
                if checksum(kind, payload) != body:
                    raise BackupError("a frame was damaged on the way from the server")
                found.append(BackupFrame(kind, offset, payload))
                at = end
        del buffer[:at]
        return found


class StoreEntry(NamedTuple):
    """The position of an entry in a piece."""

    db: int
    key: bytes
    start: int
    end: int


def entries(piece: bytes) -> Iterator[StoreEntry]:
    """Yield the entries of a piece in order. Raises BackupError if an entry is damaged."""
    at = 0
    with memoryview(piece) as view:
        while at < len(view):
            start = at
            if at + ENTRY.size > len(view):
                raise BackupError("the server sent a piece that ends inside of an entry")
            db, key_size, value_size = ENTRY.unpack_from(view, at)
            value = at + ENTRY.size + key_size
            at = value + value_size
            if at > len(view):
                raise BackupError("the server sent a piece that ends inside of an entry")
            key = bytes(view[start + ENTRY.size : value])
            if not _sound(db, key, view[value:at]):
                raise BackupError(
                    f"the server's store is damaged: the entry {key!r} of db {db}. Back up a replica instead, or"
                    " restore the server from an older backup"
                )
            yield StoreEntry(db, key, start, at)


def _sound(db: int, key: bytes, value: memoryview) -> bool:
    if db != NODES:
        return len(value) >= CRC.size and crc32(value[CRC.size :], crc32(key)) == int(CRC.unpack_from(value)[0])
    body = NODE_HEADER + NODE_CRC.size
    if len(value) < body:
        return False
    if value[2] == CODED:
        found = xxh3_64_intdigest(value[body:], xxh3_64_intdigest(value[:NODE_HEADER])) & 0xFFFFFFFF
    else:
        found = crc32(value[body:], crc32(value[:NODE_HEADER]))
    return found == int(NODE_CRC.unpack_from(value, NODE_HEADER)[0])
