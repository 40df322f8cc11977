"""Frames: what a leader sends to a replica after it has answered PSYNC. Bytes only, no I/O.

    0         1               9             13               17            21
    +---------+---------------+-------------+----------------+-------------+------------- ... -+
    | kind u8 | log offset u64| length u32  | crc32 of the   | crc32 of    | payload           |
    |         |               | of payload  | payload u32    | bytes 0..17 |                   |
    +---------+---------------+-------------+----------------+-------------+------------- ... -+

Numbers are big-endian. The header has a checksum of its own, so no memory is reserved for a length that the leader did
not send.

    kind     log offset               payload
    BATCH    where the batch begins   records (see storage.model.records), whole batches only
    ALIVE    the leader's log offset  flags u8: 1 the replica must acknowledge immediately, 2 it must sync and
                                       acknowledge each tick until a frame without this flag
    COPY     of the store's snapshot  entries u64 | bytes u64 (an estimate): a full copy begins
    PIECE    the same                 entries of the store (see persistence.storecopy)
    REPORT   the same                 nothing: the replica must report its next nodes, see ``handshake``
    DONE     the same                 entries u64: the copy is complete; batches follow from that offset on
    MESSAGE  0                        channel length u32 | channel | message: a message was PUBLISHed
    SHARD    0                        the same: one was SPUBLISHed
    MEMBERS  0                        the other members (see members); only to a replica that announced itself
    CONFIRM  the confirmed offset     none: the replica may release what shows the log up to that offset
    WANT     0                        a request for a node (see nodes); only to a replica that answers requests
    NODE     0                        the answer to the replica's request
    LOG      where the first begins   ms u64 | count u32 | sizes u32 each | commit groups: only to a backup; the log
                                       ended after them at that time since the epoch, by the server's clock; 0: more
                                       follows. Instead of the crc32, the checksum is the lower half of XXH3

Rule 1: anything else raises LinkError and ends the link; nothing is skipped or guessed. This includes a length that no
frame of its kind has: 0, 1, 8 and 16 bytes as above, and at most LONGEST for the others.
Rule 2: the decoder returns only complete frames.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple
from zlib import crc32

from xxhash import xxh3_64_intdigest

BATCH, ALIVE, COPY, PIECE, DONE, MESSAGE, SHARD, MEMBERS, REPORT, CONFIRM, WANT, NODE, LOG = b"BACPDMSNROWGL"
ACKNOWLEDGE, EACH = 1, 2  # flags of ALIVE

FIRST = Struct(">BQII")
CRC = Struct(">I")
HEAD = FIRST.size + CRC.size
ALIVE_BODY = Struct(">B")
COPY_BODY = Struct(">QQ")
DONE_BODY = Struct(">Q")
LENGTH = Struct(">I")
LOG_BODY = Struct(">QI")

# Sizes of the writes of a leader's clients in one tick, of one value in its store, of one message. A single command is
# much shorter (proto-max-bulk-len, client-query-buffer-limit).
LONGEST = 1 << 31
LONGEST_REQUEST = 1 << 16  # bytes of a request, in both directions
LONGEST_ANSWER = 1 << 25  # bytes of an answer with a node: twice the longest node, see ``nodes``
LENGTHS = {  # by kind: minimum and maximum length of the payload
    BATCH: (1, LONGEST), ALIVE: (ALIVE_BODY.size, ALIVE_BODY.size), COPY: (COPY_BODY.size, COPY_BODY.size),
    PIECE: (1, LONGEST), DONE: (DONE_BODY.size, DONE_BODY.size), MESSAGE: (LENGTH.size, LONGEST),
    SHARD: (LENGTH.size, LONGEST), MEMBERS: (1, 1 << 20), REPORT: (0, 0), CONFIRM: (0, 0), WANT: (1, LONGEST_REQUEST),
    NODE: (1, LONGEST_ANSWER), LOG: (LOG_BODY.size, LONGEST),
}  # fmt: skip


class LinkError(Exception):
    """Raised if the link can't continue: the other end is not a tidelog server, violated the protocol, or refused."""


class NewerError(LinkError):
    """Raised for data of a newer version. Only an upgrade of this server helps."""


class ReplicationFrame(NamedTuple):
    """One frame: ``kind`` is one of the constants above, ``offset`` a log offset."""

    kind: int
    offset: int
    payload: bytes


def checksum(kind: int, payload: bytes) -> int:
    """Return the checksum of a payload: crc32, or the lower half of XXH3 for LOG, which costs the leader less."""
    return xxh3_64_intdigest(payload) & 0xFFFFFFFF if kind == LOG else crc32(payload)


def head(kind: int, offset: int, payload: bytes) -> bytes:
    """Return the header of a frame with that payload."""
    first = FIRST.pack(kind, offset, len(payload), checksum(kind, payload))
    return first + CRC.pack(crc32(first))


def encode(kind: int, offset: int, payload: bytes = b"") -> bytes:
    return head(kind, offset, payload) + payload


def message(channel: bytes, text: bytes, shard: bool = False) -> bytes:
    return encode(SHARD if shard else MESSAGE, 0, LENGTH.pack(len(channel)) + channel + text)


def read_message(payload: bytes) -> tuple[bytes, bytes]:
    """Return channel and message from the payload of a MESSAGE or SHARD frame. Raises LinkError."""
    if len(payload) >= LENGTH.size:
        end = LENGTH.size + int(LENGTH.unpack_from(payload)[0])
        if end <= len(payload):
            return payload[LENGTH.size : end], payload[end:]
    raise LinkError("a message that is shorter than its channel")


def read_numbers(body: Struct, payload: bytes) -> tuple[int, ...]:
    """Return the numbers in the payload of ALIVE, COPY or DONE. Raises LinkError."""
    if len(payload) != body.size:
        raise LinkError(f"a frame of {len(payload)} bytes instead of {body.size}")
    return tuple(map(int, body.unpack(payload)))


class FrameDecoder:
    """Decodes bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._need = HEAD  # bytes that the buffer must contain before anything can be decoded

    def feed(self, data: bytes) -> list[ReplicationFrame]:
        """Return the frames that are now complete. Raises LinkError; the decoder must not be used afterwards."""
        buffer = self._buffer
        buffer += data
        frames: list[ReplicationFrame] = []
        if len(buffer) < self._need:
            return frames
        at, size = 0, len(buffer)
        with memoryview(buffer) as view:
            while size - at >= HEAD:
                kind, offset, length, body = FIRST.unpack_from(view, at)
                if crc32(view[at : at + FIRST.size]) != CRC.unpack_from(view, at + FIRST.size)[0]:
                    raise LinkError("the data is not a frame, or it was damaged in transit")
                if kind not in LENGTHS:
                    raise LinkError(f"a frame of unknown kind {kind}: the leader is newer than this server?")
                shortest, longest = LENGTHS[kind]
                if not shortest <= length <= longest:
                    raise LinkError(f"a frame of kind {chr(kind)} with {length} bytes")
                stop = at + HEAD + length
                if stop > size:
                    break
                payload = bytes(view[at + HEAD : stop])
                if checksum(kind, payload) != body:
                    raise LinkError("a frame was damaged in transit")
                frames.append(ReplicationFrame(kind, offset, payload))
                at = stop
            self._need = HEAD if size - at < HEAD else HEAD + int(FIRST.unpack_from(view, at)[2])
        del buffer[:at]
        return frames
